"""The task thread: calls in order, in one thread, and a word about the one that does not end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.local import task_thread
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.task_thread import TaskThread


def spawn(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()


def started(clock: Callable[[], float] = lambda: 0.0) -> TaskThread:
    thread = TaskThread(spawn, clock)
    thread.start()
    return thread


def test_calls_run_in_their_order_in_one_thread_that_is_not_the_loops() -> None:
    async def scenario() -> None:
        thread = started()
        calls: list[Any] = []
        futures = [
            thread.submit(lambda n=n: calls.append((n, threading.get_ident())))  # type: ignore[misc]
            for n in range(50)
        ]
        await asyncio.gather(*futures)
        await thread.close()
        assert [n for n, _ in calls] == list(range(50))
        (ident,) = {ident for _, ident in calls}
        assert ident != threading.get_ident()

    asyncio.run(scenario())


def test_a_short_call_is_over_without_a_turn_of_the_loop() -> None:
    async def scenario() -> None:
        thread = started()
        short = thread.submit(threading.get_ident, wait_seconds=60)
        assert short.result() != threading.get_ident()
        failing = thread.submit(lambda: int("x"), wait_seconds=60)
        assert isinstance(failing.exception(), ValueError)
        await thread.close()

    asyncio.run(scenario())


def test_a_call_that_takes_longer_is_not_waited_for_in_place() -> None:
    goes_on = threading.Event()

    async def scenario() -> None:
        thread = started()
        long = thread.submit(lambda: goes_on.wait(60), wait_seconds=0.001)
        assert not long.done()
        goes_on.set()
        assert await long
        await thread.close()

    asyncio.run(scenario())


def test_a_call_that_ends_when_the_wait_does_is_heard_of() -> None:
    async def scenario() -> None:
        thread = started()
        for number in range(2_000):
            ended = thread.submit(lambda n=number: n, wait_seconds=1e-6)  # type: ignore[misc]
            async with asyncio.timeout(60):
                assert await ended == number
        await thread.close()

    asyncio.run(scenario())


def test_what_a_call_raises_comes_out_of_its_future_and_the_next_one_runs() -> None:
    async def scenario() -> None:
        thread = started()
        failing = thread.submit(lambda: int("x"))
        fine = thread.submit(lambda: int("7"))
        with pytest.raises(ValueError, match="invalid literal"):
            await failing
        assert await fine == 7
        await thread.close()

    asyncio.run(scenario())


def test_the_loop_goes_on_while_a_function_blocks_and_the_record_is_named() -> None:
    goes_on, blocks = threading.Event(), threading.Event()

    def slow(value: str) -> str:
        if value == "three":
            blocks.set()
            goes_on.wait()
        return value

    app = Streams("app", key=string(), value=string())
    app.stream("in").map(slow, name="crawl").to("out")
    (sub,) = compile_topology(app.plan())
    task = Task(sub, 2, MemoryRegistry())
    words = [b"one", b"two", b"three", b"four"]
    task.enqueue("in", Columns(words, words, [1, 2, 3, 4], range(10, 14)))
    now = 100.0

    async def scenario() -> None:
        nonlocal now
        thread = started(lambda: now)
        assert thread.where() == "nothing"
        running = thread.submit(lambda: task.process(10, 0))
        while not blocks.is_set():
            await asyncio.sleep(0)
        now += 7
        assert thread.busy_seconds == 7
        where = thread.where()
        assert where.startswith("'crawl': topic 'in', partition 2, offset 12 (")
        assert "test_task_thread.py" in where
        goes_on.set()
        assert await running == 4
        assert thread.busy_seconds == 0
        await thread.close()

    asyncio.run(scenario())


def test_whoever_no_longer_waits_stops_nobody() -> None:
    async def scenario() -> None:
        thread = started()
        goes_on = threading.Event()
        waiting = thread.submit(goes_on.wait)
        waiting.cancel()
        goes_on.set()
        assert await thread.submit(lambda: "next") == "next"
        await thread.close()

    asyncio.run(scenario())


def test_a_close_waits_for_the_calls_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_thread, "CLOSE_SECONDS_MAX", 0.01)

    async def scenario() -> None:
        for is_stuck in (False, True):
            thread, calls = started(), list[str]()
            goes_on = threading.Event()
            if is_stuck:
                thread.submit(goes_on.wait)
            else:
                monkeypatch.setattr(task_thread, "CLOSE_SECONDS_MAX", 60)
            thread.submit(lambda calls=calls: calls.append("closed"))  # type: ignore[misc]
            await thread.close()
            assert calls == ([] if is_stuck else ["closed"])
            goes_on.set()
            monkeypatch.setattr(task_thread, "CLOSE_SECONDS_MAX", 0.01)

    asyncio.run(scenario())
