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
from kafkalite.core.cluster.image import NO_LEADER, LeaderRecoveryState, PartitionImage
from kafkalite.core.cluster.registrations import BrokerGone, BrokerRegistered
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

    def start(self, node_id: int, *, cleanly: bool = False) -> None:
        at = {DEFAULT_LISTENER: ("h", 9092)}
        record = images.broker_record(node_id, at, epoch=EPOCH + 1, stopped_cleanly=cleanly)
        self.run(BrokerRegistered(record))

    def stop(self, node_id: int) -> None:
        self.run(BrokerGone(node_id, self.machine.image.brokers[node_id].epoch))

    def alter(self, *members: int) -> None:
        """The leader asks for an in-sync set."""
        known, topic_id = self.state, self.machine.image.topics["t"].topic_id
        states = tuple(BrokerState(node, EPOCH) for node in members)
        asked = AlterPartitionPartition(
            0, known.leader_epoch, new_isr_with_epochs=states, partition_epoch=known.epoch
        )
        topics = (AlterPartitionTopic(topic_id, (asked,)),)
        answer = self.run(AlterPartitionRequest(known.leader, EPOCH, topics))
        assert answer.topics[0].partitions[0].error_code is ErrorCode.NONE

    @property
    def state(self) -> PartitionImage:
        found = self.machine.image.partition("t", 0)
        assert found is not None
        return found

    def report(
        self, node_id: int, *, well: bool = False, lost: bool = False, epoch: int = EPOCH
    ) -> ErrorCode:
        topic_id = self.machine.image.topics["t"].topic_id
        named = {"recovered" if well else "failed": (0, 9), "lost": (0,) if lost else ()}
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


def test_one_whose_log_has_failed_stays_eligible_and_leads_once_it_is_well() -> None:
    """Its disk was full: it has all that was acknowledged. The one that was elected in its place
    has lost the tail of its log."""
    world = World(PartitionImage((2, 3, 1), 2, 4, (2, 3), epoch=5), min_insync_replicas="2")
    world.alter(2)
    world.report(2)
    world.stop(2)
    assert (world.state.leader, world.state.eligible_leader_replicas) == (3, (2,))
    world.stop(3)
    world.start(2, cleanly=True)
    assert (world.state.leader, world.state.in_sync_replicas) == (NO_LEADER, (2,))
    world.start(3)
    assert (world.state.leader, world.state.in_sync_replicas) == (NO_LEADER, (2,))
    world.report(2, well=True, epoch=EPOCH + 1)
    assert (world.state.leader, world.state.in_sync_replicas) == (2, (2,))


def test_a_whole_log_is_elected_while_another_waits_for_its_disk() -> None:
    world = World(PartitionImage((1, 2, 3), 1, 4, (1, 2), epoch=5), min_insync_replicas="2")
    world.report(2)
    assert world.state.eligible_leader_replicas == (2,)
    world.stop(1)
    assert (world.state.leader, world.state.in_sync_replicas) == (NO_LEADER, (1, 2))
    world.start(1, cleanly=True)
    assert (world.state.leader, world.state.in_sync_replicas) == (1, (1,))
    assert world.state.eligible_leader_replicas == (2,)


def test_one_that_is_well_again_leads_where_the_last_member_is_away() -> None:
    world = World(PartitionImage((1, 2, 3), 1, 4, (1, 2), epoch=5), min_insync_replicas="2")
    world.report(2)
    world.stop(1)
    world.report(2, well=True)
    assert (world.state.leader, world.state.in_sync_replicas) == (2, (2,))
    assert world.state.eligible_leader_replicas == (1,)


def test_a_disk_that_did_not_sync_makes_nobody_eligible() -> None:
    world = World(PartitionImage((1, 2, 3), 1, 4, (1, 2), epoch=5), min_insync_replicas="2")
    world.report(2, lost=True)
    assert (world.state.in_sync_replicas, world.state.eligible_leader_replicas) == ((1,), ())
    world.stop(1)
    world.start(1)
    assert (world.state.leader, world.state.in_sync_replicas) == (1, (1,))


def test_the_last_member_whose_disk_did_not_sync_leaves_for_an_eligible_one() -> None:
    world = World(PartitionImage((1, 2, 3), 1, 4, (1, 2), epoch=5), min_insync_replicas="2")
    world.alter(1)
    world.report(1, lost=True)
    assert (world.state.leader, world.state.in_sync_replicas) == (2, (2,))
    assert world.state.eligible_leader_replicas == ()


def test_one_whose_disk_failed_to_sync_later_is_reported_again() -> None:
    world = World(PartitionImage((1, 2, 3), 1, 4, (1, 2), epoch=5), min_insync_replicas="2")
    where, topic_id = TopicPartition("t", 0), world.machine.image.topics["t"].topic_id
    world.report(2)
    assert differences(2, world.machine.image, {where}) == ()
    expected = (ReportedReplicas(topic_id, (0,), (), (0,)),)
    assert differences(2, world.machine.image, {where}, {where}) == expected
    world.report(2, lost=True)
    assert world.state.eligible_leader_replicas == ()
    assert differences(2, world.machine.image, {where}, {where}) == ()


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
