"""Elections and reassignments: operators choose the leaders and the holders of partitions.  [P]

    preferred election   the first replica leads again, if it is alive and in sync
    unclean election     any live replica may lead a partition without leader, records lost or not
    reassignment         the same brokers in another order: the first becomes the preferred leader

Owns   the rules; the controller writes the outcome.
Never  moves records: a partition cannot go to other brokers before there is replication.
Fails  per partition, in Kafka's code and words.
Source KIP-455, KIP-460; apache/kafka `ReplicationControlManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NoReturn

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord, PartitionImage
from kafkalite.core.cluster.placement import check_replicas
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from kafkalite.errors import ApiError, ErrorCode

PREFERRED: Final = 0
UNCLEAN: Final = 1

Elect = Callable[[PartitionImage, ClusterImage], int]


# ---- elections -----------------------------------------------------------------------------------


def elect_leaders(
    request: ElectLeadersRequest, image: ClusterImage
) -> tuple[ElectLeadersResponse, tuple[ClusterRecord, ...]]:
    """The result of each election, and the records of the changes."""
    try:
        elect = _elector(request.election_type)
    except ApiError as error:
        return refuse_elections(request, error), ()
    records: dict[str, ClusterRecord] = {}
    results = []
    for topic, partitions in _wanted(request, image):
        partition_results = []
        for partition in partitions:
            result, record = _election(topic, partition, image, elect)
            if record is not None:
                records[record.path] = record
            if request.topic_partitions is not None or not _is_needless(result):
                partition_results.append(result)
        results.append(ReplicaElectionResult(topic, tuple(partition_results)))
    response = ElectLeadersResponse(replica_election_results=tuple(results))
    return response, tuple(records.values())


def refuse_elections(request: ElectLeadersRequest, error: ApiError) -> ElectLeadersResponse:
    """The response when the whole request is refused."""
    code, words = error.error_code, error.words
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic.topic,
                tuple(ElectLeadersPartitionResult(p, code, words) for p in topic.partitions),
            )
            for topic in request.topic_partitions or ()
        ),
    )


def _elector(election_type: int) -> Elect:
    if election_type not in ELECTORS:
        _refuse(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")
    return ELECTORS[election_type]


def _wanted(
    request: ElectLeadersRequest, image: ClusterImage
) -> Iterable[tuple[str, Iterable[int]]]:
    """The partitions named, or all."""
    if request.topic_partitions is None:
        return [(name, range(len(topic.partitions))) for name, topic in image.topics.items()]
    return [(topic.topic, topic.partitions) for topic in request.topic_partitions]


def _is_needless(result: ElectLeadersPartitionResult) -> bool:
    return result.error_code is ErrorCode.ELECTION_NOT_NEEDED


def _election(
    topic: str, index: int, image: ClusterImage, elect: Elect
) -> tuple[ElectLeadersPartitionResult, ClusterRecord | None]:
    try:
        if topic not in image.topics:
            _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
        known = image.partition(topic, index)
        if known is None:
            words = f"No such partition as {topic}-{index}"
            _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)
        leader = elect(known, image)
    except ApiError as error:
        return ElectLeadersPartitionResult(index, error.error_code, error.words), None
    in_sync = known.in_sync_replicas
    changed = replace(
        known,
        leader=leader,
        leader_epoch=known.leader_epoch + 1,
        in_sync_replicas=in_sync if leader in in_sync else (leader,),
        epoch=known.epoch + 1,
    )
    record = images.partition_record(topic, index, changed)
    return ElectLeadersPartitionResult(index), record


def _preferred(partition: PartitionImage, image: ClusterImage) -> int:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        _refuse_needless()
    if preferred not in image.brokers or preferred not in partition.in_sync_replicas:
        _refuse(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader, broker {preferred}, is not alive or not in sync.",
        )
    return preferred


def _unclean(partition: PartitionImage, image: ClusterImage) -> int:
    if partition.leader in image.brokers:
        _refuse_needless()
    alive = [replica for replica in partition.replicas if replica in image.brokers]
    if not alive:
        _refuse(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is alive.")
    in_sync = [replica for replica in alive if replica in partition.in_sync_replicas]
    return (in_sync or alive)[0]


ELECTORS: Final[Mapping[int, Elect]] = {PREFERRED: _preferred, UNCLEAN: _unclean}


def _refuse_needless() -> NoReturn:
    _refuse(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


def _refuse(code: ErrorCode, words: str = "") -> NoReturn:
    raise ApiError(code, words)


# ---- reassignments -------------------------------------------------------------------------------


def alter_reassignments(
    request: AlterPartitionReassignmentsRequest, image: ClusterImage
) -> tuple[AlterPartitionReassignmentsResponse, tuple[ClusterRecord, ...]]:
    """The result for each partition, and the records of topics that change."""
    changed: dict[str, list[PartitionImage]] = {}
    responses = []
    for topic in request.topics:
        told = []
        for wanted in topic.partitions:
            try:
                _reassign(topic.name, wanted, image, changed)
                told.append(ReassignablePartitionResponse(wanted.partition_index))
            except ApiError as error:
                words = error.words or None
                told.append(
                    ReassignablePartitionResponse(wanted.partition_index, error.error_code, words)
                )
        responses.append(ReassignableTopicResponse(topic.name, tuple(told)))
    topics = (replace(image.topics[name], partitions=tuple(p)) for name, p in changed.items())
    records = tuple(images.topic_record(each) for each in topics if each != image.topics[each.name])
    return AlterPartitionReassignmentsResponse(responses=tuple(responses)), records


def _reassign(
    name: str,
    wanted: ReassignablePartition,
    image: ClusterImage,
    changed: dict[str, list[PartitionImage]],
) -> None:
    """Notes in `changed` the topic's partitions, one of them with its replicas in another order."""
    topic, index, replicas = image.topics.get(name), wanted.partition_index, wanted.replicas
    if topic is None:
        _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        _refuse(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas(replicas, image.brokers)
    known = topic.partitions[index]
    if set(replicas) != set(known.replicas):
        _refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{name}-{index} is on brokers {list(known.replicas)} and cannot move to others: there "
            "is no replication yet.",
        )
    if name not in changed:
        changed[name] = list(topic.partitions)
    changed[name][index] = replace(known, replicas=replicas)
