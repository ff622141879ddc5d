"""A whole broker in a simulated world: its disk is memory, time passes when nobody works."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.types import TopicPartition
from kafkalite.node import Node, start_node
from kafkalite.testing.cluster import SimulatedCluster
from kafkalite.testing.simulation import Host, World
from kafkalite.testing.storage import MemoryStorage

NOWHERE = Path("/memory")
BIG = bytes(100_000)  # more than goes out in one write
SETTINGS = {"log.flush.interval.messages": "1"}  # what is acknowledged is on the disk


def start(world: World, random: Random, storage: MemoryStorage, port: int = 0) -> tuple[Host, Node]:
    host = world.host("broker")
    starting = start_node(NOWHERE, f"broker:{port}", SETTINGS, ports=world.ports(random, storage))
    return host, world.result(host, starting)


def client(world: World, node: Node) -> Client:
    return Client(str(node.address), ports=world.client_ports(Random(2)))


def now_ms(world: World) -> int:
    return world.time.time_ns() // 1_000_000


async def write(client: Client, values: list[bytes]) -> None:
    async with client, Admin(client) as admin, Producer(client) as producer:
        await admin.create_missing_topics([NewTopic("orders", 1)])
        for value in values:
            await producer.send("orders", value)
        await producer.flush()


async def read(client: Client, count: int) -> list[bytes | None]:
    async with client, Consumer(client, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        values: list[bytes | None] = []
        while len(values) < count:
            for columns in (await consumer.poll(timeout_ms=1_000)).values():
                values += columns.values
        return values


def test_a_broker_lives_in_memory_and_an_hour_passes_at_once() -> None:
    storage = MemoryStorage()
    with World() as world:
        _, node = start(world, Random(1), storage)
        host = world.host("client")
        world.result(host, write(client(world, node), [b"a", BIG]))
        world.pass_seconds(3_600)
        assert world.result(host, read(client(world, node), 2)) == [b"a", BIG]
        assert node.broker.now().wall_ms == now_ms(world)
    assert storage.names


@pytest.mark.parametrize("seed", range(5))
def test_what_was_acknowledged_survives_a_power_cut(seed: int) -> None:
    random, storage = Random(seed), MemoryStorage()
    values = [b"%d" % number for number in range(random.randint(1, 40))]
    with World() as world:
        host, node = start(world, random, storage)
        world.result(world.host("writer"), write(client(world, node), values))
        host.kill()
        _, node = start(world, random, storage.after_crash(random), node.address.port)
        found = world.result(world.host("reader"), read(client(world, node), len(values)))
        assert found == values


def test_the_same_seed_founds_the_same_cluster() -> None:
    names = []
    for _ in range(2):
        with World() as world:
            _, node = start(world, Random(7), MemoryStorage())
            names.append(node.broker.image.cluster_id)
    assert names[0] == names[1]


def test_the_only_broker_may_be_silent_for_a_while() -> None:
    """There is no other to be asked for the coordinator, which must not keep the client's loop."""
    with SimulatedCluster(1, brokers=1) as cluster:
        cluster.start_all()
        host, client = cluster.host("client"), cluster.client(1)
        request = FindCoordinatorRequest(key="g", coordinator_keys=("g",))

        async def ask() -> None:
            await client.ask_coordinator(request, "g")

        cluster.result(host, client.start())
        cluster.result(host, ask())
        cluster.pause(1)
        asking = host.spawn(ask())
        cluster.pass_seconds(5)
        assert not asking.done()
        cluster.go_on(1)
        cluster.run(asking.done, 5)
        cluster.result(host, client.close())
