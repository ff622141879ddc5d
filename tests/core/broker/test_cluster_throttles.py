"""A partition moves no faster than its rate; replicas in sync are never held back (KIP-73)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.configs import (
    ConfigOperation,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kafkalite.errors import ErrorCode

TOPIC, BROKER = 2, 4
RECORD = b"x" * 10_000
RECORDS = 20
RATE = 10_000  # so that a move takes some 20 s


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    with ThreeBrokers(replica_fetch_max_bytes="10000", log_segment_bytes="1000000") as made:
        made.create(NewTopic("t", replica_assignment=((1,),)))
        made.produce("t", *[RECORD] * RECORDS)
        yield made
        assert not made.defects


def alter(place: ThreeBrokers, kind: int, name: str, key: str, value: str) -> None:
    config = IncrementalAlterableConfig(key, ConfigOperation.SET, value)
    resource = IncrementalAlterConfigsResource(kind, name, (config,))
    (told,) = place.ask(1, IncrementalAlterConfigsRequest((resource,), False)).responses
    assert told.error_code is ErrorCode.NONE, told


def seconds_to_move(place: ThreeBrokers) -> float:
    """How long it takes until broker 2 has a replica in sync."""
    begin = place.seconds
    move = ReassignableTopic("t", (ReassignablePartition(0, (1, 2)),))
    place.ask(1, AlterPartitionReassignmentsRequest(10_000, (move,)))
    place.until(lambda: 2 in place.state("t").in_sync_replicas, 120)
    return place.seconds - begin


@pytest.mark.parametrize(("side", "broker"), [("leader", 1), ("follower", 2)])
def test_a_move_keeps_to_the_rate(place: ThreeBrokers, side: str, broker: int) -> None:
    alter(place, TOPIC, "t", f"{side}.replication.throttled.replicas", f"0:{broker}")
    alter(place, BROKER, "", f"{side}.replication.throttled.rate", str(RATE))
    seconds = seconds_to_move(place)
    least = len(RECORD) * RECORDS / RATE
    assert 0.8 * least < seconds < 2 * least
    begin = place.seconds
    place.produce("t", *[RECORD] * RECORDS)
    assert place.seconds - begin < least / 4, "in sync nobody waits"


@pytest.mark.parametrize("replicas", ["", "1:1", "0:3"])
def test_other_replicas_are_not_held_back(place: ThreeBrokers, replicas: str) -> None:
    alter(place, BROKER, "", "leader.replication.throttled.rate", "1")
    alter(place, BROKER, "", "follower.replication.throttled.rate", "1")
    alter(place, TOPIC, "t", "leader.replication.throttled.replicas", replicas)
    assert seconds_to_move(place) < 5


def test_a_rate_that_is_raised_lets_a_move_go_on(place: ThreeBrokers) -> None:
    alter(place, TOPIC, "t", "leader.replication.throttled.replicas", "*")
    alter(place, BROKER, "", "leader.replication.throttled.rate", "1")
    move = ReassignableTopic("t", (ReassignablePartition(0, (1, 2)),))
    place.ask(1, AlterPartitionReassignmentsRequest(10_000, (move,)))
    place.pass_seconds(10)
    assert 2 not in place.state("t").in_sync_replicas
    alter(place, BROKER, "", "leader.replication.throttled.rate", "1000000000")
    place.until(lambda: 2 in place.state("t").in_sync_replicas, 5)
