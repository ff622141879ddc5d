"""The event loop behind the blocking clients, in a thread of its own.                      [IO]

    a caller's thread                              the loop's thread
    run(work) ── work ───────────────────────────> a task
       │ waits  <── a callback of the user's ──────── the task awaits its result
       │ calls it, in the caller's own thread ────> and goes on
       │ <── the end of the task ───────────────────┘
    its result, or its error

A user's callbacks run where the user waits, so they may call the same client themselves. All
blocking clients of a process share one loop; so two of them can share one `Client`.

Owns   the thread, its loop, and the clients that are started and not closed: they are closed when
       the interpreter exits.
Never  leaves a task behind: an interrupted caller (KeyboardInterrupt) cancels its task, waits for
       its end, and hands a result that it can no longer take to `give_back`.
Fails  with RuntimeError for a call from the loop's own thread, which would wait for itself, and for
       one in a process that was forked after the loop began.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from kafkalite.clients.lifetime import Lifetime

log: Final = logging.getLogger(__name__)

R = TypeVar("R")

INTERRUPTED_SECONDS: Final = 5.0  # how long a cancelled task may take to end
EXIT_SECONDS: Final = 10.0  # how long clients may take to close when the interpreter exits

Work = Callable[[], Coroutine[Any, Any, R]]


def _drop(_: object) -> None:
    """The default `give_back`: drops the result."""


class Call(Generic[R]):
    """One piece of work: a task in the loop, and the thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Work[R]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[R] | None = None
        self._steps: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: the end

    def wait(self, give_back: Callable[[R], None]) -> R:
        """The work's result. In the meantime the user's callbacks are called."""
        try:
            self._loop.call_soon_threadsafe(self._start)
            while (step := self._steps.get()) is not None:
                step()
            return self._result()
        except BaseException:
            if self._task is None or not self._task.done():
                self._cancel()
            self._loop.call_soon_threadsafe(self._return, give_back)
            raise

    def _start(self) -> None:
        context = copy_context()
        context.run(_CALL.set, self)
        self._task = self._loop.create_task(self._work(), context=context)
        self._task.add_done_callback(lambda _: self._steps.put(None))

    def _result(self) -> R:
        assert self._task is not None
        return self._task.result()

    def _cancel(self) -> None:
        """Ends the task, and waits until it has ended."""
        self._loop.call_soon_threadsafe(self._cancel_task)
        try:
            while self._steps.get(timeout=INTERRUPTED_SECONDS) is not None:
                pass  # a callback: whoever would have called it was interrupted
        except Empty:
            log.warning("an interrupted call has not ended after %g s", INTERRUPTED_SECONDS)

    def _cancel_task(self) -> None:
        if self._task is None:  # the caller was interrupted before the work began
            self._steps.put(None)
        else:
            self._task.cancel()

    def _return(self, give_back: Callable[[R], None]) -> None:
        """Hands back a result that the caller was not able to take."""
        task = self._task
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            give_back(task.result())

    async def ask(self, callback: Callable[[], Awaitable[None] | None]) -> None:
        """Has the waiting thread call `callback`, and awaits the result."""
        answer: asyncio.Future[Awaitable[None] | None] = self._loop.create_future()

        def settle(result: Awaitable[None] | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def step() -> None:
            try:
                result = callback()
            except Exception as error:
                self._loop.call_soon_threadsafe(settle, None, error)
            else:
                self._loop.call_soon_threadsafe(settle, result, None)

        self._steps.put(step)
        result = await answer
        if inspect.isawaitable(result):
            await result


_CALL: ContextVar[Call[Any]] = ContextVar("call")


async def in_the_callers_thread(callback: Callable[[], Awaitable[None] | None]) -> None:
    """Calls `callback` in the thread that waits for the current work."""
    await _CALL.get().ask(callback)


class LoopThread:
    """An event loop that runs in a thread of its own: until `close`, or the interpreter exits."""

    def __init__(self, name: str = "kafkalite-clients") -> None:
        self._process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._open: set[Lifetime] = set()  # clients; touched by the loop's thread alone
        self._thread.start()
        atexit.register(self._exit)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Work[R], give_back: Callable[[R], None] = _drop) -> R:
        """Does `work` in the loop while the calling thread waits. Raises what it raises."""
        if self._process_id != os.getpid():
            raise RuntimeError("a blocking client does not outlive a fork; make it in the child")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call from the clients' own event loop waits for itself")
        return Call(self._loop, work).wait(give_back)

    def keep(self, client: Lifetime) -> None:
        """Closes the client at the interpreter's exit if it is still open. Call it in the loop."""
        self._open.add(client)

    def let_go(self, client: Lifetime) -> None:
        """The client is closed. To be called in the loop."""
        self._open.discard(client)

    def close(self) -> None:
        """Closes the clients that are kept, and ends the thread."""
        atexit.unregister(self._exit)
        self._exit()

    async def _close_all(self) -> None:
        closing = [asyncio.ensure_future(client.close()) for client in self._open]
        if not closing:
            return
        _, late = await asyncio.wait(closing, timeout=EXIT_SECONDS)
        for task in late:
            task.cancel()
        for ended in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(ended, Exception):
                log.warning("closing a client at the exit: %s", ended)

    def _exit(self) -> None:
        if self._process_id != os.getpid():
            return
        self.run(self._close_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(INTERRUPTED_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


_lock = threading.Lock()
_shared: LoopThread | None = None


def loop_thread() -> LoopThread:
    """The loop thread of this process, started at the first call."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = LoopThread()
        return _shared


def _forked() -> None:
    """A child has neither its parent's threads nor a lock that one of them held."""
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


os.register_at_fork(after_in_child=_forked)
