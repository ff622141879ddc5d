"""The checks of a new topic: its name, its settings, and the brokers that hold its partitions. [P]

Owns   the rules of names, counts and assignments.
Fails  with ApiError, in Kafka's code and words.
Source KIP-36 (racks); apache/kafka `Topic`, `ReplicationControlManager.createTopic`, `AdminUtils`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Final, NoReturn

from kafkalite.core.cluster.image import TopicImage
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
)
from kafkalite.errors import ApiError, ConfigError, ErrorCode

NAME_CHARACTERS_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000  # of one topic, so that its record fits into a coordination value
BROKER_DEFAULT: Final = -1

Racks = Mapping[int, str | None]  # the racks of the registered brokers, by their ids

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Refuses a name that could not be a directory's, on any system, with Kafka's reasons."""
    complaint = ""
    if not name:
        complaint = "the empty string is not allowed"
    elif name in (".", ".."):
        complaint = f"'{name}' is not allowed"
    elif len(name) > NAME_CHARACTERS_MAX:
        complaint = (
            f"the length of '{name}' is longer than the max allowed length {NAME_CHARACTERS_MAX}"
        )
    elif not _NAME.fullmatch(name):
        complaint = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'"
        )
    if complaint:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {complaint}")


def collision_key(name: str) -> str:
    """The common form of two names that metrics could not tell apart."""
    return name.replace(".", "_")


def check_configs(configs: Sequence[CreatableTopicConfig], broker: BrokerConfig) -> dict[str, str]:
    """The settings of a new topic; INVALID_CONFIG names an unknown or invalid one."""
    found: dict[str, str] = {}
    for config in configs:
        if config.name in found:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{config.name}: given twice")
        if config.value is None:
            words = f"Null value not supported for topic configs: {config.name}"
            raise ApiError(ErrorCode.INVALID_CONFIG, words)
        found[config.name] = config.value
    try:
        broker.topic(found)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return found


def place(
    topic: CreatableTopic,
    brokers: Racks,
    defaults: Mapping[str, int],
    random: Random,
    away: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """The replicas of each partition, as asked for or spread over `brokers`.

    `defaults` holds the broker's num.partitions and default.replication.factor. `away` are brokers
    that are down for now: they get replicas where there are not enough others.
    """
    if topic.assignments:
        return _check_assignments(topic, (*brokers, *away))
    partition_count = topic.num_partitions
    if partition_count == BROKER_DEFAULT:
        partition_count = defaults["num.partitions"]
    replication_factor = topic.replication_factor
    if replication_factor == BROKER_DEFAULT:
        replication_factor = defaults["default.replication.factor"]
    if partition_count <= 0:
        words = "Number of partitions was set to an invalid non-positive value."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, words)
    _check_count(partition_count)
    if replication_factor <= 0:
        words = "Replication factor must be larger than 0, or -1 to use the default value."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, words)
    return _spread(partition_count, replication_factor, brokers, random, away)


def place_more(
    topic: TopicImage,
    count: int,
    assignments: Sequence[CreatePartitionsAssignment] | None,
    brokers: Racks,
    random: Random,
    away: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """The replicas of the partitions that `topic` lacks to have `count` in all; see `place`."""
    known = len(topic.partitions)
    if count == known:
        words = f"Topic already has {known} partition(s)."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, words)
    if count < known:
        words = (
            f"The topic {topic.name} currently has {known} partition(s); {count} would not be an "
            "increase."
        )
        raise ApiError(ErrorCode.INVALID_PARTITIONS, words)
    _check_count(count)
    first = topic.partitions[0]
    replication_factor = len(first.replicas) - len(first.removing_replicas)
    if assignments is None:
        return _spread(count - known, replication_factor, brokers, random, away)
    if len(assignments) != count - known:
        _refuse_replicas(
            f"Attempted to add {count - known} additional partition(s), but only "
            f"{len(assignments)} assignment(s) were specified."
        )
    placed = [assignment.broker_ids for assignment in assignments]
    for replicas in dict.fromkeys(placed):
        check_replicas(replicas, (*brokers, *away), replication_factor)
    return placed


def _check_count(partition_count: int) -> None:
    if partition_count > PARTITIONS_MAX:
        words = f"Number of partitions is {partition_count}, at most {PARTITIONS_MAX} are allowed."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, words)


def _spread(
    partition_count: int,
    replication_factor: int,
    racks: Racks,
    random: Random,
    away: Sequence[int],
) -> list[tuple[int, ...]]:
    """Leaders go round the brokers; with each round the followers are shifted by one more. A
    partition's replicas lie in as many racks as possible (KIP-36). Brokers that are `away` come
    last, and lead nothing."""
    known = len(racks) + len(away) if racks else 0  # without a leader there is no partition
    if replication_factor > known:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target "
            f"replication factor of {replication_factor} cannot be reached because only {known} "
            "broker(s) are registered.",
        )
    lacking = max(0, replication_factor - len(racks))
    placed = _spread_over(partition_count, replication_factor - lacking, racks, random)
    if not lacking:
        return placed
    turns = itertools.cycle(away)
    return [(*replicas, *itertools.islice(turns, lacking)) for replicas in placed]


def _spread_over(
    partition_count: int, replication_factor: int, racks: Racks, random: Random
) -> list[tuple[int, ...]]:
    """The same with the brokers that are there, of which there are enough."""
    count = len(racks)
    ordered, rack_count = _alternating(racks), len(set(racks.values()))
    start = random.randrange(count)
    shift = random.randrange(count)
    placed = []
    for partition in range(partition_count):
        if partition and partition % count == 0:
            shift += 1
        first = (start + partition) % count
        others = (
            ordered[(first + 1 + step % (count - 1)) % count]
            for step in itertools.count(shift * rack_count)
        )
        placed.append(_replicas(ordered[first], others, replication_factor, racks, rack_count))
    return placed


def _replicas(
    leader: int, others: Iterator[int], replication_factor: int, racks: Racks, rack_count: int
) -> tuple[int, ...]:
    """The leader and the next of the `others`, which go round and round: those in racks without a
    replica come first."""
    replicas, used = [leader], {racks[leader]}
    while len(replicas) < replication_factor:
        broker = next(others)
        is_fresh = racks[broker] not in used or len(used) == rack_count
        if is_fresh and broker not in replicas:
            replicas.append(broker)
            used.add(racks[broker])
    return tuple(replicas)


def _alternating(racks: Racks) -> list[int]:
    """The brokers with neighbours in different racks: the first of each rack, the second of each,
    … Brokers without a rack count as one rack."""
    of_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        of_rack.setdefault(racks[broker] or "", []).append(broker)
    rounds = itertools.zip_longest(*(of_rack[rack] for rack in sorted(of_rack)))
    return [broker for each in rounds for broker in each if broker is not None]


def _check_assignments(topic: CreatableTopic, brokers: Collection[int]) -> list[tuple[int, ...]]:
    for name, number in (
        ("replication factor", topic.replication_factor),
        ("number of partitions", topic.num_partitions),
    ):
        if number != BROKER_DEFAULT:
            words = f"A manual partition assignment was specified, but {name} was not set to -1."
            raise ApiError(ErrorCode.INVALID_REQUEST, words)
    _check_count(len(topic.assignments))
    placed = {each.partition_index: each.broker_ids for each in topic.assignments}
    if sorted(placed) != list(range(len(topic.assignments))):
        _refuse_replicas("partitions should be a consecutive 0-based integer sequence")
    for replicas in dict.fromkeys(placed.values()):
        check_replicas(replicas, brokers, len(placed[0]))
    return [placed[partition] for partition in range(len(placed))]


def all_leaving(index: int, replicas: Sequence[int], *, manual: bool) -> ApiError:
    """The refusal of a partition whose brokers are all in controlled shutdown."""
    if manual:
        words = (
            f"All brokers specified in the manual partition assignment for partition {index} are "
            "fenced or in controlled shutdown."
        )
        return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
    words = (
        f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently "
        "fenced or in controlled shutdown."
    )
    return ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, words)


def check_replicas(
    replicas: Sequence[int], brokers: Collection[int], replication_factor: int | None = None
) -> None:
    """Refuses what cannot hold one partition; any number will do without `replication_factor`."""
    if not replicas:
        _refuse_replicas("The manual partition assignment includes an empty replica list.")
    if len(set(replicas)) < len(replicas):
        ((broker, _),) = Counter(replicas).most_common(1)
        _refuse_replicas(
            f"The manual partition assignment includes the broker {broker} more than once."
        )
    for broker in replicas:
        if broker not in brokers:
            _refuse_replicas(
                f"The manual partition assignment includes broker {broker}, but no such broker is "
                "registered."
            )
    if replication_factor not in (None, len(replicas)):
        _refuse_replicas(
            "The manual partition assignment includes a partition with "
            f"{len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {replication_factor} replica(s)."
        )


def _refuse_replicas(words: str) -> NoReturn:
    raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
