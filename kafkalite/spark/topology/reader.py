"""The source of a topology: it reads ranges and runs level 0 in the same process.          [IO]

A Spark partition is a task with the ranges of its topics. Rows hold packets: records for tasks with
state, what tasks without state have made, and for each task the time.

Owns   connections on which the log is asked, from the first question until `stop`.
Fails  with StorageError if a log has become shorter, with ProcessingError as a task does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kafkalite.clients.ports import MACHINE
from kafkalite.columnar.lookup import Lookup
from kafkalite.columnar.ranges import OffsetRange, check_no_loss, limited
from kafkalite.columnar.reading import read_range
from kafkalite.columnar.settings import ReadSettings
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import KafkaliteError
from kafkalite.spark.topology.buckets import Row, Turn, read_rows
from kafkalite.spark.topology.offsets import START, Progress, aligned
from kafkalite.spark.topology.shipping import Shipment, drops, warn_of_drops
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.settings import DEFAULTS

SCHEMA: Final = (
    "to string, topic string, writer string, number long, partition int, now_ms long, packet binary"
)
ARROW: Final = pa.schema(
    [
        ("to", pa.string()), ("topic", pa.string()), ("writer", pa.string()),
        ("number", pa.int64()), ("partition", pa.int32()), ("now_ms", pa.int64()),
        ("packet", pa.binary()),
    ]
)  # fmt: skip
log: Final = logging.getLogger(__name__)
ROWS_MAX: Final = 64  # packets in one Arrow batch
LOOK_MS: Final = 1_000  # between micro-batches that only tell the time


class TaskRanges(InputPartition):
    """One Spark partition: a task, and what it reads in a micro-batch."""

    def __init__(
        self, task: TaskId, ranges: Sequence[OffsetRange], idle: Mapping[str, bool], to: Progress
    ) -> None:
        super().__init__(tuple(task))
        self.task = task
        self.ranges = tuple(ranges)
        self.idle = dict(idle)
        self.now_ms = to.now_ms
        self.tables = dict(to.tables)


class TopologyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches of about `records_max` records. With `to_the_end` an input that is read
    up to where it ended at the start counts as idle: nobody waits for more."""

    def __init__(self, shipment: Shipment, records_max: int | None) -> None:
        self._shipment = shipment
        self._records_max = records_max
        self._asking: Lookup | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._purged_ms = 0

    @property
    def _lookup(self) -> Lookup:
        if self._asking is None:
            self._asking = Lookup(self._settings)
        return self._asking

    @property
    def _settings(self) -> ReadSettings:
        return ReadSettings(self._shipment.servers, client_id="kafkalite-topology")

    @property
    def _wanted(self) -> list[TopicPartition]:
        inputs = self._shipment.maker.layout.inputs.values()
        return sorted(tp for partitions in inputs for tp in partitions)

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The placeholder."""
        return {START: None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As many records as a micro-batch may have."""
        return ReadAllAvailable() if self._records_max is None else ReadMaxRows(self._records_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes the end as it is now; the query stops there."""
        self._target = self._lookup.end(self._wanted)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` where nothing is to be done."""
        layout = self._shipment.maker.layout
        now_ms = MACHINE.now_ms()
        ends = self._target or self._lookup.end(self._wanted)
        before = Progress(self._first(), now_ms) if START in start else Progress.load(start)
        check_no_loss(before.offsets, ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end: Mapping[TopicPartition, int] = {
            tp: max(offset, before.offsets.get(tp, 0)) for tp, offset in ends.items()
        }
        if most is not None:
            end = self._limited(before.offsets, end, most)
        is_last = self._target is not None
        found = before.next(end, ends, now_ms, layout.idle_ms, is_last=is_last)
        found = replace(found, tables=self._table_ends(before))
        if START in start:
            return replace(found, begin=before.offsets).dump()
        is_due = layout.stages.looks_at_the_clock and now_ms - before.now_ms >= LOOK_MS
        says_idle = layout.told_idle and bool(found.idle - before.idle)
        if dict(end) == dict(before.offsets) and not says_idle and (is_last or not is_due):
            return start
        return found.dump()

    def _limited(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int
    ) -> Mapping[TopicPartition, int]:
        """The end of a micro-batch of about `most` records."""
        lag = sum(offset - start.get(tp, 0) for tp, offset in end.items())
        if lag <= most or not self._shipment.maker.layout.meets_by_time:
            return limited(start, end, most)
        lookup, wanted = self._lookup, list(end)
        newest_ms = lookup.newest_time(wanted)
        return aligned(
            start, end, most, newest_ms, lambda time: lookup.at_times(dict.fromkeys(wanted, time))
        )

    def _table_ends(self, before: Progress) -> dict[TopicPartition, int]:
        """Where global tables end now."""
        wanted = self._shipment.maker.layout.table_partitions
        if not wanted:
            return {}
        ends = self._lookup.end(wanted)
        check_no_loss(before.tables, ends)
        return {tp: max(end, before.tables.get(tp, 0)) for tp, end in ends.items()}

    def _first(self) -> dict[TopicPartition, int]:
        """Where a new query begins."""
        layout = self._shipment.maker.layout
        first, end = self._lookup.bounds(self._wanted)
        latest = {tp: end[tp] for tp in end if layout.offset_reset(tp) == "latest"}
        return {**first, **latest, **layout.starting}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A partition for each task, but those of level 0 that have nothing to say."""
        layout, to = self._shipment.maker.layout, Progress.load(end)
        first = to.begin if START in start else Progress.load(start).offsets
        assert first is not None, "the first micro-batch says where it begins"
        found: list[InputPartition] = []
        for task, inputs in layout.inputs.items():
            ranges = [
                OffsetRange(tp.topic, tp.partition, first.get(tp, 0), to.offsets[tp])
                for tp in inputs
                if to.offsets.get(tp, 0) > first.get(tp, 0)
            ]
            idle = {tp.topic: tp in to.idle for tp in inputs}
            if ranges or layout.level(task) or (layout.told_idle and any(idle.values())):
                found.append(TaskRanges(task, ranges, idle, to))
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """Deletes what was read of the repartition topics that lead back, now and then: they keep
        their records for ever. The checkpoint is what the query goes by."""
        by_log = self._shipment.maker.layout.stages.by_log
        read = {tp: at for tp, at in Progress.load(end).offsets.items() if tp.topic in by_log}
        now_ms = MACHINE.now_ms()
        if not any(read.values()) or now_ms - self._purged_ms < DEFAULTS.purge_interval_ms:
            return
        self._purged_ms = now_ms
        try:
            self._lookup.delete_before(read)
        except KafkaliteError as error:
            log.info("records of repartition topics stay for now: %s", error)

    def stop(self) -> None:
        """Disconnects."""
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    # In a worker

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. Where there is none, Spark makes a partition without any."""
        if not isinstance(partition, TaskRanges):
            return iter(())
        return self._read(partition)

    def _read(self, part: TaskRanges) -> Iterator[pa.RecordBatch]:
        topics = {wanted.topic: () for wanted in part.ranges}
        turn = Turn(topics, part.idle, part.now_ms, part.tables)
        yield from arrow_batches(
            read_rows(self._shipment.maker, part.task, self._batches(part), turn, drops)
        )
        warn_of_drops(self._shipment)

    def _batches(self, part: TaskRanges) -> Iterator[tuple[str, Columns]]:
        for wanted in part.ranges:
            for rows in read_range(self._settings, wanted):
                yield wanted.topic, rows.columns


def arrow_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow, a few packets at a time."""
    rows = iter(rows)
    while some := list(islice(rows, ROWS_MAX)):
        columns = zip(*some, strict=True)
        arrays = [
            pa.array(list(column), field.type) for column, field in zip(columns, ARROW, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def source_of(shipment: Shipment, records_max: int | None, name: str) -> type[DataSource]:
    """A source for one query: Spark's options are text, and a shipment is large."""

    class TopologySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
            return TopologyReader(shipment, records_max)

    return TopologySource
