"""Columns that native code reads from a batch and writes: as Arrow arrays, and described.    [P]

    Read        what `_json_read` and `_msgpack_read` make of a batch whose values are alike
    ReadValues  such a batch as the source of a form: objects of some values, or an Arrow array
    Described   an array and its parts, as `_json_write` and `_msgpack_write` take them

Owns   which types of Arrow are read and written here.
Fails  not: an array with another type is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde.json_kinds import Kind

if TYPE_CHECKING:
    import pyarrow as pa

# Name, kind, how many rows are null; the bits of validity, the data, the content of texts; fields.
Read: TypeAlias = tuple[str, Kind, int, bytes | None, bytes | None, bytes | None, list["Read"]]

# Kind, rows, end of its parts, bytes of an integer, offset; addresses of validity, data and
# content, bytes of the content or items; what stands before a value; the floats as
# orjson writes the list.
Source: TypeAlias = tuple[Kind, int, int, int, int, int, int, int, int, bytes, bytes]

Head: TypeAlias = Callable[[str, int, int], bytes]


@dataclass(slots=True, eq=False)
class ReadValues:
    """The values of a column of bytes, each of them read before."""

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


@dataclass(slots=True)
class Described:
    """The columns of an array. `head(name, number, fields)` is what stands before the value of the
    field of that number; `floats` gives doubles (their address, that of their validity, the
    offset, how many) as they are written, where native code cannot."""

    head: Head
    floats: Callable[[int, int, int, int], bytes] | None = None
    sources: list[Source] = field(default_factory=list)
    held: list[pa.Array] = field(default_factory=list)  # whose buffers are lent

    def add(self, array: pa.Array, head: bytes = b"") -> bool:
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
        if kind is Kind.FLOAT and self.floats is not None:
            floats = self.floats(data, valid, array.offset, len(array))
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
        if items is not None and not self.add(items):
            return False
        self.sources[place] = (kind, len(array), len(self.sources), *self.sources[place][3:])
        return True

    def _add_fields(self, array: pa.Array) -> bool:
        names = [each.name for each in array.type]
        if not names or len(set(names)) < len(names):
            return False
        return all(
            self.add(array.field(number), self.head(name, number, len(names)))
            for number, name in enumerate(names)
        )


def spans_of(made: tuple[bytes, bytes], array: pa.Array) -> Spans:
    """The native result of each row; None for a null row."""
    offsets, data = made
    valid = _bitmap(array.is_valid()) if array.null_count else None
    return Spans.of_offsets(memoryview(offsets).cast("q"), data, valid)


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
    """The kind of value for each Arrow type that can be written, by the type's id."""
    from pyarrow import lib

    kinds = {of.id: kind for kind, of in _types().items()}
    return kinds | {
        lib.Type_INT32: Kind.INT,
        lib.Type_STRUCT: Kind.OBJECT,
        lib.Type_LIST: Kind.LIST,
    }


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
