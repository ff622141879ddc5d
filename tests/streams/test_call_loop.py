"""The loop of async functions: how many calls run, how often they are tried, how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from kafkalite.streams.call_limits import CallLimits
from kafkalite.streams.local.call_loop import CallLoop, RunningCalls, call_with_retries
from kafkalite.streams.local.calls import AsyncCallee, Call, Done

PATIENCE_SECONDS = 20


def callee(function: Callable[..., Any], concurrency: int = 3, **limits: int) -> AsyncCallee:
    return AsyncCallee(
        function, CallLimits(concurrency, limits.pop("timeout_ms", 10_000), **limits)
    )


async def ended(calls: RunningCalls, count: int) -> list[Done]:
    found: list[Done] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            await asyncio.sleep(0.001)
            found += calls.completed()
    return found


def running(called: AsyncCallee) -> RunningCalls:
    return RunningCalls(called, asyncio.get_running_loop().call_soon, lambda: None)


def some(count: int) -> Iterable[Call]:
    return [Call(number, (number,)) for number in range(count)]


class TestCalls:
    def test_no_more_run_at_once_than_may(self) -> None:
        now = most = 0

        async def count(number: int) -> int:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001 * (number % 4))
            now -= 1
            return number

        async def scenario() -> None:
            calls = running(callee(count, concurrency=3))
            calls.submit(list(some(20)))
            calls.submit([Call(20, (20,))])
            found = await ended(calls, 21)
            assert sorted(done.result for done in found) == list(range(21))
            calls.submit([Call(21, (21,))])  # after a rest
            assert [done.number for done in await ended(calls, 1)] == [21]
            assert not calls.has_completed

        asyncio.run(scenario())
        assert most == 3

    def test_calls_that_are_handed_in_as_others_end_run(self) -> None:
        """Whether a runner ends in the same turn or not."""

        async def quick(number: int) -> int:
            return number

        async def scenario() -> None:
            calls = running(callee(quick, concurrency=1))
            for number in range(50):
                calls.submit([Call(number, (number,))])
                for _ in range(number % 5):
                    await asyncio.sleep(0)
            assert len(await ended(calls, 50)) == 50

        asyncio.run(scenario())

    def test_results_of_a_moment_wake_once(self) -> None:
        wakes: list[int] = []

        async def quick(number: int) -> int:
            return number

        async def scenario() -> None:
            loop = asyncio.get_running_loop()
            calls = RunningCalls(callee(quick, 50), loop.call_soon, lambda: wakes.append(1))
            calls.submit(list(some(50)))
            while not wakes:
                await asyncio.sleep(0)
            assert len(calls.completed()) == 50

        asyncio.run(scenario())
        assert len(wakes) == 1

    def test_cancelled_calls_clean_up_and_are_never_done(self) -> None:
        cleaned: list[int] = []

        async def stay(number: int) -> None:
            try:
                await asyncio.sleep(PATIENCE_SECONDS)
            finally:
                cleaned.append(number)

        async def scenario() -> None:
            calls = running(callee(stay, concurrency=2))
            calls.submit(list(some(3)))
            await asyncio.sleep(0.001)
            calls.cancel()
            calls.submit(list(some(1)))
            await asyncio.sleep(0.001)
            assert not calls.has_completed
            assert len(asyncio.all_tasks()) == 1

        asyncio.run(scenario())
        assert sorted(cleaned) == [0, 1]


def done_with(function: Callable[..., Any], **limits: int) -> tuple[Done, list[float]]:
    """How a call of 7 ends, and the pauses between its tries."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    return asyncio.run(call_with_retries(callee(function, **limits), Call(7, (7,)), pause)), pauses


class TestTries:
    def test_a_call_is_tried_until_it_succeeds(self) -> None:
        tries: list[int] = []

        async def third_time(number: int) -> int:
            tries.append(number)
            if len(tries) < 3:
                raise ConnectionError("not yet")
            return number

        done, pauses = done_with(third_time, retries=5, backoff_ms=100)
        assert (done.result, done.error) == (7, None)
        assert pauses == [0.1, 0.2]

    def test_the_last_error_is_the_calls(self) -> None:
        tries: list[int] = []

        async def never(number: int) -> None:
            tries.append(number)
            raise ValueError(f"try {len(tries)}")

        done, pauses = done_with(never, retries=2)
        assert str(done.error) == "try 3"
        assert len(pauses) == 2

    @pytest.mark.parametrize(("retries", "words"), [(0, ""), (2, ", tried 3 times")])
    def test_a_try_that_takes_too_long_has_failed(self, retries: int, words: str) -> None:
        async def stay(number: int) -> None:
            await asyncio.sleep(PATIENCE_SECONDS)

        done, _ = done_with(stay, retries=retries, timeout_ms=5)
        assert isinstance(done.error, TimeoutError)
        assert str(done.error) == f"no result within 5ms{words}"

    def test_a_timeout_of_the_functions_own_is_an_error_like_others(self) -> None:
        async def own(number: int) -> None:
            raise TimeoutError("the server's")

        assert str(done_with(own)[0].error) == "the server's"

    def test_a_function_that_cancels_itself_has_failed(self) -> None:
        async def cancelled(number: int) -> None:
            raise asyncio.CancelledError

        assert str(done_with(cancelled)[0].error) == "the function was cancelled"

    def test_only_what_can_be_awaited_is_a_result(self) -> None:
        error = done_with(lambda number: number)[0].error
        assert str(error) == "the function returned int, which cannot be awaited"

    def test_an_exit_ends_no_loop(self) -> None:
        async def leave(number: int) -> None:
            raise SystemExit(3)

        done, pauses = done_with(leave, retries=3)
        assert isinstance(done.error, SystemExit)
        assert not pauses


class TestThread:
    def test_calls_run_in_a_loop_of_their_own_until_it_is_closed(self) -> None:
        threads: set[str] = set()
        cleaned: list[int] = []
        has_begun = threading.Event()

        async def name(number: int) -> Awaitable[None]:
            threads.add(threading.current_thread().name)
            if number:
                has_begun.set()
            try:
                return await asyncio.sleep(PATIENCE_SECONDS if number else 0)
            finally:
                cleaned.append(number)

        made: list[threading.Thread] = []

        def spawn(run: Callable[[], None]) -> None:
            made.append(threading.Thread(target=run, name="calls", daemon=True))
            made[-1].start()

        async def scenario() -> None:
            woken = threading.Event()
            loop = CallLoop(spawn, woken.set)
            await loop.close()  # nothing was called: there is no thread
            assert not made
            one, other = loop.open(callee(name)), loop.open(callee(name))
            one.submit([Call(0, (0,))])
            assert await asyncio.to_thread(woken.wait, PATIENCE_SECONDS)
            assert [done.number for done in one.completed()] == [0]
            other.submit([Call(1, (1,))])
            assert await asyncio.to_thread(has_begun.wait, PATIENCE_SECONDS)
            await loop.close()
            made[0].join(PATIENCE_SECONDS)
            assert not made[0].is_alive()
            other.submit([Call(2, (2,))])  # after the end: nobody hears it
            other.cancel()

        asyncio.run(scenario())
        assert threads == {"calls"}
        assert len(made) == 1
        assert cleaned == [0, 1]
