"""A batch query: what lies between its starting and its ending place, read once.          [IO]

Owns   nothing between calls.
Fails  with StorageError if the log is shorter than the query's end, unless failOnDataLoss is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkalite.columnar.ranges import check_no_loss
from kafkalite.spark.source.reading import RangePartition, Reading


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets, once."""

    def __init__(self, options: Mapping[str, str], avro_schema: str | None = None) -> None:
        self.reading = Reading(options, avro_schema)

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
        return reading.plan(start, {tp: min(at, bounds.end[tp]) for tp, at in end.items()})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. Where there is none, Spark makes a partition without any."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return self.reading.read(partition.wanted)
