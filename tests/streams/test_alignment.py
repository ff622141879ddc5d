"""Rounds of aligned tasks: nothing is lost, nothing newer than the limit runs, order is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import Columns
from kafkalite.streams.local.alignment import (
    BATCHES_MAX,
    NO_LIMIT,
    SLICE_RECORDS_MAX,
    Inbox,
    Pace,
)

times = st.lists(st.integers(0, 50), max_size=30)


def columns(timestamps: list[int], start: int = 0) -> Columns:
    n = len(timestamps)
    return Columns(
        [None] * n, [f"{start + i}" for i in range(n)], timestamps, range(start, start + n)
    )


@given(st.lists(times, max_size=4), st.integers(0, 50), st.integers(1, 40))
def test_take_gives_the_prefix_up_to_the_limit_and_keeps_the_rest(
    batches: list[list[int]], until: int, records_max: int
) -> None:
    inbox, everything = Inbox(1_000), []
    for batch in batches:
        inbox.put(columns(batch, len(everything)))
        everything += batch
    taken = [t for part in inbox.take(until, records_max) for t in part.timestamps]
    assert taken == everything[: len(taken)]
    assert all(t <= until for t in taken)
    stopped_early = len(taken) < min(records_max, len(everything))
    assert not stopped_early or everything[len(taken)] > until
    rest = [t for part in inbox.take(NO_LIMIT, 10_000) for t in part.timestamps]
    assert taken + rest == everything
    assert inbox.records == 0


@given(st.lists(times.filter(bool), min_size=1, max_size=4), st.integers(1, 40))
def test_the_front_is_the_first_batches_that_make_so_many_records(
    batches: list[list[int]], records: int
) -> None:
    inbox, everything = Inbox(1_000), []
    for batch in batches:
        inbox.put(columns(batch, len(everything)))
        everything += batch
    newest, count = inbox.front(records)
    assert count >= min(records, len(everything))
    assert newest == max(everything[:count])
    taken = [t for part in inbox.take(newest, count) for t in part.timestamps]
    assert taken == everything[:count]
    assert inbox.records == len(everything) - count


def test_a_batch_far_longer_than_a_slice_is_cut() -> None:
    inbox = Inbox(1_000)
    inbox.put(columns(list(range(100))))
    assert inbox.front(10) == (9, 10)
    assert inbox.front(50) == (99, 100)  # the other part is not too long


def test_a_round_up_to_the_slowest_partition_always_makes_progress() -> None:
    fast, slow = Inbox(1_000), Inbox(1_000)
    fast.put(columns([5, 1, 9]))
    slow.put(columns([4, 2]))
    until = min(fast.front(100)[0], slow.front(100)[0])
    assert until == 4
    assert [list(c.timestamps) for c in slow.take(until, 100)] == [[4, 2]]
    assert fast.take(until, 100) == []  # its first record is newer


def test_an_inbox_is_bounded_in_records_and_in_batches() -> None:
    inbox = Inbox(10)
    inbox.put(columns([1] * 9))
    assert not inbox.is_full
    inbox.put(columns([1]))
    assert inbox.is_full
    inbox.take(1, 5)
    assert not inbox.is_low
    inbox.take(1, 1)
    assert inbox.is_low
    inbox = Inbox(1_000_000)
    for _ in range(BATCHES_MAX):
        assert not inbox.is_full
        inbox.put(columns([1]))
    assert inbox.is_full
    inbox.take(1, BATCHES_MAX // 2)
    assert not inbox.is_low
    inbox.take(1, 1)
    assert inbox.is_low


def test_slices_shrink_for_slow_functions_and_grow_for_fast_ones() -> None:
    pace = Pace()
    pace.ran(pace.records, 500)  # 5 ms a record
    assert pace.records == 10
    pace.ran(1, 60_000)
    assert pace.records == 1
    for _ in range(20):
        pace.ran(pace.records, 1)
    assert pace.records == SLICE_RECORDS_MAX
    pace.ran(10, 1)  # too few to tell
    assert pace.records == SLICE_RECORDS_MAX
