"""A rehearsal of Spark: the stages of a topology in one process, with a shuffle of dicts.    [IO]

    with Rehearsal(app, {"clicks": 4}) as spark:
        spark.write("clicks", 0, Columns(…))
        spark.micro_batch()
        spark.read("counts")

The log is lists, a micro-batch takes as many records of each partition as it is given, and state is
blobs in memory. `micro_batch(repeats=1)` throws away what a micro-batch has made and repeats it,
as Spark does after a crash; `forget_tasks` is the death of a Python worker.

Owns   the log, the state of each task, the tasks of one worker process.
Fails  as the tasks do.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final, Self

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.protocol.partitioner import partition_column, split
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.serde.registry import MemoryRegistry, SchemaRegistry
from kafkalite.spark.topology.buckets import (
    BY_KEY,
    LEFT_OUT,
    Maker,
    Row,
    Turn,
    level_rows,
    read_rows,
)
from kafkalite.spark.topology.packets import unpack
from kafkalite.spark.topology.stages import Layout, stages_of
from kafkalite.spark.topology.state import Tasks
from kafkalite.spark.topology.tables import TableCopies
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.call_loop import run_to_the_end
from kafkalite.streams.local.calls import WaitedCalls
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.topics import resolve_topics

ROUNDS_MAX: Final = 100


@dataclass(slots=True)
class MemoryBlobs:
    """The state of one task."""

    written: bytes | None = None
    blobs: list[bytes] = field(default_factory=list)

    def head(self) -> bytes | None:
        """What was written last."""
        return self.written

    def read(self) -> Iterable[bytes]:
        """All blobs."""
        return list(self.blobs)

    def append(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Adds blobs."""
        self.blobs += blobs
        self.written = head

    def replace(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Puts blobs in the place of all."""
        self.blobs[:] = blobs
        self.written = head


class _Topics:
    """The topics of the log, as an admin tells them."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[Any]:
        """Every topic."""
        return [
            SimpleNamespace(name=name, partition_count=count, is_internal=False, partitions=())
            for name, count in self.counts.items()
        ]

    async def create_missing_topics(self, topics: Iterable[Any]) -> None:
        """Makes topics."""
        for topic in topics:
            self.counts.setdefault(topic.name, topic.partitions)


class Rehearsal:
    """Runs the topology of `app` in micro-batches over `topics`, each with its partition count."""

    def __init__(
        self,
        app: StreamsBuilder,
        topics: Mapping[str, int],
        *,
        registry: SchemaRegistry | None = None,
        now_ms: int = 0,
        seed: int = 0,
    ) -> None:
        plan = replace(app.plan(), max_future_ms=None)
        stages = stages_of(plan)
        admin: Any = _Topics(topics)
        sources, counts = asyncio.run(resolve_topics(admin, stages.subs, "a rehearsal"))
        tables = {t: topics.get(t, 1) for table in plan.global_tables for t in table.topics}
        self.layout = Layout(stages, sources, {**topics, **counts}, tables=tables)
        self.now_ms = now_ms
        self.drops = Drops()  # of the worker process, thrown-away work included
        self.left_out = Drops()  # of the micro-batches
        self.log: dict[TopicPartition, list[Columns]] = {}
        registry = registry or MemoryRegistry()
        self._tables = TableCopies(plan, registry, self._range, self.drops)
        self._maker = Maker(
            self.layout, registry, lambda callee: WaitedCalls(callee, run_to_the_end), self._tables
        )
        self._positions: dict[TopicPartition, int] = {}
        self._state: dict[str, MemoryBlobs] = {}
        self._random = random.Random(seed)
        self._tasks = Tasks(lambda: self._random.randbytes(8))
        self._read: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget_tasks()

    def forget_tasks(self) -> None:
        """The Python worker dies."""
        self._tasks.close()
        self._tables.forget()

    # The log

    def write(self, topic: str, partition: int, columns: Columns) -> None:
        """Appends records to a partition."""
        parts = self.log.setdefault(TopicPartition(topic, partition), [])
        first = self._end(TopicPartition(topic, partition))
        parts.append(replace(columns, offsets=range(first, first + len(columns))))

    def read(self, topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
        """The records of a topic, partition by partition: key, value, timestamp."""
        found: list[tuple[bytes | None, bytes | None, int]] = []
        for tp, parts in sorted(self.log.items()):
            if tp.topic == topic:
                whole = concat(parts)
                found += zip(whole.keys, whole.values, whole.timestamps, strict=True)
        return found

    def _end(self, tp: TopicPartition) -> int:
        return sum(map(len, self.log.get(tp, ())))

    @property
    def lag(self) -> int:
        """How many records no micro-batch has read."""
        wanted = [tp for inputs in self.layout.inputs.values() for tp in inputs]
        return sum(self._end(tp) - self._positions.get(tp, 0) for tp in wanted)

    # Micro-batches

    def run(self, *sizes: int) -> None:
        """Micro-batches until nothing is left to read; the last one tells that all are idle."""
        for _ in range(ROUNDS_MAX):
            while self.lag:
                self.micro_batch(self._random.choice(sizes) if sizes else None)
            self.micro_batch(idle=True)
            if not self.lag:  # what leads back by the log may
                return
        raise AssertionError("the topology feeds itself without end")

    def micro_batch(
        self, records_max: int | None = None, *, idle: bool = False, repeats: int = 0
    ) -> None:
        """One micro-batch of at most so many records of each partition."""
        before = deepcopy(self._state)
        ends = {
            tp: min(self._end(tp), self._positions.get(tp, 0) + (records_max or 1 << 60))
            for inputs in self.layout.inputs.values()
            for tp in inputs
        }
        for _ in range(repeats):
            self._rows(ends, idle=idle)
            self._state = deepcopy(before)
        rows = self._rows(ends, idle=idle)
        self._positions |= ends
        for row in rows:
            self._send(row)

    def _rows(self, ends: Mapping[TopicPartition, int], *, idle: bool) -> list[Row]:
        """What a micro-batch has for the sink."""
        rows: list[Row] = []
        tables = {tp: self._end(tp) for tp in self.layout.table_partitions}
        for task, inputs in self.layout.inputs.items():
            batches = [(tp.topic, self._between(tp, ends[tp])) for tp in inputs]
            batches = [(topic, columns) for topic, columns in batches if len(columns)]
            turn = Turn(
                {topic: () for topic, _ in batches},
                {tp.topic: idle for tp in inputs},
                self.now_ms,
                tables,
            )
            rows += read_rows(self._maker, task, batches, turn, self.drops)
        for level in range(1, self.layout.stages.depth + 1):
            by_key: dict[str, list[Row]] = {}
            self._random.shuffle(rows)
            for row in rows:
                by_key.setdefault(row.to, []).append(row)
            rows = []
            for key, of_key in by_key.items():
                blobs = self._state.setdefault(key, MemoryBlobs())
                rows += level_rows(
                    self._maker, self._tasks, level, "run", of_key, blobs, self.drops
                )
        return rows

    def _between(self, tp: TopicPartition, end: int) -> Columns:
        first = self._positions.get(tp, 0)
        return concat(self.log.get(tp, ())).slice(first, end)

    def _range(self, wanted: OffsetRange) -> Iterator[Columns]:
        columns = concat(self.log.get(wanted.topic_partition, ()))
        yield columns.slice(wanted.start, wanted.end)

    def _send(self, row: Row) -> None:
        """What the sink does with a row."""
        if row.topic == LEFT_OUT:
            self.left_out.add_document(json.loads(row.packet))
            return
        columns = unpack(row.packet)
        count = self.layout.partitions_of.get(row.topic, 1)
        if row.partition != BY_KEY:
            self.write(row.topic, row.partition, columns)
            return
        partitions = [max(0, each) for each in partition_column(columns.keys, count)]
        for partition, part in enumerate(split(columns, partitions, count)):
            if len(part):
                self.write(row.topic, partition, part)
