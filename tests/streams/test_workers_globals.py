"""Global tables in workers: whole before tasks run, followed, kept on disk, refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.local import global_tables
from kafkalite.streams.local.global_tables import GlobalTables
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

ORDERS, CUSTOMERS = 4, 3  # partitions: they need not be equal
COUNT = 600


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_tables, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(global_tables, "POLL_MS", 50)


def joined(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    customers = app.global_table(f"{name}-customers", name="customers")
    orders = app.stream(f"{name}-orders")
    orders.join(customers, lambda v, c: f"{v}={c}", key=lambda v: v, how="left").to(f"{name}-out")
    return app


def a_worker(address: str, name: str, state_dir: Path | None = None, **options: Any) -> Worker:
    config = WorkerConfig(commit_interval_ms=50, state_dir=state_dir, **options)
    return Worker(joined(name).plan(), address, MemoryRegistry(), config)


async def prepare(address: str, name: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics(
            [
                NewTopic(f"{name}-orders", ORDERS),
                NewTopic(f"{name}-out", 1),
                NewTopic(f"{name}-customers", CUSTOMERS, configs={"cleanup.policy": "compact"}),
            ]
        )


async def write(address: str, topic: str, rows: list[tuple[str, str | None]]) -> None:
    async with Producer(address) as producer:
        for key, value in rows:
            await producer.send(topic, value and value.encode(), key=key.encode())
        await producer.flush()


async def read(address: str, topic: str) -> list[tuple[bytes, bytes]]:
    tp = TopicPartition(topic, 0)
    batches: list[Columns] = []
    async with Consumer(address, isolation_level="read_committed") as consumer:
        ends = await consumer.end_offsets([tp])
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        while (consumer.position(tp) or 0) < ends[tp]:
            batches += (await consumer.poll(timeout_ms=500)).values()
    columns = concat(batches)
    return list(zip(columns.keys, columns.values, strict=True))


def names(first: int, last: int) -> list[str]:
    return [f"c{number}" for number in range(first, last)]


async def until(address: str, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """The records of a topic, once there are so many."""
    while True:
        if len(rows := await read(address, topic)) >= count:
            return rows
        await asyncio.sleep(0.05)


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 100))


@pytest.mark.parametrize("on_disk", [False, True])
def test_two_workers_know_every_row_before_a_task_runs_and_after_a_restart(
    address: str, tmp_path: Path, on_disk: bool
) -> None:
    async def scenario() -> None:
        name, state = f"two-{on_disk}", tmp_path if on_disk else None
        await prepare(address, name)
        customers = names(0, COUNT)
        await write(address, f"{name}-customers", [(c, c.upper()) for c in customers])
        await write(address, f"{name}-orders", [(c, c) for c in customers[: COUNT // 2]])
        workers = [a_worker(address, name, state) for _ in range(2)]
        runs = [asyncio.create_task(each.run()) for each in workers]
        await until(address, f"{name}-out", COUNT // 2)
        workers[0].stop()
        await runs[0]
        await write(address, f"{name}-orders", [(c, c) for c in customers[COUNT // 2 :]])
        again = a_worker(address, name, state)
        last = asyncio.create_task(again.run())
        found = await until(address, f"{name}-out", COUNT)
        workers[1].stop()
        again.stop()
        await asyncio.gather(runs[1], last)
        assert sorted(found) == sorted((c.encode(), f"{c}={c.upper()}".encode()) for c in customers)
        # What was read once is on disk.
        assert again._globals.records == (0 if on_disk else COUNT)

    run(scenario())


def test_rows_that_come_later_are_followed_and_tasks_do_not_wait(address: str) -> None:
    async def scenario() -> None:
        name = "later"
        await prepare(address, name)
        worker = a_worker(address, name)
        running = asyncio.create_task(worker.run())
        await write(address, f"{name}-orders", [("1", "a")])
        await until(address, f"{name}-out", 1)
        await write(address, f"{name}-customers", [("a", "new"), ("b", "gone"), ("b", None)])
        while worker._globals.records < 3:
            await asyncio.sleep(0.01)
        await write(address, f"{name}-orders", [("2", "a"), ("3", "b")])
        found = await until(address, f"{name}-out", 3)
        worker.stop()
        await running
        assert dict(found) == {b"1": b"a=None", b"2": b"a=new", b"3": b"b=None"}

    run(scenario())


def test_a_partition_that_is_added_is_read(address: str) -> None:
    async def scenario() -> None:
        name = "grown"
        await prepare(address, name)
        worker = a_worker(address, name)
        running = asyncio.create_task(worker.run())
        await write(address, f"{name}-orders", [("1", "a")])
        await until(address, f"{name}-out", 1)
        async with Admin(address) as admin:
            await admin.create_partitions({f"{name}-customers": CUSTOMERS + 1})
        async with Producer(address) as producer:
            await producer.send(f"{name}-customers", b"new", key=b"a", partition=CUSTOMERS)
            await producer.flush()
        while worker._globals.records < 1:
            await asyncio.sleep(0.01)
        worker.stop()
        await running

    run(scenario())


def test_what_is_not_committed_is_no_row(address: str) -> None:
    async def scenario() -> None:
        name = "aborted"
        await prepare(address, name)
        async with TransactionalProducer(address, "writer") as producer:
            for commits in (True, False):
                producer.begin()
                await producer.send(f"{name}-customers", b"%d" % commits, key=b"a")
                await (producer.commit if commits else producer.abort)()
        await write(address, f"{name}-orders", [("1", "a")])
        await a_worker(address, name).run(until_caught_up=True)
        assert await read(address, f"{name}-out") == [(b"1", b"a=1")]

    run(scenario())


@pytest.mark.parametrize("when", ["running", "restarted", "gone"])
def test_a_topic_that_was_made_anew_is_refused_by_name(
    address: str, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, replacing = GlobalTables._look_at_topics, asyncio.Lock()

    async def look_before_or_after(tables: GlobalTables) -> dict[TopicPartition, object]:
        """Between the two requests the topic would be gone."""
        async with replacing:
            return await look(tables)

    monkeypatch.setattr(GlobalTables, "_look_at_topics", look_before_or_after)

    async def scenario() -> None:
        name = f"anew-{when}"
        await prepare(address, name)
        await write(address, f"{name}-customers", [("a", "old")])
        await write(address, f"{name}-orders", [("1", "a")])
        if when == "restarted":
            await a_worker(address, name, tmp_path).run(until_caught_up=True)
            running = None
        else:
            running = asyncio.create_task(a_worker(address, name).run())
            await until(address, f"{name}-out", 1)
        async with replacing, Admin(address) as admin:
            await admin.delete_topics([f"{name}-customers"])
            if when != "gone":
                await admin.create_topics([NewTopic(f"{name}-customers", CUSTOMERS)])
        words = "the topic is gone" if when == "gone" else "was deleted and created again"
        with pytest.raises(
            TopologyError, match=f"'customers' of topic '{name}-customers'.*{words}"
        ):
            await (running or a_worker(address, name, tmp_path).run(until_caught_up=True))

    run(scenario())


def test_a_topic_that_is_missing_is_named(address: str) -> None:
    async def scenario() -> None:
        async with Admin(address) as admin:
            await admin.create_topics([NewTopic("missing-orders", 1)])
        with pytest.raises(TopologyError, match="topic 'missing-customers' does not exist"):
            await a_worker(address, "missing").run(until_caught_up=True)

    run(scenario())
