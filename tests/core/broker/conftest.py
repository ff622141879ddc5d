"""A broker in this process, and a client that says exactly what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.protocol.apis import API, key_of
from kafkalite.core.protocol.connection import ClientConnection
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import decode_all, encode
from kafkalite.core.protocol.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kafkalite.core.types import Columns
from kafkalite.node import Node, start_node

PRODUCE_V, FETCH_V = 9, 12


class Peer:
    """One connection. `ask` sends a request in the newest version, or the one given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = ClientConnection("test")

    def send(self, request: Any, version: int | None = None) -> None:
        if version is None:
            version = API[key_of(request)].versions[1]
        parts = self.frames.send(request, version)[1]
        self.writer.write(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]

    async def receive(self) -> Any:
        while (event := self.frames.next_event()) is None:
            data = await self.reader.read(1 << 20)
            if not data:
                raise EOFError("the broker hung up")
            self.frames.receive_data(data)
        return event.message

    async def ask(self, request: Any, version: int | None = None) -> Any:
        self.send(request, version)
        return await self.receive()

    async def is_hung_up_on(self) -> bool:
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True

    # -- the usual

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        pairs = (CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items())
        topic = CreatableTopic(name, partitions, 1, (), tuple(pairs))
        (result,) = (await self.ask(CreateTopicsRequest((topic,)))).topics
        assert not result.error_code, result

    async def produce(
        self, topic: str, *values: bytes, acks: int = -1, batch: bytes | None = None, **more: Any
    ) -> PartitionProduceResponse:
        columns = Columns([None] * len(values), list(values), [1_000] * len(values))
        records = encode(columns, **more) if batch is None else batch
        data = (TopicProduceData(topic, (PartitionProduceData(0, records),)),)
        response = await self.ask(ProduceRequest(None, acks, 5_000, data), PRODUCE_V)
        answer: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return answer

    def send_fetch(
        self, topic: str, offset: int = 0, *, version: int = FETCH_V, **more: Any
    ) -> None:
        partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
        wanted = (FetchTopic(topic, partitions=(partition,)),)
        settings = {"max_wait_ms": 0, "min_bytes": 1, **more}
        self.send(FetchRequest(topics=wanted, **settings), version)

    async def received_fetch(self) -> PartitionData:
        partition: PartitionData = (await self.receive()).responses[0].partitions[0]
        return partition

    async def values(self, topic: str, offset: int = 0, **more: Any) -> list[bytes]:
        self.send_fetch(topic, offset, **more)
        partition = await self.received_fetch()
        assert not partition.error_code, partition
        columns = decode_all(partition.records or b"")  # type: ignore[arg-type]
        assert columns.offsets is not None or not columns.values
        return [
            v for v, o in zip(columns.values, columns.offsets or (), strict=True) if o >= offset
        ]


async def until(condition: Callable[[], Any]) -> None:
    """Lets the loop run until something is so."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


class Running:
    """A node, and connections to it."""

    until = staticmethod(until)

    def __init__(self, node: Node) -> None:
        self.node = node
        self.broker = node.broker

    async def connect(self) -> Peer:
        return Peer(*await asyncio.open_connection(*self.node.address))


Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """`async with start(setting="value") as running`, again and again over the same directory."""

    @asynccontextmanager
    async def starting(**settings: str) -> AsyncIterator[Running]:
        overrides = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
        overrides["transaction.state.log.num.partitions"] = "4"
        overrides |= {name.replace("_", "."): value for name, value in settings.items()}
        node = await start_node(tmp_path / "data", "127.0.0.1:0", overrides)
        try:
            yield Running(node)
        finally:
            await node.close()

    return starting


@pytest.fixture
def connect() -> Callable[[str], Any]:
    """`await connect("host:port")` gives a `Peer`."""

    async def connecting(bootstrap_servers: str) -> Peer:
        host, _, port = bootstrap_servers.rpartition(":")
        return Peer(*await asyncio.open_connection(host, int(port)))

    return connecting
