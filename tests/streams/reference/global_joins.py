"""A stream with a global table, one record at a time, from rules 28 and 29 alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = tuple[Any, Any, int]  # key, value, timestamp


class PlainGlobalJoin:
    """`select(key, value)` gives the key to look for, `join(left, right)` the result."""

    def __init__(
        self,
        how: str,
        select: Callable[[Any, Any], Any],
        join: Callable[[Any, Any], Any],
    ) -> None:
        self.how = how
        self.select = select
        self.join = join
        self.rows: dict[Any, Any] = {}
        self.results: list[Row] = []
        self.dropped = 0

    def table(self, key: Any, value: Any) -> None:
        if key is None:
            self.dropped += 1
        elif value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    def stream(self, key: Any, value: Any, timestamp: int) -> None:
        if value is None:
            self.dropped += 1
            return
        wanted = self.select(key, value)
        row = self.rows.get(wanted)
        if self.how == "left":
            self.results.append((key, self.join(value, row), timestamp))
        elif wanted is None:
            self.dropped += 1
        elif row is not None:
            self.results.append((key, self.join(value, row), timestamp))
