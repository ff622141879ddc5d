"""The thread in which tasks run: user functions, serdes and state, one call after the other. [IO]

The worker's event loop stays free meanwhile: heartbeats go out and the group rebalances, however
long a user function takes. Calls run in the order in which they are handed in, always in the same
thread.

    loop      submit ──> a future ... heartbeats, fetches, rebalances ... its result
    thread             call

Reads of stores go between the calls (reads.py).

The loop may wait for a call in place, for a moment: a short call is over then without a turn of the
loop, and the two threads do not compete for the GIL.

A C function that does not release the GIL stops the loop, too: such a call must be shorter than the
group's session.

Owns   the thread, from `start` to `close`.
Never  runs two calls at a time.
Fails  with what the call raises, in its future. `close` waits a few seconds at most for a call
       that never ends: the thread is a daemon.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, TypeVar

from kafkalite.streams.local.failures import Failures, attempt
from kafkalite.streams.local.reads import Reads

R = TypeVar("R")

Spawn = Callable[[Callable[[], None]], None]  # starts a thread, as the composition root does it
OURS: Final = "kafkalite."
CLOSE_SECONDS_MAX: Final = 5.0


class Wake:
    """In the queue of calls: there is a read."""


WAKE: Final = Wake()


@dataclass(slots=True, eq=False)
class Handed:
    """A call that the thread is to run, and its end."""

    call: Callable[[], Any]
    future: asyncio.Future[Any]
    is_awaited: bool = False  # in place: the loop looks into `end`, and needs no callback
    end: SimpleQueue[tuple[Any, BaseException | None]] = field(default_factory=SimpleQueue)

    def await_in_place(self, seconds: float) -> None:
        """Blocks the loop until the call has ended, at most so long."""
        try:
            _settle(self.future, *self.end.get(timeout=seconds))
        except Empty:
            self.is_awaited = False
            if not self.end.empty():  # the call ended before the thread could see the flag
                _settle(self.future, *self.end.get())


class TaskThread:
    """Runs calls for the event loop in which it is started."""

    def __init__(self, spawn: Spawn, clock: Callable[[], float]) -> None:
        self._spawn = spawn
        self._clock = clock
        self._calls: SimpleQueue[Handed | Wake | None] = SimpleQueue()
        self._is_asleep = False  # in the lobby
        self.reads = Reads(clock, lambda: self._hand(WAKE))
        self._busy_since: float | None = None
        self._thread_id = 0
        self._is_running = False

    def start(self) -> None:
        """Starts the thread."""
        self._loop = asyncio.get_running_loop()
        self._is_running = True
        self._spawn(self._run)

    async def close(self) -> None:
        """Ends the thread after the calls that were handed in, and waits for that, but not for
        ever. A process that ended while a call closes RocksDB would be aborted."""
        if self._is_running:
            last = self.submit(lambda: None)
            self._is_running = False
            self._hand(None)
            await asyncio.wait([last], timeout=CLOSE_SECONDS_MAX)

    def submit(self, call: Callable[[], R], *, wait_seconds: float = 0.0) -> asyncio.Future[R]:
        """Runs `call` behind all others; the future gets its result.

        With `wait_seconds` the loop waits in place, at most so long, for a call that is short.
        """
        assert self._is_running, "the task thread is not running"
        future: asyncio.Future[R] = self._loop.create_future()
        handed = Handed(call, future, is_awaited=wait_seconds > 0)
        self._hand(handed)
        if wait_seconds > 0:
            handed.await_in_place(wait_seconds)
        return future

    def read(self, look: Callable[[], R], *, is_short: bool = False) -> asyncio.Future[R]:
        """Looks into stores where no task is at work, for any loop. With `is_short` the calling
        thread may do it itself."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def do() -> None:
            end: tuple[Any, BaseException | None]
            try:
                end = look(), None
            except Exception as error:
                end = None, error
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, future, *end)

        (self.reads.read if is_short else self.reads.put)(do)
        return future

    @property
    def busy_seconds(self) -> float:
        """For how long the call has been running that runs now."""
        since = self._busy_since
        return 0.0 if since is None else self._clock() - since

    def where(self) -> str:
        """What runs now: the node, the record, and the user's line, as far as can be seen."""
        frame = sys._current_frames().get(self._thread_id)
        return "nothing" if frame is None or self._busy_since is None else describe(frame)

    def _run(self) -> None:
        frame = sys._getframe()
        self._thread_id = next(i for i, f in sys._current_frames().items() if f is frame)
        self.reads.work()
        while (handed := self._next()) is not None:
            self._busy_since = self._clock()
            end: tuple[Any, BaseException | None]
            try:
                end = handed.call(), None
            except BaseException as raised:
                end = None, raised
            self._busy_since = None
            handed.end.put(end)
            if handed.is_awaited:
                continue
            try:
                self._loop.call_soon_threadsafe(_settle, handed.future, *end)
            except RuntimeError:  # the loop is closed: nobody waits
                break
        self.reads.rest()
        self.reads.close()

    def _next(self) -> Handed | None:
        """The next call; reads go before it."""
        taken: Handed | Wake | None = WAKE
        while isinstance(taken, Wake):
            self.reads.serve()
            taken = self._rest() if self.reads.rest() else WAKE
            self.reads.work()
        return taken

    def _rest(self) -> Handed | Wake | None:
        """Waits for a call, or where somebody is in the lobby, there."""
        lobby = self.reads.lobby
        if lobby is None or not lobby.is_open:
            return self._calls.get()
        self._is_asleep = True
        try:
            return self._calls.get_nowait()
        except Empty:
            lobby.sleep()
            return WAKE
        finally:
            self._is_asleep = False

    def _hand(self, call: Handed | Wake | None) -> None:
        self._calls.put(call)
        if self._is_asleep and (lobby := self.reads.lobby) is not None:
            lobby.wake()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # whoever waited was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def describe(frame: FrameType) -> str:
    """Where a stack stands: `'parse': topic 'orders', partition 0, offset 17 (app.py:12)`."""
    line = node = place = ""
    index = 0
    is_inside = False
    at: FrameType | None = frame
    while at is not None:
        is_theirs = not at.f_globals.get("__name__", "").startswith(OURS)
        if is_theirs and not is_inside:  # the last one is the function that we called
            line = f"{at.f_code.co_filename}:{at.f_lineno}"
        is_inside = is_inside or not is_theirs
        if at.f_code is attempt.__code__:
            index = len(at.f_locals.get("results", ()))
        if at.f_code is Failures.call.__code__ and not node:
            known = at.f_locals
            indexes = known["indexes"]
            (there,) = known["batch"].origin.places([index if indexes is None else indexes[index]])
            node, place = repr(known["node"].name), "" if there is None else str(there)
        at = at.f_back
    record = ": ".join(part for part in (node, place) if part)
    return " ".join(part for part in (record, f"({line})" if line else "") if part) or "a task"
