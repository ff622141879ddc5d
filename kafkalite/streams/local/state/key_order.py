"""The keys of a dict in their order, for those who look at a page of them.                 [P]

    dict     k7 k2 k9 │ k4 k1         keys stand as they came: new ones are behind the last known
    order    k2 k7 k9 <─ k1 k4        taken in at the next look

Keys come into the dict as they like, also by native code, and cost nothing here. Whoever removes a
key says so.

Owns   the order as of the last look, and which keys have left since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import takewhile
from typing import Any, Final

from sortedcontainers import SortedList

FEW: Final = 8  # so many times fewer keys left than there were: the order is not made anew


class KeyOrder:
    """The keys of one dict."""

    def __init__(self, keys: dict[bytes, Any]) -> None:
        self._keys = keys
        self._order: SortedList[bytes] = SortedList()
        self._last: bytes | None = None  # of the known keys in the dict; None: all are new
        self._gone: set[bytes] = set()

    def forget(self, keys: Collection[bytes]) -> None:
        """These have left the dict."""
        if self._last is not None:
            self._gone.update(keys)
            if self._last in self._gone or len(self._gone) * FEW > len(self._order):
                self._last = None
                self._gone.clear()

    def irange(self, low: bytes) -> Iterator[bytes]:
        """The keys from `low` on, ascending. Nothing may change before they are read."""
        self._settle()
        found: Iterator[bytes] = self._order.irange(low)
        return found

    def _settle(self) -> None:
        if self._last is None:
            self._order = SortedList(self._keys)
        else:
            for key in self._gone:
                self._order.discard(key)
            self._order.update(takewhile(self._last.__ne__, reversed(self._keys)))
            self._gone.clear()
        self._last = next(reversed(self._keys), None)
