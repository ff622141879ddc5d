"""A worker that its group refuses as it is joins as one that the group takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import TopicPartition
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams
from kafkalite.streams.local.membership import SESSION_TIMEOUT_MS_SAFE
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow


def make(name: str, address: str, config: WorkerConfig) -> Worker:
    app = Streams(name)
    app.stream(f"{name}-in").to(f"{name}-out")
    return Worker(app.plan(), address, MemoryRegistry(), config)


async def send(address: str, name: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(f"{name}-{what}", 1) for what in ("in", "out")])
    async with Producer(address) as producer:
        await producer.send(f"{name}-in", b"one")


async def outputs(address: str, name: str) -> list[bytes | None]:
    """What was committed to the output."""
    partition = TopicPartition(f"{name}-out", 0)
    async with Consumer(address, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning([partition])
        found: list[bytes | None] = []
        (end,) = (await consumer.end_offsets([partition])).values()
        while (consumer.position(partition) or 0) < end:
            for columns in (await consumer.poll(timeout_ms=500)).values():
                found += columns.values
        return found


def test_where_sessions_are_longer_so_is_the_workers(tmp_path: Path) -> None:
    async def scenario(address: str) -> None:
        await send(address, "long")
        worker = make("long", address, WorkerConfig())
        progress = await worker.run(until_caught_up=True)
        assert progress.records == 1
        assert worker.config.session_timeout_ms == SESSION_TIMEOUT_MS_SAFE

    longer = {"group.min.session.timeout.ms": "6000"}  # as Apache Kafka has it
    with EmbeddedBroker(tmp_path, overrides=longer) as broker:
        asyncio.run(scenario(broker.bootstrap_servers))


def test_one_whose_identity_another_process_has_goes_on_without_it(tmp_path: Path) -> None:
    async def scenario(address: str) -> None:
        await send(address, "twice")
        config = WorkerConfig(group_instance_id="same", commit_interval_ms=50)
        old, new = make("twice", address, config), make("twice", address, config)
        runs = [asyncio.create_task(old.run())]
        while not old.progress.commits:
            await asyncio.sleep(0.02)
        runs.append(asyncio.create_task(new.run()))
        while old.config.group_instance_id is not None:
            assert not any(run.done() for run in runs)
            await asyncio.sleep(0.02)
        assert new.config.group_instance_id == "same"
        for worker in (old, new):
            worker.stop()
        await asyncio.gather(*runs)
        assert await outputs(address, "twice") == [b"one"]

    with EmbeddedBroker(tmp_path) as broker:
        asyncio.run(scenario(broker.bootstrap_servers))
