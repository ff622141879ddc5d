"""When a worker commits next.                                                                [P]

    records since the last commit      an interval after the last commit that wrote something
    none                               an interval after the last look for changes

So a record that comes after a quiet time is committed at once, and a busy worker commits once an
interval.

Owns   the times of the last commits.
Never  reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CommitTimes:
    """The commits of one membership, from `began` on. Times in seconds of one monotonic clock."""

    interval_seconds: float
    began: float
    _looked_at: float = field(init=False)
    _wrote_at: float = field(init=False)
    _has_records: bool = False

    def __post_init__(self) -> None:
        self.put_off(self.began)

    def processed(self, records: int) -> None:
        """Records were processed, which the next commit covers."""
        self._has_records = self._has_records or records > 0

    def committed(self, now: float, *, wrote: bool) -> None:
        """A commit went through; without `wrote` there was nothing to commit."""
        self._has_records = False
        self._looked_at = now
        if wrote:
            self._wrote_at = now

    def put_off(self, now: float) -> None:
        """No commit is possible at the moment: an interval later it may be."""
        self._looked_at = self._wrote_at = now

    def due_in(self, now: float) -> float:
        """In how many seconds a commit is due; 0 or less: now."""
        last = self._wrote_at if self._has_records else self._looked_at
        return last + self.interval_seconds - now

    def wait_ms(self, now: float, longest_ms: float) -> float:
        """How long the worker may wait for records: no longer than to a commit of some."""
        if not self._has_records:
            return longest_ms
        return max(0.0, min(longest_ms, self.due_in(now) * 1000))
