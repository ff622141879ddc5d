"""Restoring: a task's state is the fold of its changelog.                                [IO]

A changelog is read up to the end that the log has, open transactions included, and of it what is
committed. The committed offsets must be known before: then the state is as new as they are. The
last stable offset would not do: if a dead worker's transaction is open below it, state is missing
that later commits of others count on.

    look_up ──> step ... step ──> all replays are over
                a budget of milliseconds each

Owns   one consumer without a group, and which replay each changelog partition belongs to.
Never  keeps the loop longer than a batch of records.
Fails  with BrokerUnavailable, naming the topic and both offsets, when a changelog cannot be read
       to its end; with TopologyError for one that is gone, or was deleted and created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, TopologyError
from kafkalite.streams.local.replay import Replay
from kafkalite.streams.local.task import Task

STEP_MS: Final = 1_000
STALLED_SECONDS: Final = 30
CHECK_SECONDS: Final = 1  # without a record, until the topics are looked at again
BATCH_RECORDS: Final = 10_000  # of a poll: some ten milliseconds of work
FETCH_BYTES: Final = 4 << 20  # of a partition: changelogs are read in one go

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """How far a restore has come."""

    records: int
    behind: int  # offsets, of which compaction may have left few records
    is_over: bool


async def restore_tasks(
    client: Client,
    tasks: Iterable[Task],
    stopping: Callable[[], bool],
    clock: Callable[[], float],
    now_ms: Callable[[], int],
) -> int:
    """Reads every changelog of `tasks` to its end; returns how many records.

    Breaks off once `stopping`: then the tasks are of no use.
    """
    replays = await look_up(client, tasks, now_ms())
    if not replays:
        return 0
    restore = Restore(client, replays, clock, now_ms)
    try:
        while not stopping() and not (await restore.step(STEP_MS)).is_over:
            pass
    finally:
        await restore.close()
    return restore.records


async def look_up(client: Client, tasks: Iterable[Task], now_ms: int) -> list[Replay]:
    """The changelogs to read for `tasks`, whose committed offsets must be known already."""
    wanted = {
        TopicPartition(topic, task.partition): (task, store)
        for task in tasks
        for store, topic in task.changelog_topics.items()
    }
    if not wanted:
        return []
    topic_ids = await _topic_ids(client, {tp.topic for tp in wanted})
    async with Consumer(client, isolation_level="read_uncommitted") as consumer:
        beginnings = await consumer.beginning_offsets(wanted)
        ends = await consumer.end_offsets(wanted)
    replays = [
        Replay.begin(task, store, tp, topic_id=topic_ids[tp.topic], beginning=beginnings[tp],
                     end=ends[tp], now_ms=now_ms)
        for tp, (task, store) in wanted.items()
    ]  # fmt: skip
    for replay in replays:
        if replay.thrown_away is not None:
            where = replay.task.kept(replay.store)
            log.warning("%s: deleted and rebuilt: %s", where, replay.thrown_away)
    return replays


async def _topic_ids(client: Client, topics: Collection[str]) -> dict[str, object]:
    """The topic id of each changelog; TopologyError for one that is gone."""
    cluster = await client.refresh(sorted(topics))
    if gone := sorted(topics - cluster.topics.keys()):
        raise TopologyError(f"the changelog {gone[0]!r} is gone, and the state with it")
    return {topic: cluster.topics[topic].topic_id for topic in topics}


async def make_reader(client: Client) -> Consumer:
    """A consumer that reads changelogs, without a group."""
    consumer = Consumer(
        client,
        auto_offset_reset="none",
        isolation_level="read_committed",
        records_max=BATCH_RECORDS,
        max_partition_fetch_bytes=FETCH_BYTES,
        allow_auto_create_topics=False,
        as_forms=True,
    )
    await consumer.start()
    return consumer


async def start_over(consumer: Consumer, replays: Mapping[TopicPartition, Replay]) -> bool:
    """Begins replays anew whose next record was deleted; whether there was any."""
    found = False
    beginnings = await consumer.beginning_offsets(replays)
    for tp, replay in replays.items():
        at = consumer.position(tp)
        if at is None or at < beginnings[tp]:
            log.warning("%s: offset %s was deleted while it was read; once more", tp, at)
            replay.start_over(beginnings[tp])
            consumer.seek(tp, beginnings[tp])
            found = True
    return found


class Restore:
    """Replays on their way, a bit at each step."""

    def __init__(
        self,
        client: Client,
        replays: Iterable[Replay],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self.records = 0
        self._client = client
        self._clock = clock
        self._now_ms = now_ms
        self._replays = {replay.changelog: replay for replay in replays}
        self._topic_ids: dict[str, object] = {}
        self._consumer: Consumer | None = None
        self._progress_at = clock()
        self._checked_after = 0.0  # seconds of silence after which topics were looked at

    async def step(self, budget_ms: float) -> Restored:
        """Reads for about as long as the budget."""
        consumer = self._consumer or await self._start()
        until = self._clock() + budget_ms / 1000
        while self._settle(consumer):
            if any(replay.is_writing for replay in self._replays.values()):
                await asyncio.sleep(0)  # `_settle` writes the rows, some at each call
                self._progress_at = self._clock()
            else:
                await self._read(consumer, until)
            if self._clock() >= until:
                break
        behind = sum(
            max(0, replay.end - (consumer.position(tp) or replay.start))
            for tp, replay in self._replays.items()
        )
        if not self._replays:
            await self._check_topics()
        return Restored(self.records, behind, not self._replays)

    async def _read(self, consumer: Consumer, until: float) -> None:
        left_ms = (until - self._clock()) * 1000
        try:
            polled = await consumer.poll(max(0, left_ms))
        except ApiError as error:
            if error.error_code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            if not await self._start_over(consumer):
                raise
            return
        for tp, columns in polled.items():
            self._replays[tp].take(columns)
            self.records += len(columns)
        if polled:
            self._progress_at, self._checked_after = self._clock(), 0.0
        else:
            await self._look_into_silence(consumer)

    async def close(self) -> None:
        """Disconnects."""
        if self._consumer is not None:
            await self._consumer.close()

    async def _start(self) -> Consumer:
        consumer = self._consumer = await make_reader(self._client)
        self._topic_ids = await _topic_ids(self._client, {tp.topic for tp in self._replays})
        consumer.assign(self._replays)
        for tp, replay in self._replays.items():
            consumer.seek(tp, replay.start)
        return consumer

    def _settle(self, consumer: Consumer) -> bool:
        """Ends the replays that have come to their ends; whether any is left."""
        now_ms = self._now_ms()
        over = [
            tp
            for tp, replay in self._replays.items()
            if replay.reached(consumer.position(tp) or replay.start, now_ms)
        ]
        if over:
            for tp in over:
                del self._replays[tp]
            consumer.assign(self._replays)
        return bool(self._replays)

    async def _look_into_silence(self, consumer: Consumer) -> None:
        silent = self._clock() - self._progress_at
        if silent > STALLED_SECONDS:
            raise BrokerUnavailable(self._say_where(consumer))
        if silent > self._checked_after + CHECK_SECONDS:
            self._checked_after = silent
            await self._check_topics()

    async def _start_over(self, consumer: Consumer) -> bool:
        """Segments were deleted faster than they were read, or the whole changelog was."""
        await self._check_topics()
        return await start_over(consumer, self._replays)

    async def _check_topics(self) -> None:
        """Whether the changelogs are still those that the restore began with."""
        for topic, topic_id in (await _topic_ids(self._client, self._topic_ids.keys())).items():
            if topic_id != self._topic_ids[topic]:
                raise TopologyError(
                    f"the changelog {topic!r} was deleted and created again while it was read: the "
                    "rows that it had are lost"
                )

    def _say_where(self, consumer: Consumer) -> str:
        tp, replay = next(iter(self._replays.items()))
        return (
            f"{tp}: the changelog stays at offset {consumer.position(tp)} of {replay.end}; "
            "a transaction may be open there"
        )


async def log_ends(
    client: Client, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset behind the last record of each partition, committed or not."""
    async with Consumer(client, isolation_level="read_uncommitted") as consumer:
        return await consumer.end_offsets(partitions)
