"""One connection to a broker: a request goes out, a future or a call gets the answer.       [IO]

`protocol.connection` makes and reads the bytes; this module puts a socket under it. Large frames
are received straight into buffers of their own. A Kafka broker answers a connection's requests one
after the other, so requests that may wait for long (a fetch, a join) get connections of their own.

Owns   the socket, the futures of the requests in flight, their timeouts.
Never  reconnects or retries: when the socket breaks, every future fails and that is the end of it.
       Nor lets a request arrive late that was given up: the connection is reset then.
Fails  with BrokerUnavailable naming the address: refused, broken, or silent for too long.
Source KIP-511 (versions are negotiated first), KIP-219; apache/kafka `NetworkClient`.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from kafkalite.core import sockets
from kafkalite.core.network import Connect
from kafkalite.core.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafkalite.core.protocol.apis import API, ApiKey, key_of
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.connection import ClientConnection
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, WireError

R = TypeVar("R")

SOFTWARE_NAME: Final = "kafkalite"
SOFTWARE_VERSION: Final = "0.1.0"
JOIN_BELOW_BYTES: Final = 65_536  # parts smaller than this leave in one write
SLICE_BYTES: Final = 262_144
WRITE_BUFFER_BYTES: Final = 4 << 20  # beyond it `is_writable` says no

Versions = Mapping[ApiKey, tuple[int, int]]
NO_LIMITS: Final[Mapping[ApiKey, int]] = MappingProxyType({})
Answered = Callable[[Any], None]  # called with the answer, or the error instead


class _InFlight(NamedTuple):
    """A request that is not answered yet."""

    answered: Answered
    due: float  # the answer, by the loop's clock
    key: ApiKey
    timeout_ms: int


class BrokerConnection(asyncio.BufferedProtocol):
    """An open connection. `open_connection` makes one; `is_open` says whether it still lives."""

    def __init__(
        self,
        address: str,
        client_id: str,
        request_timeout_ms: int,
        newest: Mapping[ApiKey, int] = NO_LIMITS,
    ) -> None:
        """`newest` bounds the versions of some APIs: this side could read more than it speaks."""
        self.address = address
        self._newest = newest
        self.versions: Versions = {}
        self.is_open = False
        self.was_busy = False  # when it broke: requests were in flight
        self._request_timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._wire = ClientConnection(client_id)
        self._transport: asyncio.Transport | None = None
        self._in_flight: dict[int, _InFlight] = {}  # by correlation id
        self._timer: asyncio.TimerHandle | None = None  # one for all: most never time out
        self._timer_at = math.inf
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_paused = False
        self._error: Exception | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()

    # ---- requests ----

    @property
    def in_flight(self) -> int:
        """How many requests have not been answered."""
        return len(self._in_flight)

    @property
    def is_writable(self) -> bool:
        """Whether callers may send more: the peer has taken most of the bytes so far."""
        return self._unsent_bytes < WRITE_BUFFER_BYTES

    def version_of(self, key: ApiKey) -> int:
        """The newest version that both sides speak; ApiError naming the ranges if there is none."""
        low, high = API[key].versions
        high = self._newest.get(key, high)
        theirs = self.versions.get(key)
        if theirs is None and key.is_private:  # never listed: brokers of one release
            theirs = low, high
        if theirs is None:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} does not know {API[key].name}",
            )
        version = min(high, theirs[1])
        if version < max(low, theirs[0]):
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} speaks {API[key].name} {theirs[0]} to {theirs[1]}, "
                f"this client {low} to {high}",
            )
        return version

    def submit(self, request: Request[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        """Sends a request at once. The future gets the answer, or BrokerUnavailable.

        Raises BrokerUnavailable if the connection is closed, ApiError if the broker does not
        speak the request's API, WireError if a value does not fit its field.
        """
        return self._send(request, self.version_of(key_of(request)), timeout_ms)

    def call(self, request: Request[Any], answered: Answered, timeout_ms: int) -> None:
        """The same for a caller that needs no future: `answered` gets the answer, or the error, in
        the turn of the loop in which it comes. It must not fail. Raises as `submit` does."""
        self._send_for(request, self.version_of(key_of(request)), timeout_ms, answered)

    def call_with(
        self, key: ApiKey, version: int, body: bytes, answered: Answered, timeout_ms: int
    ) -> None:
        """The same for a caller that writes and reads the small bodies of messages itself, in a
        `version` that both sides speak: `answered` gets the answer's body."""
        self._check_open()
        correlation_id, frame = self._wire.send_body(key, version, body)
        self._expect(correlation_id, answered, key, timeout_ms)
        if self._unsent or self._is_paused:
            self._write([frame])
        else:  # as nearly always
            assert self._transport is not None
            self._transport.write(frame)

    def send_unanswered(self, request: Request[Any]) -> None:
        """Sends a request that gets no answer: a Produce with acks 0."""
        self._check_open()
        _, parts = self._wire.send(request, self.version_of(key_of(request)))
        self._write(cast("list[Buffer]", parts))

    async def negotiate(self) -> None:
        """Learns which versions the broker speaks; first of all."""
        api = API[ApiKey.API_VERSIONS]
        version = api.versions[1]
        response = await self._ask_versions(version)
        if response.error_code is ErrorCode.UNSUPPORTED_VERSION:
            # Such a broker answers in v0 and names, if it is kind, the versions it knows.
            known = {v.api_key: v.max_version for v in response.api_keys}
            response = await self._ask_versions(min(version - 1, known.get(api.key, 0)))
        if response.error_code is not ErrorCode.NONE:
            raise ApiError(response.error_code, f"the broker at {self.address} refuses ApiVersions")
        self.versions = {
            ApiKey(v.api_key): (v.min_version, v.max_version)
            for v in response.api_keys
            if v.api_key in API
        }

    def _ask_versions(self, version: int) -> asyncio.Future[ApiVersionsResponse]:
        request = ApiVersionsRequest(SOFTWARE_NAME, SOFTWARE_VERSION)
        return self._send(request, version, None)

    def _send(self, request: Request[R], version: int, timeout_ms: int | None) -> asyncio.Future[R]:
        future: asyncio.Future[R] = self._loop.create_future()
        self._send_for(request, version, timeout_ms, partial(_settle, future))
        return future

    def _send_for(
        self, request: Request[Any], version: int, timeout_ms: int | None, answered: Answered
    ) -> None:
        self._check_open()
        correlation_id, parts = self._wire.send(request, version)
        timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        self._expect(correlation_id, answered, key_of(request), timeout_ms)
        self._write(cast("list[Buffer]", parts))

    def _check_open(self) -> None:
        if not self.is_open:
            raise BrokerUnavailable(f"the connection to {self.address} is closed")

    def _write(self, parts: list[Buffer]) -> None:
        """Lets small parts leave together and large ones as they are."""
        small: list[Buffer] = []
        for part in parts:
            if len(part) < JOIN_BELOW_BYTES:
                small.append(part)
                continue
            self._unsent += [memoryview(b"".join(small)), memoryview(part)]
            small = []
        if small:
            self._unsent.append(memoryview(b"".join(small)))
        self._unsent_bytes += sum(map(len, parts))
        self._write_on()

    def _write_on(self) -> None:
        """Writes until the socket is full.

        The transport copies what the socket does not take, so it gets a slice at a time and
        nothing more while it holds any.
        """
        assert self._transport is not None
        while self._unsent and not self._is_paused:
            part = self._unsent[0]
            self._transport.write(part[:SLICE_BYTES])
            self._unsent_bytes -= min(len(part), SLICE_BYTES)
            if len(part) > SLICE_BYTES:
                self._unsent[0] = part[SLICE_BYTES:]
            else:
                self._unsent.popleft()

    def _expect(
        self, correlation_id: int, answered: Answered, key: ApiKey, timeout_ms: int
    ) -> None:
        due = self._loop.time() + timeout_ms / 1000
        self._in_flight[correlation_id] = _InFlight(answered, due, key, timeout_ms)
        if due < self._timer_at:
            self._wake_at(due)

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._look), at

    def _look(self) -> None:
        """Fails if an answer is overdue, and looks again when the next one is due."""
        self._timer, self._timer_at = None, math.inf
        first = min(self._in_flight.values(), key=lambda each: each.due, default=None)
        if first is None:
            return
        if first.due > self._loop.time():
            self._wake_at(first.due)
            return
        what = f"{API[first.key].name} in {first.timeout_ms / 1000:g} s"
        self.give_up(f"{self.address} did not answer {what}")

    # ---- the end ----

    def close(self) -> None:
        """Closes the socket; every request in flight fails."""
        self._fail(BrokerUnavailable(f"the connection to {self.address} was closed"))

    def give_up(self, why: str) -> None:
        """Breaks the connection, as what was asked will be asked of another broker, or again:
        requests that have not reached the broker never do. Every request in flight fails."""
        if self._transport is not None and self.is_open:
            sockets.reset(self._transport)
        self._fail(BrokerUnavailable(why))

    async def closed(self) -> None:
        """Waits until the socket is gone."""
        await asyncio.shield(self._lost)

    def when_closed(self, act: Callable[[], None]) -> None:
        """Calls `act` when the socket is gone."""
        self._lost.add_done_callback(lambda _: act())

    def _fail(self, error: Exception) -> None:
        """The connection has no future any more, and neither have its futures."""
        self._error = self._error or error
        self.is_open = False
        in_flight, self._in_flight = self._in_flight, {}
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
        for each in in_flight.values():
            each.answered(self._error)

    # ---- asyncio calls these ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=0)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        why = f": {error}" if error is not None else ""
        self.was_busy = self.was_busy or bool(self._in_flight)
        self._fail(BrokerUnavailable(f"the connection to {self.address} broke{why}"))
        if not self._lost.done():
            self._lost.set_result(None)

    def get_buffer(self, size_hint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._wire.get_buffer(size_hint)

    def buffer_updated(self, byte_count: int) -> None:
        """Bytes have come: whole answers among them go to their futures."""
        self._wire.buffer_updated(byte_count)
        try:
            wire = self._wire
            while (
                self.is_open and wire.may_have_frames and (event := wire.next_event()) is not None
            ):
                self._in_flight.pop(event.correlation_id).answered(event.message)
        except WireError as error:
            self._fail(WireError(f"{self.address} sent an invalid response: {error}"))

    def pause_writing(self) -> None:
        """The socket is full."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The socket has taken all it was given."""
        self._is_paused = False
        if self.is_open:
            self._write_on()


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    """Gives a future its answer or error, unless its caller was cancelled."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # a caller that still waits gets it; if nobody does, it is no news
    else:
        future.set_result(answer)


async def open_connection(
    host: str,
    port: int,
    *,
    client_id: str,
    request_timeout_ms: int,
    connect_timeout_ms: int,
    connect: Connect = sockets.connect,
    newest: Mapping[ApiKey, int] = NO_LIMITS,
) -> BrokerConnection:
    """Connects and negotiates versions. BrokerUnavailable says which of the two failed."""
    address = show_address(host, port)
    connection = BrokerConnection(address, client_id, request_timeout_ms, newest)
    try:
        async with asyncio.timeout(connect_timeout_ms / 1000):
            await connect(lambda: connection, host, port)
            await connection.negotiate()
    except TimeoutError as error:
        connection.close()
        seconds = connect_timeout_ms / 1000
        raise BrokerUnavailable(f"{address} did not answer in {seconds:g} s") from error
    except (OSError, UnicodeError) as error:  # the latter: a name that no host can have
        raise BrokerUnavailable(f"cannot connect to {address}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def why_unavailable(error: BrokerUnavailable) -> str:
    """In few words what came of an attempt of `open_connection`."""
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return "it is silent"
    if isinstance(cause, socket.gaierror):
        return str(cause.strerror).lower()
    if isinstance(cause, OSError) and cause.errno is not None:
        return os.strerror(cause.errno).lower()
    return "it hangs up" if cause is None else str(cause)


def show_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
