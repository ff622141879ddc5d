"""The clocks of a broker: the wall clock, the monotonic clock, and the clock of retention.     [IO]

    wall_ms        the machine's clock, epoch ms: stamps, checks of timestamps, and every durable
                   time
    monotonic_ms   passes evenly and has no date: sessions, long polls, deadlines
    retention_ms   the wall clock's time, but it stands still for SETTLE_MS after the clock was
                   set: for all deletions by age

    wall        10:00   10:05   2031 . . . 2031   10:20 . . . . . . 11:20   11:21
    retention   10:00   10:05   10:05  . . . . . . . . . . . . . .  11:20   11:21
                                wrong             set right

The clock counts as set if it has moved by JUMP_MS more or less than the monotonic one since the
last look, so the broker looks often. A suspended machine looks as if its clock had been set.

Owns   the time of retention, and since when it stands still.
Fails  never. A clock that was set is reported to the operator, unless it was set while no
       broker ran.
Source apache/kafka `Time` (milliseconds, hiResClockMs); the standstill is ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kafkalite.core.types import Now

log: Final = logging.getLogger(__name__)

NS_PER_MS: Final = 1_000_000
LOOK_MS: Final = 1_000  # how often a broker looks, at the least
JUMP_MS: Final = 2_000  # more than a leap second, and than a clock is slewed between two looks
# Time daemons compare the clock with others every 1,024 s (ntpd, chrony) to 2,048 s (systemd), and
# ntpd waits another 300 s before it sets it: a wrong time is set right within the hour.
SETTLE_MS: Final = 3_600_000


class Clock:
    """The time by the machine's clocks: `wall_ns`, since the epoch, and `monotonic_ns`."""

    __slots__ = (
        "_held_ms",
        "_held_until_ms",
        "_monotonic_ns",
        "_seen_monotonic_ms",
        "_seen_wall_ms",
        "_wall_ns",
    )

    def __init__(self, wall_ns: Callable[[], int], monotonic_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._seen_wall_ms = self.wall_ms()
        self._seen_monotonic_ms = self.monotonic_ms()
        self._held_ms: int | None = None  # where retention stands still
        self._held_until_ms = 0  # monotonic

    def wall_ms(self) -> int:
        """The machine's clock, epoch ms."""
        return self._wall_ns() // NS_PER_MS

    def monotonic_ms(self) -> int:
        """The monotonic clock, in ms since an unknown moment."""
        return self._monotonic_ns() // NS_PER_MS

    def now(self) -> Now:
        """This moment, by all clocks."""
        wall_ms, monotonic_ms = self.wall_ms(), self.monotonic_ms()
        passed_ms = monotonic_ms - self._seen_monotonic_ms
        jump_ms = wall_ms - self._seen_wall_ms - passed_ms
        if abs(jump_ms) >= JUMP_MS:
            self._hold(jump_ms, wall_ms, monotonic_ms)
        elif self._held_ms is not None and monotonic_ms >= self._held_until_ms:
            log.info("the machine's clock has not been set again: retention goes by it")
            self._held_ms = None
        self._seen_wall_ms, self._seen_monotonic_ms = wall_ms, monotonic_ms
        return Now(wall_ms, monotonic_ms, wall_ms if self._held_ms is None else self._held_ms)

    def _hold(self, jump_ms: int, wall_ms: int, monotonic_ms: int) -> None:
        before_ms = self._seen_wall_ms if self._held_ms is None else self._held_ms
        self._held_ms = min(before_ms, wall_ms)
        self._held_until_ms = monotonic_ms + SETTLE_MS
        log.warning(
            "the machine's clock was set %s by %.3f s: nothing is deleted for its age for %d s",
            "forward" if jump_ms > 0 else "back", abs(jump_ms) / 1_000, SETTLE_MS // 1_000,
        )  # fmt: skip
