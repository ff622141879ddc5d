"""Replicas whose logs have failed: others lead, and wait for them no more.                  [P]

    failed      it leaves the in-sync set if another member is left; another member leads
                the last member stays: its log has all that is committed, and readers need it
    lost        a sync failed, too, so that its log may lack what was committed: it stays only
                where no other replica has all of that
    recovered   it may fetch, join and lead again, at once if nobody leads

A broker compares the logs that it has with the image, and reports the differences.

Owns   the rules, and the comparison.
Fails  with STALE_BROKER_EPOCH for a report of a broker's earlier start. A report about a partition
       that is gone or has no replica there changes nothing.
Source KIP-112 (`LogDirEventNotification`), KIP-858; apache/kafka
       `ReplicationControlManager.handleDirectoriesOffline`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Final

from kafkalite.core.cluster.image import NO_LEADER, ClusterImage, ClusterRecord, PartitionImage
from kafkalite.core.cluster.partition_changes import LiveBrokers, PartitionChanges
from kafkalite.core.cluster.registrations import check_broker_epoch, remaining
from kafkalite.core.protocol.peers import (
    ReportedReplicas,
    ReportReplicasRequest,
    ReportReplicasResponse,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError

PARTITIONS_MAX: Final = 2_000  # of a report


def report_replicas(
    request: ReportReplicasRequest, changes: PartitionChanges
) -> tuple[ReportReplicasResponse, tuple[ClusterRecord, ...]]:
    """The partitions without the failed replicas in their in-sync sets, as far as that can be."""
    node_id = request.broker_id
    try:
        check_broker_epoch(changes.image, node_id, request.broker_epoch)
    except ApiError as error:
        return ReportReplicasResponse(error.error_code), ()
    for topic in request.topics:
        name = changes.image.names.get(topic.topic_id)
        if name is None:
            continue
        failed, lost = frozenset(topic.failed), frozenset(topic.lost)
        for index in (*topic.failed, *topic.recovered):
            known = changes.get(name, index)
            if known is None or node_id not in known.replicas:
                continue
            if index in lost:
                wanted = _lost(known, node_id, changes.live)
                changes.change(name, index, wanted, lost=frozenset({node_id}))
            elif index in failed:
                changes.change(name, index, _failed(known, node_id))
            else:
                changes.change(name, index, _recovered(known, node_id, changes.live))
    return ReportReplicasResponse(), changes.records()


def _recovered(known: PartitionImage, node_id: int, live: LiveBrokers) -> PartitionImage:
    failed = tuple(node for node in known.failed_replicas if node != node_id)
    known = replace(known, failed_replicas=failed)
    if known.leader != NO_LEADER:
        return known
    return replace(known, in_sync_replicas=remaining(known, live.registered, live, {}))


def _failed(known: PartitionImage, node_id: int) -> PartitionImage:
    rest = tuple(node for node in known.in_sync_replicas if node != node_id)
    return _without(known, node_id, rest or known.in_sync_replicas)


def _lost(known: PartitionImage, node_id: int, live: LiveBrokers) -> PartitionImage:
    """As though it had been started again after an unclean stop."""
    rest = remaining(known, live.registered - {node_id}, live, {node_id: False})
    return _without(known, node_id, rest)


def _without(known: PartitionImage, node_id: int, members: tuple[int, ...]) -> PartitionImage:
    """The partition with these members; it leads on, for readers, if it is one of them."""
    others = (node for node in known.failed_replicas if node != node_id)
    has_left = known.leader == node_id and node_id not in members
    return replace(
        known,
        leader=NO_LEADER if has_left else known.leader,
        in_sync_replicas=members,
        failed_replicas=(*others, node_id),
    )


def differences(
    node_id: int,
    image: ClusterImage,
    failed: Container[TopicPartition],
    lost: Container[TopicPartition] = (),
) -> tuple[ReportedReplicas, ...]:
    """What the broker has to report: the partitions that the image does not have as they are,
    PARTITIONS_MAX at the most. `failed`: those whose logs have failed there; `lost`: those of them
    where a sync has failed."""
    found, count = list[ReportedReplicas](), 0
    for name, topic in image.topics.items():
        broken, well = list[int](), list[int]()
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                is_known, is_failed = node_id in partition.failed_replicas, (name, index) in failed
                if is_failed != is_known or ((name, index) in lost and _counts(node_id, partition)):
                    (broken if is_failed else well).append(index)
        if broken or well:
            gone = tuple(index for index in broken if (name, index) in lost)
            found.append(ReportedReplicas(topic.topic_id, tuple(broken), tuple(well), gone))
            count += len(broken) + len(well)
            if count >= PARTITIONS_MAX:
                break
    return tuple(found)


def _counts(node_id: int, partition: PartitionImage) -> bool:
    """Whether it is taken for one that has all that is committed, though it is not the only one."""
    eligible = partition.eligible_leader_replicas
    return bool(eligible) and node_id in (*partition.in_sync_replicas, *eligible)
