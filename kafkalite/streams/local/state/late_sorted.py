"""A dict whose keys are put into order when somebody wants them in order.                   [P]

A key that comes or goes costs what it does in a dict. It is noted, and the order follows with all
that were noted at once: one by one where they are few, else anew.

Owns   the dict, its keys in their order, and what the order has yet to hear of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")
FEW: Final = 8  # so many times fewer keys changed than there are: the order is not made anew


class LateSorted(Generic[T]):
    """Values by keys of bytes."""

    def __init__(self) -> None:
        self._values: dict[bytes, T] = {}
        self._order: SortedList[bytes] = SortedList()
        self._new: set[bytes] = set()  # keys that the order lacks
        self._gone: set[bytes] = set()  # keys that the order still has

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def __getitem__(self, key: bytes) -> T:
        return self._values[key]

    def __setitem__(self, key: bytes, value: T) -> None:
        values = self._values
        count = len(values)
        values[key] = value
        if len(values) > count:
            if key in self._gone:
                self._gone.discard(key)
            else:
                self._new.add(key)

    def __delitem__(self, key: bytes) -> None:
        del self._values[key]
        if key in self._new:
            self._new.discard(key)
        else:
            self._gone.add(key)

    def get(self, key: bytes) -> T | None:
        """The value of a key, None where there is none."""
        return self._values.get(key)

    def pop(self, key: bytes) -> bool:
        """Removes a key; whether it was there."""
        is_there = key in self._values
        if is_there:
            del self[key]
        return is_there

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Keys and values, in no order."""
        return iter(self._values.items())

    def __iter__(self) -> Iterator[bytes]:
        """The keys, ascending."""
        self._settle()
        return iter(self._order)

    def irange(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[bytes]:
        """The keys with low <= key < high, ascending or with `reverse` descending."""
        self._settle()
        found: Iterator[bytes] = self._order.irange(low, high, (True, False), reverse)
        return found

    def _settle(self) -> None:
        if (len(self._new) + len(self._gone)) * FEW > len(self._values):
            self._order = SortedList(self._values)
        else:
            for key in self._gone:
                self._order.remove(key)
            self._order.update(self._new)
        self._new.clear()
        self._gone.clear()
