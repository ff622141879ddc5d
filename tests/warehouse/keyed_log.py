"""A topic of changes in memory, and the table that they make by definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.evolution import Aliases
from kafkalite.warehouse.log import Bounds
from kafkalite.warehouse.reading import DELETED, Reading
from kafkalite.warehouse.writing import Read, ReadRange

TOPIC = "orders"
SCHEMA = pa.schema(
    [
        ("value", pa.string()),
        ("shop", pa.string()),
        ("key", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True)
class Change:
    """A record; its value is None where it ends the row of its key."""

    key: str
    value: str | None
    timestamp: int = 0  # epoch ms


Logs = dict[int, list[Change]]


@dataclass(frozen=True)
class ChangeRows:
    """The changes of a range, three records a batch."""

    logs: Logs

    def __call__(self, wanted: OffsetRange) -> Iterator[Read]:
        for start in range(wanted.start, wanted.end, 3):
            offsets = range(start, min(start + 3, wanted.end))
            found = [(offset, self.logs[wanted.partition][offset]) for offset in offsets]
            rows = [
                {
                    "value": change.value,
                    "shop": f"shop {len(change.value or '') % 3}",
                    "key": change.key,
                    "_topic": TOPIC,
                    "_partition": wanted.partition,
                    "_offset": offset,
                    "_timestamp": change.timestamp * 1000,
                }
                for offset, change in found
            ]
            batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
            deleted = pa.array([change.value is None for _, change in found])
            yield Read(batch.append_column(DELETED, deleted))


@dataclass
class ChangeTopic:
    """Partitions by number; `seen` limits how much of them a load finds."""

    logs: Logs = field(default_factory=dict)

    @property
    def reading(self) -> Reading:
        return Reading("-", TOPIC, key_format="string", value_format="string")

    def add(self, partition: int, *changes: Change) -> None:
        self.logs.setdefault(partition, []).extend(changes)

    def bounds(self) -> Bounds:
        end = {TopicPartition(TOPIC, p): len(log) for p, log in self.logs.items()}
        return Bounds(dict.fromkeys(end, 0), end, end)

    def record_bytes(self) -> dict[TopicPartition, float]:
        return {TopicPartition(TOPIC, p): 100.0 for p in self.logs}

    def resolved(
        self, engine: Engine, ranges: Sequence[OffsetRange], table: pa.Schema | None
    ) -> Reading:
        return self.reading

    def columns(self, reading: Reading) -> pa.Schema:
        return SCHEMA

    def aliases(self, reading: Reading) -> Aliases:
        return {}

    def rows(self, reading: Reading) -> ReadRange:
        raise AssertionError("a load that updates reads changes")

    def changes(self, reading: Reading) -> ReadRange:
        return ChangeRows({p: list(log) for p, log in self.logs.items()})

    def rows_now(self) -> dict[str, str]:
        """The values by their keys: the last change of each partition, the latest of those."""
        latest: dict[str, tuple[int, int, str | None]] = {}
        for partition, log in sorted(self.logs.items()):
            own = {change.key: change for change in log}
            for key, change in own.items():
                found = (change.timestamp, partition, change.value)
                if key not in latest or found[:2] > latest[key][:2]:
                    latest[key] = found
        return {key: value for key, (_, _, value) in latest.items() if value is not None}


def random_changes(random: Random, count: int, keys: int) -> list[Change]:
    """A third of the changes are deletes."""
    return [
        Change(f"k{random.randrange(keys)}", f"v{random.random()}" if random.randrange(3) else None)
        for _ in range(count)
    ]
