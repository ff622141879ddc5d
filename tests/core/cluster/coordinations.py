"""The implementations of the coordination port, for tests that hold for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

import pytest

from kafkalite.core.cluster.coordination import Coordination, Session
from kafkalite.core.cluster.local import LocalCoordination
from kafkalite.core.cluster.zookeeper import ZooKeeperCoordination
from kafkalite.testing.coordination import CoordinationServer, SimulatedCoordination
from kafkalite.testing.simulation import World
from kafkalite.testing.storage import MemoryStorage

SECONDS_MAX = 20
SESSION_TIMEOUT_MS = 10_000


class Clients(Protocol):
    """Opens clients of one tree."""

    async def open(self) -> Coordination: ...

    async def expire(self, client: Coordination) -> None:
        """Ends the session of a client behind its back."""


Story = Callable[[Clients], Coroutine[Any, Any, None]]


class Backend(Protocol):
    """Runs stories, each on an empty tree."""

    def run(self, story: Story) -> None: ...


class LocalClients:
    def __init__(self) -> None:
        self.opened: list[Coordination] = []

    async def open(self) -> Coordination:
        assert not self.opened, "a journal has one client"
        client = LocalCoordination(
            MemoryStorage(), in_thread=asyncio.to_thread, turns=asyncio.Lock()
        )
        self.opened.append(client)
        return client

    async def expire(self, client: Coordination) -> None:
        raise AssertionError("a session of its own process never ends before it")


class LocalBackend:
    def run(self, story: Story) -> None:
        asyncio.run(story(LocalClients()))


class SimulatedClients:
    """Clients on hosts of their own, of a fake server."""

    def __init__(self, world: World, server: CoordinationServer) -> None:
        self.world, self.server = world, server
        self.opened: list[SimulatedCoordination] = []

    async def open(self) -> SimulatedCoordination:
        name = f"broker-{len(self.opened)}"
        client = self.server.client(name, session_timeout_ms=SESSION_TIMEOUT_MS)
        self.opened.append(client)
        return client

    async def expire(self, client: Coordination) -> None:
        assert isinstance(client, SimulatedCoordination)
        self.server.expire(client.name)


class SimulatedBackend:
    def run(self, story: Story) -> None:
        with World() as world:
            server = CoordinationServer(world.host("zookeeper").loop, Random(1))
            world.result(world.host("program"), story(SimulatedClients(world, server)), 3_600)


class ZooKeeperClients:
    def __init__(self, address: str) -> None:
        self.address = address
        self.opened: list[ZooKeeperCoordination] = []

    async def open(self) -> ZooKeeperCoordination:
        client = opened(self.address)
        self.opened.append(client)
        return client

    async def expire(self, client: Coordination) -> None:
        assert isinstance(client, ZooKeeperCoordination)
        await asyncio.to_thread(end_session, client)


def opened(address: str, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> ZooKeeperCoordination:
    return ZooKeeperCoordination(
        address, in_thread=asyncio.to_thread, session_timeout_ms=session_timeout_ms
    )


def end_session(client: ZooKeeperCoordination) -> None:
    """A second client takes the session over, by its id and password, and closes it."""
    from kazoo.client import KazooClient

    thief = KazooClient(client.address.partition("/")[0], client_id=client.client_id)
    thief.start()
    thief.stop()
    thief.close()


class ZooKeeperBackend:
    def __init__(self, address: str) -> None:
        self.address = address
        self.runs = 0

    def run(self, story: Story) -> None:
        async def whole() -> None:
            self.runs += 1
            clients = ZooKeeperClients(f"{self.address}/{self.runs}")
            try:
                await story(clients)
            finally:
                for client in clients.opened:
                    await client.close()

        asyncio.run(whole())


ON_ZOOKEEPER = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper")]
SHARED = [
    "simulated",
    pytest.param("zookeeper", marks=ON_ZOOKEEPER),
]  # whose tree has several clients
BACKENDS = ["local", *SHARED]


def backend_of(name: str, request: pytest.FixtureRequest) -> Backend:
    if name == "local":
        return LocalBackend()
    if name == "simulated":
        return SimulatedBackend()
    return ZooKeeperBackend(request.getfixturevalue("zookeeper_address"))


async def until(is_so: Callable[[], object], seconds_max: float = SECONDS_MAX) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(seconds_max):
        while not is_so():
            await asyncio.sleep(0.005)


class Heard(list[Session]):
    """The states of a session, as a listener hears them."""

    def __init__(self, client: Coordination) -> None:
        super().__init__()
        client.listen(self.append)
