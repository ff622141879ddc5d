"""Tables joined by a foreign key, one record at a time, from rule 31 alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = tuple[Any, Any, int]  # key, value, timestamp


class PlainForeignJoin:
    """`refer(row)` gives the foreign key, `join(left, right)` the result."""

    def __init__(
        self, how: str, refer: Callable[[Any], Any], join: Callable[[Any, Any], Any]
    ) -> None:
        self.how = how
        self.refer = refer
        self.join = join
        self.lefts: dict[Any, Any] = {}
        self.rights: dict[Any, tuple[Any, int]] = {}
        self.results: list[Row] = []
        self.dropped = 0

    def left(self, key: Any, value: Any, timestamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        old = self.lefts.pop(key, None)
        if value is not None:
            self.lefts[key] = value
        was, is_now = self._refer(old), self._refer(value)
        if self.how == "left":
            if old is not None or value is not None:
                self._send(key, value, timestamp, is_now)
        elif value is not None and is_now is None:
            self.dropped += 1
            if was is not None:
                self._send(key, None, timestamp, was)
        elif value is not None:
            if is_now in self.rights or (was is not None and was != is_now):
                self._send(key, value, timestamp, is_now)
        elif was is not None:
            self._send(key, None, timestamp, was)

    def right(self, key: Any, value: Any, timestamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        self.rights.pop(key, None)
        if value is not None:
            self.rights[key] = (value, timestamp)
        for other in sorted(self.lefts, key=str.encode):
            if self._refer(self.lefts[other]) == key:
                self.results.append((other, self._joined(self.lefts[other], value), timestamp))

    def _refer(self, row: Any) -> Any:
        return None if row is None else self.refer(row)

    def _send(self, key: Any, left: Any, timestamp: int, referred: Any) -> None:
        right, stamp = self.rights.get(referred, (None, -1))
        self.results.append((key, self._joined(left, right), max(timestamp, stamp)))

    def _joined(self, left: Any, right: Any) -> Any:
        if left is None or (self.how == "inner" and right is None):
            return None
        return self.join(left, right)

    def table(self) -> dict[Any, Any]:
        """The rows of the result."""
        made = {
            key: self._joined(left, self.rights.get(self._refer(left), (None, 0))[0])
            for key, left in self.lefts.items()
        }
        return {key: row for key, row in made.items() if row is not None}
