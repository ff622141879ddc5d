"""Standbys and warm-ups on a real broker: a task moves to where its state is already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, int64, string
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

PARTITIONS = 2
KEYS = 3_000
LAG = 100
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


async def make(address: str, name: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(f"{name}-{t}", PARTITIONS) for t in ("in", "out")])


async def feed(address: str, name: str) -> None:
    """Each key once more, in each partition."""
    async with Producer(address) as producer:
        for partition in range(PARTITIONS):
            keys: list[bytes | None] = [b"%d-%d" % (partition, n) for n in range(KEYS)]
            columns = Columns(keys, [b"v"] * KEYS, [time.time_ns() // 1_000_000] * KEYS)
            await producer.send_columns(f"{name}-in", columns, partition=partition)


async def counts(address: str, name: str) -> set[int]:
    """The different last counts of all keys; each is to be the same."""
    columns = await read_topic(address, f"{name}-out", PARTITIONS)
    newest = dict(zip(columns.keys, columns.values, strict=True))
    if len(newest) < PARTITIONS * KEYS:
        return set()
    return {int.from_bytes(count or b"", "big") for count in newest.values()}


class Group:
    """Workers of one application in this loop."""

    def __init__(self, address: str, name: str, **settings: Any) -> None:
        self._address, self._name = address, name
        self._settings = {"acceptable_recovery_lag": LAG, "commit_interval_ms": 50} | settings
        self._runs: dict[Worker, asyncio.Task[Any]] = {}

    def start(self, **settings: Any) -> Worker:
        app = Streams(self._name, key=string(), value=string())
        count = app.stream(f"{self._name}-in").group_by_key().count(name="n")
        count.to_stream().to(f"{self._name}-out", value=int64())
        config = WorkerConfig(**self._settings, **settings)
        worker = Worker(app.plan(), self._address, MemoryRegistry(), config)
        self._runs[worker] = asyncio.create_task(worker.run())
        return worker

    async def stop(self, worker: Worker) -> None:
        worker.stop()
        await self._runs.pop(worker)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():
                for run in self._runs.values():
                    assert not run.done(), run
                await asyncio.sleep(0.02)

    async def until_counted(self, times: int) -> None:
        """Until every key was counted so often."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await counts(self._address, self._name) != {times}:
                await asyncio.sleep(0.1)


@asynccontextmanager
async def grouped(address: str, name: str, **settings: Any):  # type: ignore[no-untyped-def]
    await make(address, name)
    await feed(address, name)
    group = Group(address, name, **settings)
    try:
        yield group
    finally:
        for worker in list(group._runs):
            await group.stop(worker)


def runs(worker: Worker) -> int:
    """How many tasks of a worker run."""
    return len(worker._rounds.tasks)


def follows(worker: Worker) -> list[int]:
    """How far behind the standbys of a worker are."""
    starter = getattr(worker, "_starter", None)
    return [] if starter is None else list(starter.lags.values())


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_standby_takes_over_and_restores_only_the_tail(
    address: str, tmp_path: Path, is_on_disk: bool
) -> None:
    async def scenario() -> None:
        name = f"standby-{is_on_disk}"
        async with grouped(address, name, num_standby_replicas=1) as group:
            one, two = (
                group.start(state_dir=tmp_path / folder if is_on_disk else None)
                for folder in ("one", "two")
            )
            await group.until(lambda: runs(one) == runs(two) == 1)
            await group.until_counted(1)
            await group.until(lambda: follows(one) == follows(two) == [0])
            restored = two.progress.records_restored
            await group.stop(one)
            await feed(address, name)
            await group.until(lambda: runs(two) == PARTITIONS)
            await group.until_counted(2)
            assert two.progress.records_restored - restored <= LAG
            assert follows(two) == [], "nobody else could run it"

    asyncio.run(scenario())


def test_a_new_worker_warms_up_before_it_gets_tasks(address: str) -> None:
    async def scenario() -> None:
        async with grouped(address, "warm") as group:
            one = group.start()
            await group.until_counted(1)
            two = group.start()
            await group.until(lambda: follows(two) != [])
            assert runs(one) == PARTITIONS, "the owner goes on meanwhile"
            await group.until(lambda: runs(one) == runs(two) == 1)
            assert two.progress.records_restored <= LAG
            assert follows(one) == follows(two) == []
            await feed(address, "warm")
            await group.until_counted(2)

    asyncio.run(scenario())


def test_a_worker_that_comes_back_with_its_state_needs_no_warm_up(
    address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with grouped(address, "back") as group:
            one = group.start()
            await group.until_counted(1)
            # The second has never run the other task: its directory is of one task alone.
            two = group.start(state_dir=tmp_path)
            await group.until(lambda: runs(one) == runs(two) == 1)
            (had,) = map(str, two._rounds.tasks)
            await group.stop(two)
            await group.until(lambda: runs(one) == PARTITIONS)
            again = group.start(state_dir=tmp_path)
            await group.until(lambda: runs(again) == 1)
            assert [str(life) for life in again._rounds.tasks] == [had]
            assert again.progress.records_restored <= LAG

    asyncio.run(scenario())
