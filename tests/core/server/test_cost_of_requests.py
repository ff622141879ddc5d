"""What the ordinary requests cost: Python functions and system calls, counted and not timed.

A connection of a real broker is handed bytes, and its transport keeps what would be sent.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.connection import ClientConnection
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.protocol.usual_requests import NATIVE
from kafkalite.core.server import connection, server
from kafkalite.core.types import DEFAULT_LISTENER, Columns
from kafkalite.node import Node, start_node


class Options:
    """A socket that takes every option."""

    def setsockopt(self, *_: Any) -> None:
        pass


class Wire(asyncio.Transport):
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "socket": Options()})
        self.sent: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Peer:
    """One connection, and the bytes of its requests."""

    def __init__(self, node: Node) -> None:
        self.wire = Wire()
        self.broker = node.broker
        loop = asyncio.get_running_loop()
        self.connection = connection.Connection(node._server, loop, DEFAULT_LISTENER)
        self.connection.connection_made(self.wire)
        self.frames = ClientConnection("test")

    def frame(self, request: Request[Any], version: int) -> bytes:
        parts = self.frames.send(request, version)[1]
        return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]

    def receive(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.connection.buffer_updated(count)
            rest = rest[count:]

    async def make_topic(self, name: str) -> None:
        topic = CreatableTopic(name, 1, 1, (), ())
        self.receive(self.frame(CreateTopicsRequest((topic,)), 5))
        while not self.wire.sent:
            await asyncio.sleep(0.001)


def calls(act: Callable[[], None]) -> Counter[str]:
    """The Python functions that `act` calls, by name, itself left out."""
    counted: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            counted[frame.f_code.co_qualname] += 1

    gc.disable()  # a collection in between would call what Hypothesis has it call
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def batch(value_bytes: int) -> bytes:
    return encode(Columns([None], [b"v" * value_bytes], [1_000]))


def produce(records: bytes, acks: int = 1) -> ProduceRequest:
    data = (TopicProduceData("t", (PartitionProduceData(0, records),)),)
    return ProduceRequest(None, acks, 5_000, data)


def fetch(offset: int) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = (FetchTopic("t", partitions=(partition,)),)
    return FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics)


@asynccontextmanager
async def peers(directory: Path, count: int) -> AsyncIterator[list[Peer]]:
    node = await start_node(directory, listen="127.0.0.1:0")
    try:
        connected = [Peer(node) for _ in range(count)]
        await connected[0].make_topic("t")
        yield connected
        for peer in connected:
            peer.connection.connection_lost(None)
    finally:
        await node.close()


def produced(directory: Path, record_bytes: int) -> Counter[str]:
    """The calls of a second Produce request with a batch of one record."""

    async def story() -> Counter[str]:
        async with peers(directory, 1) as (peer,):
            frame = peer.frame(produce(batch(record_bytes)), 9)
            peer.receive(frame)
            count = len(peer.wire.sent)
            counted = calls(lambda: peer.receive(frame))
            assert len(peer.wire.sent) == count + 1
            return counted

    return asyncio.run(story())


def polled(directory: Path) -> tuple[Counter[str], Counter[str]]:
    """The calls of a batch that wakes a long poll, and those of the next poll."""

    async def story() -> tuple[Counter[str], Counter[str]]:
        async with peers(directory, 2) as (producer, reader):
            frame = producer.frame(produce(batch(100)), 7)
            reader.receive(reader.frame(fetch(0), 11))
            producer.receive(frame)
            reader.receive(reader.frame(fetch(1), 11))
            count = len(reader.wire.sent)
            woken = calls(lambda: producer.receive(frame))
            assert len(reader.wire.sent) == count + 1
            again = reader.frame(fetch(2), 11)
            return woken, calls(lambda: reader.receive(again))

    return asyncio.run(story())


def polled_in_session(directory: Path) -> tuple[Counter[str], Counter[str]]:
    """The same of a reader in a session that calls topics by their ids, as Java's consumer does."""

    async def story() -> tuple[Counter[str], Counter[str]]:
        async with peers(directory, 2) as (producer, reader):
            topic_id = producer.broker.image.topics["t"].topic_id
            session_id = 0

            def poll(epoch: int, offset: int) -> bytes:
                partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
                request = FetchRequest(
                    max_wait_ms=60_000 if epoch else 0,
                    min_bytes=1,
                    session_id=session_id,
                    session_epoch=epoch,
                    topics=(FetchTopic("", topic_id, (partition,)),),
                )
                return reader.frame(request, 16)

            frame = producer.frame(produce(batch(100)), 7)
            reader.receive(poll(0, 0))
            (session_id,) = producer.broker.fetch_sessions._sessions
            reader.receive(poll(1, 0))
            producer.receive(frame)
            reader.receive(poll(2, 1))
            count = len(reader.wire.sent)
            woken = calls(lambda: producer.receive(frame))
            assert len(reader.wire.sent) == count + 1
            again = poll(3, 2)
            return woken, calls(lambda: reader.receive(again))

    return asyncio.run(story())


@pytest.fixture(autouse=True)
def endless_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a turn ends with its requests."""
    monkeypatch.setattr(server, "TURN_SECONDS", 3_600)


def test_a_small_batch_takes_few_calls(tmp_path: Path) -> None:
    counted = produced(tmp_path, 100)
    assert counted.total() <= (72 if NATIVE else 150), counted.most_common()


def test_a_large_batch_takes_few_more(tmp_path: Path) -> None:
    counted = produced(tmp_path, 100_000)
    assert counted.total() <= (119 if NATIVE else 200), counted.most_common()


def test_a_record_that_wakes_a_long_poll_takes_few_calls(tmp_path: Path) -> None:
    woken, again = polled(tmp_path)
    assert woken.total() <= (104 if NATIVE else 220), woken.most_common()
    assert again.total() <= (46 if NATIVE else 85), again.most_common()


def test_a_record_that_wakes_a_session_takes_few_calls(tmp_path: Path) -> None:
    woken, again = polled_in_session(tmp_path)
    assert woken.total() <= (138 if NATIVE else 235), woken.most_common()
    assert again.total() <= (87 if NATIVE else 130), again.most_common()
