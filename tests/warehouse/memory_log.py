"""A topic in memory, for loads without a broker: record `offset` of partition p is a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.errors import SerdeError
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.evolution import Aliases
from kafkalite.warehouse.log import Bounds
from kafkalite.warehouse.reading import DEAD_LETTERS, Reading
from kafkalite.warehouse.writing import Read, ReadRange

DAY_US = 86_400_000_000
TOPIC = "orders"
INT64 = pa.int64()


@dataclass(frozen=True)
class NumberRows:
    """Rows whose `id` tells partition and offset; timestamps run backwards through three days."""

    fields: tuple[str, ...] = ("id",)
    bad: frozenset[int] = frozenset()
    on_error: str = "fail"
    dead_ranges: frozenset[OffsetRange] = frozenset()
    kind: pa.DataType = INT64

    def __call__(self, wanted: OffsetRange) -> Iterator[Read]:
        assert wanted not in self.dead_ranges, "this range is staged already"
        for start in range(wanted.start, wanted.end, 7):
            offsets = range(start, min(start + 7, wanted.end))
            bad = [offset for offset in offsets if offset in self.bad]
            if bad and self.on_error == "fail":
                raise SerdeError(f"{wanted.topic}-{wanted.partition} offset {bad[0]}: bad")
            good = [offset for offset in offsets if offset not in self.bad]
            dead = None
            if bad and self.on_error == "dlq":
                dead = pa.RecordBatch.from_pylist(
                    [{"value": b"?", "reason": "bad", "_offset": offset} for offset in bad],
                    schema=DEAD_LETTERS,
                )
            yield Read(rows(wanted, good, self.fields, self.kind), dead, len(bad))


def rows(
    wanted: OffsetRange,
    offsets: Sequence[int],
    fields: Sequence[str],
    kind: pa.DataType = INT64,
) -> pa.RecordBatch:
    numbers = [wanted.partition * 1_000_000 + offset for offset in offsets]
    columns = {name: pa.array(numbers, kind) for name in fields}
    times = [(-offset % 3) * DAY_US + DAY_US - offset for offset in offsets]
    return pa.RecordBatch.from_pydict(
        {
            **columns,
            "key": pa.array([None] * len(numbers), pa.binary()),
            "_topic": pa.array([wanted.topic] * len(numbers), pa.string()),
            "_partition": pa.array([wanted.partition] * len(numbers), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "_timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


@dataclass
class MemoryTopic:
    """The log: partitions by number with their first and next offsets."""

    ends: dict[int, int]
    first: dict[int, int] = field(default_factory=dict)
    fields: tuple[str, ...] = ("id",)
    bad: frozenset[int] = frozenset()
    on_error: str = "fail"
    staged: frozenset[OffsetRange] = frozenset()
    topic: str = TOPIC
    kind: pa.DataType = INT64
    older_names: Aliases = field(default_factory=dict)

    @property
    def reading(self) -> Reading:
        return Reading("-", self.topic, value_format="string", on_error=self.on_error)

    def bounds(self) -> Bounds:
        first = {TopicPartition(self.topic, p): self.first.get(p, 0) for p in self.ends}
        end = {TopicPartition(self.topic, p): end for p, end in self.ends.items()}
        return Bounds(first, end, end)

    def record_bytes(self) -> dict[TopicPartition, float]:
        return {TopicPartition(self.topic, p): 100.0 for p in self.ends}

    def resolved(
        self, engine: Engine, ranges: Sequence[OffsetRange], table: pa.Schema | None
    ) -> Reading:
        return self.reading

    def columns(self, reading: Reading) -> pa.Schema:
        return rows(OffsetRange(self.topic, 0, 0, 0), [], self.fields, self.kind).schema

    def aliases(self, reading: Reading) -> Aliases:
        return self.older_names

    def rows(self, reading: Reading) -> ReadRange:
        return NumberRows(self.fields, self.bad, reading.on_error, self.staged, self.kind)

    def changes(self, reading: Reading) -> ReadRange:
        raise AssertionError("no load updates these rows")
