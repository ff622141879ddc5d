"""Leaders change their in-sync sets: AlterPartition.                                       [P]

A leader asks with the leader epoch and the partition epoch that it knows, and with the broker epoch
of each member. So a leader that was replaced is refused, a change that the leader does not know yet
is not overwritten, and a follower that restarted is not taken for what it was before.

Owns   the checks.
Fails  as a whole, if the request is of a broker's earlier start; else each partition alone.
Source KIP-497, KIP-704, KIP-841, KIP-903; apache/kafka `ReplicationControlManager.alterPartition`.
"""

from __future__ import annotations

from dataclasses import replace

from kafkalite.core.cluster.image import (
    ClusterImage,
    ClusterRecord,
    LeaderRecoveryState,
    PartitionImage,
)
from kafkalite.core.cluster.partition_changes import LiveBrokers, PartitionChanges
from kafkalite.core.cluster.registrations import check_broker_epoch
from kafkalite.core.protocol.peers import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
)
from kafkalite.core.types import NO_EPOCH
from kafkalite.errors import ApiError, ErrorCode


def alter_partition(
    request: AlterPartitionRequest, changes: PartitionChanges
) -> tuple[AlterPartitionResponse, tuple[ClusterRecord, ...]]:
    """The partitions as they are now, or why they are not as the leader asks."""
    try:
        check_broker_epoch(changes.image, request.broker_id, request.broker_epoch)
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.error_code), ()
    topics = []
    for topic in request.topics:
        name = changes.image.names.get(topic.topic_id)
        results = tuple(
            _alter(name, asked, request.broker_id, changes) for asked in topic.partitions
        )
        topics.append(AlteredTopic(topic.topic_id, results))
    return AlterPartitionResponse(topics=tuple(topics)), changes.records()


def _alter(
    name: str | None, asked: AlterPartitionPartition, node_id: int, changes: PartitionChanges
) -> AlteredPartition:
    index = asked.partition_index
    if name is None:
        return AlteredPartition(index, ErrorCode.UNKNOWN_TOPIC_ID)
    known = changes.get(name, index)
    if known is None:
        return AlteredPartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    members = members_of(asked)
    refusal = (
        _refused_epochs(asked, known, node_id)
        or _refused_members(asked, members, known)
        or _refused_brokers(members, node_id, changes.image)
        or _refused_logs(members, known)
    )
    if refusal:
        return AlteredPartition(index, refusal)
    wanted = replace(
        known,
        in_sync_replicas=_without_leaving(members, changes.live),
        leader_recovery_state=LeaderRecoveryState(asked.leader_recovery_state),
    )
    after = changes.change(name, index, wanted)
    if after.leader != node_id:
        # The new set completes a reassignment away from this leader, or holds a follower that can
        # take over because this leader shuts down. So the change stands, under another leader.
        return AlteredPartition(index, ErrorCode.NEW_LEADER_ELECTED)
    return AlteredPartition(
        index,
        ErrorCode.NONE,
        after.leader,
        after.leader_epoch,
        after.in_sync_replicas,
        int(after.leader_recovery_state),
        after.epoch,
    )


def members_of(asked: AlterPartitionPartition) -> tuple[BrokerState, ...]:
    """The in-sync set that a leader asks for. Version 2 has no broker epochs."""
    plain = (BrokerState(node_id) for node_id in asked.new_isr)
    return asked.new_isr_with_epochs or tuple(plain)


def _refused_epochs(
    asked: AlterPartitionPartition, known: PartitionImage, node_id: int
) -> ErrorCode | None:
    if asked.leader_epoch > known.leader_epoch or asked.partition_epoch > known.epoch:
        return ErrorCode.NOT_CONTROLLER  # another controller has written since
    if asked.leader_epoch < known.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if node_id != known.leader:
        return ErrorCode.INVALID_REQUEST
    if asked.partition_epoch < known.epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return None


def _refused_members(
    asked: AlterPartitionPartition, members: tuple[BrokerState, ...], known: PartitionImage
) -> ErrorCode | None:
    nodes = [member.broker_id for member in members]
    if len(set(nodes)) < len(nodes) or not set(nodes) <= set(known.replicas):
        return ErrorCode.INVALID_REQUEST
    if known.leader not in nodes:
        return ErrorCode.INVALID_REQUEST
    if asked.leader_recovery_state not in tuple(LeaderRecoveryState):
        return ErrorCode.INVALID_REQUEST
    if asked.leader_recovery_state == LeaderRecoveryState.RECOVERING:
        was_recovered = known.leader_recovery_state is LeaderRecoveryState.RECOVERED
        if was_recovered or len(nodes) > 1:
            return ErrorCode.INVALID_REQUEST
    return None


def _refused_brokers(
    members: tuple[BrokerState, ...], leader: int, image: ClusterImage
) -> ErrorCode | None:
    """A member must be registered under the broker epoch that the leader knows, and must not shut
    down; a leader that shuts down because nobody else can lead may still ask for others."""
    for member in members:
        broker = image.brokers.get(member.broker_id)
        if (
            broker is None
            or member.broker_epoch not in (NO_EPOCH, broker.epoch)
            or (broker.in_controlled_shutdown and member.broker_id != leader)
        ):
            return ErrorCode.INELIGIBLE_REPLICA
    return None


def _refused_logs(members: tuple[BrokerState, ...], known: PartitionImage) -> ErrorCode | None:
    """A replica whose log has failed joins no in-sync set before its broker reports it well."""
    failed = {member.broker_id for member in members}.intersection(known.failed_replicas)
    return ErrorCode.INELIGIBLE_REPLICA if failed.difference(known.in_sync_replicas) else None


def _without_leaving(members: tuple[BrokerState, ...], live: LiveBrokers) -> tuple[int, ...]:
    nodes = tuple(member.broker_id for member in members)
    return tuple(node for node in nodes if node in live.active) or nodes
