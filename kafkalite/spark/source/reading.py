"""What batch and stream readers share: the columns, the log's bounds, a range as Arrow.     [IO]

Owns   nothing between calls. A caller lends the connections on which the log is asked.
Fails  with ConfigError for wrong options, with StorageError if records were deleted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.spark.options import OF_BATCHES, Place, SourceOptions, parse_options
from kafkalite.spark.processes import errors_in_one_line, freeze_modules
from kafkalite.spark.source.planning import Bounds, Offsets, planned, resolved, times_of
from kafkalite.spark.source.schemas import as_text, given_schema, value_format, value_type

if TYPE_CHECKING:
    from kafkalite.columnar.decoding import Decoder
    from kafkalite.columnar.lookup import Lookup

log: Final = logging.getLogger(__name__)

VALUE_SCHEMA: Final = "value.schema"  # in the metadata of the column `value`


class RangePartition(InputPartition):
    """One Spark partition: one offset range."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class Reading:
    """The options and how a range becomes Arrow batches. Values are read as `schema`, or as the one
    that the options and the registry say now.
    """

    def __init__(
        self, options: Mapping[str, str], schema: str | None = None, *, streaming: bool = False
    ) -> None:
        self.options: SourceOptions = parse_options(options, streaming=streaming)
        self.schema = self._found_schema() if schema is None else schema

    @classmethod
    def of_either(cls, options: Mapping[str, str]) -> Reading:
        """Of options whose columns are asked for, before Spark says whether it is a stream."""
        is_batch = {name.lower() for name in OF_BATCHES} & {name.lower() for name in options}
        return cls(options, streaming=not is_batch)

    def columns(self) -> pa.Schema:
        """The columns that the source gives."""
        from kafkalite.columnar.source_rows import arrow_schema

        wanted = self.options.columns
        value = value_type(self.options, self.schema) if "value" in wanted else pa.null()
        whole = arrow_schema(self.options.key_format, value, headers="headers" in wanted)
        return pa.schema([whole.field(name) for name in wanted])

    def decoder(self) -> Decoder:
        """How the bytes of records become the columns."""
        from kafkalite.columnar.decoding import Decoder
        from kafkalite.columnar.formats import Unwanted, key_format

        options = self.options
        wanted = options.columns
        keys = key_format(options.key_format) if "key" in wanted else Unwanted()
        values = value_format(options, self.schema) if "value" in wanted else Unwanted()
        return Decoder(keys, values, on_error=options.on_error)

    def _found_schema(self) -> str | None:
        if "value" not in self.options.columns:
            return None
        if self.options.infer_records is None:
            return given_schema(self.options)
        from kafkalite.columnar.sampling import sampled_columns

        with self.lookup() as lookup:
            bounds = self.bounds(lookup)
        return as_text(
            sampled_columns(
                self.options.settings, bounds.first, bounds.end, self.options.infer_records
            )
        )

    def lookup(self) -> Lookup:
        """Connections to ask the log on, for the caller to close."""
        from kafkalite.columnar.lookup import Lookup

        return Lookup(self.options.settings)

    def partitions(self, lookup: Lookup) -> list[TopicPartition]:
        """Every partition to read, as the cluster stands now."""
        options = self.options
        if options.pattern is not None:
            return lookup.matching(re.compile(options.pattern))
        there = lookup.partitions_of(options.topics)
        if options.partitions is None:
            return there
        if missing := sorted(set(options.partitions) - set(there)):
            raise ConfigError(f"assign names {missing[0]}, which does not exist")
        return list(options.partitions)

    def bounds(self, lookup: Lookup) -> Bounds:
        """The first and the next offset of each, as the log stands now."""
        return Bounds(*lookup.bounds(self.partitions(lookup)))

    def resolve(
        self, lookup: Lookup, place: Place, name: str, bounds: Bounds, *, is_end: bool = False
    ) -> dict[TopicPartition, int]:
        """The offsets of a place that the option `name` gave."""
        times = times_of(place, sorted(bounds.end), name)
        latest_if_none = is_end or self.options.latest_if_no_match
        found = lookup.at_times(times)
        return resolved(place, bounds, found, name, latest_if_none=latest_if_none)

    def plan(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Spark's partitions between two sets of offsets."""
        ranges = planned(
            start,
            end,
            partitions_min=self.options.min_partitions,
            records_max=self.options.max_records_per_partition,
        )
        return [RangePartition(wanted) for wanted in ranges]

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of one range, in a worker process."""
        from kafkalite.columnar.reading import read_range
        from kafkalite.columnar.source_rows import source_batch

        options, decoder, schema = self.options, self.decoder(), self.columns()
        freeze_modules()
        with errors_in_one_line():
            for rows in read_range(
                options.settings, wanted, fail_on_data_loss=options.fail_on_data_loss
            ):
                yield source_batch(decoder.decode(rows), schema)
        if decoder.unread_count:
            log.warning("%s: %d records could not be decoded", wanted, decoder.unread_count)
