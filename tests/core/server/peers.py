"""A service, a server before it, and clients without manners."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafkalite.core.broker.metrics import BrokerMetrics
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.api_versions import ApiVersionsResponse
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import ClientConnection, RequestReceived
from kafkalite.core.protocol.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.server.limits import ServerLimits
from kafkalite.core.server.network import SocketNetwork
from kafkalite.core.server.server import Server
from kafkalite.core.types import PeerIdentity
from kafkalite.errors import UnanswerableError


@dataclass
class FileStretch:
    path: Path
    position: int
    size_bytes: int
    has_fileno: bool = True
    fd: int = -1

    def fileno(self) -> int | None:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDONLY)
        return self.fd if self.has_fileno else None

    def read(self) -> bytes:
        return self.path.read_bytes()[self.position : self.position + self.size_bytes]


@dataclass
class FakeService:
    """ApiVersions is answered at once, Heartbeat and Produce when told, Fetch from files; Metadata
    fails."""

    waiting: list[Pending[Any]] = field(default_factory=list)
    files: list[FileStretch] = field(default_factory=list)
    asked: list[ApiKey] = field(default_factory=list)
    peers: list[PeerIdentity] = field(default_factory=list)
    metrics: BrokerMetrics = field(default_factory=BrokerMetrics)
    settles: Callable[[], None] = lambda: None
    refusal: str = ""
    keeps_peers: bool = False
    only_waits: bool = False

    def answer(self, request: RequestReceived, peer: PeerIdentity) -> Any:
        key = request.header.api_key
        self.asked.append(key)
        self.peers.append(peer)
        if key is ApiKey.API_VERSIONS:
            return ApiVersionsResponse(throttle_time_ms=len(self.asked))
        if key in (ApiKey.HEARTBEAT, ApiKey.PRODUCE):
            pending: Pending[Any] = Pending(
                keeps_peer=self.keeps_peers, is_only_waiting=self.only_waits
            )
            self.waiting.append(pending)
            return pending
        if key is ApiKey.FETCH:
            partitions = tuple(PartitionData(i, records=f) for i, f in enumerate(self.files))
            return FetchResponse(responses=(FetchableTopicResponse("t", partitions=partitions),))
        if self.refusal:
            raise UnanswerableError(self.refusal)
        raise RuntimeError("a fault of the service")

    def settle(self) -> None:
        self.settles()


class Peer:
    """A client without manners of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = ClientConnection("test")

    def send(self, request: Any, version: int) -> None:
        self.writer.write(b"".join(self.frames.send(request, version)[1]))  # type: ignore[arg-type]

    async def receive(self) -> Any:
        while (event := self.frames.next_event()) is None:
            data = await self.reader.read(1 << 20)
            if not data:
                raise EOFError
            self.frames.receive_data(data)
        return event.message

    async def is_hung_up_on(self) -> bool:
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True


Connect = Callable[[], Awaitable[Peer]]


@asynccontextmanager
async def serving(service: FakeService, **limits: int) -> AsyncIterator[tuple[Server, Connect]]:
    server = Server(ServerLimits(**limits), time.perf_counter, SocketNetwork())
    host, port = await server.bind("127.0.0.1", 0)
    await server.start(service)
    peers: list[Peer] = []

    async def connect() -> Peer:
        peers.append(Peer(*await asyncio.open_connection(host, port)))
        return peers[-1]

    try:
        yield server, connect
    finally:
        for peer in peers:
            peer.writer.close()
        await server.close()


async def until(condition: Callable[[], Any]) -> None:
    """Lets the loop run until something is so."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")
