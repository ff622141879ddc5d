"""Requests of a broker to other brokers.                                                    [IO]

    peers = Peers(network.connect, random, "broker-1")
    fetching = peers.channel(2, ("broker-2", 9092), "fetch")
    answer = await fetching.ask(request, timeout_ms=10_000)

A channel is one connection to one broker, which is opened when it is needed and opened again, after
a pause that grows with each failure, when it broke. `ask` tries once: whoever asks knows whether
the request may be repeated. A broker answers a connection's requests in order, so requests that may
wait for long (a follower's fetches, the metadata feed) have lanes of their own.

Owns   the connections, and the pauses between two attempts to connect.
Never  repeats a request; never lets more than `in_flight_max` of a channel be unanswered, or more
       than WAITING_MAX wait for their turn.
Fails  with BrokerUnavailable naming the address: it refuses, hangs up, or is silent for too long.
       Then every request in flight fails alike. `refused` tells a process that is gone from others.
Source KIP-144 (reconnects); apache/kafka `BrokerBlockingSender`, `NodeToControllerRequestThread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from kafkalite.core.backoff import Backoff
from kafkalite.core.network import Connect
from kafkalite.core.peers.connection import BrokerConnection, open_connection, show_address
from kafkalite.core.protocol.codec import Request
from kafkalite.errors import BrokerUnavailable, KafkaliteError

R = TypeVar("R")
Address = tuple[str, int]

DOUBT_SECONDS: Final = 0.5
WAITING_MAX: Final = 1_000  # requests of a channel that wait for their turn


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """How long things may take, in ms, and how many requests of a channel may be unanswered."""

    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    in_flight_max: int = 5


class PeerChannel:
    """One connection to another broker, whenever there is one."""

    def __init__(
        self, address: Address, connect: Connect, random: Random, client_id: str, limits: PeerLimits
    ) -> None:
        self.address = address
        self.was_open = False  # at any time
        self.on_change: Callable[[bool], None] = lambda is_open: None  # opened, or broke in use
        self._is_held = False
        self._connect = connect
        self._client_id = client_id
        self._limits = limits
        self._backoff = Backoff(
            random, limits.reconnect_backoff_ms, limits.reconnect_backoff_max_ms
        )
        self._retry_at = 0.0  # in the loop's time
        self._connection: BrokerConnection | None = None
        self._connecting: asyncio.Task[BrokerConnection] | None = None
        self._turns = asyncio.Semaphore(limits.in_flight_max)
        self._waiting = 0
        self._is_closed = False

    def __str__(self) -> str:
        return show_address(*self.address)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and self._connection.is_open

    async def ask(self, request: Request[R], timeout_ms: int | None = None) -> R:
        """The answer; its error codes are the caller's. All of it takes `timeout_ms` at the most,
        connecting and waiting for earlier requests included."""
        if timeout_ms is None:
            timeout_ms = self._limits.request_timeout_ms
        if self._waiting >= WAITING_MAX:
            raise BrokerUnavailable(f"{self}: {WAITING_MAX} requests wait for their turn")
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._turns.acquire()
        except TimeoutError as error:
            words = f"{self}: earlier requests were not answered in {timeout_ms / 1000:g} s"
            raise BrokerUnavailable(words) from error
        finally:
            self._waiting -= 1
        try:
            connection = await self._open(until, timeout_ms)
            left_ms = max(1, round((until - loop.time()) * 1000))
            return await connection.submit(request, left_ms)
        finally:
            self._turns.release()

    async def connected(self, timeout_ms: int) -> BrokerConnection:
        """The connection, for a caller that asks many requests one after the other. It is not
        counted among those that `in_flight_max` bounds. Fails as `ask` does."""
        until = asyncio.get_running_loop().time() + timeout_ms / 1000
        return await self._open(until, timeout_ms)

    async def hold(self, timeout_ms: int) -> None:
        """Connects, if there is no connection, and returns when it breaks."""
        self._is_held = True
        until = asyncio.get_running_loop().time() + timeout_ms / 1000
        connection = await self._open(until, timeout_ms)
        await connection.closed()

    async def close(self) -> None:
        """Closes the connection; requests in flight fail. Nothing can be asked any more."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            await self._connection.closed()

    # ---- the connection ----

    async def _open(self, until: float, timeout_ms: int) -> BrokerConnection:
        """The connection, once there is one."""
        if self._is_closed:
            raise BrokerUnavailable(f"the channel to {self} is closed")
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._try_to_connect())
            self._connecting.add_done_callback(_observed)
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.shield(self._connecting)
        except TimeoutError as error:
            words = f"{self} did not answer in {timeout_ms / 1000:g} s"
            raise BrokerUnavailable(words) from error
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise BrokerUnavailable(f"the channel to {self} is closed") from None

    async def _try_to_connect(self) -> BrokerConnection:
        """One attempt, after the pause that the last failure asks for."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._retry_at - loop.time()))
        try:
            connection = await open_connection(
                *self.address,
                client_id=self._client_id,
                request_timeout_ms=self._limits.request_timeout_ms,
                connect_timeout_ms=self._limits.connect_timeout_ms,
                connect=self._connect,
            )
        except KafkaliteError:
            self._retry_at = loop.time() + self._backoff.failed() / 1000
            raise
        self._backoff.succeeded()
        self._connection, self.was_open = connection, True
        connection.when_closed(lambda: self._on_closed(connection))
        self.on_change(True)
        return connection

    def _on_closed(self, connection: BrokerConnection) -> None:
        """One that nobody uses breaks when the peer has found it idle for too long."""
        if not self._is_closed and (connection.was_busy or self._is_held):
            self.on_change(False)


class Peers:
    """A broker's channels to others, by broker and lane. `random` spreads their reconnects."""

    def __init__(
        self, connect: Connect, random: Random, client_id: str, limits: PeerLimits | None = None
    ) -> None:
        self._connect = connect
        self._random = random
        self._client_id = client_id
        self._limits = limits or PeerLimits()
        self._channels: dict[tuple[int, str], PeerChannel] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._lost_at: dict[int, float] = {}  # by broker

    def channel(self, node_id: int, address: Address, lane: str) -> PeerChannel:
        """The channel to a broker, a new one if the broker has moved."""
        found = self._channels.get((node_id, lane))
        if found is None or found.address != address:
            if found is not None:
                self._let_go(found)
            found = self._channels[node_id, lane] = PeerChannel(
                address, self._connect, self._random, self._client_id, self._limits
            )
            found.on_change = partial(self._on_change, node_id)
        return found

    def has_met(self, node_id: int, address: Address) -> bool:
        """Whether a connection to the broker was open at that address, since it was forgotten."""
        own = (channel for (node, _), channel in self._channels.items() if node == node_id)
        return any(each.was_open and each.address == address for each in own)

    def in_doubt(self) -> set[int]:
        """The brokers to which a connection broke less than DOUBT_SECONDS ago, and none was opened
        since."""
        since = asyncio.get_running_loop().time() - DOUBT_SECONDS
        return {node_id for node_id, at in self._lost_at.items() if at >= since}

    def _on_change(self, node_id: int, is_open: bool) -> None:
        if is_open:
            self._lost_at.pop(node_id, None)
        else:
            self._lost_at[node_id] = asyncio.get_running_loop().time()

    def forget(self, node_id: int) -> None:
        """The broker has left: its connections close, and requests in flight fail."""
        for key in [key for key in self._channels if key[0] == node_id]:
            self._let_go(self._channels.pop(key))

    async def close(self) -> None:
        """Closes all connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            self._let_go(channel)
        await asyncio.gather(*self._leaving)

    def _let_go(self, channel: PeerChannel) -> None:
        closing = asyncio.get_running_loop().create_task(channel.close())
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard)


def refused(error: BrokerUnavailable) -> bool:
    """Whether nobody listens at the address: the machine is there, and the process is gone."""
    return isinstance(error.__cause__, ConnectionRefusedError)


def _observed(task: asyncio.Task[Any]) -> None:
    """Marks a failure as seen: requests that wait get it, and asyncio does not log it."""
    if not task.cancelled():
        task.exception()
