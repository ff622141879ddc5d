"""Rounds of aligned tasks: nothing is lost, nothing newer than the limit runs, order is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import Columns
from kafkalite.streams.local.alignment import NO_LIMIT, Inbox, merge_by_time
from kafkalite.streams.local.batch import Output

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
    inbox, everything = Inbox(), []
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


def test_a_round_up_to_the_slowest_partition_always_makes_progress() -> None:
    fast, slow = Inbox(), Inbox()
    fast.put(columns([5, 1, 9]))
    slow.put(columns([4, 2]))
    until = min(fast.newest, slow.newest)
    assert until == 4
    assert [list(c.timestamps) for c in slow.take(until, 100)] == [[4, 2]]
    assert fast.take(until, 100) == []  # its first record is newer


@given(st.lists(times, min_size=1, max_size=4))
def test_merging_is_a_stable_sort_by_timestamp(batches: list[list[int]]) -> None:
    parts, start = [], 0
    for batch in batches:
        parts.append(columns(batch, start))
        start += len(batch)
    merged = merge_by_time("t", [Output("t", part, None) for part in parts]).columns
    pairs = [
        (t, int(v)) for part in parts for t, v in zip(part.timestamps, part.values, strict=True)
    ]
    got = [(t, int(v)) for t, v in zip(merged.timestamps, merged.values, strict=True)]
    assert got == sorted(pairs)
