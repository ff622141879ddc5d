"""The next state of partitions: who leads, who is in sync, how far a reassignment is.       [P]

Every step that touches partitions says which state it wants, and `next_state` makes it sound:

    1  a reassignment whose target replicas are all in sync is complete; the removed ones are gone
    2  a leader is elected, if the wanted one cannot lead: the first replica in order that is in
       sync and active; without any, and only where records may be lost, the first active replica.
       A replica whose log has failed is none of these; it leads on if nobody else can
    3  leader epoch + 1 if the leader is another, or was lost in between, or a replica is gone
    4  partition epoch + 1 if anything is another

Owns   the rules of elections, and the partitions that one step has changed so far.
Never  empties an in-sync set: the last members stay, though they are dead, as their logs count.
Source KIP-455, KIP-704; apache/kafka `PartitionChangeBuilder`, `PartitionReassignmentReplicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import (
    NO_LEADER,
    ClusterImage,
    ClusterRecord,
    LeaderRecoveryState,
    PartitionImage,
    TopicImage,
)
from kafkalite.core.types import TopicPartition


class Election(Enum):
    """How a leader is found."""

    ONLINE = "the present leader if it can lead, else the first replica in sync that can"
    PREFERRED = "the first replica if it is in sync and can lead, else as ONLINE"
    UNCLEAN = "as ONLINE, else the first active replica, whatever its log lacks"


@dataclass(frozen=True, slots=True)
class LiveBrokers:
    """The brokers that are registered, and those of them that are not in controlled shutdown."""

    registered: frozenset[int]
    active: frozenset[int]

    @classmethod
    def of(cls, image: ClusterImage) -> LiveBrokers:
        """The live brokers of an image."""
        active = (n for n, broker in image.brokers.items() if not broker.in_controlled_shutdown)
        return cls(frozenset(image.brokers), frozenset(active))

    def with_broker(self, node_id: int) -> LiveBrokers:
        """These and a broker that has just registered."""
        return LiveBrokers(self.registered | {node_id}, self.active | {node_id})

    def without(self, node_id: int) -> LiveBrokers:
        """These without a broker that is gone."""
        return LiveBrokers(self.registered - {node_id}, self.active - {node_id})

    def saying_goodbye(self, node_id: int) -> LiveBrokers:
        """These, one of them in controlled shutdown."""
        return LiveBrokers(self.registered, self.active - {node_id})


def next_state(
    before: PartitionImage,
    wanted: PartitionImage,
    live: LiveBrokers,
    election: Election = Election.ONLINE,
    *,
    in_sync_min: int = 1,
    lost: frozenset[int] = frozenset(),
) -> PartitionImage:
    """The partition once it is as `wanted` as it can be; `before` itself if nothing changes.

    `wanted` without a leader, where `before` has one, means that the leader was lost, even if the
    same broker is elected again: it may have come back with less than it had. `in_sync_min` is
    min.insync.replicas; `lost` are brokers that may lack what was committed.
    """
    after = _completed(wanted)
    if after.failed_replicas:
        kept = tuple(node for node in after.failed_replicas if node in after.replicas)
        after = replace(after, failed_replicas=kept)
    leader, is_clean = _elect(after, live, election)
    is_another = leader != before.leader or leader != wanted.leader
    has_lost_replicas = not set(before.replicas) <= set(after.replicas)
    after = replace(
        after,
        leader=leader,
        leader_epoch=before.leader_epoch + (is_another or has_lost_replicas),
        epoch=before.epoch,
    )
    if not is_clean:
        recovering = LeaderRecoveryState.RECOVERING
        after = replace(after, in_sync_replicas=(leader,), leader_recovery_state=recovering)
    if before.eligible_leader_replicas or len(after.in_sync_replicas) < in_sync_min:
        eligible = _eligible(before, after, in_sync_min, lost) if is_clean else ()
        after = replace(after, eligible_leader_replicas=eligible)
    assert after.in_sync_replicas, after
    return before if after == before else replace(after, epoch=before.epoch + 1)


def _eligible(
    before: PartitionImage, after: PartitionImage, in_sync_min: int, lost: frozenset[int]
) -> tuple[int, ...]:
    """The replicas outside the in-sync set that have all that is committed, though their brokers
    may be away, or their disks full. As long as there are any, the leader commits nothing more."""
    members = after.in_sync_replicas
    if len(members) >= min(in_sync_min, len(after.replicas)):
        return ()
    holders = {*before.in_sync_replicas, *before.eligible_leader_replicas}
    without = {*members, *lost}
    return tuple(node for node in after.replicas if node in holders and node not in without)


def _completed(wanted: PartitionImage) -> PartitionImage:
    """The partition with its reassignment done, if all target replicas are in sync."""
    if not wanted.is_moving:
        return wanted
    going = set(wanted.removing_replicas)
    target = tuple(node for node in wanted.replicas if node not in going)
    in_sync = tuple(node for node in wanted.in_sync_replicas if node not in going)
    if not set(target) <= set(in_sync):
        return wanted
    return replace(
        wanted,
        replicas=target,
        in_sync_replicas=in_sync,
        adding_replicas=(),
        removing_replicas=(),
    )


def _elect(partition: PartitionImage, live: LiveBrokers, election: Election) -> tuple[int, bool]:
    """The leader, and whether it was in sync."""
    failed = partition.failed_replicas
    able = [node for node in partition.replicas if node in live.active and node not in failed]
    candidates = [node for node in able if node in partition.in_sync_replicas]
    leader = partition.leader
    if election is Election.PREFERRED and partition.replicas[0] in candidates:
        return partition.replicas[0], True
    if leader in candidates:
        return leader, True
    if candidates:
        return candidates[0], True
    # It shuts down, or its log has failed, and nobody can lead in its place yet.
    stays = leader in partition.in_sync_replicas and leader in live.registered
    if stays and leader not in failed:
        return leader, True
    if election is Election.UNCLEAN and able:
        return able[0], False
    return (leader, True) if stays else (NO_LEADER, True)


@dataclass(slots=True)
class PartitionChanges:
    """The partitions that one step changes. `may_lose_records`: whether a topic may have a leader
    that was not in sync (unclean.leader.election.enable); `in_sync_min`: its min.insync.replicas.
    """

    image: ClusterImage
    live: LiveBrokers
    may_lose_records: Callable[[TopicImage], bool]
    in_sync_min: Callable[[TopicImage], int]
    _changed: dict[TopicPartition, PartitionImage] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._changed)

    def get(self, topic: str, index: int) -> PartitionImage | None:
        """A partition as this step leaves it so far; None if there is no such."""
        changed = self._changed.get(TopicPartition(topic, index))
        return self.image.partition(topic, index) if changed is None else changed

    def every(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """All partitions as they were before the step."""
        for topic in self.image.topics.values():
            for index, partition in enumerate(topic.partitions):
                yield topic, index, partition

    def change(
        self,
        topic: str,
        index: int,
        wanted: PartitionImage,
        election: Election = Election.ONLINE,
        *,
        lost: frozenset[int] = frozenset(),
    ) -> PartitionImage:
        """Makes the partition as `wanted` as it can be. A partition without a leader gets one that
        was not in sync where its topic allows it. `lost`: brokers that may lack what was committed.
        """
        known = self.image.topics[topic]
        before = known.partitions[index]
        state = partial(
            next_state, before, wanted, self.live,
            in_sync_min=self.in_sync_min(known), lost=lost,
        )  # fmt: skip
        after = state(election)
        is_led = after.leader != NO_LEADER and after.leader not in after.failed_replicas
        if not is_led and election is not Election.UNCLEAN:
            unclean = state(Election.UNCLEAN)
            if unclean != after and self.may_lose_records(known):
                after = unclean
        where = TopicPartition(topic, index)
        if after is before:
            self._changed.pop(where, None)
        else:
            self._changed[where] = after
        return after

    def records(self) -> tuple[ClusterRecord, ...]:
        """The records of the changed partitions."""
        return tuple(
            images.partition_record(topic, index, partition)
            for (topic, index), partition in self._changed.items()
        )
