"""One partition on this broker: its log, and how far consumers and followers may read it.    [D]

    read ──> the reader watches ──changed──> called once, and reads again when it needs to

Owns   the high watermark's way from replication to the log; the readers that watch for changes of
       what they read: records, high watermark, start of the log, leader, failure. Consumers read
       up to the high watermark, followers up to the end of the log.
Fails  with ApiError if this broker does not lead the partition, or if the log refuses a batch.
Source apache/kafka `Partition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.segment import FileRecords
from kafkalite.core.log.store import LogStore
from kafkalite.core.log.uncached import cached_only
from kafkalite.core.log.validation import Batch, Validated, validated
from kafkalite.core.log.values import AbortedTransaction, Appended, MemoryRecords
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.records import Allowance
from kafkalite.core.protocol.usual_fetch import News
from kafkalite.core.replicas.follower import LeaderAnswer, Position
from kafkalite.core.replicas.following import Followed, carry_out
from kafkalite.core.replicas.leader import Altered, AlterPartition, FollowerFetch
from kafkalite.core.replicas.replication import LogEnds, PartitionReplication, Role
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, NOTHING, Now, Outcome, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
READ_AS_REPLICA: Final = 2  # of no request: all that the log has
# Nobody takes over from a leader that is merely silent before its session has ended, after 4 s at
# the least (two ticks of ZooKeeper). Followers ask more often than that.
CONFIRMED_MS: Final = 2_000
FETCH_WAIT_MS_MAX: Final = CONFIRMED_MS // 2  # whatever replica.fetch.wait.max.ms allows


class Change(NamedTuple):
    """What a step of the replication has changed."""

    has_advanced: bool  # the high watermark, so that more counts than before
    effects: tuple[object, ...] = ()  # questions to the controller


NO_CHANGE: Final = Change(False)


class Watcher(Protocol):
    """A reader that reads a partition again only after a change."""

    def changed(self, partition: Partition, byte_count: int) -> bool:
        """`partition` has changed, and has `byte_count` bytes more to read. True to be called for
        the next change too."""


class FollowerWatcher(Watcher, Protocol):
    """A follower that waits for more at the log's end."""

    @property
    def replica_id(self) -> int:
        """The follower's broker."""

    @property
    def fetched_ms(self) -> int:
        """When it last asked for records, monotonic."""

    @property
    def confirmed_ms(self) -> int:
        """When it asked for them at the earliest."""

    def still_asks(self, partition: Partition) -> bool:
        """Whether it asks for this partition, and not for others alone."""


@dataclass(slots=True, eq=False)
class Partition:
    """The broker's state of one partition that it holds."""

    topic_partition: TopicPartition
    log: PartitionLog
    replication: PartitionReplication
    watchers: dict[Watcher, None] = field(default_factory=dict)  # in the order of their looks
    followers: dict[FollowerWatcher, None] = field(default_factory=dict)  # they see all of it
    fresh: MemoryRecords | None = None  # the last append, until the readers it woke have read it

    def __post_init__(self) -> None:
        self.log.health.on_change = self.changed

    def changed(self, byte_count: int = 0) -> None:
        """Calls all watchers: the log begins elsewhere, has failed, or is led by another."""
        self.counts(byte_count)
        self.grew(byte_count)

    def counts(self, byte_count: int) -> None:
        """Calls the watchers: `byte_count` bytes more can be read by consumers."""
        self.fresh = None
        if self.watchers:
            done = [each for each in self.watchers if not each.changed(self, byte_count)]
            for each in done:
                del self.watchers[each]

    def grew(self, byte_count: int) -> None:
        """Calls the followers: the log is `byte_count` bytes longer, whether these count or not."""
        called = [each for each in self.followers if not each.changed(self, byte_count)]
        for follower in called:
            del self.followers[follower]

    def reopened(self, log: PartitionLog, replication: PartitionReplication) -> None:
        """Goes on with another log, as the disk has it; a `replay` follows."""
        self.log, self.replication = log, replication
        log.health.on_change = self.changed

    def validated(
        self, records: Buffer, acks: int, now_ms: int, allowance: Allowance | None = None
    ) -> Validated:
        """A producer's batch as `append` or, at once, `append_validated` will store it. ApiError
        says why it will not be stored, RecordsTooLarge that it needs more than the `allowance`."""
        config = self.log.config
        self.replication.check_produce(acks, config.min_insync_replicas)
        return validated(
            records, config, self.topic_partition, now_ms, from_client=True, allowance=allowance
        )

    def append(
        self, records: Batch, acks: int, now_ms: int, *, from_client: bool = True
    ) -> Appended:
        """Appends one batch as the leader. ApiError says why it was not stored."""
        self.replication.check_produce(acks, self.log.config.min_insync_replicas)
        return self.append_validated(records, now_ms, from_client=from_client)

    def append_validated(
        self, records: Batch, now_ms: int, *, from_client: bool = True
    ) -> Appended:
        """Appends one batch as the leader, as long as what `validated` has checked still holds."""
        replication, log = self.replication, self.log
        appended = log.append_as_leader(
            records, replication.leader_epoch, now_ms, from_client=from_client
        )
        leader = replication.leader
        assert leader is not None, f"{self.topic_partition}: not led here"
        if leader.appended(log.acknowledged_end):
            log.high_watermark = leader.high_watermark
        return appended

    # -- replication

    def why_unsafe(self, leader_epoch: int) -> ApiError | None:
        """Why a record of `leader_epoch` must not be acknowledged, though the high watermark has
        passed its offset; None if it may be."""
        replication = self.replication
        if replication.is_alone and replication.leader_epoch == leader_epoch:
            return None  # as always on one node
        try:
            replication.check_led_in(leader_epoch)
            replication.check_in_sync(
                self.log.config.min_insync_replicas, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            )
        except ApiError as error:
            return error
        return None

    def advance(self) -> bool:
        """The log was flushed, so more of it may be committed. True if the high watermark moved."""
        if self.replication.leader is None:
            return False
        self.replication.leader.appended(self.log.acknowledged_end)
        return self._settled().has_advanced

    def replay(self, image: PartitionImage, now_ms: int) -> Change:
        """Takes a new image of the partition."""
        log = self.log
        ends = LogEnds(log.high_watermark, log.log_end_offset, log.acknowledged_end)
        outcome = self.replication.replay(image, ends, now_ms)
        if outcome is None:
            return NO_CHANGE
        change = self._settled(outcome)
        self.changed()
        return change

    def check_lineage(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """Where the log of a reader that has fetched up to `offset`, the last of it written in
        `last_fetched_epoch`, parts from this one: the largest common epoch that this log can name,
        and where it ends here. None while all of it is here. ApiError if the epoch is not known."""
        if last_fetched_epoch == NO_EPOCH:
            return None
        epoch, end = self.log.end_offset_for_epoch(
            last_fetched_epoch, self.replication.leader_epoch
        )
        if end == NO_OFFSET:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: nothing is known of leader epoch {last_fetched_epoch}",
            )
        return (epoch, end) if epoch < last_fetched_epoch or end < offset else None

    def has_no_more_than(self, leader_epoch: int, last_fetched_epoch: int, offset: int) -> bool:
        """Whether a follower that asks for records from `offset` on has all of this log, and this
        broker leads in its `leader_epoch`. If not, `check_lineage` and `read` tell what it gets."""
        replication, log = self.replication, self.log
        if replication.leader is None or replication.leader_epoch != leader_epoch:
            return False
        has_all = log.log_end_offset == offset and log.epochs.latest == last_fetched_epoch
        return has_all and log.health.failure is None

    def fetched(self, fetch: FollowerFetch, now_ms: int) -> Change:
        """A follower fetches, whose log is a part of this one. ApiError if it has no replica."""
        leader, log = self.replication.led(), self.log
        if not log.log_start_offset <= fetch.fetch_offset <= log.log_end_offset:
            return NO_CHANGE  # and refused by `read`
        return self._settled(leader.fetched(fetch, now_ms))

    def tick(self, now_ms: int, eligible: Mapping[int, int]) -> Change:
        """Looks for followers that lag; `eligible` are the brokers that may be in sync, with their
        epochs."""
        leader = self.replication.leader
        if leader is None or not leader.followers:
            return NO_CHANGE
        for each in self.followers:
            if each.still_asks(self):
                leader.still_fetches(each.replica_id, each.fetched_ms)
        return self._settled(leader.tick(now_ms, eligible))

    def altered(self, asked: AlterPartition, answer: Altered | ErrorCode, now_ms: int) -> Change:
        """The controller has answered what a change's effect asked."""
        leader = self.replication.leader
        if leader is None or asked.leader_epoch != leader.leader_epoch:
            return NO_CHANGE
        leader.in_sync_min = self.log.config.min_insync_replicas
        change = self._settled(leader.altered(asked, answer, now_ms))
        self.replication.partition_epoch = leader.partition_epoch
        return change

    def is_confirmed(self, now_ms: int, *, by_all: bool) -> bool:
        """Whether replicas confirm that this broker still led CONFIRMED_MS ago: it may have been
        paused or cut off, and not know its successor yet. `by_all` as in `Leader.is_confirmed`."""
        leader = self.replication.leader
        if leader is None or self.replication.is_alone:
            return leader is not None
        for each in self.followers:
            if each.still_asks(self):
                leader.still_confirms(each.replica_id, each.confirmed_ms)
        return leader.is_confirmed(now_ms - CONFIRMED_MS, by_all=by_all)

    def wanted(self, now_ms: int) -> Position | None:
        """What this follower is to ask its leader for; None: nothing, or not yet."""
        follower = self.replication.follower
        if follower is None or self.log.failure is not None:
            return None
        return follower.wanted(self.log, now_ms)

    def answered(self, asked: Position, answer: LeaderAnswer, logs: LogStore, now: Now) -> Followed:
        """The leader has answered: the log gets its records, or is cut. An answer to an earlier
        position changes nothing. After a failure the follower's `why` has the reason."""
        follower = self.replication.follower
        if follower is None or self.log.failure is not None:
            return Followed()
        outcome = follower.answered(asked, answer, self.log, now.monotonic_ms)
        return carry_out(follower, outcome.effects, self.log, logs, now)

    def append_next(self, asked: Position, news: News, now_ms: int) -> bool:
        """`answered`, of the one batch that comes next: it is appended. False, and nothing has
        changed, if the leader's `news` are anything else or the disk refuses them."""
        follower, log = self.replication.follower, self.log
        if follower is None or not follower.merely_appends(asked, log):
            return False
        return log.append_next(news.records, now_ms)

    def _settled(self, outcome: Outcome[Any] = NOTHING) -> Change:
        """The log's high watermark follows the leader's."""
        leader, log = self.replication.leader, self.log
        if leader is None or leader.high_watermark <= log.high_watermark:
            return Change(False, outcome.effects) if outcome.effects else NO_CHANGE
        log.high_watermark = leader.high_watermark
        self.grew(0)  # followers are told the high watermark, though nothing may be appended
        return Change(True, outcome.effects)

    # -- readers

    def read(
        self,
        offset: int,
        bytes_max: int,
        isolation_level: int = READ_UNCOMMITTED,
        current_leader_epoch: int = NO_EPOCH,
        *,
        may_wait: bool = False,
        only_leader: bool = True,
    ) -> FileRecords | MemoryRecords | None:
        """Whole batches from the one that holds `offset` on, of what the reader may see. A follower
        gives them, too, unless `only_leader`.

        The first batch comes even if it is larger than `bytes_max`; None if there is none.
        ColdRead where the place in an older segment is on the disk alone, unless this `may_wait`.
        """
        if current_leader_epoch != NO_EPOCH or self.replication.role is not Role.LEADER:
            self.replication.check_reader(current_leader_epoch, only_leader=only_leader)
        end, fresh = self.end(isolation_level), self.fresh
        if fresh is not None and fresh.base_offset == offset and fresh.before_offset == end:
            return fresh  # all that there is to read, and nothing has changed since
        log = self.log
        if may_wait or offset >= log.segments[-1].base_offset:
            return log.read(offset, bytes_max, end)
        with cached_only():
            return log.read(offset, bytes_max, end)

    def aborted_transactions(
        self, offset: int, before_offset: int, *, may_wait: bool = False
    ) -> list[AbortedTransaction]:
        """The aborted transactions with records in [offset, before_offset), by their markers.

        ColdRead where an index of them is on the disk alone, unless this `may_wait`.
        """
        active = self.log.segments[-1]
        if offset >= active.base_offset and active.transaction_index.is_empty:
            return []
        if may_wait:
            return self.log.aborted_transactions(offset, before_offset)
        with cached_only():
            return self.log.aborted_transactions(offset, before_offset)

    def end(self, isolation_level: int) -> int:
        """The first offset that such a reader may not see yet."""
        log = self.log
        if isolation_level == READ_COMMITTED:
            return log.last_stable_offset
        return log.log_end_offset if isolation_level == READ_AS_REPLICA else log.high_watermark
