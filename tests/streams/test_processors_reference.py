"""Processors against the reference: batches cut anywhere, restarts anywhere, every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.processors import PlainTask
from test_state_stores import Durably

from kafkalite.streams import Record, json, store, string
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.processors import StoreSpec

COUNTS = store("counts", key=string(), value=json())
RECENT = store("recent", key=string(), value=json(), retention=12)
SET = store("set", key=string(), value=json())


class Base:
    """Forwards a record with the stream time beside its value."""

    def init(self, context: Any) -> None:
        self.context = context

    def tell(self, record: Record, value: Any) -> None:
        self.context.forward(record.replace(value=[value, self.context.stream_time]))


class Counts(Base):
    """Counts keys, and tells all counts now and then; a null value deletes the count."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.store("counts")
        context.schedule(10, "stream_time", self.report)

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, None if record.value is None else count)
        self.tell(record, count)

    def report(self, time: int) -> None:
        for key, count in self.counts.range(end="b"):
            self.context.forward(Record(key, ["report", count], time))


class Twice(Base):
    """Two timers of different periods."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule(4, "stream_time", lambda time: self.ring("short", time))
        context.schedule(8, "stream_time", lambda time: self.ring("long", time))

    def process(self, record: Record) -> None:
        if record.value != 3:
            self.tell(record, record.value)

    def ring(self, word: str, time: int) -> None:
        self.context.forward(Record(word, None, time))


class Recent(Base):
    """Forwards the values of a key's last moments; each is kept as a list that is then changed."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.recent = context.store("recent")

    def process(self, record: Record) -> None:
        held = [record.value]
        self.recent.put(record.key, held if record.value != 0 else None, record.timestamp)
        held.append("changed")
        found = list(self.recent.fetch(record.key, record.timestamp - 8, record.timestamp + 2))
        self.tell(record, [list(each) for each in found])


class Alarm(Base):
    """Sets a timer when the first 5 comes, which may be in the middle of a batch."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.set = context.store("set")
        self.rung: list[int] = []

    def process(self, record: Record) -> None:
        if record.value == 5 and self.set.get("x") is None:
            self.set.put("x", 0)
            self.context.schedule(3, "stream_time", self.ring)
        if (count := self.set.get("x")) is not None:
            self.set.put("x", count + 1)

    def ring(self, time: int) -> None:
        self.context.forward(Record("ring", self.set.get("x"), time))


class Reader(Base):
    """Looks into the store of another processor."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        self.tell(record, dict(self.counts.all()))


Chain = Sequence[tuple[type[Base], Sequence[StoreSpec]]]
Arms = Sequence[tuple[Callable[[Record], bool], Chain]]


def every(record: Record) -> bool:
    return True


def small(record: Record) -> bool:
    return record.value is None or record.value < 3


COUNTING: Chain = [(Counts, [COUNTS])]
TOPOLOGIES: dict[str, Arms] = {
    "counts": [(every, COUNTING)],
    "filtered": [(small, COUNTING)],
    "twice": [(every, [(Twice, [])]), (small, [(Recent, [RECENT])])],
    "recent": [(small, [(Recent, [RECENT])])],
    "alarm": [(lambda record: record.value != 2, [(Alarm, [SET])])],
    "chain": [(every, [(Twice, []), (Recent, [RECENT])])],
    "shared": [(small, COUNTING), (every, [(Reader, [COUNTS])])],
    "shared below": [(every, [(Counts, [COUNTS]), (Reader, [COUNTS])])],
}
records = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ab"]),
        st.one_of(st.none(), st.integers(0, 6)),
        st.integers(0, 40),
    ),
    max_size=25,
)
ascending = records.map(lambda rs: sorted(rs, key=lambda r: r[2]))
inputs = st.one_of(records, ascending)
cuts = st.lists(st.tuples(st.integers(1, 24), st.booleans()), max_size=4)


def built(arms: Arms) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=json())
    source = app.stream("in")
    for test, chain in arms:
        stream = source.filter(test, with_record=True)
        for processor, stores in chain:
            stream = stream.process(processor, stores)
        stream.to("out")
    return app


def expected(arms: Arms, rows: Sequence[tuple[Any, Any, int]]) -> tuple[list[Any], int]:
    specs = {spec.name: spec for _, chain in arms for _, stores in chain for spec in stores}
    task = PlainTask([(test, [make for make, _ in chain]) for test, chain in arms],
                     list(specs.values()))  # fmt: skip
    for row in rows:
        task.process(Record(*row))
    dropped = sum(getattr(each, "dropped", 0) for each in task.stores.values())
    return [(r.key, r.value, r.timestamp) for r in task.out], dropped


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("kind", ["memory", "disk"])
@given(rows=inputs, at=cuts, cached=st.booleans())
@settings(max_examples=30, deadline=None)
def test_processors_are_as_in_the_reference(
    batch_run: Any, name: str, kind: str, rows: Any, at: Any, cached: bool
) -> None:
    arms = TOPOLOGIES[name]
    made = batch_run if kind == "memory" else type("DurableRun", (Durably, batch_run), {})
    run = made(built(arms), cached=cached)
    dropped = first = 0
    for end, restarts in [*sorted(at), (len(rows), False)]:
        if rows[first:end]:
            run.feed("in", rows[first:end])
            first = end
        run.commit()
        if restarts:
            dropped += run.total("dropped-records-total")
            run.restart()
    dropped += run.total("dropped-records-total")
    assert (run.rows("out"), dropped) == expected(arms, rows)
