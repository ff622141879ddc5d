"""Sessions, sliding and unlimited windows: the driver's records are those of Kafka Streams.

As `test_streams_oracle.py`, for one operator at a time. Kafka Streams errs at the last millisecond
of a window: it overwrites a session, or sends a final row twice. Cases have timestamps that no
window ends at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from struct import pack
from typing import Any, NamedTuple

import pytest

from kafkalite.streams import (
    Record,
    Streams,
    TopologyTestDriver,
    Windowed,
    fold,
    int64,
    session,
    sliding,
    string,
    unlimited,
)

CASES = int(os.environ.get("KAFKALITE_ORACLE_CASES", "120"))
SEED = int(os.environ.get("KAFKALITE_ORACLE_SEED", "1"))

Piped = tuple[str | None, int | None, int, str | None]  # key, value, timestamp, header


class Case(NamedTuple):
    """An aggregate over windows, and the records that it gets."""

    window: str
    length: int
    grace: int
    word: str
    is_final: bool  # whether its final rows are compared, too
    piped: list[Piped]

    def script(self) -> str:
        """The lines that Oracle.java reads."""
        nodes = [
            ("s", "stream", "in"),
            ("g", "group_by_key", "s"),
            ("w", self.window, "g", str(self.length), str(self.grace)),
            ("a", self.word, "w"),
            ("u", "to_stream", "a"),
            ("tu", "to", "u", "updates"),
        ]
        if self.is_final:
            nodes += [("f", "final", "a"), ("tf", "to", "f", "final")]
        pipes = [
            ("pipe", "in", *("-" if x is None else str(x) for x in record)) for record in self.piped
        ]
        return "\n".join(" ".join(words) for words in [*nodes, *pipes, ("end",)]) + "\n"

    def run(self) -> list[str]:
        """What Oracle.java prints."""
        driver = TopologyTestDriver(self.app())
        lines = []
        for key, value, timestamp, header in self.piped:
            headers = [(header, header.encode())] if header else []
            driver.pipe("in", value, key=key, timestamp=timestamp, headers=headers)
            for output in ("final", "updates") if self.is_final else ("updates",):
                lines += [self.told(output, record) for record in driver.read(output)]
            lines.append(".")
        return [*lines, f"dropped {driver.metrics()['dropped-records-total']}"]

    def app(self) -> Streams:
        """The topology as our users would write it."""
        app = Streams("oracle", key=string(), value=int64())
        window: Any
        if self.window == "unlimited":
            window = unlimited(self.length)
        else:
            window = (session if self.window == "session" else sliding)(self.length, self.grace)
        groups = app.stream("in").group_by_key().window(window)
        table: Any
        match self.word:
            case "count":
                table = groups.count()
            case "reduce":
                table = groups.reduce(reduce, value=int64())
            case _:
                table = groups.aggregate(fold(100, add, merge=merge), value=int64())
        table.to_stream().to("updates")
        if self.is_final:
            table.final().to("final")
        return app

    def told(self, topic: str, record: Record) -> str:
        """A record as Oracle.java prints it."""
        key: Windowed[str] = record.key
        bounds = (key.end, key.start) if self.window == "session" else (key.start,)
        data = key.key.encode() + pack(f">{len(bounds)}q", *bounds)
        value = "-" if record.value is None else "x" + pack(">q", record.value).hex()
        headers = "".join(f"{name}," for name, _ in record.headers) or "-"
        return f"{topic} x{data.hex()} {value} {record.timestamp} {headers}"


# The users' functions, the same as in Oracle.java


def reduce(a: int, v: int) -> int | None:
    total = a * 3 + v
    return None if total % 7 == 0 else total % 1000


def add(a: int, v: int | None) -> int | None:
    total = a + 1 if v is None else a * 2 + v
    return None if total % 5 == 0 else total % 1000


def merge(a: int, b: int) -> int:
    return (a * 2 + b) % 1000


def records(random: Random, step: int) -> Iterator[Piped]:
    """Records whose timestamps are multiples of `step`, mostly ascending."""
    now = 0
    for _ in range(random.randint(5, 60)):
        now += random.choice([0, 1, 1, 2, 3, 8]) * step
        timestamp = max(0, now - random.choice([0, 0, 0, 1, 2, 5, 15]) * step)
        key = random.choice(["a", "a", "b", "ab", None])
        value = random.choice([None, *range(-3, 7)])
        yield key, value, timestamp, random.choice([None, None, "h", "i"])


def a_case(random: Random) -> Case:
    word = random.choice(["count", "reduce", "aggregate"])
    if random.random() < 0.1:
        return Case("unlimited", random.choice([0, 20]), 0, word, False, list(records(random, 1)))
    if random.random() < 0.5:
        # No session ends at stream time - gap - grace: timestamps are even, the sum is odd.
        length, grace = random.choice([(5, 0), (2, 1), (4, 7), (7, 4), (10, 31), (1, 0)])
        return Case("session", length, grace, word, True, list(records(random, 2)))
    if random.random() < 0.5:
        # No window ends at stream time - grace, where those of a multiple of 4 end.
        length, grace = random.choice([2, 6, 10, 14]), random.choice([3, 7, 15, 31])
        return Case("sliding", length, grace, word, True, list(records(random, 4)))
    # No window begins less than two ms before stream time: Kafka Streams forgets windows by the
    # newest start, and then lacks one that a window which is still open is made of.
    length, grace = random.choice([2, 3, 5, 9, 11]), random.choice([0, 1, 5, 30])
    return Case("sliding", length, grace, word, False, list(records(random, 3)))


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    random = Random(SEED)
    return [a_case(random) for _ in range(CASES)]


def test_the_driver_gives_kafka_streams_records(oracle: Any, cases: list[Case]) -> None:
    printed = oracle.run("Oracle", stdin="".join(case.script() for case in cases))
    theirs = iter(printed.splitlines())
    for case in cases:
        expected = []
        while not expected or not expected[-1].startswith("dropped"):
            expected.append(next(theirs))
        assert case.run() == expected, case.script()
