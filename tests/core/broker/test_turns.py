"""Turns of an event loop: each is counted once, and the longest of a block is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kafkalite.core.broker.turns import Turns, turns_of


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def test_each_turn_falls_into_its_bucket_and_waiting_is_no_turn() -> None:
    turns = Turns(clock := Clock())
    for seconds in (0.125, 0.125, 3.0):
        turns.begin()
        clock.work(seconds)
        turns.end()
        clock.work(60)  # nothing is ready
    assert turns.histogram.count == 3
    assert turns.histogram.sum_s == 3.25
    assert turns.histogram.counts[10] == 2


def test_a_watch_sees_its_own_block_alone(run_measured: Callable[..., Any]) -> None:
    clock = Clock()

    async def main(turns: Turns) -> None:
        clock.work(9)  # in the same turn as the block's beginning
        with turns.watch() as outer:
            with turns.watch() as watch:
                clock.work(0.5)
                await asyncio.sleep(0)
                for _ in range(3):
                    clock.work(2)
                clock.work(1)  # one turn of seven seconds, which the block ends
            clock.work(5)
        assert (watch.longest_s, outer.longest_s) == (7, 7)
        clock.work(8)

    run_measured(main, clock)


def test_callbacks_that_are_ready_together_are_one_turn(run_measured: Callable[..., Any]) -> None:
    clock = Clock()

    async def main(turns: Turns) -> None:
        loop = asyncio.get_running_loop()
        with turns.watch() as watch:
            for _ in range(4):
                loop.call_soon(clock.work, 1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert watch.longest_s == 4

    run_measured(main, clock)


def test_a_loop_that_measures_nothing_has_no_turns() -> None:
    async def main() -> None:
        assert turns_of(asyncio.get_running_loop()) is None

    asyncio.run(main())


def test_a_broker_counts_the_turns_of_its_loop(
    run_measured: Callable[..., Any], start: Callable[..., Any]
) -> None:
    async def main(turns: Turns) -> None:
        async with start() as running:
            assert running.broker.metrics.loop_turns is turns.histogram
            before = turns.histogram.count
            await (await running.connect()).create("t")
            assert turns.histogram.count > before

    run_measured(main)
