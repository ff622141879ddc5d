"""Turns of an event loop: the longest of a block is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kafkalite.testing.turns import Turns


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_longest_turn_is_found_and_waiting_is_no_turn() -> None:
    turns = Turns(clock := Clock())
    with turns.watch() as watch:
        for seconds in (0.125, 3.0, 0.125):
            turns.end()
            clock.work(60)  # nothing is ready
            turns.begin()
            clock.work(seconds)
    assert watch.longest_s == 3


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
