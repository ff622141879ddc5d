"""Several programs in one thread, in a time that passes only when nobody has anything to do. [IO]

    with World() as world:
        broker, worker = world.host("broker"), world.host("worker")
        world.result(broker, start_node(directory, ports=world.ports(random)))
        worker.spawn(run())
        world.run(until=lambda: done, within_seconds=60)     # a minute passes in a fraction of one

Each host has an event loop of its own, and the world lets each take a turn after the other, which
takes TURN_NS. When no host has work, time goes on to the next timer. So an hour without work passes
at once, and the same programs do the same again. A host can be paused, as by SIGSTOP, and killed,
as by SIGKILL: its sockets close without a word and none of its code runs again.

Sockets are real, on the loopback interface: what one host has written, the other can read in its
next turn. Work for threads runs where it is handed in, before the next line. A broker knows the
world by its ports alone: `World.ports`; its disk may be a `MemoryStorage`, which loses power.

Owns   the time of all hosts, and their event loops.
Never  waits: where nothing can ever happen, `run` says so.
Fails  with `Stuck` when what is waited for does not come.
Source the simulation of FoundationDB, for the idea.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import os
import selectors
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kafkalite.clients.ports import MACHINE as MACHINE_OF_CLIENTS
from kafkalite.clients.ports import ClientPorts
from kafkalite.core.broker.clock import Clock
from kafkalite.ports import MACHINE, HeldStorage, Ports

R = TypeVar("R")

WALL_START_S: Final = 1_700_000_000  # what the wall clock says when a world begins
MONOTONIC_START_S: Final = 1_000_000
NS: Final = 1_000_000_000
IDLE_TURNS: Final = 2  # of all hosts, before time goes on: a socket may need one to be readable
TURN_NS: Final = 10_000  # what a turn takes
TURNS_MAX: Final = 100_000  # without a rest: whoever works longer does so for ever
END_SECONDS: Final = 60  # in which all programs that are cancelled end


class Stuck(AssertionError):
    """The awaited event did not happen; the error says how far time is."""


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


class _Selector(selectors.DefaultSelector):
    """Never waits, and tells whether a socket had something."""

    events = 0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        self.events = len(found)
        return found


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is the world's and whose threads are none."""

    def __init__(self, time: Time) -> None:
        self.time_of_world = time
        self.selector = _Selector()
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.calls = 0  # handed in since the last turn
        self._numbers = 0
        super().__init__(self.selector)

    def time(self) -> float:
        return self.time_of_world.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.calls += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._numbers += 1
        heapq.heappush(self.timers, (when, self._numbers, handle))
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., R], *args: Any
    ) -> asyncio.Future[R]:
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

    def turn(self) -> bool:
        """One turn; whether there was anything to do."""
        now = self.time()
        is_due = False
        while self.timers and self.timers[0][0] <= now:
            is_due |= not heapq.heappop(self.timers)[2].cancelled()
        had_calls, self.calls = self.calls > 0, 0
        if not (is_due or had_calls or self._ready or self.selector.select()):  # type: ignore[attr-defined]
            return False  # as a turn would say, at a twentieth of its cost
        super().call_soon(self.stop)
        self.run_forever()
        return is_due or had_calls or self.calls > 0 or self.selector.events > 0


class Host:
    """A program: an event loop that the world gives turns."""

    def __init__(self, name: str, time: Time) -> None:
        self.name = name
        self.loop = _Loop(time)
        self.is_paused = False
        self.is_dead = False
        self.tasks: list[asyncio.Task[Any]] = []

    def __str__(self) -> str:
        return self.name

    @property
    def runs(self) -> bool:
        """Whether it gets turns."""
        return not (self.is_paused or self.is_dead)

    def spawn(self, program: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Begins a program."""
        task = self.loop.create_task(program)
        self.tasks.append(task)
        return task

    def pause(self) -> None:
        """It does nothing until `go_on`, and time passes."""
        self.is_paused = True

    def go_on(self) -> None:
        """It has turns again."""
        self.is_paused = False

    def kill(self) -> None:
        """Its sockets close, and none of its code runs again."""
        self.is_dead = True
        transports = list(self.loop._transports.values())  # type: ignore[attr-defined]
        sockets = [transport.get_extra_info("socket") for transport in transports]
        descriptors = {sock.fileno() for sock in sockets}  # -1 where it was closed
        descriptors |= {key.fd for key in self.loop.selector.get_map().values()}
        own = self.loop._ssock.fileno()  # type: ignore[attr-defined]
        for descriptor in descriptors - {own, -1}:
            with suppress(KeyError):
                self.loop.selector.unregister(descriptor)
            _cut(descriptor)

    def cancel(self) -> None:
        """Asks what is left of its programs to end, unseen."""
        self.is_dead = self.is_paused = False
        self.loop.set_exception_handler(lambda loop, context: None)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()


def _cut(descriptor: int) -> None:
    """Closes a socket whose owner believes that it has it: in its place is one without a peer."""
    with socket.socket(fileno=os.dup(descriptor)) as other, suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)  # whoever else has it open
    with socket.socket() as placeholder:
        os.dup2(placeholder.fileno(), descriptor)


class World:
    """Hosts that share a time."""

    def __init__(self) -> None:
        self.time = Time()
        self.hosts: list[Host] = []
        self._alarm = math.inf  # when somebody wants to go on who has no timer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.hosts:
            host.cancel()
        with suppress(Stuck):
            self.run(lambda: not any(asyncio.all_tasks(h.loop) for h in self.hosts), END_SECONDS)
        for host in self.hosts:
            host.loop.close()

    def host(self, name: str) -> Host:
        """A new one."""
        self.hosts.append(host := Host(name, self.time))
        return host

    def ports(self, random: Random, storage: HeldStorage | None = None) -> Ports:
        """What a broker takes from this world; chance comes from `random`. Without `storage` it has
        the disk."""
        time = self.time
        return replace(
            MACHINE,
            storage=MACHINE.storage if storage is None else lambda _: storage,
            precise_seconds=time.perf_counter,
            clock=lambda: Clock(time.time_ns, time.monotonic_ns),
            seconds=time.monotonic,
            random_bytes=random.randbytes,
        )

    def client_ports(self, random: Random) -> ClientPorts:
        """The part of this world that clients take."""
        return replace(
            MACHINE_OF_CLIENTS,
            time_ns=self.time.time_ns,
            random=lambda: Random(random.random()),
        )

    @property
    def seconds(self) -> float:
        """Since the world began."""
        return self.time.now_ns / NS

    def run(self, until: Callable[[], bool], within_seconds: float) -> None:
        """Lets hosts take turns until something is so."""
        deadline = self.seconds + within_seconds
        idle = turns = 0
        while not until():
            worked = [host for host in self.hosts if host.runs and host.loop.turn()]
            idle = 0 if worked else idle + 1
            turns += 1
            self.time.now_ns += TURN_NS
            if idle >= IDLE_TURNS:
                idle = turns = 0
                self._pass_time(deadline)
            elif turns > TURNS_MAX:
                names = ", ".join(map(str, worked))
                raise Stuck(f"{names}: work without a rest for {turns} turns")

    def result(self, host: Host, program: Coroutine[Any, Any, R], within_seconds: float = 60) -> R:
        """The result of a program of `host`."""
        task = host.spawn(program)
        self.run(task.done, within_seconds)
        return task.result()

    def pass_seconds(self, seconds: float) -> None:
        """Lets hosts go on for a while."""
        self._alarm = self.time.monotonic() + seconds
        try:
            self.run(lambda: self.time.monotonic() >= self._alarm, seconds + 1)
        finally:
            self._alarm = math.inf

    def _pass_time(self, deadline: float) -> None:
        """On to the next timer; a paused host's do not count."""
        dues = [due for host in self.hosts if host.runs and (due := host.loop.next_timer())]
        dues.append(self._alarm)
        if min(dues) == math.inf:
            raise Stuck(f"no host has a timer, after {self.seconds:.3f} s")
        now_ns = max(self.time.now_ns, round((min(dues) - MONOTONIC_START_S) * NS))
        self.time.now_ns = now_ns + 1_000  # past the timer, whatever its digits
        if self.seconds > deadline:
            raise Stuck(f"not so after {self.seconds:.3f} s")
