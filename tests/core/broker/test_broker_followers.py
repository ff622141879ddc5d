"""A leader and the followers that fetch from it, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.cluster.image import (
    PartitionImage,
    broker_record,
    partition_record,
    topic_record,
)
from kafkalite.core.protocol.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import batches, encode
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode

Start = Callable[..., Any]
REPLICAS = (1, 2, 3)
HOUR_MS = 3_600_000
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def led(running: Any, *in_sync: int, epoch: int = 1, leader: int = 1, at: int = 1) -> None:
    """Topic t has three replicas; brokers 2 and 3 are registered. `at`: the partition's epoch."""
    image = PartitionImage(REPLICAS, leader, epoch, in_sync, at)
    brokers = tuple(
        broker_record(node, {"PLAINTEXT": ("127.0.0.1", node)}, epoch=7) for node in (2, 3)
    )
    topic = topic_record(replace(running.broker.image.topics["t"], partitions=(image,)))
    await running.broker.steering.apply((*brokers, topic, partition_record("t", 0, image)))


def write(acks: int = -1) -> ProduceRequest:
    batch = bytes(encode(Columns([None], [b"v"], [1_000])))
    data = (TopicProduceData("t", (PartitionProduceData(0, batch),)),)
    return ProduceRequest(None, acks, HOUR_MS, data)


def error_of(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


class Follower:
    """The fetches of one broker, in a session over one connection."""

    def __init__(self, running: Any, peer: Any, node_id: int, broker_epoch: int = 7) -> None:
        self.topic_id = running.broker.image.topics["t"].topic_id
        self.peer, self.state = peer, ReplicaState(node_id, broker_epoch)
        self.session_id = self.session_epoch = 0

    def send(self, offset: int | None, epoch: int = 1, last: int = -1, wait_ms: int = 0) -> None:
        """Asks for records from `offset` on; None: the session goes on as it is."""
        topics: tuple[FetchTopic, ...] = ()
        if offset is not None:
            wanted = FetchPartition(0, epoch, offset, last, 0, partition_max_bytes=1 << 20)
            topics = (FetchTopic("", self.topic_id, (wanted,)),)
        self.peer.send(
            FetchRequest(
                replica_state=self.state,
                max_wait_ms=wait_ms,
                min_bytes=1,
                session_id=self.session_id,
                session_epoch=self.session_epoch,
                topics=topics,
            ),
            15,
        )

    async def receive(self) -> PartitionData | None:
        answer: FetchResponse = await self.peer.receive()
        assert answer.error_code is ErrorCode.NONE, answer
        self.session_id, self.session_epoch = answer.session_id, self.session_epoch + 1
        return answer.responses[0].partitions[0] if answer.responses else None

    async def fetch(self, offset: int | None, **more: int) -> PartitionData | None:
        self.send(offset, **more)
        return await self.receive()


def ends_of(data: PartitionData | None) -> list[int]:
    assert data is not None
    assert data.error_code is ErrorCode.NONE, data
    return [header.next_offset for _, header in batches(data.records or b"")]  # type: ignore[arg-type]


def test_followers_read_to_the_logs_end_and_their_fetches_commit(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            writer, reader = await running.connect(), await running.connect()
            await writer.create("t")
            await led(running, *REPLICAS)
            followers = [Follower(running, await running.connect(), node) for node in (2, 3)]
            for follower in followers:
                follower.send(0, wait_ms=HOUR_MS)
            reader.send_fetch("t", max_wait_ms=HOUR_MS)
            await running.until(lambda: len(running.broker.waiting) == 3)
            writer.send(write(), 9)
            for follower in followers:
                assert ends_of(await follower.receive()) == [1], "an append wakes them"
            for follower in followers:
                follower.send(1, last=1, wait_ms=HOUR_MS)
            assert error_of(await writer.receive()) is ErrorCode.NONE
            read = await reader.received_fetch()
            assert (read.high_watermark, bool(read.records)) == (1, True)
            assert running.broker.partition("t", 0).log.high_watermark == 1

    asyncio.run(story())


def test_consumers_do_not_see_what_a_follower_lacks(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await led(running, 1, 2)
            follower = Follower(running, await running.connect(), 2)
            await peer.produce("t", b"a", acks=1)
            assert await peer.values("t") == []
            assert ends_of(await follower.fetch(0)) == [1]
            assert await peer.values("t") == []
            data = await follower.fetch(1, last=1)
            assert data is not None, "the new high watermark is news"
            assert data.high_watermark == 1
            assert await peer.values("t") == [b"a"]
            assert await follower.fetch(None) is None, "nothing new in its session"

    asyncio.run(story())


def test_followers_hear_of_a_high_watermark_to_which_another_has_raised_it(start: Start) -> None:
    """Without an append after it, too: the follower may lead next, or serve consumers."""

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await led(running, *REPLICAS)
            first, second = [Follower(running, await running.connect(), node) for node in (2, 3)]
            await peer.produce("t", b"a", acks=1)
            for follower in (first, second):
                assert ends_of(await follower.fetch(0)) == [1]
            data = await first.fetch(1, last=1)
            assert data is None, "the second has not fetched yet, so nothing is news"
            data = await second.fetch(1, last=1)
            assert data is not None
            assert data.high_watermark == 1
            data = await first.fetch(None)
            assert data is not None
            assert data.high_watermark == 1

    asyncio.run(story())


def test_a_new_leader_tells_no_end_before_it_knows_what_was_committed(start: Start) -> None:
    """The end that clients know must not go back (KIP-207)."""

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await led(running, 1, 2, epoch=1)
            follower = Follower(running, await running.connect(), 2)
            await peer.produce("t", b"a", acks=1)
            await led(running, 1, 2, epoch=2, at=2)

            async def end(version: int, timestamp: int = -1) -> tuple[ErrorCode, int]:
                wanted = (ListOffsetsTopic("t", (ListOffsetsPartition(0, timestamp=timestamp),)),)
                (topic,) = (await peer.ask(ListOffsetsRequest(-1, 0, wanted), version)).topics
                return topic.partitions[0].error_code, topic.partitions[0].offset

            assert await end(9) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
            assert await end(4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            assert await end(9, timestamp=1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
            assert await end(9, timestamp=-2) == (ErrorCode.NONE, 0)
            await follower.fetch(1, epoch=2, last=1)
            await follower.fetch(None)  # it has had the answer, so it takes this for its leader
            assert await end(9) == (ErrorCode.NONE, 1)
            assert (await end(9, timestamp=1))[0] is ErrorCode.NONE

    asyncio.run(story())


def test_a_follower_learns_where_its_log_parts_from_the_leaders(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            for epoch in (1, 4):
                await led(running, 1, epoch=epoch)
                for _ in range(3):
                    await peer.produce("t", b"v")
            await led(running, 1, 2, epoch=6)
            follower = Follower(running, await running.connect(), 2)
            ahead = await follower.fetch(9, epoch=6, last=5)
            assert ahead is not None
            assert ahead.diverging_epoch == EpochEndOffset(4, 6)
            assert not ahead.records
            assert running.broker.partition("t", 0).log.high_watermark == 6
            older = await follower.fetch(5, epoch=6, last=1)
            assert older is not None
            assert older.diverging_epoch == EpochEndOffset(1, 3)
            leader = running.broker.partition("t", 0).replication.leader
            assert leader.followers[2].log_end_offset == -1, "a log that parts is no progress"
            assert ends_of(await follower.fetch(3, epoch=6, last=1)) == [4, 5, 6]
            assert leader.followers[2].log_end_offset == 3

    asyncio.run(story())


def test_a_follower_out_of_range_learns_where_the_log_begins(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            for _ in range(5):
                await peer.produce("t", b"v")
            running.broker.partition("t", 0).log.increment_log_start_offset(3)
            await led(running, 1)
            follower = Follower(running, await running.connect(), 2)
            data = await follower.fetch(1, last=0)
            assert data is not None
            assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(1, ErrorCode.FENCED_LEADER_EPOCH), (3, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_follower_of_another_epoch_is_told(start: Start, epoch: int, code: ErrorCode) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t")
            await led(running, 1, 2, epoch=2)
            follower = Follower(running, await running.connect(), 2)
            data = await follower.fetch(0, epoch=epoch)
            assert data is not None
            assert data.error_code is code

    asyncio.run(story())


def test_the_session_of_a_follower_is_its_own(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await led(running, 1, 2)
            follower = Follower(running, peer, 2)
            await follower.fetch(0)
            named = {"session_id": follower.session_id, "session_epoch": 1}
            for state in (ReplicaState(), ReplicaState(3, 7), ReplicaState(2, 8)):
                answer = await peer.ask(FetchRequest(replica_state=state, **named), 15)
                assert answer.error_code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert await follower.fetch(None) is None

    asyncio.run(story())


def test_a_fetch_that_was_held_up_on_its_way_does_not_hold_back_what_is_committed(
    start: Start,
) -> None:
    """The follower names a position once in its session. It gave up the request that comes late."""

    async def story() -> None:
        async with start() as running:
            writer = await running.connect()
            await writer.create("t")
            await led(running, *REPLICAS)
            second, third = [Follower(running, await running.connect(), node) for node in (2, 3)]
            late = Follower(running, await running.connect(), 2)
            await second.fetch(0)
            writer.send(write(), 9)
            await running.until(lambda: len(running.broker.waiting) == 1)
            await second.fetch(1, last=1)
            await late.fetch(0)
            await third.fetch(1, last=1)
            assert len(running.broker.waiting) == 1, "the leader believes what came last"
            await second.fetch(None)
            assert error_of(await writer.receive()) is ErrorCode.NONE

    asyncio.run(story())


def test_a_follower_that_caught_up_joins_by_the_controllers_word(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer, writer = await running.connect(), await running.connect()
            await peer.create("t")
            await led(running, 1)
            asked: list[Any] = []
            running.broker.alterations.send = lambda *request: asked.append(request)
            await peer.produce("t", b"a")
            follower = Follower(running, await running.connect(), 2)
            await follower.fetch(0)
            await follower.fetch(1, last=1)
            ((request, answered),) = asked
            (wanted,) = request.topics[0].partitions
            assert [each.broker_id for each in wanted.new_isr_with_epochs] == [1, 2]
            assert wanted.new_isr_with_epochs[1].broker_epoch == 7
            writer.send(write(), 9)
            log = running.broker.partition("t", 0).log
            await running.until(lambda: log.log_end_offset == 2)
            assert log.high_watermark == 1, "it counts from the question on"
            await follower.fetch(2, last=1)
            assert error_of(await writer.receive()) is ErrorCode.NONE
            running.broker.control(request).when_done(answered)
            partition = running.broker.partition("t", 0)
            await running.until(lambda: partition.replication.in_sync_replicas == {1, 2})
            image = running.broker.image.topics["t"].partitions[0]
            assert (image.in_sync_replicas, image.epoch) == ((1, 2), 2)

    asyncio.run(story())


def test_a_follower_that_lags_leaves_and_what_waited_for_it_is_answered(start: Start) -> None:
    async def story() -> None:
        async with start(replica_lag_time_max_ms="1") as running:
            writer = await running.connect()
            await writer.create("t", min_insync_replicas="1")
            await led(running, 1, 2)
            writer.send(write(), 9)
            assert error_of(await writer.receive()) is ErrorCode.NONE
            assert running.broker.image.topics["t"].partitions[0].in_sync_replicas == (1,)

    asyncio.run(story())


def test_a_fetch_under_an_earlier_broker_epoch_is_refused(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t")
            await led(running, 1, 2)
            data = await Follower(running, await running.connect(), 2, broker_epoch=6).fetch(0)
            assert data is not None
            assert data.error_code is NOT_LEADER

    asyncio.run(story())


def test_too_few_in_sync_when_it_is_committed_is_an_error_after_the_append(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            writer = await running.connect()
            await writer.create("t", min_insync_replicas="2")
            await led(running, 1, 2)
            writer.send(write(), 9)
            log = running.broker.partition("t", 0).log
            await running.until(lambda: log.log_end_offset == 1)
            await led(running, 1, at=2)
            assert error_of(await writer.receive()) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert log.high_watermark == 1
            answer = await writer.produce("t", b"v")
            assert answer.error_code is ErrorCode.NOT_ENOUGH_REPLICAS

    asyncio.run(story())


def test_a_wait_ends_with_the_leader_epoch_of_its_append(start: Start) -> None:
    """Here the same broker leads on, and what it appended stays; it could have been cut."""

    async def story() -> None:
        async with start() as running:
            writer = await running.connect()
            await writer.create("t")
            await led(running, 1, 2)
            writer.send(write(), 9)
            await running.until(lambda: len(running.broker.waiting) == 1)
            told: list[str] = []
            partition = running.broker.partition("t", 0)
            running.broker.when_committed(
                partition, 1, lambda: told.append("committed"), lambda: told.append("lost")
            )
            await led(running, 1, epoch=3, at=2)
            assert error_of(await writer.receive()) is NOT_LEADER
            await running.until(lambda: told)
            assert told == ["lost"]

    asyncio.run(story())


def test_high_watermarks_are_written_while_the_broker_runs(start: Start, tmp_path: Path) -> None:
    async def story() -> None:
        name = "replica.high.watermark.checkpoint.interval.ms"
        async with start(**{name.replace(".", "_"): "20"}) as running:
            peer = await running.connect()
            await peer.create("t")
            await led(running, 1)
            for _ in range(3):
                await peer.produce("t", b"v")
            file = tmp_path / "data" / "replication-offset-checkpoint"
            await running.until(lambda: file.exists() and "t 0 3" in file.read_text())

    asyncio.run(story())


def test_a_new_leader_tells_no_end_before_it_knows_that_all_is_committed(start: Start) -> None:
    """KIP-207: its high watermark may be below one that clients have seen."""

    async def story() -> None:
        async with start() as running:
            writer = await running.connect()
            await writer.create("t", min_insync_replicas="1")
            await led(running, 1, 2)
            await writer.ask(write(acks=1), 9)
            await led(running, 1, 2, epoch=2, at=2)

            async def listed(timestamp: int, version: int = 9, replica: int = -1) -> Any:
                asked = ListOffsetsPartition(0, timestamp=timestamp)
                topic = ListOffsetsTopic("t", (asked,))
                answer = await writer.ask(ListOffsetsRequest(replica, topics=(topic,)), version)
                told = answer.topics[0].partitions[0]
                return told.error_code or told.offset

            assert await listed(-1) is ErrorCode.OFFSET_NOT_AVAILABLE
            assert await listed(-1, version=4) is ErrorCode.LEADER_NOT_AVAILABLE
            assert await listed(5) is ErrorCode.OFFSET_NOT_AVAILABLE
            assert await listed(-3) is ErrorCode.OFFSET_NOT_AVAILABLE
            assert await listed(-2) == 0
            assert await listed(-1, replica=2) == 1, "a broker asks for the end of the log"
            follower = Follower(running, await running.connect(), 2)
            await follower.fetch(1, epoch=2, last=1)
            await follower.fetch(None)
            assert await listed(-1) == 1
            assert await listed(5) == 0
            await led(running, 2, epoch=3, leader=2, at=3)
            assert await listed(-1) is NOT_LEADER
            assert await listed(-1, replica=-2) == 1, "a tool that compares replicas asks any"

    asyncio.run(story())
