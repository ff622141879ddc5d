"""A log fails on one broker of three: others lead, and wait for it no more."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.protocol.metadata import MetadataRequest
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    with ThreeBrokers(replica_lag_time_max_ms="3600000") as made:
        made.create(NewTopic("t", replica_assignment=((1, 2, 3),)))
        made.produce("t", b"a")
        yield made
        assert not made.defects


def offline(place: ThreeBrokers, asked: int, topic: str = "t") -> tuple[int, ...]:
    topics = {each.name: each for each in place.ask(asked, MetadataRequest(None)).topics}
    found: tuple[int, ...] = topics[topic].partitions[0].offline_replicas
    return found


def fail_for_good(place: ThreeBrokers, node_id: int) -> None:
    place.brokers[node_id].storage.fail("sync", errno.EIO)


def fail_for_now(place: ThreeBrokers, node_id: int) -> None:
    storage = place.brokers[node_id].storage
    storage.fail("append", errno.EIO)
    storage.fail("truncate", errno.EIO)


def test_another_leads_where_the_leaders_log_has_failed(place: ThreeBrokers) -> None:
    fail_for_good(place, 1)
    place.produce("t", b"b", b"c")
    state = place.agree().topics["t"].partitions[0]
    assert (state.leader, sorted(state.in_sync_replicas)) == (2, [2, 3])
    assert (state.leader_epoch, state.failed_replicas) == (1, (1,))
    assert [offline(place, node_id) for node_id in (1, 2, 3)] == [(1,)] * 3
    place.stop(1)
    place.start_all()
    place.until(lambda: sorted(place.state("t").in_sync_replicas) == [1, 2, 3])
    assert place.state("t").failed_replicas == ()
    assert place.held(1, "t").log.log_end_offset == place.held(2, "t").log.log_end_offset


def test_a_follower_whose_log_has_failed_is_not_waited_for(place: ThreeBrokers) -> None:
    """It would leave the in-sync set only after replica.lag.time.max.ms, here an hour."""
    fail_for_good(place, 3)
    place.produce("t", b"b", b"c")
    state = place.agree().topics["t"].partitions[0]
    assert (state.leader, state.leader_epoch, state.in_sync_replicas) == (1, 0, (1, 2))
    assert offline(place, 2) == (3,)


def test_a_log_that_is_well_again_is_in_sync_again(place: ThreeBrokers) -> None:
    fail_for_now(place, 1)
    place.produce("t", b"b")
    place.until(lambda: place.state("t").leader == 2)
    assert place.held(1, "t").log.failure is not None
    place.until(lambda: place.held(1, "t").log.failure is None, 120)
    place.until(lambda: sorted(place.state("t").in_sync_replicas) == [1, 2, 3])
    assert place.state("t").failed_replicas == ()


def test_the_last_member_leads_on_for_readers(place: ThreeBrokers) -> None:
    place.create(NewTopic("alone", replica_assignment=((1,),)))
    place.produce("alone", b"a")
    fail_for_good(place, 1)
    batch = bytes(encode(Columns([None], [b"v"], [1_000])))
    data = (TopicProduceData("alone", (PartitionProduceData(0, batch),)),)
    answer = place.ask(1, ProduceRequest(None, -1, 5_000, data))
    (told,) = answer.responses[0].partition_responses
    assert told.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    place.until(lambda: place.state("alone").failed_replicas == (1,))
    assert (place.state("alone").leader, place.state("alone").leader_epoch) == (1, 0)
    assert place.fetch(1, "alone").records
    assert offline(place, 2, "alone") == (1,)


@pytest.mark.parametrize(("number", "eligible"), [(errno.ENOSPC, (3,)), (errno.EIO, ())])
def test_one_that_leaves_stays_eligible_unless_its_disk_refused_to_sync(
    place: ThreeBrokers, number: int, eligible: tuple[int, ...]
) -> None:
    """A full disk has lost nothing of what was committed."""
    settings = {"min.insync.replicas": "3"}
    place.create(NewTopic("all", replica_assignment=((1, 2, 3),), configs=settings))
    place.produce("all", b"a")
    if number == errno.ENOSPC:
        place.brokers[3].storage.fail("append", number, times=3)
    else:
        fail_for_good(place, 3)
    batch = bytes(encode(Columns([None], [b"v"], [1_000])))
    data = (TopicProduceData("all", (PartitionProduceData(0, batch),)),)
    place.ask(1, ProduceRequest(None, 1, 5_000, data))
    place.until(lambda: place.state("all").failed_replicas == (3,), 30)
    assert sorted(place.state("all").in_sync_replicas) == [1, 2]
    assert place.state("all").eligible_leader_replicas == eligible


@pytest.mark.parametrize("full", [1, 3])
def test_others_go_on_where_a_disk_is_full(place: ThreeBrokers, full: int) -> None:
    """The log is whole, so nothing has to be opened again once there is room."""
    place.brokers[full].storage.fail("append", errno.ENOSPC, times=3)
    begin = place.seconds
    place.produce("t", b"b", b"c")
    assert place.seconds - begin < 5
    place.until(lambda: place.state("t").failed_replicas == (full,), 5)
    assert full not in place.state("t").in_sync_replicas
    assert place.held(full, "t").log.failure is None
    place.until(lambda: sorted(place.state("t").in_sync_replicas) == [1, 2, 3], 60)
    assert place.state("t").failed_replicas == ()
    assert {place.held(node, "t").log.log_end_offset for node in (1, 2, 3)} == {3}


def test_a_batch_whose_predecessor_went_to_the_leader_before_waits_for_it(
    place: ThreeBrokers,
) -> None:
    """An idempotent producer may send it before it sends its predecessor again."""

    def code(node_id: int, sequence: int, producer_id: int = 70) -> ErrorCode:
        columns = Columns([None], [b"v"], [1_000])
        batch = encode(columns, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        data = (TopicProduceData("t", (PartitionProduceData(0, bytes(batch)),)),)
        answer = place.ask(node_id, ProduceRequest(None, -1, 5_000, data))
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    assert [code(1, n) for n in (0, 1)] == [ErrorCode.NONE] * 2
    assert code(1, 3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # no other has led
    place.kill(1)
    place.until(lambda: place.state("t").leader == 2)
    assert [code(2, n) for n in (3, 4)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert [code(2, n) for n in (2, 3, 4)] == [ErrorCode.NONE] * 3
    assert code(2, 6) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [code(2, n, 71) for n in (1, 2)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert [code(2, n, 71) for n in (0, 1)] == [ErrorCode.NONE] * 2, "0 comes first"
