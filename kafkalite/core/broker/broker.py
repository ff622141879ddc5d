"""The broker: what handlers act on, made of its parts.                                     [IO]

    handler ──> partitions, coordinators, waiting          at once, or Pending
       └──────> control: the controller's queue            one step at a time
    agenda ───> waiting, coordinators' tick, duties        at their deadlines

All runs on one event loop. A handler runs to its end, so that partitions, coordinators and the
image never change under it. Long work (retention, loading, checkpoints) runs in slices.

Owns   the image and the settings in force, and the consequences of a change of either.
Never  writes a file or a socket itself; knows no handler, which `handlers.service` finds.
Fails  with ApiError, which the client receives; a failing disk takes single partitions offline.
Source apache/kafka `BrokerServer`, `BrokerMetadataPublisher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from random import Random
from typing import Any, Final, TypeVar
from uuid import UUID

from kafkalite.core.broker.agenda import Agenda
from kafkalite.core.broker.clock import LOOK_MS, Clock
from kafkalite.core.broker.doubts import Doubts
from kafkalite.core.broker.failures import FailureReports
from kafkalite.core.broker.fetching import ReplicaFetching
from kafkalite.core.broker.kept_answers import KeptAnswers
from kafkalite.core.broker.loggers import Loggers
from kafkalite.core.broker.marking import ClusterMarkers
from kafkalite.core.broker.metrics import BrokerMetrics
from kafkalite.core.broker.notes import Notes
from kafkalite.core.broker.purgatory import DelayedDeletion
from kafkalite.core.broker.reaching import OtherBrokers
from kafkalite.core.broker.reading import Reading
from kafkalite.core.broker.refused_batches import RefusedBatches
from kafkalite.core.broker.sessions import FetchSessions
from kafkalite.core.broker.steering import Steering
from kafkalite.core.broker.survey import Survey
from kafkalite.core.broker.verifying import ClusterVerifier
from kafkalite.core.broker.waiting import Waiting
from kafkalite.core.cluster.config_changes import in_force
from kafkalite.core.cluster.controller import Controller, ControllerRequest
from kafkalite.core.cluster.delta import local_delta
from kafkalite.core.cluster.image import (
    ClusterImage,
    TopicImage,
)
from kafkalite.core.cluster.internal_topics import creatable
from kafkalite.core.cluster.producer_ids import ProducerIds
from kafkalite.core.config.settings import BrokerConfig, TopicConfig
from kafkalite.core.duties import Duty, Slices
from kafkalite.core.groups.shards import group_coordinators
from kafkalite.core.log.shared_write import SharedWrite
from kafkalite.core.log.store import LogStore
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.fetch import FetchPartition
from kafkalite.core.protocol.peers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from kafkalite.core.protocol.topics import (
    CreatableTopicConfigs,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kafkalite.core.replicas.alterations import Alterations
from kafkalite.core.replicas.leader import Altered, AlterPartition, FollowerFetch
from kafkalite.core.replicas.manager import Partitions
from kafkalite.core.replicas.partition import Change, Partition
from kafkalite.core.replicas.throttling import throttles_of
from kafkalite.core.replicas.upkeep import Upkeep
from kafkalite.core.transactions.markers import LocalMarkers
from kafkalite.core.transactions.shards import TransactionCoordinators
from kafkalite.core.transactions.verification import Verifications
from kafkalite.core.types import NO_EPOCH, Now, TopicPartition
from kafkalite.errors import ApiError, ConfigError, ErrorCode

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

TOPICS_PER_SLICE: Final = 100  # that get other settings
ALL_THERE_IS: Final = 1 << 40  # readers look again, and go on waiting if it is not enough
COMPUTING_THREADS: Final = 2  # each may hold what a batch decompresses to
FETCH_SESSION_SLOTS: Final = "max.incremental.fetch.session.cache.slots"


class Broker:
    """One broker. `start` before the first request, `close` after the last.

    `threads` wait for the disk, WAITING_THREADS_MAX of them; `computing` are COMPUTING_THREADS that
    check large batches. `close` shuts both down.
    """

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        image: ClusterImage,
        steer: Callable[[Broker], Steering],
        logs: LogStore,
        random: Random,
        clock: Clock,
        threads: Executor,
        computing: Executor,
    ) -> None:
        self.node_id = node_id
        self._static_config = config
        self.config = config = self._in_force(image)
        self._config_watchers: list[Callable[[BrokerConfig], None]] = []
        self.throttles = throttles_of(node_id, config)
        self.watch_config(self.throttles.configure)
        self._clock = clock
        self.logs = logs
        self.metrics = BrokerMetrics()
        self.kept_answers = KeptAnswers()
        self.refused_batches = RefusedBatches()
        self.loggers = Loggers()
        self.log_starts = SharedWrite(logs.log_start_offsets_writer, self.in_thread)
        self.fetch_bytes_max: int = config["fetch.max.bytes"]
        self.selects_replicas = bool(config["replica.selector.class"])
        self.fetch_sessions = FetchSessions(
            config[FETCH_SESSION_SLOTS], random, lambda node_id: node_id in self._image.brokers
        )
        self._threads = threads
        self._computing = computing
        self._loop = asyncio.get_running_loop()
        self._survey: asyncio.Future[Survey] | None = None  # under way
        self._image = image
        self._whole_image = image  # in force in all its parts; `_image` may be a newer one
        self._random = random
        self._fetching: ReplicaFetching | None = None  # in a cluster
        self._failures: FailureReports | None = None  # the same
        self.doubts: Doubts | None = None  # in a cluster
        self._agenda = Agenda(clock.monotonic_ms)
        self._upkeep = Upkeep(self, config)
        self.waiting = Waiting(self._agenda)
        self.deletions: set[DelayedDeletion[TopicPartition]] = set()  # that wait for replicas
        self.partitions = Partitions(self, self._upkeep)
        self.alterations = Alterations(
            node_id, self._topic_id, lambda: self.broker_epoch, self._ask_controller
        )
        self.producer_ids = ProducerIds(self._request_producer_ids)
        self._notes = Notes(clock.monotonic_ms)
        self.groups = group_coordinators(self, config, random)
        verifications = Verifications()
        self.markers = LocalMarkers(self, self.groups, verifications)
        self.transactions = TransactionCoordinators(
            self, config, self.producer_ids, self.markers, verifications
        )
        self._marking: ClusterMarkers | None = None  # in a cluster
        self._verifier: ClusterVerifier | None = None  # likewise
        self.steering = steer(self)

    # -- life

    async def start(self) -> None:
        """Opens the logs of all partitions that the image places here, and begins to work."""
        self.partitions.hold_all()
        self.steering.start()
        for coordinators in (self.groups, self.transactions):
            self._agenda.watch(f"the coordinators of {coordinators.topic}", coordinators.tick)
        for duty in (*self._upkeep.duties(), Duty("clock", LOOK_MS, self._look_at_clock)):
            self.add_duty(duty)
        self._load_coordinators()

    def _load_coordinators(self) -> None:
        self.run_slices(self.groups.load_all(), "loading groups")
        self.run_slices(self.transactions.load_all(), "loading transactions")

    async def close(self) -> None:
        """Stops working. The logs stay open: they are the composition root's to close."""
        self._agenda.close()
        for part in (self._fetching, self._marking, self._verifier):
            if part is not None:
                await part.close()
        if self._failures is not None:
            self._failures.close()
        await self.steering.close()
        while work := (*self._upkeep.in_flight(), *self.partitions.opening()):
            await asyncio.wait(work)
        self._threads.shutdown()
        self._computing.shutdown()

    # -- settings

    def watch_config(self, watcher: Callable[[BrokerConfig], None]) -> None:
        """Calls `watcher` with the settings in force: now, and whenever they change."""
        self._config_watchers.append(watcher)
        watcher(self.config)

    async def _configure(self) -> None:
        """Applies the brokers' settings, also to all topics that fall back to them."""
        self.config = self._in_force(self.image)
        self.steering.configure(self.config)
        for watcher in self._config_watchers:
            watcher(self.config)
        for number, topic in enumerate(tuple(self.image.topics.values()), start=1):
            self.partitions.configure(topic)
            if number % TOPICS_PER_SLICE == 0:
                await asyncio.sleep(0)

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

    def gauges(self) -> dict[str, int]:
        """The current values of the gauges, in addition to the counters in `metrics`."""
        return {
            "partitions": len(self.partitions),
            "offline_partitions": len(self.partitions.offline),
            "is_controller": int(self.steering.controller_id == self.node_id),
            "waiting_requests": len(self.waiting),
            "fetch_sessions": len(self.fetch_sessions),
            "fetch_session_partitions": self.fetch_sessions.partition_count,
        }

    def survey(self) -> asyncio.Future[Survey]:
        """Looks at all topics and groups in slices; callers meanwhile share the same look."""
        done = self._survey
        if done is None:
            done = self._survey = self._loop.create_future()
            self.run_slices(self._surveying(done), "a look at topics and groups")
        return asyncio.shield(done)

    def _surveying(self, done: asyncio.Future[Survey]) -> Slices:
        survey = Survey()
        try:
            yield from survey.take(self)
            done.set_result(survey)
        except Exception as error:
            done.set_exception(error)
        finally:
            self._survey = None

    # -- what handlers ask for

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""
        return self._image

    @property
    def controller_id(self) -> int:
        """The broker that makes and unmakes topics; -1 while nobody knows."""
        return self.steering.controller_id

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker holds. ApiError with the reason if it does not."""
        return self.partitions.get(topic, index)

    def topics_held(self) -> Sequence[Sequence[Partition]]:
        """The partitions held here, by topic."""
        return self.partitions.by_topic()

    def note(self, message: str) -> None:
        """Logs one line for the operator, unless the same line was logged only just now."""
        self._notes.note(message)

    def inform(self, message: str) -> None:
        """Logs one line at INFO, about normal work."""
        log.info("%s", message)

    def note_storage_error(self, error: ApiError) -> None:
        """Logs an error that a client was sent, if it is about our disk."""
        self._notes.note_storage_error(error)
        if error.error_code is ErrorCode.KAFKA_STORAGE_ERROR:
            self.noticed_failure()

    # -- time and work in slices

    def now(self) -> Now:
        """This moment, by all clocks."""
        return self._clock.now()

    def wall_ms(self) -> int:
        """The machine's clock, epoch ms."""
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        """The monotonic clock, in ms."""
        return self._clock.monotonic_ms()

    def wake_at(self, deadline_ms: int | None) -> None:
        """Makes sure that everything due by `deadline_ms` is done then, or before."""
        self._agenda.wake_at(deadline_ms)

    def _look_at_clock(self, monotonic_ms: int) -> Slices:
        """Notices whether the machine's clock was set."""
        self.now()
        yield None

    def run_slices(self, slices: Slices, name: str, then: Callable[[], None] | None = None) -> None:
        """Goes on with `slices`, one in each turn of the loop, then calls `then`."""
        self._agenda.run_slices(slices, name, then)

    def add_duty(self, duty: Duty) -> None:
        """Takes on work that is to be done now and then."""
        self._agenda.add_duty(duty)

    # -- what becomes of appended records

    def when_committed(
        self,
        partition: Partition,
        offset: int,
        then: Callable[[], None],
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        """Calls `then` once the high watermark has reached `offset`, `otherwise` if it never will:
        `Waiting.when_committed`."""
        self.waiting.when_committed(partition, offset, then, otherwise)

    def appended(
        self, partition: Partition, byte_count: int, fresh: MemoryRecords | None = None
    ) -> None:
        """Wakes readers that wait for records of `partition`, once these count. `fresh` is the
        batch, if it is small enough to be sent from memory."""
        log = partition.log
        if partition.followers or not partition.replication.is_alone:
            self.waiting.grew(partition, byte_count, fresh)
        if log.flush_is_due:
            partition.counts(0)
            self._upkeep.await_flush(partition, byte_count)
        elif log.high_watermark == log.log_end_offset:
            self.waiting.advanced(partition, byte_count, fresh)

    def flushed(self, partition: Partition, byte_count: int) -> None:
        """Acknowledges the writes that waited for a flush; readers learn of `byte_count` bytes."""
        partition.advance()
        self._advanced(partition, byte_count)

    # -- replication

    def follower_fetched(
        self, partition: Partition, reading: Reading, wanted: FetchPartition
    ) -> None:
        """A follower fetches: what it has now may be committed by that. ApiError if its broker has
        no replica of `partition`, or fetched before it was started again.

        A broker that is not registered fetches under no epoch. It joins no in-sync set by that: its
        next life, which is registered, may have lost what this one has.
        """
        replica = reading.replica
        assert replica is not None, "a consumer reads"
        broker, epoch = self.image.brokers.get(replica.node_id), replica.broker_epoch
        known = NO_EPOCH if broker is None else broker.epoch
        if NO_EPOCH < epoch < known:
            where = partition.topic_partition
            words = f"{where}: broker {replica.node_id} fetches under epoch {epoch}, not {known}"
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, words)
        is_active = broker is not None and not broker.in_controlled_shutdown
        fetch = FollowerFetch(
            replica.node_id,
            wanted.fetch_offset,
            wanted.log_start_offset,
            epoch,
            is_eligible=is_active and epoch == known,
            confirmed_ms=reading.confirmed_ms,
        )
        self.settle(partition, partition.fetched(fetch, self.monotonic_ms()))
        if self.deletions:
            self.waiting.look_again(partition)

    def follower_advanced(self, partition: Partition) -> None:
        """The high watermark of a partition that follows has moved: its consumers read on."""
        if partition.watchers:
            self.waiting.advanced(partition, ALL_THERE_IS)

    def low_watermark(self, partition: Partition) -> int:
        """Where the logs of all live replicas begin at the latest: records below are gone for good.
        ApiError if this broker does not lead the partition."""
        start, leader = partition.log.log_start_offset, partition.replication.led()
        return leader.low_watermark(start, self.image.brokers.keys())

    def _eligible(self) -> dict[int, int]:
        """The brokers that may be in an in-sync set, with their epochs."""
        brokers = self.image.brokers.items()
        return {node: each.epoch for node, each in brokers if not each.in_controlled_shutdown}

    def look_for_lag(self, partition: Partition, monotonic_ms: int) -> None:
        """Looks for followers of `partition` that lag, or are caught up."""
        self.settle(partition, partition.tick(monotonic_ms, self._eligible()))

    def settle(self, partition: Partition, change: Change) -> None:
        """Answers what waited for the change, and asks the controller what it asks."""
        if change.has_advanced:
            self._advanced(partition, ALL_THERE_IS)
        for effect in change.effects:
            assert isinstance(effect, AlterPartition), effect
            self._alter(partition, effect)

    def _advanced(self, partition: Partition, byte_count: int) -> None:
        """The high watermark has moved: consumers read on. Followers learn of it by their next
        answers; where consumers read followers they are answered at once."""
        self.waiting.advanced(partition, byte_count)
        if partition.followers:
            partition.grew(ALL_THERE_IS if self.selects_replicas else 0)

    def _alter(self, partition: Partition, asked: AlterPartition) -> None:
        def answered(answer: Altered | ErrorCode) -> None:
            self.settle(partition, partition.altered(asked, answer, self.monotonic_ms()))

        self.alterations.ask(asked, answered)

    def _ask_controller(
        self,
        request: AlterPartitionRequest,
        answered: Callable[[AlterPartitionResponse | ErrorCode], None],
    ) -> None:
        """Where the controller is in this process."""
        self.control(request).when_done(answered)

    def _topic_id(self, name: str) -> UUID | None:
        topic = self.image.topics.get(name)
        return None if topic is None else topic.topic_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration now; -1 without one."""
        own = self.image.brokers.get(self.node_id)
        return NO_EPOCH if own is None else own.epoch

    def failed(self, partition: Partition) -> None:
        """Nothing that waits for records of `partition` will come: its log has failed."""
        self.waiting.failed(partition)
        self.noticed_failure()

    def noticed_failure(self) -> None:
        """A log has failed, or is well again: in a cluster others lead meanwhile."""
        if self._failures is not None:
            self._failures.look()

    @property
    def has_told_failures(self) -> bool:
        """Whether the controller knows of all logs that have failed, or refused records, here."""
        return self._failures is None or self._failures.are_told

    def gone(self, partition: Partition) -> None:
        """The partition is no more, or is led elsewhere: whatever waits for it is answered."""
        self.waiting.gone(partition)

    def in_thread(self, act: Callable[[], Any]) -> asyncio.Future[Any]:
        """Runs `act`, which waits for a disk, in another thread."""
        return self._loop.run_in_executor(self._threads, act)

    def compute(self, act: Callable[[], T]) -> asyncio.Future[T]:
        """Runs `act`, which takes the processor for a while, in another thread."""
        return self._loop.run_in_executor(self._computing, act)

    def try_again(self) -> Slices:
        """Opens the logs that could not be opened or have failed, where that may help, and loads
        the coordinators that have resigned for want of them."""
        yield from self.partitions.try_again()
        self._load_coordinators()
        if self._fetching is not None:
            self._fetching.look()

    # -- the controller

    def control(self, request: ControllerRequest, *, from_peer: int | None = None) -> Pending[Any]:
        """Hands a request to the controller: `Steering.control`."""
        return self.steering.control(request, from_peer=from_peer)

    def new_controller(self, image: ClusterImage) -> Controller:
        """A controller in this broker's process."""
        return Controller(self.config, self._random, self._describe_topic, image)

    def create_topics(self, names: Iterable[str]) -> Pending[CreateTopicsResponse]:
        """Makes topics as the broker's defaults say; internal ones as Kafka does."""
        is_alone = self._fetching is None
        topics = tuple(creatable(name, self.config, is_alone=is_alone) for name in names)
        return self.control(CreateTopicsRequest(topics))

    async def put_in_force(self, image: ClusterImage) -> None:
        """The cluster is another: this broker leads, follows, holds and deletes what it is to. One
        image after the other: the caller waits for the end. After a failure the next call does what
        was left undone.

        What the image has no more is let go before others get their turn; making the files follow
        takes longer, and no name is given anew before that is done. Partitions that are held get
        their new leaders first, as clients wait for those.
        """
        before, self._image = self._whole_image, image
        if self.doubts is not None:
            self.doubts.note(before)
        delta = local_delta(self.node_id, before, image)
        leaving = self.partitions.let_go(delta.delete)
        gone = [n for n, topic in before.topics.items() if not _is_same(topic, image.topics.get(n))]
        for name in gone:
            self.metrics.forget_topic(name)
        if gone:
            self.groups.topics_deleted(gone)
            self.transactions.topics_deleted(gone)
        changed = (*delta.stop, *delta.lead, *delta.follow)
        coordinated = {self.groups.topic, self.transactions.topic}
        has_coordinators = any(
            each.topic_partition.topic in coordinated for each in (*changed, *delta.delete)
        )
        missing = await self.partitions.move(changed)
        if has_coordinators:
            self._leaders_changed()
        if self._marking is not None:
            self._marking.look()
        if leaving:
            await self.partitions.remove(leaving)
        if missing:
            await self.partitions.hold(missing)
            if has_coordinators:
                self._leaders_changed()
        for name in delta.configured:
            self.partitions.configure(image.topics[name])
        if self._fetching is not None and (not delta.is_empty or image.brokers != before.brokers):
            self._fetching.look()
        if self._failures is not None:
            self._failures.look()
        if self.deletions and image.brokers.keys() != before.brokers.keys():
            for where in {where for each in self.deletions for where in each.offsets_wanted}:
                if (partition := self.partitions.find(*where)) is not None:
                    self.waiting.look_again(partition)  # a broker that died is not waited for
        if self.doubts is not None:
            self.doubts.answer()
        if image.broker_configs != before.broker_configs:
            await self._configure()
        self._whole_image = image

    def reach(self, others: OtherBrokers) -> None:
        """From now on followers fetch, transactions reach the other brokers, and failures are
        reported: the broker is one of a cluster."""
        self.doubts = Doubts(self, others)
        self._failures = FailureReports(self)
        self._marking = ClusterMarkers(self, self.markers, others)
        self._verifier = ClusterVerifier(self, others)
        self.transactions.markers, self.transactions.verifier = self._marking, self._verifier
        self._fetching = ReplicaFetching(self, others)
        self._fetching.look()

    def _leaders_changed(self) -> None:
        """Coordinators follow their partitions."""
        self.groups.leaders_changed()
        self.transactions.leaders_changed()
        self._load_coordinators()

    def _request_producer_ids(self) -> None:
        def allocated(answer: AllocateProducerIdsResponse) -> None:
            if answer.error_code:
                words = "the controller gave no producer ids"
                self.producer_ids.refuse(ApiError(answer.error_code, words))
            else:
                self.producer_ids.add_block(answer.producer_id_start, answer.producer_id_len)

        request = AllocateProducerIdsRequest(self.node_id, self.broker_epoch)
        self.control(request).when_done(allocated)

    def _describe_topic(self, topic: TopicImage) -> Iterator[CreatableTopicConfigs]:
        for entry in self.topic_config(topic).describe():
            value = None if entry.is_sensitive else entry.value
            yield CreatableTopicConfigs(
                entry.key.name, value, entry.is_read_only, int(entry.source), entry.is_sensitive
            )


def _is_same(old: TopicImage, new: TopicImage | None) -> bool:
    """Whether a topic is still the one it was, not another of its name."""
    return new is not None and new.topic_id == old.topic_id
