"""Consumers read the replica in their rack: sent there by the leader, served by the follower."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.replicas.leader import FollowerFetch, Leader
from kafkalite.core.replicas.selection import RACK_AWARE, preferred_read_replica
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, ErrorCode


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    racks = {1: "a", 2: "b", 3: "c"}
    with ThreeBrokers(racks=racks, replica_selector_class=RACK_AWARE) as made:
        made.create(NewTopic("t", replica_assignment=((1, 2, 3),)))
        made.produce("t", b"v0", b"v1")
        made.until(lambda: {made.held(n, "t").log.high_watermark for n in (1, 2, 3)} == {2}, 5)
        yield made
        assert not made.defects


def test_the_leader_sends_a_consumer_to_its_rack(place: ThreeBrokers) -> None:
    found = place.fetch(1, "t", rack="b")
    assert (found.error_code, found.preferred_read_replica) == (ErrorCode.NONE, 2)
    assert not found.records
    assert (found.high_watermark, found.log_start_offset) == (2, 0)
    for rack in ("", "a", "nowhere"):
        found = place.fetch(1, "t", rack=rack)
        assert found.preferred_read_replica == -1, rack
        assert found.records
    waits = place.fetch(1, "t", offset=2, rack="c", wait_ms=600_000)
    assert waits.preferred_read_replica == 3, "it is sent there at once"


def test_a_follower_gives_what_is_committed(place: ThreeBrokers) -> None:
    for node_id in (2, 3):
        found = place.fetch(node_id, "t", rack="b", epoch=0)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, 2)
        assert bytes(found.records or b"")  # type: ignore[arg-type]
        assert found.preferred_read_replica == -1
    assert place.fetch(2, "t", offset=2).error_code is ErrorCode.NONE
    assert place.fetch(2, "t", offset=3).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert place.fetch(2, "t", epoch=1).error_code is ErrorCode.UNKNOWN_LEADER_EPOCH
    old = FetchRequest(
        topics=(FetchTopic("t", partitions=(FetchPartition(0, partition_max_bytes=1 << 20),)),)
    )
    answer = place.ask(2, old, {ApiKey.FETCH: 10})
    refused = answer.responses[0].partitions[0]
    assert refused.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER, "clients before v11"


def test_a_poll_of_a_follower_waits_for_its_high_watermark(place: ThreeBrokers) -> None:
    request = place.fetch_request("t", 2, rack="b", wait_ms=600_000)
    answer = place.peer.spawn(place.asking(2, request, timeout_ms=700_000))
    place.pass_seconds(5)
    assert not answer.done()
    place.produce("t", b"v2")
    place.until(answer.done, 10)
    data = answer.result().responses[0].partitions[0]
    assert data.records
    assert data.high_watermark == 3


def test_a_session_tells_a_preferred_replica_each_time(place: ThreeBrokers) -> None:
    """Otherwise the partition would have no news after the first answer."""
    topic = FetchTopic("t", partitions=(FetchPartition(0, fetch_offset=2),))

    async def thrice() -> list[int]:
        async with place.client(1) as client:
            connection = await client.connect(1)
            told = []
            session_id = 0
            for epoch in (0, 1, 2):
                topics = () if epoch else (topic,)
                asked = FetchRequest(
                    min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics,
                    rack_id="b",
                )  # fmt: skip
                answer = await connection.submit(asked, 5_000)
                session_id = answer.session_id
                told.append(answer.responses[0].partitions[0].preferred_read_replica)
            return told

    assert place.result(place.peer, thrice()) == [2, 2, 2]


def leader_of(*followers: tuple[int, int, int]) -> Leader:
    """Followers by node, log end offset and log start offset, fetched in that order."""
    from kafkalite.core.cluster.image import PartitionImage

    leader = Leader(TopicPartition("t", 0), 1, 0, 0, 0, 10)
    nodes = (1, *(node for node, _, _ in followers))
    leader.replay(PartitionImage(nodes, 1, 0, nodes), 0)
    for now_ms, (node, end, start) in enumerate(followers):
        leader.fetched(FollowerFetch(node, end, start), now_ms)
    return leader


def test_the_longest_log_in_the_rack_is_preferred() -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "b", 5: "c"}
    leader = leader_of((2, 10, 0), (3, 9, 0), (4, 10, 6), (5, 10, 0))
    assert preferred_read_replica(leader, "b", racks, 10) == 4, "the last that caught up"
    assert preferred_read_replica(leader, "b", racks, 5) == 2, "broker 4 begins later"
    assert preferred_read_replica(leader, "b", racks, 11) is None
    assert preferred_read_replica(leader, "a", racks, 5) is None
    assert preferred_read_replica(leader, "", racks, 5) is None
    assert preferred_read_replica(leader, "b", {1: "a", 3: "b"}, 9) == 3, "of those in reach"


def test_no_consumer_is_sent_to_a_follower_that_is_out_of_sync() -> None:
    """It may fall ever further behind."""
    from kafkalite.core.cluster.image import PartitionImage

    leader, racks = leader_of((2, 10, 0), (3, 10, 0)), {1: "a", 2: "b", 3: "c"}
    assert preferred_read_replica(leader, "b", racks, 5) == 2
    leader.replay(PartitionImage((1, 2, 3), 1, 0, (1, 3), 1), 5)
    assert preferred_read_replica(leader, "b", racks, 5) is None
    assert preferred_read_replica(leader, "c", racks, 5) == 3


def test_another_selector_is_refused() -> None:
    from kafkalite.core.config.settings import BrokerConfig

    for name in ("", RACK_AWARE):
        BrokerConfig.parse({"replica.selector.class": name})
    with pytest.raises(ConfigError, match="replica.selector.class"):
        BrokerConfig.parse({"replica.selector.class": "com.example.Nearest"})
