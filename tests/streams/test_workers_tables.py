"""Joins with tables in two workers, one of which leaves half way: the same as in one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

CONFIG = WorkerConfig(commit_interval_ms=100)
PARTITIONS, KEYS, RECORDS = 4, 50, 4_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def app_of(name: str, address: str) -> Streams:
    app = Streams(name, key=string(), value=string(), bootstrap_servers=address)
    users, prices = app.table("users"), app.table("prices", history="1h")
    orders = app.stream("orders").select_key(lambda v: v.split(":")[0], name="by-user")
    orders.join(users, lambda o, u: f"{o} {u}").to(f"{name}-orders")
    orders.join(prices, lambda o, p: f"{o} {p}", grace=10, how="left").to(f"{name}-priced")
    both = users.join(prices, lambda u, p: f"{u} {p}", how="outer", name="both")
    both.to_stream().to(f"{name}-both")
    return app


async def prepare(address: str, name: str) -> None:
    """Rows first, in time too; every key's price changes at 500."""
    async with Admin(address) as admin:
        topics = {"users": PARTITIONS, "prices": PARTITIONS, "orders": 3}
        topics |= {f"{name}-{end}": PARTITIONS for end in ("orders", "priced", "both")}
        await admin.create_topics([NewTopic(topic, count) for topic, count in topics.items()])
    keys = [f"k{number}".encode() for number in range(KEYS)]
    async with Producer(address) as producer:
        for topic, text, time in (("users", "u", 0), ("prices", "p", 0), ("prices", "q", 500)):
            values = [f"{text}{number}".encode() for number in range(KEYS)]
            await producer.send_columns(topic, Columns(keys, values, [time] * KEYS))
        values = [f"k{number % KEYS}:{number}".encode() for number in range(RECORDS)]
        # A reader of the topic waits for all of its tasks, so that times may ascend.
        times = [1_000 + number for number in range(RECORDS)]
        await producer.send_columns("orders", Columns(values, values, times))
        await producer.flush()


async def read(address: str, topic: str) -> Columns:
    return await read_topic(address, topic, PARTITIONS)


def test_joins_with_tables_survive_a_worker_that_leaves(address: str) -> None:
    name = "shop"

    async def scenario() -> None:
        await prepare(address, name)
        plan = app_of(name, address).plan()
        workers = [Worker(plan, address, MemoryRegistry(), CONFIG) for _ in range(2)]
        runs = [
            asyncio.create_task(each.run(until_caught_up=not number))
            for number, each in enumerate(workers)
        ]
        await asyncio.sleep(1)
        workers[1].stop()
        await asyncio.gather(*runs)
        last = Worker(app_of(name, address).plan(), address, MemoryRegistry(), CONFIG)
        await last.run(until_caught_up=True)

        orders = await read(address, f"{name}-orders")
        numbers = [int(value.split(b" ")[0].split(b":")[1]) for value in orders.values if value]
        assert sorted(numbers) == list(range(RECORDS))
        assert all(
            value is not None and value.split(b" u")[1] == value[1:].split(b":")[0]
            for value in orders.values
        )
        priced = await read(address, f"{name}-priced")
        assert len(priced) >= RECORDS - 11 * PARTITIONS
        assert all(value is not None and b" q" in value for value in priced.values)
        both = await read(address, f"{name}-both")
        latest = dict(zip(both.keys, both.values, strict=True))
        assert latest == {f"k{n}".encode(): f"u{n} q{n}".encode() for n in range(KEYS)}

    asyncio.run(asyncio.wait_for(scenario(), 100))
