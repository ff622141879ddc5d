"""Joins of two streams, a record at a time, from the rules alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Input = tuple[Any, Any, int]  # key, value, timestamp
Result = tuple[Any, Any, int]

LEFT, RIGHT = 0, 1


@dataclass
class Row:
    """A record that a side has kept."""

    key: Any
    value: Any
    stamp: int
    arrival: int
    has_met: bool


@dataclass
class PlainJoin:
    """Keeps every row for good, and looks at all of them."""

    how: str
    before: int
    after: int
    grace: int = 0
    function: Callable[[Any, Any], Any] = lambda left, right: [left, right]
    sides: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    over: list[Row] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    dropped: int = 0
    arrivals: int = 0

    def has_nulls(self, side: int) -> bool:
        return self.how == "outer" or (self.how == "left" and side == LEFT)

    def least_visible(self, side: int) -> int:
        """The timestamp below which rows of a side are over."""
        newest = max((row.stamp for row in self.sides[side]), default=None)
        return 0 if newest is None else newest - self.before - self.after - self.grace + 1

    def add(self, side: int, key: Any, value: Any, stamp: int) -> None:
        if value is None or key is None:
            if value is not None and self.has_nulls(side):
                self.emit_alone(side, key, value, stamp)
            else:
                self.dropped += 1
            return
        self.arrivals += 1
        row = Row(key, value, stamp, self.arrivals, has_met=False)
        own, others = self.sides[side], self.sides[1 - side]
        own.append(row)  # visible to nobody but the other side: it can as well be here already
        self.end_waits(side, row)
        low, high = (self.before, self.after) if side == LEFT else (self.after, self.before)
        least = max(stamp - low, self.least_visible(1 - side))
        found = [o for o in others if o.key == key and least <= o.stamp <= stamp + high]
        for other in sorted(found, key=lambda o: (o.stamp, o.arrival)):
            other.has_met = row.has_met = True
            left, right = (row, other) if side == LEFT else (other, row)
            result = self.function(left.value, right.value)
            self.results.append((key, result, max(stamp, other.stamp)))
        if stamp < self.least_visible(side):
            own.remove(row)
            self.dropped += 1
            if not row.has_met and self.has_nulls(side):
                self.emit_alone(side, key, value, stamp)

    def end_waits(self, side: int, new: Row) -> None:
        """The null results of the rows that the new one puts out of reach."""
        least = self.least_visible(side)
        over = [row for row in self.sides[side] if row.stamp < least and row is not new]
        for row in sorted(over, key=lambda r: (r.stamp, r.key, r.arrival)):
            self.sides[side].remove(row)
            if not row.has_met and self.has_nulls(side):
                self.emit_alone(side, row.key, row.value, row.stamp)

    def end(self) -> None:
        """The null results of all that still wait."""
        for side in (LEFT, RIGHT):
            for row in self.sides[side]:
                if not row.has_met and self.has_nulls(side):
                    self.emit_alone(side, row.key, row.value, row.stamp)

    def emit_alone(self, side: int, key: Any, value: Any, stamp: int) -> None:
        pair = (value, None) if side == LEFT else (None, value)
        self.results.append((key, self.function(*pair), stamp))


@dataclass
class PlainAsOf:
    """Each left record with the latest right one that is no later, `grace` later."""

    how: str
    tolerance: int
    grace: int = 0
    time: int = -1
    rows: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    dropped: int = 0
    arrivals: int = 0

    def add(self, side: int, key: Any, value: Any, stamp: int) -> None:
        self.time = max(self.time, stamp)
        self.release()
        self.arrivals += 1
        row = Row(key, value, stamp, self.arrivals, has_met=False)
        if key is None and value is not None and side == LEFT and self.how == "left":
            self.results.append((None, [value, None], stamp))
        elif key is None or value is None:
            self.dropped += 1
        elif side == LEFT and stamp <= self.time - self.grace:
            self.join(row, left_behind=self.time - self.grace - self.tolerance)
        elif side == LEFT:
            self.waiting.append(row)
        elif stamp < self.time - self.grace - self.tolerance:
            self.dropped += 1
        else:
            self.rows.append(row)

    def release(self) -> None:
        over = [row for row in self.waiting if row.stamp <= self.time - self.grace]
        for row in sorted(over, key=lambda r: (r.stamp, r.key, r.arrival)):
            self.waiting.remove(row)
            self.join(row, left_behind=-1)

    def end(self) -> None:
        """Joins all that still wait."""
        for row in self.waiting:
            self.join(row, left_behind=-1)

    def join(self, left: Row, left_behind: int) -> None:
        """Right rows from `left_behind` on are there, as long as the left record has not waited."""
        least = max(left.stamp - self.tolerance, left_behind)
        found = [r for r in self.rows if r.key == left.key and least <= r.stamp <= left.stamp]
        if found:
            right = max(found, key=lambda r: (r.stamp, r.arrival))
            self.results.append((left.key, [left.value, right.value], left.stamp))
        elif self.how == "left":
            self.results.append((left.key, [left.value, None], left.stamp))


def as_a_task_takes_them(
    left: Sequence[Input], right: Sequence[Input]
) -> Iterator[tuple[int, Input]]:
    """The records of two inputs: always the earlier head, of equal ones the left."""
    heads = [list(left), list(right)]
    while any(heads):
        side = min((each for each in (LEFT, RIGHT) if heads[each]), key=lambda e: heads[e][0][2])
        yield side, heads[side].pop(0)
