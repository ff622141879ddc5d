"""Replicas whose logs have failed: others lead, and wait for them no more.                  [P]

    failed      it leaves the in-sync set if another member is left; another member leads
                the last member stays: its log has all that is committed, and readers need it
    recovered   it may fetch, join and lead again

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
from kafkalite.core.cluster.partition_changes import PartitionChanges
from kafkalite.core.cluster.registrations import check_broker_epoch
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
        for index in (*topic.failed, *topic.recovered):
            known = changes.get(name, index)
            if known is not None and node_id in known.replicas:
                is_failed = index in topic.failed
                changes.change(name, index, _reported(known, node_id, is_failed=is_failed))
    return ReportReplicasResponse(), changes.records()


def _reported(known: PartitionImage, node_id: int, *, is_failed: bool) -> PartitionImage:
    others = tuple(node for node in known.failed_replicas if node != node_id)
    if not is_failed:
        return replace(known, failed_replicas=others)
    rest = tuple(node for node in known.in_sync_replicas if node != node_id)
    return replace(
        known,
        leader=NO_LEADER if known.leader == node_id and rest else known.leader,
        in_sync_replicas=rest or known.in_sync_replicas,
        failed_replicas=(*others, node_id),
    )


def differences(
    node_id: int, image: ClusterImage, failed: Container[TopicPartition]
) -> tuple[ReportedReplicas, ...]:
    """What the broker has to report: the partitions that the image does not have as they are,
    PARTITIONS_MAX at the most. `failed`: those whose logs have failed there."""
    found, count = list[ReportedReplicas](), 0
    for name, topic in image.topics.items():
        broken, well = list[int](), list[int]()
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                is_known = node_id in partition.failed_replicas
                if ((name, index) in failed) != is_known:
                    (well if is_known else broken).append(index)
        if broken or well:
            found.append(ReportedReplicas(topic.topic_id, tuple(broken), tuple(well)))
            count += len(broken) + len(well)
            if count >= PARTITIONS_MAX:
                break
    return tuple(found)
