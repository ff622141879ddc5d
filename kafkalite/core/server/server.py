"""The listening sockets, and the turns and the room that connections share.                 [IO]

    peers ──accepted──> connections ──go_on──> due, one after the other, for a part of each turn
                            └──large requests──> the room for their buffers, in order

A peer that does not read its answers cannot send more requests (`connection`). This is the whole
back pressure, but for large requests: they are received as long as the buffers of those under way
have not taken `queued_max_request_bytes`. Requests up to SMALL_REQUEST_BYTES have a part of it to
themselves, and one host may hold half of either part. Later ones wait, unread, in order; meanwhile
the server hangs up on a peer that sends less than RECEIVE_BYTES_PER_SECOND_MIN, or that has not
sent all in RECEIVE_SECONDS_MAX.

Owns   sockets: their number, idle times and ends.
Fails  by closing the one connection at fault.
Source apache/kafka `SocketServer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from kafkalite.core.broker.metrics import BrokerMetrics
from kafkalite.core.network import Listener, Network
from kafkalite.core.server.connection import Connection, Service
from kafkalite.core.server.limits import NEVER, ServerLimits
from kafkalite.core.server.request_room import RequestRoom
from kafkalite.core.types import DEFAULT_LISTENER

log: Final = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.005  # for all connections, before the loop does something else
PAUSE_SECONDS: Final = 0.001  # after which the loop has done something else
CONNECTIONS_PER_TURN: Final = 64  # before the loop looks for new bytes
DRAIN_SECONDS_MAX: Final = 5.0
SMALL_REQUEST_BYTES: Final = 2 << 20  # what producers send: a reserve of the room is theirs
SMALL_SHARE: Final = 8  # the reserve is the 8th part of the room
HOSTS_SHARE: Final = 2  # one host may hold half of the reserve, and of the rest
RECEIVE_BYTES_PER_SECOND_MIN: Final = 65_536  # of a large request for whose room others wait
RECEIVE_SECONDS_MAX: Final = 30.0  # a large request for whose room others wait: as clients time out


class Server:
    """Listens on some addresses and serves the connections."""

    def __init__(
        self, limits: ServerLimits, seconds: Callable[[], float], network: Network
    ) -> None:
        """`seconds` measures how long connections have worked."""
        self._network = network
        self.limits = limits
        self.seconds = seconds
        self.service: Service  # from `start` on
        self.metrics: BrokerMetrics  # the service's
        self.connections: dict[Connection, None] = {}  # in the order of their coming
        self.connections_by_host: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop  # from `bind` on: asking for it is a system call
        self._accepting: list[Listener] = []
        self._idle_check: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Event = asyncio.Event()
        self._due: deque[Connection] = deque()  # those that can go on answering
        small = limits.queued_max_request_bytes // SMALL_SHARE
        large = limits.queued_max_request_bytes - small
        self.small_room: RequestRoom[Connection] = RequestRoom(small, small // HOSTS_SHARE)
        self.room: RequestRoom[Connection] = RequestRoom(large, large // HOSTS_SHARE)
        self._small_bytes = min(SMALL_REQUEST_BYTES, small)
        self._room_check: asyncio.TimerHandle | None = None  # while others wait
        self._in_turn = False
        self._goes_on_later = False  # with those that are due, in the next turn of the loop
        self._worked_until = 0.0
        self.turn_ends = 0.0  # when connections have had their part of this turn of the loop

    async def bind(self, host: str, port: int, listener: str = DEFAULT_LISTENER) -> tuple[str, int]:
        """Takes an address, where peers are refused yet; returns it, port 0 replaced by a free one.

        Peers that come in there are said to have come by `listener`. OSError when the address is
        taken or is not ours.
        """
        loop = self._loop = asyncio.get_running_loop()

        def make() -> Connection:
            return Connection(self, loop, listener)

        opened = await self._network.listen(make, host, port, self.limits.backlog)
        self._accepting += opened
        return opened[0].address

    def open(self) -> None:
        """Refuses peers no more: they wait for `start`, or are turned away if it comes late."""
        for each in self._accepting:
            each.open()

    async def start(self, service: Service) -> None:
        """Begins to accept; `service` answers."""
        assert self._accepting, "bind first"
        self.service, self.metrics = service, service.metrics
        for each in self._accepting:
            each.start()
        if self.limits.connections_max_idle_ms != NEVER:
            self._check_for_idle(self._loop)

    def stop_accepting(self) -> None:
        """Closes the listening sockets; connections go on."""
        for each in self._accepting:
            each.close()
        for check in (self._idle_check, self._room_check):
            if check is not None:
                check.cancel()

    async def close(self) -> None:
        """Closes all connections, once their answers are sent, or DRAIN_SECONDS_MAX later."""
        self.stop_accepting()
        for connection in tuple(self.connections):
            connection.finish()
        if self.connections:
            try:
                async with asyncio.timeout(DRAIN_SECONDS_MAX):
                    await self._all_gone.wait()
            except TimeoutError:
                log.warning("%d connections did not drain and are cut", len(self.connections))
                for connection in tuple(self.connections):
                    connection.abort()
                await asyncio.sleep(0)

    def admit(self, connection: Connection, host: str) -> str | None:
        """Takes a new connection in; why not, if it is one too many."""
        limits = self.limits
        of_host = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        refusal = None
        if len(self.connections) >= limits.max_connections:
            refusal = f"max.connections is {limits.max_connections}"
        elif self.connections_by_host[host] >= of_host:
            refusal = f"max.connections.per.ip is {of_host}"
        self.connections[connection] = None
        self.connections_by_host[host] += 1
        self._all_gone.clear()
        return refusal

    def forget(self, connection: Connection, host: str) -> None:
        """Notes that a connection is gone."""
        self.connections.pop(connection, None)
        self.unreserve(connection)
        self.connections_by_host[host] -= 1
        if not self.connections_by_host[host]:
            del self.connections_by_host[host]
        if not self.connections:
            self._all_gone.set()

    def reserve(self, connection: Connection, byte_count: int, whole: int) -> bool:
        """Whether `connection` may have a buffer of `byte_count` bytes now for its large request,
        which has `whole`; if not, the server calls it later."""
        room = self.small_room if whole <= self._small_bytes else self.room
        if room.take(connection, byte_count, whole, self._loop.time(), connection.client_host):
            return True
        if self._room_check is None:
            self._check_for_room(self._loop)
        return self._let_in(room, connection)

    def unreserve(self, connection: Connection) -> None:
        """The large request of `connection` is answered, or will never come."""
        for room in (self.small_room, self.room):
            room.give_back(connection)
            if room.is_wanted:
                self._let_in(room)

    def _let_in(self, room: RequestRoom[Connection], asking: Connection | None = None) -> bool:
        """Resumes waiting connections that have room. True if `asking`, not called, is one."""
        let_in = room.let_in(self._loop.time())
        for connection in let_in:
            if connection is not asking:
                connection.receive_on()
        return asking in let_in

    def _check_for_room(self, loop: asyncio.AbstractEventLoop) -> None:
        """While some wait, closes connections that hold room without receiving, or for longer than
        a request may take."""
        self._room_check = None
        seconds = RECEIVE_SECONDS_MAX / 8
        for room in (self.small_room, self.room):
            if not room.is_wanted:
                continue
            for connection in room.overdue(loop.time() - RECEIVE_SECONDS_MAX):
                connection.give_up(f"takes over {RECEIVE_SECONDS_MAX:g} s to come")
            least = round(RECEIVE_BYTES_PER_SECOND_MIN * seconds)
            for connection in room.slow(least, Connection.large_arrived_bytes):
                connection.give_up(f"has come by less than {least} bytes in {seconds:g} s")
        if self.small_room.is_wanted or self.room.is_wanted:
            self._room_check = loop.call_later(seconds, self._check_for_room, loop)

    def go_on(self, connection: Connection) -> None:
        """`connection` has requests, or room for their answers: it gets its turn.

        Answering one may let others go on, in this very call: a chain of them is no recursion.
        """
        self._due.append(connection)
        if not (self._in_turn or self._goes_on_later):
            self._take_turns()

    def _take_turns(self) -> None:
        """Runs the connections that are due. Calls in quick succession share the time of one turn:
        the loop has reported several connections."""
        self._in_turn = True
        began = self.seconds()
        if self._goes_on_later or began - self._worked_until > PAUSE_SECONDS:
            self.turn_ends = began + TURN_SECONDS
        self._goes_on_later = False
        due, settle = self._due, self.service.settle
        try:
            for _ in range(CONNECTIONS_PER_TURN):
                if not due:  # also where others spoke before this turn, and all was done
                    return
                connection = due.popleft()
                connection.work(is_last=not due)
                if not due:
                    settle()  # may make others due
                if self.seconds() > self.turn_ends:
                    break
            settle()
        finally:
            self._in_turn = False
            self._worked_until = self.seconds()
        self._goes_on_later = True
        self._loop.call_soon(self._take_turns)

    def _check_for_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        idle_seconds = self.limits.connections_max_idle_ms / 1_000
        for connection in tuple(self.connections):
            connection.close_if_idle_since(loop.time() - idle_seconds)
        self._idle_check = loop.call_later(idle_seconds / 4, self._check_for_idle, loop)
