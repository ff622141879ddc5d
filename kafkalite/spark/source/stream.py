"""A streaming query: micro-batches, each from where the one before ended.                   [IO]

An offset of Spark's is `{"offsets": {"topic": {"0": 23}}}`. A new query starts from a placeholder,
which Spark may ask for more than once; the first `latestOffset` resolves it and stores where the
first batch begins in that batch's end. So a restart before the first commit reads from the same
place.

Owns   connections on which the log is asked, from the first question until `stop`; the time of the
       last batch.
Fails  with ConfigError for wrong options, with StorageError if a log has become shorter.
Source Spark's KafkaMicroBatchStream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kafkalite.columnar.ranges import check_no_loss
from kafkalite.core.types import TopicPartition
from kafkalite.spark.options import format_offsets, parse_offsets
from kafkalite.spark.processes import errors_in_one_line
from kafkalite.spark.source.planning import Offsets, next_end
from kafkalite.spark.source.reading import RangePartition, Reading

if TYPE_CHECKING:
    from kafkalite.columnar.lookup import Lookup

START: Final = "start"  # the placeholder
FROM: Final = "from"  # in an end: where the query's first batch begins
OFFSETS: Final = "offsets"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches."""

    def __init__(self, options: Mapping[str, str], schema: str | None = None) -> None:
        self._options, self._schema = dict(options), schema
        self._target: Offsets | None = None  # where a query of what is available stops
        self._asking: Lookup | None = None
        self._last_batch_at: float | None = None

    @cached_property
    def reading(self) -> Reading:
        """Made when first asked for: Spark constructs readers that it never uses."""
        return Reading(self._options, self._schema, streaming=True)

    @property
    def _lookup(self) -> Lookup:
        if self._asking is None:
            self._asking = self.reading.lookup()
        return self._asking

    def _end(self) -> dict[TopicPartition, int]:
        return self._lookup.end(self.reading.partitions(self._lookup))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The placeholder; Spark may ask more than once before the first batch is committed."""
        return {START: None}

    @errors_in_one_line()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger`, or no limit."""
        records = self.reading.options.max_offsets_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    @errors_in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes the end as it is now; the query stops there."""
        self._target = self._end()

    @errors_in_one_line()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the log, for the query's progress."""
        return {OFFSETS: format_offsets(self._end())}

    @errors_in_one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end offsets of the next batch; `start` where there is none yet."""
        reading, options = self.reading, self.reading.options
        if START in start:
            bounds = reading.bounds(self._lookup)
            first: Offsets = reading.resolve(
                self._lookup, options.starting, options.starting_name, bounds
            )
            there = bounds.end
        else:
            first, there = parse_offsets(start[OFFSETS]), self._target or self._end()
        if options.fail_on_data_loss:
            check_no_loss(first, there)
        end = self._target or there
        found = next_end(
            first,
            end,
            records_min=options.min_offsets_per_trigger if self._target is None else None,
            records_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            is_due=self._is_due(),
        )
        if START in start:
            if found is None:
                found = first
        elif found is None or found == first:
            return start
        self._last_batch_at = self._lookup.now()
        result: dict[str, Any] = {OFFSETS: format_offsets(found)}
        if START in start:
            result[FROM] = format_offsets(first)
        return result

    def _is_due(self) -> bool:
        """Whether the last batch is as long ago as `maxTriggerDelay` says."""
        before, now = self._last_batch_at, self._lookup.now()
        return before is None or now - before >= self.reading.options.max_trigger_delay_seconds

    @errors_in_one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets."""
        first = parse_offsets(end[FROM] if START in start else start[OFFSETS])
        return self.reading.plan(first, parse_offsets(end[OFFSETS]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. Where there is none, Spark makes a partition without any."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return self.reading.read(partition.wanted)

    @errors_in_one_line()
    def commit(self, end: dict[str, Any]) -> None:
        """Sets the group's offsets, if there is one, for those who watch its lag. The checkpoint
        is what the query goes by.
        """
        group_id = self.reading.options.group_id
        if group_id is not None:
            self._lookup.commit(group_id, parse_offsets(end[OFFSETS]))

    def stop(self) -> None:
        """Disconnects."""
        if self._asking is not None:
            self._asking.close()
            self._asking = None
