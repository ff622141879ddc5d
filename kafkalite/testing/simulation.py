"""Several programs in one thread, in a time that passes only when nobody has anything to do. [IO]

    with World() as world:
        broker, worker = world.host("broker"), world.host("worker")
        world.result(broker, start_node(directory, "broker:9092", ports=world.ports(random)))
        worker.spawn(run())
        world.run(until=lambda: done, within_seconds=60)     # a minute passes in a fraction of one

Each host has an event loop of its own, and the world lets each take a turn after the other, which
takes TURN_NS. When no host has work, time goes on to the next timer. So an hour without work passes
at once, and the same programs do the same again. A host can be paused, as by SIGSTOP, and killed,
as by SIGKILL: its kernel closes its sockets and none of its code runs again. Its machine can lose
power: then nobody hears of it.

A host's name is its address in `World.network`, which delays, cuts and breaks connections. Work for
threads runs where it is handed in, before the next line. Brokers and clients know the world by
their ports alone: `World.ports`, `World.client_ports`; a broker's disk may be a `MemoryStorage`,
which loses power.

Owns   the time of all hosts, and their event loops.
Never  waits: where nothing can ever happen, `run` says so.
Fails  with `Stuck` when what is waited for does not come.
Source the simulation of FoundationDB, for the idea.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from kafkalite.clients.ports import MACHINE as MACHINE_OF_CLIENTS
from kafkalite.clients.ports import ClientPorts
from kafkalite.core.broker.clock import Clock
from kafkalite.core.network import Listener, MakeProtocol
from kafkalite.ports import MACHINE, HeldStorage, Ports
from kafkalite.testing.event_loop import MONOTONIC_START_S, NS, Agenda, SimulatedLoop, Time
from kafkalite.testing.network import SimulatedNetwork

R = TypeVar("R")

TURN_NS: Final = 10_000  # what a turn takes
TURNS_MAX: Final = 100_000  # without a rest: whoever works longer does so for ever
END_SECONDS: Final = 1  # in which all programs that are cancelled end
END_ATTEMPTS: Final = 60


class Stuck(AssertionError):
    """The awaited event did not happen; the error says how far time is."""


class Host:
    """A program: an event loop that the world gives turns."""

    def __init__(
        self, name: str, time: Time, agenda: Agenda, network: SimulatedNetwork, number: int
    ) -> None:
        self.name = name
        self.loop = SimulatedLoop(time, agenda, self, number)
        self._network = network
        self.is_paused = False
        self.is_dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        # Nobody else holds a task that waits for the network of a dead host. Collected half-way it
        # would end in the midst of what it does, and complain.
        self._kept: set[asyncio.Task[Any]] = set()

    def __str__(self) -> str:
        return self.name

    def spawn(self, program: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Begins a program."""
        task = self.loop.create_task(program)
        self.tasks.append(task)
        return task

    def pause(self) -> None:
        """It does nothing until `go_on`, and time passes."""
        self.is_paused = True
        self.loop.stand_still()

    def go_on(self) -> None:
        """It has turns again, unless it was killed meanwhile."""
        self.is_paused = False
        if not self.is_dead:
            self.loop.go_on()

    def kill(self) -> None:
        """As by SIGKILL: its kernel closes its sockets, and none of its code runs again."""
        self._end()
        self._network.kill(self)

    def crash(self) -> None:
        """Its machine loses power: nobody hears of it. A new host of that name is the machine
        after it has booted."""
        self._end()
        self._network.crash(self)

    def _end(self) -> None:
        self.is_dead = True
        self._kept |= self.loop.unfinished()
        self.loop.stand_still()

    def cancel(self) -> set[asyncio.Task[Any]]:
        """Asks what is left of its programs to end, unseen; what was left."""
        self.is_dead = self.is_paused = False
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.go_on()
        left = self.loop.unfinished()
        for task in left:
            task.cancel()
        return left


class _OwnNetwork:
    """The network as the host sees it whose loop runs."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network

    async def connect(self, make: MakeProtocol, host: str, port: int) -> None:
        """Opens a connection to another machine, or to this one."""
        await self._network.connect(_running_host(), make, host, port)

    async def listen(
        self, make: MakeProtocol, host: str, port: int, backlog: int
    ) -> Sequence[Listener]:
        """Takes an address of this machine."""
        return [self._network.listen(_running_host(), make, host, port, backlog)]

    def own_host(self) -> str:
        """The machine's name, which is its address."""
        return _running_host().name


def _running_host() -> Host:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop), f"{loop} is no host's"
    return cast("Host", loop.owner)


def _are_done(tasks: list[asyncio.Task[Any]]) -> bool:
    """Whether all tasks are done; takes those out that are."""
    while tasks and tasks[-1].done():
        tasks.pop()
    return not tasks


class World:
    """Hosts that share a time and a network, whose chance comes from `random`."""

    def __init__(self, random: Random | None = None) -> None:
        self.time = Time()
        self.network = SimulatedNetwork(random or Random(0), lambda: self.time.now_ns)
        self.hosts: list[Host] = []
        self._agenda = Agenda()
        self._alarm = math.inf  # when somebody wants to go on who has no timer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _ in range(END_ATTEMPTS):  # what timers begin meanwhile is asked to end the next time
            left = [task for host in self.hosts for task in host.cancel()]
            if not left:
                break
            with suppress(Stuck):
                self.run(lambda left=left: _are_done(left), END_SECONDS)  # type: ignore[misc]
        for host in self.hosts:
            host.loop.close()

    def host(self, name: str) -> Host:
        """A new one, on the machine of that name; one that has crashed boots."""
        self.network.boot(name)
        host = Host(name, self.time, self._agenda, self.network, len(self.hosts))
        self.hosts.append(host)
        return host

    def ports(self, random: Random, storage: HeldStorage | None = None) -> Ports:
        """What a broker takes from this world; chance comes from `random`. Without `storage` it has
        the disk."""
        time = self.time
        return replace(
            MACHINE,
            storage=MACHINE.storage if storage is None else lambda _: storage,
            network=lambda: _OwnNetwork(self.network),
            precise_seconds=time.perf_counter,
            clock=lambda: Clock(time.time_ns, time.monotonic_ns),
            seconds=time.monotonic,
            random_bytes=random.randbytes,
        )

    def client_ports(self, random: Random) -> ClientPorts:
        """The part of this world that clients take."""
        return replace(
            MACHINE_OF_CLIENTS,
            connect=_OwnNetwork(self.network).connect,
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
        turns, time, agenda, events = 0, self.time, self._agenda, self.network.events
        try:
            while not until():
                has_worked = events.run_due()
                with_work = agenda.take(time.monotonic())
                for loop in with_work:
                    if loop.turn():
                        has_worked = True
                turns += 1
                time.now_ns += TURN_NS
                if not has_worked:
                    turns = 0
                    self._pass_time(deadline)
                elif turns > TURNS_MAX:
                    names = ", ".join(str(loop.owner) for loop in with_work)
                    raise Stuck(f"{names}: work without a rest for {turns} turns")
        finally:
            asyncio._set_running_loop(None)

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
        """On to the next timer, a paused host's do not count, or to what arrives next."""
        due = self._alarm
        if (timer := self._agenda.next_due()) is not None and timer < due:
            due = timer
        if (due_ns := self.network.events.next_due_ns) is not None:
            due = min(due, MONOTONIC_START_S + due_ns / NS)
        if due == math.inf:
            raise Stuck(f"no host has a timer, after {self.seconds:.3f} s")
        time = self.time
        # Past the timer, whatever its digits.
        time.now_ns = max(time.now_ns, round((due - MONOTONIC_START_S) * NS)) + 1_000
        if time.now_ns / NS > deadline:
            raise Stuck(f"not so after {self.seconds:.3f} s")
