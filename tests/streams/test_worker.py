"""Workers against a real broker: shared work, restored state, and faults that are named."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ApiError, ErrorCode, KafkaliteError, ProcessingError, TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, int64, string
from kafkalite.streams.local.worker import Progress, Worker, WorkerConfig

pytestmark = pytest.mark.slow

CONFIG = WorkerConfig(commit_interval_ms=100)
PARTITIONS = 4


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


async def make_topics(address: str, *names: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(name, PARTITIONS) for name in names])


async def send(address: str, topic: str, words: list[str], start_ms: int = 0) -> None:
    keys = [word.encode() for word in words]
    async with Producer(address) as producer:
        times = [start_ms + i for i in range(len(words))]
        await producer.send_columns(topic, Columns(keys, keys, times))
        await producer.flush()


async def read(address: str, topic: str) -> Columns:
    return await read_topic(address, topic, PARTITIONS)


def counts(columns: Columns) -> dict[str, int]:
    """The last count of each word."""
    return {
        k.decode(): int.from_bytes(v, "big")
        for k, v in zip(columns.keys, columns.values, strict=True)
    }


def word_count(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    words = app.stream(f"{name}-in").select_key(lambda word: word[0])
    words.group_by_key().count(name="counts").to_stream().to(f"{name}-out", value=int64())
    return app


def worker(app: Streams, address: str) -> Worker:
    return Worker(app.plan(), address, MemoryRegistry(), CONFIG)


async def catch_up(app: Streams, address: str) -> Progress:
    return await asyncio.wait_for(worker(app, address).run(until_caught_up=True), 60)


def test_state_comes_back_from_the_changelog_alone(address: str) -> None:
    async def scenario() -> None:
        app = word_count("again")
        await make_topics(address, "again-in", "again-out")
        await send(address, "again-in", ["apple", "bean", "avocado"] * 100)
        first = await catch_up(app, address)
        assert first.records_restored == 0
        await send(address, "again-in", ["apricot"] * 50)
        second = await catch_up(word_count("again"), address)
        assert 2 <= second.records_restored <= 2 * first.commits  # of a and b in each commit
        assert counts(await read(address, "again-out")) == {"a": 250, "b": 100}

    asyncio.run(scenario())


def test_two_workers_share_the_tasks_and_each_record_counts_once(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "shared-in", "shared-out")
        words = [f"{chr(97 + i % 26)}{i}" for i in range(2_000)]
        await send(address, "shared-in", words)
        one, two = worker(word_count("shared"), address), worker(word_count("shared"), address)
        runs = [asyncio.create_task(one.run()), asyncio.create_task(two.run())]
        rounds = 1
        # On a busy machine one of them may be late for the first rounds.
        while rounds < 4 or not (one.progress.records and two.progress.records):
            await send(address, "shared-in", words, start_ms=rounds * 10_000)
            rounds += 1
            await until_counted(address, "shared-out", len(words) * rounds, runs)
        two.stop()
        await runs[1]
        await send(address, "shared-in", words, start_ms=rounds * 10_000)
        await until_counted(address, "shared-out", len(words) * (rounds + 1), runs[:1])
        one.stop()
        await runs[0]

    asyncio.run(asyncio.wait_for(scenario(), 120))


KILLED = """
import asyncio, sys

from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, int64, string, tumbling
from kafkalite.streams.local.worker import Worker, WorkerConfig

app = Streams("killed", key=string(), value=string())
windows = app.stream("killed-in").group_by_key().window(tumbling(100)).count(name="n")
windows.final().to("killed-out", value=int64())
# A static member takes its place at once; of another the group would hear only after a while.
config = WorkerConfig(commit_interval_ms=20, group_instance_id="one")
worker = Worker(app.plan(), sys.argv[1], MemoryRegistry(), config)
asyncio.run(worker.run(until_caught_up=len(sys.argv) > 2))
"""


@pytest.mark.timeout(300)
def test_kill_9_loses_no_window_and_no_record_of_one(address: str, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), address]
    sent_ms = 0

    async def send_more() -> None:
        """A record of every partition for each of the next 1,050 ms."""
        nonlocal sent_ms
        times = range(sent_ms, sent_ms + 1_050)
        sent_ms = times.stop
        async with Producer(address) as producer:
            for partition in range(PARTITIONS):
                keys = [f"k{partition}".encode()] * len(times)
                columns = Columns(keys, keys, times)
                await producer.send_columns("killed-in", columns, partition=partition)

    def windows_out() -> Columns:
        return asyncio.run(read(address, "killed-out"))

    asyncio.run(make_topics(address, "killed-in", "killed-out"))
    for _ in range(3):
        with subprocess.Popen(command) as life:
            try:
                for _ in range(2):
                    before = len(windows_out())
                    asyncio.run(send_more())
                    deadline = time.monotonic() + 60
                    while len(windows_out()) == before:
                        assert time.monotonic() < deadline, f"{before} windows and no more"
            finally:
                life.kill()
    asyncio.run(send_more())
    subprocess.run([*command, "until caught up"], check=True, timeout=100)

    out = windows_out()
    found = {
        (key[:-8], int.from_bytes(key[-8:], "big")): int.from_bytes(value, "big")
        for key, value in zip(out.keys, out.values, strict=True)
    }
    assert len(found) == len(out), "a window came out twice"
    closed = range(0, sent_ms - 99, 100)
    closed = closed if sent_ms % 100 else closed[:-1]  # the last one waits for a record behind it
    assert sorted(found) == [
        (f"k{p}".encode(), start) for p in range(PARTITIONS) for start in closed
    ]
    assert set(found.values()) == {100}


def test_a_worker_without_a_task_ends_too_when_all_is_caught_up(address: str) -> None:
    async def scenario() -> None:
        async with Admin(address) as admin:
            await admin.create_topics([NewTopic("narrow-in", 1), NewTopic("narrow-out", 1)])
        await send(address, "narrow-in", ["a"] * 10)
        app = Streams("narrow")
        app.stream("narrow-in").to("narrow-out")
        done = await asyncio.gather(catch_up(app, address), catch_up(app, address))
        assert sum(progress.records for progress in done) == 10

    asyncio.run(scenario())


async def until_counted(
    address: str, topic: str, total: int, runs: list[asyncio.Task[Progress]]
) -> None:
    """Until the counts add up to `total`; more would be records counted twice."""
    for _ in range(300):
        for run in runs:
            if run.done():
                run.result()
        found = sum(counts(await read(address, topic)).values())
        assert found <= total, f"{found} records counted of {total} sent"
        if found == total:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{topic}: {found} of {total} after 30 s")


def test_a_topic_that_does_not_exist_is_named(address: str) -> None:
    app = Streams("nothing-there")
    app.stream("no-such-topic").to("out")
    with pytest.raises(TopologyError, match="'no-such-topic' does not exist"):
        asyncio.run(catch_up(app, address))


def test_a_function_that_fails_names_the_record_and_commits_nothing_of_it(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "faulty-in", "faulty-out")
        await send(address, "faulty-in", ["1", "2", "x"])
        app = Streams("faulty", key=string(), value=string())
        app.stream("faulty-in").map(lambda v: str(int(v) * 2), name="double").to("faulty-out")
        with pytest.raises(
            ProcessingError, match=r"double.*faulty-in-\d offset \d|faulty-in"
        ) as info:
            await catch_up(app, address)
        assert "invalid literal" in str(info.value)
        mended = Streams("faulty", key=string(), value=string())
        mended.stream("faulty-in").map(lambda v: v * 2).to("faulty-out")
        progress = await catch_up(mended, address)
        assert progress.records == 3

    asyncio.run(scenario())


def test_an_input_that_is_deleted_ends_the_worker_and_is_not_made_anew(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "gone-in", "gone-out")
        await send(address, "gone-in", ["a"])
        running = worker(word_count("gone"), address)
        run = asyncio.create_task(running.run())
        while not running.progress.commits:
            await asyncio.sleep(0.05)
        async with Admin(address) as admin:
            await admin.delete_topics(["gone-in"])
            with pytest.raises(TopologyError, match="'gone-in' is gone"):
                await asyncio.wait_for(run, 60)
            assert "gone-in" not in {topic.name for topic in await admin.describe_topics()}

    asyncio.run(scenario())


def test_a_commit_that_finds_an_input_deleted_names_it(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "away-in", "away-out")
        running = worker(word_count("away"), address)
        run = asyncio.create_task(running.run())
        await send(address, "away-in", ["a"])
        while not running.progress.commits:
            await asyncio.sleep(0.05)
        async with Admin(address) as admin:

            async def commit(*_: object) -> bool:
                await admin.delete_topics(["away-in"])
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "commit of offsets")

            running._committer.commit = commit  # type: ignore[method-assign]
            with pytest.raises(TopologyError, match="'away-in' is gone"):
                await asyncio.wait_for(run, 60)

    asyncio.run(scenario())


def test_two_topologies_of_one_id_are_told_apart(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "one-in", "two-in")
        runs = []
        for topic in ("one-in", "two-in"):
            app = Streams("same-id", key=string(), value=string())
            app.stream(topic).to("same-out")
            runs.append(asyncio.create_task(worker(app, address).run()))
        done, pending = await asyncio.wait(runs, timeout=60, return_when="FIRST_COMPLETED")
        for run in pending:
            run.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        assert done, "neither was told of the other in 60 s"
        for run in done:
            with pytest.raises(TopologyError, match="another topology runs as 'same-id'"):
                run.result()

    asyncio.run(scenario())


def test_an_internal_topic_of_another_width_is_refused(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "wide-in")
        async with Admin(address) as admin:
            await admin.create_topics([NewTopic("wide-counts-changelog", 1)])
        app = Streams("wide", key=string(), value=string())
        app.stream("wide-in").group_by_key().count(name="counts").to_stream().to("wide-out")
        with pytest.raises(TopologyError, match="has 1 partitions, the topology needs 4"):
            await catch_up(app, address)

    asyncio.run(scenario())


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    with pytest.raises(KafkaliteError, match=r"127\.0\.0\.1:1"):
        asyncio.run(catch_up(word_count("lost"), "127.0.0.1:1"))


@pytest.mark.parametrize("stateful", [False, True])
def test_partitions_that_are_added_to_an_input_are_noticed(address: str, stateful: bool) -> None:
    """Parts without state go on with them; parts with state stop with the way out."""

    async def scenario() -> None:
        name = f"grown-{stateful}".lower()
        app = Streams(name, key=string(), value=string())
        source = app.stream(f"{name}-in")
        grouped = source.group_by_key() if stateful else source.group_by(str.upper)
        grouped.count(name="n")
        one = worker(app, address)
        async with Admin(address) as admin:
            await admin.create_topics([NewTopic(f"{name}-in", 2)])
            running = asyncio.create_task(one.run())
            while not one.progress.records:
                await send(address, f"{name}-in", ["a"])
                await asyncio.sleep(0.1)
            await admin.create_partitions({f"{name}-in": 4})
            await one._client.refresh([f"{name}-in"])  # as its age does after a while
        before = one.progress.records
        async with Producer(address) as producer:
            for partition in (2, 3):
                columns = Columns([b"k"], [b"v"], [0])
                await producer.send_columns(f"{name}-in", columns, partition=partition)
        while not running.done() and one.progress.records < before + 4:
            await asyncio.sleep(0.05)
        one.stop()
        if stateful:
            with pytest.raises(TopologyError, match="more partitions.*`kafkalite-streams reset`"):
                await running
        else:
            await running

    asyncio.run(asyncio.wait_for(scenario(), 60))
