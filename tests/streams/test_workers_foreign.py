"""Joins by a foreign key in workers: two of them, one restarted half way, and wide apart topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

ORDERS, CUSTOMERS = 4, 3  # partitions
KEYS, NAMES = 80, 12


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def a_worker(address: str, name: str, how: Any, guarantee: Any) -> Worker:
    app = Streams(name, key=string(), value=string())
    orders, customers = app.table(f"{name}-orders"), app.table(f"{name}-customers")
    table = orders.join(
        customers,
        lambda order, customer: f"{order}={customer}",
        foreign_key=lambda order: order.split()[0] if order[0] != "-" else None,
        how=how,
    )
    table.to_stream().to(f"{name}-out")
    config = WorkerConfig(
        commit_interval_ms=20, processing_guarantee=guarantee, session_timeout_ms=1_500
    )
    return Worker(app.plan(), address, MemoryRegistry(), config)


Row = tuple[str, str | None]


def some_rows(random: Random) -> tuple[list[Row], list[Row]]:
    """Orders, some without a customer and some deleted; and customers."""
    orders: list[Row] = []
    for at in range(200):
        to = random.choice(["-", *(f"c{n}" for n in range(NAMES))])
        orders.append(
            (f"o{random.randrange(KEYS)}", random.choice([None, f"{to} {at}", f"{to} {at}"]))
        )
    customers: list[Row] = [
        (f"c{random.randrange(NAMES)}", random.choice([None, f"n{at}", f"m{at}"]))
        for at in range(60)
    ]
    return orders, customers


def expected(how: str, orders: list[Row], customers: list[Row]) -> dict[bytes, bytes]:
    names = dict(customers)
    found = {}
    for key, order in dict(orders).items():
        if order is None:
            continue
        name = names.get(order.split()[0]) if order[0] != "-" else None
        if name is not None or how == "left":
            found[key.encode()] = f"{order}={name}".encode()
    return found


async def write(address: str, topic: str, rows: list[Row]) -> None:
    async with Producer(address) as producer:
        for key, value in rows:
            await producer.send(topic, None if value is None else value.encode(), key=key.encode())
        await producer.flush()


async def latest(address: str, topic: str) -> dict[bytes, bytes]:
    """The last record of each key, deletions apart."""
    columns = await read_topic(address, topic, ORDERS)
    newest: dict[Any, Any] = dict(zip(columns.keys, columns.values, strict=True))
    return {key: value for key, value in newest.items() if value is not None}


@pytest.mark.parametrize(
    ("how", "guarantee"),
    [("inner", "exactly_once"), ("left", "exactly_once"), ("left", "at_least_once")],
)
def test_two_workers_one_restarted_half_way(address: str, how: str, guarantee: str) -> None:
    async def scenario() -> None:
        name = f"{how}-{guarantee}".replace("_", "")
        async with Admin(address) as admin:
            await admin.create_topics(
                [
                    NewTopic(f"{name}-orders", ORDERS),
                    NewTopic(f"{name}-customers", CUSTOMERS),
                    NewTopic(f"{name}-out", ORDERS),
                ]
            )
        random = Random(7)
        all_orders: list[Row] = []
        all_customers: list[Row] = []
        workers = [a_worker(address, name, how, guarantee) for _ in range(2)]
        runs = [asyncio.create_task(each.run()) for each in workers]
        for turn in range(3):
            orders, customers = some_rows(random)
            all_orders += orders
            all_customers += customers
            await asyncio.gather(
                write(address, f"{name}-orders", orders),
                write(address, f"{name}-customers", customers),
            )
            if turn == 1:  # it is cut off, and another comes
                runs[0].cancel()
                await asyncio.gather(runs[0], return_exceptions=True)
                workers[0] = a_worker(address, name, how, guarantee)
                runs[0] = asyncio.create_task(workers[0].run())
        wanted = expected(how, all_orders, all_customers)
        found: dict[bytes, bytes] = {}
        while found != wanted:
            await asyncio.sleep(0.2)
            for running in runs:
                if running.done():
                    running.result()
            found = await latest(address, f"{name}-out")
        for worker in workers:
            worker.stop()
        await asyncio.gather(*runs)
        assert await latest(address, f"{name}-out") == wanted

    asyncio.run(asyncio.wait_for(scenario(), 60))
