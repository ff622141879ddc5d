"""map_async on a broker: two workers, one of which dies or stops in the middle of its calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal

import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, int64, string
from kafkalite.streams.local import rounds
from kafkalite.streams.local import worker as workers
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

PARTITIONS, KEYS = 4, "abcdefgh"
PATIENCE_SECONDS = 60
Guarantee = Literal["exactly_once", "at_least_once"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


async def short(value: str) -> str:
    await asyncio.sleep(0.002 * (hash(value) % 10))
    return value


def build(
    name: str, function: Callable[[str], Awaitable[str]] = short, *, ordered: bool = True
) -> Streams:
    """Counts above the calls, and below them by what they gave."""
    app = Streams(name, key=string(), value=string())
    stream = app.stream(f"{name}-in")
    called = stream.map_async(function, concurrency=20, ordered=ordered)
    called.to(f"{name}-out")
    above = stream.group_by_key().count(name="above", cached=False).to_stream()
    below = above.map(str).map_async(function, concurrency=5, ordered=ordered)
    below.group_by_key().count(name="below", cached=False).to_stream().to(
        f"{name}-counts", value=int64()
    )
    return app


async def prepare(address: str, name: str, count: int) -> None:
    async with Admin(address) as admin:
        topics = [f"{name}-{end}" for end in ("in", "out", "counts")]
        await admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics])
    async with Producer(address) as producer:
        for index in range(count):
            key = KEYS[index % len(KEYS)]
            record = Columns([key.encode()], [str(index).encode()], [1_700_000_000_000 + index])
            await producer.send_columns(f"{name}-in", record)
        await producer.flush()


async def read(address: str, topic: str) -> list[tuple[str, bytes]]:
    found = await read_topic(address, topic, PARTITIONS)
    return [
        (bytes(key or b"").decode(), bytes(value or b""))
        for key, value in zip(found.keys, found.values, strict=True)
    ]


def worker(address: str, app: Streams, guarantee: Guarantee = "exactly_once") -> Worker:
    config = WorkerConfig(processing_guarantee=guarantee, commit_interval_ms=50)
    return Worker(app.plan(), address, MemoryRegistry(), config)


def check(out: list[tuple[str, bytes]], counts: list[tuple[str, bytes]], total: int) -> None:
    """Every record once, in the order of its key; so are the counts of both tables."""
    by_key: dict[str, list[int]] = {}
    for key, value in out:
        by_key.setdefault(key, []).append(int(value))
    assert by_key == {key: list(range(i, total, len(KEYS))) for i, key in enumerate(KEYS)}
    each = total // len(KEYS)
    counted: dict[str, list[int]] = {}
    for key, value in counts:
        counted.setdefault(key, []).append(int.from_bytes(value, "big"))
    assert counted == {key: list(range(1, each + 1)) for key in KEYS}


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("ordered", [True, False])
def test_each_record_counts_once_whatever_happens_to_a_worker(
    address: str, how: str, ordered: bool
) -> None:
    name, total = f"{how}-{ordered}", 800

    async def scenario() -> None:
        await prepare(address, name, total)
        app = build(name, ordered=ordered)
        gone, stays = worker(address, app), worker(address, app)
        runs = [asyncio.create_task(gone.run())]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while gone.progress.commits < 2:
                await asyncio.sleep(0.01)
            runs.append(asyncio.create_task(stays.run()))
            while not stays._rounds.tasks:  # it has some of the other's
                await asyncio.sleep(0.01)
        if how == "stopped":
            gone.stop()
            await runs[0]
        else:  # without a word to the group: its transaction stays open
            runs[0].cancel()
            await asyncio.wait(runs[:1])
        last = worker(address, app)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await last.run(until_caught_up=True)
            stays.stop()
            await runs[1]
        check(await read(address, f"{name}-out"), await read(address, f"{name}-counts"), total)

    asyncio.run(scenario())


def test_at_least_once_loses_nothing(address: str) -> None:
    async def scenario() -> None:
        await prepare(address, "least", 400)
        app = build("least")
        first = worker(address, app, "at_least_once")
        run = asyncio.create_task(first.run())
        while first.progress.records_out < 100:
            await asyncio.sleep(0.01)
        run.cancel()
        await asyncio.wait([run])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker(address, app, "at_least_once").run(until_caught_up=True)
        out = Counter(int(value) for _, value in await read(address, "least-out"))
        assert sorted(out) == list(range(400))

    asyncio.run(scenario())


def test_a_call_that_does_not_end_holds_back_the_commit_and_is_done_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop waits for it, but not for ever; the next run calls once more."""
    monkeypatch.setattr(rounds, "CALLS_SECONDS_MAX", 0.3)
    called: list[str] = []
    may_end = False

    async def stuck(value: str) -> str:
        called.append(value)
        while value == "3" and not may_end:
            await asyncio.sleep(0.01)
        return value

    def calling() -> Streams:
        app = Streams("stuck", key=string(), value=string())
        app.stream("stuck-in").map_async(stuck, ordered=False).to("stuck-out")
        return app

    async def committed() -> int:
        async with Admin(address) as admin:
            offsets = await admin.list_group_offsets("stuck")
        return sum(entry.offset for entry in offsets.values())

    async def scenario() -> None:
        nonlocal may_end
        await prepare(address, "stuck", 8)
        first = worker(address, calling())
        run = asyncio.create_task(first.run())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(called) < 8:
                await asyncio.sleep(0.01)
            first.stop()
            await run
        partial = await committed()
        assert partial < 8
        out = await read(address, "stuck-out")
        assert len(out) == partial, "what is committed belongs to the offsets"
        may_end = True
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker(address, calling()).run(until_caught_up=True)
        values = [int(value) for _, value in await read(address, "stuck-out")]
        assert sorted(values) == list(range(8))
        assert called.count("3") == 2

    asyncio.run(scenario())


def test_a_call_ends_the_poll_that_the_worker_waits_in(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a result does not wait for the next record, however long polls may wait."""

    async def scenario() -> None:
        await prepare(address, "woken", 8)
        app = Streams("woken", key=string(), value=string())
        app.stream("woken-in").map_async(short).to("woken-out")
        one = worker(address, app)
        run = asyncio.create_task(one.run())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while one.progress.commits < 1:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(workers, "POLL_MS", 600_000)
            async with Producer(address) as producer:
                await producer.send_columns(
                    "woken-in", Columns([b"a"], [b"8"], [1_700_000_000_000])
                )
                await producer.flush()
            while len(await read(address, "woken-out")) < 9:
                await asyncio.sleep(0.05)
        run.cancel()
        await asyncio.wait([run])

    asyncio.run(scenario())
