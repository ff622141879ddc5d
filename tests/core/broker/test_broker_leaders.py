"""A held partition gets another leader, epoch or in-sync set in the image."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafkalite.core.cluster.image import PartitionImage, partition_record
from kafkalite.core.protocol.groups import JoinGroupRequest, JoinGroupRequestProtocol
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import batches, encode
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode

Start = Callable[..., Any]

GROUPS = "__consumer_offsets"
ONLY_LEADER_V = 10  # of Fetch: later ones may read followers
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def led(running: Any, topic: str, *partitions: int, leader: int, epoch: int) -> None:
    """The image names a leader of partitions that brokers 1 and 2 have."""
    for index in partitions:
        image = PartitionImage((1, 2), leader, epoch, (leader,), epoch)
        await running.broker.steering.apply((partition_record(topic, index, image),))


def write(acks: int = -1) -> ProduceRequest:
    batch = bytes(encode(Columns([None], [b"v"], [1_000])))
    data = (TopicProduceData("t", (PartitionProduceData(0, batch),)),)
    return ProduceRequest(None, acks, 60_000, data)


def test_a_broker_that_leads_no_more_takes_and_gives_no_records(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", b"a")
            await led(running, "t", 0, leader=2, epoch=1)
            assert (await peer.produce("t", b"b")).error_code is NOT_LEADER
            peer.send_fetch("t", version=ONLY_LEADER_V)
            assert (await peer.received_fetch()).error_code is NOT_LEADER
            await led(running, "t", 0, leader=1, epoch=2)
            await peer.produce("t", b"c")
            assert await peer.values("t") == [b"a", b"c"]
            found = running.broker.partition("t", 0).log.read(0, 1 << 20, 2)
            assert found is not None
            epochs = [header.partition_leader_epoch for _, header in batches(found.read())]
            assert epochs == [0, 2], "what is written bears the leader's epoch"

    asyncio.run(story())


def test_who_waits_for_a_partition_that_is_led_elsewhere_is_answered(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            reader, writer = await running.connect(), await running.connect()
            await reader.create("t")
            both = PartitionImage((1, 2), 1, 1, (1, 2), 1)
            await running.broker.steering.apply((partition_record("t", 0, both),))
            reader.send_fetch("t", version=ONLY_LEADER_V, max_wait_ms=3_600_000)
            writer.send(write(), 9)
            await running.until(lambda: len(running.broker.waiting) == 2)
            await led(running, "t", 0, leader=2, epoch=2)
            assert (await reader.received_fetch()).error_code is NOT_LEADER
            (topic,) = (await writer.receive()).responses
            assert topic.partition_responses[0].error_code is NOT_LEADER
            assert not len(running.broker.waiting)

    asyncio.run(story())


def test_a_smaller_in_sync_set_acknowledges_what_waited_for_the_others(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            reader, writer = await running.connect(), await running.connect()
            await reader.create("t")
            both = PartitionImage((1, 2), 1, 1, (1, 2), 1)
            await running.broker.steering.apply((partition_record("t", 0, both),))
            reader.send_fetch("t", max_wait_ms=3_600_000)
            writer.send(write(), 9)
            await running.until(lambda: len(running.broker.waiting) == 2)
            alone = PartitionImage((1, 2), 1, 1, (1,), 2)
            await running.broker.steering.apply((partition_record("t", 0, alone),))
            assert (await reader.received_fetch()).records
            (topic,) = (await writer.receive()).responses
            assert topic.partition_responses[0].error_code is ErrorCode.NONE

    asyncio.run(story())


def test_a_partition_that_moves_away_is_deleted_and_one_that_comes_is_made(
    start: Start, tmp_path: Path
) -> None:
    async def story() -> None:
        async with start() as running:
            broker, reader, writer = running.broker, *[await running.connect() for _ in range(2)]
            await reader.create("t", 2)
            await reader.produce("t", b"a")
            both = PartitionImage((2, 1), 1, 1, (2, 1), 1)
            await broker.steering.apply((partition_record("t", 0, both),))
            reader.send_fetch("t", offset=1, max_wait_ms=3_600_000)
            writer.send(write(), 9)
            await running.until(lambda: len(broker.waiting) == 2)
            away = PartitionImage((2, 3), 2, 2, (2,), 2)
            await broker.steering.apply((partition_record("t", 0, away),))
            assert (await reader.received_fetch()).error_code is NOT_LEADER
            (topic,) = (await writer.receive()).responses
            assert topic.partition_responses[0].error_code is NOT_LEADER
            assert broker.partitions.find("t", 0) is None
            assert broker.partitions.find("t", 1) is not None
            assert not (tmp_path / "data" / "t-0").exists()
            back = PartitionImage((2, 3, 1), 2, 2, (2,), 3)
            await broker.steering.apply((partition_record("t", 0, back),))
            partition = broker.partition("t", 0)
            assert partition.log.log_end_offset == 0
            wanted = partition.wanted(broker.monotonic_ms())
            assert wanted is not None
            assert (wanted.leader_id, wanted.leader_epoch, wanted.fetch_offset) == (2, 2, 0)
            assert broker.partitions.following() == [partition]

    asyncio.run(story())


def test_a_coordinator_whose_partition_moves_away_resigns(start: Start) -> None:
    async def story() -> None:
        protocols = (JoinGroupRequestProtocol("range", b""),)
        join = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", protocols)
        async with start(offsets_topic_num_partitions="1") as running:
            peer = await running.connect()
            running.broker.create_topics([GROUPS])
            await running.until(lambda: GROUPS in running.broker.image.topics)
            assert (await peer.ask(join, 3)).error_code is ErrorCode.NONE
            assert running.broker.groups.machines()
            away = PartitionImage((2,), 2, 1, (2,), 1)
            await running.broker.steering.apply((partition_record(GROUPS, 0, away),))
            assert not running.broker.groups.machines()
            assert (await peer.ask(join, 3)).error_code is ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


def test_coordinators_follow_their_partitions(start: Start) -> None:
    async def story() -> None:
        protocols = (JoinGroupRequestProtocol("range", b""),)
        join = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", protocols)
        async with start() as running:
            peer = await running.connect()
            running.broker.create_topics([GROUPS])
            await running.until(lambda: GROUPS in running.broker.image.topics)
            every = range(len(running.broker.image.topics[GROUPS].partitions))
            joined = await peer.ask(join, 3)
            assert joined.error_code is ErrorCode.NONE
            await led(running, GROUPS, *every, leader=2, epoch=1)
            for _ in range(2):
                refused = await peer.ask(join, 3)
                assert refused.error_code is ErrorCode.NOT_COORDINATOR
            await led(running, GROUPS, *every, leader=1, epoch=2)
            assert (await peer.ask(join, 3)).error_code is ErrorCode.NONE

    asyncio.run(story())
