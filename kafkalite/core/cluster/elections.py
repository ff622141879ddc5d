"""Elections: operators and the periodic balance choose who leads.                           [P]

    preferred election   the first replica leads again, if it is alive and in sync
    unclean election     any live replica may lead a partition without leader, records lost or not
    balance              preferred elections, if others lead too many of a broker's partitions

Owns   the rules; the controller writes the outcome.
Fails  per partition, in Kafka's code and words.
Source KIP-460, KIP-704; apache/kafka `ReplicationControlManager`,
       `KafkaController.checkAndTriggerAutoLeaderRebalance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn

from kafkalite.core.cluster.image import NO_LEADER, ClusterImage, ClusterRecord, PartitionImage
from kafkalite.core.cluster.partition_changes import Election, LiveBrokers, PartitionChanges
from kafkalite.core.protocol.cluster import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)
from kafkalite.errors import ApiError, ErrorCode

PREFERRED: Final = 0
UNCLEAN: Final = 1

Check = Callable[[PartitionImage, LiveBrokers], None]


def elect_leaders(
    request: ElectLeadersRequest, changes: PartitionChanges
) -> tuple[ElectLeadersResponse, tuple[ClusterRecord, ...]]:
    """The result of each election, and the records of the changes."""
    if request.election_type not in ELECTIONS:
        words = f"Unknown election type {request.election_type}"
        return refuse_elections(request, ApiError(ErrorCode.INVALID_REQUEST, words)), ()
    results = []
    for topic, partitions in _wanted(request, changes.image):
        each = (_election(topic, index, request.election_type, changes) for index in partitions)
        told = (r for r in each if request.topic_partitions is not None or not _is_needless(r))
        results.append(ReplicaElectionResult(topic, tuple(told)))
    response = ElectLeadersResponse(replica_election_results=tuple(results))
    return response, changes.records()


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
    topic: str, index: int, election_type: int, changes: PartitionChanges
) -> ElectLeadersPartitionResult:
    check, election = ELECTIONS[election_type]
    try:
        if topic not in changes.image.topics:
            _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
        known = changes.get(topic, index)
        if known is None:
            words = f"No such partition as {topic}-{index}"
            _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)
        check(known, changes.live)
    except ApiError as error:
        return ElectLeadersPartitionResult(index, error.error_code, error.words)
    changes.change(topic, index, known, election)
    return ElectLeadersPartitionResult(index)


def _check_preferred(partition: PartitionImage, live: LiveBrokers) -> None:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        _refuse_needless()
    is_able = preferred in live.active and preferred not in partition.failed_replicas
    if not is_able or preferred not in partition.in_sync_replicas:
        _refuse(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader, broker {preferred}, is not alive or not in sync.",
        )


def _check_unclean(partition: PartitionImage, live: LiveBrokers) -> None:
    failed = partition.failed_replicas
    if partition.leader in live.registered and partition.leader not in failed:
        _refuse_needless()
    if live.active.isdisjoint(set(partition.replicas).difference(failed)):
        _refuse(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is alive.")


ELECTIONS: Final[Mapping[int, tuple[Check, Election]]] = {
    PREFERRED: (_check_preferred, Election.PREFERRED),
    UNCLEAN: (_check_unclean, Election.UNCLEAN),
}


def _refuse_needless() -> NoReturn:
    _refuse(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


def _refuse(code: ErrorCode, words: str) -> NoReturn:
    raise ApiError(code, words)


# ---- without being asked -------------------------------------------------------------------------


def balance(changes: PartitionChanges, percentage: int, elections_max: int) -> bool:
    """Lets preferred leaders lead again, of brokers that lead less than they should by more than
    `percentage` of their partitions. False if there is more to do than `elections_max`."""
    preferring: dict[int, int] = {}  # broker -> partitions of which it is the preferred leader
    elsewhere: dict[int, list[tuple[str, int, PartitionImage]]] = {}  # those that another leads
    for topic, index, partition in changes.every():
        preferred = partition.replicas[0]
        preferring[preferred] = preferring.get(preferred, 0) + 1
        if partition.leader != preferred:
            elsewhere.setdefault(preferred, []).append((topic.name, index, partition))
    for preferred, partitions in elsewhere.items():
        too_many = len(partitions) * 100 > percentage * preferring[preferred]
        if preferred not in changes.live.active or not too_many:
            continue
        for name, index, partition in partitions:
            if preferred in partition.in_sync_replicas and not partition.is_moving:
                if len(changes) >= elections_max:
                    return False
                changes.change(name, index, partition, Election.PREFERRED)
    return True


def reconsider_eligible(changes: PartitionChanges, only_topic: str | None = None) -> None:
    """Lets leaders commit that could not, where min.insync.replicas is less by now."""
    for topic, index, partition in changes.every():
        if partition.eligible_leader_replicas and only_topic in (None, topic.name):
            changes.change(topic.name, index, changes.get(topic.name, index) or partition)


def elect_missing(changes: PartitionChanges, only_topic: str | None = None) -> None:
    """Tries to find leaders for partitions without one, where records may be lost."""
    for topic, index, partition in changes.every():
        if partition.leader == NO_LEADER and only_topic in (None, topic.name):
            changes.change(topic.name, index, partition)
