"""Windows over event time: which ones a timestamp falls into, and when they close.         [P]

    tumbling("1m")          |----|----|----|          each record in one window
    hopping("1m", "30s")    |----|----|----|          each record in size / advance windows
                              |----|----|----|

A window [start, start + size) starts at a multiple of the advance, never below 0. It closes when
stream time, the newest timestamp so far, reaches its end plus the grace.

Source Kafka Streams' TimeWindows.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkalite.errors import TopologyError
from kafkalite.streams.durations import Duration, not_negative, positive, spell


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Tumbling windows (`advance_ms == size_ms`) or hopping ones."""

    size_ms: int
    advance_ms: int
    grace_ms: int

    @property
    def is_tumbling(self) -> bool:
        """Whether every timestamp falls into exactly one window."""
        return self.size_ms == self.advance_ms

    def first_start(self, timestamp: int) -> int:
        """The start of the earliest window that `timestamp` falls into."""
        return (
            max(0, timestamp - self.size_ms + self.advance_ms)
            // self.advance_ms
            * (self.advance_ms)
        )

    def starts(self, timestamp: int) -> range:
        """The starts of all windows that `timestamp` falls into, ascending."""
        return range(self.first_start(timestamp), timestamp + 1, self.advance_ms)

    def close_time(self, start: int) -> int:
        """The stream time at which the window that starts at `start` takes no more records."""
        return start + self.size_ms + self.grace_ms

    def __str__(self) -> str:
        """As a user would write it."""
        grace = f", grace={spell(self.grace_ms)}" if self.grace_ms else ""
        if self.is_tumbling:
            return f"tumbling({spell(self.size_ms)}{grace})"
        return f"hopping({spell(self.size_ms)}, {spell(self.advance_ms)}{grace})"


def tumbling(size: Duration, grace: Duration = 0) -> TimeWindow:
    """Windows of `size`, one after the other. Records up to `grace` behind are still counted."""
    size_ms = positive(size, "tumbling: size")
    return TimeWindow(size_ms, size_ms, not_negative(grace, "tumbling: grace"))


def hopping(size: Duration, advance: Duration, grace: Duration = 0) -> TimeWindow:
    """Windows of `size` that start every `advance`; they overlap where advance is smaller."""
    size_ms = positive(size, "hopping: size")
    advance_ms = positive(advance, "hopping: advance")
    if advance_ms > size_ms:
        raise TopologyError(
            f"hopping: advance {advance!r} is longer than size {size!r}; records between two "
            "windows would be lost"
        )
    return TimeWindow(size_ms, advance_ms, not_negative(grace, "hopping: grace"))
