"""An event loop in simulated time: no sockets, no threads, no waiting.                      [IO]

Somebody else gives it turns and lets time pass: `kafkalite.testing.simulation`. Work for threads
runs where it is handed in, before the next line.

Owns   the timers and the ready callbacks of one host.
Never  waits, and never opens a socket: connections come from `kafkalite.testing.network`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Final, TypeVar

R = TypeVar("R")

WALL_START_S: Final = 1_700_000_000  # what the wall clock says when a world begins
MONOTONIC_START_S: Final = 1_000_000
NS: Final = 1_000_000_000


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
        return MONOTONIC_START_S * NS + self.now_ns

    def monotonic(self) -> float:
        """The clock that nobody sets."""
        return self.monotonic_ns() / NS

    def perf_counter(self) -> float:
        """The clock that nobody sets."""
        return self.monotonic()


class _NoSockets:
    """The selector of a loop without sockets."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop whose time is the world's and whose threads are none. `owner` runs in it."""

    def __init__(self, time: Time, owner: Any) -> None:
        super().__init__()
        self.owner = owner
        self.time_of_world = time
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.calls = 0  # handed in since the last turn
        self._numbers = 0
        self._selector = _NoSockets()

    def time(self) -> float:
        """The world's monotonic clock."""
        return self.time_of_world.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Runs in the next turn."""
        self.calls += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Runs then."""
        handle = super().call_at(when, callback, *args, context=context)
        self._numbers += 1
        heapq.heappush(self.timers, (when, self._numbers, handle))
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

    def next_timer(self) -> float | None:
        """When the earliest timer is due that was not cancelled."""
        timers = self.timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def has_work(self, now: float) -> bool:
        """Whether a turn would do anything, at a twentieth of its cost."""
        timers = self.timers
        return bool(self.calls or self._ready or (timers and timers[0][0] <= now))  # type: ignore[attr-defined]

    def turn(self) -> bool:
        """One turn; whether there was anything to do."""
        now = self.time()
        is_due = False
        while self.timers and self.timers[0][0] <= now:
            is_due |= not heapq.heappop(self.timers)[2].cancelled()
        had_calls, self.calls = self.calls > 0, 0
        if not (is_due or had_calls or self._ready):  # type: ignore[attr-defined]
            return False  # the timers that were due are cancelled
        asyncio._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]  # `run_forever` once, at half its cost
        finally:
            asyncio._set_running_loop(None)
        return is_due or had_calls or self.calls > 0

    def _process_events(self, events: list[Any]) -> None:
        """There are none: there are no sockets."""

    def _write_to_self(self) -> None:
        """Nobody waits who would have to be woken."""
