"""What makes a valid new topic: its name, its settings, and which brokers hold its partitions. [P]

Owns   the rules of names, counts and assignments.
Fails  with ApiError, in Kafka's code and words.
Source apache/kafka `Topic`, `ReplicationControlManager.createTopic`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final

from kafkalite.core.config import BrokerConfig
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from kafkalite.errors import ApiError, ConfigError, ErrorCode

NAME_CHARACTERS_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000  # of one topic, so that its record fits into a coordination value
BROKER_DEFAULT: Final = -1

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Refuses a name that could not be a directory's, on any system, with Kafka's reasons."""
    complaint = ""
    if not name:
        complaint = "the empty string is not allowed"
    elif name in (".", ".."):
        complaint = f"'{name}' is not allowed"
    elif len(name) > NAME_CHARACTERS_MAX:
        complaint = f"it has {len(name)} characters, at most {NAME_CHARACTERS_MAX} are allowed"
    elif not _NAME.fullmatch(name):
        complaint = f"'{name}' holds characters other than ASCII letters and digits, '.', '_', '-'"
    if complaint:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {complaint}")


def collision_key(name: str) -> str:
    """What two names share that metrics could not tell apart."""
    return name.replace(".", "_")


def check_configs(configs: Sequence[CreatableTopicConfig], broker: BrokerConfig) -> dict[str, str]:
    """The settings of a new topic; INVALID_CONFIG names the one that is unknown or invalid."""
    found: dict[str, str] = {}
    for config in configs:
        if config.name in found:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{config.name}: given twice")
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{config.name}: null is no value")
        found[config.name] = config.value
    try:
        broker.topic(found)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return found


def place(
    topic: CreatableTopic,
    brokers: Collection[int],
    defaults: Mapping[str, int],
    random: Random,
) -> list[tuple[int, ...]]:
    """The replicas of each partition, as asked for or spread over `brokers`.

    `defaults` holds the broker's num.partitions and default.replication.factor.
    """
    if topic.assignments:
        return _check_assignments(topic, brokers)
    partition_count = topic.num_partitions
    if partition_count == BROKER_DEFAULT:
        partition_count = defaults["num.partitions"]
    replication_factor = topic.replication_factor
    if replication_factor == BROKER_DEFAULT:
        replication_factor = defaults["default.replication.factor"]
    if not 0 < partition_count <= PARTITIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions is {partition_count}, expected 1 to {PARTITIONS_MAX}",
        )
    if replication_factor <= 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor is {replication_factor}, expected at least 1",
        )
    if replication_factor > len(brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {replication_factor} cannot be reached: "
            f"{len(brokers)} broker(s) are registered",
        )
    return _spread(partition_count, replication_factor, sorted(brokers), random)


def _spread(
    partition_count: int, replication_factor: int, brokers: Sequence[int], random: Random
) -> list[tuple[int, ...]]:
    """Leaders go round the brokers; with each round the followers are shifted by one more."""
    count = len(brokers)
    start = random.randrange(count)
    shift = random.randrange(count)
    placed = []
    for partition in range(partition_count):
        if partition and partition % count == 0:
            shift += 1
        first = start + partition
        replicas = [brokers[first % count]]
        for follower in range(replication_factor - 1):
            gap = 1 + (shift + follower) % (count - 1)
            replicas.append(brokers[(first + gap) % count])
        placed.append(tuple(replicas))
    return placed


def _check_assignments(topic: CreatableTopic, brokers: Collection[int]) -> list[tuple[int, ...]]:
    if topic.num_partitions != BROKER_DEFAULT or topic.replication_factor != BROKER_DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Both numPartitions or replicationFactor and replicasAssignments are given",
        )
    if len(topic.assignments) > PARTITIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{len(topic.assignments)} partitions, expected at most {PARTITIONS_MAX}",
        )
    placed = {each.partition_index: each for each in topic.assignments}
    if sorted(placed) != list(range(len(topic.assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The partitions of a manual assignment must be 0, 1, 2, … without a gap",
        )
    for assignment in topic.assignments:
        _check_replicas(assignment, len(placed[0].broker_ids), brokers)
    return [placed[partition].broker_ids for partition in range(len(placed))]


def _check_replicas(
    assignment: CreatableReplicaAssignment, replication_factor: int, brokers: Collection[int]
) -> None:
    where, replicas = f"partition {assignment.partition_index}", assignment.broker_ids
    complaint = ""
    if not replicas:
        complaint = f"{where} has no replicas"
    elif len(set(replicas)) < len(replicas):
        complaint = f"{where} has a broker twice: {list(replicas)}"
    elif unknown := [broker for broker in replicas if broker not in brokers]:
        complaint = f"{where} names brokers that are not registered: {unknown}"
    elif len(replicas) != replication_factor:
        complaint = f"{where} has {len(replicas)} replicas, partition 0 has {replication_factor}"
    if complaint:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint)
