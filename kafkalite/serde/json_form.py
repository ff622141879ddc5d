"""JSON texts as columns, and arrays as texts.                                                [P]

    columns_of(texts, fields)   all texts read at once in native code, or None
    texts_of(array)             the texts that orjson writes of the same dicts, or None

None stands for a column that must go the way of objects, whole: where fields differ from text to
text, where a field or the items of an array have values of two types, where there are integers
beyond 64 bits; to the other side, where Arrow has a type that JSON has no form for.

Owns   the choice of native code, made once at import.
Fails  not: a column that is not certain is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import orjson

from kafkalite.core.protocol.record_codec import NATIVE as SPANS
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde.column_values import Described, Read, spans_of

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from kafkalite.serde._json_read import read_columns
    from kafkalite.serde._json_write import floats_of, write_texts

    NATIVE = SPANS
except ImportError:
    NATIVE = False

HEADS_MAX: Final = 1024  # names of fields that are kept as they are written
ESCAPED: Final = frozenset(map(chr, range(32))) | {'"', "\\"}  # never as they are in a text


def keys_of(fields: frozenset[str]) -> tuple[bytes, ...] | None:
    """The fields as they stand in texts, all of them ASCII; None where one needs an escape."""
    if any(ESCAPED & set(name) for name in fields):
        return None
    return tuple(name.encode("ascii") for name in sorted(fields))


def columns_of(texts: Spans, keys: tuple[bytes, ...] | None) -> Read | None:
    """The columns of all texts, with these fields or all of them."""
    return read_columns(texts.data, texts.starts, texts.ends, keys)


def texts_of(array: pa.Array) -> Spans | None:
    """The text of each row, None for a null row; None where a column has another type."""
    described = Described(_head, _floats)
    if not NATIVE or not described.add(array):
        return None
    return spans_of(write_texts(described.sources, len(array)), array)


def _floats(data: int, valid: int, offset: int, rows: int) -> bytes:
    return orjson.dumps(floats_of(data, valid, offset, rows))


def _head(name: str, number: int, fields: int) -> bytes:
    return _written(name, b"," if number else b"{")


@lru_cache(HEADS_MAX)
def _written(name: str, mark: bytes) -> bytes:
    """The text before the value of a field."""
    return mark + orjson.dumps(name) + b":"
