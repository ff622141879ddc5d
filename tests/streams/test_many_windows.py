"""Windows of one row each: what is done once for a batch is not done for each window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafkalite.core.types import Columns
from kafkalite.serde import Serde, SerdeContext, json, string
from kafkalite.serde.serde import Codec
from kafkalite.streams import count, last, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task

WINDOWS = 300
CALLS: list[str] = []


@dataclass(frozen=True)
class Noted:
    """A serde that notes each call for a column."""

    name: str
    inner: Serde

    def open(self, context: SerdeContext) -> Codec:
        return NotedCodec(self.name, self.inner.open(context))


@dataclass
class NotedCodec:
    name: str
    inner: Codec

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        CALLS.append(f"{self.name} written")
        return self.inner.serialize(topic, column)

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        CALLS.append(f"{self.name} read")
        return self.inner.deserialize(topic, column)


def test_rows_of_many_windows_are_written_and_closed_together() -> None:
    app = StreamsBuilder("app", key=Noted("key", string()), value=json())
    windows = app.stream("in").group_by_key().window(tumbling(10, grace=0))
    rows = windows.aggregate(n=count(), it=last("x"), value=Noted("row", json()))
    rows.final().map(lambda row: {**row, "seen": True}).to("out")
    (sub,) = compile_topology(app.plan())
    task = Task(sub, 0)
    written: list[Columns] = []
    for times in (range(0, 10 * WINDOWS, 10), [100 * WINDOWS]):
        values = [b'{"x":%d}' % time for time in times]
        start = len(written) * WINDOWS
        offsets = range(start, start + len(times))
        task.enqueue("in", Columns([b"k"] * len(times), values, list(times), offsets))
        CALLS.clear()
        while task.process(10_000, 0):
            pass
        written += [output.columns for output in task.drain()]
        changes = [output.columns for output in task.commit().changelog]
        assert len(CALLS) < 20, CALLS
    first, second = written
    assert (len(first), len(second)) == (WINDOWS - 1, 1)
    assert list(first.values[:2]) == [
        b'{"n":1,"it":0,"seen":true}',
        b'{"n":1,"it":10,"seen":true}',
    ]
    assert [len(each) for each in changes] == [3]  # a tombstone, the note, a row
