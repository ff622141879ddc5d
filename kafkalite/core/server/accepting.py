"""One listening socket, and the connections of its peers.                                 [IO]

    open ──start──> readable ──> accept, until none waits ───> a transport and a protocol for each
      │                            └── out of descriptors or memory: no accepts for PAUSE_SECONDS
      └── after WAIT_SECONDS ──> accept and close, until `start`

Owns   the socket. Peers that wait during a pause stay in the system's queue; those that wait for a
       start that takes long are turned away, as others may serve them.
Fails  by logging that peers wait and why, one line a minute: asyncio's own servers log a traceback
       for each place of the queue, each second.
Source asyncio.base_events.Server; apache/kafka `Acceptor`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Final

log: Final = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 3.0
TELL_SECONDS: Final = 60.0
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
NOBODY_WAITS: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)


class Acceptor:
    """Accepts at the socket of a server that is bound and does not serve: it is ours then."""

    def __init__(
        self, bound: asyncio.Server, backlog: int, make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        (there,) = bound.sockets
        self._socket = there.dup()
        self._socket.setblocking(False)
        bound.close()
        self._backlog = backlog
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._has_started = False
        self._opening: set[asyncio.Task[object]] = set()  # connections whose protocol is made
        self._pause: asyncio.TimerHandle | None = None
        self._told_s = -TELL_SECONDS + self._loop.time()

    @property
    def address(self) -> tuple[str, int]:
        """The address of the listener."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def open(self) -> None:
        """Refuses peers no more: they wait in the system's queue, for WAIT_SECONDS at the most."""
        self._socket.listen(self._backlog)
        self._pause = self._loop.call_later(WAIT_SECONDS, self._go_on)

    def start(self) -> None:
        """Begins to accept, those that wait first."""
        if self._pause is not None:
            self._pause.cancel()
        self._has_started = True
        self._socket.listen(self._backlog)
        self._go_on()

    def close(self) -> None:
        """Accepts no more peers; connections continue."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()
        self._socket.close()

    def _go_on(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(self._backlog):
            try:
                peer, _address = self._socket.accept()
            except NOBODY_WAITS:
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._wait(error)
                return
            if not self._has_started:
                peer.close()
                continue
            peer.setblocking(False)
            opening = self._loop.connect_accepted_socket(self._make, peer)
            task: asyncio.Task[object] = self._loop.create_task(opening)
            self._opening.add(task)
            task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection could not be taken up: %s", error)

    def _wait(self, error: OSError) -> None:
        """Others have to let go of something first."""
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._go_on)
        if self._loop.time() - self._told_s >= TELL_SECONDS:
            self._told_s = self._loop.time()
            host, port = self.address
            log.error("%s:%d: peers wait and cannot be accepted: %s", host, port, error.strerror)
