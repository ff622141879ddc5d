"""Windows below a repartition topic with several workers: the same as with one, whoever lags."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string, tumbling
from kafkalite.streams.local import committer
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.committer import Changes, ExactlyOnce, Offsets
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

CONFIG = WorkerConfig(commit_interval_ms=100)
PARTITIONS, SIZE, GRACE = 4, 100, 30
KEYS = [chr(97 + i).encode() for i in range(12)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def windows(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    groups = app.stream(f"{name}-in").group_by(lambda v: v, name="k")
    table = groups.window(tumbling(SIZE, grace=GRACE)).count(name="n")
    table.final().to(f"{name}-final")
    table.late().to(f"{name}-late")
    return app


def inputs(seed: int, count: int) -> list[tuple[list[bytes], list[int]]]:
    """The records of each partition: words and times. Their times differ by far, one is empty, and
    within one some come too late."""
    random = Random(seed)
    made = []
    for partition in range(PARTITIONS - 1):
        words = [random.choice(KEYS) for _ in range(count)]
        times = [10_000 * partition + i * 3 + random.randrange(60) for i in range(count)]
        made.append((words, times))
    return [*made, ([], [])]


def expected(made: list[tuple[list[bytes], list[int]]]) -> tuple[Counter[tuple[bytes, int]], int]:
    """All windows, and how many records are late by the order of their own partition."""
    counts: Counter[tuple[bytes, int]] = Counter()
    late = 0
    for words, times in made:
        newest = -1
        for word, time in zip(words, times, strict=True):
            newest = max(newest, time)
            start = time // SIZE * SIZE
            if start + SIZE + GRACE <= newest:
                late += 1
            else:
                counts[word, start] += 1
    return counts, late


async def prepare(address: str, name: str, made: list[tuple[list[bytes], list[int]]]) -> None:
    async with Admin(address) as admin:
        topics = [f"{name}-{end}" for end in ("in", "final", "late")]
        await admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics])
    async with Producer(address) as producer:
        for partition, (words, times) in enumerate(made):
            await producer.send_columns(
                f"{name}-in", Columns(words, words, times), partition=partition
            )
        await producer.flush()


async def read(address: str, topic: str) -> Columns:
    return await read_topic(address, topic, PARTITIONS)


def check_windows(rows: Columns, late: Columns, made: list[tuple[list[bytes], list[int]]]) -> None:
    """Each final window once with its count; those that are not final yet are the newest."""
    counts, late_count = expected(made)
    found = {
        (key[:-8], int.from_bytes(key[-8:], "big")): int.from_bytes(value, "big")
        for key, value in zip(rows.keys, rows.values, strict=True)
    }
    assert len(found) == len(rows), "a window came out twice"
    assert {window: counts[window] for window in found} == found
    newest = max(time for _, times in made for time in times)
    still_open = set(counts) - set(found)
    assert all(start + SIZE + GRACE > newest - SIZE * 3 for _, start in still_open)
    assert len(late) == late_count


class Refused(ExactlyOnce):
    """Its first commits of late records are refused when everything is written, as those of a
    worker are that has lost its session."""

    left = 3
    has_late = False

    async def send(self, output: Output) -> None:
        await super().send(output)
        self.has_late |= output.topic.endswith("-late")

    async def commit(self, changes: Changes, offsets: Offsets, moved: Offsets) -> bool:
        if self.has_late and Refused.left:
            Refused.left -= 1
            self._begun().commit = self.refuse  # type: ignore[method-assign]
        self.has_late = False
        return await super().commit(changes, offsets, moved)

    async def refuse(self) -> None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the test")


def test_what_was_written_and_never_committed_counts_for_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "ExactlyOnce", Refused)

    async def scenario() -> None:
        made, name = inputs(seed=1, count=4_000), "refused"
        await prepare(address, name, made)
        workers = [
            Worker(windows(name).plan(), address, MemoryRegistry(), CONFIG) for _ in range(2)
        ]
        await asyncio.gather(*(each.run(until_caught_up=True) for each in workers))
        assert not Refused.left
        late = await read(address, f"{name}-late")
        check_windows(await read(address, f"{name}-final"), late, made)
        written = await read_topic(address, f"{name}-late", PARTITIONS, "read_uncommitted")
        assert len(written) > len(late), "late records were written more often"

    asyncio.run(asyncio.wait_for(scenario(), 100))


@pytest.mark.parametrize("how", ["one", "together", "late", "leaving"])
def test_windows_are_those_of_one_worker(address: str, how: str) -> None:
    async def scenario() -> None:
        made = inputs(seed=1, count=4_000)
        await prepare(address, how, made)
        count = 1 if how == "one" else 3
        workers = [
            Worker(windows(how).plan(), address, MemoryRegistry(), CONFIG) for _ in range(count)
        ]
        runs = []
        for number, each in enumerate(workers):
            if how == "late" and number:
                await asyncio.sleep(0.5)
            runs.append(asyncio.create_task(each.run(until_caught_up=number != 2)))
        if how == "leaving":
            await asyncio.sleep(1)
            workers[1].stop()
        if count == 3:
            await asyncio.gather(*runs[:2])
            workers[2].stop()
        await asyncio.gather(*runs)
        last = Worker(windows(how).plan(), address, MemoryRegistry(), CONFIG)
        await last.run(until_caught_up=True)
        check_windows(await read(address, f"{how}-final"), await read(address, f"{how}-late"), made)

    asyncio.run(asyncio.wait_for(scenario(), 100))
