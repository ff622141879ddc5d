"""Rows of Spark as records: which columns count, and their bytes.                           [P]

    key, value    binary or string; with a format also structs, lists, numbers
    topic         string, unless an option names the topic
    partition     int; null: by the key, as Kafka's producer does it
    timestamp     the record's own; null or no column: the time of writing
    headers       array of (key, value)

Other columns are ignored, as by the official connector. No object is made of a key or a value that
is bytes already, or where native code writes the format.

Owns   nothing.
Fails  with ConfigError for columns that make no records, SerdeError for values without a form.
Source the official connector's `KafkaWriter`, for columns and types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.core.protocol.record_codec import Int64s, Spans
from kafkalite.core.types import Columns
from kafkalite.errors import ConfigError
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.serde import Codec

MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# What a staged file has, and what is sent.
RECORDS: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", MILLISECONDS),
        ("headers", HEADERS),
    ]
)


@dataclass(frozen=True, slots=True)
class Values:
    """All values of a column, for a codec: Arrow's, or objects."""

    array: pa.Array

    def __len__(self) -> int:
        return len(self.array)

    @property
    def null_count(self) -> int:
        """How many are null."""
        count: int = self.array.null_count
        return count

    def arrow(self) -> pa.Array:
        """The array."""
        return self.array

    def objects(self, indexes: Sequence[int]) -> list[Any]:
        """Some values as Python objects."""
        return list(self.array.take(pa.array(indexes, pa.int64())).to_pylist())


def check_columns(schema: pa.Schema, topic: str | None, formats: Mapping[str, str]) -> None:
    """ConfigError unless such rows are records; `formats` are those of key and value."""
    names = set(schema.names)
    if "value" not in names:
        raise ConfigError("the column 'value' is missing")
    if topic is None and "topic" not in names:
        raise ConfigError("give the option 'topic' or a column 'topic'")
    for name, form in formats.items():
        if name in names and form == "binary" and not _is_bytes(schema.field(name).type):
            raise ConfigError(
                f"column {name!r} is {schema.field(name).type}: give {name}.format json or avro"
            )
    wanted = {
        "topic": pa.types.is_string,
        "partition": pa.types.is_integer,
        "timestamp": pa.types.is_timestamp,
        "headers": _is_headers,
    }
    for name, fits in wanted.items():
        if name in names and not fits(schema.field(name).type):
            kind = (
                "an array of (key, value)" if name == "headers" else str(RECORDS.field(name).type)
            )
            raise ConfigError(f"column {name!r} is {schema.field(name).type}, not {kind}")


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        fits(kind)
        for fits in (types.is_string, types.is_binary, types.is_large_string,
                     types.is_large_binary, types.is_null)
    )  # fmt: skip


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return [field.name for field in kind.value_type] == ["key", "value"]


def records_of(
    batch: pa.RecordBatch, topic: str | None, codecs: Mapping[str, Codec[Any]], now_ms: int
) -> pa.RecordBatch:
    """The rows as records, by RECORDS. ConfigError for a row without a topic.

    `topic` is None where a column has each row's; `codecs` write the columns `key` and `value` that
    are no bytes yet; `now_ms` is the timestamp of rows without one.
    """
    count = batch.num_rows
    columns = {name: batch.column(name) for name in batch.schema.names if name in RECORDS.names}
    topics = pa.array([topic], pa.string()) if topic is not None else columns["topic"]
    if topic is None and topics.null_count:
        raise ConfigError("a row has no topic: its column 'topic' is null")
    if topic is not None:
        indices = pa.array(memoryview(bytes(4 * count)).cast("i"), pa.int32())
        columns["topic"] = pa.DictionaryArray.from_arrays(indices, topics)
    else:
        columns["topic"] = topics.dictionary_encode()
    name = topic or ""
    for part, codec in codecs.items():
        if part in columns:
            columns[part] = _encoded(columns[part], name, codec)
    now = pa.scalar(now_ms, pa.int64()).cast(MILLISECONDS)
    if "timestamp" in columns:  # Spark's are microseconds
        times = columns["timestamp"].cast(MILLISECONDS, safe=False)
        columns["timestamp"] = pc.fill_null(times, now)
    else:
        columns["timestamp"] = pa.repeat(now, count)
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns
        else pa.nulls(count, field.type)
        for field in RECORDS
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def _encoded(column: pa.Array, topic: str, codec: Codec[Any]) -> pa.Array:
    """A column as the bytes that a codec writes."""
    from kafkalite.core.arrow import binary

    return binary(codec.serialize(topic, ArrowForm(Values(column))))


def by_topic(records: pa.RecordBatch) -> Iterator[tuple[str, Columns, list[int] | None]]:
    """Records to send: a topic, its columns, and their partitions (None: by key)."""
    topics = records.column("topic")
    names = topics.dictionary.to_pylist()
    for number, name in enumerate(names):
        of_topic = records if len(names) == 1 else records.filter(pc.equal(topics.indices, number))
        is_chosen = of_topic.column("partition").is_valid()
        for part in (of_topic.filter(is_chosen), of_topic.filter(pc.invert(is_chosen))):
            if part.num_rows:
                numbers = part.column("partition")
                yield name, _columns(part), None if numbers.null_count else numbers.to_pylist()


def _columns(records: pa.RecordBatch) -> Columns:
    keys, headers = records.column("key"), records.column("headers")
    count = records.num_rows
    return Columns(
        [None] * count if keys.null_count == count else _spans(keys),
        _spans(records.column("value")),
        Int64s.of_buffer(_numbers(records.column("timestamp"))),
        None,
        None if headers.null_count == count else _headers(headers),
    )


def _numbers(column: pa.Array) -> memoryview:
    """The buffer of a column of 64-bit integers without nulls."""
    data = column.buffers()[1].slice(8 * column.offset, 8 * len(column))
    return memoryview(data).cast("B").cast("q")


def _spans(column: pa.Array) -> Sequence[bytes | None]:
    """A column of bytes and None that looks into Arrow's own buffers."""
    first, count = column.offset, len(column)
    if column.null_count and first % 8:  # the bitmap does not begin at a byte
        return list(column.to_pylist())
    validity, offsets, data = column.buffers()
    ends = memoryview(offsets.slice(4 * first, 4 * (count + 1))).cast("B").cast("i")
    valid = None if not column.null_count else validity.slice(first // 8, (count + 7) // 8)
    return Spans.of_offsets(ends, data or b"", valid)


def _headers(column: pa.Array) -> list[tuple[tuple[str, bytes | None], ...]]:
    return [tuple((each["key"], each["value"]) for each in row or ()) for row in column.to_pylist()]
