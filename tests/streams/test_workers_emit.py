"""Cogroups, suppress and final rows below filters with several workers: none twice, none lost."""

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
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, int64, string, tumbling
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

CONFIG = WorkerConfig(commit_interval_ms=100)
PARTITIONS, SIZE, GRACE, COUNT = 3, 100, 30, 1_500
KEYS = [chr(97 + i).encode() for i in range(9)]
INPUTS, OUTPUTS = ("one", "two"), ("final", "odd", "calm", "seen")

Made = dict[str, list[tuple[list[bytes], list[int]]]]  # of each input's partitions, words and times
Place = tuple[bytes, int]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def topology(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    one, two = (app.stream(f"{name}-{topic}").group_by(lambda v: v) for topic in INPUTS)
    counts = (
        one.cogroup(lambda n, v: n + 1)
        .cogroup(two, lambda n, v: n + 1_000)
        .window(tumbling(SIZE, grace=GRACE))
        .aggregate(0, value=int64(), name="counts")
    )
    counts.final().to(f"{name}-final", value=int64())
    counts.filter(lambda n: n % 2 == 1).final().to(f"{name}-odd", value=int64())
    counts.suppress(SIZE * 5, max_records=500).to_stream().to(f"{name}-calm", value=int64())
    counts.to_stream().to(f"{name}-seen", value=int64())
    return app


def made_of(seed: int) -> Made:
    """Records whose partitions are far apart in time; a few within one come too late."""
    random = Random(seed)
    return {
        topic: [
            (
                [random.choice(KEYS) for _ in range(COUNT)],
                [3_000 * partition + i * 3 + random.randrange(150) for i in range(COUNT)],
            )
            for partition in range(PARTITIONS)
        ]
        for topic in INPUTS
    }


def expected(made: Made) -> Counter[Place]:
    counts: Counter[Place] = Counter()
    for topic, worth in zip(INPUTS, (1, 1_000), strict=True):
        for words, times in made[topic]:
            newest = -1
            for word, time in zip(words, times, strict=True):
                newest = max(newest, time)
                start = time // SIZE * SIZE
                if start + SIZE + GRACE > newest:
                    counts[word, start] += worth
    return counts


async def prepare(address: str, name: str, made: Made) -> None:
    async with Admin(address) as admin:
        topics = [NewTopic(f"{name}-{end}", PARTITIONS) for end in (*INPUTS, *OUTPUTS)]
        await admin.create_topics(topics)
    async with Producer(address) as producer:
        for topic, partitions in made.items():
            for partition, (words, times) in enumerate(partitions):
                columns = Columns(words, words, times)
                await producer.send_columns(f"{name}-{topic}", columns, partition=partition)
        await producer.flush()


async def read(address: str, topic: str) -> list[tuple[Place, int]]:
    found = await read_topic(address, topic, PARTITIONS)
    return [
        ((key[:-8], int.from_bytes(key[-8:], "big")), int.from_bytes(value or b"", "big"))
        for key, value in zip(found.keys, found.values, strict=True)
    ]


def check(found: dict[str, list[tuple[Place, int]]], counts: Counter[Place], newest: int) -> None:
    """What is final is right and comes once; what is calm ends as the table does."""
    closed = {place for place in counts if place[1] < newest - SIZE * 3}
    for topic, wanted in (
        ("final", dict(counts)),
        ("odd", {place: n for place, n in counts.items() if n % 2 == 1}),
    ):
        rows = dict(found[topic])
        assert len(rows) == len(found[topic]), f"{topic}: a window came out twice"
        assert {place: wanted.get(place) for place in rows} == rows
        assert closed & wanted.keys() <= rows.keys()
    assert dict(found["seen"]) == dict(counts)
    calm = dict(found["calm"])
    settled = {place for place in counts if place[1] < newest - SIZE * 10}
    assert {place: calm.get(place) for place in settled} == {p: counts[p] for p in settled}
    assert len(found["calm"]) <= len(found["seen"])


def test_results_are_those_of_one_worker(address: str) -> None:
    async def scenario() -> None:
        name, made = "emit", made_of(seed=3)
        await prepare(address, name, made)

        def worker() -> Worker:
            return Worker(topology(name).plan(), address, MemoryRegistry(), CONFIG)

        first, second = worker(), worker()
        runs = [asyncio.create_task(each.run()) for each in (first, second)]
        await asyncio.sleep(1.5)
        first.stop()
        await runs[0]
        await worker().run(until_caught_up=True)
        second.stop()
        await runs[1]
        await worker().run(until_caught_up=True)
        found = {topic: await read(address, f"{name}-{topic}") for topic in OUTPUTS}
        newest = max(time for parts in made.values() for _, times in parts for time in times)
        check(found, expected(made), newest)

    asyncio.run(asyncio.wait_for(scenario(), 100))
