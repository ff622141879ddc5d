"""One partition's replication as this broker sees it: the leader, the high watermark.       [P]

A leader commits a record once every in-sync replica has it: the high watermark is the smallest
log end offset among them, and never falls while the leader stays. With one broker the in-sync
set is the leader alone, and the high watermark is the end of its log.

Owns   role, leader_epoch, in_sync_replicas, high_watermark.
Never  touches the log: the caller reports the log end offset after each append.
Fails  with ApiError: NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
       INVALID_REQUIRED_ACKS, NOT_ENOUGH_REPLICAS.
Source KIP-101, KIP-320 (epochs); apache/kafka `Partition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, TopicPartition
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


@dataclass(slots=True)
class PartitionReplication:
    """The replication state of one partition on the broker `node_id`."""

    topic_partition: TopicPartition
    node_id: int
    role: Role = Role.OFFLINE
    leader_epoch: int = NO_EPOCH
    replica_count: int = 0
    in_sync_replicas: frozenset[int] = frozenset()
    high_watermark: int = 0
    log_end_offsets: dict[int, int] = field(default_factory=dict)  # of the leader and followers

    def replay(self, image: PartitionImage, log_end_offset: int) -> bool:
        """Takes a new image of the partition; False if it is older than the known one.

        `log_end_offset` is this broker's own. A broker that becomes leader learns its followers'
        offsets from their fetches.
        """
        if image.leader_epoch < self.leader_epoch:
            return False
        if image.leader_epoch > self.leader_epoch:
            self.log_end_offsets = {}
        self.leader_epoch = image.leader_epoch
        self._become(Role.LEADER if image.leader == self.node_id else Role.FOLLOWER)
        self.replica_count = len(image.replicas)
        self.in_sync_replicas = frozenset(image.in_sync_replicas)
        if self.role is Role.LEADER:
            self.appended(log_end_offset)
        return True

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Refuses a request unless this broker leads, in the epoch that the peer knows."""
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != self.leader_epoch:
            is_older = current_leader_epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise ApiError(
                code,
                f"{self.topic_partition}: leader epoch {current_leader_epoch}, "
                f"ours is {self.leader_epoch}",
            )
        if self.role is not Role.LEADER:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.topic_partition}: broker {self.node_id} does not lead it",
            )

    def check_produce(self, acks: int, min_insync_replicas: int) -> None:
        """Refuses an append whose `acks` the replicas cannot fulfil.

        A partition with fewer replicas than `min_insync_replicas` needs all of them.
        """
        if acks not in ACKS:
            raise ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"{self.topic_partition}: acks {acks}, expected -1, 0 or 1",
            )
        if self.role is not Role.LEADER:
            self.check_leader()
        needed = min(min_insync_replicas, self.replica_count)
        if acks == ACKS_ALL and len(self.in_sync_replicas) < needed:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition}: {len(self.in_sync_replicas)} in sync, "
                f"min.insync.replicas is {min_insync_replicas}",
            )

    def appended(self, log_end_offset: int) -> bool:
        """Notes the end of the leader's own log; True if the high watermark moved."""
        return self.replicated(self.node_id, log_end_offset)

    def replicated(self, node_id: int, log_end_offset: int) -> bool:
        """Notes how far a replica's log reaches; True if the high watermark moved."""
        assert self.role is Role.LEADER, f"{self.topic_partition}: {self.role.name}"
        ends = self.log_end_offsets
        ends[node_id] = log_end_offset
        if len(self.in_sync_replicas) == 1 and node_id in self.in_sync_replicas:
            committed = log_end_offset  # as on every append of a cluster of one broker
        else:
            replicas = self.in_sync_replicas
            committed = min((ends.get(node, NO_OFFSET) for node in replicas), default=-1)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _become(self, role: Role) -> None:
        step = f"{self.topic_partition}: {self.role.name} -> {role.name}"
        assert role is self.role or role in LEGAL[self.role], step
        self.role = role
