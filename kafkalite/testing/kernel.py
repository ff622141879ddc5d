"""The kernels of simulated machines: sockets, listeners, and who they belong to.            [IO]

A kernel accepts connections and takes bytes while a process is paused, and answers for a process
that is gone. Of each direction of a connection WINDOW_BYTES at the most are under way or unread.

Owns   the sockets and listeners of each machine.
Never  calls a program's code: it wakes its transports, and its listeners by way of its event loop.
Fails  as a kernel does: ConnectionRefusedError, ConnectionResetError.
Source tcp(7).
"""

from __future__ import annotations

import errno
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from kafkalite.testing.event_loop import SimulatedLoop
from kafkalite.testing.wire import Events, Flow

WINDOW_BYTES: Final = 131_072
SEGMENT_BYTES: Final = 32_768
SPLIT_CHANCE: Final = 0.1  # a segment arrives in two parts
FIRST_FREE_PORT: Final = 40_000
LOOPBACKS: Final = ("127.0.0.1", "localhost", "::1")
EVERYWHERE: Final = ("", "0.0.0.0", "::")


class Owner(Protocol):
    """The process that a socket belongs to."""

    name: str
    loop: SimulatedLoop

    @property
    def is_dead(self) -> bool:
        """Whether none of its code runs again."""


class Machine:
    """The kernel of one machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.down_at_ns = 0
        self.listeners: dict[int, SimulatedListener] = {}
        self.sockets: dict[Socket, None] = {}  # in the order of their making
        self.next_port = FIRST_FREE_PORT

    def free_port(self) -> int:
        """A port that no listener has."""
        while self.next_port in self.listeners:
            self.next_port += 1
        self.next_port += 1
        return self.next_port - 1


class Socket:
    """One end of a connection, in the kernel of a machine."""

    def __init__(
        self, events: Events, machine: Machine, owner: Owner, number: str, port: int
    ) -> None:
        self.owner = owner
        self.loop = owner.loop
        self.number = number
        self.address = (owner.name, port)
        self.peer: Socket  # once the other kernel has accepted the connection
        # Called when there is something to read, room to write, or an outcome of `connect`.
        self.waiter: Callable[[], None] | None = None
        self.out: Flow
        self.received = bytearray()
        self.has_eof = False
        self.error: OSError | None = None
        self.is_established = False
        self.is_closed = False
        self._lingers = True  # at the close what is unsent is sent on
        self.room = WINDOW_BYTES  # how many bytes the other end takes
        self._events = events
        self._machine = machine
        self._machine.sockets[self] = None

    # ---- what the program calls ----------------------------------------------------------------

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Takes as many bytes as there is room for."""
        if self.error is not None:
            raise self.error
        if self.is_closed:
            raise OSError(errno.EPIPE, "the socket is closed")
        whole = memoryview(data)[: self.room]
        sent = len(whole)
        self.room -= sent
        while whole:
            size = min(len(whole), SEGMENT_BYTES)
            if size > 1 and self._events.random.random() < SPLIT_CHANCE:
                size = self._events.random.randint(1, size - 1)
            segment, whole = bytes(whole[:size]), whole[size:]
            self._put("data", self.peer.on_data, segment)
        return sent

    def read_into(self, buffer: memoryview) -> int:
        """Moves bytes that have arrived; 0 at the end."""
        count = min(len(buffer), len(self.received))
        buffer[:count] = self.received[:count]
        del self.received[:count]
        if count and not self.error:
            self.out.put(lambda: self.peer.on_room(count))
        return count

    @property
    def is_readable(self) -> bool:
        """Whether there is something to read: bytes, the end or an error."""
        return bool(self.received) or self.has_eof or self.error is not None

    def shut_down(self) -> None:
        """Ends what this end sends."""
        if self.error is None:
            self._put("end", self.peer.on_end)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """Knows SO_LINGER alone."""
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER), "it is not simulated"
        is_on, seconds = struct.unpack("ii", value)
        self._lingers = not (is_on and not seconds)

    def close(self) -> None:
        """Ends the connection; what was sent arrives, unless the socket does not linger: then what
        waits is dropped. That, and what is unread, make it a reset."""
        if self.is_closed:
            return
        self.is_closed = True
        self._machine.sockets.pop(self, None)
        if self.error is None and self.is_established and (self._lingers or self.out.drop()):
            is_reset = self.received or not self._lingers
            self._put("reset", self.peer.on_reset) if is_reset else self.shut_down()
        if self.is_established and self.peer.is_over:
            self.out.is_over = self.peer.out.is_over = True

    @property
    def is_over(self) -> bool:
        """Whether no program has this end any more, or can use it."""
        return self.is_closed or self.error is not None

    # ---- what arrives --------------------------------------------------------------------------

    def on_data(self, segment: bytes) -> None:
        """Bytes of the other end."""
        if self.is_closed:
            self._put("reset", self.peer.on_reset)
            return
        self.received += segment
        self._wake()

    def on_end(self) -> None:
        """The other end sends no more."""
        self.has_eof = True
        self._wake()

    def on_room(self, count: int) -> None:
        """The other program has read so many bytes."""
        self.room += count
        self._wake()

    def on_reset(self) -> None:
        """The connection is no more."""
        if not self.is_closed and self.error is None:
            self.error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            self._machine.sockets.pop(self, None)
            self._wake()

    def on_refused(self) -> None:
        """Nobody listens there."""
        self.error = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self._machine.sockets.pop(self, None)
        self._wake()

    def on_established(self) -> None:
        """The other kernel has accepted the connection."""
        self.is_established = True
        if self.is_closed:  # nobody waits for it any more
            self._put("reset", self.peer.on_reset)
            return
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.owner.is_dead:
            self.waiter()

    def vanish(self) -> None:
        """The machine has lost power: it says nothing, and forgets the connection."""
        self.is_closed = True
        self._machine.sockets.pop(self, None)
        self.out.forget()

    def _put(self, what: str, arrive: Callable[..., None], segment: bytes | None = None) -> None:
        """Sends a segment, and notes its arrival in the trace."""
        note = self._events.note
        size, crc = (0, 0) if segment is None else (len(segment), zlib.crc32(segment))
        name = f"{self.owner.name}>{self.peer.owner.name} {self.number} {what}"

        def arrives() -> None:
            note(f"{name} {size} {crc:08x}")
            arrive() if segment is None else arrive(segment)

        self.out.put(arrives, size)


class SimulatedListener:
    """A listening address. Each connection that it accepts goes to `accepted`. It refuses peers
    before `open`."""

    def __init__(
        self,
        machine: Machine,
        owner: Owner,
        accepted: Callable[[Socket], object],
        host: str,
        port: int,
        backlog: int,
    ) -> None:
        self.owner = owner
        self.is_local = host in LOOPBACKS
        self.address = (host, port)
        self._machine = machine
        self._accepted = accepted
        self._backlog = max(1, backlog)
        self._waiting: deque[Socket] = deque()
        self.is_open = False
        self._is_started = False

    def open(self) -> None:
        """Refuses peers no more: they wait."""
        self.is_open = True

    def start(self) -> None:
        """Begins to accept, those that wait first."""
        self.is_open = self._is_started = True
        self._wake()

    def close(self) -> None:
        """Accepts no more; peers that wait are reset."""
        if self._machine.listeners.get(self.address[1]) is self:
            del self._machine.listeners[self.address[1]]
        for each in self._waiting:
            each.close()
        self._waiting.clear()

    @property
    def is_full(self) -> bool:
        """Whether as many wait as may."""
        return len(self._waiting) >= self._backlog

    def offer(self, peer: Socket) -> None:
        """A peer is connected, and waits to be accepted."""
        self._waiting.append(peer)
        self._wake()

    def _wake(self) -> None:
        if self._is_started and self._waiting:
            self.owner.loop.call_soon(self._accept)

    def _accept(self) -> None:
        while self._waiting:
            self._accepted(self._waiting.popleft())
