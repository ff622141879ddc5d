"""What a load reads: the bounds of a topic, its newest columns, and rows of offset ranges.   [IO]

    avro      columns of the newest schema of the topic's values
    json      columns inferred from all values of the load's ranges, and those of the table
    string, binary    one column `value`

Owns   nothing between calls.
Fails  with SerdeError naming the offset of a record that cannot be decoded, unless such records
       are skipped or kept as dead letters; with BrokerUnavailable and other errors of the log.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa

from kafkalite.columnar.column_types import PLAIN, ColumnType, column_type
from kafkalite.columnar.decoding import Decoder, OnError, Unread
from kafkalite.columnar.formats import AvroValues, JsonValues, key_format, plain
from kafkalite.columnar.json_columns import Seen, columns_of, row_reader
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.columnar.reading import read_range
from kafkalite.columnar.rows import Rows
from kafkalite.columnar.settings import ReadSettings
from kafkalite.core.types import TopicPartition
from kafkalite.errors import SerdeError
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.spark.arrow import arrow_schema, column_names, flattened, source_batch
from kafkalite.spark.options import parse_options
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.log import Bounds, bounds, record_bytes
from kafkalite.warehouse.writing import Read, ReadRange

WAYS: Final[Mapping[str, OnError]] = {"fail": "fail", "skip": "skip", "dlq": "collect"}
ON_ERROR: Final = tuple(WAYS)
DEAD_LETTERS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("reason", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How records become rows. `schema` is Avro's JSON, or the columns of JSON values in base64."""

    bootstrap_servers: str
    topic: str
    key_format: str = "binary"
    value_format: str = "avro"
    schema: str | None = None
    on_error: str = "fail"

    def same_rows(self, other: dict[str, Any]) -> bool:
        """Whether rows of a plan, which has its reading as a dict, are those of this reading. A
        schema of JSON values belongs to the plan.
        """
        ignored = {"bootstrap_servers"} | ({"schema"} if self.value_format == "json" else set())
        return {k: v for k, v in asdict(self).items() if k not in ignored} == {
            k: v for k, v in other.items() if k not in ignored
        }

    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        schema = self.source_columns()
        return flattened(pa.RecordBatch.from_pylist([], schema)).schema

    def value_type(self) -> ColumnType:
        """The type of a decoded value."""
        if self.schema is None:
            return PLAIN[self.value_format]
        if self.value_format == "json":
            return ColumnType(_json_struct(self.schema))
        return column_type(parse_schema(self.schema))

    def source_columns(self) -> pa.Schema:
        """The columns of records before values become columns of their own."""
        options = {"bootstrap.servers": "-", "subscribe": self.topic, "key.format": self.key_format}
        return arrow_schema(parse_options(options, streaming=False), self.value_type().arrow)

    @contextmanager
    def decoder(self) -> Iterator[Decoder]:
        """The decoder of keys and values, while a registry of its own is open."""
        keys, on_error = key_format(self.key_format), WAYS[self.on_error]
        if self.value_format == "avro":
            assert self.schema is not None, "a load knows the schema before it reads"
            with LogRegistry(self.bootstrap_servers) as registry:
                yield Decoder(keys, AvroValues(self.schema, registry), on_error=on_error)
        elif self.value_format == "json":
            assert self.schema is not None, "a load knows the columns before it reads"
            yield Decoder(keys, JsonValues(_json_struct(self.schema)), on_error=on_error)
        else:
            yield Decoder(keys, plain(self.value_format), on_error=on_error)


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Rows of a range, in a worker process."""

    reading: Reading

    def __call__(self, wanted: OffsetRange) -> Iterator[Read]:
        """The rows, batch by batch; records that retention deleted meanwhile are left out."""
        schema = self.reading.source_columns()
        with self.reading.decoder() as decoder:
            for rows in _records(self.reading.bootstrap_servers, wanted):
                decoded = decoder.decode(rows)
                dead = dead_letters(decoded.unread) if decoded.unread else None
                skipped = len(rows) - len(decoded.rows)
                yield Read(flattened(source_batch(decoded, schema)), dead, skipped)


def _records(bootstrap_servers: str, wanted: OffsetRange) -> Iterator[Rows]:
    settings = ReadSettings(bootstrap_servers, client_id="kafkalite-warehouse")
    return read_range(settings, wanted, fail_on_data_loss=False)


def dead_letters(unread: Sequence[Unread]) -> pa.RecordBatch:
    """Records that cannot be decoded, as rows of the table of dead letters."""
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "reason": record.reason,
            "_topic": record.topic,
            "_partition": record.partition,
            "_offset": record.offset,
            "_timestamp": record.timestamp * 1000,
        }
        for record in unread
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DEAD_LETTERS)


@dataclass(frozen=True, slots=True)
class SeenIn:
    """What the JSON values of a range hold, in a worker process."""

    bootstrap_servers: str

    def __call__(self, wanted: OffsetRange) -> Any:
        """The shape of the values; see `kafkalite.columnar.json_columns`."""
        seen = Seen()
        for rows in _records(self.bootstrap_servers, wanted):
            try:
                seen.add(rows.columns.values)
            except SerdeError as error:
                where = f"{wanted.topic}-{wanted.partition} from offset {rows.offsets[0]}"
                raise error.of_record(where) from None
        return seen.shape


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic, as the process that plans a load sees it. A load ends at the time `until_ms`."""

    reading: Reading
    until_ms: int | None = None

    def bounds(self) -> Bounds:
        """Where each partition begins and ends, and where a load ends."""
        return bounds(self.reading.bootstrap_servers, self.reading.topic, self.until_ms)

    def record_bytes(self) -> dict[TopicPartition, float]:
        """The mean size of a record in the log; empty where the broker does not say."""
        return record_bytes(self.reading.bootstrap_servers, self.reading.topic)

    def resolved(
        self, engine: Engine, ranges: Sequence[OffsetRange], table: pa.Schema | None
    ) -> Reading:
        """The reading with the schema that rows of `ranges` are read as."""
        reading = self.reading
        match reading.value_format:
            case "avro":
                with LogRegistry(reading.bootstrap_servers) as registry:
                    latest = registry.latest(f"{reading.topic}-value")
                return replace(reading, schema=latest.text)
            case "json":
                seen = Seen()
                for shape in engine.run(SeenIn(reading.bootstrap_servers), ranges):
                    seen.merge(shape)
                ours = column_names(reading.key_format)
                known = pa.struct([f for f in table or () if f.name not in ours])
                return replace(reading, schema=_json_text(columns_of(seen.shape, known)))
        return reading

    def columns(self, reading: Reading) -> pa.Schema:
        """The columns of the rows."""
        return reading.columns()

    def rows(self, reading: Reading) -> ReadRange:
        """What workers read."""
        return ReadRows(reading)


def _json_text(columns: pa.StructType) -> str:
    row_reader(columns)  # ConfigError for columns that JSON has no values for
    return base64.b64encode(pa.schema(list(columns)).serialize()).decode()


def _json_struct(text: str) -> pa.StructType:
    return pa.struct(list(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))))
