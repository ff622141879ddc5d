"""JSON texts as a column with two sides: objects, and an Arrow array; and arrays as texts.    [P]

    columns_of(texts, fields)   all texts read at once in native code, or None
    texts_of(array)             the texts that orjson writes of the same dicts, or None

None stands for a column that must go the way of objects, whole: where fields differ from text to
text, where a field has values of two types, where there are arrays or integers beyond 64 bits; to
the other side, where Arrow has a type that JSON has no form for.

Owns   the choice of native code, made once at import.
Fails  not: a column that is not certain is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from kafkalite.core.protocol.record_codec import NATIVE as SPANS
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde.json_kinds import Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.serde._json_read import Read
    from kafkalite.serde._json_write import Source

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


@dataclass(slots=True, eq=False)
class JsonValues:
    """The values of a column of texts, each of them read before."""

    texts: Spans
    columns: Read
    read: Callable[[bytes], Any]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def null_count(self) -> int:
        """How many of the values are null."""
        return self.columns[2]

    def arrow(self) -> pa.Array:
        """The array of all values."""
        return _array(self.columns, len(self.texts))

    def objects(self, indexes: Sequence[int]) -> list[Any]:
        """Some values as dicts."""
        read = self.read
        return [None if text is None else read(text) for text in self.texts.take(indexes)]


def columns_of(texts: Spans, keys: tuple[bytes, ...] | None) -> Read | None:
    """The columns of all texts, with these fields or all of them."""
    return read_columns(texts.data, texts.starts, texts.ends, keys)


def _array(column: Read, rows: int) -> pa.Array:
    import pyarrow as pa

    _, kind, nulls, *found, parts = column
    valid, data, content = [None if each is None else pa.py_buffer(each) for each in found]
    if kind is Kind.OBJECT:
        made = [_array(part, rows) for part in parts]
        names = [name for name, *_ in parts]
        of = pa.struct([(name, each.type) for name, each in zip(names, made, strict=True)])
        return pa.Array.from_buffers(of, rows, [valid], nulls, children=made)
    if kind is Kind.LIST:
        items = _array(parts[0], memoryview(found[1] or b"").cast("i")[-1])
        of = pa.list_(items.type)
        return pa.Array.from_buffers(of, rows, [valid, data], nulls, children=[items])
    if kind is Kind.NULL:
        return pa.nulls(rows)
    buffers = [valid, data, content] if kind is Kind.TEXT else [valid, data]
    return pa.Array.from_buffers(_types()[kind], rows, buffers, nulls)


def texts_of(array: pa.Array) -> Spans | None:
    """The text of each row, None for a null row; None where a column has another type."""
    described = _Described()
    if not NATIVE or not described.add(array, b""):
        return None
    offsets, data = write_texts(described.sources, len(array))
    valid = None
    if array.null_count:
        valid = _bitmap(array.is_valid())
    return Spans.of_offsets(memoryview(offsets).cast("q"), data, valid)


@dataclass(slots=True)
class _Described:
    """The columns of an array as the native writer takes them."""

    sources: list[Source] = field(default_factory=list)
    held: list[pa.Array] = field(default_factory=list)  # whose buffers are lent

    def add(self, array: pa.Array, head: bytes) -> bool:
        """Adds a column and its parts; false where it cannot be written here."""
        kind = _kinds().get(array.type.id)
        if kind is None:
            return False
        place = len(self.sources)
        valid, data, content, size = 0, 0, 0, 0
        floats = b""
        if kind is not Kind.NULL:
            buffers = array.buffers()
            valid = _address(buffers[0])
            data = _address(buffers[1]) if kind is not Kind.OBJECT else 0
        if kind is Kind.TEXT:
            content, size = _address(buffers[2]), 0 if buffers[2] is None else buffers[2].size
        if kind is Kind.FLOAT:
            floats = orjson.dumps(floats_of(data, valid, array.offset, len(array)))
        items = _items(array) if kind is Kind.LIST else None
        if items is not None:
            size = len(items)
        width = array.type.bit_width // 8 if kind is Kind.INT else 0
        self.held.append(array)
        self.sources.append(
            (kind, len(array), 0, width, array.offset, valid, data, content, size, head, floats)
        )
        if kind is Kind.OBJECT and not self._add_fields(array):
            return False
        if items is not None and not self.add(items, b""):
            return False
        self.sources[place] = (kind, len(array), len(self.sources), *self.sources[place][3:])
        return True

    def _add_fields(self, array: pa.Array) -> bool:
        names = [each.name for each in array.type]
        if not names or len(set(names)) < len(names):
            return False
        mark = b"{"
        for number, name in enumerate(names):
            if not self.add(array.field(number), _head(name, mark)):
                return False
            mark = b","
        return True


@cache
def _types() -> dict[Kind, pa.DataType]:
    """The Arrow types of values without parts."""
    import pyarrow as pa

    return {
        Kind.NULL: pa.null(),
        Kind.INT: pa.int64(),
        Kind.FLOAT: pa.float64(),
        Kind.BOOL: pa.bool_(),
        Kind.TEXT: pa.string(),
    }


@cache
def _kinds() -> dict[int, Kind]:
    """What is written of an Arrow type, by its id."""
    from pyarrow import lib

    kinds = {of.id: kind for kind, of in _types().items()}
    return kinds | {
        lib.Type_INT32: Kind.INT,
        lib.Type_STRUCT: Kind.OBJECT,
        lib.Type_LIST: Kind.LIST,
    }


@lru_cache(HEADS_MAX)
def _head(name: str, mark: bytes) -> bytes:
    """What stands before the value of a field."""
    return mark + orjson.dumps(name) + b":"


def _items(array: pa.Array) -> pa.Array:
    """The items of all lists, from the first list's on."""
    if not len(array):
        return array.values[:0]
    offsets = array.offsets
    first, end = offsets[0].as_py(), offsets[len(array)].as_py()
    return array.values.slice(first, end - first)


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def _bitmap(bools: pa.Array) -> bytes:
    """Booleans as bits, the first in the lowest."""
    import pyarrow as pa

    packed = pa.concat_arrays([bools]) if bools.offset else bools
    return bytes(packed.buffers()[1])
