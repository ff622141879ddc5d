"""Chooses the log to compact next, and the offset up to which.                            [D]

    [ clean                ][ dirty, cleanable       ][ too young     ][ active segment ]
    log_start_offset        first_dirty_offset        end_offset

The dirty part begins where the last cleaning ended (cleaner-offset-checkpoint). It is cleanable up
to the active segment, the last stable offset, or the first segment with a record younger than
min.compaction.lag.ms, whichever comes first. A log is due if its dirty bytes exceed
min.cleanable.dirty.ratio of the bytes that a cleaning would read, or if its oldest dirty record is
older than max.compaction.lag.ms. The log with the largest ratio comes first.

Owns   nothing.
Fails  with OSError or StorageError if a log cannot be read.
Source KIP-58 (min lag), KIP-354 (max lag); apache/kafka LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kafkalite.compaction.cleaner import DirtyRange
from kafkalite.core.config.keys import LONG_MAX
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.segment import Segment


@dataclass(frozen=True, slots=True)
class Candidate:
    """A log that has a dirty part to clean."""

    log: PartitionLog
    dirty: DirtyRange
    clean_bytes: int
    dirty_bytes: int  # of what is cleanable
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The share of what a cleaning reads that it has not seen before."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        """Whether it is worth a cleaning."""
        return self.is_overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio


def candidate(log: PartitionLog, cleaned_offset: int | None, now_ms: int) -> Candidate | None:
    """The dirty range of a compacted log; None if there is none. `cleaned_offset` is the end
    of the last cleaning, None before the first."""
    first = first_dirty_offset(log, cleaned_offset)
    segments = log.segments
    closed = [(one, after.base_offset) for one, after in pairwise(segments)]
    dirty = [(segment, end) for segment, end in closed if end > first]
    end_offset = _end_offset(log, dirty, now_ms)
    dirty_bytes = sum(segment.size_bytes for segment, end in dirty if end <= end_offset)
    if not dirty_bytes:
        return None
    clean_bytes = sum(segment.size_bytes for segment, _ in closed if segment.base_offset < first)
    is_overdue = _is_overdue(log, [segment for segment, _ in dirty], now_ms)
    return Candidate(log, DirtyRange(first, end_offset), clean_bytes, dirty_bytes, is_overdue)


def first_dirty_offset(log: PartitionLog, cleaned_offset: int | None) -> int:
    """The start of the dirty part; the log's start if the checkpoint is outside the log."""
    if cleaned_offset is None or not log.log_start_offset <= cleaned_offset <= log.log_end_offset:
        return log.log_start_offset
    return cleaned_offset


def _end_offset(log: PartitionLog, dirty: Sequence[tuple[Segment, int]], now_ms: int) -> int:
    """Base offset of the first segment that is not to be cleaned."""
    lag_ms, stable = log.config.min_compaction_lag_ms, log.last_stable_offset
    for segment, end in dirty:
        is_young = lag_ms > 0 and segment.retention_timestamp() > now_ms - lag_ms
        if is_young or end > stable:
            return segment.base_offset
    return log.segments[-1].base_offset


def _is_overdue(log: PartitionLog, dirty: Sequence[Segment], now_ms: int) -> bool:
    """Whether a dirty record is older than max.compaction.lag.ms, by its segment's first batch."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == LONG_MAX:
        return False
    return any(0 < segment.first_timestamp < now_ms - lag_ms for segment in dirty)


def filthiest(candidates: Sequence[Candidate]) -> Candidate | None:
    """The due log with the largest dirty ratio."""
    due = [candidate for candidate in candidates if candidate.is_due]
    return max(due, key=lambda candidate: candidate.ratio, default=None)
