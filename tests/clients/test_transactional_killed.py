"""Consume, transform, produce with our own clients, while the broker is killed again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import KafkaliteError

PARTITIONS, MANY = 3, 9_000
SOURCE = [TopicPartition("source", n) for n in range(PARTITIONS)]
TARGET = [TopicPartition("target", n) for n in range(PARTITIONS)]


class Copier:
    """Copies a topic, offsets and output in one transaction. What is aborted is read again."""

    def __init__(self, client: Client, transactional_id: str = "copier") -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.copied = 0

    async def run(self) -> None:
        settings: dict[str, Any] = {
            "group_id": "copier",
            "enable_auto_commit": False,
            "isolation_level": "read_committed",
            "records_max": 100,
        }
        async with (
            Consumer(self.client, **settings) as consumer,
            TransactionalProducer(self.client, self.transactional_id) as producer,
        ):
            consumer.assign(SOURCE)
            await rewind(consumer)
            while self.copied < MANY:
                taken = await consumer.poll(100)
                try:
                    async with producer.transaction():
                        await self.copy(taken, producer, consumer)
                except KafkaliteError:
                    await rewind(consumer)
                else:
                    self.copied += sum(map(len, taken.values()))

    async def copy(
        self,
        taken: dict[TopicPartition, Columns],
        producer: TransactionalProducer,
        consumer: Consumer,
    ) -> None:
        ends = {}
        for tp, batch in taken.items():
            values = Columns(batch.keys, batch.values, batch.timestamps)
            await producer.send_columns("target", values, partition=tp.partition)
            assert batch.offsets is not None
            ends[tp] = batch.offsets[-1] + 1
        if ends:
            await producer.send_offsets(ends, consumer.group_metadata())


async def rewind(consumer: Consumer) -> None:
    """Goes on from what is committed."""
    while True:
        try:
            committed = await consumer.committed(SOURCE)
        except KafkaliteError:
            continue  # the broker is on its way back
        for tp, at in committed.items():
            consumer.seek(tp, 0 if at is None else at.offset)
        return


async def values(client: Client, partition: TopicPartition) -> list[int]:
    """What committed readers find in a partition."""
    found: list[int] = []
    async with Consumer(client, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning([partition])
        (end,) = (await consumer.end_offsets([partition])).values()
        while (consumer.position(partition) or 0) < end:
            for batch in (await consumer.poll(1_000)).values():
                found += map(int, batch.values)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("heirs", [False, True])
def test_every_record_is_copied_once_through_kill_9(
    serve: Callable[..., Any], tmp_path: Path, *, heirs: bool
) -> None:
    """With `heirs` another copier takes over at each kill, and fences the one before."""
    random = Random(11)
    servers = [serve(tmp_path)]
    address = servers[0].address

    async def story() -> None:
        async with Client(address, unavailable_after_ms=30_000) as client:
            async with Admin(client) as admin, Producer(client) as producer:
                await admin.create_topics([NewTopic(n, PARTITIONS) for n in ("source", "target")])
                numbers = [b"%d" % n for n in range(MANY)]
                column = Columns([None] * MANY, numbers, [1_700_000_000_000] * MANY)
                places = [n % PARTITIONS for n in range(MANY)]
                await producer.send_columns("source", column, partitions=places)
            copier = Copier(client)
            copying = asyncio.create_task(copier.run())
            for _ in range(4):
                enough = copier.copied + random.randrange(100, 1_500)
                while copier.copied < enough and not copying.done():
                    await asyncio.sleep(0)
                servers[-1].kill()  # in the midst of one
                servers.append(await asyncio.to_thread(serve, tmp_path, address))
                if heirs and not copying.done():
                    heir = Copier(client)
                    copying.cancel()
                    await asyncio.gather(copying, return_exceptions=True)
                    heir.copied = await committed_so_far(client)
                    copier, copying = heir, asyncio.create_task(heir.run())
            await asyncio.wait_for(copying, 60)
            for n, partition in enumerate(TARGET):
                assert await values(client, partition) == list(range(n, MANY, PARTITIONS))

    asyncio.run(story())
    assert servers[-1].stop() == 0
    assert all("Traceback" not in server.stderr for server in servers)


async def committed_so_far(client: Client) -> int:
    async with Consumer(client, group_id="copier", isolation_level="read_committed") as consumer:
        while True:
            try:
                committed = await consumer.committed(SOURCE)
            except KafkaliteError:
                continue
            return sum(0 if at is None else at.offset for at in committed.values())
