"""Where a log ends, as a leader tells it that may have a successor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.replicas.partition import READ_COMMITTED, READ_UNCOMMITTED
from kafkalite.errors import ErrorCode

LATEST = -1
SOMETIME = 5_000  # after the records, which are of 1,000
EARLIEST = -2


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    with ThreeBrokers(replica_fetch_wait_max_ms="30000") as made:
        made.create(NewTopic("t", replica_assignment=((1, 2, 3),)))
        made.produce("t", b"a", b"b")
        made.pass_seconds(10)  # followers at rest ask all the same
        yield made
        assert not made.defects


async def listed(
    place: ThreeBrokers, timestamp: int = LATEST, isolation_level: int = READ_UNCOMMITTED
) -> ErrorCode | int:
    """What broker 1 answers a consumer: an offset, or an error."""
    topics = (ListOffsetsTopic("t", (ListOffsetsPartition(0, timestamp=timestamp),)),)
    answer = await place.asking(1, ListOffsetsRequest(-1, isolation_level, topics))
    told = answer.topics[0].partitions[0]
    return told.error_code or told.offset


def ask(place: ThreeBrokers, *args: int) -> ErrorCode | int:
    return place.result(place.peer, listed(place, *args))


def test_a_leader_without_its_followers_tells_no_end(place: ThreeBrokers) -> None:
    assert ask(place) == 2
    assert ask(place, SOMETIME) == -1
    place.isolate(1, from_clients=False)
    place.pass_seconds(3)
    assert ask(place) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert ask(place, SOMETIME) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert ask(place, EARLIEST) == 0
    assert ask(place, 1_000) == 0, "a record that is there stays"
    place.heal()


def test_a_leader_that_was_paused_does_not_tell_the_end_of_before(place: ThreeBrokers) -> None:
    place.pause(1)
    place.pass_seconds(8)
    asking = place.peer.spawn(listed(place))
    place.pass_seconds(1)
    place.go_on(1)
    place.run(asking.done, 60)
    refusals = ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert asking.result() in refusals


def test_a_silent_follower_keeps_only_committed_readers_waiting(place: ThreeBrokers) -> None:
    """It may be cut off together with a successor; until it is out of sync who reads committed
    records, such as a state store that is restored, waits for it."""
    place.pause(3)
    place.pass_seconds(3)
    assert ask(place) == 2
    assert ask(place, LATEST, READ_COMMITTED) is ErrorCode.OFFSET_NOT_AVAILABLE
    place.until(lambda: ask(place, LATEST, READ_COMMITTED) == 2, 30)
    place.go_on(3)
    place.agree()
