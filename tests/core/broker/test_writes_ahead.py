"""Writes of one connection are appended while those before them wait for the followers."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.handlers import service
from kafkalite.core.handlers.service import BrokerService
from kafkalite.core.peers.connection import open_connection
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.protocol.compiler import LARGE_RECORDS_BYTES
from kafkalite.core.protocol.connection import RequestHeader, RequestReceived
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.usual_requests import NATIVE
from kafkalite.core.types import Columns, PeerIdentity
from kafkalite.testing.cluster import PORT

WRITES = 5


@pytest.mark.parametrize("seed", range(2))
def test_writes_wait_for_the_followers_together_and_are_answered_in_order(seed: int) -> None:
    with ThreeBrokers(seed) as place:
        place.create(NewTopic("t", 1, 3))
        leader = place.state("t").leader
        place.pass_seconds(1)  # the followers fetch
        place.isolate(leader, from_clients=False)
        answers: list[int] = []

        async def write() -> None:
            ports = place.world.client_ports(place.chance("writer"))
            connection = await open_connection(
                f"broker-{leader}", PORT, client_id="writer", request_timeout_ms=60_000,
                connect_timeout_ms=5_000, connect=ports.connect,
            )  # fmt: skip

            async def one(number: int) -> Any:
                batch = encode(Columns([b"k"], [b"%d" % number], [1_000]))
                data = TopicProduceData("t", (PartitionProduceData(0, batch),))
                answer = await connection.submit(ProduceRequest(None, -1, 60_000, (data,)))
                (found,) = answer.responses[0].partition_responses
                answers.append(found.base_offset)
                return found.error_code

            codes = await asyncio.gather(*(one(number) for number in range(WRITES)))
            assert codes == [0] * WRITES
            connection.close()

        writing = place.peer.spawn(write())
        log = place.held(leader, "t").log
        place.until(lambda: log.log_end_offset == WRITES)
        assert log.high_watermark == 0
        assert answers == []
        place.heal()
        place.until(writing.done)
        writing.result()
        assert answers == [*range(WRITES)]


def test_a_replicated_write_takes_the_short_way_at_all_its_stations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ThreeBrokers() as place:
        place.create(NewTopic("t", 1, 3))
        place.produce("t", b"first")
        place.pass_seconds(1)  # the followers' sessions have begun
        decoded: list[str] = []
        decode = codec.decode

        def counted(cls: Any, *args: Any) -> Any:
            decoded.append(cls.__name__)
            return decode(cls, *args)

        monkeypatch.setattr(codec, "decode", counted)
        place.produce("t", *(b"%d" % number for number in range(10)))
        place.pass_seconds(1)
        assert place.held(place.state("t").leader, "t").log.high_watermark == 11
        assert "ApiVersionsRequest" in decoded
        if NATIVE:  # else nothing has a short way
            assert not {"ProduceRequest", "FetchRequest"} & {*decoded}


def test_a_follower_fetches_on_in_the_turn_of_the_answer_without_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ThreeBrokers() as place:
        place.create(NewTopic("t", 1, 3))
        place.produce("t", b"first")
        leader = place.state("t").leader
        follower = place.other(leader, place.controller())
        place.pass_seconds(1)
        made: list[str] = []
        host = place.brokers[follower].host
        assert host is not None
        create_task = host.loop.create_task

        def counted(program: Any, **more: Any) -> Any:
            made.append(program.__qualname__)
            return create_task(program, **more)

        monkeypatch.setattr(host.loop, "create_task", counted)
        place.produce("t", *(b"%d" % number for number in range(10)))
        assert place.held(follower, "t").log.log_end_offset == 11
        assert not {"PeerChannel.ask", "PeerChannel.connected", "Event.wait"} & {*made}


class Body(bytearray):
    """The bytes of a request; a weak reference tells of their end."""


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("size", [100, LARGE_RECORDS_BYTES + 1])
def test_a_write_that_waits_holds_no_bytes_of_its_request(
    monkeypatch: pytest.MonkeyPatch, size: int, is_short: bool
) -> None:
    if not is_short:
        monkeypatch.setattr(service, "USUAL", {})
    with ThreeBrokers() as place:
        place.create(NewTopic("t", 1, 3))
        leader = place.state("t").leader
        place.pass_seconds(1)  # the followers fetch
        place.isolate(leader, from_clients=False)
        batch = encode(Columns([b"k"], [b"v" * size], [1_000]))
        data = TopicProduceData("t", (PartitionProduceData(0, batch),))
        request = ProduceRequest(None, -1, 60_000, (data,))
        version = API[ApiKey.PRODUCE].versions[1]
        answering = BrokerService(place.broker(leader))
        sent = []
        for number in range(WRITES):
            body = Body(codec.encode(request, version))
            header = RequestHeader(ApiKey.PRODUCE, version, number, "writer")
            answer = answering.answer(
                RequestReceived(header, memoryview(body)), PeerIdentity("peer", "PLAINTEXT")
            )
            answering.settle()
            assert isinstance(answer, Pending)
            assert answer.response is None
            sent.append((answer, weakref.ref(body)))
            del body
        assert place.held(leader, "t").log.log_end_offset == WRITES
        assert [held() for _, held in sent[:-1]] == [None] * (WRITES - 1), "but for the last one"
