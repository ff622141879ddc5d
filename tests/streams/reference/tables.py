"""Tables and their joins, a record at a time, from the rules alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, int]  # value, timestamp
Result = tuple[Any, Any, int]  # key, value, timestamp

LEFT, RIGHT = 0, 1


def pair(left: Any, right: Any) -> Any:
    return [left, right]


@dataclass
class PlainLookups:
    """A stream joined with a table: `table` and `stream` take their records."""

    how: str
    rows: dict[Any, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    dropped: int = 0

    def table(self, key: Any, value: Any, stamp: int) -> None:
        if key is None:
            self.dropped += 1
        elif value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    def stream(self, key: Any, value: Any, stamp: int) -> None:
        if value is None or (key is None and self.how == "inner"):
            self.dropped += 1
            return
        found = self.rows.get(key)
        if found is not None or self.how == "left":
            self.results.append((key, pair(value, found), stamp))


@dataclass
class PlainTableJoin:
    """Two tables as one. `add` takes an update of a side."""

    how: str
    sides: tuple[dict[Any, Row], dict[Any, Row]] = field(default_factory=lambda: ({}, {}))
    results: list[Result] = field(default_factory=list)
    dropped: int = 0

    def add(self, side: int, key: Any, value: Any, stamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        mine, others = self.sides[side], self.sides[1 - side]
        had_row, other = key in mine, others.get(key)
        if value is None:
            mine.pop(key, None)
        else:
            mine[key] = (value, stamp)
        sends_alone = self.how == "outer" or (self.how == "left" and side == LEFT)
        if other is None and not (sends_alone and (had_row or value is not None)):
            return
        newest = stamp if other is None else max(stamp, other[1])
        self.results.append((key, self.row(key), newest))

    def row(self, key: Any) -> Any:
        left, right = (side.get(key, (None, 0))[0] for side in self.sides)
        needs = {"inner": left is None or right is None, "left": left is None}
        is_none = needs.get(self.how, left is None and right is None)
        return None if is_none else pair(left, right)


@dataclass
class PlainVersions:
    """A stream joined with a versioned table: at once, or after `grace`."""

    how: str
    history: int
    grace: int = 0
    puts: list[tuple[Any, Any, int]] = field(default_factory=list)  # the later of one time counts
    waiting: list[Result] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    updates: list[Result] = field(default_factory=list)
    time: int = -1
    newest: int = -1
    dropped: int = 0

    def table(self, key: Any, value: Any, stamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        self.newest = max(self.newest, stamp)
        if stamp < self.newest - self.history:
            self.dropped += 1
            return
        self.puts.append((key, value, stamp))
        self.updates.append((key, value, stamp))

    def at(self, key: Any, stamp: int) -> Any:
        versions = {when: value for its, value, when in self.puts if its == key}
        seen = [when for when in versions if when <= stamp]
        if not seen:
            return None
        is_latest = max(seen) == max(versions)
        is_known = is_latest or stamp >= self.newest - self.history
        return versions[max(seen)] if is_known else None

    def stream(self, key: Any, value: Any, stamp: int) -> None:
        self.time = max(self.time, stamp)
        if value is None or (key is None and self.how == "inner"):
            self.dropped += 1
            return
        if stamp < self.time - self.grace:
            self.join(key, value, stamp)
        else:
            self.waiting.append((key, value, stamp))
        due = [each for each in self.waiting if each[2] <= self.time - self.grace]
        self.waiting = [each for each in self.waiting if each not in due]
        for each in sorted(due, key=lambda each: (each[2], each[0] is not None, each[0] or "")):
            self.join(*each)

    def join(self, key: Any, value: Any, stamp: int) -> None:
        found = self.at(key, stamp)
        if found is not None or self.how == "left":
            self.results.append((key, pair(value, found), stamp))


@dataclass
class PlainRetention:
    """A table whose rows leave when their last update is longer ago than `retention`."""

    retention: int
    rows: dict[Any, Row] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    time: int = -1
    dropped: int = 0

    def add(self, key: Any, value: Any, stamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        self.time = max(self.time, stamp)
        over = [k for k, (_, at) in self.rows.items() if at < self.time - self.retention]
        for gone in sorted(over, key=lambda k: (self.rows[k][1], k)):
            del self.rows[gone]
            self.results.append((gone, None, self.time))
        if stamp < self.time - self.retention:
            self.dropped += 1
            return
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = (value, stamp)
        self.results.append((key, value, stamp))
