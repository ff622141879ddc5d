"""One partition on this broker: its log, and how far consumers may read it.                 [D]

    read ──> the reader watches ──changed──> called once, and reads again when it needs to

Owns   the high watermark's way from replication to the log; the readers that watch for changes of
       what they read: records, high watermark, start of the log, leader, failure.
Fails  with ApiError if this broker does not lead the partition, or if the log refuses a batch.
Source apache/kafka `Partition`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.segment import FileRecords
from kafkalite.core.log.uncached import cached_only
from kafkalite.core.log.validation import Batch, Validated, validated
from kafkalite.core.log.values import AbortedTransaction, Appended, MemoryRecords
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.records import Allowance
from kafkalite.core.replicas.replication import PartitionReplication, Role
from kafkalite.core.types import NO_EPOCH, TopicPartition

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


class Watcher(Protocol):
    """A reader that reads a partition again only after a change."""

    def changed(self, partition: Partition, byte_count: int) -> bool:
        """`partition` has changed, and has `byte_count` bytes more to read. True to be called for
        the next change too."""


@dataclass(slots=True, eq=False)
class Partition:
    """The broker's state of one partition that it holds."""

    topic_partition: TopicPartition
    log: PartitionLog
    replication: PartitionReplication
    watchers: dict[Watcher, None] = field(default_factory=dict)  # in the order of their looks
    fresh: MemoryRecords | None = None  # the last append, until the readers it woke have read it

    def __post_init__(self) -> None:
        self.log.health.on_change = self.changed

    def changed(self, byte_count: int = 0) -> None:
        """Calls the watchers. The broker does so for an append, with its bytes; this and the log do
        it for all other changes."""
        self.fresh = None
        if self.watchers:
            done = [each for each in self.watchers if not each.changed(self, byte_count)]
            for each in done:
                del self.watchers[each]

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
        """The same, where nothing has changed since `validated` asked whether it may be done."""
        replication, log = self.replication, self.log
        appended = log.append_as_leader(
            records, replication.leader_epoch, now_ms, from_client=from_client
        )
        if replication.replicated(replication.node_id, log.acknowledged_end):
            log.high_watermark = replication.high_watermark
        return appended

    def advance(self) -> None:
        """More of the log counts than before: it was flushed."""
        if self.replication.appended(self.log.acknowledged_end):
            self.log.high_watermark = self.replication.high_watermark

    def replay(self, image: PartitionImage) -> None:
        """Takes a new image of the partition."""
        self.replication.replay(image, self.log.acknowledged_end)
        self.log.high_watermark = self.replication.high_watermark
        self.changed()

    def read(
        self,
        offset: int,
        bytes_max: int,
        isolation_level: int = READ_UNCOMMITTED,
        current_leader_epoch: int = NO_EPOCH,
        *,
        may_wait: bool = False,
    ) -> FileRecords | MemoryRecords | None:
        """Whole batches from the one that holds `offset` on, of what the reader may see.

        The first batch comes even if it is larger than `bytes_max`; None if there is none.
        ColdRead where the place in an older segment is on the disk alone, unless this `may_wait`.
        """
        if current_leader_epoch != NO_EPOCH or self.replication.role is not Role.LEADER:
            self.replication.check_leader(current_leader_epoch)
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
        if may_wait:
            return self.log.aborted_transactions(offset, before_offset)
        with cached_only():
            return self.log.aborted_transactions(offset, before_offset)

    def end(self, isolation_level: int) -> int:
        """The first offset that a consumer may not see yet."""
        log = self.log
        if isolation_level == READ_COMMITTED:
            return log.last_stable_offset
        return log.high_watermark
