"""Which log is cleaned, when, and up to where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.compaction.cleaner import DirtyRange
from kafkalite.compaction.schedule import Candidate, candidate, filthiest, first_dirty_offset

MakeModel = Callable[..., Any]


def four_segments(model: MakeModel, **settings: Any) -> Any:
    """Ten records each, stamped 1,000, 2,000, 3,000, and an active one."""
    log = model(settings=settings)
    for segment in range(4):
        log.now_ms = 1_000 * (segment + 1)
        for _ in range(10):
            log.append([(b"key", b"value")], timestamps=[log.now_ms])
        if segment < 3:
            log.roll()
    return log


def test_all_but_the_active_segment_is_dirty_at_first(model: MakeModel) -> None:
    log = four_segments(model)
    found = candidate(log.log, None, 5_000)
    assert found.dirty == DirtyRange(0, 30)
    assert found.dirty_bytes == sum(s.size_bytes for s in log.log.segments[:3])
    assert (found.clean_bytes, found.ratio, found.is_due) == (0, 1.0, True)


def test_what_was_cleaned_counts_against_what_is_dirty(model: MakeModel) -> None:
    log = four_segments(model, min_cleanable_dirty_ratio=0.5)
    found = candidate(log.log, 20, 5_000)
    assert found.dirty == DirtyRange(20, 30)
    assert found.ratio == pytest.approx(1 / 3)
    assert not found.is_due
    assert candidate(log.log, 10, 5_000).is_due
    log.log.config = four_segments(model, min_cleanable_dirty_ratio=2 / 3).log.config
    assert not candidate(log.log, 10, 5_000).is_due, "more than the ratio, not as much"


def test_a_cleaning_may_have_ended_within_a_segment(model: MakeModel) -> None:
    log = four_segments(model)
    assert candidate(log.log, 15, 5_000).dirty == DirtyRange(15, 30)
    assert candidate(log.log, 30, 5_000) is None
    assert candidate(log.log, 35, 5_000) is None, "only the active segment is left"


def test_a_log_that_does_not_reach_to_where_it_was_cleaned_is_dirty(model: MakeModel) -> None:
    log = four_segments(model).log
    assert first_dirty_offset(log, 41) == 0
    assert first_dirty_offset(log, 40) == 40
    log.increment_log_start_offset(12)
    assert first_dirty_offset(log, 5) == first_dirty_offset(log, None) == 12


def test_nothing_above_the_last_stable_offset_is_cleaned(model: MakeModel) -> None:
    log = four_segments(model)
    log.log._high_watermark = 29
    assert candidate(log.log, None, 5_000).dirty == DirtyRange(0, 20)
    log.log._high_watermark = 30
    assert candidate(log.log, None, 5_000).dirty == DirtyRange(0, 30)


def test_an_open_transaction_holds_the_cleaner_back(model: MakeModel) -> None:
    log = model()
    log.append([(b"a", b"1")])
    log.roll()
    log.append([(b"a", b"2")], producer_id=1, transactional=True)
    log.roll()
    log.append([(b"a", b"3")])
    assert candidate(log.log, None, 5_000).dirty == DirtyRange(0, 1)


def test_young_segments_wait(model: MakeModel) -> None:
    log = four_segments(model, min_compaction_lag_ms=1_000)
    assert candidate(log.log, None, 3_000).dirty == DirtyRange(0, 20)
    assert candidate(log.log, None, 2_999).dirty == DirtyRange(0, 10)
    assert candidate(log.log, None, 1_999) is None


def test_a_log_is_due_once_a_record_has_waited_long_enough(model: MakeModel) -> None:
    log = four_segments(model, max_compaction_lag_ms=500, min_cleanable_dirty_ratio=1.0)
    assert not candidate(log.log, 20, 3_500).is_due
    assert candidate(log.log, 20, 3_501).is_due
    log.log.config = four_segments(model, min_cleanable_dirty_ratio=1.0).log.config
    assert not candidate(log.log, 20, 1 << 50).is_due, "without a lag nothing is late"


def test_a_record_without_a_time_is_never_late(model: MakeModel) -> None:
    log = model(settings={"max_compaction_lag_ms": 1, "min_cleanable_dirty_ratio": 1.0})
    log.append([(b"key", b"value")], timestamps=[-1])
    log.roll()
    assert not candidate(log.log, None, 1 << 50).is_due


def test_the_filthiest_of_those_that_are_due_comes_first(model: MakeModel) -> None:
    log = four_segments(model, min_cleanable_dirty_ratio=0.5).log

    def of(clean: int, dirty: int, *, overdue: bool = False) -> Candidate:
        return Candidate(log, DirtyRange(0, 1), clean, dirty, overdue)

    few, some, many, late = of(9, 1), of(4, 6), of(1, 9), of(8, 2, overdue=True)
    assert filthiest([few, some, many, late]) is many
    assert filthiest([few, late]) is late
    assert filthiest([few]) is filthiest([]) is None
