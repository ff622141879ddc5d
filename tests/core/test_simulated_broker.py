"""A whole broker in a simulated world: its disk is memory, time passes when nobody works."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import TopicPartition
from kafkalite.node import Node, start_node
from kafkalite.testing.simulation import Host, World
from kafkalite.testing.storage import MemoryStorage

NOWHERE = Path("/memory")
BIG = bytes(100_000)  # more than goes out in one write
SETTINGS = {"log.flush.interval.messages": "1"}  # what is acknowledged is on the disk


def start(world: World, random: Random, storage: MemoryStorage, port: int = 0) -> tuple[Host, Node]:
    host = world.host("broker")
    starting = start_node(
        NOWHERE, f"127.0.0.1:{port}", SETTINGS, ports=world.ports(random, storage)
    )
    return host, world.result(host, starting)


def now_ms(world: World) -> int:
    return world.time.time_ns() // 1_000_000


async def write(address: str, values: list[bytes], now_ms: int) -> None:
    async with Admin(address) as admin:
        await admin.create_missing_topics([NewTopic("orders", 1)])
    async with Producer(address) as producer:
        for value in values:
            await producer.send("orders", value, timestamp_ms=now_ms)
        await producer.flush()


async def read(address: str, count: int) -> list[bytes | None]:
    async with Consumer(address, auto_offset_reset="earliest") as consumer:
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
        client, address = world.host("client"), str(node.address)
        world.result(client, write(address, [b"a", BIG], now_ms(world)))
        world.pass_seconds(3_600)
        assert world.result(client, read(address, 2)) == [b"a", BIG]
        assert node.broker.now().wall_ms == now_ms(world)
    assert storage.names


@pytest.mark.parametrize("seed", range(5))
def test_what_was_acknowledged_survives_a_power_cut(seed: int) -> None:
    random, storage = Random(seed), MemoryStorage()
    values = [b"%d" % number for number in range(random.randint(1, 40))]
    with World() as world:
        host, node = start(world, random, storage)
        address = str(node.address)
        world.result(world.host("writer"), write(address, values, now_ms(world)))
        host.kill()
        start(world, random, storage.after_crash(random), node.address.port)
        assert world.result(world.host("reader"), read(address, len(values))) == values


def test_the_same_seed_founds_the_same_cluster() -> None:
    names = []
    for _ in range(2):
        with World() as world:
            _, node = start(world, Random(7), MemoryStorage())
            names.append(node.broker.image.cluster_id)
    assert names[0] == names[1]
