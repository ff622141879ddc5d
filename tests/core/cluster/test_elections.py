"""Elections and reassignments: who leads then, and what is refused in which words."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from machine_cluster import Cluster

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.controller import (
    ELECTIONS_PER_STEP,
    FIRST_BALANCE_MS,
    Controller,
    Tick,
)
from kafkalite.core.cluster.elections import PREFERRED, UNCLEAN
from kafkalite.core.cluster.image import ClusterRecord, LeaderRecoveryState, PartitionImage
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.peers import ControlledShutdownRequest
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext
from kafkalite.errors import ApiError, ErrorCode


def run(machine: Controller, request: Any) -> Any:
    outcome = machine.handle(request, RequestContext(1))
    machine.replay(outcome.records)
    return outcome.replies[0].response


def controller(*partitions: PartitionImage, alive: tuple[int, ...] = (1, 2, 3)) -> Controller:
    """A cluster with topic t, its partitions as given; brokers that are not `alive` have gone."""
    machine = Controller(BrokerConfig.parse(), Random(7), lambda topic: ())
    machine.replay([images.broker_record(n, {DEFAULT_LISTENER: ("h", 9092)}) for n in (1, 2, 3)])
    assigned = tuple(CreatableReplicaAssignment(i, p.replicas) for i, p in enumerate(partitions))
    run(machine, CreateTopicsRequest((CreatableTopic("t", -1, -1, assigned, ()),)))
    machine.replay([images.partition_record("t", i, p) for i, p in enumerate(partitions)])
    gone = [n for n in (1, 2, 3) if n not in alive]
    machine.replay([ClusterRecord(f"{images.BROKERS_PATH}/{n}", None) for n in gone])
    return machine


def elect(machine: Controller, kind: int, *indexes: int) -> list[tuple[int, str]]:
    topics = (ElectLeadersTopic("t", indexes),) if indexes else None
    (told,) = run(machine, ElectLeadersRequest(kind, topics)).replica_election_results
    return [(r.partition_id, r.error_code.name) for r in told.partition_result]


def test_the_preferred_replica_leads_again() -> None:
    away = PartitionImage((1, 2, 3), 2, 4, (2, 1), epoch=5)
    machine = controller(away)
    assert elect(machine, PREFERRED, 0) == [(0, "NONE")]
    assert machine.image.partition("t", 0) == PartitionImage((1, 2, 3), 1, 5, (2, 1), epoch=6)
    assert elect(machine, PREFERRED, 0) == [(0, "ELECTION_NOT_NEEDED")]


@pytest.mark.parametrize(
    ("in_sync", "alive"), [((2,), (1, 2, 3)), ((1, 2), (2, 3))], ids=["lags", "gone"]
)
def test_a_preferred_replica_that_cannot_lead_is_told(
    in_sync: tuple[int, ...], alive: tuple[int, ...]
) -> None:
    machine = controller(PartitionImage((1, 2), 2, 4, in_sync, epoch=5), alive=alive)
    assert elect(machine, PREFERRED, 0) == [(0, "PREFERRED_LEADER_NOT_AVAILABLE")]


def test_an_unclean_election_takes_who_is_in_sync_before_who_lags() -> None:
    lost = PartitionImage((1, 2, 3), 1, 4, (1, 3), epoch=5)
    machine = controller(lost, alive=(2, 3))
    assert elect(machine, UNCLEAN, 0) == [(0, "NONE")]
    assert machine.image.partition("t", 0) == PartitionImage((1, 2, 3), 3, 5, (1, 3), epoch=6)
    assert elect(machine, UNCLEAN, 0) == [(0, "ELECTION_NOT_NEEDED")]


def test_an_unclean_election_takes_who_lags_and_forgets_the_others() -> None:
    lost = PartitionImage((1, 2, 3), 1, 4, (1,), epoch=5)
    machine = controller(lost, alive=(2, 3))
    elect(machine, UNCLEAN, 0)
    assert machine.image.partition("t", 0) == PartitionImage(
        (1, 2, 3), 2, 5, (2,), 6, leader_recovery_state=LeaderRecoveryState.RECOVERING
    )


def test_nobody_alive_is_told() -> None:
    machine = controller(PartitionImage((1, 2), 1, 4, (1,), epoch=5), alive=(3,))
    assert elect(machine, UNCLEAN, 0) == [(0, "ELIGIBLE_LEADERS_NOT_AVAILABLE")]


def test_all_partitions_are_meant_by_null_and_only_changes_told() -> None:
    machine = controller(
        PartitionImage((1, 2), 1, 0, (1, 2), epoch=1), PartitionImage((1, 2), 2, 0, (1, 2), epoch=1)
    )
    assert elect(machine, PREFERRED) == [(1, "NONE")]
    assert elect(machine, PREFERRED) == []


def test_an_election_that_makes_no_sense_is_refused() -> None:
    machine = controller(PartitionImage((1,), 1, 0, (1,), epoch=1))
    assert elect(machine, PREFERRED, 0, 9) == [
        (0, "ELECTION_NOT_NEEDED"),
        (9, "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    request = ElectLeadersRequest(PREFERRED, (ElectLeadersTopic("no", (0,)),))
    (told,) = run(machine, request).replica_election_results
    assert told.partition_result[0].error_message == "No such topic as no"
    request = ElectLeadersRequest(5, (ElectLeadersTopic("t", (0,)),))
    response = run(machine, request)
    assert response.error_code is ErrorCode.INVALID_REQUEST
    (result,) = response.replica_election_results[0].partition_result
    assert (result.error_code, result.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Unknown election type 5",
    )


def reassign(
    machine: Controller, *wanted: tuple[int, tuple[int, ...] | None], topic: str = "t"
) -> list[tuple[int, str, str | None]]:
    partitions = tuple(ReassignablePartition(i, replicas) for i, replicas in wanted)
    request = AlterPartitionReassignmentsRequest(1, (ReassignableTopic(topic, partitions),))
    (told,) = run(machine, request).responses
    return [(r.partition_index, r.error_code.name, r.error_message) for r in told.partitions]


def test_replicas_change_their_order_and_then_their_leader() -> None:
    pair = PartitionImage((1, 2), 1, 0, (1, 2), epoch=1)
    machine = controller(pair, pair)
    told = reassign(machine, (0, (2, 1)), (1, (2, 1)))
    assert told == [(0, "NONE", None), (1, "NONE", None)]
    topic = machine.image.topics["t"]
    assert [(p.replicas, p.leader) for p in topic.partitions] == [((2, 1), 1)] * 2
    assert elect(machine, PREFERRED) == [(0, "NONE"), (1, "NONE")]
    assert [p.leader for p in machine.image.topics["t"].partitions] == [2, 2]


def test_what_changes_nothing_writes_nothing() -> None:
    machine = controller(PartitionImage((1, 2), 1, 0, (1, 2), epoch=1))
    wanted = (ReassignableTopic("t", (ReassignablePartition(0, (1, 2)),)),)
    request = AlterPartitionReassignmentsRequest(1, wanted)
    assert machine.handle(request, RequestContext(1)).records == ()


WRONG: list[tuple[int, tuple[int, ...] | None, str, str | None]] = [
    (9, (1,), "UNKNOWN_TOPIC_OR_PARTITION", "Unable to find partition t:9."),
    (-1, (1,), "UNKNOWN_TOPIC_OR_PARTITION", "Unable to find partition t:-1."),
    (0, None, "NO_REASSIGNMENT_IN_PROGRESS", None),
    (0, (), "INVALID_REPLICA_ASSIGNMENT", "includes an empty replica list."),
    (0, (1, 1), "INVALID_REPLICA_ASSIGNMENT", "includes the broker 1 more than once."),
    (0, (1, 7), "INVALID_REPLICA_ASSIGNMENT", "includes broker 7, but no such broker is registere"),
]


@pytest.mark.parametrize(("index", "replicas", "code", "words"), WRONG, ids=str)
def test_a_reassignment_that_makes_no_sense_is_refused_beside_others(
    index: int, replicas: tuple[int, ...] | None, code: str, words: str | None
) -> None:
    pair = PartitionImage((1, 2), 1, 0, (1, 2), epoch=1)
    machine = controller(pair, pair)
    refused, done = reassign(machine, (index, replicas), (1, (2, 1)))
    assert refused[:2] == (index, code)
    assert (words or "") in (refused[2] or "")
    assert done == (1, "NONE", None)
    assert machine.image.topics["t"].partitions[1].replicas == (2, 1)


def test_very_long_requests_take_no_more_time_than_their_length() -> None:
    """Were it the square of it, this would not end."""
    machine = controller(PartitionImage((1, 2), 1, 0, (1, 2), epoch=1))
    ((_, code, words),) = reassign(machine, (0, tuple(range(4, 500_004))))
    assert code == "INVALID_REPLICA_ASSIGNMENT"
    assert words is not None
    assert "includes broker 4, but no such broker is registered" in words


def test_a_topic_that_is_not_there_cannot_be_reassigned() -> None:
    machine = controller(PartitionImage((1,), 1, 0, (1,), epoch=1))
    words = "Unable to find a topic named no."
    assert reassign(machine, (0, (1,)), topic="no") == [(0, "UNKNOWN_TOPIC_OR_PARTITION", words)]


def test_a_refused_write_is_told_at_the_top() -> None:
    machine = controller(PartitionImage((1,), 1, 0, (1,), epoch=1))
    error = ApiError(ErrorCode.NOT_CONTROLLER, "another")
    for request in (ElectLeadersRequest(), AlterPartitionReassignmentsRequest()):
        refusal: Any = machine.refuse(request, error)
        assert refusal.error_code is ErrorCode.NOT_CONTROLLER


# ---- balance -------------------------------------------------------------------------------------


AWAY = PartitionImage((1, 2), 2, 4, (1, 2), 5)
HOME = PartitionImage((1, 2), 1, 4, (1, 2), 5)


def leaders_after_ticks(cluster: Cluster) -> list[int]:
    cluster.run(Tick(1))
    cluster.run(Tick(1 + FIRST_BALANCE_MS))
    return [partition.leader for partition in cluster.machine.image.topics["t"].partitions]


def balanced(*partitions: PartitionImage, **settings: str) -> Cluster:
    cluster = Cluster(**settings)
    cluster.create(*(p.replicas for p in partitions))
    cluster.put(*partitions)
    return cluster


def test_preferred_leaders_return_with_time() -> None:
    cluster = balanced(HOME, AWAY, PartitionImage((2, 1), 2, 0, (2, 1), 1))
    assert leaders_after_ticks(cluster) == [1, 1, 2]
    assert cluster.partition(1) == PartitionImage((1, 2), 1, 5, (1, 2), 6)
    assert cluster.machine.due_ms == 1 + FIRST_BALANCE_MS + 300_000


def test_a_small_imbalance_is_left_alone() -> None:
    setting = {"leader_imbalance_per_broker_percentage": "50"}
    assert leaders_after_ticks(balanced(HOME, AWAY, **setting)) == [1, 2]
    assert leaders_after_ticks(balanced(HOME, AWAY, AWAY, **setting)) == [1, 1, 1]


def test_leaders_stay_where_the_operator_wants_it() -> None:
    cluster = balanced(AWAY, auto_leader_rebalance_enable="false")
    assert leaders_after_ticks(cluster) == [2]


def test_only_replicas_that_are_alive_in_sync_and_not_moving_return() -> None:
    cluster = balanced(
        PartitionImage((1, 2), 2, 4, (2,), 5),
        PartitionImage((3, 2), 2, 4, (3, 2), 5),
        PartitionImage((1, 2), 2, 4, (2, 1), 5, (), (2,)),
    )
    cluster.run(ControlledShutdownRequest(3, 30))
    assert leaders_after_ticks(cluster) == [2, 2, 2]


def test_many_elections_take_several_steps() -> None:
    setting = {"leader_imbalance_per_broker_percentage": "0"}
    cluster = balanced(*[AWAY] * (ELECTIONS_PER_STEP + 1), **setting)
    assert sum(leader == 1 for leader in leaders_after_ticks(cluster)) == ELECTIONS_PER_STEP
    assert cluster.machine.due_ms == 1 + FIRST_BALANCE_MS, "at once"
    assert cluster.run(Tick(cluster.machine.due_ms)) == 1
