"""The partitions that a broker holds: opened, looked up, repaired and dropped by the image. [IO]

    image ──hold──> a log and its replication ──drop──> gone; requests that wait are answered
              └──> offline: the log cannot be opened; tried again now and then

Owns   the partitions held here, and for each that could not be opened the reason.
Never  writes a file itself; opening many logs goes on in slices.
Fails  with ApiError if a client asks for a partition that is not here. A log that fails is reported
       in the broker's log and takes only its own partition offline.
Source apache/kafka `ReplicaManager`, `BrokerMetadataPublisher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

from kafkalite.core.cluster.delta import LocalPartition
from kafkalite.core.cluster.image import ClusterImage, PartitionImage, TopicImage
from kafkalite.core.config.settings import BrokerConfig, LogConfig, TopicConfig
from kafkalite.core.duties import Slices
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.usual_fetch import News
from kafkalite.core.replicas.follower import LeaderAnswer, Position
from kafkalite.core.replicas.following import Followed
from kafkalite.core.replicas.partition import Change, Partition
from kafkalite.core.replicas.replication import PartitionReplication, Role
from kafkalite.core.replicas.upkeep import Upkeep
from kafkalite.core.types import Now, TopicPartition, by_topic
from kafkalite.errors import ApiError, ErrorCode, StorageError

log: Final = logging.getLogger(__name__)

PARTITIONS_PER_SLICE: Final = 4  # opened or made
REMOVED_PER_SLICE: Final = 64
MOVED_PER_SLICE: Final = 200  # some 20 us each


class Host(Protocol):
    """The partitions' interface to their broker."""

    node_id: int
    logs: LogStore

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""

    def now(self) -> Now:
        """This moment."""

    def wall_ms(self) -> int:
        """The machine's clock, epoch ms."""

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """The topic's settings."""

    def note(self, message: str) -> None:
        """Logs one line for the operator."""

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""

    def gone(self, partition: Partition) -> None:
        """The partition is no more, or is led elsewhere, or in another epoch: whatever waits for it
        is answered."""

    def settle(self, partition: Partition, change: Change) -> None:
        """Answers what waited for the change, and asks the controller what it asks."""

    def follower_advanced(self, partition: Partition) -> None:
        """The high watermark of a partition that follows has moved: its consumers read on."""

    def in_thread(self, act: Callable[[], Any]) -> asyncio.Future[Any]:
        """Runs `act`, which waits for a disk, in another thread."""


class Partitions:
    """All partitions that one broker holds."""

    def __init__(self, host: Host, upkeep: Upkeep) -> None:
        self.offline: dict[TopicPartition, str] = {}  # whose log could not be opened, and why
        self._host = host
        self._upkeep = upkeep
        self._held: dict[str, dict[int, Partition]] = {}
        self._opening: dict[TopicPartition, asyncio.Future[PartitionLog]] = {}  # in threads

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def get(self, topic: str, index: int) -> Partition:
        """A partition that this broker holds. ApiError with the reason if it does not."""
        try:
            return self._held[topic][index]
        except KeyError:
            pass
        host = self._host
        if (why := self.offline.get(TopicPartition(topic, index))) is not None:
            code, words = ErrorCode.KAFKA_STORAGE_ERROR, why
        elif host.image.partition(topic, index) is None:
            code, words = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
        else:
            code, words = ErrorCode.NOT_LEADER_OR_FOLLOWER, f"not held by broker {host.node_id}"
        raise ApiError(code, f"{topic}-{index}: {words}")

    def find(self, topic: str, index: int) -> Partition | None:
        """A partition that this broker holds, None if it does not."""
        return self._held.get(topic, {}).get(index)

    def of_topic(self, topic: str) -> Sequence[Partition]:
        """The partitions of a topic that are held here."""
        return tuple(self._held.get(topic, {}).values())

    def by_topic(self) -> Sequence[Sequence[Partition]]:
        """The partitions held here, by topic."""
        return [tuple(held.values()) for held in self._held.values()]

    # -- as the image says

    def hold_all(self) -> None:
        """Opens the logs of all partitions that the image places here."""
        for topic in self._host.image.topics.values():
            self._hold_whole(topic)

    def remove_strays(self) -> None:
        """Removes the logs of partitions that have no replica here any more, as where a crash came
        between record and files. The image must be the cluster's, and not one of an earlier time:
        it would lack topics that are new."""
        logs, image = self._host.logs, self._host.image
        strays = [where for where in logs.unopened() if not self._is_placed_here(image, where)]
        for where in strays:
            log.warning("%s has no replica here and is removed", where)
        try:
            logs.delete_unopened(*strays)
        except StorageError as error:  # the next start finds them again
            log.error("%s", error)

    def _is_placed_here(self, image: ClusterImage, where: TopicPartition) -> bool:
        partition = image.partition(*where)
        return partition is not None and self._host.node_id in partition.replicas

    async def hold(self, places: Sequence[LocalPartition]) -> None:
        """Opens or makes the logs of partitions that are placed here. Making a log takes a while;
        others get their turn."""
        topics = by_topic(place.topic_partition for place in places)
        await self._settled(topics)
        for name, indexes in topics.items():
            topic = self._host.image.topics[name]
            config = self._host.topic_config(topic)
            for first in range(0, len(indexes), PARTITIONS_PER_SLICE):
                self._hold(topic, config, indexes[first : first + PARTITIONS_PER_SLICE])
                await asyncio.sleep(0)

    def configure(self, topic: TopicImage) -> None:
        """Gives the logs of a topic the settings that it has now."""
        config = self._host.topic_config(topic).log
        for partition in self.of_topic(topic.name):
            partition.log.config = config

    def _hold_whole(self, topic: TopicImage) -> None:
        """The same at once."""
        self._hold(topic, self._host.topic_config(topic), range(len(topic.partitions)))

    def _hold(self, topic: TopicImage, config: TopicConfig, indexes: Sequence[int]) -> None:
        log_config = config.log
        held = self._held.setdefault(topic.name, {})
        for index in indexes:
            image = topic.partitions[index]
            if self._host.node_id not in image.replicas:
                continue
            if TopicPartition(topic.name, index) in self._opening:
                continue  # and held again when it is open
            partition = held.get(index) or self._open(topic, index, log_config)
            if partition is not None:
                held[index] = partition
                partition.log.config = log_config
                self._replay(partition, image)

    def _open(self, topic: TopicImage, index: int, config: LogConfig) -> Partition | None:
        """A partition with its log; None if the log cannot be opened, which is logged."""
        host, where = self._host, TopicPartition(topic.name, index)
        try:
            elsewhere = self._is_elsewhere(topic, index)
            opened = host.logs.open(
                where, topic.topic_id, config, host.now(), is_elsewhere=elsewhere
            )
        except StorageError as error:
            self._note_offline(where, error)
            return None
        return self._online(where, opened)

    def _is_elsewhere(self, topic: TopicImage, index: int) -> bool:
        """Whether other replicas have all that is committed."""
        return any(n != self._host.node_id for n in topic.partitions[index].in_sync_replicas)

    def _online(self, where: TopicPartition, opened: PartitionLog) -> Partition:
        if self.offline.pop(where, None):
            log.warning("%s is online again", where)
        if opened.loss is not None:
            log.warning("%s: %s", where, opened.loss)
        return Partition(where, opened, self._replication(where))

    def _replication(self, where: TopicPartition) -> PartitionReplication:
        lag_ms = self._host.config["replica.lag.time.max.ms"]
        return PartitionReplication(where, self._host.node_id, lag_ms)

    def _note_offline(self, where: TopicPartition, error: StorageError) -> None:
        if self.offline.get(where) != str(error):
            log.error("%s is offline: %s", where, error)
        self.offline[where] = str(error)

    def _replay(self, partition: Partition, image: PartitionImage) -> None:
        """Takes a new image; records found in the log may need a flush before they count.

        What waits for records of an earlier leader epoch is answered: whether they stay is decided
        elsewhere."""
        host, replication = self._host, partition.replication
        role, epoch = replication.role, replication.leader_epoch
        change = partition.replay(image, host.now().monotonic_ms)
        if role is Role.LEADER and (
            replication.role is not Role.LEADER or replication.leader_epoch != epoch
        ):
            host.gone(partition)
        host.settle(partition, change)
        if partition.log.flush_is_due:
            self._upkeep.await_flush(partition, partition.log.size_bytes)

    async def move(self, places: Iterable[LocalPartition]) -> list[LocalPartition]:
        """Gives partitions their state in the image: leader, epoch, replicas in sync. Requests that
        wait for one that this broker led before are answered. Returns those that are not held, for
        `hold`."""
        missing = []
        for number, place in enumerate(places, start=1):
            partition = self.find(*place.topic_partition)
            if partition is None:
                missing.append(place)
            else:
                self._replay(partition, place.image)
            if number % MOVED_PER_SLICE == 0:
                await asyncio.sleep(0)
        return missing

    def following(self) -> list[Partition]:
        """The partitions that follow a leader elsewhere."""
        held = [partition for each in self._held.values() for partition in each.values()]
        return [partition for partition in held if partition.replication.follower is not None]

    def answered(self, partition: Partition, asked: Position, answer: LeaderAnswer) -> Followed:
        """A leader has answered the fetch of a partition that follows it: the log gets the records,
        or is cut. The operator is told what went wrong; other partitions go on, whatever it is."""
        host, partition_log, now = self._host, partition.log, self._host.now()
        follower = partition.replication.follower
        try:
            followed = partition.answered(asked, answer, host.logs, now)
        except Exception as error:
            log.exception("%s cannot follow its leader", partition.topic_partition)
            followed = Followed()
            if follower is not None:
                follower.rest(f"cannot follow its leader: {error!r}", now.monotonic_ms)
        if followed.byte_count and partition_log.flush_is_due:
            self._upkeep.await_flush(partition, followed.byte_count)
        if followed.has_advanced:
            host.follower_advanced(partition)
        if follower is not None and follower.rests_until_ms is not None:
            host.note(follower.why)
        return followed

    def append_next(self, partition: Partition, asked: Position, news: News) -> bool:
        """The same of the one batch that comes next. False, and nothing has changed, if the
        leader's `news` are anything else or the disk refuses them: then `answered` tells why."""
        if not partition.append_next(asked, news, self._host.wall_ms()):
            return False
        partition_log = partition.log
        if partition_log.flush_is_due:
            self._upkeep.await_flush(partition, len(news.records))
        if partition_log.commit(news.high_watermark, news.log_start_offset):
            self._host.follower_advanced(partition)
        return True

    def let_go(self, places: Iterable[LocalPartition]) -> list[Partition]:
        """Partitions are gone, or have no replica here any more: they are no longer found. `remove`
        must follow."""
        leaving = []
        for where in (place.topic_partition for place in places):
            self.offline.pop(where, None)
            held = self._held.get(where.topic, {})
            if (partition := held.pop(where.partition, None)) is not None:
                leaving.append(partition)
            if not held:
                self._held.pop(where.topic, None)
        return leaving

    async def remove(self, partitions: Sequence[Partition]) -> None:
        """Removes the logs of such partitions; requests that wait for them get an error."""
        await self._settled({partition.topic_partition.topic for partition in partitions})
        logs = self._host.logs
        deletion = logs.begin_delete()
        for number, partition in enumerate(partitions, start=1):
            self._host.gone(partition)
            logs.let_go(partition.log, deletion)
            if number % REMOVED_PER_SLICE == 0:
                await asyncio.sleep(0)
        await self._host.in_thread(deletion.run)
        try:
            logs.end_delete(deletion)
        except StorageError as error:
            log.error("%s", error)

    # -- second tries

    def try_again(self) -> Slices:
        """Opens the logs that could not be opened or have failed, where that may help: one after
        the other, in threads, as reading a log that was not closed takes a while."""
        for where in tuple(self.offline):
            if where in self.offline:
                yield self._open_again(where)
        for held in self.by_topic():
            for partition in held:
                if partition.log.can_reopen and self._is_held(partition):
                    yield self._reopen(partition)

    def _open_again(self, where: TopicPartition) -> asyncio.Future[PartitionLog] | None:
        host, topic = self._host, self._host.image.topics[where.topic]
        try:
            config = host.topic_config(topic).log
            elsewhere = self._is_elsewhere(topic, where.partition)
            opener = host.logs.begin_open(
                where, topic.topic_id, config, host.now(), is_elsewhere=elsewhere
            )
        except StorageError as error:
            self._note_offline(where, error)
            return None

        def opened(future: asyncio.Future[PartitionLog]) -> None:
            if where not in self.offline:  # the topic is gone
                _give_up(future)
                return
            try:
                log = host.logs.end_open(future.result())
            except StorageError as error:
                self._note_offline(where, error)
                return
            self._held.setdefault(where.topic, {})[where.partition] = self._online(where, log)
            self._hold_again(where)

        return self._opening_of(where, opener, opened)

    def _reopen(self, partition: Partition) -> asyncio.Future[PartitionLog] | None:
        if self._upkeep.is_flushing(partition):
            return None
        host, where, failed = self._host, partition.topic_partition, partition.log

        def opened(future: asyncio.Future[PartitionLog]) -> None:
            if not self._is_held(partition):
                _give_up(future)
                return
            error = future.exception()
            try:
                host.logs.end_reopen(failed, None if error else future.result())
            except StorageError as refusal:
                error = refusal
            if error is not None:
                host.note(str(error))
                return
            log.warning("%s takes records again", where)
            partition.reopened(future.result(), self._replication(where))
            if partition.log.loss is not None:
                log.warning("%s: %s", where, partition.log.loss)
            self._hold_again(where)

        return self._opening_of(where, host.logs.begin_reopen(failed, host.now()), opened)

    def _opening_of(
        self,
        where: TopicPartition,
        opener: Callable[[], PartitionLog],
        opened: Callable[[asyncio.Future[PartitionLog]], None],
    ) -> asyncio.Future[PartitionLog]:
        """Runs `opener` in a thread, then `opened`, before requests that wait for it go on."""

        def done(future: asyncio.Future[PartitionLog]) -> None:
            del self._opening[where]
            opened(future)

        future = self._opening[where] = self._host.in_thread(opener)
        future.add_done_callback(done)
        return future

    def _hold_again(self, where: TopicPartition) -> None:
        """A log that was opened in a thread gets the settings and the image of now."""
        topic = self._host.image.topics[where.topic]
        indexes = range(where.partition, where.partition + 1)
        self._hold(topic, self._host.topic_config(topic), indexes)

    def _is_held(self, partition: Partition) -> bool:
        topic, index = partition.topic_partition
        return self._held.get(topic, {}).get(index) is partition

    def opening(self) -> list[asyncio.Future[PartitionLog]]:
        """The logs that threads are opening."""
        return list(self._opening.values())

    async def _settled(self, topics: Collection[str]) -> None:
        """Waits until no thread opens a log of `topics`."""
        if opening := [future for where, future in self._opening.items() if where.topic in topics]:
            await asyncio.wait(opening)


def _give_up(future: asyncio.Future[PartitionLog]) -> None:
    """Lets go of a log that was opened for a partition which has gone meanwhile."""
    if future.exception() is None:
        future.result().abandon()
