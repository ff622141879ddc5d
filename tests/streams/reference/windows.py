"""Sessions and sliding windows, one record at a time, written from the rules alone.

A model takes records by `add` and keeps what came out: `updates`, `final`, `late`, `dropped`. How
values become a row is told by a `Fold`, which each test picks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafkalite.streams import Windowed

Row = tuple[Any, Any, int]  # key, value, timestamp
State = tuple[int, Any]  # the newest timestamp, the aggregate


@dataclass(frozen=True)
class Fold:
    """An aggregate: what it starts from, a value more, two of them as one, the row it makes.

    None is no row.
    """

    init: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    row: Callable[[Any], Any] = lambda aggregate: aggregate


class Sessions:
    """Rules 1, 2, 4, 8, 9, 11, 16; D2, D3 and D7 as they should be."""

    def __init__(self, gap: int, grace: int, fold: Fold) -> None:
        self.gap, self.grace, self.fold = gap, grace, fold
        self.time = -1
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
        limit = self.time - self.gap - self.grace
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

    def table(self) -> dict[Windowed[str], Any]:
        """The rows of what is open."""
        return {self.key(s): self.fold.row(aggregate) for s, aggregate in self.sessions.items()}
