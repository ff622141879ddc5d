"""Restoring: a task's state is the fold of its changelog.                                [IO]

A changelog is read up to the end that the log has, open transactions included, and of it what is
committed. The committed offsets must be known before: then the state is as new as they are. The
last stable offset would not do: if a dead worker's transaction is open below it, state is missing
that later commits of others count on.

Owns   nothing: one consumer without a group reads the changelog partitions to their ends.
Never  waits for "offset N was seen": compacted logs have gaps, so a store is restored when the
       position has reached the end offset.
Fails  when a changelog cannot be read to its end, with the topic and both offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ProcessingError
from kafkalite.streams.local.task import Task

POLL_MS: Final = 1_000
IDLE_POLLS_MAX: Final = 30


async def restore_tasks(client: Client, tasks: Iterable[Task], stopping: Callable[[], bool]) -> int:
    """Reads every changelog of `tasks` from its start to its end; returns how many records.

    Breaks off once `stopping`: then the tasks are of no use.
    """
    stores = {
        TopicPartition(topic, task.partition): (task, store)
        for task in tasks
        for store, topic in task.changelog_topics.items()
    }
    if not stores:
        return 0
    async with Consumer(client, isolation_level="read_committed") as consumer:
        consumer.assign(list(stores))
        ends = await log_ends(client, stores)
        for partition, offset in (await consumer.beginning_offsets(list(stores))).items():
            consumer.seek(partition, offset)
        return await _read_to(consumer, stores, ends, stopping)


async def log_ends(
    client: Client, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset behind the last record of each partition, committed or not."""
    async with Consumer(client, isolation_level="read_uncommitted") as consumer:
        return await consumer.end_offsets(partitions)


async def _read_to(
    consumer: Consumer,
    stores: dict[TopicPartition, tuple[Task, str]],
    ends: dict[TopicPartition, int],
    stopping: Callable[[], bool],
) -> int:
    records = idle = 0
    behind = list(stores)
    while not stopping():
        behind = [tp for tp in behind if (consumer.position(tp) or 0) < ends[tp]]
        if not behind:
            break
        batches = await consumer.poll(timeout_ms=POLL_MS)
        for partition, columns in batches.items():
            task, store = stores[partition]
            task.restore(store, columns)
            records += len(columns)
        idle = 0 if batches else idle + 1
        if idle >= IDLE_POLLS_MAX:
            tp = behind[0]
            raise ProcessingError(
                f"{tp}: the changelog stays at offset {consumer.position(tp)} of {ends[tp]}; "
                "a transaction may be open there"
            )
    return records
