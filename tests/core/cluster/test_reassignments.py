"""Reassignments: partitions get other brokers, and lose the old ones once all is in sync."""

from __future__ import annotations

import pytest
from machine_cluster import RECOVERING, Cluster

from kafkalite.core.cluster.image import NO_LEADER, PartitionImage
from kafkalite.core.cluster.reassignments import list_reassignments
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.errors import ErrorCode


def reassign(
    cluster: Cluster, replicas: tuple[int, ...] | None, index: int = 0
) -> tuple[str, str | None]:
    topic = ReassignableTopic("t", (ReassignablePartition(index, replicas),))
    (told,) = cluster.run(AlterPartitionReassignmentsRequest(1, (topic,))).responses
    (result,) = told.partitions
    return result.error_code.name, result.error_message


DONE = ("NONE", None)


def cluster_of_five(*replicas: tuple[int, ...], **configs: str) -> Cluster:
    cluster = Cluster(range(1, 6))
    cluster.create(*replicas, **configs)
    return cluster


def test_new_replicas_catch_up_before_the_old_ones_go() -> None:
    cluster = cluster_of_five((1, 2))
    assert reassign(cluster, (3, 4)) == DONE
    moving = PartitionImage((3, 4, 1, 2), 1, 0, (1, 2), 1, (3, 4), (1, 2))
    assert cluster.partition() == moving
    assert cluster.alter(1, 2, 3).isr == (1, 2, 3)
    assert cluster.partition().is_moving
    answer = cluster.alter(1, 2, 3, 4)
    assert answer.error_code is ErrorCode.NEW_LEADER_ELECTED
    assert cluster.partition() == PartitionImage((3, 4), 3, 1, (3, 4), 3)


def test_a_leader_that_stays_hears_of_a_new_leader_epoch() -> None:
    cluster = cluster_of_five((1, 2))
    reassign(cluster, (1, 3))
    answer = cluster.alter(1, 2, 3)
    assert (answer.error_code, answer.leader_epoch, answer.isr) == (ErrorCode.NONE, 1, (1, 3))
    assert cluster.partition() == PartitionImage((1, 3), 1, 1, (1, 3), 2)


def test_a_replica_that_only_goes_goes_at_once_if_the_others_are_in_sync() -> None:
    cluster = cluster_of_five((1, 2, 3), (1, 2, 3))
    cluster.put(PartitionImage((1, 2, 3), 1, 0, (1, 3), 1))
    for index in (0, 1):
        assert reassign(cluster, (2, 1), index) == DONE
    assert cluster.partition(0) == PartitionImage((2, 1, 3), 1, 0, (1, 3), 2, (), (3,))
    assert cluster.partition(1) == PartitionImage((2, 1), 1, 1, (1, 2), 1)


def test_a_cancel_gives_back_the_replicas_before() -> None:
    cluster = cluster_of_five((1, 2))
    reassign(cluster, (3, 4))
    cluster.alter(1, 2, 3)
    assert reassign(cluster, None) == DONE
    assert cluster.partition() == PartitionImage((1, 2), 1, 1, (1, 2), 3)
    assert reassign(cluster, None) == ("NO_REASSIGNMENT_IN_PROGRESS", None)


def test_a_cancel_may_not_lose_records() -> None:
    cluster = cluster_of_five((1, 2))
    reassign(cluster, (3, 4))
    cluster.put(PartitionImage((3, 4, 1, 2), 3, 1, (3,), 4, (3, 4), (1, 2)))
    words = (
        "Unable to revert partition assignment for t:0 because it would require an unclean leader "
        "election."
    )
    assert reassign(cluster, None) == ("INVALID_REPLICA_ASSIGNMENT", words)


def test_a_cancel_loses_records_where_that_is_allowed_and_a_replica_lives() -> None:
    cluster = cluster_of_five((1, 2), unclean_leader_election_enable="true")
    reassign(cluster, (3, 4))
    cluster.put(PartitionImage((3, 4, 1, 2), 3, 1, (3,), 4, (3, 4), (1, 2)))
    cluster.stop(1)
    assert reassign(cluster, None) == DONE
    expected = PartitionImage((1, 2), 2, 2, (2,), 5, leader_recovery_state=RECOVERING)
    assert cluster.partition() == expected
    cluster.put(PartitionImage((3, 4, 1, 2), 3, 1, (3,), 4, (3, 4), (1, 2)))
    cluster.stop(2)
    code, _ = reassign(cluster, None)
    assert code == "INVALID_REPLICA_ASSIGNMENT"


def test_a_second_reassignment_replaces_the_first() -> None:
    cluster = cluster_of_five((1, 2))
    reassign(cluster, (3, 4))
    cluster.alter(1, 2, 3)
    assert reassign(cluster, (5, 1)) == DONE
    assert cluster.partition() == PartitionImage((5, 1, 2), 1, 1, (1, 2), 3, (5,), (2,))
    reassign(cluster, None)
    assert cluster.partition().replicas == (1, 2)


def test_a_second_reassignment_keeps_what_both_add() -> None:
    cluster = cluster_of_five((1, 2))
    reassign(cluster, (1, 2, 3))
    assert reassign(cluster, (1, 2, 3, 4)) == DONE
    assert cluster.partition() == PartitionImage((1, 2, 3, 4), 1, 0, (1, 2), 2, (3, 4), ())
    reassign(cluster, None)
    assert cluster.partition().replicas == (1, 2)


def test_a_second_reassignment_may_not_drop_the_only_replica_in_sync() -> None:
    cluster = cluster_of_five((1, 2))
    cluster.put(PartitionImage((3, 4, 1, 2), 3, 1, (3,), 4, (3, 4), (1, 2)))
    code, words = reassign(cluster, (5, 1))
    assert code == "INVALID_REPLICA_ASSIGNMENT"
    assert words is not None
    assert words.endswith("t:0 because it would require an unclean leader election.")


def test_the_order_alone_changes_at_once() -> None:
    cluster = cluster_of_five((1, 2))
    assert reassign(cluster, (2, 1)) == DONE
    assert cluster.partition() == PartitionImage((2, 1), 1, 0, (1, 2), 1)
    assert reassign(cluster, (2, 1)) == DONE
    assert cluster.written == ()


def test_dead_brokers_are_no_place_to_move_to() -> None:
    cluster = cluster_of_five((1, 2))
    cluster.stop(5)
    words = "The manual partition assignment includes broker 5, but no such broker is registered."
    assert reassign(cluster, (1, 5)) == ("INVALID_REPLICA_ASSIGNMENT", words)


def test_a_move_goes_on_while_brokers_come_and_go() -> None:
    cluster = cluster_of_five((1, 2))
    reassign(cluster, (3,))
    cluster.stop(1, 2)
    assert cluster.state() == (NO_LEADER, (2,))
    assert cluster.partition().is_moving
    cluster.start(2, 91)
    assert cluster.alter(2, 3).error_code is ErrorCode.NEW_LEADER_ELECTED
    assert cluster.partition().replicas == (3,)


def test_what_is_under_way_is_listed() -> None:
    cluster = cluster_of_five((1, 2), (1, 2), (1, 2))
    image = cluster.machine.image
    assert list_reassignments(ListPartitionReassignmentsRequest(), image).topics == ()
    reassign(cluster, (3, 1), 1)
    image = cluster.machine.image
    moving = OngoingPartitionReassignment(1, (3, 1, 2), (3,), (2,))
    for topics in (None, (ListPartitionReassignmentsTopics("t", (0, 1, 9)),)):
        request = ListPartitionReassignmentsRequest(1, topics)
        (topic,) = list_reassignments(request, image).topics
        assert (topic.name, topic.partitions) == ("t", (moving,))
    others = (
        ListPartitionReassignmentsTopics("t", (0,)),
        ListPartitionReassignmentsTopics("no", (0,)),
    )
    request = ListPartitionReassignmentsRequest(1, others)
    assert list_reassignments(request, image).topics == ()


@pytest.mark.parametrize("index", [-1, 9])
def test_there_is_no_such_partition(index: int) -> None:
    cluster = cluster_of_five((1, 2))
    words = f"Unable to find partition t:{index}."
    assert reassign(cluster, (1,), index) == ("UNKNOWN_TOPIC_OR_PARTITION", words)
