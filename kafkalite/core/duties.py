"""A broker's periodic work: each duty at its interval, in slices.                           [P]

A duty's work is a generator that yields after every slice, so that requests are answered between
them. Its interval counts from the end of one run to the start of the next: it never overtakes
itself.

Owns   the time at which each duty is due.
Never  runs one: `due` hands out the slices, and the caller that runs them calls `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Slices = Iterator[Any]  # yields None after a slice, or a future that the next one waits for


@dataclass(frozen=True, slots=True)
class Duty:
    """One duty. `slices` gets the time at which the run begins, monotonic ms."""

    name: str
    interval_ms: int
    slices: Callable[[int], Slices]


class Duties:
    """All duties of a broker."""

    def __init__(self, duties: Iterable[Duty], now_ms: int) -> None:
        self._due_ms = {duty: now_ms + duty.interval_ms for duty in duties}

    def add(self, duty: Duty, now_ms: int) -> None:
        """Takes on one more duty."""
        self._due_ms[duty] = now_ms + duty.interval_ms

    def due(self, now_ms: int) -> list[tuple[Duty, Slices]]:
        """The duties to run now; a duty is not due again until it is `done`."""
        due = [duty for duty, due_ms in self._due_ms.items() if due_ms <= now_ms]
        for duty in due:
            del self._due_ms[duty]
        return [(duty, duty.slices(now_ms)) for duty in due]

    def done(self, duty: Duty, now_ms: int) -> None:
        """A run has ended, well or not."""
        self._due_ms[duty] = now_ms + duty.interval_ms

    def next_ms(self) -> int | None:
        """When something is due next; None while everything runs, or nothing is to do."""
        return min(self._due_ms.values(), default=None)
