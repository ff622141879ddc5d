"""The broker: what handlers act on. It owns partitions, coordinators and one timer.        [IO]

    handler ──> partitions, coordinators, purgatory        at once, or Pending
       └──────> control: the controller's queue            one step at a time
    timer ────> purgatory.expire, coordinators' tick, duties

All runs on one event loop. A handler runs to its end, so that partitions, coordinators and the
image never change under it. What takes long (retention, loading, checkpoints) goes on in slices.

Owns   the image in force, who waits for what, and when it wakes.
Never  writes a file or a socket itself; knows no handler, which `handlers.service` finds.
Fails  with ApiError where a client is to be told; a failing disk takes single partitions offline.
Source apache/kafka `ReplicaManager`, `BrokerMetadataPublisher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any, Final

from kafkalite.core.cluster_store import ClusterStore
from kafkalite.core.config import BrokerConfig, TopicConfig
from kafkalite.core.config_changes import in_force
from kafkalite.core.controller import (
    AllocateProducerIds,
    Controller,
    ControllerRequest,
    ProducerIdBlock,
)
from kafkalite.core.controller_queue import ControllerQueue
from kafkalite.core.duties import Duties, Duty, Slices
from kafkalite.core.fetch_sessions import FetchSessions
from kafkalite.core.group_coordinators import group_coordinators
from kafkalite.core.image import (
    ClusterImage,
    ClusterRecord,
    PartitionImage,
    TopicImage,
    is_broker_configs,
    topic_of,
)
from kafkalite.core.internal_topics import creatable
from kafkalite.core.log.storage import WAITING_THREADS_MAX
from kafkalite.core.log.store import LogStore
from kafkalite.core.loggers import Loggers
from kafkalite.core.metrics import BrokerMetrics
from kafkalite.core.partition import Partition
from kafkalite.core.pending import Pending
from kafkalite.core.producer_ids import ProducerIds
from kafkalite.core.protocol.topics import (
    CreatableTopicConfigs,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kafkalite.core.purgatory import DelayedProduce, Operation, Purgatory
from kafkalite.core.replication import PartitionReplication
from kafkalite.core.shared_write import SharedWrite
from kafkalite.core.transaction_coordinators import TransactionCoordinators
from kafkalite.core.transaction_markers import LocalMarkers
from kafkalite.core.types import TopicPartition
from kafkalite.core.upkeep import Upkeep
from kafkalite.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    StorageError,
)

log: Final = logging.getLogger(__name__)

FETCH_SESSION_SLOTS: Final = "max.incremental.fetch.session.cache.slots"
NEVER_MS: Final = 1 << 62
UNREACHABLE: Final = 1 << 62  # beyond what anybody waits for
RETRY_MS: Final = 1_000
PARTITIONS_PER_SLICE: Final = 16
NOTE_AGAIN_MS: Final = 10_000  # the same message is told once in this time
NOTES_MAX: Final = 1_000


class Broker:
    """One broker. `start` before the first request, `close` after the last."""

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        image: ClusterImage,
        cluster_store: ClusterStore,
        logs: LogStore,
        random: Random,
        now_ms: Callable[[], int],
    ) -> None:
        self.node_id = node_id
        self._static_config = config
        self.config = config = self._in_force(image)
        self._config_watchers: list[Callable[[BrokerConfig], None]] = []
        self.now_ms = now_ms
        self.logs = logs
        self.metrics = BrokerMetrics()
        self.loggers = Loggers()
        self.log_starts = SharedWrite(logs.log_start_offsets_writer, self.in_thread)
        self.fetch_bytes_max: int = config["fetch.max.bytes"]
        self.fetch_sessions = FetchSessions(config[FETCH_SESSION_SLOTS], random)
        self.producer_ids = ProducerIds(self._request_producer_ids)
        self.groups = group_coordinators(self, config, random)
        self.markers = LocalMarkers(self, self.groups)
        self.transactions = TransactionCoordinators(self, config, self.producer_ids, self.markers)
        self._controller = Controller(config, random, self._describe_topic, image)
        self._control_queue = ControllerQueue(self._controller, cluster_store, self.replay)
        self._partitions: dict[str, dict[int, Partition]] = {}
        self.offline: dict[TopicPartition, str] = {}  # whose log could not be opened, and why
        self._purgatory: Purgatory[TopicPartition] = Purgatory()
        self._noted_ms: dict[str, int] = {}
        self._is_answering = False  # `settle` will follow
        self._is_finishing = False
        self._is_closing = False  # what goes on in slices ends with the one under way
        self._finished: deque[Operation[TopicPartition]] = deque()
        self._upkeep = Upkeep(self, config)
        self._duties = Duties(self._upkeep.duties(), now_ms())
        self._threads = ThreadPoolExecutor(WAITING_THREADS_MAX, "flush")
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = NEVER_MS
        self._loop = asyncio.get_running_loop()

    # -- life

    async def start(self) -> None:
        """Opens the logs of all partitions that the image places here, and begins to work."""
        for topic in self.image.topics.values():
            self._hold(topic, self.topic_config(topic))
        self._remove_strays()
        self._control_queue.start()
        self._load_coordinators()
        self.wake_at(self._duties.next_ms())

    def _load_coordinators(self) -> None:
        self.run_slices(self.groups.load_all(), "loading groups")
        self.run_slices(self.transactions.load_all(), "loading transactions")

    async def close(self) -> None:
        """Stops working. The logs stay open: they are the composition root's to close."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        await self._control_queue.close()
        while flushes := self._upkeep.in_flight():
            await asyncio.wait(flushes)
        self._threads.shutdown()

    def add_duty(self, duty: Duty) -> None:
        """Takes on work that another room brings, as compaction does."""
        self._duties.add(duty, self.now_ms())
        self.wake_at(self._duties.next_ms())

    # -- settings

    def watch_config(self, watcher: Callable[[BrokerConfig], None]) -> None:
        """Calls `watcher` with the settings in force: now, and whenever they change."""
        self._config_watchers.append(watcher)
        watcher(self.config)

    async def _configure(self) -> None:
        """Puts what was set for brokers in force, in all topics that fall back to it."""
        self.config = self._controller.config = self._in_force(self.image)
        for watcher in self._config_watchers:
            watcher(self.config)
        for name in tuple(self.image.topics):
            if (topic := self.image.topics.get(name)) is not None:
                await self._hold_in_slices(topic)

    def _in_force(self, image: ClusterImage) -> BrokerConfig:
        config, complaint = in_force(self._static_config, image, self.node_id)
        if complaint is not None:
            log.error("settings changed while a broker ran are left out: %s", complaint)
        return config

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """The topic's settings; the broker's alone where both do not go together any more."""
        try:
            return self.config.topic(topic.configs)
        except ConfigError as error:
            log.error("%s: its settings are left out: %s", topic.name, error)
            return self.config.topic()

    # -- requests

    def gauges(self) -> dict[str, int]:
        """What goes up and down, as it is now: beside `metrics`, for whoever shows it."""
        return {
            "partitions": sum(map(len, self._partitions.values())),
            "offline_partitions": len(self.offline),
            "waiting_requests": len(self._purgatory),
            "fetch_sessions": len(self.fetch_sessions),
            "fetch_session_partitions": self.fetch_sessions.partition_count,
        }

    def hold(self) -> None:
        """A request is about to be answered: tokens of what it completes wait for `settle`."""
        self._is_answering = True

    def settle(self) -> None:
        """Calls the tokens of what the requests answered since have completed."""
        self._is_answering = False
        if self._finished:
            self._finish_now()

    # -- what handlers ask for

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""
        return self._controller.image

    @property
    def controller_id(self) -> int:
        """The broker that makes and unmakes topics."""
        return self.node_id

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker holds. ApiError says what is wrong with the request."""
        try:
            return self._partitions[topic][index]
        except KeyError:
            pass
        if (why := self.offline.get(TopicPartition(topic, index))) is not None:
            code, words = ErrorCode.KAFKA_STORAGE_ERROR, why
        elif self.image.partition(topic, index) is None:
            code, words = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
        else:
            code, words = ErrorCode.NOT_LEADER_OR_FOLLOWER, f"not held by broker {self.node_id}"
        raise ApiError(code, f"{topic}-{index}: {words}")

    def appended(self, partition: Partition, byte_count: int) -> None:
        """Tells whoever waits for records of `partition`, once they count."""
        if partition.log.flush_is_due:
            self._upkeep.await_flush(partition, byte_count)
        else:
            self._tell(partition, byte_count)

    def flushed(self, partition: Partition, byte_count: int) -> None:
        """What waited for a flush is acknowledged, and readers are told of `byte_count` bytes."""
        partition.advance()
        self._tell(partition, byte_count)

    def failed(self, partition: Partition) -> None:
        """Nothing that waits for records of `partition` will come: its log has failed."""
        self._finish(self._purgatory.advance(partition.topic_partition, UNREACHABLE, UNREACHABLE))

    def in_thread(self, act: Callable[[], Any]) -> asyncio.Future[Any]:
        """Runs `act`, which waits for a disk, in another thread."""
        return self._loop.run_in_executor(self._threads, act)

    def topics_held(self) -> Sequence[Sequence[Partition]]:
        """The partitions held here, by topic."""
        return [tuple(held.values()) for held in self._partitions.values()]

    def _tell(self, partition: Partition, byte_count: int) -> None:
        if self._purgatory.waits_on(partition.topic_partition):
            high_watermark = partition.log.high_watermark
            done = self._purgatory.advance(partition.topic_partition, high_watermark, byte_count)
            self._finish(done)

    def park(
        self,
        operation: Operation[TopicPartition],
        keys: Sequence[TopicPartition],
        deadline_ms: int,
    ) -> bool:
        """Lets `operation` wait; its token is called once it is complete or its time is up."""
        parked = self._purgatory.park(operation, keys, deadline_ms)
        if deadline_ms < self._timer_at_ms:
            self.wake_at(deadline_ms)
        return parked

    def forget(self, operation: Operation[TopicPartition]) -> None:
        """Nobody waits for `operation` any more."""
        self._purgatory.cancel(operation)

    def when_committed(
        self,
        partition: Partition,
        offset: int,
        then: Callable[[], None],
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        """Calls `then` once the high watermark has reached `offset`: at once if it has, but after
        those whose time came before it and who have not been called yet.

        `otherwise` where it never will: the log has failed, or the topic is gone.
        """
        is_committed = partition.log.high_watermark >= offset
        if is_committed and not self._finished:
            then()
            return
        key = partition.topic_partition

        def left() -> None:
            (then if partition.log.high_watermark >= offset else otherwise)()

        operation: DelayedProduce[TopicPartition] = DelayedProduce(left, {key: offset})
        if is_committed:
            self._finish((operation,))
            return
        parked = self._purgatory.park(operation, (key,), NEVER_MS)
        assert parked, f"{len(self._purgatory)} wait: one for each connection at most"

    def note(self, message: str) -> None:
        """Tells the operator, in one line; not again and again what clients try again and again."""
        now_ms = self.now_ms()
        if self._noted_ms.get(message, -NOTE_AGAIN_MS) + NOTE_AGAIN_MS <= now_ms:
            if len(self._noted_ms) >= NOTES_MAX:
                self._noted_ms.clear()
            self._noted_ms[message] = now_ms
            log.warning("%s", message)

    def note_storage_error(self, error: ApiError) -> None:
        """Tells the operator what a client was told, if it is about our disk."""
        if error.error_code is ErrorCode.KAFKA_STORAGE_ERROR:
            self.note(str(error))

    # -- the controller

    def control(self, request: ControllerRequest) -> Pending[Any]:
        """Hands a request to the controller; answered once its records are in force."""
        return self._control_queue.submit(request)

    def create_topics(self, names: Iterable[str]) -> Pending[CreateTopicsResponse]:
        """Makes topics as the broker's defaults say; internal ones as Kafka does."""
        count = len(self.image.brokers)
        topics = tuple(creatable(name, self.config, count) for name in names)
        return self.control(CreateTopicsRequest(topics))

    async def replay(self, records: Sequence[ClusterRecord]) -> None:
        """Puts durable records of the cluster in force."""
        before = self.image.topics
        self._controller.replay(records)
        names = dict.fromkeys(topic_of(record.path) for record in records)
        gone: list[str] = []
        for name in names:
            if name is None:
                continue
            old, new = before.get(name), self.image.topics.get(name)
            if old is not None and (new is None or new.topic_id != old.topic_id):
                gone.append(name)
                self._drop(old)
            if new is not None:
                await self._hold_in_slices(new)
        if gone:
            self.groups.topics_deleted(gone)
            self.transactions.topics_deleted(gone)
        if any(is_broker_configs(record.path) for record in records):
            await self._configure()

    def _request_producer_ids(self) -> None:
        def allocated(answer: ProducerIdBlock | ApiError) -> None:
            if isinstance(answer, ApiError):
                self.producer_ids.refuse(answer)
            else:
                self.producer_ids.add_block(answer.first, answer.size)

        self.control(AllocateProducerIds()).when_done(allocated)

    def _describe_topic(self, topic: TopicImage) -> Iterator[CreatableTopicConfigs]:
        for entry in self.topic_config(topic).describe():
            value = None if entry.is_sensitive else entry.value
            yield CreatableTopicConfigs(
                entry.key.name, value, entry.is_read_only, int(entry.source), entry.is_sensitive
            )

    # -- partitions

    async def _hold_in_slices(self, topic: TopicImage) -> None:
        """The same as `_hold`. Making a log takes a while; others get their turn."""
        config = self.topic_config(topic)
        for first in range(0, len(topic.partitions), PARTITIONS_PER_SLICE):
            self._hold(topic, config, first, PARTITIONS_PER_SLICE)
            await asyncio.sleep(0)

    def _hold(
        self, topic: TopicImage, config: TopicConfig, first: int = 0, count: int | None = None
    ) -> None:
        """Opens or makes the logs of the topic's partitions that are placed here: `count` of them
        from `first` on, or all."""
        log_config = config.log
        held = self._partitions.setdefault(topic.name, {})
        last = None if count is None else first + count
        for index, image in enumerate(topic.partitions[first:last], start=first):
            if self.node_id not in image.replicas:
                continue
            where = TopicPartition(topic.name, index)
            partition = held.get(index)
            if partition is None:
                try:
                    opened = self.logs.open(where, topic.topic_id, log_config, self.now_ms())
                except StorageError as error:
                    if self.offline.get(where) != str(error):
                        log.error("%s is offline: %s", where, error)
                    self.offline[where] = str(error)
                    continue
                if self.offline.pop(where, None):
                    log.warning("%s is online again", where)
                if opened.loss is not None:
                    log.warning("%s: %s", where, opened.loss)
                partition = Partition(where, opened, PartitionReplication(where, self.node_id))
                held[index] = partition
            partition.log.config = log_config
            self._replay_partition(partition, image)

    def _replay_partition(self, partition: Partition, image: PartitionImage) -> None:
        """Takes a new image; what was found in the log may have to be flushed before it counts."""
        partition.replay(image)
        if partition.log.flush_is_due:
            self._upkeep.await_flush(partition, partition.log.size_bytes)

    def try_again(self) -> None:
        """Opens the logs that could not be opened or have failed, where that may help, and loads
        the coordinators that have resigned for want of them."""
        for name in {where.topic for where in self.offline}:
            topic = self.image.topics[name]
            self._hold(topic, self.topic_config(topic))
        for held in self.topics_held():
            for partition in held:
                if partition.log.can_reopen and not self._upkeep.is_flushing(partition):
                    self._reopen(partition)
        self._load_coordinators()

    def _reopen(self, partition: Partition) -> None:
        where = partition.topic_partition
        try:
            partition.log = self.logs.reopen(partition.log, self.now_ms())
        except StorageError as error:
            self.note(str(error))
            return
        log.warning("%s takes records again", where)
        if partition.log.loss is not None:
            log.warning("%s: %s", where, partition.log.loss)
        partition.replication = PartitionReplication(where, self.node_id)
        self._replay_partition(
            partition, self.image.topics[where.topic].partitions[where.partition]
        )

    def _drop(self, topic: TopicImage) -> None:
        """Lets go of a topic that is gone; whoever waits for it is told."""
        for index in range(len(topic.partitions)):
            self.offline.pop(TopicPartition(topic.name, index), None)
        held = self._partitions.pop(topic.name, {})
        for index in held:
            self._finish(self._purgatory.drop(TopicPartition(topic.name, index)))
        try:
            self.logs.delete(*(partition.log for partition in held.values()))
        except StorageError as error:
            log.error("%s", error)

    def _remove_strays(self) -> None:
        """Removes the logs of topics that are gone: a crash came between record and files."""
        strays = [where for where in self.logs.unopened() if self.image.partition(*where) is None]
        for where in strays:
            log.warning("%s belongs to no topic and is removed", where)
        self.logs.delete_unopened(*strays)

    # -- time

    def wake_at(self, deadline_ms: int | None) -> None:
        """Makes sure that what is due then is done then, or before."""
        if deadline_ms is None or deadline_ms >= self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        delay_ms = max(1, deadline_ms - self.now_ms())
        self._timer = self._loop.call_later(delay_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at_ms = None, NEVER_MS
        now_ms = self.now_ms()
        self._finish(self._purgatory.expire(now_ms))
        for coordinators in (self.groups, self.transactions):
            try:
                self.wake_at(coordinators.tick(now_ms))
            except Exception:
                log.exception("the clock of the coordinators of %s", coordinators.topic)
                self.wake_at(now_ms + RETRY_MS)
        for duty, slices in self._duties.due(now_ms):
            self.run_slices(slices, duty.name, partial(self._duty_done, duty))
        self.wake_at(self._purgatory.next_deadline_ms())
        self.wake_at(self._duties.next_ms())

    def _duty_done(self, duty: Duty) -> None:
        self._duties.done(duty, self.now_ms())
        self.wake_at(self._duties.next_ms())

    def _finish(self, operations: Iterable[Operation[TopicPartition]]) -> None:
        """Calls the tokens of what has waited, after whatever runs now."""
        is_idle = not self._finished
        self._finished.extend(operations)
        if is_idle and self._finished and not self._is_answering:
            self._loop.call_soon(self._finish_now)

    def _finish_now(self) -> None:
        """Calls them all. An answer may let a connection go on, and that call this again."""
        if self._is_finishing:
            return
        self._is_finishing = True
        for _ in range(len(self._finished)):
            operation = self._finished.popleft()
            try:
                operation.token()
            except Exception:
                log.exception("an answer that had waited")
        self._is_finishing = False
        if self._finished:
            self._loop.call_soon(self._finish_now)

    def run_slices(self, slices: Slices, name: str, then: Callable[[], None] | None = None) -> None:
        """Goes on with `slices`, one in each turn of the loop, then calls `then`.

        A slice that yields a future is followed by the next one when the future is done.
        """
        if self._is_closing:
            return
        try:
            waits_for = next(slices)
        except StopIteration:
            pass
        except Exception:
            log.exception("%s failed", name)
        else:
            go_on = partial(self.run_slices, slices, name, then)
            if waits_for is None:
                self._loop.call_soon(go_on)
            else:
                waits_for.add_done_callback(lambda _: go_on())
            return
        if then is not None:
            then()
