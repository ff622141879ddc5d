"""Which rows of a table are one row: those whose columns of the key are equal.              [P]

An identity is the text of all columns of a key as one value of bytes. So it does not depend on how
wide a number's column is, and a table's older rows keep theirs when the column is widened.

Owns   nothing.
Fails  with ConfigError for a key whose columns hold lists or maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.core.protocol.partitioner import partition_column
from kafkalite.errors import ConfigError

NULL: Final = b"-"
COLON: Final = b":"
NOTHING: Final = b""


def identities(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    """The identity of each row; null where a key of one column is null."""
    parts = [part for name in keys for part in _texts(rows[name], name)]
    if len(parts) == 1:
        return _flat(parts[0])
    told = [pc.if_else(pc.is_null(part), _scalar(NULL), _with_length(part)) for part in parts]
    return _flat(pc.binary_join_element_wise(*told, _scalar(NOTHING)))


def buckets(found: pa.Array, count: int) -> pa.Array:
    """A number below `count` for each identity: equal ones have the same."""
    return pa.array(partition_column(found.to_pylist(), count), pa.int32())


def _scalar(value: bytes) -> Any:
    """A constant. pyarrow imports pandas for the first one, so none is made at import."""
    return pa.scalar(value, pa.binary())


def _flat(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _with_length(part: Any) -> Any:
    length = pc.binary_length(part).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(length, part, _scalar(COLON))


def _texts(column: Any, name: str) -> list[Any]:
    """A column of bytes, or several for a struct."""
    kind = column.type
    if pa.types.is_struct(kind):
        fields = zip(kind, _flat(column).flatten(), strict=True)
        return [part for field, array in fields for part in _texts(array, f"{name}.{field.name}")]
    if pa.types.is_nested(kind):
        raise ConfigError(f"column {name} of the key is {kind}, which is no key of a table")
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int64())
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    text = column if is_bytes or pa.types.is_fixed_size_binary(kind) else column.cast(pa.string())
    return [text.cast(pa.binary())]
