"""One peer's connection to the server: its requests answered one after the other.           [IO]

          bytes                frames            requests              responses, or Pending
    peer ──────> get_buffer ──────────> work ──────────────> Service ──────────────────────> Outbox

While an answer is pending or not yet sent, at most one more buffer is read. Behind writes that only
wait for replicas or the disk others of their kind are taken (`ahead`), and answered in order.

Owns   the request under way, the answers that wait, and whether the peer is read.
Never  knows an API. Never makes a task or logs a line for a request that is in order.
Fails  by closing this one connection, with one line that names the peer and the reason.
Source asyncio.BufferedProtocol; apache/kafka `SocketServer`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from kafkalite.core.broker.metrics import ApiMetrics, BrokerMetrics
from kafkalite.core.pending import NO_ANSWER, Encoded, Framed, Pending
from kafkalite.core.protocol.connection import (
    RequestHeader,
    RequestReceived,
    ServerConnection,
    UnknownApi,
)
from kafkalite.core.server.ahead import Ahead, AnswersAhead
from kafkalite.core.server.limits import ServerLimits
from kafkalite.core.server.outbox import Outbox
from kafkalite.core.sockets import set_options
from kafkalite.core.types import PeerIdentity
from kafkalite.errors import KafkaliteError, UnanswerableError

log: Final = logging.getLogger(__name__)

REQUESTS_PER_TURN: Final = 32  # of one connection, before others get theirs
REASON_CHARACTERS_MAX: Final = 500


class Service(Protocol):
    """The service that answers requests."""

    @property
    def metrics(self) -> BrokerMetrics:
        """The counters of the service."""

    def answer(self, request: RequestReceived, peer: PeerIdentity) -> Any:
        """A response; a `Pending` one; None where none is due.

        UnanswerableError or WireError where only hanging up is left.
        """

    def settle(self) -> None:
        """Some requests were answered: now the operations that they completed."""


class Host(Protocol):
    """A connection's interface to its server."""

    limits: ServerLimits
    seconds: Callable[[], float]
    service: Service
    metrics: BrokerMetrics
    turn_ends: float

    def admit(self, connection: Connection, host: str) -> str | None:
        """Takes a new connection in; why not, if it is one too many."""

    def forget(self, connection: Connection, host: str) -> None:
        """Notes that a connection is gone."""

    def reserve(self, connection: Connection, byte_count: int, whole: int) -> bool:
        """Whether `connection` may have a buffer of `byte_count` bytes now for its large request,
        which has `whole`; if not, the server calls it later."""

    def unreserve(self, connection: Connection) -> None:
        """The large request of `connection` is answered, or will never come."""

    def go_on(self, connection: Connection) -> None:
        """`connection` has requests, or room for their answers: it gets its turn."""


class Connection(asyncio.BufferedProtocol):
    """One peer."""

    def __init__(self, server: Host, loop: asyncio.AbstractEventLoop, listener: str) -> None:
        self._server = server
        self._loop = loop
        self._listener = listener
        self._seconds = server.seconds
        self._frames = ServerConnection(server.limits.socket_request_max_bytes)
        self._pending: Pending[Any] | None = None
        self._ahead = AnswersAhead()
        self._held: RequestReceived | UnknownApi | None = None  # until those are answered
        self._is_reading = True
        self._is_closing = False
        self._has_reserved = False  # room for the large request that is being received, or waits
        self._reserved_bytes = 0  # that it was given
        self._metrics = server.metrics
        self._last_active = loop.time()
        self._peer = self.client_host = "?"
        self._identity = PeerIdentity(self.client_host, listener)

    # -- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(self._loop, self._transport, self._on_sent)
        address = transport.get_extra_info("peername") or ("?", 0)
        self.client_host, self._peer = address[0], f"{address[0]}:{address[1]}"
        self._identity = PeerIdentity(self.client_host, self._listener)
        with suppress(OSError):  # the peer is gone already, as the next read will tell
            self._set_options(set_options(transport))
        self._metrics.connections_accepted += 1
        refusal = self._server.admit(self, self.client_host)
        if refusal is not None:
            self._metrics.connections_refused += 1
            self._hang_up(f"one connection too many: {refusal}")

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, byte_count: int) -> None:
        """Bytes have come."""
        self._last_active = self._loop.time()
        self._frames.buffer_updated(byte_count)
        if not self._can_go_on():
            self._read(False)  # enough: what has come is answered first
        elif self._frames.large_bytes:  # more of the large request must come
            self._read(self._has_room())
        else:
            self._server.go_on(self)

    def eof_received(self) -> bool:
        """The peer sends nothing more."""
        return False  # the transport closes, after what is unsent

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._is_closing = True
        self._outbox.close()
        self._frames.drop()  # not when the collector comes by: it and the transport are a circle
        self._abandon()
        self._server.forget(self, self.client_host)

    def pause_writing(self) -> None:
        """The socket is full."""
        self._outbox.pause_writing()

    def resume_writing(self) -> None:
        """The socket has taken all that it was given."""
        self._outbox.resume_writing()

    # -- requests

    def _can_go_on(self) -> bool:
        """Whether those before are answered, and the answers sent, or are writes that only wait."""
        if self._ahead and (self._held is not None or self._ahead.is_full):
            return False
        return self._pending is None and self._outbox.is_empty and not self._is_closing

    def work(self, *, is_last: bool = False) -> None:
        """Answers the requests that have arrived, until one must wait.

        `is_last`: no other connection has requests now. Then readers that wait for records of
        these requests are answered first: the system call for a producer's answer would delay them.
        """
        if not self._can_go_on():
            return
        outbox = self._outbox
        outbox.hold()
        try:
            try:
                has_more = self._answer_some()
                if is_last:
                    self._server.service.settle()
            finally:
                outbox.release()
        except KafkaliteError as error:
            self._metrics.connections_failed += 1
            self._hang_up(str(error))
            return
        except Exception:
            self._fail()
            return
        if has_more:
            self._read(False)
            self._server.go_on(self)
        elif has_more is not None and (self._frames.large_bytes or not self._is_reading):
            self._read(self._has_room())

    def _has_room(self) -> bool:
        """Whether what comes next may be received; if not, `receive_on` tells when."""
        wanted = self._frames.large_room_bytes
        if wanted <= self._reserved_bytes:
            return True
        self._has_reserved = True
        if not self._server.reserve(self, wanted, self._frames.large_bytes):
            return False
        self._reserved_bytes = wanted
        return True

    def _answer_some(self) -> bool | None:
        """Answers REQUESTS_PER_TURN requests at the most, and none after the turn's time is up.
        Whether there may be more; None while the last answer is not there yet, or not sent."""
        frames = self._frames
        for _ in range(REQUESTS_PER_TURN):
            request = self._held or (frames.next_event() if frames.may_have_frames else None)
            self._held = None
            if request is None:
                return False
            if self._ahead and not self._ahead.may_follow(request):
                self._held = request
                return None
            self._serve(request)
            if self._has_reserved and (self._pending is None or not self._pending.keeps_peer):
                self._end_reservation()
            if self._pending is not None or not self._can_go_on():
                return None
            if self._seconds() > self._server.turn_ends:
                return True
        return True

    def _end_reservation(self) -> None:
        """The large request is answered, or its bytes are no longer needed."""
        if self._has_reserved and not self._frames.large_bytes:
            self._has_reserved = False
            self._reserved_bytes = 0
            self._server.unreserve(self)

    def large_arrived_bytes(self) -> int:
        """How much has come of the large request that is being received."""
        return self._frames.large_arrived_bytes

    def receive_on(self) -> None:
        """There is room now for more of the large request that has begun to arrive."""
        self._last_active = self._loop.time()
        self._read(True)

    def _serve(self, request: RequestReceived | UnknownApi) -> None:
        if isinstance(request, UnknownApi):
            raise UnanswerableError(f"API key {request.api_key} is unknown")
        began, header = self._seconds(), request.header
        counters = self._metrics.api.get(header.api_key) or self._metrics.of(header.api_key)
        counters.requests += 1
        counters.request_bytes += len(request.body)
        response = self._server.service.answer(request, self._identity)
        if isinstance(response, Pending):
            if response.response is None:
                if response.is_only_waiting:
                    ahead = Ahead(header, counters, began, response)
                    self._ahead.append(ahead)
                    response.when_done(lambda done: self._on_ahead(ahead, done))
                    return
                self._pending = response
                if response.keeps_peer:
                    self._read(False)
                answered = self._on_late if self._ahead else self._on_answer
                response.when_done(lambda done: answered(header, done, counters, began))
                return
            response = response.response
        if response is not None and self._ahead:
            self._ahead.append(Ahead(header, counters, began, response=response))
        elif response is not None:
            self._send(header, response, counters, began)

    def _on_late(self, header: RequestHeader, response: Any, counts: Any, began: float) -> None:
        """The pending answer is there. It waits for those before it that are not."""
        if not self._ahead:
            return self._on_answer(header, response, counts, began)
        self._pending = None
        self._end_reservation()
        self._ahead.append(Ahead(header, counts, began, None, response))
        return self._on_sent() if self._can_go_on() else None

    def _on_ahead(self, ahead: Ahead, response: Any) -> None:
        """The answer to an earlier write is there. Called by the code that completed it."""
        ahead.pending, ahead.response = None, response
        for each in self._ahead.due():
            self._on_answer(each.header, each.response, each.counters, each.began, is_last=False)
            if self._is_closing:
                return
        if self._can_go_on():
            self._on_sent()

    def _on_answer(
        self, header: RequestHeader, response: Any, counters: ApiMetrics, began: float,
        *, is_last: bool = True,
    ) -> None:  # fmt: skip
        """The pending answer is there. Called by the code that completed it."""
        if is_last:
            self._pending = None
            if self._has_reserved:
                self._end_reservation()
        try:
            if isinstance(response, Exception):
                raise response
            if response is not NO_ANSWER:
                self._send(header, response, counters, began)
        except KafkaliteError as error:
            self._metrics.connections_failed += 1
            self._hang_up(str(error))
            return
        except Exception:
            self._fail()
            return
        if not is_last or not self._outbox.is_empty:
            return
        if self._frames.may_have_frames or self._is_closing or not self._is_reading:
            self._on_sent()
        else:  # there is nothing to go on with
            self._last_active = self._loop.time()

    def _send(
        self, header: RequestHeader, response: Any, counters: ApiMetrics, began: float
    ) -> None:
        if type(response) is Framed:
            self._outbox.send(response.parts)
            counters.sent(response.size_bytes, self._seconds() - began)
            return
        data = None
        if type(response) is Encoded:
            message, data, errors = response
            response = message if errors is None else errors
        parts, size = self._frames.send(header, response if data is None else data)
        self._outbox.send(cast(Any, parts))
        counters.answered(response, size, self._seconds() - began)

    def _on_sent(self) -> None:
        """There is room again for the next answer."""
        self._last_active = self._loop.time()
        if self._is_closing:
            self._transport.close()
        else:
            self._server.go_on(self)

    # -- the end

    def finish(self) -> None:
        """Closes once all answers are sent; pending requests get no answer."""
        self._is_closing = True
        self._abandon()
        if self._outbox.is_empty:
            self._transport.close()

    def _abandon(self) -> None:
        if self._pending is not None:
            self._pending.abandon()
        self._pending = self._held = None
        self._ahead.abandon()

    def abort(self) -> None:
        """Cuts the connection."""
        self._transport.abort()

    def give_up(self, why: str) -> None:
        """Hangs up on a peer that keeps others waiting for the room that its request takes, unless
        all of the request has come and is being answered."""
        if not self._frames.large_bytes:
            return
        self._metrics.connections_failed += 1
        size, arrived = self._frames.large_bytes, self._frames.large_arrived_bytes
        self._hang_up(f"a request of {size} bytes {why} while others wait; {arrived} have come")
        self.abort()  # not after what it may have left unread

    def close_if_idle_since(self, deadline: float) -> None:
        """Closes the connection of a peer that was silent for too long, also if it waits for an
        answer: else the server would not notice that it is gone. A slow reader is not silent."""
        if max(self._last_active, self._outbox.last_sent) < deadline:
            self._metrics.connections_idle += 1
            log.info("%s: idle for connections.max.idle.ms, closed", self._peer)
            self.finish() if self._outbox.is_empty else self.abort()

    def _hang_up(self, reason: str) -> None:
        log.warning("%s: closed: %s", self._peer, _one_line(reason))
        self._is_closing = True
        self._transport.close()

    def _fail(self) -> None:
        """A defect of the broker: logged once in full; only this connection is closed."""
        self._metrics.connections_failed += 1
        log.exception("%s: closed: an unexpected error", self._peer)
        self._is_closing = True
        self._transport.abort()

    def _read(self, wanted: bool) -> None:
        if wanted is not self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            transport = self._transport
            transport.resume_reading() if wanted else transport.pause_reading()

    def _set_options(self, sock: socket.socket | None) -> None:
        limits = self._server.limits
        for option, size in (
            (socket.SO_SNDBUF, limits.socket_send_buffer_bytes),
            (socket.SO_RCVBUF, limits.socket_receive_buffer_bytes),
        ):
            if size > 0 and sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, option, size)


def _one_line(words: str) -> str:
    """Words in which a peer may have had a say: no lines of its own, and not without end."""
    short = words if len(words) <= REASON_CHARACTERS_MAX else f"{words[:REASON_CHARACTERS_MAX]}…"
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in short)
