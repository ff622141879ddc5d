"""Windows over event time: which ones a timestamp falls into, and when they close.         [P]

    tumbling("1m")          |----|----|----|          each record in one window
    hopping("1m", "30s")    |----|----|----|          each record in size / advance windows
                              |----|----|----|
    session("30s")          |--|     |--------|       one for records at most a gap apart
    sliding("1m")           |----|                    one for each set of records that a window
                               |----|                 of that width can hold at once
    unlimited(start)           |---------------...    one for all records from a time on

A tumbling or hopping window [start, start + size) starts at a multiple of the advance, never below
0. It closes when stream time, the newest timestamp so far, reaches its end plus the grace.

Sessions and sliding windows [start, end] hold both ends. A session closes when stream time has
passed its end, the gap and the grace; a sliding window when it has passed its end and the grace.

Source Kafka Streams' TimeWindows, SessionWindows, SlidingWindows, UnlimitedWindows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from kafkalite.errors import TopologyError
from kafkalite.streams.durations import Duration, not_negative, positive, spell

END_OF_TIME: Final = (1 << 63) - 1  # in epoch ms; no record is newer


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Tumbling windows (`advance_ms == size_ms`) or hopping ones."""

    size_ms: int
    advance_ms: int
    grace_ms: int

    @property
    def key_size_ms(self) -> int | None:
        """How long a window is, where all are alike: its key then says only where it starts."""
        return self.size_ms

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

    def shown_from(self, newest: int) -> int:
        """The first start of windows whose rows a join finds, given the newest timestamp."""
        return newest // self.advance_ms * self.advance_ms - self.size_ms - self.grace_ms + 1

    @property
    def lag_ms(self) -> int:
        """How far stream time is behind a window's end when it closes the window."""
        return self.grace_ms

    def __str__(self) -> str:
        """As a user would write it."""
        grace = f", grace={spell(self.grace_ms)}" if self.grace_ms else ""
        if self.is_tumbling:
            return f"tumbling({spell(self.size_ms)}{grace})"
        return f"hopping({spell(self.size_ms)}, {spell(self.advance_ms)}{grace})"


@dataclass(frozen=True, slots=True)
class SpanWindow:
    """Windows whose bounds follow from the records of a key."""

    length_ms: int
    grace_ms: int

    word: ClassVar[str]
    is_tumbling: ClassVar[bool] = False

    @property
    def held_ms(self) -> int:
        """A window is closed once stream time is more than this behind its end."""
        return self.grace_ms

    @property
    def lag_ms(self) -> int:
        """How far stream time is behind a window's end when it closes the window."""
        return self.held_ms + 1

    def shown_from(self, newest: int) -> int:
        """The first start of windows whose rows a join finds."""
        return 0

    @property
    def key_size_ms(self) -> int | None:
        """How long a window is, where all are alike: its key then says only where it starts."""
        return self.length_ms

    def __str__(self) -> str:
        """As a user would write it."""
        grace = f", grace={spell(self.grace_ms)}" if self.grace_ms else ""
        return f"{self.word}({spell(self.length_ms)}{grace})"


@dataclass(frozen=True, slots=True)
class SessionWindow(SpanWindow):
    """Sessions: `length_ms` is the gap."""

    word = "session"

    def shown_from(self, newest: int) -> int:
        """The first end of sessions whose rows a join finds, given the end of the newest one."""
        return newest - self.held_ms + 1

    @property
    def held_ms(self) -> int:
        """A record within the gap may still come."""
        return self.length_ms + self.grace_ms

    @property
    def key_size_ms(self) -> int | None:
        """Each is as long as its records make it."""
        return None


@dataclass(frozen=True, slots=True)
class SlidingWindow(SpanWindow):
    """Sliding windows: `length_ms` is the difference of the first and the last timestamp."""

    word = "sliding"

    def shown_from(self, newest: int) -> int:
        """The first start of windows whose rows a join finds, given that of the newest one."""
        return newest - 2 * self.length_ms - self.grace_ms + 1


@dataclass(frozen=True, slots=True)
class UnlimitedWindow(SpanWindow):
    """One window for each key, which begins at `start_ms` and never ends."""

    start_ms: int

    word = "unlimited"

    def __str__(self) -> str:
        """As a user would write it."""
        return f"unlimited({self.start_ms or ''})"


Window = TimeWindow | SpanWindow


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


def session(gap: Duration, grace: Duration = 0) -> SessionWindow:
    """Windows of records that are at most `gap` apart; a record between two makes them one."""
    return SessionWindow(positive(gap, "session: gap"), not_negative(grace, "session: grace"))


def sliding(difference: Duration, grace: Duration = 0) -> SlidingWindow:
    """Windows of records that are at most `difference` apart, one for each such set."""
    difference_ms = positive(difference, "sliding: difference")
    return SlidingWindow(difference_ms, not_negative(grace, "sliding: grace"))


def unlimited(start: int = 0) -> UnlimitedWindow:
    """One window without an end for the records from `start`, in epoch ms. It never closes."""
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < END_OF_TIME:
        raise TopologyError(f"unlimited: start: expected epoch milliseconds, got {start!r}")
    return UnlimitedWindow(END_OF_TIME - start, 0, start)
