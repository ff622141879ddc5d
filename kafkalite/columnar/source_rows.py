"""Decoded records as the official connector's columns, and as rows of a warehouse's table.    [D]

    key, value, topic, partition, offset, timestamp, timestampType, headers where they are wanted
    a table has the value's fields side by side, and where the record came from

Owns   nothing.
Fails  with SerdeError naming the offset of a timestamp without a column's value, with ConfigError
       if two columns of a table would have the same name.
Source Spark's Structured Streaming + Kafka integration guide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from kafkalite.columnar.column_types import TIMESTAMP
from kafkalite.columnar.decoding import Decoded
from kafkalite.columnar.formats import MISFITS, WINDOWED, key_format
from kafkalite.core.arrow import HEADER, MILLISECONDS, header_lists, integers
from kafkalite.errors import ConfigError, SerdeError

ORIGIN: Final = ("topic", "partition", "offset", "timestamp")  # a row's, after an underscore

KEPT: Final = 8  # columns of one value, of at most 2 * ROWS_MAX entries
STAMP_MAX: Final = (2**63 - 1) // 1000  # epoch ms, as microseconds in 64 bits


def arrow_schema(
    keys: str | pa.DataType, value: pa.DataType, *, headers: bool = False
) -> pa.Schema:
    """The columns of records; `keys` is a `key.format`, or the type of decoded keys."""
    fields = [
        ("key", key_format(keys).type if isinstance(keys, str) else keys),
        ("value", value),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, ("headers", pa.list_(HEADER))] if headers else fields)


def source_batch(decoded: Decoded, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of the source from decoded rows, those of `schema`."""
    arrays = [_column(name, decoded) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(name: str, decoded: Decoded) -> pa.Array:
    rows = decoded.rows
    n = len(rows)
    match name:
        case "key":
            return decoded.key
        case "value":
            return decoded.value
        case "topic":
            return _repeated(rows.topic, pa.string(), n)
        case "partition":
            return _repeated(rows.partition, pa.int32(), n)
        case "offset":
            return integers(rows.offsets)
        case "timestamp":
            return _timestamps(decoded)
        case "timestampType":
            return _repeated(int(rows.timestamp_type), pa.int32(), n)
        case "headers":
            return header_lists(rows.columns.headers, n)
    raise AssertionError(f"{name} is no column of the source")


def _repeated(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    """A column of one value: the begin of one that is kept for the next batch."""
    return _kept(value, kind, 1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=KEPT)
def _kept(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _timestamps(decoded: Decoded) -> pa.Array:
    """Epoch ms as timestamps of microseconds."""
    rows = decoded.rows
    stamps = rows.columns.timestamps
    try:
        return integers(stamps, MILLISECONDS).cast(TIMESTAMP)
    except MISFITS as error:
        at = next(at for at, stamp in enumerate(stamps) if not -STAMP_MAX <= stamp <= STAMP_MAX)
        where = f"{rows.topic}-{rows.partition} offset {rows.offsets[at]}"
        raise SerdeError(f"{where}: timestamp {stamps[at]} is no {TIMESTAMP}") from error


def key_names(keys: pa.DataType) -> tuple[str, ...]:
    """The columns of a table for keys of a type."""
    if keys == WINDOWED:
        return ("key", "window_start", "window_end")
    return tuple(f"key_{f.name}" for f in keys) if pa.types.is_struct(keys) else ("key",)


def column_names(keys: pa.DataType) -> frozenset[str]:
    """The columns of a table that do not come from the value."""
    return frozenset({*key_names(keys), *(f"_{name}" for name in ORIGIN)})


def flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A warehouse row: the value's fields side by side, then where the record came from.

    A windowed key becomes key, window_start, window_end, and the field `id` of another key becomes
    key_id; other columns get a leading underscore.
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
    parts = key.flatten() if pa.types.is_struct(key.type) else [key]
    of_key = dict(zip(key_names(key.type), parts, strict=True))
    origin = {f"_{n}": batch.column(n) for n in ORIGIN}
    of_value = {name.lower(): name for name in columns}
    if len(of_value) < len(columns):
        twice = next(name for name in columns if name not in of_value.values())
        raise ConfigError(
            f"the value has fields {twice!r} and {of_value[twice.lower()]!r}, one name in SQL"
        )
    ours = of_key | origin
    for name in ours:
        if name.lower() in of_value:
            raise ConfigError(
                f"the value's field {of_value[name.lower()]!r} has the name of our column {name}"
            )
    return pa.RecordBatch.from_pydict(columns | ours)
