"""Brokers come, go, and come back: who leads then, and who is still in sync."""

from __future__ import annotations

import pytest
from machine_cluster import RECOVERING, Cluster

from kafkalite.core.cluster.config_changes import TOPIC, ChangeConfigs, ConfigChange
from kafkalite.core.cluster.controller import FIRST_BALANCE_MS, Tick
from kafkalite.core.cluster.image import (
    NO_LEADER,
    ClusterRecord,
    PartitionImage,
    broker_record,
    is_registration,
    settled_record,
)
from kafkalite.core.cluster.registrations import BrokerGone, BrokerRegistered, TakeOver
from kafkalite.core.protocol.configs import ConfigOperation
from kafkalite.core.protocol.peers import (
    AllocateProducerIdsRequest,
    ControlledShutdownRequest,
    RemainingPartition,
)
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext
from kafkalite.errors import ErrorCode


def test_the_partitions_of_a_broker_that_is_gone_move_to_the_next_replica_in_sync() -> None:
    cluster = Cluster()
    cluster.create((1, 2, 3), (2, 3, 1), (3, 2), (1, 3))
    cluster.put(PartitionImage((1, 2, 3), 1, 0, (1, 3), 1))
    cluster.stop(1)
    assert 1 not in cluster.machine.image.brokers
    assert cluster.partition(0) == PartitionImage((1, 2, 3), 3, 1, (3,), 2)
    assert cluster.partition(1) == PartitionImage((2, 3, 1), 2, 0, (2, 3), 1)
    assert cluster.partition(2) == PartitionImage((3, 2), 3, 0, (3, 2), 0)
    assert cluster.partition(3) == PartitionImage((1, 3), 3, 1, (3,), 1)
    *changed, own = cluster.written
    assert own == ("/brokers/1", None), "last, so that nobody sees a leader that is not there"
    assert [record.path for record in changed] == ["/topics/t/0", "/topics/t/1", "/topics/t/3"]


def test_the_last_replica_in_sync_stays_so_though_it_is_gone() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    cluster.stop(2, 1)
    assert cluster.partition() == PartitionImage((1, 2), NO_LEADER, 1, (1,), 2)


def test_the_last_replica_in_sync_leads_again_under_a_new_leader_epoch() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    cluster.stop(2, 1)
    cluster.start(2, 21)
    assert cluster.state() == (NO_LEADER, (1,)), "it lacks what 1 has acknowledged"
    cluster.start(1, 11)
    assert cluster.partition() == PartitionImage((1, 2), 1, 2, (1,), 3)


def test_a_restart_that_nobody_saw_costs_leadership_and_membership() -> None:
    cluster = Cluster()
    cluster.create((1, 2, 3), (2, 1))
    assert cluster.start(1, 99) == 2
    assert cluster.partition(0) == PartitionImage((1, 2, 3), 2, 1, (2, 3), 1)
    assert cluster.partition(1) == PartitionImage((2, 1), 2, 0, (2,), 1)
    assert [record.path for record in cluster.written] == [
        "/brokers/1", "/topics/t/0", "/topics/t/1", "/settled_broker_epochs",
    ]  # fmt: skip
    assert cluster.machine.image.settled_epochs == {1: 99, 2: 20, 3: 30}


def test_a_lone_replica_that_restarted_leads_in_a_new_leader_epoch() -> None:
    """Its followers may have records of the old epoch that it has lost."""
    cluster = Cluster()
    cluster.create((1,))
    cluster.start(1, 99)
    assert cluster.partition() == PartitionImage((1,), 1, 1, (1,), 1)


def after_a_power_cut(*members: int) -> Cluster:
    """Partition 0 lost its whole in-sync set at once."""
    cluster = Cluster()
    cluster.create((1, 2, 3))
    cluster.stop(1, 2, 3)
    cluster.put(PartitionImage((1, 2, 3), NO_LEADER, 5, members, 7))
    return cluster


def test_a_member_that_stopped_cleanly_leads_at_once() -> None:
    cluster = after_a_power_cut(1, 2, 3)
    cluster.start(2, 91, cleanly=True)
    assert cluster.partition() == PartitionImage((1, 2, 3), 2, 6, (2,), 8)


def test_a_member_that_may_have_lost_its_tail_waits_for_the_others() -> None:
    cluster = after_a_power_cut(1, 2, 3)
    cluster.start(1, 91)
    assert cluster.partition() == PartitionImage((1, 2, 3), NO_LEADER, 5, (2, 3), 8)
    cluster.start(3, 92)
    assert cluster.partition() == PartitionImage((1, 2, 3), NO_LEADER, 5, (2,), 9)
    cluster.start(2, 93)
    assert cluster.partition() == PartitionImage((1, 2, 3), 2, 6, (2,), 10)


def test_where_records_may_be_lost_the_first_replica_leads_at_once() -> None:
    cluster = Cluster()
    cluster.create((1, 2), unclean_leader_election_enable="true")
    cluster.stop(2)
    cluster.stop(1)
    cluster.start(2, 91)
    expected = PartitionImage((1, 2), 2, 2, (2,), 3, leader_recovery_state=RECOVERING)
    assert cluster.partition() == expected


def test_a_topic_that_may_lose_records_from_now_on_gets_its_leaders() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    cluster.create((1, 2), name="u")
    cluster.stop(2, 1)
    cluster.start(2, 91)
    edit = ("unclean.leader.election.enable", int(ConfigOperation.SET), "true")
    assert cluster.run(ChangeConfigs((ConfigChange(TOPIC, "t", (edit,)),))) == [None]
    assert (cluster.partition().leader, cluster.partition(name="u").leader) == (2, NO_LEADER)


def test_brokers_that_may_lose_records_find_leaders_with_time() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    cluster.stop(2, 1)
    cluster.start(2, 91)
    cluster.run(Tick(1))
    cluster.machine.config = cluster.machine.config.with_dynamic(
        {"unclean.leader.election.enable": "true"}
    )
    assert cluster.run(Tick(FIRST_BALANCE_MS)) == 0, "not yet"
    assert cluster.run(Tick(FIRST_BALANCE_MS + 1)) == 1
    assert cluster.partition().leader == 2


def test_late_news_of_an_earlier_start_change_nothing() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    cluster.start(1, 99)
    before = cluster.machine.image
    assert cluster.run(BrokerGone(1, 10)) == 0
    assert cluster.run(BrokerGone(7, 10)) == 0
    assert cluster.start(1, 10) == 0
    assert cluster.written == ()
    assert cluster.machine.image == before


def test_a_registration_that_is_read_again_changes_addresses_alone() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    cluster.run(ControlledShutdownRequest(1, 10))
    cluster.start(1, 10)
    assert cluster.written == ()
    cluster.start(1, 10, rack="r")
    assert [record.path for record in cluster.written] == ["/brokers/1"]
    assert cluster.machine.image.brokers[1].rack == "r"
    assert cluster.machine.image.brokers[1].in_controlled_shutdown


# ---- a new controller ----------------------------------------------------------------------------


def loaded(*partitions: PartitionImage, alive: dict[int, int], settled: dict[int, int]) -> Cluster:
    """What a new controller reads: partitions, live brokers and their epochs, those settled."""
    cluster = Cluster()
    cluster.create(*(p.replicas for p in partitions))
    cluster.put(*partitions)
    cluster.machine.replay([ClusterRecord(f"/brokers/{n}", None) for n in (1, 2, 3)])
    at = {DEFAULT_LISTENER: ("h", 1)}
    cluster.machine.replay([broker_record(n, at, epoch=e) for n, e in alive.items()])
    cluster.machine.replay([settled_record(settled)])
    return cluster


def test_a_new_controller_settles_deaths_and_restarts_that_nobody_saw() -> None:
    cluster = loaded(
        PartitionImage((1, 2), 1, 4, (1, 2), 5),
        PartitionImage((2, 1), 2, 4, (2, 1), 5),
        PartitionImage((3, 2), 3, 4, (3,), 5),
        PartitionImage((2,), 2, 4, (2,), 5),
        alive={2: 20, 3: 31},
        settled={1: 10, 2: 20, 3: 30},
    )
    assert cluster.run(TakeOver()) == 3
    assert [cluster.partition(index) for index in range(4)] == [
        PartitionImage((1, 2), 2, 5, (2,), 6),
        PartitionImage((2, 1), 2, 4, (2,), 6),
        PartitionImage((3, 2), 3, 5, (3,), 6),
        PartitionImage((2,), 2, 4, (2,), 5),
    ]
    assert cluster.written[-1].path == "/settled_broker_epochs"
    assert cluster.run(TakeOver()) == 0
    assert cluster.written == ()


def test_a_step_of_a_controller_that_was_cut_off_is_done_again() -> None:
    """The partitions that were written do not change once more, apart from leaders' epochs."""
    cluster = loaded(
        PartitionImage((1, 2), 2, 5, (2,), 6),  # written before the cut
        PartitionImage((1, 2), 1, 4, (1, 2), 5),
        alive={1: 11, 2: 20},
        settled={1: 10, 2: 20},
    )
    assert cluster.run(TakeOver()) == 1
    assert cluster.partition(0) == PartitionImage((1, 2), 2, 5, (2,), 6)
    assert cluster.partition(1) == PartitionImage((1, 2), 2, 5, (2,), 6)


def test_of_members_that_all_came_back_with_doubtful_logs_one_leads() -> None:
    cluster = loaded(
        PartitionImage((1, 2), 1, 4, (2, 1), 5), alive={1: 11, 2: 21}, settled={1: 10, 2: 20}
    )
    cluster.run(TakeOver())
    assert cluster.partition() == PartitionImage((1, 2), 1, 5, (1,), 6)


def test_a_new_controller_completes_what_its_predecessor_left() -> None:
    moving = PartitionImage((3, 2, 1), 1, 4, (1, 2, 3), 5, (3,), (1,))
    alive = {1: 10, 2: 20, 3: 30}
    cluster = loaded(moving, alive=alive, settled=alive)
    cluster.run(TakeOver())
    assert cluster.partition() == PartitionImage((3, 2), 3, 5, (2, 3), 6)


# ---- goodbye -------------------------------------------------------------------------------------


def test_a_broker_that_says_goodbye_hands_over_first() -> None:
    cluster = Cluster()
    cluster.create((1, 2, 3), (2, 1), (1, 3), (1,))
    cluster.put(
        PartitionImage((1, 2, 3), 1, 0, (1, 2, 3), 1),
        PartitionImage((2, 1), 2, 0, (2, 1), 1),
        PartitionImage((1, 3), 1, 0, (1,), 1),
    )
    told = cluster.run(ControlledShutdownRequest(1, 10))
    assert (told.error_code, told.remaining_partitions) == (0, (RemainingPartition("t", 2),))
    assert cluster.written[0].path == "/brokers/1"
    assert is_registration(cluster.written[0].path)
    assert [cluster.state(index) for index in range(4)] == [
        (2, (2, 3)), (2, (2,)), (1, (1,)), (1, (1,)),
    ]  # fmt: skip
    assert cluster.run(ControlledShutdownRequest(1, 10)) == told
    assert cluster.written == ()


def test_a_follower_that_catches_up_takes_over_from_a_leader_that_says_goodbye() -> None:
    cluster = Cluster()
    cluster.create((1, 3))
    cluster.put(PartitionImage((1, 3), 1, 0, (1,), 1))
    cluster.run(ControlledShutdownRequest(1, 10))
    assert cluster.alter(1, 3).error_code is ErrorCode.NEW_LEADER_ELECTED
    assert cluster.partition() == PartitionImage((1, 3), 3, 1, (3,), 2)
    assert cluster.run(ControlledShutdownRequest(1, 10)).remaining_partitions == ()
    assert cluster.alter(3, 1).error_code is ErrorCode.INELIGIBLE_REPLICA


def test_goodbye_is_refused_to_strangers_and_earlier_starts() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    for request, code in (
        (ControlledShutdownRequest(7, 1), ErrorCode.BROKER_NOT_AVAILABLE),
        (ControlledShutdownRequest(1, 9), ErrorCode.STALE_BROKER_EPOCH),
    ):
        assert cluster.run(request).error_code is code
        assert cluster.written == ()
    assert cluster.run(ControlledShutdownRequest(1)).error_code is ErrorCode.NONE, "v1 knows none"


def test_a_goodbye_is_forgotten_with_the_next_start() -> None:
    cluster = Cluster()
    cluster.create((1, 2))
    cluster.run(ControlledShutdownRequest(1, 10))
    cluster.stop(1)
    cluster.start(1, 11, cleanly=True)
    assert not cluster.machine.image.brokers[1].in_controlled_shutdown
    assert cluster.alter(2, 1).isr == (2, 1)


def test_new_partitions_do_not_count_on_a_broker_that_says_goodbye() -> None:
    cluster = Cluster()
    cluster.run(ControlledShutdownRequest(1, 10))
    cluster.create((1, 2), (2, 3))
    assert cluster.partition(0) == PartitionImage((1, 2), 2, 1, (2,), 1)
    assert cluster.partition(1) == PartitionImage((2, 3), 2, 0, (2, 3))
    cluster.run(CreatePartitionsRequest((CreatePartitionsTopic("t", 8, None),), 0, False))
    for index in range(2, 8):
        assert 1 not in cluster.state(index)[1]
        assert cluster.partition(index).leader != 1


@pytest.mark.parametrize("manual", [False, True])
def test_new_partitions_need_a_broker_that_stays(manual: bool) -> None:
    cluster = Cluster((1,))
    cluster.run(ControlledShutdownRequest(1, 10))
    topic = CreatableTopic("t", 1, 1, (), ())
    if manual:
        with pytest.raises(AssertionError, match="for partition 0 are fenced or in controlled"):
            cluster.create((1,))
        return
    (result,) = cluster.run(CreateTopicsRequest((topic,))).topics
    assert result.error_code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert result.error_message == (
        "Unable to replicate the partition 1 time(s): All brokers are currently fenced or in "
        "controlled shutdown."
    )


def test_producer_ids_are_given_to_the_present_start_of_a_broker_alone() -> None:
    cluster = Cluster()
    first = cluster.run(AllocateProducerIdsRequest(1, 10))
    assert (first.producer_id_start, first.producer_id_len) == (0, 1_000)
    for request in (AllocateProducerIdsRequest(1, 9), AllocateProducerIdsRequest(9, 9)):
        assert cluster.run(request).error_code is ErrorCode.STALE_BROKER_EPOCH
        assert cluster.written == ()
    assert cluster.run(AllocateProducerIdsRequest(2, 20)).producer_id_start == 1_000


@pytest.mark.parametrize("written", range(5))
def test_a_registration_whose_step_was_cut_off_is_handled_again(written: int) -> None:
    cluster = Cluster()
    cluster.create((1, 2), (1, 3), (2, 3))
    record = broker_record(1, {DEFAULT_LISTENER: ("h", 1)}, epoch=99)
    outcome = cluster.machine.handle(BrokerRegistered(record), RequestContext(1))
    assert len(outcome.records) == 4
    cluster.machine.replay(outcome.records[:written])
    cluster.run(BrokerRegistered(record))
    assert [cluster.state(index) for index in range(3)] == [(2, (2,)), (3, (3,)), (2, (2, 3))]
    assert cluster.machine.image.settled_epochs[1] == cluster.epoch(1) == 99
    cluster.run(BrokerRegistered(record))
    assert cluster.written == ()


def test_topics_are_made_while_a_broker_with_replicas_is_away() -> None:
    """A broker that restarts keeps nobody from making topics; one without replicas does not count:
    it may be gone for good."""
    cluster = Cluster((1, 2, 3, 4))
    cluster.create((1, 2, 3))
    cluster.stop(3, 4)
    (made,) = cluster.run(CreateTopicsRequest((CreatableTopic("u", 2, 3, (), ()),))).topics
    assert not made.error_code
    for partition in cluster.machine.image.topics["u"].partitions:
        assert {*partition.replicas} == {1, 2, 3}
        assert {*partition.in_sync_replicas} == {1, 2}
        assert partition.leader in {1, 2}
    (refused,) = cluster.run(CreateTopicsRequest((CreatableTopic("v", 1, 4, (), ()),))).topics
    assert refused.error_code is ErrorCode.INVALID_REPLICATION_FACTOR
