"""Converts columns of bytes to Arrow record batches with the schema that Spark expects. [D]

The columns are those of the official connector: key, value, topic, partition, offset, timestamp,
timestampType, optional headers. With `value.format=avro` the value is a struct of the reader's
schema; a windowed key is a struct (key, start, end).

Fails  with SerdeError naming the offset of a record that cannot be read, with ConfigError if two
       columns of a warehouse row would have the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from kafkalite.columnar.column_types import TIMESTAMP, Convert
from kafkalite.columnar.decoding import Decoded
from kafkalite.columnar.rows import Rows
from kafkalite.core.arrow import MILLISECONDS, binary, header_lists, integers
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.primitives import bytes_, string
from kafkalite.serde.serde import Codec, Serde
from kafkalite.serde.windowed import named_windowed
from kafkalite.spark.options import SourceOptions

ORIGIN: Final = ("topic", "partition", "offset", "timestamp")  # a row's, after an underscore
MISFITS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
WINDOWED: Final = pa.struct([("key", pa.string()), ("start", TIMESTAMP), ("end", TIMESTAMP)])
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def key_serde(key_format: str) -> Serde:
    """The serde that a `key.format` names."""
    plain = string() if key_format == "string" else bytes_()
    return named_windowed(key_format, string()) or plain


def arrow_schema(options: SourceOptions, value: pa.DataType) -> pa.Schema:
    """The columns that the source gives."""
    key = {"windowed": WINDOWED, "string": pa.string(), "binary": pa.binary()}
    fields = [
        ("key", key[options.key_format.partition(":")[0]]),
        ("value", value),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, ("headers", HEADERS)] if options.include_headers else fields)


def to_record_batch(
    rows: Rows,
    schema: pa.Schema,
    codecs: tuple[Codec, Codec],
    convert: Convert | None,
) -> pa.RecordBatch:
    """One batch; keys and values pass through their codecs a column at a time, then each value
    through `convert`. A codec of Avro must give dicts: Arrow takes no rows.
    """
    n, columns, topic, partition = len(rows), rows.columns, rows.topic, rows.partition
    key_codec, value_codec = codecs
    try:
        keys: Sequence[Any] = key_codec.deserialize(topic, columns.keys)
        values = value_codec.deserialize(topic, columns.values)
    except SerdeError as error:
        where = f"{topic}-{partition}"
        if columns.offsets and error.index is not None:
            where = f"{where} offset {columns.offsets[error.index]}"
        raise error.of_record(where) from None
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    if schema.field("key").type == WINDOWED:
        keys = [k and {"key": k.key, "start": k.start * 1000, "end": k.end * 1000} for k in keys]
    arrays: dict[str, Sequence[Any] | pa.Array] = {
        "key": _quickly(keys, schema.field("key").type),
        "value": _quickly(values, schema.field("value").type),
        "topic": pa.repeat(pa.scalar(topic, pa.string()), n),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), n),
        "offset": integers(columns.offsets or ()),
        "timestamp": _microseconds(columns.timestamps),
        "timestampType": pa.repeat(pa.scalar(int(rows.timestamp_type), pa.int32()), n),
    }
    if "headers" in schema.names:
        headers = columns.headers or [()] * n
        arrays["headers"] = [[{"key": k, "value": v} for k, v in row] for row in headers]
    made = []
    for field in schema:
        if isinstance(column := arrays[field.name], pa.Array):
            made.append(column)
            continue
        column = list(column)
        try:
            made.append(pa.array(column, field.type))
        except MISFITS as error:
            index = next(i for i, value in enumerate(column) if _is_misfit(value, field.type))
            offset = (columns.offsets or range(n))[index]
            raise SerdeError(
                f"{topic}-{partition} offset {offset}: {field.name} {glimpse(column[index])} "
                f"is no {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(made, schema=schema)


def source_batch(decoded: Decoded, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of the source from decoded rows."""
    rows = decoded.rows
    n = len(rows)
    stamps = _microseconds(rows.columns.timestamps)
    if not isinstance(stamps, pa.Array):
        index = next(i for i, stamp in enumerate(stamps) if _is_misfit(stamp, TIMESTAMP))
        where = f"{rows.topic}-{rows.partition} offset {rows.offsets[index]}"
        raise SerdeError(f"{where}: timestamp {stamps[index]} is no {TIMESTAMP}")
    arrays = [
        decoded.key,
        decoded.value,
        pa.repeat(pa.scalar(rows.topic, pa.string()), n),
        pa.repeat(pa.scalar(rows.partition, pa.int32()), n),
        integers(rows.offsets),
        stamps,
        pa.repeat(pa.scalar(int(rows.timestamp_type), pa.int32()), n),
    ]
    if "headers" in schema.names:
        arrays.append(header_lists(rows.columns.headers, n))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _quickly(column: Sequence[Any], kind: pa.DataType) -> Sequence[Any] | pa.Array:
    """Spans as an array of bytes; another column as it is."""
    return binary(column) if kind == pa.binary() and isinstance(column, Spans) else column


def _microseconds(timestamps: Sequence[int]) -> Sequence[int] | pa.Array:
    """Epoch ms as Spark's timestamps; as integers where one is beyond them."""
    try:
        return integers(timestamps, MILLISECONDS).cast(TIMESTAMP)
    except MISFITS:
        return [timestamp * 1000 for timestamp in timestamps]


def _is_misfit(value: Any, column: pa.DataType) -> bool:
    try:
        pa.array([value], column)
    except MISFITS:
        return True
    return False


def column_names(key_format: str) -> frozenset[str]:
    """The columns of a warehouse row that do not come from the value."""
    is_windowed = named_windowed(key_format, string()) is not None
    of_key = ("key", "window_start", "window_end") if is_windowed else ("key",)
    return frozenset({*of_key, *(f"_{name}" for name in ORIGIN)})


def flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A warehouse row: the value's fields side by side, then where the record came from.

    A windowed key becomes key, window_start, window_end; other columns get a leading underscore.
    SQL does not tell capitals from small letters, so no two names may differ in that alone.
    """
    value = batch.column("value")
    columns: dict[str, pa.Array] = {}
    if pa.types.is_struct(value.type):
        for field, array in zip(value.type, value.flatten(), strict=True):
            columns[field.name] = array
    else:
        columns["value"] = value
    key = batch.column("key")
    if key.type == WINDOWED:
        of_key = dict(zip(("key", "window_start", "window_end"), key.flatten(), strict=True))
    else:
        of_key = {"key": key}
    origin = {f"_{n}": batch.column(n) for n in ORIGIN}
    of_value = {name.lower(): name for name in columns}
    if len(of_value) < len(columns):
        twice = next(name for name in columns if name not in of_value.values())
        raise ConfigError(
            f"the value has fields {twice!r} and {of_value[twice.lower()]!r}, one name in SQL"
        )
    ours = of_key | origin
    for name in ours:
        if name in of_value:
            raise ConfigError(
                f"the value's field {of_value[name]!r} has the name of our column {name}"
            )
    return pa.RecordBatch.from_pydict(columns | ours)
