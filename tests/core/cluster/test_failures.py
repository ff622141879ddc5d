"""Replicas whose logs have failed: what the controller makes of reports, and what is reported."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.controller import Controller
from kafkalite.core.cluster.elections import PREFERRED, UNCLEAN
from kafkalite.core.cluster.failures import differences
from kafkalite.core.cluster.image import LeaderRecoveryState, PartitionImage
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.peers import (
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
    ReportedReplicas,
    ReportReplicasRequest,
)
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext, TopicPartition
from kafkalite.errors import ErrorCode

EPOCH = 7


class World:
    """A controller of brokers 1, 2 and 3 and one partition of topic t."""

    def __init__(self, partition: PartitionImage, **configs: str) -> None:
        self.machine = Controller(BrokerConfig.parse(), Random(7), lambda topic: ())
        self.machine.replay(
            [
                images.broker_record(n, {DEFAULT_LISTENER: ("h", 9092)}, epoch=EPOCH)
                for n in (1, 2, 3)
            ]
        )
        assigned = (CreatableReplicaAssignment(0, partition.replicas),)
        settings = tuple(CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items())
        topic = CreatableTopic("t", -1, -1, assigned, settings)
        self.run(CreateTopicsRequest((topic,)))
        self.machine.replay([images.partition_record("t", 0, partition)])

    def run(self, request: Any) -> Any:
        outcome = self.machine.handle(request, RequestContext(1))
        self.machine.replay(outcome.records)
        return outcome.replies[0].response

    @property
    def state(self) -> PartitionImage:
        found = self.machine.image.partition("t", 0)
        assert found is not None
        return found

    def report(self, node_id: int, *, well: bool = False, epoch: int = EPOCH) -> ErrorCode:
        topic_id = self.machine.image.topics["t"].topic_id
        named = {"recovered" if well else "failed": (0, 9)}
        topics = (ReportedReplicas(topic_id, **named), ReportedReplicas(UUID(int=1), (0,)))
        code: ErrorCode = self.run(ReportReplicasRequest(node_id, epoch, topics)).error_code
        return code


def test_a_failed_leader_is_followed_and_a_failed_follower_leaves() -> None:
    world = World(PartitionImage((1, 2, 3), 1, 4, (1, 2, 3), epoch=5))
    assert world.report(1) is ErrorCode.NONE
    expected = PartitionImage((1, 2, 3), 2, 5, (2, 3), epoch=6, failed_replicas=(1,))
    assert world.state == expected
    world.report(1)
    assert world.state == expected, "the same is no news"
    world.report(3)
    assert (world.state.leader_epoch, world.state.in_sync_replicas) == (5, (2,))
    world.report(1, well=True)
    assert world.state.failed_replicas == (3,)


def test_the_last_member_stays_and_leads_until_another_may_lose_records() -> None:
    world = World(PartitionImage((1, 2), 1, 4, (1,), epoch=5))
    world.report(1)
    failed = PartitionImage((1, 2), 1, 4, (1,), epoch=6, failed_replicas=(1,))
    assert world.state == failed
    unclean = ElectLeadersRequest(UNCLEAN, (ElectLeadersTopic("t", (0,)),))
    (told,) = world.run(unclean).replica_election_results
    assert told.partition_result[0].error_code is ErrorCode.NONE
    assert (world.state.leader, world.state.in_sync_replicas) == (2, (2,))
    assert world.state.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_where_records_may_be_lost_another_leads_at_once() -> None:
    state = PartitionImage((1, 2), 1, 4, (1,), epoch=5)
    world = World(state, unclean_leader_election_enable="true")
    world.report(1)
    assert (world.state.leader, world.state.in_sync_replicas) == (2, (2,))


def test_a_failed_replica_is_neither_elected_nor_taken_in() -> None:
    state = PartitionImage((1, 2), 2, 4, (2,), epoch=5, failed_replicas=(1,))
    world = World(state)
    topic_id = world.machine.image.topics["t"].topic_id
    members = (BrokerState(1, EPOCH), BrokerState(2, EPOCH))
    asked = AlterPartitionPartition(0, 4, new_isr_with_epochs=members, partition_epoch=5)
    request = AlterPartitionRequest(2, EPOCH, (AlterPartitionTopic(topic_id, (asked,)),))
    answer = world.run(request)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.INELIGIBLE_REPLICA
    world.machine.replay([images.partition_record("t", 0, replace(state, in_sync_replicas=(1, 2)))])
    preferred = ElectLeadersRequest(PREFERRED, (ElectLeadersTopic("t", (0,)),))
    (told,) = world.run(preferred).replica_election_results
    assert told.partition_result[0].error_code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_a_replica_that_moves_away_is_no_failed_one() -> None:
    world = World(PartitionImage((1, 2), 2, 4, (2,), epoch=5, failed_replicas=(1,)))
    move = ReassignableTopic("t", (ReassignablePartition(0, (2,)),))
    world.run(AlterPartitionReassignmentsRequest(10_000, (move,)))
    assert (world.state.replicas, world.state.failed_replicas) == ((2,), ())


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_report_of_another_start_is_refused(epoch: int) -> None:
    state = PartitionImage((1, 2, 3), 1, 4, (1, 2, 3), epoch=5)
    world = World(state)
    assert world.report(1, epoch=epoch) is ErrorCode.STALE_BROKER_EPOCH
    assert world.state == state


def test_what_the_image_does_not_have_is_reported() -> None:
    world = World(PartitionImage((1, 2, 3), 1, 4, (1, 2, 3), epoch=5))
    where = TopicPartition("t", 0)
    image = world.machine.image
    topic_id = image.topics["t"].topic_id
    assert differences(1, image, set()) == ()
    assert differences(1, image, {where}) == (ReportedReplicas(topic_id, (0,), ()),)
    assert differences(4, image, {where}) == (), "it has no replica there"
    world.report(1)
    image = world.machine.image
    assert differences(1, image, {where}) == ()
    assert differences(1, image, set()) == (ReportedReplicas(topic_id, (), (0,)),)
    (fold,) = images.replay(images.ClusterImage(), images.snapshot_records(image)).topics.values()
    assert fold.partitions == image.topics["t"].partitions
