"""Patterns below a repartition topic that two workers write, one of which ends half way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest
from reference.matching import Row, Step, matches
from test_workers_processors import CONFIG, read

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, json, string
from kafkalite.streams.local.worker import Worker

pytestmark = pytest.mark.slow

PARTITIONS, COUNT, GRACE, WITHIN = 3, 1_500, 40, 60


def built() -> Streams:
    app = Streams("m", key=string(), value=json())
    keyed = app.stream("m-in").select_key(lambda v: f"k{v // 10}")
    found = keyed.match(
        a=lambda v: v % 10 < 3,
        b=lambda v: 3 <= v % 10 < 6,
        not_between=lambda v: v % 10 == 9,
        within=WITHIN,
        grace=GRACE,
        name="ab",
    )
    found.map(lambda v: [v["a"], v["b"]]).to("m-out")
    return app


def expected(made: list[list[Row]]) -> list[str]:
    """Every match; times differ, so that their order is one."""
    rows = sorted((row for part in made for row in part), key=lambda row: row[2])
    found = []
    for key in range(4):
        own = [(f"k{key}", value, time) for _, value, time in rows if value // 10 == key]
        steps = [Step(lambda v, _: v % 10 < 3), Step(lambda v, _: 3 <= v % 10 < 6)]
        found += matches(own, steps, lambda v, _: v % 10 == 9, WITHIN)[0]
    return [str(row) for row in found]


def inputs() -> list[list[Row]]:
    """All times differ, and those of a partition go back by less than the grace."""
    random = Random(3)
    made: list[list[Row]] = []
    for number in range(PARTITIONS):
        places = [start + i for start in range(0, COUNT, 3) for i in random.sample(range(3), 3)]
        times = [place * 4 * PARTITIONS + number for place in places]
        made.append([(None, random.randrange(40), time) for time in times])
    return made


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def test_matches_are_those_of_all_records_in_the_order_of_time(address: str) -> None:
    made = inputs()

    async def scenario() -> None:
        async with Admin(address) as admin:
            await admin.create_topics([NewTopic(t, PARTITIONS) for t in ("m-in", "m-out")])
        async with Producer(address) as producer:
            for partition, rows in enumerate(made):
                columns = Columns(
                    [None] * len(rows), [b"%d" % v for _, v, _ in rows], [t for _, _, t in rows]
                )
                await producer.send_columns("m-in", columns, partition=partition)
            await producer.flush()
        first, second = (Worker(built().plan(), address, MemoryRegistry(), CONFIG) for _ in "ab")
        runs = [asyncio.create_task(each.run()) for each in (first, second)]
        while first.progress.records + second.progress.records < COUNT:
            await asyncio.sleep(0.01)
        second.stop()
        await runs[1]
        first.stop()
        await runs[0]
        last = Worker(built().plan(), address, MemoryRegistry(), CONFIG)
        await last.run(until_caught_up=True)
        found, every = await read(address, "m-out"), expected(made)
        assert set(found.values()) == {1}
        assert found.keys() <= set(every)
        missing = [int(row.rsplit(", ", 1)[1].rstrip(")")) for row in every if row not in found]
        newest = max(time for part in made for _, _, time in part)
        assert all(time > newest - 2 * GRACE - WITHIN for time in missing), "only the last wait"
        assert len(found) > 100

    asyncio.run(asyncio.wait_for(scenario(), 100))
