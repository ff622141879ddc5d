"""Reassignments: partitions move to other brokers, or change the order of their replicas.   [P]

    asked      replicas = the target, then those that will go; `adding` and `removing` say which
    under way  the leader copies records to the added ones, until they are in sync
    complete   all of the target is in sync: the others are dropped (`partition_changes`)
    cancelled  the added ones are dropped

A target whose replicas are all in sync already is complete at once. A new request replaces the one
under way: the replicas before it count as where the partition came from.

Owns   the rules; the controller writes the outcome.
Never  takes the last in-sync replica from a partition.
Fails  per partition, in Kafka's code and words.
Source KIP-455; apache/kafka `ReplicationControlManager`, `ReplicaAssignment.reassignTo`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from kafkalite.core.cluster.image import ClusterImage, ClusterRecord, PartitionImage, TopicImage
from kafkalite.core.cluster.partition_changes import Election, PartitionChanges
from kafkalite.core.cluster.placement import check_replicas
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kafkalite.errors import ApiError, ErrorCode


def alter_reassignments(
    request: AlterPartitionReassignmentsRequest, changes: PartitionChanges
) -> tuple[AlterPartitionReassignmentsResponse, tuple[ClusterRecord, ...]]:
    """The result for each partition, and the records of those that change."""
    responses = []
    for topic in request.topics:
        results = tuple(_result(topic.name, wanted, changes) for wanted in topic.partitions)
        responses.append(ReassignableTopicResponse(topic.name, results))
    return AlterPartitionReassignmentsResponse(responses=tuple(responses)), changes.records()


def _result(
    name: str, wanted: ReassignablePartition, changes: PartitionChanges
) -> ReassignablePartitionResponse:
    index = wanted.partition_index
    try:
        _alter(name, wanted, changes)
    except ApiError as error:
        return ReassignablePartitionResponse(index, error.error_code, error.words or None)
    return ReassignablePartitionResponse(index)


def _alter(name: str, wanted: ReassignablePartition, changes: PartitionChanges) -> None:
    index = wanted.partition_index
    topic = changes.image.topics.get(name)
    if topic is None:
        _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    known = changes.get(name, index)
    if known is None:
        _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if wanted.replicas is None:
        _cancel(topic, index, known, changes)
    else:
        _move(topic, index, known, wanted.replicas, changes)


def _move(
    topic: TopicImage,
    index: int,
    known: PartitionImage,
    target: tuple[int, ...],
    changes: PartitionChanges,
) -> None:
    check_replicas(target, changes.image.brokers)
    origin = _origin(known)
    going = tuple(node for node in origin if node not in target)
    replicas = (*target, *going)
    in_sync = tuple(node for node in known.in_sync_replicas if node in replicas)
    if not in_sync:
        _refuse_unclean("reassign partition", topic, index)
    moving = replace(
        known,
        replicas=replicas,
        adding_replicas=tuple(node for node in target if node not in origin),
        removing_replicas=going,
        in_sync_replicas=in_sync,
    )
    changes.change(topic.name, index, moving)


def _cancel(
    topic: TopicImage, index: int, known: PartitionImage, changes: PartitionChanges
) -> None:
    if not known.is_moving:
        _refuse(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    origin = _origin(known)
    in_sync = tuple(node for node in known.in_sync_replicas if node in origin)
    election = Election.ONLINE
    if not in_sync:
        if changes.live.active.isdisjoint(origin) or not changes.may_lose_records(topic):
            _refuse_unclean("revert partition assignment for", topic, index)
        election = Election.UNCLEAN
    moved_back = replace(
        known,
        replicas=origin,
        adding_replicas=(),
        removing_replicas=(),
        in_sync_replicas=in_sync,
    )
    changes.change(topic.name, index, moved_back, election)


def _origin(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas before the reassignment that is under way, if one is."""
    return tuple(node for node in partition.replicas if node not in partition.adding_replicas)


def _refuse_unclean(what: str, topic: TopicImage, index: int) -> NoReturn:
    _refuse(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"Unable to {what} {topic.name}:{index} because it would require an unclean leader "
        "election.",
    )


def _refuse(code: ErrorCode, words: str = "") -> NoReturn:
    raise ApiError(code, words)


# ---- what is under way ---------------------------------------------------------------------------


def list_reassignments(
    request: ListPartitionReassignmentsRequest, image: ClusterImage
) -> ListPartitionReassignmentsResponse:
    """The partitions that are being moved, of those named or of all."""
    found = []
    for name, indexes in _listed(request, image):
        ongoing = tuple(
            OngoingPartitionReassignment(
                index, known.replicas, known.adding_replicas, known.removing_replicas
            )
            for index in indexes
            if (known := image.partition(name, index)) is not None and known.is_moving
        )
        if ongoing:
            found.append(OngoingTopicReassignment(name, ongoing))
    return ListPartitionReassignmentsResponse(topics=tuple(found))


def _listed(
    request: ListPartitionReassignmentsRequest, image: ClusterImage
) -> Iterable[tuple[str, Iterable[int]]]:
    if request.topics is None:
        return ((name, range(len(topic.partitions))) for name, topic in image.topics.items())
    return ((topic.name, topic.partition_indexes) for topic in request.topics)
