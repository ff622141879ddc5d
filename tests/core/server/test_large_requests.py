"""Large requests: memory for what has come, and peers that keep others waiting."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from pathlib import Path

import pytest
from peers import FakeService, serving, until

from kafkalite.core.pending import NO_ANSWER
from kafkalite.core.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import FIRST_BYTES_MAX
from kafkalite.core.protocol.groups import HeartbeatRequest
from kafkalite.core.server import server as server_module
from kafkalite.errors import UnanswerableError

pytestmark = pytest.mark.usefixtures("each_loop")


def large(size: int) -> bytes:
    """A Produce request of `size` bytes, most of them the client's id and what follows it."""
    return struct.pack(">ihhih", size, ApiKey.PRODUCE, 0, 1, 0) + bytes(size - 10)


@pytest.mark.parametrize(
    ("key", "size", "reason"),
    [
        (ApiKey.HEARTBEAT, 1 << 19, "a request of 524288 bytes (HEARTBEAT); 262144 are allowed"),
        (ApiKey.METADATA, 1 << 25, "(METADATA); 16777216 are allowed"),
        (12_345, 1 << 25, "(unknown); 262144 are allowed"),
    ],
)
def test_only_records_make_a_request_very_large(
    key: int, size: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(FakeService()) as (server, connect):
            for sent in (6, 7):  # the key's second byte decides
                peer = await connect()
                request = struct.pack(">ihhih", size, key, 0, 1, 0)
                peer.writer.write(request[: sent - 1])
                await peer.writer.drain()
                await until(lambda: server.connections)
                assert not caplog.text or sent == 7
                peer.writer.write(request[sent - 1 :])
                assert await peer.is_hung_up_on()

    asyncio.run(story())
    assert reason in caplog.text


def test_an_answer_may_fail_or_be_none_after_all(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        service = FakeService()
        async with serving(service) as (_, connect):
            peer = await connect()
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            peer.send(ApiVersionsRequest(), 0)
            await until(lambda: service.waiting)
            peer.frames._in_flight.popleft()  # no answer will come
            service.waiting.pop().complete(NO_ANSWER)
            assert isinstance(await peer.receive(), ApiVersionsResponse)
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: service.waiting)
            service.waiting.pop().fail(UnanswerableError("acks=0 to t-0 failed"))
            assert await peer.is_hung_up_on()

    asyncio.run(story())
    assert "closed: acks=0 to t-0 failed" in caplog.text


def test_a_peer_that_leaves_does_not_end_work_that_keeps_it() -> None:
    async def story() -> None:
        service = FakeService(keeps_peers=True)
        async with serving(service) as (server, connect):
            peer = await connect()
            peer.send(HeartbeatRequest("g", 1, "m"), 0)
            await until(lambda: service.waiting)
            peer.writer.close()
            await asyncio.sleep(0.05)
            assert not service.waiting[0].is_abandoned
            service.waiting[0].complete(NO_ANSWER)
            await until(lambda: not server.connections)

    asyncio.run(story())


def test_large_requests_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    async def story() -> None:
        service = FakeService()
        async with serving(service, queued_max_request_bytes=700_000) as (server, connect):
            first, second, third = [await connect() for _ in range(3)]
            small = await connect()
            request = large(200_000)
            for peer in (first, second):
                peer.writer.write(request[:100_000])
            await until(lambda: len(server.room.holders) == 2)
            third.writer.write(request)
            await until(lambda: server.room.waiting)
            small.send(ApiVersionsRequest(), 0)
            await small.receive()  # who asks for little is not held up
            assert service.asked == [ApiKey.API_VERSIONS]
            first.writer.write(request[100_000:])  # leaves 200,000: the third is let in
            await until(lambda: service.asked.count(ApiKey.PRODUCE) == 2)
            second.writer.close()
            await until(lambda: not server.room.holders)
            assert (server.room.taken, server.room.waiting) == (0, ())

    asyncio.run(story())


def test_who_does_not_send_what_it_announced_keeps_others_waiting_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "RECEIVE_SECONDS_MAX", 0.05)

    async def story() -> None:
        service = FakeService()
        async with serving(service, queued_max_request_bytes=200_000) as (server, connect):
            silent, honest = await connect(), await connect()
            request = large(200_000)
            silent.writer.write(request[:50_000])
            await until(lambda: server.room.holders)
            await asyncio.sleep(0.2)
            assert len(server.room.holders) == 1, "in nobody's way"
            honest.writer.write(request)
            assert await silent.is_hung_up_on()
            await until(lambda: service.waiting)

    asyncio.run(story())
    assert "a request of 200000 bytes takes over 0.05 s to come" in caplog.text


def test_who_stalls_while_others_wait_is_hung_up_on_before_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "RECEIVE_SECONDS_MAX", 8.0)

    async def story() -> None:
        service = FakeService()
        async with serving(service, queued_max_request_bytes=200_000) as (server, connect):
            silent, honest = await connect(), await connect()
            request = large(200_000)
            silent.writer.write(request[:50_000])
            await until(lambda: server.room.holders)
            honest.writer.write(request)
            assert await silent.is_hung_up_on()
            await until(lambda: service.waiting)

    asyncio.run(story())
    assert "a request of 200000 bytes has come by less than 65536 bytes in 1 s" in caplog.text
    assert "while others wait; 49996 have come" in caplog.text


def test_the_memory_of_a_broken_request_is_free_at_once() -> None:
    """Not when the garbage collector looks at old objects, which may be never."""

    async def story() -> None:
        async with serving(FakeService()) as (server, connect):
            peer = await connect()
            peer.writer.write(large(20_000_000)[:5_000_000])
            await until(lambda: server.room.taken > 5_000_000)
            (connection,) = server.connections
            buffer = weakref.ref(connection._frames._view)
            peer.writer.transport.abort()
            await until(lambda: not server.connections)
            assert buffer() is None
            assert server.room.taken == 0

    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


def test_who_waits_for_room_and_leaves_is_forgotten() -> None:
    async def story() -> None:
        async with serving(FakeService(), queued_max_request_bytes=1) as (server, connect):
            holder, waiter = await connect(), await connect()
            request = large(200_000)
            holder.writer.write(request[:50_000])
            await until(lambda: server.room.holders)
            waiter.writer.write(request[:50_000])
            await until(lambda: server.room.waiting)
            for connection in server.room.waiting:
                connection.abort()
            await until(lambda: not server.room.waiting)
            assert len(server.room.holders) == 1

    asyncio.run(story())


@pytest.mark.slow
def test_who_announces_much_and_sends_little_is_in_nobodys_way() -> None:
    """What counts is the memory that is taken, not what sizes promise."""

    async def story() -> None:
        service = FakeService()
        limit = 80 * FIRST_BYTES_MAX
        async with serving(service, queued_max_request_bytes=limit) as (server, connect):
            for _ in range(15):
                (await connect()).writer.write(large(90_000_000)[:50_000])
            await until(lambda: len(server.room.holders) == 15)
            assert server.room.taken == 15 * FIRST_BYTES_MAX
            honest = await connect()
            honest.writer.write(large(15_000_000))
            await until(lambda: service.waiting)
            assert (server.room.taken, server.room.waiting) == (15 * FIRST_BYTES_MAX, ())

    asyncio.run(story())


def test_large_requests_that_all_need_more_room_than_there_is_come_to_their_end() -> None:
    async def story() -> None:
        service = FakeService()
        limit = 3 * FIRST_BYTES_MAX
        async with serving(service, queued_max_request_bytes=limit) as (server, connect):
            for _ in range(6):
                (await connect()).writer.write(large(7_000_000))
            await until(lambda: len(service.waiting) == 6)
            assert (server.room.taken, server.room.waiting) == (0, ())

    asyncio.run(story())


def test_small_requests_have_room_of_their_own() -> None:
    """Stalled large requests, however many, keep no producer waiting."""

    async def story() -> None:
        service = FakeService()
        async with serving(service, queued_max_request_bytes=32 << 20) as (server, connect):
            stalled = large(90_000_000)[:3_000_000]
            for _ in range(20):
                (await connect()).writer.write(stalled)
            await until(lambda: server.room.waiting)
            honest = await connect()
            honest.writer.write(large(2_000_000))
            await until(lambda: service.waiting)
            assert server.room.waiting, "the others still do"
            assert server.small_room.taken == 0

    asyncio.run(story())


def test_a_request_keeps_its_room_while_it_is_worked_on() -> None:
    """Its bytes are still in memory."""

    async def story() -> None:
        service = FakeService(keeps_peers=True)
        async with serving(service) as (server, connect):
            peer = await connect()
            peer.writer.write(large(3_000_000))
            await until(lambda: service.waiting)
            assert server.room.taken == 3_000_000
            peer.writer.close()
            service.waiting[0].complete(NO_ANSWER)
            await until(lambda: not server.connections)
            assert server.room.taken == 0

    asyncio.run(story())
