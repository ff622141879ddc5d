"""Joins with global tables and by foreign keys: the driver's records are Kafka Streams'.

As `test_streams_oracle.py`, for these operators alone: keys, values, timestamps, headers, order and
what was dropped must be the same, record by record.
"""

from __future__ import annotations

import os
from random import Random
from struct import pack
from typing import Any

import pytest

from kafkalite.streams import Record, Streams, TopologyTestDriver, int64, string

CASES = int(os.environ.get("KAFKALITE_ORACLE_CASES", "120"))
SEED = int(os.environ.get("KAFKALITE_ORACLE_SEED", "1"))

Node = tuple[str, ...]  # id, operator, parent, arguments; the lines that Oracle.java reads
Piped = tuple[str, str | None, int | None, int, str | None]
NAMES = ["a", "b", "ab", "", None]


def named(v: int | None) -> str | None:
    return None if v is None else NAMES[v % 5]


def both(left: int | None, right: int | None) -> int | None:
    total = (1 if left is None else left * 3) + (5 if right is None else right)
    return None if total % 7 == 0 else total


def passes(v: int | None) -> bool:
    return v is None or (v > 0 and v % 10 != 0)


def app_of(nodes: list[Node]) -> Streams:
    """The topology as our users would write it."""
    app = Streams("oracle", key=string(), value=int64())
    made: dict[str, Any] = {}
    for name, word, parent, *given in nodes:
        above = made.get(parent)
        match word:
            case "stream":
                made[name] = app.stream(parent)
            case "global":
                made[name] = app.global_table(parent)
            case "table":
                made[name] = app.table(parent)
            case "filter" | "table_filter":
                made[name] = above.filter(passes)
            case "table_map":
                made[name] = above.map(lambda v: v + 10, name=given[1])
            case "global_join":
                table, how, by = given
                key = {} if by == "own" else {"key": named}
                made[name] = above.join(made[table], both, how=how, **key)
            case "foreign_join":
                table, how = given
                made[name] = above.join(made[table], both, how=how, foreign_key=named)
            case "to_stream":
                made[name] = above.to_stream()
            case "to":
                above.to(given[0])
    return app


def run(nodes: list[Node], piped: list[Piped]) -> list[str]:
    """What Oracle.java prints for these nodes."""
    driver = TopologyTestDriver(app_of(nodes))
    lines = []
    for topic, key, value, timestamp, header in piped:
        headers = [(header, header.encode())] if header else []
        driver.pipe(topic, value, key=key, timestamp=timestamp, headers=headers)
        lines += [*map(told, driver.read("out")), "."]
    return [*lines, f"dropped {driver.metrics()['dropped-records-total']}"]


def told(record: Record) -> str:
    key, value = record.key, record.value
    columns = (key and key.encode(), None if value is None else pack(">q", value))
    if key == "":
        columns = (b"", columns[1])
    texts = ["-" if data is None else "x" + data.hex() for data in columns]
    headers = "".join(f"{name}," for name, _ in record.headers) or "-"
    return f"out {' '.join(texts)} {record.timestamp} {headers}"


def records(random: Random) -> list[Piped]:
    piped: list[Piped] = []
    now = 0
    for _ in range(random.randint(5, 40)):
        now += random.choice([0, 1, 1, 2, 5, 20])
        timestamp = max(0, now - random.choice([0, 0, 0, 1, 5, 10, 40]))
        key = random.choice(["a", "b", "ab", "", None])
        value = random.choice([None, *range(-3, 7)])
        header = random.choice([None, None, "h", "i"])
        piped.append((random.choice(["in", "other"]), key, value, timestamp, header))
    return piped


def a_global_join(random: Random) -> list[Node]:
    nodes: list[Node] = [("g", "global", "other"), ("s", "stream", "in")]
    below = "s"
    if random.random() < 0.3:
        nodes.append(("f", "filter", "s", "positive"))
        below = "f"
    how, by = random.choice(["inner", "left"]), random.choice(["own", "value"])
    return [*nodes, ("j", "global_join", below, "g", how, by), ("o", "to", "j", "out")]


def a_foreign_join(random: Random) -> list[Node]:
    nodes: list[Node] = [("l", "table", "in", "-"), ("r", "table", "other", "-")]
    sides = []
    for side in ("l", "r"):
        word = random.choice(["-", "-", "table_filter", "table_map"])
        if word != "-":
            given = ("positive", "-") if word == "table_filter" else ("inc", f"s{side}")
            nodes.append((f"{side}2", word, side, *given))
        sides.append(side if word == "-" else f"{side}2")
    how = random.choice(["inner", "left"])
    nodes.append(("j", "foreign_join", *sides, how))
    return [*nodes, ("u", "to_stream", "j"), ("o", "to", "u", "out")]


def script(nodes: list[Node], piped: list[Piped]) -> str:
    pipes = [("pipe", *("-" if x is None else str(x) for x in record)) for record in piped]
    return "\n".join(" ".join(words) for words in [*nodes, *pipes, ("end",)]) + "\n"


@pytest.mark.parametrize("make", [a_global_join, a_foreign_join])
def test_the_driver_gives_kafka_streams_records(oracle: Any, make: Any) -> None:
    random = Random(SEED)
    cases = [(make(random), records(random)) for _ in range(CASES)]
    theirs = iter(oracle.run("Oracle", stdin="".join(script(*c) for c in cases)).splitlines())
    for nodes, piped in cases:
        expected = []
        while not expected or not expected[-1].startswith("dropped"):
            expected.append(next(theirs))
        assert run(nodes, piped) == expected, script(nodes, piped)
