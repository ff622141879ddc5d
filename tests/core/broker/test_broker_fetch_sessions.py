"""Fetch over a socket: sessions, topic ids, aborted transactions, leaders in answers."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from kafkalite.core.protocol.produce import LeaderIdAndEpoch
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode,
    encode_end_transaction_marker,
)
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode

Start = Any


NO_ID = UUID(int=0)


def wanted(topic: str, *offsets: int, topic_id: UUID = NO_ID, **more: int) -> Any:
    partitions = (
        FetchPartition(i, fetch_offset=offset, partition_max_bytes=1 << 20, **more)
        for i, offset in enumerate(offsets)
    )
    return (FetchTopic(topic, topic_id, tuple(partitions)),)


def codes(response: Any) -> list[ErrorCode]:
    return [p.error_code for topic in response.responses for p in topic.partitions]


@pytest.mark.parametrize("version", [7, 12, 13, 16])
def test_a_session_tells_only_what_is_new(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            await peer.create("t", 3)
            topic_id = running.broker.image.topics["t"].topic_id
            topics = wanted("t", 0, 0, 0, topic_id=topic_id)
            first = await peer.ask(FetchRequest(session_epoch=0, topics=topics), version)
            assert len(first.responses[0].partitions) == 3
            session = first.session_id
            quiet = FetchRequest(session_id=session, session_epoch=1)
            assert (await peer.ask(quiet, version)).responses == ()
            patient = FetchRequest(
                session_id=session, session_epoch=2, max_wait_ms=3_600_000, min_bytes=1
            )
            peer.send(patient, version)
            await other.produce("t", b"v")
            (topic,) = (await peer.receive()).responses
            assert [p.partition_index for p in topic.partitions] == [0]
            assert (topic.topic, topic.topic_id) == (
                ("t", UUID(int=0)) if version < 13 else ("", topic_id)
            )
            wrong = FetchRequest(session_id=session, session_epoch=9)
            answer = await peer.ask(wrong, version)
            assert answer.error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
            unknown = await peer.ask(FetchRequest(session_id=1, session_epoch=9), version)
            assert unknown.error_code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    asyncio.run(story())


def test_a_request_that_waits_is_answered_when_its_reader_begins_anew(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            await peer.create("t", 1)
            topics = wanted("t", 0, topic_id=running.broker.image.topics["t"].topic_id)
            first = await peer.ask(FetchRequest(session_epoch=0, topics=topics), 16)
            patient = FetchRequest(
                session_id=first.session_id, session_epoch=1, max_wait_ms=3_600_000, min_bytes=1
            )
            peer.send(patient, 16)
            while not running.broker.gauges()["waiting_requests"]:
                await asyncio.sleep(0.001)
            anew = FetchRequest(session_id=first.session_id, session_epoch=0, topics=topics)
            assert (await other.ask(anew, 16)).error_code is ErrorCode.NONE
            given_up = await peer.receive()
            assert given_up.error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
            assert not running.broker.gauges()["waiting_requests"]

    asyncio.run(story())


def test_slots_are_bounded_by_the_setting(start: Start) -> None:
    async def story() -> None:
        async with start(max_incremental_fetch_session_cache_slots="1") as running:
            peer = await running.connect()
            await peer.create("t")
            full = FetchRequest(session_epoch=0, topics=wanted("t", 0))
            assert (await peer.ask(full, 12)).session_id > 0
            assert (await peer.ask(full, 12)).session_id == 0

    asyncio.run(story())


def test_topic_ids_name_one_topic_for_ever(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            topic_id = running.broker.image.topics["t"].topic_id
            topics = wanted("", 0, topic_id=topic_id)
            first = await peer.ask(FetchRequest(session_epoch=0, topics=topics), 13)
            assert codes(first) == [ErrorCode.NONE]
            by_name = FetchRequest(session_id=first.session_id, session_epoch=1)
            assert (
                await peer.ask(by_name, 12)
            ).error_code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            await peer.ask(DeleteTopicsRequest(topic_names=("t",)), 5)
            gone = await peer.ask(FetchRequest(topics=topics), 13)
            assert codes(gone) == [ErrorCode.UNKNOWN_TOPIC_ID]
            await peer.create("t")  # the same name, another topic
            again = await peer.ask(FetchRequest(topics=topics), 13)
            assert codes(again) == [ErrorCode.UNKNOWN_TOPIC_ID]
            in_session = FetchRequest(session_id=first.session_id, session_epoch=1)
            assert codes(await peer.ask(in_session, 13)) == [ErrorCode.INCONSISTENT_TOPIC_ID]

    asyncio.run(story())


def test_who_is_behind_is_told_the_leader(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            topic = running.broker.image.topics["t"]
            running.broker.partition("t", 0).replication.leader_epoch = 4
            topics = wanted("", 0, topic_id=topic.topic_id, current_leader_epoch=3)
            for version, named in ((15, False), (16, True)):
                answer = await peer.ask(FetchRequest(topics=topics), version)
                assert codes(answer) == [ErrorCode.FENCED_LEADER_EPOCH]
                (node,) = answer.node_endpoints or (None,)
                assert (node is not None) is named
                if node is not None:
                    assert (node.host, node.port) == running.node.address
            leader = answer.responses[0].partitions[0].current_leader
            assert leader == LeaderIdAndEpoch(1, 0)  # as the cluster's image has it

    asyncio.run(story())


def test_committed_readers_learn_what_was_aborted(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            partition = running.broker.partition("t", 0)

            def write(producer_id: int, sequence: int) -> None:
                batch = encode(
                    Columns([None], [b"v"], [1]),
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequence,
                    transactional=True,
                )
                partition.append(bytearray(batch), -1, 1)

            def end(producer_id: int, control: ControlType) -> None:
                marker = encode_end_transaction_marker(
                    EndTransactionMarker(control, 0),
                    producer_id=producer_id,
                    producer_epoch=0,
                    timestamp_ms=1,
                )
                partition.append(bytearray(marker), -1, 1, from_client=False)

            write(7, 0)  # offset 0
            write(8, 0)
            end(7, ControlType.ABORT)  # offset 2
            write(7, 1)
            end(8, ControlType.COMMIT)
            end(7, ControlType.ABORT)  # offset 5
            write(9, 0)  # offset 6: open

            async def aborted(offset: int, isolation_level: int, size: int = 1 << 20) -> Any:
                part = FetchPartition(0, fetch_offset=offset, partition_max_bytes=size)
                request = FetchRequest(
                    isolation_level=isolation_level,
                    topics=(FetchTopic("t", partitions=(part,)),),
                )
                return (await peer.ask(request, 12)).responses[0].partitions[0]

            everything = await aborted(0, 1)
            assert everything.last_stable_offset == 6
            assert everything.aborted_transactions == (
                AbortedTransaction(7, 0),
                AbortedTransaction(7, 3),
            )
            assert (await aborted(0, 1, 1)).aborted_transactions == (AbortedTransaction(7, 0),)
            assert (await aborted(3, 1)).aborted_transactions == (AbortedTransaction(7, 3),)
            assert (await aborted(6, 1)).aborted_transactions == ()
            assert (await aborted(0, 0)).aborted_transactions is None

    asyncio.run(story())


def test_what_goes_in_and_out_is_counted(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            await peer.produce("t", b"a", b"b")
            await peer.produce("nowhere", b"a")
            await peer.values("t")
            topics = wanted("t", 0, 9)
            await peer.ask(FetchRequest(session_epoch=0, topics=topics), 12)
            metrics = running.broker.metrics
            size = running.broker.partition("t", 0).log.size_bytes
            assert (metrics.batches_in, metrics.records_in, metrics.bytes_in) == (1, 2, size)
            assert metrics.bytes_out == 2 * size
            assert metrics.api[ApiKey.PRODUCE].errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1}
            assert metrics.api[ApiKey.FETCH].errors == {ErrorCode.OFFSET_OUT_OF_RANGE: 1}
            gauges = running.broker.gauges()
            assert gauges == {
                "partitions": 2,
                "offline_partitions": 0,
                "is_controller": 1,
                "waiting_requests": 0,
                "fetch_sessions": 1,
                "fetch_session_partitions": 2,
            }

    asyncio.run(story())
