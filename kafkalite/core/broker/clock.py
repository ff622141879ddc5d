"""The time, as a broker goes by it: the wall clock's, which may be set, but never backwards.  [IO]

    set forward   the broker goes along at once
    set back      the broker's time goes on at half the pace until the wall clock has caught up

So what waits until a time waits about twice as long as was meant at the most, whatever becomes of
the machine's clock: a fetch its max_wait_ms, a member its session. Kafka has a second clock for it.

Owns   the time that was told last.
Source apache/kafka `Time.hiResClockMs`.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns

NS_PER_MS = 1_000_000


class Clock:
    """`clock()` is the time, epoch ms. To be asked now and then: while the wall clock is behind,
    only what passes between two looks is seen to pass."""

    __slots__ = ("_behind_ns", "_steady_ns", "_told_ns")

    def __init__(self) -> None:
        self._told_ns = time_ns()
        self._behind_ns = -1  # what was told at the last look, if the wall clock was behind then
        self._steady_ns = 0  # when that was

    def __call__(self) -> int:
        """The time now."""
        wall_ns = time_ns()
        if wall_ns >= self._told_ns:
            self._told_ns = wall_ns
            return wall_ns // NS_PER_MS
        steady_ns = monotonic_ns()
        if self._told_ns == self._behind_ns:
            self._told_ns += (steady_ns - self._steady_ns) // 2
        self._behind_ns, self._steady_ns = self._told_ns, steady_ns
        return self._told_ns // NS_PER_MS
