"""A cluster for the clients' tests: our own broker in the same loop, or any other by its address.

`KAFKALITE_TEST_BOOTSTRAP=127.0.0.1:9092 pytest tests/core/clients` runs the same tests against
another broker, Apache Kafka's for example.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.protocol.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from kafkalite.core.protocol.apis import API
from kafkalite.core.protocol.codec import decode
from kafkalite.core.protocol.connection import RequestReceived, ServerConnection
from kafkalite.core.protocol.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkalite.core.protocol.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkalite.core.protocol.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafkalite.errors import ErrorCode

Scenario = Callable[[str], Awaitable[None]]
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


HANG = object()  # a handler returns it to leave a request without an answer
HANG_UP = object()  # and this to close the connection instead of answering


class FakeConnection(asyncio.Protocol):
    """The broker's end of one connection, answering by its broker's handlers."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._wire = ServerConnection()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._broker.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        self._wire.receive_data(data)
        while isinstance(event := self._wire.next_event(), RequestReceived):
            header = event.header
            api = API[header.api_key]
            request = decode(api.request, event.body, header.api_version)
            self._broker.asked.append(request)
            answer = self._broker.handlers[api.request](request)
            if answer is HANG_UP:
                self._transport.abort()
                return
            if answer is HANG:
                continue
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(lambda late, to=header: self._answer(to, late.result()))
            else:
                self._answer(header, answer)

    def _answer(self, header: Any, answer: Any) -> None:
        if isinstance(answer, bytes):
            self._transport.write(answer)
        else:
            parts, _ = self._wire.send(header, answer)
            self._transport.write(b"".join(bytes(part) for part in parts))


class FakeBroker:
    """A broker that answers as it is told: one node, its topics' leaders, and handlers to replace.

    A handler gives an answer, its bytes, a future of it, HANG or HANG_UP.

    `asked` is every request so far, decoded.
    """

    def __init__(self, node_id: int = 1, topics: dict[str, list[int]] | None = None) -> None:
        self.node_id = node_id
        self.topics = topics or {}  # the leader of each partition
        self.peers: list[FakeBroker] = [self]
        self.asked: list[Any] = []
        self.transports: list[asyncio.Transport] = []
        self.versions = {api.key: api.versions for api in API.values()}
        self.handlers: dict[type, Callable[[Any], Any]] = {
            ApiVersionsRequest: self.api_versions,
            MetadataRequest: self.metadata,
            InitProducerIdRequest: lambda _: InitProducerIdResponse(producer_id=7),
            FindCoordinatorRequest: self.find_coordinator,
        }

    async def __aenter__(self) -> FakeBroker:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def listen(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeConnection(self), "127.0.0.1", port)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        self.hang_up()
        await self._server.wait_closed()

    def hang_up(self) -> None:
        for transport in self.transports:
            transport.abort()
        self.transports.clear()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, request: type) -> int:
        return sum(isinstance(asked, request) for asked in self.asked)

    def api_versions(self, request: ApiVersionsRequest) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=tuple(ApiVersion(key, *both) for key, both in self.versions.items())
        )

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        brokers = tuple(
            MetadataResponseBroker(peer.node_id, "127.0.0.1", peer.port) for peer in self.peers
        )
        names = self.topics if request.topics is None else [t.name or "" for t in request.topics]
        return MetadataResponse(
            brokers=brokers, controller_id=1, topics=tuple(self.topic(n) for n in names)
        )

    def topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        partitions = tuple(
            MetadataResponsePartition(partition_index=i, leader_id=leader, leader_epoch=3)
            for i, leader in enumerate(self.topics[name])
        )
        return MetadataResponseTopic(name=name, partitions=partitions)

    def find_coordinator(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        key = request.coordinator_keys[0]
        there = Coordinator(key, self.node_id, "127.0.0.1", self.port)
        return FindCoordinatorResponse(coordinators=(there,))


@pytest.fixture
def fake_broker() -> type[FakeBroker]:
    """The class: make as many as a test needs."""
    return FakeBroker


@pytest.fixture
def hang() -> object:
    """What a fake broker's handler returns to leave a request without an answer."""
    return HANG


@pytest.fixture
def hang_up() -> object:
    """What a fake broker's handler returns to close the connection."""
    return HANG_UP


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a coroutine function with the bootstrap servers of a cluster."""

    async def with_own_broker(scenario: Scenario) -> None:
        from kafkalite.node import start_node

        node = await start_node(tmp_path / "data", "127.0.0.1:0", SETTINGS)
        try:
            await scenario(str(node.address))
        finally:
            await node.close()

    def go(scenario: Scenario) -> None:
        elsewhere = os.environ.get("KAFKALITE_TEST_BOOTSTRAP")
        if elsewhere:
            asyncio.run(scenario(elsewhere))  # type: ignore[arg-type]
        else:
            asyncio.run(with_own_broker(scenario))

    return go


@pytest.fixture
def name() -> Callable[[], str]:
    """Names of topics and groups that nobody else uses."""
    numbers, mark = itertools.count(1), uuid.uuid4().hex[:8]
    return lambda: f"test-{mark}-{next(numbers)}"
