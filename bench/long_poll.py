"""What a record costs the broker when it wakes a long poll: by the number of partitions waited for.

    python bench/long_poll.py [--partitions 1,100,1000,10000] [--records 200] [--rounds 5]

A reader waits for all partitions of a topic, a producer sends one record to one of them, and the
reader asks again from behind it. The broker runs in this process and is handed the bytes of the
requests, without sockets; figures are CPU microseconds a record, the least of all rounds:

    produce   the producer's request, from its bytes to those of its answer, and the note of it
    wake      the reader's answer, to its bytes
    wait      the reader's next request, from its bytes until it waits, in threads too

Without a fetch session each request and each answer carry the whole list, which must be decoded and
encoded; with one they carry what changed, so that no figure grows with the list.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from kafkalite.core.handlers.service import BrokerService
from kafkalite.core.pending import Encoded, Framed, Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.connection import ClientConnection, RequestReceived, ServerConnection
from kafkalite.core.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from kafkalite.core.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.types import Columns, PeerIdentity
from kafkalite.node import Node, start_node

PRODUCE_V: Final = 8
FETCH_V: Final = 11  # as librdkafka asks: the last without tagged fields
HOUR_MS: Final = 3_600_000


class Peer:
    """A connection without sockets: requests go in as bytes, answers come out as bytes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._service = BrokerService(node.broker)
        self._frames = ServerConnection()
        self._requests = ClientConnection("bench")
        self._event: RequestReceived | None = None
        self._pending: Pending[Any] | None = None
        self._has_answer = asyncio.Event()
        self.answer = b""

    def frame(self, request: Request[Any], version: int) -> bytes:
        """A request's bytes."""
        parts = self._requests.send(request, version)[1]
        return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]

    def ask(self, frame: bytes) -> None:
        """Hands the broker a request; `answer` has its answer, now or when it is there."""
        self._frames.receive_data(frame)
        event = self._frames.next_event()
        assert isinstance(event, RequestReceived)
        self._event, self.answer = event, b""
        response = self._service.answer(event, PeerIdentity("127.0.0.1"))
        if isinstance(response, Pending):
            self._pending = response
            response.when_done(self._on_done)
        else:
            self._on_done(response)

    async def answered(self, frame: bytes) -> None:
        """Hands the broker a request that it answers some turns of the loop later."""
        self._has_answer.clear()
        self.ask(frame)
        await self._has_answer.wait()

    async def parked(self, frame: bytes) -> None:
        """Hands the broker a request that waits: at once, or when a thread has read its list."""
        self.ask(frame)
        for _ in range(20_000):
            if len(self._node.broker.waiting):
                break
            await asyncio.sleep(0.000_5)
        assert not self.answer, "the reader does not wait"

    def leave(self) -> None:
        """Waits no longer."""
        assert self._pending is not None
        self._pending.abandon()

    def settle(self) -> None:
        """What the requests completed is answered."""
        self._service.settle()

    def _on_done(self, response: Any) -> None:
        assert self._event is not None
        if isinstance(response, Framed):
            parts, _ = response
        else:
            response = response.data if isinstance(response, Encoded) else response
            parts, _ = self._frames.send(self._event.header, response)
        self.answer = b"".join(bytes(p) if isinstance(p, bytes) else p.read() for p in parts)
        self._has_answer.set()


class Reader:
    """One that waits for all partitions of a topic, and knows where it is in each."""

    def __init__(self, peer: Peer, topic: str, offsets: list[int], *, in_session: bool) -> None:
        self.peer = peer
        self._topic = topic
        self._offsets = offsets
        self._in_session = in_session
        self._session_id, self._epoch = 0, 0 if in_session else -1

    async def begin(self) -> None:
        """Begins its session, if it wants one, and waits."""
        if self._in_session:
            await self.peer.answered(self.request(range(len(self._offsets)), max_wait_ms=0))
            response = codec.decode(FetchResponse, self.peer.answer[8:], FETCH_V)
            assert response.session_id, "the broker begins no session"
            self._session_id, self._epoch = response.session_id, 1
        await self.peer.parked(self.request(range(0)))

    def request(self, changed: range, max_wait_ms: int = HOUR_MS) -> bytes:
        """The frame that asks for what comes next; a session is told of `changed` alone."""
        told = changed if self._in_session else range(len(self._offsets))
        wanted = tuple(
            FetchPartition(i, fetch_offset=self._offsets[i], partition_max_bytes=1 << 20)
            for i in told
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=(FetchTopic(self._topic, partitions=wanted),) if wanted else (),
        )
        return self.peer.frame(request, FETCH_V)

    def has_read(self, partition: int) -> bytes:
        """One record of `partition` has come: the next request."""
        self._offsets[partition] += 1
        self._epoch += self._in_session
        return self.request(range(partition, partition + 1))


def produce_frame(peer: Peer, topic: str, partition: int) -> bytes:
    """A request that appends one record of 100 bytes."""
    batch = encode(Columns([None], [b"v" * 100], [int(time.time() * 1_000)]))
    data = (TopicProduceData(topic, (PartitionProduceData(partition, batch),)),)
    return peer.frame(ProduceRequest(None, 1, 30_000, data), PRODUCE_V)


async def measure(
    node: Node, topic: str, offsets: list[int], records: int, *, in_session: bool
) -> list[float]:
    """Microseconds a record to produce, to wake, to wait. `offsets` are the ends of the logs."""
    reader, writer = Reader(Peer(node), topic, offsets, in_session=in_session), Peer(node)
    spent_ns = [0, 0, 0]
    clock = time.process_time_ns
    await reader.begin()
    for number in range(records):
        place = number * len(offsets) // records
        frame = produce_frame(writer, topic, place)
        at = [clock()]
        writer.ask(frame)
        at.append(clock())
        writer.settle()
        at.append(clock())
        assert writer.answer, "the record is not acknowledged"
        assert reader.peer.answer, "the reader is not woken"
        frame = reader.has_read(place)
        began = clock()
        await reader.peer.parked(frame)
        spent_ns[2] += clock() - began
        spent_ns[0] += at[1] - at[0]
        spent_ns[1] += at[2] - at[1]
    reader.peer.leave()
    return [spent / records / 1_000 for spent in spent_ns]


async def measure_all(scratch: Path, options: argparse.Namespace) -> None:
    """Prints the lines of a Markdown table."""
    node = await start_node(scratch / "data", "127.0.0.1:0", {})
    print("| partitions | produce | wake | wait | in a session: produce | wake | wait |")
    print("|---|---|---|---|---|---|---|")
    try:
        for partitions in map(int, options.partitions.split(",")):
            topic, offsets = f"t{partitions}", [0] * partitions
            creation = CreateTopicsRequest((CreatableTopic(topic, partitions, 1, (), ()),))
            peer = Peer(node)
            await peer.answered(peer.frame(creation, 4))
            best = [float("inf")] * 6
            for _ in range(options.rounds):
                found: list[float] = []
                for in_session in (False, True):
                    found += await measure(
                        node, topic, offsets, options.records, in_session=in_session
                    )
                best = list(map(min, best, found))
            print(f"| {partitions:,} | {' | '.join(f'{each:,.1f}' for each in best)} |", flush=True)
    finally:
        await node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a record costs that wakes a long poll.")
    parser.add_argument("--partitions", default="1,100,1000,10000")
    parser.add_argument("--records", type=int, default=100, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bench-long-poll-"))
    try:
        asyncio.run(measure_all(scratch, options))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
