"""Processors with stores and timers: the driver's records are Kafka Streams', one at a time.

`streams/Processors.java` has the same processors and topologies. `KAFKALITE_ORACLE_CASES` and
`KAFKALITE_ORACLE_SEED` try others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from kafkalite.streams import Record, Stream, Streams, TopologyTestDriver, int64, store, string

CASES = int(os.environ.get("KAFKALITE_ORACLE_CASES", "120"))
SEED = int(os.environ.get("KAFKALITE_ORACLE_SEED", "1"))
C = store("c", key=string(), value=int64())
W = store("w", key=string(), value=int64(), retention=12)


def key_of(record: Record) -> str:
    return "none" if record.key is None else record.key


class Counts:
    def init(self, context: Any) -> None:
        self.context, self.counts = context, context.store(C)
        context.schedule(10, "stream_time", self.report)

    def process(self, record: Record) -> None:
        count = (self.counts.get(key_of(record)) or 0) + 1
        if record.value is None:
            self.counts.delete(key_of(record))
        else:
            self.counts.put(key_of(record), count)
        self.context.forward(record.replace(value=count))
        if count % 3 == 0:
            self.context.forward(Record("third", count, record.timestamp + 1))

    def report(self, time: int) -> None:
        for key, count in self.counts.range(None, "b"):
            self.context.forward(Record(key, -count, time))


class Rings:
    def init(self, context: Any) -> None:
        self.context = context
        timers = [(4, "stream_time"), (8, "stream_time"), (8, "stream_time"), (12, "stream_time"),
                  (7, "wall_clock"), (14, "wall_clock")]  # fmt: skip
        for number, (period, clock) in enumerate(timers):
            context.schedule(period, clock, lambda time, n=number: self.ring(n, time))

    def ring(self, number: int, time: int) -> None:
        self.context.forward(Record(f"ring{number}", self.context.stream_time, time))

    def process(self, record: Record) -> None:
        self.context.forward(record.replace(value=self.context.stream_time))


class Recent:
    def init(self, context: Any) -> None:
        self.context, self.recent = context, context.store(W)

    def process(self, record: Record) -> None:
        key, time, total = key_of(record), record.timestamp, 0
        self.recent.put(key, record.value, time)
        for at, value in self.recent.fetch(key, max(0, time - 8), time + 2):
            total = total * 31 + at * 7 + value
        self.context.forward(record.replace(value=total))


class Alarms:
    def init(self, context: Any) -> None:
        self.context, self.set = context, context.store(C)

    def process(self, record: Record) -> None:
        key = key_of(record)
        if self.set.get(key) is not None:
            return
        self.set.put(key, 0)

        def ring(time: int) -> None:
            count = self.set.get(key) + 1
            self.set.put(key, count)
            self.context.forward(Record(key, count, time))
            if count == 3:
                timer.cancel()
                self.set.delete(key)

        clock = "wall_clock" if record.value is None else "stream_time"
        timer = self.context.schedule(3, clock, ring)


class Reader:
    def init(self, context: Any) -> None:
        self.context, self.counts = context, context.store(C)

    def process(self, record: Record) -> None:
        total = 0
        for _, count in self.counts.all():
            total = total * 31 + count
        self.context.forward(record.replace(key="read", value=total))


class Values:
    def init(self, context: Any) -> None:
        self.context, self.latest = context, context.store(C)

    def process(self, record: Record) -> None:
        before = self.latest.get(key_of(record))
        self.latest.put(key_of(record), record.value)
        if before is None or before != record.value:
            self.context.forward(record)


def even(stream: Stream) -> Stream:
    return stream.filter(lambda v: v is None or v % 2 == 0)


def several(stream: Stream) -> Stream:
    rings = even(stream)  # the first arm
    recent = stream.process(Recent, [W])
    return recent.merge(rings.process(Rings)).merge(stream.process(Counts, [C]))


TOPOLOGIES: dict[str, Callable[[Stream], Stream]] = {
    "counts": lambda s: s.process(Counts, [C]),
    "filtered": lambda s: even(s).process(Counts, [C]),
    "rings": lambda s: s.process(Rings),
    "recent": lambda s: s.process(Recent, [W]),
    "alarms": lambda s: even(s).process(Alarms, [C]),
    "shared": lambda s: even(s).process(Counts, [C]).merge(s.process(Reader, [C])),
    "chain": lambda s: s.process(Counts, [C]).process(Reader, ["c"]),
    "rung": lambda s: s.process(Rings).process(Counts, [C]),
    "values": lambda s: s.process_values(Values, [C]).group_by_key().count().to_stream(),
    "several": several,
}


def steps(random: Random) -> Iterator[str]:
    now = 0
    for _ in range(random.randint(5, 40)):
        if random.random() < 0.2:
            yield f"advance {random.choice([1, 3, 7, 20])}"
            continue
        now += random.choice([0, 1, 1, 2, 5, 20])
        timestamp = max(0, now - random.choice([0, 0, 0, 1, 5, 10, 40]))
        key = random.choice(["a", "b", "ab", "", "-"])
        value = random.choice(["-", *map(str, range(-3, 7))])
        yield f"pipe {key or 'e'} {value} {timestamp} {random.choice(['-', '-', 'h', 'i'])}"


def ours(name: str, lines: list[str]) -> list[str]:
    """What Processors.java prints for these lines."""
    app = Streams("oracle", key=string(), value=int64())
    TOPOLOGIES[name](app.stream("in")).to("out", key=string(), value=int64())
    told = []
    with TopologyTestDriver(app, wall_clock=100) as driver:
        for line in lines:
            word, *given = line.split()
            if word == "advance":
                driver.advance_wall_clock(int(given[0]))
            else:
                key, value, timestamp, header = given
                driver.pipe(
                    "in",
                    None if value == "-" else int(value),
                    key=None if key == "-" else key,
                    timestamp=int(timestamp),
                    headers=[] if header == "-" else [(header, header.encode())],
                )
            for record in driver.read("out"):
                headers = "".join(f"{name}," for name, _ in record.headers) or "-"
                words = ("null" if x is None else x for x in (record.key, record.value))
                told.append(f"{' '.join(map(str, words))} {record.timestamp} {headers}")
            told.append(".")
        dropped = driver.metrics()["dropped-records-total"]
    return [*told, f"dropped {dropped}"]


def test_processors_give_kafka_streams_records(oracle: Any) -> None:
    random = Random(SEED)
    cases = [(random.choice(list(TOPOLOGIES)), list(steps(random))) for _ in range(CASES)]
    text = "".join(f"case {name}\n{chr(10).join(lines)}\nend\n" for name, lines in cases)
    theirs = iter(oracle.run("Processors", stdin=text).splitlines())
    for name, lines in cases:
        expected = []
        while not expected or not expected[-1].startswith("dropped"):
            expected.append(next(theirs))
        assert ours(name, lines) == expected, f"{name}: {lines}"
