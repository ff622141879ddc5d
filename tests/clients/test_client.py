"""The client and its connections against a broker that misbehaves on demand."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kafkalite.clients.cluster import GROUP_KEY, NEWEST, Client, parse_bootstrap
from kafkalite.core.peers.connection import open_connection
from kafkalite.core.protocol.api_versions import ApiVersionsRequest
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafkalite.core.protocol.fetch import FetchRequest
from kafkalite.core.protocol.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkalite.core.protocol.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from kafkalite.errors import (
    ApiError,
    BrokerUnavailable,
    ConfigError,
    ErrorCode,
    KafkaliteError,
    WireError,
)

ASK = DescribeClusterRequest(False)


def connecting(broker: Any, **changes: int) -> Any:
    times = {"request_timeout_ms": 5_000, "connect_timeout_ms": 5_000, **changes}
    return open_connection("127.0.0.1", broker.port, client_id="test", newest=NEWEST, **times)


def test_answers_come_to_whoever_asked(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            names = iter("abc")
            broker.handlers[DescribeClusterRequest] = lambda _: DescribeClusterResponse(
                cluster_id=next(names)
            )
            connection = await connecting(broker)
            futures = [connection.submit(ASK) for _ in range(3)]
            assert [answer.cluster_id for answer in await asyncio.gather(*futures)] == [*"abc"]
            assert connection.in_flight == 0
            connection.close()

    asyncio.run(scenario())


def test_a_silent_broker_is_named_with_what_it_was_asked(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[DescribeClusterRequest] = lambda _: hang
            connection = await connecting(broker)
            late = connection.submit(ASK, timeout_ms=20)
            other = connection.submit(ASK)
            with pytest.raises(BrokerUnavailable, match=r":\d+ did not answer DescribeCluster in"):
                await late
            with pytest.raises(BrokerUnavailable):  # nothing after it can be trusted to come
                await other
            assert not connection.is_open
            with pytest.raises(BrokerUnavailable, match="is closed"):
                connection.submit(ASK)

    asyncio.run(scenario())


def test_a_broken_connection_fails_all_that_is_in_flight(fake_broker: Any, hang_up: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[DescribeClusterRequest] = lambda _: hang_up
            connection = await connecting(broker)
            futures = [connection.submit(ASK) for _ in range(2)]
            for future in futures:
                with pytest.raises(BrokerUnavailable, match=f"{broker.address} broke"):
                    await future
            await connection.closed()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">ii", 4, 99),
        struct.pack(">iib", 5, 1, 7),
        struct.pack(">i", 2**31 - 1),
    ],
    ids=["negative size", "answer to nothing", "cut short", "too large"],
)
def test_what_is_no_answer_ends_the_connection(fake_broker: Any, garbage: bytes) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[DescribeClusterRequest] = lambda _: garbage
            connection = await connecting(broker)
            with pytest.raises(WireError, match=f"{broker.address} sent an invalid response"):
                await connection.submit(ASK)
            assert not connection.is_open

    asyncio.run(scenario())


def test_an_older_broker_is_asked_again_in_its_own_version(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            answers = iter(
                [  # v0 layout, error 35, and the range of ApiVersions: KIP-511
                    struct.pack(">iihihhh", 16, 0, 35, 1, ApiKey.API_VERSIONS, 0, 2),
                    None,
                ]
            )

            def old(request: ApiVersionsRequest) -> Any:
                return next(answers) or broker.api_versions(request)

            broker.handlers[ApiVersionsRequest] = old
            connection = await connecting(broker)
            assert connection.version_of(ApiKey.METADATA) == 12
            assert broker.count(ApiVersionsRequest) == 2
            connection.close()

    asyncio.run(scenario())


def test_versions_that_do_not_meet_are_an_error(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.versions[ApiKey.FETCH] = (13, 17)
            del broker.versions[ApiKey.DESCRIBE_CLUSTER]
            connection = await connecting(broker)
            with pytest.raises(ApiError, match="speaks Fetch 13 to 17, this client 4 to 12"):
                connection.submit(FetchRequest())
            with pytest.raises(ApiError, match="does not know DescribeCluster"):
                connection.submit(ASK)
            assert connection.is_open
            connection.close()

    asyncio.run(scenario())


def test_a_broker_that_accepts_and_says_nothing_is_given_up(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[ApiVersionsRequest] = lambda _: hang
            with pytest.raises(BrokerUnavailable, match=r"did not answer in 0\.05 s"):
                await connecting(broker, connect_timeout_ms=50)

    asyncio.run(scenario())


def test_large_requests_arrive_whole(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[MetadataRequest] = broker.metadata
            connection = await connecting(broker)
            names = [f"{i:0100d}" for i in range(20_000)]
            request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=n) for n in names))
            answer = await connection.submit(request)
            assert [topic.name for topic in answer.topics] == names
            connection.close()

    asyncio.run(scenario())


# ---- the client ----


def test_any_bootstrap_server_will_do(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with (
            fake_broker() as broker,
            Client(["127.0.0.1:1", broker.address], unavailable_after_ms=2_000) as client,
        ):
            assert list(client.cluster.nodes) == [1]

    asyncio.run(scenario())


def test_one_silent_bootstrap_server_does_not_use_up_the_time(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as silent, fake_broker() as broker:
            silent.handlers[ApiVersionsRequest] = lambda _: hang
            servers = [silent.address, broker.address]
            async with Client(servers, unavailable_after_ms=400) as client:
                assert list(client.cluster.nodes) == [1]

    asyncio.run(scenario())


GARBAGE = struct.pack(">ii", 4, 99)  # an answer to a request that nobody made


def test_a_bootstrap_server_that_is_no_broker_is_passed_over(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as stranger, fake_broker() as broker:
            stranger.handlers[ApiVersionsRequest] = lambda _: GARBAGE
            async with Client([stranger.address, broker.address]) as client:
                assert list(client.cluster.nodes) == [1]
            assert stranger.asked
            with pytest.raises(WireError, match=f"{stranger.address} sent an invalid response"):
                await Client(stranger.address).start()

    asyncio.run(scenario())


def test_nobody_there_names_all_addresses() -> None:
    async def scenario() -> None:
        client = Client("127.0.0.1:1,127.0.0.1:2", unavailable_after_ms=100)
        expected = r"127.0.0.1:1, 127.0.0.1:2 \(tried for 0.1 s\): connection refused"
        with pytest.raises(BrokerUnavailable, match=expected):
            await client.start()
        await client.close()

    asyncio.run(scenario())


def test_who_does_not_answer_says_how() -> None:
    async def told(server: asyncio.Server, timeout_ms: int = 100) -> str:
        async with server:
            host, port = server.sockets[0].getsockname()
            client = Client(f"{host}:{port}", unavailable_after_ms=timeout_ms)
            with pytest.raises(KafkaliteError) as caught:
                await client.start()
            await client.close()
            return str(caught.value)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await silent(reader, writer)

    async def curt(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def scenario() -> None:
        start = partial(asyncio.start_server, host="127.0.0.1", port=0)
        assert (await told(await start(silent))).endswith("(tried for 0.1 s): it is silent")
        assert (await told(await start(curt), 3_000)).endswith("(tried for 3 s): it hangs up")
        assert "(b'HTTP')" in await told(await start(web), 30_000)

    asyncio.run(scenario())


def test_all_who_ask_at_once_share_a_connection(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            lane = client.new_lane("test")
            await asyncio.gather(*(client.refresh(()) for _ in range(5)))
            await asyncio.gather(*(client.connect(1, lane) for _ in range(5)))
            assert len(broker.transports) == 2

    asyncio.run(scenario())


def test_a_connection_that_broke_is_made_again(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            broker.hang_up()
            for _ in range(3):
                await client.refresh(())
            assert len(broker.transports) == 1

    asyncio.run(scenario())


def test_a_broker_that_moved_is_found_at_its_new_address(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as first, fake_broker(2) as second:
            first.peers = second.peers = [first, second]
            async with Client(first.address) as client:
                assert (await client.connect(2)).address == second.address
                async with fake_broker(2) as moved:
                    first.peers = [first, moved]
                    first_only = await client.connect(1)
                    await first_only.submit(MetadataRequest())
                    await second.stop()
                    await client.refresh(())
                    await client.refresh(())
                    assert (await client.connect(2)).address == moved.address
                    await second.listen()

    asyncio.run(scenario())


def test_a_broker_at_a_name_that_no_host_can_have_is_out_of_reach(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            nowhere = MetadataResponseBroker(2, "a..b", 9092)

            def metadata(request: MetadataRequest) -> MetadataResponse:
                told: MetadataResponse = broker.metadata(request)
                return replace(told, brokers=(*told.brokers, nowhere))

            broker.handlers[MetadataRequest] = metadata
            async with Client(broker.address) as client:
                client.timing.unavailable_after_ms = 50
                with pytest.raises(BrokerUnavailable, match="no broker answers at a..b:9092"):
                    await client.request(ASK, 2)

    asyncio.run(scenario())


def test_a_broker_nobody_knows_is_an_error(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            with pytest.raises(BrokerUnavailable, match="broker 9 is not in the cluster"):
                await client.request(ASK, 9)

    asyncio.run(scenario())


def test_a_topic_that_is_being_made_is_waited_for(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            codes = iter([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE])

            def topic(name: str) -> MetadataResponseTopic:
                code = next(codes, None)
                return ready(name) if code is None else MetadataResponseTopic(code, name)

            broker.topics["orders"] = [1, 1]
            ready: Callable[[str], MetadataResponseTopic] = broker.topic
            broker.topic = topic
            assert (await client.topic("orders")).partition_count == 2

    asyncio.run(scenario())


def test_a_coordinator_is_looked_for_until_there_is_one(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            codes = iter([ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE])

            def find(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
                there = Coordinator("g", 1, "127.0.0.1", broker.port, next(codes))
                return FindCoordinatorResponse(coordinators=(there,))

            broker.handlers[FindCoordinatorRequest] = find
            assert await client.coordinator("g") == 1
            assert await client.coordinator("g") == 1
            assert broker.count(FindCoordinatorRequest) == 2
            client.forget_coordinator("g")
            codes = iter([ErrorCode.GROUP_AUTHORIZATION_FAILED])
            with pytest.raises(ApiError, match="coordinator of group g"):
                await client.coordinator("g")

    asyncio.run(scenario())


def test_an_old_broker_is_asked_for_one_coordinator(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            broker.versions[ApiKey.FIND_COORDINATOR] = (0, 2)
            broker.hang_up()
            broker.handlers[FindCoordinatorRequest] = lambda request: FindCoordinatorResponse(
                node_id=1, host=request.key, port=broker.port
            )
            assert await client.coordinator("127.0.0.1") == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2,a:1", [("a", 1), ("b", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_bootstrap_servers_are_read(text: str, addresses: list[tuple[str, int]]) -> None:
    assert list(parse_bootstrap(text)) == addresses
    assert list(parse_bootstrap(text.split(","))) == addresses


@pytest.mark.parametrize(
    "text", ["", "localhost", "a:b", "a:99999", ":9092", "a:-1", "a..b:1", "a" * 64 + ":1"]
)
def test_what_is_no_bootstrap_server_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap server"):
        parse_bootstrap(text)


def test_a_silent_coordinator_is_waited_for_whoever_answers_nonsense(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look for its successor that fails says nothing about it."""

    async def nonsense(*_: object, **__: object) -> int:
        raise WireError("not a broker")

    async def story() -> None:
        async with asyncio.timeout(5):
            client = Client("127.0.0.1:1")
            monkeypatch.setattr(client, "_find_coordinator", nonsense)
            assert not await client._has_moved("group", GROUP_KEY, 1)

    asyncio.run(story())
