"""MessagePack values as columns, and arrays as MessagePack.                                  [P]

    columns_of(values, fields)  all values read at once in native code, or None
    values_of(array)            the bytes that `msgpack()` writes of the same dicts, or None

None stands for a column that must go the way of objects, whole: where fields differ from value to
value, where a field has values of two types, where there are bytes, extensions or integers beyond
64 bits; to the other side, where Arrow has such a type.

Owns   the choice of native code, made once at import.
Fails  not: a column that is not certain is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgpack import Packer

from kafkalite.core.protocol.record_codec import NATIVE as SPANS
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde.column_values import Described, Read, spans_of

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from kafkalite.serde._msgpack_read import read_columns
    from kafkalite.serde._msgpack_write import write_values

    NATIVE = SPANS
except ImportError:
    NATIVE = False

HEADS_MAX: Final = 1024  # names of fields that are kept as they are written


def columns_of(values: Spans, fields: frozenset[str] | None) -> Read | None:
    """The columns of all values, with these fields or all of them."""
    keys = None if fields is None else tuple(name.encode() for name in sorted(fields))
    return read_columns(values.data, values.starts, values.ends, keys)


def values_of(array: pa.Array) -> Spans | None:
    """The bytes of each row, None for a null row; None where a column has another type."""
    described = Described(_head)
    if not NATIVE or not described.add(array):
        return None
    return spans_of(write_values(described.sources, len(array)), array)


@lru_cache(HEADS_MAX)
def _head(name: str, number: int, fields: int) -> bytes:
    """The bytes before a field's value; before the first one, with the number of fields."""
    packer = Packer()
    size: bytes = b"" if number else packer.pack_map_header(fields)
    packed: bytes = packer.pack(name)
    return size + packed
