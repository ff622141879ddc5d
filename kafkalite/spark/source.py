"""`format("kafkalite")`: the log as a table and as a stream, through PySpark alone.       [IO]

Each Spark partition reads one offset range and yields Arrow record batches. A stream's offsets are
`{"topic": {"0": 23}}`. A new query starts from a placeholder, which the first `latestOffset`
resolves once, so a restart before the first commit reads from the same place.

Owns   nothing between calls: Spark pickles readers and runs them in other processes.
Fails  with ConfigError for wrong options, with StorageError if records were deleted.
Source Spark's Python data source API (4.2), the official Kafka connector's options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kafkalite.columnar.ranges import OffsetRange, check_no_loss, limited, ranges_between
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.spark.options import (
    EARLIEST,
    LATEST,
    Offsets,
    SourceOptions,
    check_partitions,
    format_offsets,
    parse_offsets,
    parse_options,
)

if TYPE_CHECKING:
    from kafkalite.columnar.column_types import Convert

AVRO_SCHEMA = "avro.schema"  # in the metadata of the column `value`
START = "start"  # in an end offset: where the query's first batch began


class RangePartition(InputPartition):
    """One Spark partition: one offset range."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class KafkaliteSource(DataSource):
    """The data source. Constructed often and in many processes: it does nothing until asked."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "kafkalite"

    def schema(self) -> StructType:
        """The columns, from the options and the registry. The value's bears the Avro schema that
        the readers of this query read as, whichever is the latest when they run.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        reading = Reading(dict(self.options))
        columns = from_arrow_schema(reading.columns()[0])
        if reading.avro_schema is not None:
            columns["value"].metadata = {AVRO_SCHEMA: reading.avro_schema}
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader."""
        return BatchReader(dict(self.options), _avro_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader; never the simple kind, which ignores limits."""
        return StreamReader(dict(self.options), _avro_schema(schema))


def _avro_schema(columns: StructType) -> str | None:
    """The Avro schema that `KafkaliteSource.schema` put into the columns."""
    return next((f.metadata.get(AVRO_SCHEMA) for f in columns if f.name == "value"), None)


class Reading:
    """What batch and stream readers share: the options and how a range becomes Arrow batches.

    Avro values are read as `avro_schema`, or as the latest of the topic's.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        avro_schema: str | None = None,
        *,
        streaming: bool = False,
    ) -> None:
        self.options: SourceOptions = parse_options(options, streaming=streaming)
        is_avro = self.options.value_format == "avro"
        self.avro_schema = avro_schema or self._latest_schema() if is_avro else None

    def columns(self) -> tuple[pa.Schema, Convert | None]:
        """The columns, and what each value goes through to stand in its own."""
        from kafkalite.columnar.column_types import PLAIN, column_type
        from kafkalite.serde.avro_schema import parse_schema
        from kafkalite.spark.arrow import arrow_schema
        from kafkalite.spark.json_loads import json_struct

        if self.options.value_schema is not None:
            return arrow_schema(self.options, json_struct(self.options.value_schema)), None
        if self.avro_schema is None:
            value = PLAIN[self.options.value_format]
        else:
            value = column_type(parse_schema(self.avro_schema))
        return arrow_schema(self.options, value.arrow), value.convert

    def _latest_schema(self) -> str:
        """The latest schema of the topic's values."""
        from kafkalite.serde.registry_log import registry_at

        subject = f"{self.options.topics[0]}-value"
        return registry_at(self.options.bootstrap_servers).latest(subject).text

    def partitions(self) -> list[TopicPartition]:
        """Every partition to read, as the cluster stands now."""
        from kafkalite.spark.log import partitions_of

        there = partitions_of(self.options.bootstrap_servers, self.options.topics)
        if self.options.partitions is None:
            return there
        if missing := sorted(set(self.options.partitions) - set(there)):
            raise ConfigError(f"assign names {missing[0]}, which does not exist")
        return list(self.options.partitions)

    def resolve(self, offsets: Offsets, name: str) -> dict[TopicPartition, int]:
        """Numbers for `earliest`, `latest`, -2 and -1 of the option `name`."""
        from kafkalite.spark.log import offsets_of

        partitions = self.partitions()
        first, end = offsets_of(self.options.bootstrap_servers, partitions)
        if isinstance(offsets, str):
            return first if offsets == "earliest" else end
        check_partitions(name, offsets, partitions)
        symbolic = {EARLIEST: first, LATEST: end}
        return {tp: symbolic[o][tp] if o in symbolic else o for tp, o in offsets.items()}

    def end(self) -> dict[TopicPartition, int]:
        """The current end offsets."""
        return self.resolve("latest", "endingOffsets")

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of one range, in a worker process."""
        from kafkalite.columnar.reading import read_range
        from kafkalite.columnar.settings import ReadSettings
        from kafkalite.serde import Serde, SerdeContext, avro, bytes_, string
        from kafkalite.serde.registry_log import registry_at
        from kafkalite.spark.arrow import key_serde, to_record_batch
        from kafkalite.spark.json_loads import json_rows, json_struct

        servers = self.options.bootstrap_servers
        value: Serde = string() if self.options.value_format == "string" else bytes_()
        registry = None
        if self.avro_schema is not None:
            value, registry = avro(schema=self.avro_schema), registry_at(servers)
        values = value.open(SerdeContext(registry, is_key=False, as_dicts=True))
        if self.options.value_schema is not None:
            values = json_rows(json_struct(self.options.value_schema))
        keys = key_serde(self.options.key_format).open(SerdeContext(None, is_key=True))
        schema, convert = self.columns()
        settings = ReadSettings(servers)
        for rows in read_range(settings, wanted, fail_on_data_loss=self.options.fail_on_data_loss):
            yield to_record_batch(rows, schema, (keys, values), convert)


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets, once."""

    def __init__(self, options: Mapping[str, str], avro_schema: str | None = None) -> None:
        self.reading = Reading(options, avro_schema)

    def partitions(self) -> Sequence[InputPartition]:
        """A Spark partition for each range."""
        options = self.reading.options
        start = self.reading.resolve(options.starting_offsets, "startingOffsets")
        end = self.reading.resolve(options.ending_offsets, "endingOffsets")
        there = end if options.ending_offsets == "latest" else self.reading.end()
        if options.fail_on_data_loss:
            check_no_loss(end, there)
            check_no_loss(start, end)
        end = {tp: min(offset, there[tp]) for tp, offset in end.items()}
        return [RangePartition(wanted) for wanted in ranges_between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. Where there is none, Spark makes a partition without any."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return self.reading.read(partition.wanted)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches."""

    def __init__(self, options: Mapping[str, str], avro_schema: str | None = None) -> None:
        self._options, self._avro_schema = dict(options), avro_schema
        self._target: dict[TopicPartition, int] | None = None

    @cached_property
    def reading(self) -> Reading:
        """Made when first asked for: Spark constructs readers that it never uses."""
        return Reading(self._options, self._avro_schema, streaming=True)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The sentinel; Spark may ask more than once before the first batch is committed."""
        return {START: None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger`, or no limit."""
        records = self.reading.options.max_offsets_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes the end as it is now; the query stops there."""
        self._target = self.reading.end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end offsets of the next batch."""
        first = self._resolved(start)
        end = self._target or self.reading.end()
        if self.reading.options.fail_on_data_loss:
            check_no_loss(first, end)
        end = {tp: max(offset, first.get(tp, 0)) for tp, offset in end.items()}
        if isinstance(limit, ReadMaxRows):
            end = limited(first, end, limit.max_rows)
        if end == first and START not in start:
            return start
        result: dict[str, Any] = {"offsets": format_offsets(end)}
        if START in start:
            result["from"] = format_offsets(first)
        return result

    def _resolved(self, offset: dict[str, Any]) -> dict[TopicPartition, int]:
        if START in offset:
            starting = self.reading.options.starting_offsets
            return self.reading.resolve(starting, "startingOffsets")
        return parse_offsets(offset["offsets"])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets; the first batch's start is kept in its end."""
        first = parse_offsets(end["from"] if START in start else start["offsets"])
        return [RangePartition(r) for r in ranges_between(first, parse_offsets(end["offsets"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        assert isinstance(partition, RangePartition)
        return self.reading.read(partition.wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint has the offsets."""

    def stop(self) -> None:
        """Nothing to release."""
