"""What is done with a column, whatever it is made of.                                      [P]

A column is a sequence: the i-th entries of all columns of a batch are one record. Most are lists.
A `Form` is a column that keeps its records in another way, as spans of the bytes that were fetched
or as an Arrow array, and makes an object of an entry when somebody looks at it. What all columns
must do (some records, one after the other) goes through here, so that a form is asked and stays
one, and a list stays a list.

    mask      as long as the column, true where a record is kept; `bytes` of 0 and 1 are the
              quickest
    indexes   of the records that are taken, in that order; one may come several times

Owns   nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, compress, islice
from operator import itemgetter, not_, sub
from typing import Any, Final, Self, TypeVar, overload

T = TypeVar("T")
FEW: Final = 200  # below so many records lists are quicker than forms

FLIPPED: Final = b"\1" + bytes(255)  # of the bytes of a mask


class Form(Sequence[Any]):
    """A column that is no list. A slice has the same type and shares its memory.

    Classes written in native code register with it.
    """

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    @abstractmethod
    def __getitem__(self, place: int | slice) -> Any:
        """The object of one record, or some records."""

    @abstractmethod
    def where(self, mask: Sequence[object]) -> Self:
        """The records whose entry in the mask is true."""

    @abstractmethod
    def take(self, indexes: Sequence[int]) -> Self:
        """The records at `indexes`."""

    @abstractmethod
    def followed_by(self, others: Sequence[Self]) -> Sequence[Any]:
        """This column and others of its class as one; a list where there is no such."""

    @classmethod
    def gathered(cls, column: Sequence[object]) -> Form | None:
        """A column, a list mostly, as one of this class; None where that cannot be or pay."""
        return None


def where(column: Sequence[T], mask: Sequence[object]) -> Sequence[T]:
    """The records whose entry in the mask is true."""
    if type(column) is not list and isinstance(column, Form):
        kept: Sequence[T] = column.where(mask)
        return kept
    return list(compress(column, mask))


def keeps_all(mask: Sequence[object]) -> bool:
    """Whether a mask leaves out nobody."""
    return 0 not in mask if isinstance(mask, bytes | bytearray) else all(mask)


def negated(mask: Sequence[object]) -> Sequence[object]:
    """The mask of the records that a mask leaves out."""
    if isinstance(mask, bytes | bytearray):
        return mask.translate(FLIPPED)
    return list(map(not_, mask))


def take(column: Sequence[T], indexes: Sequence[int]) -> Sequence[T]:
    """The records at `indexes`."""
    if type(column) is not list and isinstance(column, Form):
        taken: Sequence[T] = column.take(indexes)
        return taken
    if len(indexes) < 2:  # of one index, itemgetter gives no tuple
        return [column[index] for index in indexes]
    picked: tuple[T, ...] = itemgetter(*indexes)(column)
    return picked


def joined(columns: Sequence[Sequence[T]]) -> Sequence[T]:
    """One column after the other."""
    if len(columns) == 1:
        return columns[0]
    kinds = {type(c) for c in columns if type(c) is not list and isinstance(c, Form)}
    if len(kinds) == 1:
        (kind,) = kinds
        forms = [column if type(column) is kind else kind.gathered(column) for column in columns]
        same = [form for form in forms if form is not None]
        if len(same) == len(columns):
            return same[0].followed_by(same[1:])
    return list(chain.from_iterable(columns))


def objects(column: Sequence[T]) -> list[T]:
    """The records as a list, for callers that access each more than once."""
    return column if type(column) is list else list(column)


def has_nulls(column: Sequence[Any]) -> bool:
    """Whether a record is None."""
    quick: bool | None = getattr(column, "has_nulls", None)
    return not all(column) and None in column if quick is None else quick


def least(column: Sequence[int]) -> int:
    """The least number of a column."""
    quick: Callable[[], int] | None = getattr(column, "min", None)
    return min(column) if quick is None else quick()


def greatest(column: Sequence[int]) -> int:
    """The greatest number of a column."""
    quick: Callable[[], int] | None = getattr(column, "max", None)
    return max(column) if quick is None else quick()


def greatest_so_far(column: Sequence[int], before: int) -> Sequence[int]:
    """For each number of a column the greatest up to it, and `before`."""
    quick: Callable[[int], Sequence[int]] | None = getattr(column, "greatest_so_far", None)
    if quick is not None:
        return quick(before)
    return list(islice(accumulate(column, max, initial=before), 1, None))


def furthest_behind(column: Sequence[int], before: int) -> int:
    """How far a number is behind the greatest up to it, and `before`, at most; 0 for none."""
    quick: Callable[[int], int] | None = getattr(column, "furthest_behind", None)
    if quick is not None:
        return quick(before)
    return max(map(sub, greatest_so_far(column, before), column), default=0)


def first_over(column: Sequence[int], limit: int, start: int, stop: int) -> int:
    """The first index in [start, stop) of a number greater than `limit`; else `stop`."""
    quick = getattr(column, "first_over", None)
    if quick is not None:
        found: int = quick(limit, start, stop)
        return found
    return next((at for at in range(start, stop) if column[at] > limit), stop)
