"""Sockets: order, back pressure, limits, and peers that misbehave."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from peers import FakeService, FileStretch, Peer, serving, until

from kafkalite.core.protocol.api_versions import ApiVersionsRequest
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import ClientConnection
from kafkalite.core.protocol.fetch import (
    FetchRequest,
)
from kafkalite.core.protocol.groups import HeartbeatRequest, HeartbeatResponse
from kafkalite.core.protocol.metadata import MetadataRequest
from kafkalite.core.server import server as server_module
from kafkalite.core.server.ahead import WRITES_MAX
from kafkalite.core.server.connection import REQUESTS_PER_TURN
from kafkalite.core.server.limits import ServerLimits
from kafkalite.core.server.network import SocketNetwork
from kafkalite.core.server.outbox import INLINE_BYTES_MAX, Outbox
from kafkalite.core.server.server import CONNECTIONS_PER_TURN, Server
from kafkalite.core.types import PeerIdentity
from kafkalite.errors import ErrorCode

pytestmark = pytest.mark.usefixtures("each_loop")


def test_answers_come_in_order_also_when_one_must_wait() -> None:
    async def story() -> None:
        service = FakeService()
        async with serving(service) as (_, connect):
            peer = await connect()
            peer.send(ApiVersionsRequest(), 1)
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            for _ in range(100):
                peer.send(ApiVersionsRequest(), 1)
            assert (await peer.receive()).throttle_time_ms == 1
            await until(lambda: service.waiting)
            assert service.asked == [ApiKey.API_VERSIONS, ApiKey.HEARTBEAT]
            service.waiting[0].complete(HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
            assert (await peer.receive()).error_code is ErrorCode.ILLEGAL_GENERATION
            assert [(await peer.receive()).throttle_time_ms for _ in range(100)] == [*range(3, 103)]

    asyncio.run(story())


def test_behind_requests_that_only_wait_others_of_their_kind_are_taken() -> None:
    codes = [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]

    async def story() -> None:
        service = FakeService(only_waits=True)
        async with serving(service) as (_, connect):
            peer = await connect()
            for _ in codes:
                peer.send(HeartbeatRequest("g", 1, "m"), 0)
            peer.send(ApiVersionsRequest(), 1)
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: len(service.waiting) == len(codes))
            for place in (2, 1, 0):
                assert service.asked == [ApiKey.HEARTBEAT] * 3, "another kind waits its turn"
                service.waiting[place].complete(HeartbeatResponse(error_code=codes[place]))
            assert [(await peer.receive()).error_code for _ in codes] == codes
            assert (await peer.receive()).throttle_time_ms == 4
            await until(lambda: len(service.waiting) == 4)
            service.only_waits = False
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: len(service.waiting) == 5)
            service.waiting[3].complete(HeartbeatResponse())
            await peer.receive()
            assert len(service.waiting) == 5, "nothing is taken behind one that does more than wait"
            service.waiting[4].complete(HeartbeatResponse())
            await peer.receive()
            await until(lambda: len(service.waiting) == 6)

    asyncio.run(story())


def test_an_answer_that_takes_work_waits_for_those_before_it() -> None:
    codes = [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]

    async def story() -> None:
        service = FakeService(only_waits=True)
        async with serving(service) as (_, connect):
            peer = await connect()
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: len(service.waiting) == 1)
            service.only_waits = False  # as of a batch that is checked in a thread
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: len(service.waiting) == 2)
            service.waiting[1].complete(HeartbeatResponse(error_code=codes[1]))
            await until(lambda: len(service.waiting) == 3)
            service.waiting[0].complete(HeartbeatResponse(error_code=codes[0]))
            service.waiting[2].complete(HeartbeatResponse(error_code=codes[2]))
            assert [(await peer.receive()).error_code for _ in codes] == codes

    asyncio.run(story())


def test_no_more_requests_are_taken_ahead_than_are_allowed() -> None:
    async def story() -> None:
        service = FakeService(only_waits=True)
        async with serving(service) as (server, connect):
            peer, other = await connect(), await connect()
            for _ in range(WRITES_MAX + 2):
                peer.send(HeartbeatRequest("g", 1, "m"), 0)
            for allowed in (WRITES_MAX, WRITES_MAX + 1, WRITES_MAX + 2):
                await until(lambda: len(service.waiting) == allowed)  # noqa: B023
                other.send(ApiVersionsRequest(), 1)
                await other.receive()
                assert len(service.waiting) == allowed
                service.waiting[allowed - WRITES_MAX].complete(HeartbeatResponse())
                await peer.receive()
            peer.writer.close()
            await until(lambda: len(server.connections) == 1)
            assert sum(each.is_abandoned for each in service.waiting) == WRITES_MAX - 1

    asyncio.run(story())


def test_one_connection_takes_no_more_than_its_time_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "TURN_SECONDS", -1.0)  # one request, and it is over

    async def story() -> None:
        service = FakeService()
        async with serving(service) as (_, connect):
            busy, other = await connect(), await connect()
            for _ in range(REQUESTS_PER_TURN):
                busy.send(ApiVersionsRequest(), 0)
            other.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: service.waiting)
            assert service.asked.index(ApiKey.HEARTBEAT) < REQUESTS_PER_TURN, "before the last"
            for _ in range(REQUESTS_PER_TURN):
                await busy.receive()

    asyncio.run(story())


def test_a_turn_that_comes_after_all_was_done_does_nothing() -> None:
    """More connections can go on than have room in one turn, and others speak before the next."""

    async def story() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        service = FakeService()
        async with serving(service) as (_, connect):
            waiting = [await connect() for _ in range(CONNECTIONS_PER_TURN + 10)]
            first, second = await connect(), await connect()
            for peer in waiting:
                peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: len(service.waiting) == len(waiting))

            def settle() -> None:
                while service.waiting:
                    service.waiting.pop().complete(HeartbeatResponse())

            service.settles = settle
            for peer in (first, second):
                peer.send(ApiVersionsRequest(), 0)
            for peer in (first, second, *waiting):
                await peer.receive()
        assert complaints == []

    asyncio.run(story())


def test_readers_are_answered_before_the_producer_that_woke_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A system call that tells the producer would delay them: the record has waited longer."""
    written: list[str] = []
    write = Outbox._write_held

    async def story() -> None:
        service = FakeService()
        async with serving(service) as (_, connect):
            reader, producer = await connect(), await connect()
            reader.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: service.waiting)

            def settle() -> None:
                if service.waiting:
                    written.append("reader")
                    service.waiting.pop().complete(HeartbeatResponse())

            def noted(outbox: Outbox) -> None:
                if outbox._held:
                    written.append("producer")
                write(outbox)

            service.settles = settle
            monkeypatch.setattr(Outbox, "_write_held", noted)
            producer.send(ApiVersionsRequest(), 0)
            await reader.receive()
            await producer.receive()

    asyncio.run(story())
    assert written == ["reader", "producer"]


def test_what_is_served_is_counted() -> None:
    async def story() -> None:
        service = FakeService()
        async with serving(service, max_connections=2) as (_, connect):
            peer = await connect()
            for _ in range(3):
                peer.send(ApiVersionsRequest(), 1)
                await peer.receive()
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: service.waiting)
            service.waiting[0].complete(HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
            await peer.receive()
            rude, late = await connect(), await connect()
            assert await late.is_hung_up_on()
            rude.writer.write(b"\xff" * 8)
            assert await rude.is_hung_up_on()
        metrics = service.metrics
        versions, heartbeat = metrics.api[ApiKey.API_VERSIONS], metrics.api[ApiKey.HEARTBEAT]
        assert (versions.requests, versions.latency.count, versions.errors) == (3, 3, {})
        assert (versions.request_bytes, versions.response_bytes) == (0, 3 * 18)
        assert heartbeat.errors == {ErrorCode.ILLEGAL_GENERATION: 1}
        assert heartbeat.request_bytes == 10  # "g", 1, "m"
        assert metrics.connections_accepted == 3
        assert (metrics.connections_refused, metrics.connections_failed) == (1, 1)

    asyncio.run(story())


@pytest.mark.parametrize("size", [10, INLINE_BYTES_MAX, 3_000_000])
@pytest.mark.parametrize("has_fileno", [True, False])
def test_file_parts_arrive_whole_and_in_place(tmp_path: Path, size: int, has_fileno: bool) -> None:
    async def story() -> None:
        data = Random(size).randbytes(size + 100)
        path = tmp_path / "file"
        path.write_bytes(data)
        service = FakeService(files=[FileStretch(path, n, size, has_fileno) for n in (0, 50, 100)])
        async with serving(service) as (_, connect):
            peer = await connect()
            for _ in range(3):
                peer.send(FetchRequest(), 11)
            for _ in range(3):
                (topic,) = (await peer.receive()).responses
                assert [bytes(p.records) for p in topic.partitions] == [
                    data[n : n + size] for n in (0, 50, 100)
                ]
        for file in service.files:
            if file.fd >= 0:
                os.close(file.fd)

    asyncio.run(story())


def test_a_peer_that_does_not_read_is_not_served_on(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(32 << 20))
        service = FakeService(files=[FileStretch(path, 0, 32 << 20)])
        async with serving(service) as (_, connect):
            slow, other = await connect(), await connect()
            for _ in range(5):
                slow.send(FetchRequest(), 11)
            await until(lambda: service.asked)
            for _ in range(20):
                other.send(ApiVersionsRequest(), 0)
                await other.receive()
            assert service.asked.count(ApiKey.FETCH) == 1
            await slow.receive()
            await until(lambda: service.asked.count(ApiKey.FETCH) == 2)

    asyncio.run(story())


def test_a_file_that_ends_early_costs_the_connection(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(100_000))
        service = FakeService(files=[FileStretch(path, 0, 200_000)])
        async with serving(service) as (server, connect):
            peer = await connect()
            peer.send(FetchRequest(), 11)
            with pytest.raises((EOFError, ConnectionError)):
                await peer.receive()
            await until(lambda: not server.connections)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", 1_000_001), "a frame of 1000001 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes"),
        (struct.pack(">ihhi", 8, 999, 0, 1), "API key 999 is unknown"),
        (struct.pack(">ih", 2, 18), "a request of 2 bytes"),
        (struct.pack(">ihhih", 10, 18, 0, 1, 500), "runs past"),
    ],
)
def test_nonsense_ends_its_connection_with_one_line(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(FakeService(), socket_request_max_bytes=1_000_000) as (_, connect):
            good, bad = await connect(), await connect()
            bad.writer.write(sent)
            assert await bad.is_hung_up_on()
            good.send(ApiVersionsRequest(), 0)
            await good.receive()

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("127.0.0.1:")
    assert reason in line


def test_what_a_peer_says_makes_no_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        service = FakeService()
        async with serving(service) as (_, connect):
            for words in ("a topic\n2026 INFO all is well\x1b[2J", "x" * 100_000):
                service.refusal = words
                peer = await connect()
                peer.send(MetadataRequest(), 1)
                assert await peer.is_hung_up_on()

    asyncio.run(story())
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith("closed: a topic\\n2026 INFO all is well\\x1b[2J")
    assert len(second) < 600


def test_a_fault_of_the_service_is_told_once_and_ends_one_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with serving(FakeService()) as (_, connect):
            good, bad = await connect(), await connect()
            bad.send(MetadataRequest(), 1)
            assert await bad.is_hung_up_on()
            good.send(ApiVersionsRequest(), 0)
            await good.receive()

    asyncio.run(story())
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "a fault of the service" in str(record.exc_info[1])


def test_a_peer_that_leaves_abandons_its_pending_request() -> None:
    async def story() -> None:
        service = FakeService()
        async with serving(service) as (server, connect):
            peer = await connect()
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: service.waiting)
            left: list[bool] = []
            service.waiting[0].when_abandoned(lambda: left.append(True))
            peer.writer.close()
            await until(lambda: not server.connections)
            assert left == [True]
            service.waiting[0].complete(HeartbeatResponse())  # nobody listens, nothing breaks

    asyncio.run(story())


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
def test_one_connection_too_many_is_closed(limit: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with serving(FakeService(), **{limit: 2}) as (server, connect):
            first, second = await connect(), await connect()
            await until(lambda: len(server.connections) == 2)
            assert await (await connect()).is_hung_up_on()
            first.writer.close()
            await until(lambda: len(server.connections) == 1)
            again = await connect()
            for peer in (second, again):
                peer.send(ApiVersionsRequest(), 0)
                await peer.receive()

    asyncio.run(story())
    (line,) = [record.getMessage() for record in caplog.records]
    assert limit.replace("_", ".") in line


def test_the_idle_are_closed_also_those_who_wait_for_an_answer() -> None:
    """As Kafka does. Of one that has sent more behind its question nothing is read any more, so
    that nobody would ever know that it is gone."""

    async def story() -> None:
        service = FakeService()
        async with serving(service, connections_max_idle_ms=50) as (server, connect):
            idle, waiting = await connect(), await connect()
            waiting.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: service.waiting)
            waiting.send(ApiVersionsRequest(), 0)
            waiting.writer.transport.abort()
            assert await idle.is_hung_up_on()
            await until(lambda: not server.connections)
            assert service.waiting[0].is_abandoned

    asyncio.run(story())


def test_who_reads_an_answer_slowly_is_not_idle(tmp_path: Path) -> None:
    """As with Kafka, where a socket that takes more of an answer counts as active."""

    async def story() -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(32 << 20))
        service = FakeService(files=[FileStretch(path, 0, 32 << 20)])
        async with serving(service) as (server, connect):
            peer = await connect()
            peer.send(FetchRequest(), 11)
            await until(lambda: service.asked)
            (connection,) = server.connections
            asked_at = connection._last_active
            while connection._outbox.last_sent <= asked_at:
                peer.frames.receive_data(await peer.reader.read(1 << 16))
                await asyncio.sleep(0)
            connection.close_if_idle_since(connection._outbox.last_sent)
            (topic,) = (await peer.receive()).responses
            assert len(topic.partitions[0].records) == 32 << 20
            connection.close_if_idle_since(asyncio.get_running_loop().time())
            assert await peer.is_hung_up_on()

    asyncio.run(story())


def test_closing_sends_what_was_answered_and_drops_what_waits() -> None:
    async def story() -> None:
        service = FakeService()
        async with serving(service) as (server, connect):
            peer, waiting = await connect(), await connect()
            waiting.send(HeartbeatRequest("g", 1, "m"), 0)
            peer.send(ApiVersionsRequest(), 0)
            await until(lambda: len(service.asked) == 2)
            await server.close()
            await peer.receive()
            assert await peer.is_hung_up_on()
            assert await waiting.is_hung_up_on()
            assert service.waiting[0].is_abandoned
            with pytest.raises(ConnectionError):
                await connect()

    asyncio.run(story())


@pytest.mark.parametrize("seed", range(5))
def test_hostile_bytes_harm_nobody_else(seed: int) -> None:
    async def story() -> None:
        random = Random(seed)
        async with serving(FakeService(), socket_request_max_bytes=10_000) as (server, connect):
            good = await connect()
            whole = b"".join(ClientConnection("x").send(ApiVersionsRequest("a", "b"), 3)[1])  # type: ignore[arg-type]
            for _ in range(40):
                bad = await connect()
                data = bytearray(whole * 2)
                for _ in range(random.randrange(4)):
                    data[random.randrange(len(data))] = random.randrange(256)
                bad.writer.write(data[: random.randrange(1, len(data) + 1)])
                bad.writer.close()
                good.send(ApiVersionsRequest(), 0)
                await good.receive()
            await until(lambda: len(server.connections) == 1)

    asyncio.run(story())


def test_a_request_knows_the_listener_and_the_principal_of_its_connection() -> None:
    async def story() -> None:
        service = FakeService()
        server = Server(ServerLimits(), time.perf_counter, SocketNetwork())
        inside = await server.bind("127.0.0.1", 0, "INTERNAL")
        outside = await server.bind("127.0.0.1", 0, "EXTERNAL")
        await server.start(service)
        for address in (inside, outside):
            peer = Peer(*await asyncio.open_connection(*address))
            peer.send(ApiVersionsRequest(), 0)
            await peer.receive()
            peer.writer.close()
        await server.close()
        assert service.peers == [
            PeerIdentity("127.0.0.1", "INTERNAL", "User:ANONYMOUS"),
            PeerIdentity("127.0.0.1", "EXTERNAL", "User:ANONYMOUS"),
        ]

    asyncio.run(story())
