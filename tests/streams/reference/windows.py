"""Windows of every kind, one record at a time, written from the rules alone.

A model takes records by `add` and keeps what came out: `updates`, `final`, `late`, `dropped`. How
values become a row is told by a `Fold`, which each test picks. `shows` tells whether a join still
finds a window. Without `closes` none is closed, since others have yet to come so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafkalite.streams import Windowed

Row = tuple[Any, Any, int]  # key, value, timestamp
State = tuple[int, Any]  # the newest timestamp, the aggregate
END = 2**63 - 1  # of a window without one


@dataclass(frozen=True)
class Fold:
    """An aggregate: what it starts from, a value more, two of them as one, the row it makes.

    None is no row.
    """

    init: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    row: Callable[[Any], Any] = lambda aggregate: aggregate


class TimeWindows:
    """Tumbling and hopping windows: rules 1, 2, 3, 8, 9, 10, 16; D1 as it should be."""

    def __init__(self, size: int, advance: int, grace: int, fold: Fold) -> None:
        self.size, self.advance, self.grace, self.fold = size, advance, grace, fold
        self.time = self.newest = -1
        self.closes = True
        self.windows: dict[tuple[int, str], State] = {}  # by start and key
        self.updates: list[Row] = []
        self.final: list[Row] = []
        self.late: list[Row] = []
        self.dropped = 0

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        self.time = max(self.time, timestamp)
        self.newest = max(self.newest, timestamp)
        start = max(0, timestamp - self.size + self.advance) // self.advance * self.advance
        missed = True
        while start <= timestamp:
            if start + self.size + self.grace > self.time:
                missed = False
                stamp, aggregate = self.windows.get((start, key), (-1, self.fold.init()))
                aggregate = self.fold.add(aggregate, value)
                self.windows[start, key] = (max(stamp, timestamp), aggregate)
                self.updates.append(self.row(start, key))
            else:
                self.dropped += 1
            start += self.advance
        if missed:
            self.late.append((key, value, timestamp))
        for start, key in sorted(self.windows, key=lambda place: (place[0], place[1].encode())):
            if self.closes and start + self.size + self.grace <= self.time:
                self.final.append(self.row(start, key))
                del self.windows[start, key]

    def row(self, start: int, key: str) -> Row:
        stamp, aggregate = self.windows[start, key]
        return Windowed(key, start, start + self.size), self.fold.row(aggregate), stamp

    def shows(self, key: Windowed[str]) -> bool:
        newest_start = self.newest // self.advance * self.advance
        return key.start > newest_start - self.size - self.grace


class Sessions:
    """Rules 1, 2, 4, 8, 9, 11, 16; D2, D3 and D7 as they should be."""

    def __init__(self, gap: int, grace: int, fold: Fold) -> None:
        self.gap, self.grace, self.fold = gap, grace, fold
        self.time = self.newest = -1
        self.closes = True
        self.sessions: dict[tuple[int, int, str], Any] = {}  # by end, start, key
        self.updates: list[Row] = []
        self.final: list[Row] = []
        self.late: list[Row] = []
        self.dropped = 0

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        self.time = max(self.time, timestamp)
        self.newest = max(self.newest, timestamp)
        limit = self.time - self.gap - self.grace
        if self.closes:
            self.close(limit)
        found = sorted(
            s for s in self.sessions
            if s[2] == key and s[0] >= timestamp - self.gap and s[1] <= timestamp + self.gap
        )  # fmt: skip
        aggregate = self.fold.init()
        for session in found:
            aggregate = self.fold.merge(aggregate, self.sessions[session])
        end = max([timestamp, *(session[0] for session in found)])
        start = min([timestamp, *(session[1] for session in found)])
        if end < limit:
            self.late.append((key, value, timestamp))
            self.dropped += 1
            return
        for session in found:
            if (start, end) != (timestamp, timestamp):
                self.updates.append((self.key(session), None, session[0]))
            del self.sessions[session]
        aggregate = self.fold.add(aggregate, value)
        new = (end, start, key)
        row = None if aggregate is None else self.fold.row(aggregate)
        self.updates.append((self.key(new), row, end))
        if row is not None:
            self.sessions[new] = aggregate

    def close(self, limit: int) -> None:
        order = sorted(self.sessions, key=lambda s: (s[0], s[2].encode()))
        for session in [s for s in order if s[0] < limit]:
            row = self.fold.row(self.sessions.pop(session))
            self.final.append((self.key(session), row, session[0]))

    def key(self, session: tuple[int, int, str]) -> Windowed[str]:
        end, start, key = session
        return Windowed(key, start, end)

    def shows(self, key: Windowed[str]) -> bool:
        return key.end > self.newest - self.gap - self.grace

    def table(self) -> dict[Windowed[str], Any]:
        """The rows of what is open."""
        return {self.key(s): self.fold.row(aggregate) for s, aggregate in self.sessions.items()}


class Sliding:
    """Rules 1, 2, 5, 8, 9, 13, 16; D3 as it should be. No window is ever forgotten here."""

    def __init__(self, difference: int, grace: int, fold: Fold) -> None:
        self.difference, self.grace, self.fold = difference, grace, fold
        self.time = -1
        self.windows: dict[str, dict[int, State]] = {}  # by key and start
        self.newest_start = -1
        self.closes = True
        self.closed: set[tuple[int, str]] = set()  # windows whose final row is out
        self.updates: list[Row] = []
        self.final: list[Row] = []
        self.late: list[Row] = []
        self.dropped = 0

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        if key is None or value is None:
            self.dropped += 1
            return
        self.time = max(self.time, timestamp)
        if timestamp + self.difference < self.time - self.grace:
            self.late.append((key, value, timestamp))
            self.dropped += 1
        else:
            windows = self.windows.setdefault(key, {})
            place = self.early if timestamp < self.difference else self.place
            place(key, windows, value, timestamp)
        if self.closes:
            self.close()

    def shows(self, key: Windowed[str]) -> bool:
        return key.start > self.newest_start - 2 * self.difference - self.grace

    def place(self, key: str, windows: dict[int, State], value: Any, at: int) -> None:
        before = dict(windows)
        left, right = at - self.difference, at + 1
        oldest = max(left - self.difference, self.oldest())
        seen = [start for start in sorted(windows) if oldest <= start <= right]
        holding = [start for start in seen if left <= start <= at]
        for start in reversed(holding):
            self.put(key, start, windows[start], value, at)
        ended = [start for start in seen if start < left]
        if left in before and before[left][0] >= at:
            return
        previous = before[ended[-1]][0] if ended else None
        if previous is None and left in before:
            previous = before[left][0]
        fresh: State = (at, self.fold.init())
        if previous is not None and previous + 1 not in before and previous >= left - 1:
            self.put(key, previous + 1, fresh, value, at)
        if left not in before:
            source = before[ended[-1]] if ended and before[ended[-1]][0] >= left else fresh
            self.put(key, left, (at, source[1]), value, at)
        newest = [start for start in holding if start > left]
        if right not in before and newest and before[newest[-1]][0] > at:
            self.copy(key, right, before[newest[-1]])

    def oldest(self) -> int:
        """Older windows are not looked at, which counts where those would be missed."""
        reach = 2 * self.difference + self.grace
        return min(self.newest_start - reach + 1, self.time - reach - 1)

    def early(self, key: str, windows: dict[int, State], value: Any, at: int) -> None:
        before = dict(windows)
        holding = [start for start in sorted(windows) if 0 < start <= at]
        for start in holding:
            self.put(key, start, windows[start], value, at)
        source = before[holding[-1]] if holding else before.get(0)
        if at + 1 not in before and source is not None and source[0] > at:
            self.copy(key, at + 1, source)
        fresh: State = (at, self.fold.init())
        if 0 in before and before[0][0] < at and before[0][0] + 1 not in before:
            self.put(key, before[0][0] + 1, fresh, value, at)
        self.put(key, 0, before.get(0, fresh), value, at)

    def put(self, key: str, start: int, state: State, value: Any, at: int) -> None:
        """The record goes into a window, which was in `state`; closed ones take nothing."""
        if start + self.difference < self.time - self.grace:
            self.dropped += 1
            return
        stamp, aggregate = state
        self.copy(key, start, (max(stamp, at), self.fold.add(aggregate, value)))

    def copy(self, key: str, start: int, state: State) -> None:
        stamp, aggregate = state
        self.newest_start = max(self.newest_start, start)
        row = None if aggregate is None else self.fold.row(aggregate)
        if row is None:
            self.windows[key].pop(start, None)
        else:
            self.windows[key][start] = state
        self.updates.append((Windowed(key, start, start + self.difference), row, stamp))

    def close(self) -> None:
        places = sorted((s, key) for key, windows in self.windows.items() for s in windows)
        for start, key in places:
            is_over = start + self.difference < self.time - self.grace
            if is_over and (start, key) not in self.closed:
                self.closed.add((start, key))
                stamp, aggregate = self.windows[key][start]
                windowed = Windowed(key, start, start + self.difference)
                self.final.append((windowed, self.fold.row(aggregate), stamp))


class Unlimited:
    """One window for the records of a key from `start` on: rules 8, 9, 15."""

    def __init__(self, start: int, fold: Fold) -> None:
        self.start, self.fold = start, fold
        self.time, self.closes = -1, False
        self.states: dict[str, State] = {}
        self.updates: list[Row] = []
        self.final: list[Row] = []
        self.late: list[Row] = []
        self.dropped = 0

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        self.dropped += key is None
        if key is None or timestamp < self.start:
            return
        stamp, aggregate = self.states.get(key, (timestamp, self.fold.init()))
        aggregate, stamp = self.fold.add(aggregate, value), max(stamp, timestamp)
        self.states[key] = stamp, aggregate
        self.updates.append((Windowed(key, self.start, END), self.fold.row(aggregate), stamp))

    def shows(self, key: Windowed[str]) -> bool:
        return True
