"""A table with a retention in several workers: each row leaves once, and never before the updates
of slower writers have come, though a worker goes half way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

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

PARTITIONS, KEYS, STEP, RETENTION, LATER = 3, 600, 10, 1_000, 700
Sent = tuple[str, int, int]  # value, timestamp, partition


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def kept(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    updates = app.stream(f"{name}-in").select_key(lambda v: v.split(":")[0])
    updates.to_table(retention=RETENTION, name="rows").to_stream().to(f"{name}-out")
    return app


def inputs() -> list[Sent]:
    """Two updates of each key, by different writers."""
    sent = []
    for number in range(KEYS):
        at = 1_000 + number * STEP
        sent.append((f"{number}:first", at, number % PARTITIONS))
        sent.append((f"{number}:second", at + LATER, (number + 1) % PARTITIONS))
    return sorted(sent, key=lambda each: each[1])


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
def test_each_row_leaves_once(address: str, on_disk: bool, tmp_path: Path) -> None:
    name, sent = f"kept-{'disk' if on_disk else 'memory'}", inputs()

    def worker(number: int) -> Worker:
        config = WorkerConfig(
            commit_interval_ms=100,
            idle_ms=600_000,  # what is sent later counts as late nowhere, however much later
            state_dir=tmp_path / str(number) if on_disk else None,
        )
        return Worker(kept(name).plan(), address, MemoryRegistry(), config)

    async def scenario() -> Columns:
        async with Admin(address) as admin:
            await admin.create_topics(
                [NewTopic(f"{name}-{end}", PARTITIONS) for end in ("in", "out")]
            )
        workers = [worker(number) for number in range(2)]
        runs = [asyncio.create_task(each.run()) for each in workers]
        await send(address, f"{name}-in", sent[: len(sent) // 2])
        await asyncio.sleep(1.5)
        runs[1].cancel()  # without a last commit
        await asyncio.gather(runs[1], return_exceptions=True)
        await send(address, f"{name}-in", sent[len(sent) // 2 :])
        workers[0].stop()
        await runs[0]
        await asyncio.gather(*(worker(n).run(until_caught_up=True) for n in range(2)))
        return await read(address, f"{name}-out")

    out = asyncio.run(asyncio.wait_for(scenario(), 100))
    found: dict[str, list[str | None]] = {}
    for key, value in zip(out.keys, out.values, strict=True):
        assert key is not None
        found.setdefault(key.decode(), []).append(value and value.decode().split(":")[1])
    newest = sent[-1][1]
    assert len(found) == KEYS
    for key, updates in found.items():
        is_over = 1_000 + int(key) * STEP + LATER < newest - RETENTION - 500
        assert set(updates[:2]) == {"first", "second"}, key  # in the order in which they came
        assert updates[2:] in ([[None]] if is_over else [[], [None]]), key
