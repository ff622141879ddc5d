"""The global tables of one worker: read to their ends, then followed beside the tasks.     [IO]

    read       once, before the worker joins its group: no task runs before every table is whole
    check      in each turn of the worker's loop: raises what ended the following
    close      at the end of the run

Records are taken over in the task thread, a bounded batch at a time, so a task sees a table change
between two of its own calls only. The tasks do not wait for tables: what a table gets later is
there a moment later, as in Kafka Streams.

    disk       <state_dir>/<application.id>/global/<table>/, with the offsets of its rows

Owns   one consumer without a group, and the stores.
Never  reads what is not committed.
Fails  with TopologyError for a topic that is gone, or was deleted and created again; with
       ProcessingError for a record that cannot be read. While no broker answers it tries again.
Source Kafka Streams' GlobalStreamThread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, TopologyError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.streams.local.committer import TOPIC_GONE, is_passing
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.global_store import Extent, GlobalStore
from kafkalite.streams.local.restore import make_reader
from kafkalite.streams.local.rounds import Clocks
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.state.directory import Places
from kafkalite.streams.local.task_thread import TaskThread
from kafkalite.streams.plan import GlobalSource, Plan

DIRECTORY: Final = "global"
POLL_MS: Final = 500
LOOK_AGAIN: Final = TOPIC_GONE | {ErrorCode.OFFSET_OUT_OF_RANGE}  # at the topics, which may differ
CHECK_SECONDS: Final = 5.0  # how often it looks whether the topics are still the same
RETRY_SECONDS: Final = 1.0
REPORT_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class GlobalTables:
    """The global tables of `plan` in this worker; perhaps there are none."""

    def __init__(
        self,
        plan: Plan,
        client: Client,
        places: Places,
        registry: SchemaRegistry,
        thread: TaskThread,
        drops: Drops,
        clocks: Clocks,
    ) -> None:
        self.stores: dict[str, GlobalStore] = {}  # by the name of the table
        self.records = 0
        self._plan = plan
        self._client = client
        self._places = places
        self._registry = registry
        self._thread = thread
        self._drops = drops
        self._clock = clocks.monotonic
        self._now_ms = clocks.wall_ms
        self._place: Place | None = None
        self._by_topic: dict[str, GlobalStore] = {}
        self._topic_ids: dict[str, object] = {}
        self._consumer: Consumer | None = None
        self._checked_at = self._reported_at = clocks.monotonic()
        self._following: asyncio.Task[None] | None = None

    @property
    def tables(self) -> tuple[GlobalSource, ...]:
        """The tables of the plan."""
        return self._plan.global_tables

    @property
    def are_read(self) -> bool:
        """Whether every table has been read to its end once."""
        return self._following is not None

    async def read(self, is_stopping: Callable[[], bool]) -> None:
        """Reads every table to its end, then goes on in the background. Breaks off once stopping:
        then the tables are of no use."""
        if not self._plan.global_tables:
            return
        await self._thread.submit(self._open)
        ends: dict[TopicPartition, int] | None = None
        while not is_stopping():
            try:
                consumer = await self._started()
                if ends is None:
                    ends = await consumer.end_offsets(consumer.assignment)
                if not (behind := self._behind(consumer, ends)):
                    self._following = asyncio.create_task(self._follow())
                    return
                self._report(behind)
                await self._step(consumer)
            except (ApiError, BrokerUnavailable) as error:
                await self._recover(error)

    def check(self) -> None:
        """Raises what ended the following."""
        if self._following is not None and self._following.done():
            self._following.result()

    async def close(self) -> None:
        """Follows no more, and lets the rows go."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._disconnect()
        if self._place is not None:
            await self._thread.submit(self._place.close)

    def _open(self) -> None:
        place = self._place = self._places.of_worker(DIRECTORY)
        for node in self._plan.global_tables:
            backend = place.backend(node.name)
            store = GlobalStore(node, self._plan, self._registry, backend, self._drops)
            self.stores[node.name] = self._by_topic[store.topic] = store

    # Reading

    async def _follow(self) -> None:
        while True:
            try:
                await self._step(await self._started())
            except (ApiError, BrokerUnavailable) as error:
                await self._recover(error)

    async def _step(self, consumer: Consumer) -> None:
        """One poll, whose records are taken over; and now and then a look at the topics."""
        for tp, columns in (await consumer.poll(POLL_MS)).items():
            position = consumer.position(tp)
            assert position is not None, f"{tp}: a poll without a position"
            take = self._by_topic[tp.topic].take
            await self._thread.submit(
                partial(take, tp.partition, columns, position, self._now_ms())
            )
            self.records += len(columns)
        if self._clock() - self._checked_at >= CHECK_SECONDS:
            found = await self._look_at_topics()
            if found.keys() != set(consumer.assignment):
                await self._disconnect()  # partitions were added

    def _behind(self, consumer: Consumer, ends: Mapping[TopicPartition, int]) -> int:
        """How many offsets are to be read up to `ends`; markers of transactions are read, too."""
        offsets = {tp: self._by_topic[tp.topic].offsets[tp.partition] for tp in ends}
        return sum(
            max(0, end - max(offsets[tp], consumer.position(tp) or 0)) for tp, end in ends.items()
        )

    def _report(self, behind: int) -> None:
        now = self._clock()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            name = self._plan.application_id
            log.warning("%s: reading global tables: %d offsets to go", name, behind)

    async def _recover(self, error: ApiError | BrokerUnavailable) -> None:
        """Begins anew from what the stores have, if that can help."""
        code = error.error_code if isinstance(error, ApiError) else None
        if code not in LOOK_AGAIN and not is_passing(error):
            raise error
        log.warning("%s: global tables: %s; once more", self._plan.application_id, error)
        await self._disconnect()
        await asyncio.sleep(RETRY_SECONDS)

    async def _disconnect(self) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.close()

    # Where to read

    async def _started(self) -> Consumer:
        """The consumer, at the places up to where the stores have read."""
        if self._consumer is not None:
            return self._consumer
        consumer = await make_reader(self._client)
        try:
            topic_ids = await self._look_at_topics()
            beginnings = await consumer.beginning_offsets(topic_ids)
            ends = await consumer.end_offsets(topic_ids)
            for store in self.stores.values():
                extents = {
                    tp.partition: Extent(beginnings[tp], ends[tp])
                    for tp in topic_ids
                    if tp.topic == store.topic
                }
                await self._thread.submit(
                    partial(self._begin, store, self._topic_ids[store.topic], extents)
                )
        except BaseException:
            await consumer.close()
            raise
        consumer.assign(topic_ids)
        for tp in topic_ids:
            consumer.seek(tp, self._by_topic[tp.topic].offsets[tp.partition])
        self._consumer = consumer
        return consumer

    def _begin(self, store: GlobalStore, topic_id: object, extents: Mapping[int, Extent]) -> None:
        if self._following is not None:  # tasks look into it: rows stay
            if words := store.go_on(extents):
                log.warning("%s: %s", store, words)
        elif reason := store.begin(topic_id, extents, self._now_ms()):
            log.warning("%s: deleted and read again: %s", store, reason)

    async def _look_at_topics(self) -> dict[TopicPartition, object]:
        """The partitions of all topics. TopologyError for a topic that is not what it was."""
        self._checked_at = self._clock()
        cluster = await self._client.refresh(sorted(self._by_topic))
        found: dict[TopicPartition, object] = {}
        for topic, store in self._by_topic.items():
            if topic not in cluster.topics:
                raise TopologyError(f"{store}: the topic is gone")
            info = cluster.topics[topic]
            if self._topic_ids.setdefault(topic, info.topic_id) != info.topic_id:
                raise TopologyError(
                    f"{store}: the topic was deleted and created again while it was read: the rows "
                    "that it had are lost; start again to go on with what the new topic has"
                )
            found |= {TopicPartition(topic, n): info.topic_id for n in range(info.partition_count)}
        return found
