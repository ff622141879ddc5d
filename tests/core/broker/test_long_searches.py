"""ListOffsets that takes long goes on in slices, with the log as each slice finds it."""

from __future__ import annotations

import asyncio
from typing import Any

from kafkalite.core.cluster.delta import LocalPartition
from kafkalite.core.handlers.list_offsets import BATCHES_PER_STEP, WORK_PER_SLICE, list_offsets
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.core.types import Columns, RequestContext, TopicPartition
from kafkalite.errors import ErrorCode

Start = Any
STEPS = 5


def wanted(timestamp: int, partitions: int = 1) -> ListOffsetsRequest:
    each = tuple(ListOffsetsPartition(i, timestamp=timestamp) for i in range(partitions))
    return ListOffsetsRequest(-1, 0, (ListOffsetsTopic("t", each),))


def fill(broker: Any) -> int:
    """Batches through which only a walk leads to the last; its offset."""
    partition = broker.partition("t", 0)
    for time in (900, *[100] * (STEPS * BATCHES_PER_STEP), 500):
        partition.append(bytearray(encode(Columns([None], [b"v"], [time]))), -1, 1_000)
    partition.log.increment_log_start_offset(1)
    return int(partition.log.log_end_offset) - 1


def test_others_are_answered_while_a_log_is_searched(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            slow, quick = await running.connect(), await running.connect()
            await quick.create("t")
            last, order = fill(running.broker), []

            async def ask(peer: Any, timestamp: int) -> None:
                (topic,) = (await peer.ask(wanted(timestamp))).topics
                order.append((timestamp, topic.partitions[0].offset))

            async with asyncio.TaskGroup() as group:
                group.create_task(ask(slow, 500))
                group.create_task(ask(quick, -1))
            assert order == [(-1, last + 1), (500, last)]

    asyncio.run(story())


def test_very_many_partitions_take_several_slices(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t", 2)
            request = wanted(-2, WORK_PER_SLICE + 1)
            answer = list_offsets(running.broker, request, RequestContext(9, "c", "/h"))
            assert isinstance(answer, Pending)
            await running.until(lambda: answer.response)
            codes = [p.error_code for p in answer.response.topics[0].partitions]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes == [0, 0, *[unknown] * (WORK_PER_SLICE - 1)]

    asyncio.run(story())


def test_a_topic_that_goes_during_a_search_is_not_found(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            fill(running.broker)
            answer = list_offsets(running.broker, wanted(500), RequestContext(9, "c", "/h"))
            partitions, topic = running.broker.partitions, running.broker.image.topics["t"]
            where = LocalPartition(TopicPartition("t", 0), topic.topic_id, topic.partitions[0])
            await partitions.remove(partitions.let_go([where]))
            await running.until(lambda: answer.response)
            code = answer.response.topics[0].partitions[0].error_code
            assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await peer.ask(DeleteTopicsRequest(topic_names=("t",)), 5)

    asyncio.run(story())


def test_a_slice_that_fails_is_an_error_of_the_rest(start: Start, monkeypatch: Any) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t", 3)
            log = type(running.broker.partition("t", 0).log)
            fill(running.broker)
            answer = list_offsets(running.broker, wanted(500, 3), RequestContext(9, "c", "/h"))
            monkeypatch.setattr(log, "offset_for_timestamp", lambda *_: 1 / 0)
            await running.until(lambda: answer.response)
            codes = [p.error_code for p in answer.response.topics[0].partitions]
            assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR] * 3

    asyncio.run(story())


def test_a_search_that_nobody_waits_for_ends(start: Start, monkeypatch: Any) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t")
            fill(running.broker)
            answer = list_offsets(running.broker, wanted(500), RequestContext(9, "c", "/h"))
            log, steps = type(running.broker.partition("t", 0).log), []
            whole = log.offset_for_timestamp
            monkeypatch.setattr(
                log, "offset_for_timestamp", lambda *a: (steps.append(a), whole(*a))[1]
            )
            answer.abandon()
            for _ in range(2 * STEPS):
                await asyncio.sleep(0)
            assert not steps

    asyncio.run(story())
