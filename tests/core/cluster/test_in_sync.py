"""AlterPartition: what a leader may change, and what it hears where it may not."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from machine_cluster import RECOVERING, Cluster

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.protocol.peers import (
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
)
from kafkalite.errors import ErrorCode


def cluster_of_three() -> Cluster:
    cluster = Cluster()
    cluster.create((1, 2, 3))
    cluster.put(PartitionImage((1, 2, 3), 1, 4, (1, 2), 5))
    return cluster


def test_a_leader_lets_a_follower_go_and_takes_it_back() -> None:
    cluster = cluster_of_three()
    shrunk = cluster.alter(1)
    assert (shrunk.leader_id, shrunk.leader_epoch, shrunk.isr, shrunk.partition_epoch) == (
        1, 4, (1,), 6,
    )  # fmt: skip
    assert cluster.partition() == PartitionImage((1, 2, 3), 1, 4, (1,), 6)
    assert cluster.alter(1, 3, 2).isr == (1, 3, 2)
    assert cluster.partition() == PartitionImage((1, 2, 3), 1, 4, (1, 3, 2), 7)


def test_what_is_so_already_is_answered_and_not_written() -> None:
    cluster = cluster_of_three()
    same = cluster.alter(1, 2)
    assert (same.error_code, same.isr, same.partition_epoch) == (ErrorCode.NONE, (1, 2), 5)
    assert cluster.written == ()


REFUSED: list[tuple[str, tuple[int, ...], dict[str, Any], ErrorCode]] = [
    ("older leader epoch", (1,), {"leader_epoch": 3}, ErrorCode.FENCED_LEADER_EPOCH),
    ("older partition epoch", (1,), {"partition_epoch": 4}, ErrorCode.INVALID_UPDATE_VERSION),
    ("newer leader epoch", (1,), {"leader_epoch": 5}, ErrorCode.NOT_CONTROLLER),
    ("newer partition epoch", (1,), {"partition_epoch": 6}, ErrorCode.NOT_CONTROLLER),
    ("another broker", (1, 2), {"node_id": 2}, ErrorCode.INVALID_REQUEST),
    ("without itself", (2,), {}, ErrorCode.INVALID_REQUEST),
    ("nobody", (), {}, ErrorCode.INVALID_REQUEST),
    ("twice", (1, 2, 2), {}, ErrorCode.INVALID_REQUEST),
    ("no replica", (1, 4), {}, ErrorCode.INVALID_REQUEST),
    ("recovering again", (1,), {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
    ("no such state", (1,), {"leader_recovery_state": 2}, ErrorCode.INVALID_REQUEST),
    ("no such topic", (1,), {"topic_id": UUID(int=9)}, ErrorCode.UNKNOWN_TOPIC_ID),
    (
        "an earlier start",
        (),
        {"new_isr_with_epochs": (BrokerState(1, 10), BrokerState(3, 29))},
        ErrorCode.INELIGIBLE_REPLICA,
    ),
]


@pytest.mark.parametrize(
    ("members", "changed", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_a_leader_may_not(
    members: tuple[int, ...], changed: dict[str, Any], code: ErrorCode
) -> None:
    cluster = cluster_of_three()
    assert cluster.alter(*members, **changed).error_code is code
    assert cluster.written == ()


def test_a_broker_that_is_gone_cannot_be_in_sync() -> None:
    cluster = cluster_of_three()
    cluster.stop(3)
    assert cluster.alter(1, 2, 3).error_code is ErrorCode.INELIGIBLE_REPLICA


def test_a_partition_that_is_not_there() -> None:
    cluster = cluster_of_three()
    topic_id = cluster.machine.image.topics["t"].topic_id
    asked = AlterPartitionPartition(7, 0)
    request = AlterPartitionRequest(1, 10, (AlterPartitionTopic(topic_id, (asked,)),))
    ((result,),) = [topic.partitions for topic in cluster.run(request).topics]
    assert result.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_earlier_start_of_the_leader_is_refused_as_a_whole() -> None:
    cluster = cluster_of_three()
    for request in (AlterPartitionRequest(1, 9), AlterPartitionRequest(8, 10)):
        response = cluster.run(request)
        assert (response.error_code, response.topics) == (ErrorCode.STALE_BROKER_EPOCH, ())


def test_version_2_names_members_without_their_epochs() -> None:
    cluster = cluster_of_three()
    assert cluster.alter(new_isr=(1, 3)).isr == (1, 3)


def test_a_partition_named_twice_changes_once() -> None:
    cluster = cluster_of_three()
    topic_id = cluster.machine.image.topics["t"].topic_id
    asked = tuple(
        AlterPartitionPartition(0, 4, (), (BrokerState(1, 10), *more), 0, 5)
        for more in ((), (BrokerState(3, 30),))
    )
    request = AlterPartitionRequest(1, 10, (AlterPartitionTopic(topic_id, asked),))
    ((first, second),) = [topic.partitions for topic in cluster.run(request).topics]
    assert first.isr == (1,)
    assert second.error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert len(cluster.written) == 1


def test_a_leader_that_recovers_has_no_followers_in_sync_until_it_has() -> None:
    cluster = cluster_of_three()
    cluster.put(PartitionImage((1, 2, 3), 1, 4, (1,), 5, leader_recovery_state=RECOVERING))
    refused = cluster.alter(1, 2, leader_recovery_state=1)
    assert refused.error_code is ErrorCode.INVALID_REQUEST
    assert cluster.alter(1, leader_recovery_state=1).leader_recovery_state == 1
    assert cluster.written == ()
    recovered = cluster.alter(1, 2)
    assert (recovered.isr, recovered.leader_recovery_state) == ((1, 2), 0)
