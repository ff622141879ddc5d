"""A user function that blocks costs its own task's time, and nobody a session."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

SESSION_MS = 3_000  # a pause of the whole process may be as long


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


class Function:
    """Blocks at one record until it may go on."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.is_blocked = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self, word: str) -> str:
        self.calls[word] += 1
        if word == "block":
            self.is_blocked.set()
            assert self.goes_on.wait(60)
        return word


def make(name: str, address: str, function: Function, **config: int) -> Worker:
    app = Streams(name, key=string(), value=string())
    app.stream(f"{name}-in").map(function, name="crawl").to(f"{name}-out")
    settings = WorkerConfig(commit_interval_ms=50, session_timeout_ms=SESSION_MS, **config)  # type: ignore[arg-type]
    return Worker(app.plan(), address, MemoryRegistry(), settings)


async def make_topics(address: str, name: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(f"{name}-{what}", 2) for what in ("in", "out")])


async def send(address: str, name: str, words: list[str], partition: int) -> None:
    data: list[bytes | None] = [word.encode() for word in words]
    async with Producer(address) as producer:
        columns = Columns(data, data, list(range(len(words))))
        await producer.send_columns(f"{name}-in", columns, partition=partition)


async def until_called(function: Function, word: str) -> None:
    while not function.calls[word]:
        await asyncio.sleep(0.02)


def test_a_function_that_blocks_beyond_the_session_is_called_once(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "slow")
        function = Function()
        workers = [make("slow", address, function) for _ in range(2)]
        runs = [asyncio.create_task(worker.run()) for worker in workers]
        await send(address, "slow", ["block", "behind"], 0)
        while not function.is_blocked.is_set():
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.5 * SESSION_MS / 1000)
        function.goes_on.set()
        await send(address, "slow", ["other"], 1)
        for word in ("behind", "other"):
            await until_called(function, word)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*runs)
        assert set(function.calls.values()) == {1}, "nobody lost a task"
        assert sum(worker.progress.records_out for worker in workers) == 3

    asyncio.run(scenario())


def test_a_worker_that_is_stuck_is_said_to_be_with_the_node_and_the_record(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await make_topics(address, "stuck")
        function = Function()
        worker = make("stuck", address, function, max_poll_interval_ms=300)
        run = asyncio.create_task(worker.run())
        await send(address, "stuck", ["first", "block"], 1)
        with caplog.at_level(logging.ERROR):
            while "stuck for 0.3 s in" not in caplog.text:
                await asyncio.sleep(0.02)
        assert "'crawl': topic 'stuck-in', partition 1, offset 1 (" in caplog.text
        assert "test_worker_stuck.py" in caplog.text
        function.goes_on.set()
        await send(address, "stuck", ["later"], 0)
        await until_called(function, "later")
        worker.stop()
        await run

    asyncio.run(scenario())
