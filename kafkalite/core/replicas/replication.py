"""One partition's replication as this broker sees it: its role, and the machine of the role.  [P]

    OFFLINE ──image──> LEADER:   `leader` says what is committed and who is in sync
                └────> FOLLOWER: `follower` says what to fetch and what to cut

Owns   role, leader_epoch; the machine of this role and epoch, which goes with either.
Never  touches the log: the caller reports the log end offset after each append.
Fails  with ApiError: NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
       INVALID_REQUIRED_ACKS, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND.
Source KIP-101, KIP-320 (epochs); apache/kafka `Partition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from kafkalite.core.cluster.image import NO_LEADER, PartitionImage
from kafkalite.core.replicas.follower import Follower
from kafkalite.core.replicas.leader import LONG_AGO_MS, Leader
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, NOTHING, Outcome, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
ACKS: Final = frozenset({ACKS_NONE, ACKS_LEADER, ACKS_ALL})


class Role(Enum):
    """This broker's role for the partition."""

    OFFLINE = "no image of the partition has arrived yet"
    FOLLOWER = "another broker leads, or none does"
    LEADER = "takes produce requests and decides what is committed"


LEGAL: Final[Mapping[Role, frozenset[Role]]] = {
    Role.OFFLINE: frozenset({Role.FOLLOWER, Role.LEADER}),
    Role.FOLLOWER: frozenset({Role.LEADER}),
    Role.LEADER: frozenset({Role.FOLLOWER}),
}


class LogEnds(NamedTuple):
    """How far this broker's own log reaches."""

    high_watermark: int
    log_end_offset: int
    acknowledged_end: int  # the end of the records that are safe here


@dataclass(slots=True)
class PartitionReplication:
    """The replication state of one partition on the broker `node_id`."""

    topic_partition: TopicPartition
    node_id: int
    lag_time_max_ms: int = 30_000
    role: Role = Role.OFFLINE
    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = -1
    replica_count: int = 0
    is_alone: bool = False  # the leader, and the only replica: what it has is committed
    leader: Leader | None = None
    follower: Follower | None = None

    def replay(self, image: PartitionImage, ends: LogEnds, now_ms: int) -> Outcome[Any] | None:
        """Takes a new image of the partition: what the leader asks for then; None, and nothing is
        done, if it is older than the known one."""
        if image.leader_epoch < self.leader_epoch:
            return None
        is_new_epoch = image.leader_epoch > self.leader_epoch
        if not is_new_epoch and image.epoch < self.partition_epoch:
            return None
        self._become(Role.LEADER if image.leader == self.node_id else Role.FOLLOWER)
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        self.partition_epoch = image.epoch
        self.replica_count = len(image.replicas)
        if self.role is not Role.LEADER:
            self.leader, self.is_alone = None, False
            self.follower = self.follower or Follower(self.topic_partition)
            self.follower.follow(image.leader, image.leader_epoch)
            return NOTHING
        self.follower = None
        leader = None if is_new_epoch else self.leader
        if leader is None:
            leader = self.leader = Leader(
                self.topic_partition,
                self.node_id,
                image.leader_epoch,
                epoch_start_offset=ends.log_end_offset,
                high_watermark=ends.high_watermark,
                log_end_offset=ends.acknowledged_end,
                lag_time_max_ms=self.lag_time_max_ms,
                began_ms=now_ms,
            )
        leader.log_end_offset = ends.acknowledged_end
        outcome = leader.replay(image, now_ms)
        self.is_alone = image.replicas == (self.node_id,) == image.in_sync_replicas
        return outcome

    @property
    def in_sync_replicas(self) -> frozenset[int]:
        """The in-sync set in force, as the leader knows it; empty elsewhere."""
        return frozenset() if self.leader is None else self.leader.in_sync_replicas

    @property
    def high_watermark(self) -> int:
        """Below it records are committed, as the leader knows; -1 elsewhere."""
        return -1 if self.leader is None else self.leader.high_watermark

    @property
    def led_from(self) -> int:
        """The log's end when this broker took over from another leader; NO_OFFSET if it did not."""
        leader = self._successor()
        return NO_OFFSET if leader is None else leader.epoch_start_offset

    @property
    def led_since_ms(self) -> int:
        """When this broker took over from another leader; long ago if it did not."""
        leader = self._successor()
        return LONG_AGO_MS if leader is None else leader.began_ms

    def _successor(self) -> Leader | None:
        """The leader's machine, if another broker may have led before."""
        return None if self.is_alone or self.leader_epoch == 0 else self.leader

    def led(self) -> Leader:
        """The leader's machine. ApiError NOT_LEADER_OR_FOLLOWER."""
        if self.leader is None:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.topic_partition}: broker {self.node_id} does not lead it",
            )
        return self.leader

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Refuses a request unless this broker leads, in the epoch that the peer knows."""
        self.check_epoch(current_leader_epoch)
        self.led()

    def check_reader(self, current_leader_epoch: int, *, only_leader: bool) -> None:
        """The same of a reader, who may be content with a follower."""
        self.check_epoch(current_leader_epoch)
        if only_leader or self.follower is None:
            self.led()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuses a request of a peer that knows another leader epoch than this broker."""
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != self.leader_epoch:
            is_older = current_leader_epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise ApiError(
                code,
                f"{self.topic_partition}: leader epoch {current_leader_epoch}, "
                f"ours is {self.leader_epoch}",
            )

    @property
    def is_end_unknown(self) -> bool:
        """Whether the leader has not heard yet how much of its predecessors' records is committed:
        its high watermark may be below one that clients have seen."""
        leader = self.leader
        if leader is None or self.is_alone:
            return False
        return leader.high_watermark < leader.epoch_start_offset

    def check_led_in(self, leader_epoch: int) -> None:
        """Refuses to speak for records of a leader epoch that is over: they may be cut elsewhere,
        and others have their offsets. ApiError NOT_LEADER_OR_FOLLOWER."""
        self.led()
        if leader_epoch != self.leader_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.topic_partition}: appended in leader epoch {leader_epoch}, "
                f"ours is {self.leader_epoch}",
            )

    def check_produce(self, acks: int, min_insync_replicas: int) -> None:
        """Refuses an append whose `acks` the replicas cannot fulfil."""
        if acks not in ACKS:
            raise ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"{self.topic_partition}: acks {acks}, expected -1, 0 or 1",
            )
        if self.is_alone:
            return
        self.led()
        if acks == ACKS_ALL:
            self.check_in_sync(min_insync_replicas, ErrorCode.NOT_ENOUGH_REPLICAS)

    def check_in_sync(self, min_insync_replicas: int, code: ErrorCode) -> None:
        """Refuses, with `code`, to call a record safe while too few replicas are in sync.

        A partition with fewer replicas than `min_insync_replicas` needs all of them.
        """
        in_sync = len(self.in_sync_replicas)
        if in_sync < min(min_insync_replicas, self.replica_count):
            raise ApiError(
                code,
                f"{self.topic_partition}: {in_sync} in sync, "
                f"min.insync.replicas is {min_insync_replicas}",
            )

    def appended(self, log_end_offset: int) -> bool:
        """Notes the end of the leader's own log; True if the high watermark moved."""
        assert self.leader is not None, f"{self.topic_partition}: {self.role.name}"
        return self.leader.appended(log_end_offset)

    def _become(self, role: Role) -> None:
        step = f"{self.topic_partition}: {self.role.name} -> {role.name}"
        assert role is self.role or role in LEGAL[self.role], step
        self.role = role
