"""Several streams in one table, one record at a time: each input has its own stream time."""

from __future__ import annotations

from typing import Any

from kafkalite.core.types import Windowed

Row = tuple[Any, Any, int]


class Cogroup:
    """Folds of (number of the input, value) into lists, over windows of `size` or none.

    With `closes` a window is over for all inputs when the newest record of any has passed it.
    """

    def __init__(self, size: int | None = None, advance: int = 1, grace: int = 0) -> None:
        self.size, self.advance, self.grace = size, advance, grace
        self.times: dict[int, int] = {}
        self.rows: dict[Any, tuple[list[Any], int]] = {}
        self.dropped = 0
        self.closes = False

    def take(self, number: int, key: str | None, value: Any, time: int) -> list[Row]:
        """The updates that a record leads to."""
        if key is None or (self.size is None and value is None):
            self.dropped += 1
            return []
        newest = self.times[number] = max(self.times.get(number, -1), time)
        if self.closes:
            newest = max(self.times.values())
        return [self.fold(at, number, value, time) for at in self.places(key, time, newest)]

    def places(self, key: str, time: int, newest: int) -> list[Any]:
        if self.size is None:
            return [key]
        found = []
        start = max(0, time - self.size + self.advance) // self.advance * self.advance
        while start <= time:
            if start + self.size + self.grace > newest:
                found.append(Windowed(key, start, start + self.size))
            else:
                self.dropped += 1
            start += self.advance
        return found

    def over(self) -> list[Row]:
        """The windows that are over, once."""
        limit = max(self.times.values(), default=-1) - self.grace
        places = [place for place in self.rows if self.size is not None and place.end <= limit]
        places.sort(key=lambda place: (place.start, place.key.encode()))
        return [(place, *self.rows.pop(place)) for place in places]

    def fold(self, place: Any, number: int, value: Any, time: int) -> Row:
        row, stamp = self.rows.get(place, ([], time))
        self.rows[place] = ([*row, [number, value]], max(stamp, time))
        return (place, *self.rows[place])
