"""An event loop in simulated time: no sockets, no threads, no waiting.                      [IO]

Somebody else gives it turns and lets time pass: `kafkalite.testing.simulation`. Work for threads
runs where it is handed in, before the next line.

Owns   what the loops of a world have to do, and when (`Agenda`); the ready callbacks of one host.
Never  waits, and never opens a socket: connections come from `kafkalite.testing.network`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar
from weakref import WeakSet

R = TypeVar("R")

WALL_START_S: Final = 1_700_000_000  # what the wall clock says when a world begins
MONOTONIC_START_S: Final = 1_000_000
NS: Final = 1_000_000_000
MONOTONIC_START_NS: Final = MONOTONIC_START_S * NS


class Time:
    """The part of the module `time` that programs use."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._set_ns = 0

    def set_wall_clock(self, seconds: float) -> None:
        """Sets the wall clock, so many seconds from what it would say by itself."""
        self._set_ns = round(seconds * NS)

    def time_ns(self) -> int:
        """The wall clock."""
        return WALL_START_S * NS + self.now_ns + self._set_ns

    def time(self) -> float:
        """The wall clock."""
        return self.time_ns() / NS

    def monotonic_ns(self) -> int:
        """The clock that nobody sets."""
        return MONOTONIC_START_NS + self.now_ns

    def monotonic(self) -> float:
        """The clock that nobody sets."""
        return (MONOTONIC_START_NS + self.now_ns) / NS

    perf_counter = monotonic


class Handle:
    """A call that a loop is to make. It does what asyncio's handles do, at half their cost: the
    loops of a world make thousands for each second of theirs."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False
        self._when = when

    def cancel(self) -> None:
        """The loop does not make the call."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether the loop does not make the call."""
        return self.is_cancelled

    def when(self) -> float:
        """When the loop is to make it, if at a time."""
        return self._when


class Agenda:
    """What the event loops of a world have to do: those with work, and the timers of all."""

    def __init__(self) -> None:
        self._ready: list[SimulatedLoop] = []
        self._timers: list[tuple[float, int, Handle, SimulatedLoop]] = []
        self._numbers = 0

    def add(self, loop: SimulatedLoop) -> None:
        """The loop has work."""
        self._ready.append(loop)

    def at(self, when: float, handle: Handle, loop: SimulatedLoop) -> None:
        """The loop has work then."""
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle, loop))

    def take(self, now: float) -> list[SimulatedLoop]:
        """The loops with work now, in the order of their making."""
        timers = self._timers
        while timers and (due := self.next_due()) is not None and due <= now:
            _, _, handle, loop = heapq.heappop(timers)
            loop.make(handle)
        with_work = self._ready
        if with_work:
            self._ready = []
            if len(with_work) > 1:
                with_work.sort(key=_number)
        return with_work

    def next_due(self) -> float | None:
        """When the earliest timer is due that was not cancelled, of a loop that does not stand
        still."""
        timers = self._timers
        while timers:
            when, _, handle, loop = timers[0]
            if handle.is_cancelled:
                heapq.heappop(timers)
            elif loop.stands_still:
                heapq.heappop(timers)
                loop.held.append((when, handle))
            else:
                return when
        return None


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop whose time is the world's and whose threads are none. `owner` runs in it."""

    _ready: deque[Handle]  # asyncio's own
    _closed: bool

    def __init__(self, time: Time, agenda: Agenda, owner: Any, number: int) -> None:
        super().__init__()
        self.owner = owner
        self.number = number
        self.stands_still = False  # has no turns; see `stand_still`
        self.held: list[tuple[float, Handle]] = []  # timers that were due meanwhile
        self._time = time
        self._agenda = agenda
        self._is_on_agenda = False
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Begins a task, and remembers it while others do."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._tasks.add(task)
        return task

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """The tasks that are not done. `asyncio.all_tasks` looks at those of all loops."""
        return {task for task in self._tasks if not task.done()}

    def time(self) -> float:
        """The world's monotonic clock."""
        return (MONOTONIC_START_NS + self._time.now_ns) / NS

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Runs in the next turn."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = Handle(callback, args, context)
        self.make(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no other threads

    def make(self, handle: Handle) -> None:
        """Makes a call in the next turn."""
        self._ready.append(handle)
        if not self._is_on_agenda:
            self._has_work()

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        """Runs so many seconds later."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        """Runs then."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = Handle(callback, args, context, when)
        self._agenda.at(when, handle, self)
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., R], *args: Any
    ) -> asyncio.Future[R]:
        """Runs here and now."""
        future: asyncio.Future[R] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def stand_still(self) -> None:
        """No turns any more, and no timers, until `go_on`."""
        self.stands_still = True

    def go_on(self) -> None:
        """Turns again; timers that were due meanwhile go off now."""
        self.stands_still = False
        held, self.held = self.held, []
        for when, handle in held:
            self._agenda.at(when, handle, self)
        if self._ready:
            self._has_work()

    def turn(self) -> bool:
        """One turn; whether there was anything to do."""
        self._is_on_agenda = False
        if self.stands_still:
            return False
        asyncio._set_running_loop(self)
        ready, has_run = self._ready, False
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.is_cancelled:
                has_run = True
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    message = f"Exception in callback {handle.callback!r}"
                    self.call_exception_handler({"message": message, "exception": error})
        return has_run

    def _has_work(self) -> None:
        if not self._is_on_agenda:
            self._is_on_agenda = True
            self._agenda.add(self)


def _number(loop: SimulatedLoop) -> int:
    return loop.number
