"""How far a micro-batch reads, and what time it is then."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable

from kafkalite.core.types import TopicPartition
from kafkalite.spark.topology.offsets import Progress, aligned

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_what_is_kept_comes_back() -> None:
    progress = Progress({A: 3, B: 0}, 77, {A: 70, B: 5}, frozenset({B}), {A: 1, B: 0}, {B: 9})
    assert Progress.load(json.loads(json.dumps(progress.dump()))) == progress


def test_an_input_is_idle_once_it_has_had_nothing_for_long() -> None:
    start = Progress({A: 0, B: 0}, 1_000)
    first = start.next({A: 5, B: 5}, {A: 5, B: 5}, 2_000, 5_000, is_last=False)
    assert not first.idle
    second = first.next({A: 6, B: 5}, {A: 6, B: 5}, 7_000, 5_000, is_last=False)
    assert second.idle == {B}
    assert second.since == {A: 7_000, B: 2_000}


def test_an_input_with_records_to_come_is_not_idle() -> None:
    first = Progress({A: 5}, 0, {A: 0})
    assert not first.next({A: 5}, {A: 9}, 60_000, 5_000, is_last=True).idle


def test_the_last_micro_batch_of_a_run_leaves_all_inputs_idle() -> None:
    first = Progress({A: 0, B: 0}, 0)
    last = first.next({A: 5, B: 2}, {A: 5, B: 4}, 10, 5_000, is_last=True)
    assert last.idle == {A}


def test_the_wall_clock_never_goes_back() -> None:
    assert Progress({A: 0}, 100).next({A: 1}, {A: 1}, 50, 5_000, is_last=False).now_ms == 100


def log_of(
    times: dict[TopicPartition, list[int]],
) -> Callable[[int], dict[TopicPartition, int | None]]:
    """The first offset at or after a moment, for partitions whose records are in order."""

    def at_time(moment: int) -> dict[TopicPartition, int | None]:
        found = {tp: bisect_left(of, moment) for tp, of in times.items()}
        return {tp: at if at < len(times[tp]) else None for tp, at in found.items()}

    return at_time


def test_a_limited_micro_batch_reads_all_inputs_to_one_moment() -> None:
    times = {A: list(range(0, 100_000, 10)), B: list(range(0, 100_000, 1_000))}
    ends = {tp: len(of) for tp, of in times.items()}
    start = dict.fromkeys(times, 0)
    rounds = 0
    while start != ends:
        before = start
        start = aligned(start, ends, 1_000, 100_000, log_of(times))
        assert 0 < sum(start[tp] - before[tp] for tp in start) <= 1_000
        read = [times[tp][start[tp] - 1] for tp in start if start[tp]]
        left = [times[tp][start[tp]] for tp in start if start[tp] < ends[tp]]
        assert max(read) <= min(left, default=100_000)
        rounds += 1
    assert rounds < 25


def test_many_records_of_one_moment_are_read_together() -> None:
    times = {A: [5] * 100, B: [5] * 100 + [9] * 3}
    end = aligned({A: 0, B: 0}, {A: 100, B: 103}, 10, 9, log_of(times))
    assert end == {A: 100, B: 100}
