"""A client's picture of the cluster: brokers, topics, and the leader of each partition.    [P]

A `Cluster` is a value; `merge` folds an answer into it. An answer may come from a broker that
lags behind, so a partition's leader is taken only if its leader epoch is not older than the
known epoch, unless the topic was created again (another topic id).

Owns   nothing; the client keeps the current value.
Source KIP-320 (leader epochs in metadata), KIP-516 (topic ids); apache/kafka `MetadataCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from kafkalite.core.protocol.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkalite.core.protocol.primitives import ZERO_UUID
from kafkalite.core.types import NO_EPOCH, Node, TopicPartition
from kafkalite.errors import ErrorCode

NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as the cluster describes it. `leader_id` is −1 while there is none."""

    partition: int
    leader_id: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic: `partitions[i]` is partition i, and there is one at least."""

    name: str
    partitions: tuple[PartitionInfo, ...]
    topic_id: UUID | None = None
    is_internal: bool = False

    @property
    def partition_count(self) -> int:
        """How many partitions the topic has."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class Cluster:
    """All a client knows. `errors` holds the topics that the last answer refused, with the code."""

    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    errors: Mapping[str, ErrorCode] = field(default_factory=dict)
    controller_id: int = NO_LEADER
    cluster_id: str | None = None

    def partition(self, topic_partition: TopicPartition) -> PartitionInfo | None:
        """The metadata of one partition."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def leader_id(self, topic_partition: TopicPartition) -> int | None:
        """The node that leads a partition, if it is known and its address is too."""
        known = self.partition(topic_partition)
        return known.leader_id if known is not None and known.leader_id in self.nodes else None

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """The known leader epoch of a partition, −1 if none."""
        known = self.partition(topic_partition)
        return NO_EPOCH if known is None else known.leader_epoch

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 if the topic is unknown."""
        known = self.topics.get(topic)
        return 0 if known is None else len(known.partitions)

    def partitions_of(self, topics: Iterable[str]) -> dict[str, int]:
        """Partition counts of those of `topics` that exist, as an assignor wants them."""
        return {name: len(self.topics[name].partitions) for name in topics if name in self.topics}


def merge(cluster: Cluster, response: MetadataResponse, *, all_topics: bool) -> Cluster:
    """`cluster` with one more answer folded in.

    The answer's topics replace the known ones; with `all_topics` every other topic is forgotten.
    A topic answered with an error that says it does not exist is forgotten too, any other error
    keeps the known state. A topic answered without partitions has no leader yet.
    """
    topics: dict[str, TopicInfo] = {} if all_topics else dict(cluster.topics)
    errors: dict[str, ErrorCode] = {} if all_topics else dict(cluster.errors)
    for answer in response.topics:
        name = answer.name
        if name is None:
            continue
        errors.pop(name, None)
        topic = _newer_topic(cluster.topics.get(name), answer, name)
        if answer.error_code is ErrorCode.NONE and topic.partitions:
            topics[name] = topic
            continue
        errors[name] = answer.error_code or ErrorCode.LEADER_NOT_AVAILABLE
        if answer.error_code in GONE:
            topics.pop(name, None)
        elif name in cluster.topics:
            topics[name] = cluster.topics[name]
    nodes = {b.node_id: Node(b.node_id, b.host, b.port) for b in response.brokers}
    return replace(
        cluster,
        nodes=nodes or cluster.nodes,
        topics=topics,
        errors=errors,
        controller_id=response.controller_id,
        cluster_id=response.cluster_id or cluster.cluster_id,
    )


GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def _newer_topic(known: TopicInfo | None, answer: MetadataResponseTopic, name: str) -> TopicInfo:
    """The answered topic, with the known partitions where their leader epoch is later."""
    topic_id = None if answer.topic_id == ZERO_UUID else answer.topic_id
    same = known is not None and (topic_id is None or known.topic_id == topic_id)
    older = known.partitions if known is not None and same else ()
    partitions: list[PartitionInfo] = []
    for index, answered in enumerate(sorted(answer.partitions, key=_partition_index)):
        if answered.partition_index != index:
            break  # a gap: the broker has not heard of all partitions yet
        before = older[index] if index < len(older) else None
        partitions.append(_newer_partition(before, answered))
    return TopicInfo(name, tuple(partitions), topic_id, answer.is_internal)


def _partition_index(partition: MetadataResponsePartition) -> int:
    return partition.partition_index


def _newer_partition(
    known: PartitionInfo | None, answer: MetadataResponsePartition
) -> PartitionInfo:
    stale = known is not None and NO_EPOCH < answer.leader_epoch < known.leader_epoch
    if known is not None and stale:
        return known
    return PartitionInfo(
        answer.partition_index,
        answer.leader_id,
        answer.leader_epoch,
        tuple(answer.replica_nodes),
        tuple(answer.isr_nodes),
        tuple(answer.offline_replicas),
        answer.error_code,
    )
