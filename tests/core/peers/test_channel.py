"""Requests among brokers, over real sockets and over the simulated network, in one suite."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from kafkalite.core.broker.metrics import BrokerMetrics
from kafkalite.core.network import Network
from kafkalite.core.peers import channel as channels
from kafkalite.core.peers.channel import PeerChannel, PeerLimits, Peers, refused
from kafkalite.core.peers.connection import BrokerConnection
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.protocol.connection import RequestReceived
from kafkalite.core.protocol.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.protocol.groups import HeartbeatRequest, HeartbeatResponse
from kafkalite.core.protocol.metadata import MetadataRequest
from kafkalite.core.server.limits import ServerLimits
from kafkalite.core.server.network import SocketNetwork
from kafkalite.core.server.server import Server
from kafkalite.core.sockets import connect
from kafkalite.core.types import PeerIdentity
from kafkalite.errors import ApiError, BrokerUnavailable
from kafkalite.testing.simulation import Host, World

LIMITS = PeerLimits(request_timeout_ms=5_000, connect_timeout_ms=2_000, in_flight_max=3)
BIG = Random(1).randbytes(2_000_000)
HEARTBEAT = HeartbeatRequest("g", 1, "m")
FETCH = FetchRequest()


class Service:
    """Answers ApiVersions; Heartbeats when told; a Fetch with much."""

    def __init__(self) -> None:
        self.metrics = BrokerMetrics()
        self.waiting: list[Pending[Any]] = []
        self.answers_at_once = True

    def answer(self, request: RequestReceived, peer: PeerIdentity) -> Any:
        key = request.header.api_key
        if key is ApiKey.API_VERSIONS:
            keys = (ApiKey.API_VERSIONS, ApiKey.HEARTBEAT, ApiKey.FETCH)
            return ApiVersionsResponse(
                api_keys=tuple(ApiVersion(each, *API[each].versions) for each in keys)
            )
        if key is ApiKey.FETCH:
            data = PartitionData(0, records=BIG)
            return FetchResponse(responses=(FetchableTopicResponse("", partitions=(data,)),))
        if self.answers_at_once:
            return HeartbeatResponse()
        self.waiting.append(pending := Pending[Any]())
        return pending

    def settle(self) -> None:
        """Nobody waits for others."""


class Stage:
    """Where a story runs: a service at an address, and a network to reach it by."""

    def __init__(self, network: Network, host: str) -> None:
        self.network, self.host, self.port = network, host, 0
        self.service = Service()

    async def start(self) -> Server:
        server = Server(ServerLimits(), asyncio.get_running_loop().time, self.network)
        _, self.port = await server.bind(self.host, self.port)
        await server.start(self.service)
        return server

    async def serve(self) -> None:
        self.server = await self.start()

    async def stop(self) -> None:
        await self.server.close()

    def peers(self, limits: PeerLimits = LIMITS) -> Peers:
        return Peers(self.network.connect, Random(3), "broker-1", limits)

    def channel(self, peers: Peers) -> PeerChannel:
        return peers.channel(2, (self.host, self.port), "control")


class Simulated(Stage):
    """The service is another host's."""

    def __init__(self, world: World, server: Host) -> None:
        super().__init__(world.ports(Random(0)).network(), server.name)
        self.on_server = server

    async def serve(self) -> None:
        self.server = await self.elsewhere(self.start())

    async def stop(self) -> None:
        await self.elsewhere(self.server.close())

    async def elsewhere(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = self.on_server.spawn(work)
        while not task.done():
            await asyncio.sleep(0.001)
        return task.result()


Story = Callable[[Stage], Awaitable[None]]


def on_sockets(story: Story) -> None:
    async def run() -> None:
        await story(Stage(SocketNetwork(), "127.0.0.1"))

    asyncio.run(run())


def simulated(story: Story) -> None:
    with world_of_two() as (world, stage, client):

        async def run() -> None:
            await story(stage)

        world.result(client, run(), 600)


@contextmanager
def world_of_two() -> Iterator[tuple[World, Simulated, Host]]:
    with World(Random(5)) as world:
        yield world, Simulated(world, world.host("broker-2")), world.host("broker-1")


@pytest.fixture(params=[on_sockets, simulated])
def run(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    found: Callable[[Story], None] = request.param
    return found


Run = Callable[[Story], None]


def test_answers_come_to_whoever_asked_over_one_connection(run: Run) -> None:
    async def story(stage: Stage) -> None:
        await stage.serve()
        peers = stage.peers()
        channel = stage.channel(peers)
        asked = [channel.ask(HEARTBEAT if n % 2 else FETCH) for n in range(10)]
        for number, answer in enumerate(await asyncio.gather(*asked)):
            assert isinstance(answer, HeartbeatResponse if number % 2 else FetchResponse)
            if isinstance(answer, FetchResponse):
                assert bytes(answer.responses[0].partitions[0].records or b"") == BIG  # type: ignore[arg-type]
        assert stage.service.metrics.connections_accepted == 1
        assert channel.is_open
        await peers.close()
        assert not channel.is_open
        with pytest.raises(BrokerUnavailable, match="closed"):
            await channel.ask(HEARTBEAT)
        await stage.stop()

    run(story)


def test_a_call_is_answered_at_once_and_hears_of_the_end(run: Run) -> None:
    async def story(stage: Stage) -> None:
        await stage.serve()
        peers = stage.peers()
        connection = await stage.channel(peers).connected(5_000)
        answers: asyncio.Queue[Any] = asyncio.Queue()
        in_flight: list[int] = []

        def answered(answer: Any) -> None:
            answers.put_nowait(answer)
            in_flight.append(connection.in_flight)
            if len(in_flight) == 1:  # the next request leaves in the turn of the answer
                connection.call(HEARTBEAT, answered, 5_000)

        connection.call(HEARTBEAT, answered, 5_000)
        assert isinstance(await answers.get(), HeartbeatResponse)
        assert isinstance(await answers.get(), HeartbeatResponse)
        stage.service.answers_at_once = False
        connection.call(HEARTBEAT, answered, 5_000)
        connection.close()
        assert isinstance(answers.get_nowait(), BrokerUnavailable)
        assert in_flight == [0, 0, 0]
        with pytest.raises(BrokerUnavailable, match="closed"):
            connection.call(HEARTBEAT, answered, 5_000)
        await peers.close()
        await stage.stop()

    run(story)


def test_who_writes_a_body_gets_the_body_of_its_answer(run: Run) -> None:
    """In the order of all requests of the connection."""

    async def story(stage: Stage) -> None:
        await stage.serve()
        peers = stage.peers()
        connection = await stage.channel(peers).connected(5_000)
        version = connection.version_of(ApiKey.HEARTBEAT)
        body = b"".join(map(bytes, codec.encode_parts(HEARTBEAT, version)))  # type: ignore[arg-type]
        answers: asyncio.Queue[Any] = asyncio.Queue()
        connection.call_with(ApiKey.HEARTBEAT, version, body, answers.put_nowait, 5_000)
        connection.call(HEARTBEAT, answers.put_nowait, 5_000)
        raw, message = await answers.get(), await answers.get()
        assert codec.decode(HeartbeatResponse, raw, version) == message == HeartbeatResponse()
        stage.service.answers_at_once = False
        connection.call_with(ApiKey.HEARTBEAT, version, body, answers.put_nowait, 5_000)
        connection.close()
        assert isinstance(answers.get_nowait(), BrokerUnavailable)
        with pytest.raises(BrokerUnavailable, match="closed"):
            connection.call_with(ApiKey.HEARTBEAT, version, body, answers.put_nowait, 5_000)
        await peers.close()
        await stage.stop()

    run(story)


def test_no_more_are_in_flight_than_may_be(run: Run) -> None:
    async def story(stage: Stage) -> None:
        stage.service.answers_at_once = False
        await stage.serve()
        peers = stage.peers()
        channel = stage.channel(peers)
        asked = [asyncio.create_task(channel.ask(HEARTBEAT, 300)) for _ in range(5)]
        await asyncio.sleep(0.2)
        connection = channel._connection
        assert connection is not None
        assert connection.in_flight == LIMITS.in_flight_max
        for task in asked:
            with pytest.raises(BrokerUnavailable, match="did not answer|earlier requests"):
                await task
        await peers.close()
        await stage.stop()

    run(story)


def test_of_those_that_wait_there_is_a_bound(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "WAITING_MAX", 4)

    async def story(stage: Stage) -> None:
        stage.service.answers_at_once = False
        await stage.serve()
        peers = stage.peers()
        channel = stage.channel(peers)
        asked = [asyncio.create_task(channel.ask(HEARTBEAT, 500)) for _ in range(7)]
        await asyncio.sleep(0.1)
        with pytest.raises(BrokerUnavailable, match="4 requests wait"):
            await channel.ask(HEARTBEAT)
        await asyncio.gather(*asked, return_exceptions=True)
        await peers.close()
        await stage.stop()

    run(story)


def test_where_nobody_listens_the_refusal_is_told_and_attempts_are_spaced(run: Run) -> None:
    async def story(stage: Stage) -> None:
        await stage.serve()
        await stage.stop()
        peers = stage.peers()
        channel = stage.channel(peers)
        began = asyncio.get_running_loop().time()
        for _ in range(4):
            with pytest.raises(BrokerUnavailable) as raised:
                await channel.ask(HEARTBEAT)
            assert refused(raised.value)
        assert asyncio.get_running_loop().time() - began > 0.8 * (0.05 + 0.1 + 0.2)
        await stage.serve()
        await channel.ask(HEARTBEAT)
        await peers.close()
        await stage.stop()

    run(story)


def test_a_lost_connection_fails_what_is_in_flight_and_is_made_anew(run: Run) -> None:
    async def story(stage: Stage) -> None:
        stage.service.answers_at_once = False
        await stage.serve()
        peers = stage.peers()
        channel = stage.channel(peers)
        asked = [asyncio.create_task(channel.ask(HEARTBEAT)) for _ in range(2)]
        await asyncio.sleep(0.1)
        await stage.stop()
        for task in asked:
            with pytest.raises(BrokerUnavailable, match="broke") as raised:
                await task
            assert not refused(raised.value)
        stage.service.answers_at_once = True
        await stage.serve()
        await channel.ask(HEARTBEAT)
        await peers.close()
        await stage.stop()

    run(story)


def test_a_held_connection_tells_when_it_breaks_and_whether_the_process_is_gone(run: Run) -> None:
    async def story(stage: Stage) -> None:
        await stage.serve()
        peers, here = stage.peers(), (stage.host, stage.port)
        channel = stage.channel(peers)
        assert not peers.has_met(2, here)
        held = asyncio.create_task(channel.hold(1_000))
        while not channel.is_open:
            await asyncio.sleep(0.01)
        assert peers.has_met(2, here)
        assert not peers.has_met(2, (stage.host, stage.port + 1))
        assert not held.done()
        await stage.stop()
        await held
        with pytest.raises(BrokerUnavailable) as raised:
            await channel.hold(1_000)
        assert refused(raised.value)
        assert peers.has_met(2, here)
        peers.forget(2)
        assert not peers.has_met(2, here)
        await peers.close()

    run(story)


def test_a_name_with_several_addresses_is_refused_where_one_of_them_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as localhost, on machines that have IPv6, too."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 1))
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    async def story() -> None:
        peers = Peers(connect, Random(1), "broker-1", LIMITS)
        with pytest.raises(BrokerUnavailable) as raised:
            await peers.channel(2, ("broker-2", 1), "control").ask(HEARTBEAT)
        assert refused(raised.value)
        stage = Stage(SocketNetwork(), "127.0.0.2")
        server = await stage.start()
        found[:] = [(*each[:4], (each[4][0], stage.port)) for each in found]
        await peers.channel(2, ("broker-2", stage.port), "control").ask(HEARTBEAT)
        await peers.close()
        await server.close()

    asyncio.run(story())


def test_a_broker_that_moves_gets_a_new_channel_and_lanes_do_not_share_one(run: Run) -> None:
    async def story(stage: Stage) -> None:
        await stage.serve()
        peers = stage.peers()
        here = (stage.host, stage.port)
        control, fetch = peers.channel(2, here, "control"), peers.channel(2, here, "fetch")
        assert control is not fetch
        assert peers.channel(2, here, "control") is control
        await asyncio.gather(control.ask(HEARTBEAT), fetch.ask(HEARTBEAT))
        moved = peers.channel(2, (stage.host, 1), "control")
        assert moved is not control
        await asyncio.sleep(0.05)
        assert not control.is_open
        assert fetch.is_open
        peers.forget(2)
        await asyncio.sleep(0.05)
        assert not fetch.is_open
        await peers.close()
        await stage.stop()

    run(story)


def test_an_api_that_the_other_broker_lacks_is_refused_by_name(run: Run) -> None:
    async def story(stage: Stage) -> None:
        await stage.serve()
        peers = stage.peers()
        with pytest.raises(ApiError, match="does not know Metadata"):
            await stage.channel(peers).ask(MetadataRequest())
        await peers.close()
        await stage.stop()

    run(story)


def test_who_gives_up_does_not_harm_the_others(run: Run) -> None:
    async def story(stage: Stage) -> None:
        await stage.serve()
        peers = stage.peers()
        channel = stage.channel(peers)
        first = asyncio.create_task(channel.ask(FETCH))
        second = asyncio.create_task(channel.ask(HEARTBEAT))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == HeartbeatResponse()
        await peers.close()
        await stage.stop()

    run(story)


def test_a_paused_broker_is_silent_for_no_longer_than_the_timeout() -> None:
    with world_of_two() as (world, stage, client):
        world.result(stage.on_server, stage.start())
        peers = stage.peers()
        world.result(client, stage.channel(peers).ask(HEARTBEAT))
        stage.on_server.pause()
        asking = client.spawn(stage.channel(peers).ask(HEARTBEAT, 1_500))
        began = world.seconds
        world.run(asking.done, 60)
        assert world.seconds - began == pytest.approx(1.5, abs=0.01)
        assert isinstance(error := asking.exception(), BrokerUnavailable)
        assert not refused(error)
        again = client.spawn(stage.channel(peers).ask(HEARTBEAT))
        world.run(again.done, 60)  # it accepts, and does not say its versions
        assert "did not answer" in str(again.exception())
        stage.on_server.go_on()
        world.result(client, stage.channel(peers).ask(HEARTBEAT))
        world.result(client, peers.close())


@pytest.mark.parametrize("seconds", [(3.0, 1.0, 2.0), (1.0, 2.0, 3.0), (0.4, 3.0, 1.5)])
def test_the_first_answer_that_is_overdue_ends_a_connection(seconds: tuple[float, ...]) -> None:
    """Though requests with other times are in flight before it and after it, and some, sent 0.6 s
    before, were answered."""
    with world_of_two() as (world, stage, client):
        world.result(stage.on_server, stage.start())
        peers = stage.peers()

        async def connect() -> BrokerConnection:
            connection = await stage.channel(peers).connected(5_000)
            await asyncio.gather(*[connection.submit(HEARTBEAT, 1_000) for _ in range(3)])
            return connection

        connection = world.result(client, connect())
        world.pass_seconds(0.6)
        stage.service.answers_at_once = False
        ended: list[tuple[float, BrokerUnavailable]] = []

        async def ask() -> None:
            for each in seconds:
                connection.call(
                    HEARTBEAT, lambda error: ended.append((world.seconds, error)), round(each * 1e3)
                )

        began = world.seconds
        world.result(client, ask())
        world.pass_seconds(5)
        assert [at - began for at, _ in ended] == pytest.approx([min(seconds)] * 3, abs=0.01)
        assert {f"in {min(seconds):g} s" in str(error) for _, error in ended} == {True}
        world.result(client, peers.close())


def test_a_cut_is_noticed_by_the_timeout_and_a_reset_at_once() -> None:
    with world_of_two() as (world, stage, client):
        world.result(stage.on_server, stage.start())
        peers = stage.peers()
        stage.service.answers_at_once = False
        asking = client.spawn(stage.channel(peers).ask(HEARTBEAT))
        world.pass_seconds(1)
        world.network.reset("broker-1", "broker-2")
        world.run(asking.done, 0.01)
        assert "Connection reset" in str(asking.exception())
        stage.service.answers_at_once = True
        world.result(client, stage.channel(peers).ask(HEARTBEAT))
        world.network.cut("broker-2", "broker-1")
        asking = client.spawn(stage.channel(peers).ask(HEARTBEAT))
        began = world.seconds
        world.run(asking.done, 60)
        assert world.seconds - began == pytest.approx(5, abs=0.01)
        world.network.heal()
        world.result(client, stage.channel(peers).ask(HEARTBEAT))
        world.result(client, peers.close())


def test_versions_are_those_of_both(run: Run) -> None:
    """Brokers speak the newest versions; only clients hold some back."""

    async def story(stage: Stage) -> None:
        await stage.serve()
        peers = stage.peers()
        channel = stage.channel(peers)
        await channel.ask(ApiVersionsRequest("kafkalite", "1"))
        connection = channel._connection
        assert connection is not None
        assert connection.version_of(ApiKey.FETCH) == API[ApiKey.FETCH].versions[1]
        await peers.close()
        await stage.stop()

    run(story)
