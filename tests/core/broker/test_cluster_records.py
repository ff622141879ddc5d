"""Records of a replicated partition: given up everywhere, and their epochs' ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.list_offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkalite.core.protocol.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkalite.errors import ErrorCode


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    with ThreeBrokers() as made:
        made.create(NewTopic("t", replica_assignment=((1, 2, 3),)))
        made.produce("t", b"a", b"b", b"c")
        yield made
        assert not made.defects


def delete(offset: int, timeout_ms: int = 20_000) -> DeleteRecordsRequest:
    topic = DeleteRecordsTopic("t", (DeleteRecordsPartition(0, offset),))
    return DeleteRecordsRequest((topic,), timeout_ms)


def result(answer: Any) -> tuple[ErrorCode, int]:
    (told,) = answer.topics[0].partitions
    return told.error_code, told.low_watermark


def starts(place: ThreeBrokers) -> list[int]:
    return [place.held(node_id, "t").log.log_start_offset for node_id in place.running()]


def test_records_are_given_up_once_every_replica_has(place: ThreeBrokers) -> None:
    assert result(place.ask(2, delete(2)))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result(place.ask(1, delete(2))) == (ErrorCode.NONE, 2)
    assert starts(place) == [2, 2, 2]
    assert result(place.ask(1, delete(-1))) == (ErrorCode.NONE, 3)
    assert starts(place) == [3, 3, 3]


def test_a_replica_that_does_not_follow_is_waited_for_until_its_broker_is_gone(
    place: ThreeBrokers,
) -> None:
    place.pause(3)
    assert result(place.ask(1, delete(1, timeout_ms=1_000)))[0] is ErrorCode.REQUEST_TIMED_OUT
    place.go_on(3)
    place.until(lambda: starts(place) == [1, 1, 1])
    place.pause(3)
    answer = place.peer.spawn(place.asking(1, delete(2)))
    place.pass_seconds(2)
    assert not answer.done()
    place.kill(3)
    place.until(answer.done)
    assert result(answer.result()) == (ErrorCode.NONE, 2)
    assert not place.broker(1).deletions


def test_a_deletion_that_waits_ends_with_the_leadership(place: ThreeBrokers) -> None:
    place.pause(3)
    answer = place.peer.spawn(place.asking(1, delete(2, timeout_ms=60_000), timeout_ms=60_000))
    place.pass_seconds(1)
    assert not answer.done()
    order = (ReassignableTopic("t", (ReassignablePartition(0, (2, 1, 3)),)),)
    place.ask(1, AlterPartitionReassignmentsRequest(10_000, order))
    place.ask(1, ElectLeadersRequest(0, (ElectLeadersTopic("t", (0,)),), 10_000))
    place.until(answer.done)
    assert result(answer.result())[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_epochs_end_where_the_next_one_began(place: ThreeBrokers) -> None:
    def ends(node_id: int, epoch: int, current: int = -1) -> Any:
        asked = OffsetForLeaderTopic("t", (OffsetForLeaderPartition(0, current, epoch),))
        answer = place.ask(node_id, OffsetForLeaderEpochRequest(-1, (asked,)))
        (told,) = answer.topics[0].partitions
        return told.error_code, told.leader_epoch, told.end_offset

    assert ends(1, 0, 0) == (ErrorCode.NONE, 0, 3)
    assert ends(2, 0)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    place.kill(1)
    place.agree()
    state = place.state("t")
    place.produce("t", b"d")
    leader, epoch = state.leader, state.leader_epoch
    assert ends(leader, 0) == (ErrorCode.NONE, 0, 3)
    assert ends(leader, epoch, epoch) == (ErrorCode.NONE, epoch, 4)
    assert ends(leader, epoch, epoch - 1)[0] is ErrorCode.FENCED_LEADER_EPOCH
    assert ends(leader, epoch, epoch + 1)[0] is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ends(leader, epoch + 1) == (ErrorCode.NONE, -1, -1)


def test_followers_at_rest_learn_what_is_committed(place: ThreeBrokers) -> None:
    """With no later record, the answer to the fetch that waited tells them."""
    place.until(lambda: [place.held(n, "t").log.high_watermark for n in (1, 2, 3)] == [3] * 3, 2)


def test_a_follower_has_one_session_at_its_leader_whatever_it_begins_to_follow(
    place: ThreeBrokers,
) -> None:
    for number in range(5):
        place.create(NewTopic(f"more-{number}", replica_assignment=((1, 2, 3),)))
        place.produce(f"more-{number}", b"a")
    assert len(place.broker(1).fetch_sessions) == 2


def test_new_partitions_wait_for_no_poll_that_their_followers_have_given_up(
    place: ThreeBrokers,
) -> None:
    long_poll_s = place.broker(2).config["replica.fetch.wait.max.ms"] / 1000
    place.pass_seconds(2 * long_poll_s)
    for number in range(6):
        place.create(NewTopic(f"new-{number}", replica_assignment=((1, 2, 3),)))
        asked = place.seconds
        place.produce(f"new-{number}", b"a")
        assert place.seconds - asked < long_poll_s / 2
    assert place.broker(1).gauges()["waiting_requests"] == 2  # one of each follower
