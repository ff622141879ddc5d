"""Two brokers of the same time that are asked the same; one has the short way of usual requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from kafkalite.core.broker.broker import Broker
from kafkalite.core.broker.sessions import FetchSession
from kafkalite.core.cluster.internal_topics import TRANSACTIONS_TOPIC
from kafkalite.core.handlers import service
from kafkalite.core.pending import Encoded, Framed, Pending
from kafkalite.core.protocol.apis import ApiKey, request_header_version
from kafkalite.core.protocol.connection import RequestReceived, ServerConnection
from kafkalite.core.protocol.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kafkalite.core.protocol.transactions import InitProducerIdRequest
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import PeerIdentity, RequestContext
from kafkalite.errors import KafkaliteError
from kafkalite.node import Node, start_node

TOPICS = {
    "plain": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "flushed": {"flush.messages": "1"},
    "small": {"max.message.bytes": "200"},
    "two-replicas": {"min.insync.replicas": "2"},
}
SETTINGS = {"transaction.state.log.num.partitions": "2"}  # to open 50 takes most of the time
NOW_MS = 1_700_000_000_000
PRODUCER = (0, 0)  # the first id that a broker gives out, and its epoch


class Asked:
    """One broker and what it answered, in bytes."""

    def __init__(self, node: Node, *, is_short: bool) -> None:
        self.broker: Broker = node.broker
        self.service = service.BrokerService(node.broker)
        self.is_short = is_short
        host, port = node.address
        self.address = host.encode() + port.to_bytes(4, "big")
        node.broker.fetch_sessions._random = Random(1)
        self.frames = ServerConnection()

    def ask(self, key: ApiKey, version: int, body: bytes) -> bytes | str | Pending[Any]:
        """The bytes of the answer, the words of an error, or what is waited for."""
        for name, image in self.broker.image.topics.items():
            body = body.replace(placeholder(name).bytes, image.topic_id.bytes)
        frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes((0, 0, 0, 9, 0, 1, 99))
        frame += b"\0" if request_header_version(key, version) == 2 else b""
        self.frames.receive_data((len(frame) + len(body)).to_bytes(4, "big") + frame + body)
        request = self.frames.next_event()
        assert isinstance(request, RequestReceived)
        self.request = request
        try:
            with pytest.MonkeyPatch.context() as patch:
                if not self.is_short:
                    patch.setattr(service, "USUAL", {})
                answer = self.service.answer(request, PeerIdentity("127.0.0.1"))
        except KafkaliteError as error:
            return f"{type(error).__name__}: {error}"
        self.answer = answer
        if isinstance(answer, Pending) and answer.response is None:
            return answer
        return self.sent(request, answer)

    def sent(self, request: RequestReceived, answer: Any) -> bytes:
        if isinstance(answer, Pending):
            answer = answer.response
        if isinstance(answer, Framed):
            parts, size = answer
        elif answer is None:
            return b""
        else:
            data = answer.data if type(answer) is Encoded else answer
            parts, size = self.frames.send(request.header, data)
        whole = b"".join(bytes(p) if isinstance(p, bytes | memoryview) else p.read() for p in parts)
        assert len(whole) == size
        for name, image in self.broker.image.topics.items():
            whole = whole.replace(image.topic_id.bytes, placeholder(name).bytes)
        return whole.replace(self.address, b"127.0.0.1port")

    def partitions(self) -> list[Partition]:
        return [each for topic in self.broker.topics_held() for each in topic]

    def state(self) -> list[object]:
        """What the requests have changed: logs, and counters of topics."""
        metrics = self.broker.metrics
        return [
            *(
                (
                    str(each.topic_partition),
                    each.log.log_end_offset,
                    each.log.high_watermark,
                    each.log.size_bytes,
                    each.log.max_timestamp(),
                    b"" if each.log.size_bytes == 0 else each.log.segments[0].log.read(0, 1 << 20),
                    len(each.watchers),
                )
                for each in self.partitions()
            ),
            metrics.topics,
            (metrics.batches_in, metrics.records_in, metrics.bytes_in, metrics.bytes_out),
            len(self.broker.waiting),
            [self.session(each) for each in self.broker.fetch_sessions._sessions.values()],
        ]

    @staticmethod
    def session(each: FetchSession) -> object:
        reading = each.reading
        asked = [partition for _, _, partition in reading.asked.values()]
        told = list(each.told.values())
        return each.session_id, each.epoch, asked, told, len(reading._stale or ())


@asynccontextmanager
async def both(directory: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Asked, Asked]]:
    """A broker with the short way and one without, at the same time of the clock."""
    nodes = [await start_node(directory / name, "127.0.0.1:0", SETTINGS) for name in ("a", "b")]
    try:
        for node in nodes:
            for name, configs in TOPICS.items():
                pairs = tuple(CreatableTopicConfig(k, v) for k, v in configs.items())
                topic = CreatableTopic(name, 2, 1, (), pairs)
                pending = node.broker.control(CreateTopicsRequest((topic,)))
                while pending.response is None:
                    await asyncio.sleep(0.001)
        for node in nodes:
            patch.setattr(type(node.broker._clock), "wall_ms", lambda _: NOW_MS)
            await make_transactions(node.broker)
        yield Asked(nodes[0], is_short=True), Asked(nodes[1], is_short=False)
        patch.undo()
    finally:
        for node in nodes:
            await node.close()


async def make_transactions(broker: Broker) -> None:
    """The coordinators' topic, and a producer that may open transactions as "t"."""
    pending = broker.create_topics((TRANSACTIONS_TOPIC,))
    while pending.response is None:
        await asyncio.sleep(0.001)
    transactions = broker.transactions
    index = transactions.index_of("t")
    made = transactions.handle(index, InitProducerIdRequest("t", 60_000), RequestContext(4))
    while made.response is None:
        await asyncio.sleep(0.001)
    assert (made.response.producer_id, made.response.producer_epoch) == PRODUCER


def placeholder(topic: str) -> UUID:
    """What requests call a topic instead of its id, which each broker makes up."""
    return UUID(bytes=topic.encode()[:16].ljust(16, b"#"))
