"""A host of coordinators that is lossy and slow, over real logs in memory.

Nothing happens by itself: logs are flushed, slices run and the clock goes on when a test says so.
Records may be refused, flushes fail, and everything in memory be lost while the logs stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from kafkalite.core.cluster.image import ClusterImage, PartitionImage, TopicImage
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.coordinators.runtime import Coordinators
from kafkalite.core.log.store import LogStore
from kafkalite.core.log.values import Appended
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.replicas.replication import PartitionReplication
from kafkalite.core.types import Now, TopicPartition
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.testing.clock import at, wall_of
from kafkalite.testing.storage import MemoryStorage

FLUSH_EACH = 3
IMAGE = PartitionImage((1,), 1, 0, (1,))


class FaultyPartition(Partition):
    """A partition whose disk refuses while it is told to."""

    refuses = False

    def append(
        self, records: Buffer, acks: int, now_ms: int, *, from_client: bool = True
    ) -> Appended:
        if self.refuses:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")
        return super().append(records, acks, now_ms, from_client=from_client)


class Waiting(NamedTuple):
    """What is to be told once the high watermark has reached an offset, or never will."""

    offset: int
    then: Callable[[], None]
    otherwise: Callable[[], None]


class LossyHost(ABC):
    """Partitions by topic, and the coordinators that `begin` makes, whenever memory is lost."""

    node_id = 1

    def __init__(self, random: Random, topics: Mapping[str, int], *, flushes: bool) -> None:
        self.random = random
        self.clock_ms = 1_000_000
        self.wake_ms: int | None = None
        self.slices: list[Iterator[None]] = []
        self.waiting: dict[TopicPartition, deque[Waiting]] = {}
        self.coordinators: list[Coordinators[Any]] = []
        images = {
            name: TopicImage(name, UUID(int=number), (IMAGE,) * count)
            for number, (name, count) in enumerate(topics.items(), start=1)
        }
        self.image = ClusterImage(topics=images)
        config = LogConfig(flush_messages=FLUSH_EACH if flushes else 1 << 60)
        store = LogStore(MemoryStorage())
        self.logs = {
            where: store.open(where, topic.topic_id, config, at(self.clock_ms))
            for name, topic in images.items()
            for where in (TopicPartition(name, n) for n in range(len(topic.partitions)))
        }
        self.start()

    @abstractmethod
    def begin(self) -> list[Coordinators[Any]]:
        """The coordinators, none loaded yet."""

    def start(self) -> None:
        """What was in memory is gone; the logs are there."""
        self.wake_ms, self.slices = None, []
        self.waiting = {where: deque() for where in self.logs}
        self.partitions = {
            where: FaultyPartition(where, log, PartitionReplication(where, 1))
            for where, log in self.logs.items()
        }
        for partition in self.partitions.values():
            partition.replay(IMAGE, self.clock_ms)
        self.coordinators = self.begin()
        for each in self.coordinators:
            self.run_slices(each.load_all(), "loading")

    # -- Host

    def now(self) -> Now:
        return at(self.clock_ms)

    def partition(self, topic: str, index: int) -> Partition:
        return self.partitions[TopicPartition(topic, index)]

    def appended(self, partition: Partition, byte_count: int) -> None:  # noqa: B027
        pass  # flushes are the test's to begin

    def when_committed(
        self,
        partition: Partition,
        offset: int,
        then: Callable[[], None],
        otherwise: Callable[[], None],
    ) -> None:
        waiting = self.waiting[partition.topic_partition]
        if partition.log.high_watermark >= offset and not waiting:
            then()
        else:
            waiting.append(Waiting(offset, then, otherwise))

    def wake_at(self, deadline_ms: int | None) -> None:
        if deadline_ms is not None:
            self.wake_ms = min(deadline_ms, self.wake_ms or deadline_ms)

    def run_slices(self, slices: Iterator[None], name: str) -> None:
        if next(slices, self) is None:
            self.slices.append(slices)

    def note(self, message: str) -> None:  # noqa: B027
        pass  # there is no operator

    # -- what happens

    def go_on(self) -> None:
        """One slice of each that is under way; and what is committed is told."""
        slices, self.slices = self.slices, []
        for each in slices:
            self.run_slices(each, "")
        for where, waiting in self.waiting.items():
            while waiting and waiting[0].offset <= self.logs[where].high_watermark:
                waiting.popleft().then()

    def flush(self) -> None:
        for partition in self.partitions.values():
            flush = partition.log.begin_flush()
            partition.log.end_flush(flush, flush.run(), self.now().monotonic_ms)
            partition.advance()

    def settle(self) -> None:
        """What was asked is flushed and told."""
        while self.slices or any(self.waiting.values()):
            self.flush()
            self.go_on()

    def refuse(self) -> None:
        """The disk of one partition refuses from now on, or no longer."""
        partition = self.random.choice(list(self.partitions.values()))
        partition.refuses = not partition.refuses

    def heal(self) -> None:
        """No disk refuses any more."""
        for partition in self.partitions.values():
            partition.refuses = False

    def fail_what_waits(self) -> None:
        """A flush has failed; nobody knows that what waited is in the log all the same."""
        waiting = self.random.choice(list(self.waiting.values()))
        for _ in range(len(waiting)):
            waiting.popleft().otherwise()

    def pass_time(self, ms: int) -> None:
        """Wakes only when it was asked to."""
        until_ms = self.clock_ms + ms
        while self.wake_ms is not None and wall_of(self.wake_ms) <= until_ms:
            self.clock_ms = max(self.clock_ms + 1, wall_of(self.wake_ms))
            self.wake_ms = None
            for each in self.coordinators:
                self.wake_at(each.tick(self.now().monotonic_ms))
        self.clock_ms = max(self.clock_ms, until_ms)
