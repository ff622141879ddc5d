"""Processors on a broker: two workers, one of which ends half way, do what the reference does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from reference.processors import PlainTask
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry, SerdeContext
from kafkalite.streams import Record, Streams, json, store, string
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

CONFIG = WorkerConfig(commit_interval_ms=50)
PARTITIONS, COUNT = 3, 3_000
COUNTS = store("counts", key=string(), value=json())
RECENT = store("recent", key=string(), value=json(), retention=500)
KEYS = [chr(97 + i) for i in range(8)]
Row = tuple[Any, Any, int]


class Counts:
    """Counts keys, and tells the counts at the multiples of 1,000 ms; one timer is set later."""

    def init(self, context: Any) -> None:
        self.context = context
        self.counts = context.store("counts")
        self.recent = context.store("recent")
        context.schedule(1_000, "stream_time", self.report)

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        if count == 50 and record.key == "a":
            self.context.schedule(700, "stream_time", self.ring)
        self.counts.put(record.key, count)
        self.recent.put(record.key, count, record.timestamp)
        near = self.recent.fetch(record.key, record.timestamp - 300, record.timestamp)
        value = [count, len(list(near)), self.context.stream_time]
        self.context.forward(record.replace(value=value))

    def report(self, time: int) -> None:
        for key, count in self.counts.all():
            self.context.forward(Record(key, ["report", count], time))

    def ring(self, time: int) -> None:
        self.context.forward(Record("ring", ["ring", self.counts.get("a")], time))


class Reader:
    """Looks into the counts that the other writes."""

    def init(self, context: Any) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        self.context.forward(record.replace(value=["read", self.counts.get(record.key)]))


def large(record: Record) -> bool:
    return int(record.value) > 7


def built(name: str, *, shared: bool) -> Streams:
    app = Streams(name, key=string(), value=json())
    source = app.stream(f"{name}-in")
    source.process(Counts, [COUNTS, RECENT]).to(f"{name}-out")
    if shared:
        source.filter(large, with_record=True).process(Reader, ["counts"]).to(f"{name}-out")
    return app


def inputs() -> list[list[Row]]:
    random = Random(5)
    return [
        [(random.choice(KEYS), random.randrange(10), i * 4 + random.randrange(900))
         for i in range(COUNT)]
        for _ in range(PARTITIONS)
    ]  # fmt: skip


def expected(made: list[list[Row]], *, shared: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for rows in made:
        arms: list[Any] = [(lambda record: True, [Counts])]
        if shared:
            arms.append((large, [Reader]))
        task = PlainTask(arms, [COUNTS, RECENT])
        for row in rows:
            task.process(Record(*row))
        found.update(str((r.key, r.value, r.timestamp)) for r in task.out)
    return found


async def prepare(address: str, name: str, made: list[list[Row]]) -> None:
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(f"{name}-{e}", PARTITIONS) for e in ("in", "out")])
    async with Producer(address) as producer:
        for partition, rows in enumerate(made):
            keys = [key.encode() for key, _, _ in rows]
            values = [str(value).encode() for _, value, _ in rows]
            columns = Columns(keys, values, [time for _, _, time in rows])
            await producer.send_columns(f"{name}-in", columns, partition=partition)
        await producer.flush()


async def read(address: str, topic: str) -> Counter[str]:
    found = await read_topic(address, topic, PARTITIONS)
    values = json().open(SerdeContext()).deserialize(topic, found.values)
    return Counter(
        str((key.decode(), value, time))
        for key, value, time in zip(found.keys, values, found.timestamps, strict=True)
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("shared", [False, True])
def test_two_workers_one_of_which_ends_half_way(address: str, shared: bool) -> None:
    async def scenario() -> None:
        name, made = f"p{shared:d}", inputs()
        await prepare(address, name, made)

        def worker() -> Worker:
            return Worker(built(name, shared=shared).plan(), address, MemoryRegistry(), CONFIG)

        first, second = worker(), worker()
        runs = [asyncio.create_task(each.run()) for each in (first, second)]
        while first.progress.records + second.progress.records < COUNT:
            await asyncio.sleep(0.01)
        second.stop()
        await runs[1]
        first.stop()
        await runs[0]
        await worker().run(until_caught_up=True)
        assert await read(address, f"{name}-out") == expected(made, shared=shared)

    asyncio.run(asyncio.wait_for(scenario(), 100))
