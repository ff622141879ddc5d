"""Rows of a table that are held back, one update at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Update:
    """An update of a table. `data` are the bytes of the key, which order updates."""

    key: Any
    data: bytes
    old: Any
    new: Any
    time: int
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def row(self) -> tuple[Any, Any, int]:
        return self.key, self.new, self.time


class Held(ABC):
    """Updates that wait; the time is the highest of those that came."""

    def __init__(self) -> None:
        self.time = -1
        self.waiting: dict[bytes, tuple[int, Update]] = {}  # when each is due

    def take(self, update: Update) -> list[Update]:
        self.time = max(self.time, update.time)
        due, first = self.waiting.get(update.data, (self.due(update), update))
        self.waiting[update.data] = (due, replace(update, old=first.old))
        gone = []
        while self.waiting:
            data = min(self.waiting, key=lambda each: (self.waiting[each][0], each))
            due, latest = self.waiting[data]
            if due > self.time and not self.is_full():
                break
            del self.waiting[data]
            gone.append(latest)
        return [update for update in gone if self.passes(update)]

    @abstractmethod
    def due(self, update: Update) -> int:
        """The stream time at which the update leaves."""

    def is_full(self) -> bool:
        return False

    def passes(self, update: Update) -> bool:
        return True


class Suppress(Held):
    """A key's latest update, `limit` after its first; at most `most` wait."""

    def __init__(self, limit: int, most: int | None = None) -> None:
        super().__init__()
        self.limit, self.most = limit, most

    def due(self, update: Update) -> int:
        return update.time + self.limit

    def is_full(self) -> bool:
        return self.most is not None and len(self.waiting) > self.most


class FinalRows(Held):
    """A window's latest row, once `lag` has passed since its end; no deletions."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self.lag = lag

    def due(self, update: Update) -> int:
        return int(update.key.end) + self.lag

    def passes(self, update: Update) -> bool:
        return update.new is not None
