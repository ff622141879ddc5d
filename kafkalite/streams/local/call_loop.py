"""Calls of async functions, run: an event loop in a thread of its own.                     [IO]

    task thread                          the calls' thread
    submit  ── call_soon_threadsafe ───> queue, at most `concurrency` at once
                                          │ try, time limit, pause, next try
    completed <── a deque ──────────────── done
    worker's loop <── wake, once for all that is done within a moment

The function runs in the same loop for every record of every task, so that clients which belong to a
loop (an HTTP session, a pool of connections) can be made once, in the function, and be shared.

Owns   the thread and its loop, from the first call to `close`; the queues of calls.
Never  lets more than `concurrency` calls of one operator of a task run at once.
Fails  with what the function raised at its last try, in `Done`. A function that blocks its thread
       blocks all calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kafkalite.streams.durations import spell
from kafkalite.streams.local.calls import AsyncCallee, Call, CallTimeout, Done
from kafkalite.streams.local.task_thread import CLOSE_SECONDS_MAX, Spawn

GATHER_SECONDS: Final = 0.001  # results of so long come back together

Post = Callable[[Callable[[], None]], object]  # has a callback run in the loop
Sleep = Callable[[float], Awaitable[None]]


async def call_with_retries(callee: AsyncCallee, call: Call, sleep: Sleep = asyncio.sleep) -> Done:
    """Tries until a try succeeds or none is left."""
    limits, tries = callee.limits, 0
    while True:
        tries += 1
        try:
            return Done(call.number, await _one_try(callee, call, tries))
        except Exception as error:
            if tries > limits.retries:
                return Done(call.number, error=error)
        except (KeyboardInterrupt, SystemExit) as error:  # not for the loop: the task raises it
            return Done(call.number, error=error)
        await sleep(limits.pause_ms(tries) / 1000)


async def _one_try(callee: AsyncCallee, call: Call, tries: int) -> Any:
    timeout_ms = callee.limits.timeout_ms
    limit = asyncio.timeout(timeout_ms / 1000)
    try:
        async with limit:
            made = callee.call(*call.arguments)
            if not inspect.isawaitable(made):
                what = type(made).__name__
                raise TypeError(f"the function returned {what}, which cannot be awaited")
            return await made
    except TimeoutError as error:
        if limit.expired():
            raise CallTimeout(spell(timeout_ms), tries) from error
        raise
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise RuntimeError("the function was cancelled") from error


def is_cancelled() -> bool:
    """Whether we have cancelled the call that asks, and it was not the function's own doing."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class RunningCalls:
    """The calls of one operator of one task. `post` reaches the loop from any thread."""

    def __init__(self, callee: AsyncCallee, post: Post, wake: Callable[[], None]) -> None:
        self._callee = callee
        self._post = post
        self._wake = wake
        self._waiting: deque[Call] = deque()  # this and the next two in the loop's thread alone
        self._runners: set[asyncio.Task[None]] = set()  # each does one call after the other
        self._is_gathering = False
        self._is_over = False
        self._done: deque[Done] = deque()  # appended there, taken in the task's thread

    def submit(self, calls: Sequence[Call]) -> None:
        """Hands calls to the loop."""
        self._post(lambda: self._take(calls))

    def completed(self) -> Sequence[Done]:
        """The finished calls so far."""
        return [self._done.popleft() for _ in range(len(self._done))]

    @property
    def has_completed(self) -> bool:
        """Whether something is."""
        return bool(self._done)

    def cancel(self) -> None:
        """Ends everything, at the loop's next turn."""
        self._is_over = True
        self._post(self._cancel)

    def _take(self, calls: Sequence[Call]) -> None:
        if self._is_over:
            return
        self._waiting += calls
        room = self._callee.limits.concurrency - len(self._runners)
        for _ in range(min(room, len(self._waiting))):
            self._runners.add(asyncio.ensure_future(self._run()))

    async def _run(self) -> None:
        """Does calls until none waits; from then on, without a turn between, there is room."""
        while self._waiting:
            done = await call_with_retries(self._callee, self._waiting.popleft())
            self._done.append(done)
            if not self._is_gathering:
                self._is_gathering = True
                asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)
        me = asyncio.current_task()
        assert me is not None
        self._runners.discard(me)

    def _tell(self) -> None:
        self._is_gathering = False
        if not self._is_over:
            self._wake()

    def _cancel(self) -> None:
        self._waiting.clear()
        for runner in self._runners:
            runner.cancel()


class CallLoop:
    """The thread of a worker's calls. `wake` is called there when results have come."""

    def __init__(self, spawn: Spawn, wake: Callable[[], None]) -> None:
        self._spawn = spawn
        self._wake = wake
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, callee: AsyncCallee) -> RunningCalls:
        """The calls of one operator of a task. The first one starts the thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._spawn(self._run)
        return RunningCalls(callee, self._post, self._wake)

    def _post(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    async def close(self) -> None:
        """Cancels all calls, and ends the thread; a function that does not end is left behind."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        ended = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_cancel_all(), loop))
        await asyncio.wait([ended], timeout=CLOSE_SECONDS_MAX)
        loop.call_soon_threadsafe(loop.stop)


async def _cancel_all() -> None:
    """Lets functions clean up behind themselves: their `finally` runs, async generators close."""
    me = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not me]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSE_SECONDS_MAX / 2)
    await asyncio.get_running_loop().shutdown_asyncgens()


def run_to_the_end(callee: AsyncCallee, calls: Sequence[Call]) -> list[Done]:
    """All calls on the loop that blocking clients share, in order; pauses take no time."""
    from kafkalite.clients.sync.loop_thread import loop_thread

    async def no_time(seconds: float) -> None:
        await asyncio.sleep(0)

    async def run() -> list[Done]:
        room = asyncio.Semaphore(callee.limits.concurrency)

        async def one(call: Call) -> Done:
            async with room:
                return await call_with_retries(callee, call, no_time)

        return list(await asyncio.gather(*map(one, calls)))

    return loop_thread().run(run)
