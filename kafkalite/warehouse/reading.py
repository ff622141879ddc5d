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
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa

from kafkalite.columnar.column_types import PLAIN, ColumnType, column_type
from kafkalite.columnar.decoding import Decoder, OnError, Unread
from kafkalite.columnar.formats import AvroValues, Format, JsonValues, key_format, plain
from kafkalite.columnar.json_columns import Seen, columns_of, row_reader
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.columnar.reading import read_range
from kafkalite.columnar.rows import Rows
from kafkalite.columnar.settings import ReadSettings
from kafkalite.columnar.source_rows import (
    arrow_schema,
    column_names,
    flattened,
    key_names,
    source_batch,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import SerdeError
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.serde.windowed import NOTE_KEY
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.evolution import Aliases, aliases_of
from kafkalite.warehouse.log import Bounds, bounds, record_bytes
from kafkalite.warehouse.writing import Read, ReadRange

WAYS: Final[Mapping[str, OnError]] = {"fail": "fail", "skip": "skip", "dlq": "collect"}
ON_ERROR: Final = tuple(WAYS)
DELETED: Final = "__kafkalite_deleted"  # of a change: whether it ends its row
NO_KEY: Final = "the record has no key, and rows are updated by their keys"
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
    """How records become rows. `schema` is Avro's JSON, or the columns of JSON values in base64;
    `key_schema` likewise.
    """

    bootstrap_servers: str
    topic: str
    key_format: str = "binary"
    value_format: str = "avro"
    schema: str | None = None
    on_error: str = "fail"
    key_schema: str | None = None

    def same_rows(self, other: dict[str, Any]) -> bool:
        """Whether rows of a plan, which has its reading as a dict, are those of this reading. The
        columns of JSON belong to the plan, and so does a schema of keys that nobody asked for yet.
        """
        ignored = {"bootstrap_servers"} | ({"schema"} if self.value_format == "json" else set())
        if self.key_schema is None or self.key_format == "json":
            ignored.add("key_schema")
        return {k: v for k, v in asdict(self).items() if k not in ignored} == {
            k: v for k, v in other.items() if k not in ignored
        }

    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        schema = self.source_columns()
        return flattened(pa.RecordBatch.from_pylist([], schema)).schema

    def key_columns(self) -> tuple[str, ...]:
        """The columns that are equal for records of one key."""
        return key_names(self.key_type())

    def key_type(self) -> pa.DataType:
        """The type of a decoded key."""
        if self.key_format == "avro" and self.key_schema is not None:
            return column_type(parse_schema(self.key_schema)).arrow
        if self.key_format == "json":
            return pa.struct([]) if self.key_schema is None else _json_struct(self.key_schema)
        return key_format(self.key_format).type

    def value_type(self) -> ColumnType:
        """The type of a decoded value."""
        if self.schema is None:
            return PLAIN[self.value_format]
        if self.value_format == "json":
            return ColumnType(_json_struct(self.schema))
        return column_type(parse_schema(self.schema))

    def source_columns(self) -> pa.Schema:
        """The columns of records before values become columns of their own."""
        return arrow_schema(self.key_type(), self.value_type().arrow)

    def records_of(self, wanted: OffsetRange) -> Iterator[Rows]:
        """The records of a range as bytes. Those that retention deleted meanwhile are left out, and
        the engine's notes among the windows of a changelog.
        """
        settings = ReadSettings(self.bootstrap_servers, client_id="kafkalite-warehouse")
        found = read_range(settings, wanted, fail_on_data_loss=False)
        return map(_windows, found) if self.key_format.startswith("windowed") else found

    @contextmanager
    def decoder(self) -> Iterator[Decoder]:
        """The decoder of keys and values, while a registry of its own is open."""
        formats = ((self.key_format, self.key_schema), (self.value_format, self.schema))
        with ExitStack() as stack:
            registry: LogRegistry | None = None
            if any(name == "avro" for name, _ in formats):
                registry = stack.enter_context(LogRegistry(self.bootstrap_servers))
            made = [_decoded_by(name, schema, registry) for name, schema in formats]
            keys, values = (
                made[0] or key_format(self.key_format),
                made[1] or plain(self.value_format),
            )
            yield Decoder(keys, values, on_error=WAYS[self.on_error])


def _decoded_by(name: str, schema: str | None, registry: LogRegistry | None) -> Format | None:
    """How keys or values with columns are decoded; None for other formats."""
    if name not in ("avro", "json"):
        return None
    assert schema is not None, "a load knows the columns before it reads"
    if name == "json":
        return JsonValues(_json_struct(schema))
    assert registry is not None, "a load with Avro has a registry"
    return AvroValues(schema, registry)


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Rows of a range, in a worker process."""

    reading: Reading

    def __call__(self, wanted: OffsetRange) -> Iterator[Read]:
        """The rows, batch by batch; records that retention deleted meanwhile are left out."""
        schema = self.reading.source_columns()
        with self.reading.decoder() as decoder:
            for rows in self.reading.records_of(wanted):
                decoded = decoder.decode(rows)
                dead = dead_letters(decoded.unread) if decoded.unread else None
                skipped = len(rows) - len(decoded.rows)
                yield Read(flattened(source_batch(decoded, schema)), dead, skipped)


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Changes of a range, in a worker process: rows with one more column, DELETED."""

    reading: Reading

    def __call__(self, wanted: OffsetRange) -> Iterator[Read]:
        """The changes, batch by batch."""
        reading = self.reading
        schema = reading.source_columns()
        with reading.decoder() as decoder:
            for rows in reading.records_of(wanted):
                keyed, keyless = _keyed(rows, reading.on_error)
                decoded = decoder.decode(keyed)
                unread = [*keyless, *decoded.unread] if reading.on_error == "dlq" else []
                dead = dead_letters(unread) if unread else None
                batch = flattened(source_batch(decoded, schema))
                changes = batch.append_column(DELETED, decoded.value.is_null())
                yield Read(changes, dead, len(rows) - len(decoded.rows))


def _windows(rows: Rows) -> Rows:
    """The records with other keys than notes."""
    keys = rows.columns.keys
    return rows.where([key != NOTE_KEY for key in keys]) if NOTE_KEY in keys else rows


def _keyed(rows: Rows, on_error: str) -> tuple[Rows, list[Unread]]:
    """The records with a key; the others with the reason."""
    columns = rows.columns
    lacking = [at for at, key in enumerate(columns.keys) if key is None]
    if not lacking:
        return rows, []
    if on_error == "fail":
        where = f"{rows.topic}-{rows.partition} offset {rows.offsets[lacking[0]]}"
        raise SerdeError(f"{where}: {NO_KEY}")
    keyless = [
        Unread(
            rows.topic,
            rows.partition,
            rows.offsets[at],
            columns.timestamps[at],
            None,
            columns.values[at],
            NO_KEY,
        )
        for at in lacking
    ]
    without = set(lacking)
    return rows.where(bytes(at not in without for at in range(len(rows)))), keyless


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
    """What the JSON values of a range hold, or its keys, in a worker process."""

    reading: Reading
    is_key: bool = False

    def __call__(self, wanted: OffsetRange) -> Any:
        """The shape of the values; see `kafkalite.columnar.json_columns`."""
        seen = Seen()
        for rows in self.reading.records_of(wanted):
            try:
                seen.add(rows.columns.keys if self.is_key else rows.columns.values)
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
        match reading.key_format:
            case "avro":
                reading = replace(reading, key_schema=self._latest("key"))
            case "json":
                of_keys = [(f.name.removeprefix("key_"), f.type) for f in table or () if _of_key(f)]
                text = self._seen(engine, ranges, pa.struct(of_keys), is_key=True)
                reading = replace(reading, key_schema=text)
        match reading.value_format:
            case "avro":
                return replace(reading, schema=self._latest("value"))
            case "json":
                ours = column_names(reading.key_type())
                known = pa.struct([f for f in table or () if f.name not in ours])
                return replace(reading, schema=self._seen(engine, ranges, known))
        return reading

    def _latest(self, part: str) -> str:
        """The newest schema of keys or values."""
        with LogRegistry(self.reading.bootstrap_servers) as registry:
            return registry.latest(f"{self.reading.topic}-{part}").text

    def _seen(
        self,
        engine: Engine,
        ranges: Sequence[OffsetRange],
        known: pa.StructType,
        *,
        is_key: bool = False,
    ) -> str:
        """The columns of JSON, inferred from all records of the ranges."""
        seen = Seen()
        for shape in engine.run(SeenIn(self.reading, is_key), ranges):
            seen.merge(shape)
        return _json_text(columns_of(seen.shape, known))

    def columns(self, reading: Reading) -> pa.Schema:
        """The columns of the rows."""
        return reading.columns()

    def aliases(self, reading: Reading) -> Aliases:
        """The older names of columns, which Avro's schemas have."""
        is_avro = reading.value_format == "avro" and reading.schema is not None
        return aliases_of(parse_schema(reading.schema)) if is_avro else {}

    def rows(self, reading: Reading) -> ReadRange:
        """What workers read."""
        return ReadRows(reading)

    def changes(self, reading: Reading) -> ReadRange:
        """What workers read where rows are updated by their keys."""
        return ReadChanges(reading)


def _of_key(field: pa.Field) -> bool:
    """Whether a column belongs to the keys, in a table of JSON keys."""
    return bool(field.name.startswith("key_"))


def _json_text(columns: pa.StructType) -> str:
    row_reader(columns)  # ConfigError for columns that JSON has no values for
    return base64.b64encode(pa.schema(list(columns)).serialize()).decode()


def _json_struct(text: str) -> pa.StructType:
    return pa.struct(list(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))))
