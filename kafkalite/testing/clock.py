"""Moments and clocks for a test to set.                                                  [IO]

The monotonic clock of a machine has no epoch, so here it is far from the wall clock: code that
takes one for the other is wrong by SKEW_MS, and its test fails.
"""

from __future__ import annotations

from typing import Final

from kafkalite.core.broker.clock import NS_PER_MS, Clock
from kafkalite.core.types import Now

SKEW_MS: Final = 10**15  # by which the monotonic clock is ahead


def at(ms: int) -> Now:
    """The moment at which the wall clock says `ms`."""
    return Now(wall_ms=ms, monotonic_ms=ms + SKEW_MS, retention_ms=ms)


def wall_of(monotonic_ms: int) -> int:
    """The wall clock's time at the monotonic time `monotonic_ms`."""
    return monotonic_ms - SKEW_MS


class Machine:
    """A machine's two clocks, in ms."""

    def __init__(self, wall_ms: int = 1_000_000) -> None:
        self.wall_ms = wall_ms
        self.monotonic_ms = wall_ms + SKEW_MS

    def passes(self, ms: int) -> None:
        """Lets time pass."""
        self.wall_ms += ms
        self.monotonic_ms += ms

    def clock(self) -> Clock:
        """A broker's clock on this machine."""
        return Clock(lambda: self.wall_ms * NS_PER_MS, lambda: self.monotonic_ms * NS_PER_MS)
