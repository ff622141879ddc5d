"""Below min.insync.replicas: who left the in-sync set has all that is committed, and may lead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_cluster import RECOVERING, Cluster

from kafkalite.core.cluster.config_changes import TOPIC, ChangeConfigs, ConfigChange
from kafkalite.core.cluster.image import NO_LEADER, ClusterImage, PartitionImage, partition_record
from kafkalite.core.cluster.image import replay as folded
from kafkalite.core.cluster.registrations import TakeOver
from kafkalite.core.protocol.configs import ConfigOperation
from kafkalite.core.replicas.leader import Altered, FollowerFetch, Leader
from kafkalite.core.types import TopicPartition


def alone() -> Cluster:
    """Leader 1 is alone in sync; two must be. 3 left before 2 did."""
    cluster = Cluster()
    cluster.create((1, 2, 3), **{"min.insync.replicas": "2"})
    cluster.put(PartitionImage((1, 2, 3), 1, 0, (1, 2), 1))
    assert cluster.alter(1).isr == (1,)
    assert eligible(cluster) == (2,)
    return cluster


def eligible(cluster: Cluster) -> tuple[int, ...]:
    return cluster.partition().eligible_leader_replicas


def test_they_are_those_that_leave_below_the_minimum_until_enough_are_in_sync() -> None:
    cluster = Cluster()
    cluster.create((1, 2, 3), **{"min.insync.replicas": "2"})
    cluster.alter(1, 2)
    assert eligible(cluster) == (), "what is committed from now on the third may lack"
    cluster.alter(1)
    assert eligible(cluster) == (2,)
    cluster.alter(1, 3)
    assert eligible(cluster) == ()


def test_one_of_them_leads_where_the_last_member_dies() -> None:
    cluster = alone()
    cluster.stop(1)
    assert cluster.state() == (2, (2,))
    assert eligible(cluster) == (1,), "nothing was committed since"


def test_one_of_them_leads_where_the_last_member_has_lost_its_tail() -> None:
    cluster = alone()
    cluster.start(1, 91)
    assert cluster.state() == (2, (2,))
    assert eligible(cluster) == ()


def test_one_that_may_have_lost_its_tail_is_eligible_no_more() -> None:
    cluster = alone()
    cluster.start(2, 91)
    assert cluster.state() == (1, (1,))
    assert eligible(cluster) == ()
    cluster.stop(1)
    assert cluster.state() == (NO_LEADER, (1,))


def test_of_members_and_eligible_ones_that_are_all_away_the_whole_log_leads() -> None:
    cluster = alone()
    cluster.stop(2, 1)
    cluster.start(2, 91, cleanly=True)
    assert cluster.state()[0] == 2


def test_where_all_are_in_doubt_the_last_member_leads_and_no_eligible_one() -> None:
    """It was killed, and the eligible one may have lost its disk."""
    cluster = alone()
    cluster.put(replace(cluster.partition(), leader=3, in_sync_replicas=(3,)))
    image, brokers = cluster.machine.image, cluster.machine.image.brokers
    again = {node: replace(each, epoch=each.epoch + 1) for node, each in brokers.items()}
    cluster.machine.image = replace(image, brokers=again)  # nobody saw the restarts
    cluster.run(TakeOver())
    assert cluster.state() == (3, (3,))


def test_an_eligible_one_that_is_away_is_waited_for_where_the_member_is_in_doubt() -> None:
    cluster = alone()
    cluster.stop(2, 1)
    cluster.start(1, 91)
    assert cluster.state() == (NO_LEADER, (2,))


def test_an_unclean_election_leaves_nobody_eligible() -> None:
    cluster = Cluster()
    cluster.create(
        (1, 2, 3), **{"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}
    )
    cluster.put(PartitionImage((1, 2, 3), 1, 0, (1,), 1))
    cluster.stop(1)
    assert cluster.partition().leader_recovery_state is RECOVERING
    assert eligible(cluster) == ()


def test_with_a_smaller_minimum_the_leader_commits_again() -> None:
    cluster = alone()
    edit = ("min.insync.replicas", int(ConfigOperation.SET), "1")
    assert cluster.run(ChangeConfigs((ConfigChange(TOPIC, "t", (edit,)),))) == [None]
    assert eligible(cluster) == ()


def test_it_is_written_and_read() -> None:
    image = PartitionImage((1, 2, 3), 1, 0, (1,), 1, eligible_leader_replicas=(2, 3))
    cluster = Cluster()
    cluster.create((1, 2, 3))
    read = folded(cluster.machine.image, [partition_record("t", 0, image)])
    assert isinstance(read, ClusterImage)
    assert read.topics["t"].partitions[0] == image


def test_the_leader_commits_nothing_as_long_as_there_are_any() -> None:
    where, replicas = TopicPartition("t", 0), (1, 2, 3)
    leader = Leader(where, 1, 0, 0, high_watermark=5, log_end_offset=5, in_sync_min=2)
    leader.replay(PartitionImage(replicas, 1, 0, (1, 2), 1), 0)
    leader.fetched(FollowerFetch(2, 5), 0)
    leader.appended(7)
    (asked,) = leader.tick(100_000).effects
    leader.altered(asked, Altered(0, 2, (1,)), 100_000)
    assert leader.in_sync_replicas == {1}
    assert leader.high_watermark == 5, "the image will tell who is eligible"
    leader.replay(PartitionImage(replicas, 1, 0, (1,), 2, eligible_leader_replicas=(2,)), 100_001)
    assert not leader.appended(8)
    assert leader.high_watermark == 5
    leader.replay(PartitionImage(replicas, 1, 0, (1,), 3), 100_002)
    assert leader.high_watermark == 8


@pytest.mark.parametrize("in_sync_min", [1, 2])
def test_with_the_minimum_in_sync_an_answer_of_the_controller_is_enough(in_sync_min: int) -> None:
    where = TopicPartition("t", 0)
    leader = Leader(where, 1, 0, 0, high_watermark=5, log_end_offset=5, in_sync_min=in_sync_min)
    leader.replay(PartitionImage((1, 2, 3), 1, 0, (1, 2, 3), 1), 0)
    leader.fetched(FollowerFetch(2, 5), 99_999)
    leader.appended(7)
    leader.fetched(FollowerFetch(2, 7), 100_000)
    (asked,) = leader.tick(100_000).effects
    leader.altered(asked, Altered(0, 2, (1, 2)), 100_000)
    assert leader.high_watermark == 7
