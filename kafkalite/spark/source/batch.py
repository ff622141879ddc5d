"""A batch query: what lies between its starting and its ending place, read once.          [IO]

Owns   nothing between calls.
Fails  with StorageError if the log is shorter than the query's end, unless failOnDataLoss is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from kafkalite.columnar.ranges import check_no_loss
from kafkalite.spark.processes import errors_in_one_line
from kafkalite.spark.source.pruning import Pruning, pushed
from kafkalite.spark.source.reading import RangePartition, Reading


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets, once."""

    def __init__(self, options: Mapping[str, str], schema: str | None = None) -> None:
        self.reading = Reading(options, schema)
        self.pruning = Pruning()

    @errors_in_one_line()
    def partitions(self) -> Sequence[InputPartition]:
        """Offset ranges, each a Spark partition."""
        reading, options = self.reading, self.reading.options
        with reading.lookup() as lookup:
            bounds = reading.bounds(lookup)
            start = reading.resolve(lookup, options.starting, options.starting_name, bounds)
            end = reading.resolve(lookup, options.ending, options.ending_name, bounds, is_end=True)
            if options.fail_on_data_loss:
                check_no_loss(end, bounds.end)
                check_no_loss(start, end)
            end = {tp: min(at, bounds.end[tp]) for tp, at in end.items()}
            if self.pruning.from_ms is not None:
                found = lookup.at_times(dict.fromkeys(end, self.pruning.from_ms))
                # No record so late: nothing of the partition passes.
                later = {tp: end[tp] if at is None else at for tp, at in found.items()}
                start = {tp: max(start[tp], at) for tp, at in later.items()}
        return reading.plan(*self.pruning.cut(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. Where there is none, Spark makes a partition without any."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return map(self.pruning.passing, self.reading.read(partition.wanted))


class PruningReader(BatchReader):
    """The same for a query whose filters are pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Notes what the filters save; returns those that Spark must apply."""
        self.pruning, rest = pushed(filters)
        return rest
