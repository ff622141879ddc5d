"""The time, as a broker goes by it: the wall clock's, which may be set, but never backwards.  [IO]

    set forward   the broker goes along at once
    set back      the broker's time goes on at half the pace until the wall clock has caught up

So what waits until a time waits no longer than twice as long as was meant, whatever becomes of the
machine's clock: a fetch its max_wait_ms, a member its session. Kafka takes a second clock for that.

Owns   the time that was told last.
Source apache/kafka `Time.hiResClockMs`.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns

NS_PER_MS = 1_000_000


class Clock:
    """`clock()` is the time, epoch ms."""

    __slots__ = ("_steady_ns", "_told_ns")

    def __init__(self) -> None:
        self._told_ns, self._steady_ns = time_ns(), monotonic_ns()

    def __call__(self) -> int:
        """The time now."""
        steady_ns = monotonic_ns()
        at_half_pace_ns = self._told_ns + (steady_ns - self._steady_ns) // 2
        self._told_ns, self._steady_ns = max(time_ns(), at_half_pace_ns), steady_ns
        return self._told_ns // NS_PER_MS
