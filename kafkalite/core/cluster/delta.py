"""What changes for one broker between two images: partitions to lead, follow, stop, delete. [P]

    lead     this broker is the leader
    follow   another broker is: this one fetches from it
    stop     nobody leads: the broker keeps its log, and waits
    delete   the broker holds no replica any more, or the topic is gone: its log goes

The first three name each partition whose state differs in any way, with all its epochs; a broker
that knows a newer leader epoch ignores an older one. A topic that was deleted and created again
under its name is two topics: the log of the first is deleted.

Owns   nothing. Topics and partitions that are the same objects in both images cost next to nothing.
Source apache/kafka `TopicsDelta.localChanges`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kafkalite.core.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from kafkalite.core.types import TopicPartition


class LocalPartition(NamedTuple):
    """A partition that has, or had, a replica on this broker."""

    topic_partition: TopicPartition
    topic_id: UUID
    image: PartitionImage  # the new state; the last one, if the partition is to be deleted


@dataclass(slots=True)
class LocalDelta:
    """The changes for one broker."""

    lead: list[LocalPartition] = field(default_factory=list)
    follow: list[LocalPartition] = field(default_factory=list)
    stop: list[LocalPartition] = field(default_factory=list)
    delete: list[LocalPartition] = field(default_factory=list)
    configured: list[str] = field(default_factory=list)  # topics held here with other settings

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes for this broker."""
        return not (self.lead or self.follow or self.stop or self.delete or self.configured)


def local_delta(node_id: int, before: ClusterImage, after: ClusterImage) -> LocalDelta:
    """What becomes of the partitions on the broker `node_id`."""
    delta = LocalDelta()
    for name, old in before.topics.items():
        new = after.topics.get(name)
        if new is not old and (new is None or new.topic_id != old.topic_id):
            _compare(node_id, old, old.partitions, (), delta)
    for name, new in after.topics.items():
        known = before.topics.get(name)
        if known is new:
            continue
        if known is None or known.topic_id != new.topic_id:
            _compare(node_id, new, (), new.partitions, delta)
            continue
        _compare(node_id, new, known.partitions, new.partitions, delta)
        is_held = any(node_id in partition.replicas for partition in new.partitions)
        if known.configs != new.configs and is_held:
            delta.configured.append(name)
    return delta


def _compare(
    node_id: int,
    topic: TopicImage,
    before: Sequence[PartitionImage],
    after: Sequence[PartitionImage],
    delta: LocalDelta,
) -> None:
    for index in range(max(len(before), len(after))):
        old = before[index] if index < len(before) else None
        new = after[index] if index < len(after) else None
        if old is new or old == new:
            continue
        if new is not None and node_id in new.replicas:
            place = _place(node_id, new, delta)
            place.append(LocalPartition(TopicPartition(topic.name, index), topic.topic_id, new))
        elif old is not None and node_id in old.replicas:
            where = TopicPartition(topic.name, index)
            delta.delete.append(LocalPartition(where, topic.topic_id, old))


def _place(node_id: int, partition: PartitionImage, delta: LocalDelta) -> list[LocalPartition]:
    if partition.leader == node_id:
        return delta.lead
    return delta.stop if partition.leader == NO_LEADER else delta.follow
