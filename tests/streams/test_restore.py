"""Restoring from a real broker: changelogs with gaps and markers, emptied, deleted, made anew."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local import restore
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.restore import Restore, look_up, restore_tasks
from kafkalite.streams.local.state.directory import StateDirectory
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.worker import Progress, Worker, WorkerConfig, now_ms

pytestmark = pytest.mark.slow

CLEANING = {"log.cleaner.backoff.ms": "50", "log.retention.check.interval.ms": "50"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), overrides=CLEANING) as broker:
        yield broker.bootstrap_servers


def table(name: str, **place: Any) -> Task:
    """A task whose only store is the table `t`; its changelog is `<name>-t-changelog`."""
    app = StreamsBuilder(name, key=string(), value=string())
    app.table(f"{name}-in", name="t").to_stream().to(f"{name}-out")
    return Task(compile_topology(app.plan())[0], 0, MemoryRegistry(), **place)


def changelog(name: str) -> TopicPartition:
    return TopicPartition(f"{name}-t-changelog", 0)


async def make(address: str, name: str, **configs: str) -> None:
    settings = {"cleanup.policy": "compact", "retention.ms": "-1"} | {
        k.replace("_", "."): v for k, v in configs.items()
    }
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(changelog(name).topic, 1, configs=settings)])


async def write(address: str, name: str, rows: list[tuple[bytes, bytes | None]]) -> None:
    async with Producer(address, batch_bytes=2_000) as producer:
        await put(producer, name, rows)
        await producer.flush()


async def put(producer: Producer, name: str, rows: list[tuple[bytes, bytes | None]]) -> None:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    await producer.send_columns(changelog(name).topic, Columns(keys, values, [1] * len(rows)))


async def restored(address: str, task: Task) -> int:
    async with Client(address) as client, asyncio.timeout(60):
        return await restore_tasks(client, [task], lambda: False, time.monotonic, now_ms)


def rows_of(task: Task) -> dict[str, str]:
    return dict(task.store("t").all())


async def ends(address: str, name: str) -> tuple[int, int]:
    tp = changelog(name)
    async with Consumer(address) as consumer:
        return (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]


async def count(address: str, name: str) -> int:
    tp, found = changelog(name), 0
    async with Consumer(address) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        while (consumer.position(tp) or 0) < end:
            found += sum(map(len, (await consumer.poll(100)).values()))
    return found


def test_gaps_that_compaction_left(address: str) -> None:
    async def scenario() -> None:
        await make(address, "gaps", segment_bytes="20000", min_cleanable_dirty_ratio="0.01")
        rows: list[tuple[bytes, bytes | None]] = [
            (b"%d" % (i % 50), b"value %d " % i * 20) for i in range(3_000)
        ]
        rows += [(b"7", None)]
        await write(address, "gaps", rows)
        while await count(address, "gaps") > 1_000:  # the cleaner has not come by
            await asyncio.sleep(0.05)
        task = table("gaps")
        records = await restored(address, task)
        assert records < 1_000
        expected = {k.decode(): v.decode() for k, v in dict(rows).items() if v is not None}
        assert rows_of(task) == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_markers_of_transactions_at_the_end(address: str, ending: str) -> None:
    async def scenario() -> None:
        await make(address, f"markers-{ending}")
        async with TransactionalProducer(address, f"markers-{ending}") as producer:
            producer.begin()
            await put(producer, f"markers-{ending}", [(b"a", b"1")])
            await producer.commit()
            producer.begin()
            await put(producer, f"markers-{ending}", [(b"b", b"2")])
            await (producer.commit() if ending == "commit" else producer.abort())
        task = table(f"markers-{ending}")
        await restored(address, task)
        assert rows_of(task) == {"a": "1"} | ({"b": "2"} if ending == "commit" else {})

    asyncio.run(scenario())


def test_a_changelog_without_records(address: str) -> None:
    async def scenario() -> None:
        await make(address, "none")
        task = table("none")
        assert await restored(address, task) == 0
        assert rows_of(task) == {}

    asyncio.run(scenario())


def test_a_changelog_that_was_emptied(address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        await make(address, "emptied", cleanup_policy="compact,delete")
        await write(address, "emptied", [(b"a", b"1"), (b"b", b"2")])
        directory = StateDirectory(tmp_path, "emptied")
        before = table("emptied", place=directory.task("0_0"))
        await restored(address, before)
        before.close()
        await write(address, "emptied", [(b"c", b"3")])
        async with Admin(address) as admin:
            await admin.delete_records({changelog("emptied"): 3})
        assert await ends(address, "emptied") == (3, 3)
        for place in ({}, {"place": directory.task("0_0")}):
            task = table("emptied", **place)
            assert await restored(address, task) == 0
            assert rows_of(task) == {}
            task.close()

    asyncio.run(scenario())


def test_records_that_are_deleted_while_they_are_read(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restore, "BATCH_RECORDS", 10)
    monkeypatch.setattr(restore, "FETCH_BYTES", 2_000)

    async def scenario() -> None:
        await make(address, "chased", cleanup_policy="compact,delete")
        rows: list[tuple[bytes, bytes | None]] = [(b"%05d" % i, b"v" * 100) for i in range(2_000)]
        await write(address, "chased", rows)
        task = table("chased")
        async with Client(address) as client, asyncio.timeout(60):
            replays = await look_up(client, [task], now_ms())
            running = Restore(client, replays, time.monotonic, now_ms)
            while running.records == 0:
                await running.step(0)
            async with Admin(address) as admin:
                await admin.delete_records({changelog("chased"): 1_900})
            while not (await running.step(50)).is_over:
                pass
            await running.close()
        assert "was deleted while it was read" in caplog.text
        assert sorted(rows_of(task)) == [f"{i:05d}" for i in range(1_900, 2_000)]

    asyncio.run(scenario())


@pytest.mark.parametrize("anew", [True, False])
def test_a_changelog_that_is_deleted_while_it_is_read(
    address: str, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "BATCH_RECORDS", 10)
    monkeypatch.setattr(restore, "FETCH_BYTES", 2_000)
    name = f"vanished-{anew}"

    async def scenario() -> None:
        await make(address, name)
        await write(address, name, [(b"%05d" % i, b"v" * 100) for i in range(2_000)])
        async with Client(address) as client, asyncio.timeout(60):
            replays = await look_up(client, [table(name)], now_ms())
            running = Restore(client, replays, time.monotonic, now_ms)
            while running.records == 0:
                await running.step(0)
            async with Admin(address) as admin:
                await admin.delete_topics([changelog(name).topic])
            if anew:
                await make(address, name)
            told = "was deleted and created again while it was read" if anew else "is gone, and the"
            with pytest.raises(TopologyError, match=f"changelog '{changelog(name).topic}' {told}"):
                while not (await running.step(50)).is_over:
                    pass
            await running.close()

    asyncio.run(scenario())


def words(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    counted = app.stream(f"{name}-in").group_by_key().count(name="t")
    counted.to_stream().map(str).to(f"{name}-out")
    return app


async def run(address: str, name: str, state_dir: Path, **settings: Any) -> Progress:
    config = WorkerConfig(commit_interval_ms=50, state_dir=state_dir, **settings)
    worker = Worker(words(name).plan(), address, MemoryRegistry(), config)
    async with asyncio.timeout(60):
        return await worker.run(until_caught_up=True)


async def feed(address: str, name: str, keys: list[bytes]) -> None:
    async with Producer(address) as producer:
        await producer.send_columns(f"{name}-in", Columns(keys, keys, [1] * len(keys)))
        await producer.flush()


async def results(address: str, name: str) -> dict[bytes, bytes]:
    tp = TopicPartition(f"{name}-out", 0)
    found: dict[bytes, bytes] = {}
    async with Consumer(address, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        while (consumer.position(tp) or 0) < end:
            for columns in (await consumer.poll(100)).values():
                found.update(zip(columns.keys, columns.values, strict=True))
    return found


async def topics(address: str, name: str) -> None:
    async with Admin(address) as admin:
        for topic in (f"{name}-in", f"{name}-out"):
            await admin.create_topics([NewTopic(topic, 1, configs={"retention.ms": "-1"})])


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_restart_reads_the_tail_alone(address: str, tmp_path: Path, guarantee: Any) -> None:
    name = guarantee.replace("_", "-")

    async def scenario() -> None:
        await topics(address, name)
        await feed(address, name, [b"%d" % (i % 100) for i in range(1_000)])
        first = await run(address, name, tmp_path, processing_guarantee=guarantee)
        assert first.records_restored == 0
        await feed(address, name, [b"7"] * 5)
        second = await run(address, name, tmp_path, processing_guarantee=guarantee)
        assert second.records_restored == 0
        elsewhere = await run(address, name, tmp_path / "new", processing_guarantee=guarantee)
        assert elsewhere.records_restored > 100
        await feed(address, name, [b"8"])
        third = await run(address, name, tmp_path / "new", processing_guarantee=guarantee)
        assert third.records_restored == 0
        behind = await run(address, name, tmp_path, processing_guarantee=guarantee)
        assert behind.records_restored == 1
        await feed(address, name, [b"8"])
        await run(address, name, tmp_path, processing_guarantee=guarantee)
        found = await results(address, name)
        assert (found[b"7"], found[b"8"], found[b"9"]) == (b"15", b"12", b"10")

    asyncio.run(scenario())


KILLED = """
import asyncio, sys
from pathlib import Path

from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string, tumbling
from kafkalite.streams.local.worker import Worker, WorkerConfig

app = Streams("killed-state", key=string(), value=string())
keyed = app.stream("killed-state-in").group_by_key()
keyed.count(name="t").to_stream().map(str).to("killed-state-out")
keyed.window(tumbling(1_000)).count(name="w")
# A static member takes its place at once; of another the group would hear only after a while.
config = WorkerConfig(
    commit_interval_ms=20, group_instance_id="one", state_dir=Path(sys.argv[2]),
    state_memory_bytes=50_000,
)
worker = Worker(app.plan(), sys.argv[1], MemoryRegistry(), config)
asyncio.run(worker.run(until_caught_up=len(sys.argv) > 3))
"""


def test_kill_9_leaves_state_that_goes_with_the_offsets(address: str, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), address, str(tmp_path / "state")]

    async def scenario() -> None:
        await topics(address, "killed-state")
        for turn in range(4):
            worker = await asyncio.create_subprocess_exec(*command)
            for _ in range(5):
                await feed(address, "killed-state", [b"%d" % (i % 700) for i in range(7_000)])
                await asyncio.sleep(0.1 * turn)
            while not await results(address, "killed-state"):
                assert worker.returncode is None
                await asyncio.sleep(0.05)
            worker.kill()
            await worker.wait()
        last = await asyncio.create_subprocess_exec(*command, "caught up")
        assert await last.wait() == 0
        found = await results(address, "killed-state")
        assert found == {b"%d" % i: b"200" for i in range(700)}

    asyncio.run(scenario())


def test_a_little_memory_counts_as_well(address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        await topics(address, "little")
        keys = [b"%d" % (i * 7919 % 500) for i in range(5_000)]
        for part in range(0, 5_000, 1_000):
            await feed(address, "little", keys[part : part + 1_000])
            await run(address, "little", tmp_path, state_memory_bytes=20_000)
        found = await results(address, "little")
        assert found == {b"%d" % i: b"10" for i in range(500)}

    asyncio.run(scenario())


def test_state_of_a_changelog_that_was_made_anew_is_refused(address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        await topics(address, "anew")
        await feed(address, "anew", [b"a"])
        await run(address, "anew", tmp_path)
        async with Admin(address) as admin:
            await admin.delete_topics(["anew-t-changelog"])
        with pytest.raises(
            TopologyError, match=r"'anew-t-changelog' was deleted and created again"
        ):
            await run(address, "anew", tmp_path)

    asyncio.run(scenario())
