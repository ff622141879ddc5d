"""Joins of two repartitioned streams with several workers: every pair once, and null results only
beside no pair, though a worker goes half way and each writer of a topic has a time of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

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

PARTITIONS, ORDERS, WITHIN, GRACE = 3, 1_500, 200, 100
Sent = tuple[str, int, int]  # value, timestamp, partition


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def joined(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    orders = app.stream(f"{name}-orders").select_key(lambda v: v.split(":")[0])
    payments = app.stream(f"{name}-payments").select_key(lambda v: v.split(":")[0])
    pairs = orders.join(
        payments, lambda o, p: f"{o}|{p}", within=WITHIN, grace=GRACE, how="left", name="paid"
    )
    pairs.to(f"{name}-out")
    return app


def inputs(seed: int) -> tuple[list[Sent], list[Sent]]:
    """Orders, and for most of them payments that are up to twice the window away."""
    random = Random(seed)
    orders, payments = [], []
    for number in range(ORDERS):
        at = 1_000 + number * 10
        orders.append((f"{number}:o", at, number % PARTITIONS))
        for count in range(random.choice([0, 1, 1, 2])):
            away = random.randrange(-2 * WITHIN, 2 * WITHIN)
            payments.append((f"{number}:p{count}", at + away, random.randrange(PARTITIONS)))
    return orders, sorted(payments, key=lambda each: each[1])


def expected(orders: list[Sent], payments: list[Sent]) -> tuple[set[tuple[str, int]], set[str]]:
    """All pairs with their times, and the orders without a payment."""
    by_order: dict[str, list[Sent]] = {}
    for payment in payments:
        by_order.setdefault(payment[0].split(":")[0], []).append(payment)
    pairs, alone = set(), set()
    for value, at, _ in orders:
        close = [p for p in by_order.get(value.split(":")[0], ()) if abs(p[1] - at) <= WITHIN]
        pairs |= {(f"{value}|{other}", max(at, other_at)) for other, other_at, _ in close}
        if not close:
            alone.add(value)
    return pairs, alone


async def prepare(address: str, name: str) -> None:
    async with Admin(address) as admin:
        topics = [f"{name}-{end}" for end in ("orders", "payments", "out")]
        await admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics])


async def send(address: str, topic: str, sent: list[Sent]) -> None:
    async with Producer(address) as producer:
        for partition in range(PARTITIONS):
            mine = [each for each in sent if each[2] == partition]
            values = [value.encode() for value, _, _ in mine]
            columns = Columns([None] * len(mine), values, [at for _, at, _ in mine])
            await producer.send_columns(topic, columns, partition=partition)
        await producer.flush()


async def read(address: str, topic: str) -> Columns:
    return await read_topic(address, topic, PARTITIONS)


@pytest.mark.parametrize("on_disk", [False, True])
def test_every_pair_once_though_a_worker_goes(address: str, on_disk: bool, tmp_path: Path) -> None:
    name = f"join-{'disk' if on_disk else 'memory'}"
    orders, payments = inputs(seed=1)
    pairs, alone = expected(orders, payments)

    def worker(number: int) -> Worker:
        config = WorkerConfig(
            commit_interval_ms=100,
            idle_ms=600_000,  # what is sent later counts as late nowhere, however much later
            state_dir=tmp_path / str(number) if on_disk else None,
        )
        return Worker(joined(name).plan(), address, MemoryRegistry(), config)

    async def scenario() -> Columns:
        await prepare(address, name)
        workers = [worker(number) for number in range(2)]
        runs = [asyncio.create_task(each.run()) for each in workers]
        half, middle = ORDERS // 2, orders[ORDERS // 2][1]
        await send(address, f"{name}-orders", orders[:half])
        await send(address, f"{name}-payments", [p for p in payments if p[1] < middle])
        await asyncio.sleep(1.5)
        runs[1].cancel()  # without a last commit
        await asyncio.gather(runs[1], return_exceptions=True)
        await send(address, f"{name}-orders", orders[half:])
        await send(address, f"{name}-payments", [p for p in payments if p[1] >= middle])
        workers[0].stop()
        await runs[0]
        await asyncio.gather(*(worker(n).run(until_caught_up=True) for n in range(2)))
        return await read(address, f"{name}-out")

    out = asyncio.run(asyncio.wait_for(scenario(), 100))
    values = [value.decode() for value in out.values]
    assert not [text for text, count in Counter(values).items() if count > 1]
    results = set(zip(values, out.timestamps, strict=True))
    nulls = {text.removesuffix("|None") for text, _ in results if text.endswith("|None")}
    assert {result for result in results if not result[0].endswith("|None")} == pairs
    assert nulls <= alone
    newest = orders[-1][1]
    waiting = [at for value, at, _ in orders if value in alone - nulls]
    assert all(at > newest - 2 * WITHIN - GRACE - 100 for at in waiting)
