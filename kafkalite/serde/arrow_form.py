"""A column of values that is an Arrow array, or Python objects, whichever is asked for.      [P]

    source     all values of a batch: its Arrow array, and the objects of some of them
    form       some of them: where a mask holds, at some indexes, in a range

    form.where(mask)[10:20]    looks at nothing; its `arrow()` filters and slices the array of the
                               source, its objects are made of these ten values alone

A source may also have `table()` and `numbers()`: see `TableSource`.

Owns   the array, and the objects of its own values after the first access.
Never  makes objects of values for the sake of the array, nor the other way round.
Fails  as its source does.
"""

from __future__ import annotations

from array import array as array_of
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import truth
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from kafkalite.core.columns import Form, where
from kafkalite.core.columns import take as taken
from kafkalite.core.protocol.record_codec import Int64s, Spans
from kafkalite.serde.vectors import NATIVE, Table, Values, Vector, kernels, narrowed

if TYPE_CHECKING:
    import pyarrow as pa


class Source(Protocol):
    """All values of a batch."""

    def __len__(self) -> int: ...

    @property
    def null_count(self) -> int:
        """How many of all values are null."""

    def arrow(self) -> pa.Array:
        """The array of all values; it is asked for once."""

    def objects(self, indexes: Sequence[int]) -> list[Any]:
        """The objects of some values."""


def _nothing() -> None:
    """The release of a source without native memory: does nothing."""


class TableSource(Source, Protocol):
    """A source whose values native code can read without Arrow."""

    def table(self) -> Table | None:
        """The fields of all values; None where there is no such table."""

    def column(self) -> Vector | Values | None:
        """All values that have no fields."""


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Values that are an Arrow array already."""

    array: pa.Array

    def __len__(self) -> int:
        return len(self.array)

    @property
    def null_count(self) -> int:
        """How many values are null."""
        count: int = self.array.null_count
        return count

    def arrow(self) -> pa.Array:
        """The array."""
        return self.array

    def objects(self, indexes: Sequence[int]) -> list[Any]:
        """Some values as Arrow's Python objects; maps are dicts, as Avro's are."""
        return list(taken(self.array.to_pylist(maps_as_pydicts="strict"), indexes))


class Pick(Protocol):
    """Some records of a column, whatever it is made of."""

    def of_list(self, column: Sequence[Any]) -> Sequence[Any]:
        """Of objects, or of indexes."""

    def of_arrow(self, array: pa.Array) -> pa.Array:
        """Of an Arrow array."""


class ArrowForm(Form):
    """Values of a source: all of them, or a pick of those of another form."""

    __slots__ = ("_above", "_array", "_length", "_objects", "_pick", "_places", "_source")

    def __init__(
        self,
        source: Source,
        above: ArrowForm | None = None,
        pick: Pick | None = None,
        length: int | None = None,
    ) -> None:
        self._source, self._above, self._pick = source, above, pick
        self._length = len(source) if length is None else length
        self._places: Sequence[int] | None = None  # among all values of the source
        self._array: pa.Array | None = None
        self._objects: list[Any] | None = None

    def arrow(self) -> pa.Array:
        """The values as an Arrow array."""
        if self._array is None:
            if self._above is None or self._pick is None:
                self._array = self._source.arrow()
            else:
                self._array = self._pick.of_arrow(self._above.arrow())
        return self._array

    def objects(self) -> list[Any]:
        """The values as objects."""
        if self._objects is None:
            self._objects = self._source.objects(self.places())
        return self._objects

    def table(self) -> Table | None:
        """The fields of the values in native memory; None where they are not there."""
        find: Callable[[], Table | None] = getattr(self._source, "table", _nothing)
        table = find()
        return table if table is None or self._above is None else table.narrowed(self._rows())

    def column(self) -> Vector | Values | None:
        """Values without fields in native memory."""
        find: Callable[[], Vector | Values | None] = getattr(self._source, "column", _nothing)
        column = find()
        return column if column is None or self._above is None else narrowed(column, self._rows())

    def _rows(self) -> Int64s:
        places = self.places()
        return places if isinstance(places, Int64s) else Int64s(places)

    def places(self) -> Sequence[int]:
        """The indexes of the values among all of the source."""
        if self._places is None:
            if self._above is None or self._pick is None:
                self._places = kernels.every(self._length) if NATIVE else range(self._length)
            else:
                self._places = self._pick.of_list(self._above.places())
        return self._places

    @property
    def has_nulls(self) -> bool:
        """Whether a value is null."""
        if self._above is None or not self._source.null_count:
            return bool(self._source.null_count)
        return bool(self.arrow().null_count)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.objects())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | ArrowForm):
            return NotImplemented
        return self.objects() == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            wanted = range(self._length)[place]
            pick = Range(wanted) if wanted.step == 1 else Indexes(wanted)
            return self._picked(pick, len(wanted))
        if self._objects is not None:
            return self._objects[place]
        return self._source.objects([self.places()[place]])[0]

    def where(self, mask: Sequence[object]) -> Self:
        """The records whose entry in the mask is true."""
        bits = bytes(mask) if isinstance(mask, bytes | bytearray) else bytes(map(truth, mask))
        return self._picked(Mask(bits), len(bits) - bits.count(0))

    def take(self, indexes: Sequence[int]) -> Self:
        """The records at `indexes`."""
        return self._picked(Indexes(indexes), len(indexes))

    def followed_by(self, others: Sequence[Self]) -> Sequence[Any]:
        """The objects of this column and of others."""
        return list(chain(self, *others))

    def _picked(self, pick: Pick, length: int) -> Self:
        picked = type(self)(self._source, self, pick, length)
        if self._objects is not None:
            picked._objects = list(pick.of_list(self._objects))
        return picked


@dataclass(frozen=True, slots=True)
class Mask:
    """The records where it is not 0."""

    bits: bytes

    def of_list(self, column: Sequence[Any]) -> Sequence[Any]:
        """Of a list."""
        return where(column, self.bits)

    def of_arrow(self, array: pa.Array) -> pa.Array:
        """Of an array."""
        return array.filter(arrow_of_mask(self.bits))


@dataclass(frozen=True, slots=True)
class Range:
    """Records that follow one another."""

    places: range

    def of_list(self, column: Sequence[Any]) -> Sequence[Any]:
        """Of a list."""
        return column[self.places.start : self.places.stop]

    def of_arrow(self, array: pa.Array) -> pa.Array:
        """Of an array."""
        return array.slice(self.places.start, len(self.places))


@dataclass(frozen=True, slots=True)
class Indexes:
    """Records in any order; one may come several times."""

    places: Sequence[int]

    def of_list(self, column: Sequence[Any]) -> Sequence[Any]:
        """Of a list."""
        return taken(column, self.places)

    def of_arrow(self, array: pa.Array) -> pa.Array:
        """Of an array."""
        import pyarrow as pa

        places = pa.py_buffer(array_of("q", self.places))  # pa.array would import pandas
        return array.take(pa.Array.from_buffers(pa.int64(), len(self.places), [None, places]))


def texts_of(column: Sequence[Any]) -> Spans | None:
    """The UTF-8 of a form of texts, where it lies in the memory of a batch; None for others."""
    vector = column.column() if isinstance(column, ArrowForm) else None
    return vector.texts() if isinstance(vector, Vector) else None


def arrow_of_mask(mask: bytes) -> pa.Array:
    """A mask of bytes as Arrow's booleans."""
    import pyarrow as pa

    numbers = pa.Array.from_buffers(pa.uint8(), len(mask), [None, pa.py_buffer(mask)])
    return numbers.cast(pa.bool_())


def mask_of_arrow(verdicts: pa.Array) -> bytes:
    """Arrow's booleans, none of them null, as a mask of bytes."""
    import pyarrow as pa

    assert verdicts.null_count == 0, "a verdict is null"
    numbers = verdicts.cast(pa.uint8())
    start, end = numbers.offset, numbers.offset + len(numbers)
    return bytes(memoryview(numbers.buffers()[1])[start:end]) if len(numbers) else b""
