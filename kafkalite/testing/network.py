"""A network of simulated machines: delays, cuts, slow links, lost connections.               [IO]

    network = SimulatedNetwork(Random(seed), now_ns)
    network.cut("a", "b")             what a sends b waits, as nothing is acknowledged; b sends on
    network.separate("a", "b")        both ways; nobody sees a reset
    network.heal()                    every cut ends; waiting bytes are sent again after a while
    network.reset("a", "b")           every connection between both breaks at once
    network.slow("a", "b", 50_000)    bytes a second

A machine has a name, which is its address, and its kernel: the kernel accepts connections and takes
bytes while a process is paused, and answers for a process that is gone. Within a connection bytes
keep their order. Of each direction WINDOW_BYTES at the most are under way or unread; what a program
writes beyond them stays in its transport, which pauses the program's protocol.

    program ── transport ── socket ── flow ──> link (delay, cut, rate) ──> socket ── transport

Owns   every machine's kernel: its sockets, and the bytes under way.
Never  calls a program's code: events wait in the queue of the host's event loop.
Fails  as a kernel does: ConnectionRefusedError, ConnectionResetError, gaierror, TimeoutError.
Source tcp(7); `asyncio.selector_events` for the transports; the simulation of FoundationDB.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Final

from kafkalite.core.network import MakeProtocol
from kafkalite.testing.kernel import (
    EVERYWHERE,
    LOOPBACKS,
    Machine,
    Owner,
    SimulatedListener,
    Socket,
)
from kafkalite.testing.transport import SimulatedTransport
from kafkalite.testing.wire import NS_PER_MS, NS_PER_SECOND, Events, Flow, Link, Trace

LOOPBACK_NS: Final = 20_000
SYN_AGAIN_NS: Final = NS_PER_SECOND  # to a listener whose backlog is full
SENT_AGAIN_NS_MAX: Final = 120 * NS_PER_SECOND  # TCP's longest pause between two tries
CONNECT_SECONDS_MAX: Final = 127.0  # as Linux tries


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class SimulatedNetwork:
    """All machines, and the links between them. `delay_ms` is the least and the most of a link."""

    def __init__(
        self,
        random: Random,
        now_ns: Callable[[], int],
        *,
        delay_ms: tuple[float, float] = (0.05, 0.5),
        trace: Trace | None = None,
    ) -> None:
        self.trace = Trace() if trace is None else trace
        self.events = Events(random, now_ns, self.trace)
        self._delay_ns = (round(delay_ms[0] * NS_PER_MS), round(delay_ms[1] * NS_PER_MS))
        self._machines: dict[str, Machine] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._flows: dict[tuple[str, str], list[Flow]] = {}  # of connections, by their way

    # ---- machines ------------------------------------------------------------------------------

    def machine(self, name: str) -> Machine:
        """The machine of that name."""
        found = self._machines.get(name)
        if found is None:
            found = self._machines[name] = Machine(name)
        return found

    def boot(self, name: str) -> None:
        """The machine runs, again if it had crashed: what is sent to its old connections is
        answered with a reset."""
        machine = self.machine(name)
        if not machine.is_up:
            machine.is_up = True
            down_ns = self.events.now_ns() - machine.down_at_ns
            for (_, to), flows in self._flows.items():
                if to == name:
                    self._send_again(flows, down_ns)

    def kill(self, owner: Owner) -> None:
        """A process ends: its kernel closes what it had."""
        machine = self.machine(owner.name)
        for listener in [each for each in machine.listeners.values() if each.owner is owner]:
            listener.close()
        for each in [each for each in machine.sockets if each.owner is owner]:
            each.close()

    def crash(self, owner: Owner) -> None:
        """A machine loses power: nobody hears of it."""
        machine = self.machine(owner.name)
        machine.is_up, machine.down_at_ns = False, self.events.now_ns()
        machine.listeners.clear()
        for each in list(machine.sockets):
            each.vanish()

    # ---- links ---------------------------------------------------------------------------------

    def link(self, sender: str, receiver: str) -> Link:
        """The way from one machine to another."""
        found = self._links.get((sender, receiver))
        if found is None:
            is_loopback = sender == receiver
            least, most = (LOOPBACK_NS, LOOPBACK_NS) if is_loopback else self._delay_ns
            found = Link(least, most, spike_chance=0.0 if is_loopback else 0.01)
            self._links[sender, receiver] = found
        return found

    def cut(self, sender: str, receiver: str, *, loses: bool = False) -> None:
        """Nothing arrives that `sender` sends `receiver`. It waits for the end of the cut; with
        `loses` the connections of now never go on, and nobody hears of that either."""
        assert sender != receiver, f"{sender}: a machine reaches itself"
        link = self.link(sender, receiver)
        if not link.is_cut:
            link.is_cut, link.cut_at_ns = True, self.events.now_ns()
        if loses:
            for flow in self._flows.get((sender, receiver), ()):
                flow.lose()

    def separate(self, one: str, other: str, *, loses: bool = False) -> None:
        """Cuts both ways."""
        self.cut(one, other, loses=loses)
        self.cut(other, one, loses=loses)

    def isolate(self, name: str, others: Iterable[str], *, loses: bool = False) -> None:
        """Cuts a machine off from others, both ways."""
        for other in others:
            if other != name:
                self.separate(name, other, loses=loses)

    def heal(self, ways: Collection[tuple[str, str]] | None = None) -> None:
        """Cuts end, of these senders and receivers, by default all. TCP tries again at growing
        intervals: what waited takes up to as long as the cut was to be sent again."""
        for way, link in self._links.items():
            if link.is_cut and (ways is None or way in ways):
                link.is_cut = False
                self._send_again(self._flows.get(way, ()), self.events.now_ns() - link.cut_at_ns)

    def slow(self, sender: str, receiver: str, bytes_per_second: int | None) -> None:
        """Limits the rate of a link; None ends that."""
        self.link(sender, receiver).bytes_per_second = bytes_per_second

    def reset(self, one: str, other: str) -> None:
        """Breaks every connection between two machines; both ends learn it at once."""
        for each in list(self.machine(one).sockets):
            if each.is_established and each.peer.owner.name == other:
                for end in (each, each.peer):
                    end.out.lose()
                    end.on_reset()

    def _send_again(self, flows: Iterable[Flow], silent_ns: int) -> None:
        for flow in flows:
            if flow.is_waiting:
                flow.go_on(self.events.random.randint(0, min(silent_ns, SENT_AGAIN_NS_MAX)))

    # ---- connections ---------------------------------------------------------------------------

    def resolve(self, owner: Owner, host: str) -> str | None:
        """The machine that a host name stands for; None for an unknown name."""
        if host in LOOPBACKS or host in EVERYWHERE:
            return owner.name
        return host if host in self._machines else None

    def listen(
        self, owner: Owner, make: MakeProtocol, host: str, port: int, backlog: int
    ) -> SimulatedListener:
        """Takes an address of the owner's machine."""
        if self.resolve(owner, host) != owner.name:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is no address of {owner.name}")
        machine = self.machine(owner.name)
        port = port or machine.free_port()
        if port in machine.listeners:
            raise OSError(errno.EADDRINUSE, f"{owner.name}:{port} is in use")

        def accepted(peer: Socket) -> None:
            SimulatedTransport.open(peer, make())

        listener = SimulatedListener(machine, owner, accepted, host, port, backlog)
        machine.listeners[port] = listener
        return listener

    async def connect(self, owner: Owner, make: MakeProtocol, host: str, port: int) -> None:
        """Opens a connection from the owner's machine."""
        to = self.resolve(owner, host)
        if to is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        loop, near = owner.loop, self._open(owner, to, port)
        done = loop.create_future()

        def tell() -> None:
            loop.call_soon(_set_done, done)

        near.waiter = tell
        patience = loop.call_later(CONNECT_SECONDS_MAX, _set_done, done)
        try:
            await done
        except BaseException:
            near.close()
            raise
        finally:
            near.waiter = None
            patience.cancel()
        if near.error is None and not near.is_established:
            near.close()
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        if not near.is_established:
            assert near.error is not None
            raise near.error
        SimulatedTransport.open(near, make(), has_options=True)

    def _open(self, owner: Owner, to: str, port: int) -> Socket:
        """The socket of a connection that is being made; `waiter` tells of its outcome."""
        number = f"#{self.events.number()}"
        here, there = self.machine(owner.name), self.machine(to)
        near = Socket(self.events, here, owner, number, here.free_port())
        near.out = self._flow(here, there)
        back = self._flow(there, here)
        self._knock(near, back, there, port, SYN_AGAIN_NS)
        return near

    def _knock(self, near: Socket, back: Flow, there: Machine, port: int, again_ns: int) -> None:
        """Asks a machine for a connection, again while its backlog is full."""

        def asked() -> None:
            listener = there.listeners.get(port)
            is_own = near.owner.name == there.name
            if listener is None or not listener.is_open or (listener.is_local and not is_own):
                self.events.note(f"{near.owner.name}>{there.name}:{port} refused")
                back.put(near.on_refused)
            elif listener.is_full:
                again = lambda: self._knock(near, back, there, port, 2 * again_ns)  # noqa: E731
                self.events.at(self.events.now_ns() + again_ns, again)
            else:
                self.events.note(f"{near.owner.name}>{there.name}:{port} {near.number} connected")
                far = Socket(self.events, there, listener.owner, near.number, port)
                far.out, far.peer, near.peer = back, near, far
                far.is_established = True
                back.put(near.on_established)
                listener.offer(far)

        if not near.is_closed:
            near.out.put(asked)

    def _flow(self, sender: Machine, receiver: Machine) -> Flow:
        way = sender.name, receiver.name
        flow = Flow(self.events, self.link(*way), lambda: receiver.is_up)
        kept = [each for each in self._flows.get(way, ()) if not (each.is_lost or each.is_over)]
        self._flows[way] = [*kept, flow]
        return flow
