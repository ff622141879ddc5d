"""Records in and out: acks, errors by partition, limits, long polls, isolation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkalite.core.broker.reading import Reading, Replica
from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.core.protocol.transactions import InitProducerIdRequest
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ErrorCode

Start = Any


def one(value: bytes = b"v", **more: Any) -> bytes:
    return encode(Columns([b"k"], [value], [1_000]), **more)


def test_what_is_produced_is_fetched(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            for acks, first in ((-1, 0), (1, 2)):
                answer = await peer.produce("t", b"a", b"b", acks=acks)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, first)
            assert await peer.values("t") == [b"a", b"b", b"a", b"b"]
            assert await peer.values("t", 3) == [b"b"]
            assert await peer.values("t", 4) == []

    asyncio.run(story())


def test_acks_0_is_not_answered_and_its_failure_hangs_up(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            for topic in ("t", "nowhere"):
                data = (TopicProduceData(topic, (PartitionProduceData(0, one()),)),)
                peer.send(ProduceRequest(None, 0, 1_000, data), 9)
                if topic == "t":
                    assert await peer.values("t") == [b"v"]
            assert await peer.is_hung_up_on()

    asyncio.run(story())


@pytest.mark.parametrize("version", [0, 3, 7, 8, 11])
def test_partitions_fail_one_by_one(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            batches = {0: one(), 1: b"\0" * 70, 7: one()}
            data = tuple(PartitionProduceData(i, batch) for i, batch in batches.items())
            request = ProduceRequest(None, -1, 1_000, (TopicProduceData("t", data),))
            response = await peer.ask(request, version)
            codes = [p.error_code for p in response.responses[0].partition_responses]
            if version < 3:
                assert codes == [ErrorCode.UNSUPPORTED_VERSION] * 3
            else:
                wrong = (ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                assert codes == [ErrorCode.NONE, *wrong]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("acks", "settings", "batch", "code"),
    [
        (5, {}, one(), ErrorCode.INVALID_REQUIRED_ACKS),
        (-1, {"max_message_bytes": "100"}, one(b"x" * 100), ErrorCode.MESSAGE_TOO_LARGE),
        (-1, {"segment_bytes": "100"}, one(b"x" * 100), ErrorCode.RECORD_LIST_TOO_LARGE),
        (-1, {}, one(base_offset=3), ErrorCode.INVALID_RECORD),
        (-1, {}, one() + one(), ErrorCode.INVALID_RECORD),
        (-1, {}, one()[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (-1, {}, b"", ErrorCode.INVALID_RECORD),
        (
            -1,
            {},
            one(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (
            -1,
            {"cleanup_policy": "compact"},
            encode(Columns([None], [b"v"], [0])),
            ErrorCode.INVALID_RECORD,
        ),
    ],
)
def test_what_is_refused_is_not_stored(
    start: Start, acks: int, settings: dict[str, str], batch: bytes, code: ErrorCode
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", **settings)
            answer = await peer.produce("t", batch=batch, acks=acks)
            assert answer.error_code is code
            assert "t-0" in (answer.error_message or "")
            is_what_it_says = code in (ErrorCode.INVALID_RECORD, ErrorCode.NOT_ENOUGH_REPLICAS)
            knows_start = is_what_it_says and batch not in (b"", one() + one())
            assert answer.log_start_offset == (0 if knows_start else -1)
            assert await peer.values("t") == []

    asyncio.run(story())


def test_clients_do_not_write_internal_topics(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("__consumer_offsets", cleanup_policy="compact")
            answer = await peer.produce("__consumer_offsets", batch=one())
            assert answer.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION

    asyncio.run(story())


def test_an_idempotent_batch_sent_twice_is_stored_once(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            given = [await peer.ask(InitProducerIdRequest(None, 0)) for _ in range(3)]
            assert len({g.producer_id for g in given}) == 3
            sequence = {"producer_id": given[0].producer_id, "producer_epoch": 0}
            first = await peer.produce("t", b"a", base_sequence=0, **sequence)
            again = await peer.produce("t", b"a", base_sequence=0, **sequence)
            assert (first.base_offset, again.base_offset) == (0, 0)
            gap = await peer.produce("t", b"c", base_sequence=2, **sequence)
            assert gap.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            await peer.produce("t", b"b", base_sequence=1, **sequence)
            assert await peer.values("t") == [b"a", b"b"]

    asyncio.run(story())


def test_acks_all_waits_for_the_replicas_or_times_out(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer, waiting = await running.connect(), await running.connect()
            await peer.create("t")
            partition = running.broker.partition("t", 0)
            both = PartitionImage((1, 2), 1, 0, (1, 2))
            partition.replay(both, running.broker.monotonic_ms())
            data = (TopicProduceData("t", (PartitionProduceData(0, one()),)),)
            late = await peer.ask(ProduceRequest(None, -1, 20, data), 9)
            answer = late.responses[0].partition_responses[0]
            assert answer.error_code is ErrorCode.REQUEST_TIMED_OUT
            assert await peer.values("t") == []  # not committed, not visible

            waiting.send(ProduceRequest(None, -1, 60_000, data), 9)
            await running.until(lambda: partition.log.log_end_offset == 2)
            reading = Reading({}, Replica(2, 1))
            running.broker.follower_fetched(
                partition, reading, FetchPartition(0, fetch_offset=2, log_start_offset=0)
            )
            response = await waiting.receive()
            assert response.responses[0].partition_responses[0].error_code is ErrorCode.NONE
            assert len(await peer.values("t")) == 2

    asyncio.run(story())


# ---- fetch -------------------------------------------------------------------------------------


def test_a_long_poll_ends_with_the_append(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            reader, writer = await running.connect(), await running.connect()
            await writer.create("t")
            reader.send_fetch("t", max_wait_ms=3_600_000)
            await writer.produce("t", b"now")
            assert (await reader.received_fetch()).high_watermark == 1

    asyncio.run(story())


def test_a_long_poll_waits_for_min_bytes(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            reader, writer = await running.connect(), await running.connect()
            await writer.create("t")
            size = len(one())
            reader.send_fetch("t", max_wait_ms=3_600_000, min_bytes=3 * size)
            for _ in range(3):
                await writer.produce("t", batch=one())
            assert (await reader.received_fetch()).high_watermark == 3

    asyncio.run(story())


def test_nothing_is_waited_for_while_there_is_more_to_read(start: Start) -> None:
    """The first batch fills a segment of its own, and an answer ends with the segment."""

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", segment_bytes="1000")
            await peer.produce("t", b"a" * 900)
            await peer.produce("t", b"b" * 900)
            assert len(running.broker.partition("t", 0).log.segments) == 2
            patience = {"max_wait_ms": 3_600_000, "min_bytes": 1_500}
            assert await peer.values("t", **patience) == [b"a" * 900]

    asyncio.run(story())


def test_nothing_is_waited_for_while_another_partition_has_what_the_answer_has_no_room_for(
    start: Start,
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            for topic in ("t", "u"):
                await peer.create(topic)
                await peer.produce(topic, b"v" * 900)
            whole = FetchPartition(0, partition_max_bytes=1 << 20)
            topics = tuple(FetchTopic(topic, partitions=(whole,)) for topic in ("t", "u"))
            request = FetchRequest(
                max_wait_ms=3_600_000, min_bytes=1_500, max_bytes=1_600, topics=topics
            )
            first, second = (await peer.ask(request, 12)).responses
            assert len(first.partitions[0].records) > 900
            assert (second.partitions[0].records, second.partitions[0].high_watermark) == (b"", 1)

    asyncio.run(story())


def test_a_poller_that_leaves_when_its_time_has_come_does_not_wait_on(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            reader, writer = await running.connect(), await running.connect()
            await writer.create("t")
            reader.send_fetch("t", max_wait_ms=3_600_000, min_bytes=1_000_000)
            broker = running.broker
            await running.until(lambda: len(broker.waiting))
            (operation,) = broker.waiting.purgatory.waiting()
            broker.waiting.forget(operation)  # something has completed it
            (connection,) = (c for c in running.node._server.connections if c._pending)
            connection.abort()
            await running.until(lambda: len(running.node._server.connections) == 1)
            operation.token()
            assert not len(broker.waiting)

    asyncio.run(story())


def test_a_long_poll_ends_at_its_deadline_with_what_there_is(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", b"little")
            assert await peer.values("t", max_wait_ms=30, min_bytes=1_000_000) == [b"little"]

    asyncio.run(story())


def test_a_long_poll_ends_when_its_topic_goes(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            reader, other = await running.connect(), await running.connect()
            await other.create("t")
            reader.send_fetch("t", max_wait_ms=3_600_000)
            await running.until(lambda: len(running.broker.waiting))
            await other.ask(DeleteTopicsRequest(topic_names=("t",)), 5)
            answer = await reader.received_fetch()
            assert answer.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(story())


def test_a_poller_that_leaves_is_forgotten(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            peer.send_fetch("t", max_wait_ms=3_600_000)
            await running.until(lambda: len(running.broker.waiting))
            peer.writer.close()
            await running.until(lambda: not len(running.broker.waiting))

    asyncio.run(story())


def test_limits_hold_but_for_the_first_batch(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            big = one(b"x" * 1_000)
            for partition in (0, 1):
                data = tuple(PartitionProduceData(partition, big) for _ in range(1))
                for _ in range(3):
                    await peer.ask(ProduceRequest(None, -1, 1_000, (TopicProduceData("t", data),)))

            async def sizes(max_bytes: int, partition_max_bytes: int) -> list[int]:
                partitions = tuple(
                    FetchPartition(i, partition_max_bytes=partition_max_bytes) for i in (0, 1)
                )
                request = FetchRequest(
                    max_bytes=max_bytes, topics=(FetchTopic("t", partitions=partitions),)
                )
                (topic,) = (await peer.ask(request, 12)).responses
                return [len(p.records) // len(big) for p in topic.partitions]

            assert await sizes(1, 1) == [1, 0]
            assert await sizes(1 << 20, 1) == [1, 1]
            assert await sizes(1 << 20, 2 * len(big)) == [2, 2]
            assert await sizes(4 * len(big), 1 << 20) == [3, 1]
            assert await sizes(1 << 20, 1 << 20) == [3, 3]

    asyncio.run(story())


def test_large_fetches_arrive_whole(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            values = [bytes([n]) * 100_000 for n in range(20)]
            for value in values:
                await peer.produce("t", value)
            got: list[bytes] = []
            while len(got) < len(values):
                got += await peer.values("t", len(got))
            assert got == values

    asyncio.run(story())


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"fetch_offset": 9}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"fetch_offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"current_leader_epoch": 5}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"partition": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_fetch_that_cannot_be_served_is_told_at_once(
    start: Start, more: dict[str, int], code: ErrorCode
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", b"v")
            partition = FetchPartition(**{"partition": 0, "partition_max_bytes": 1_000, **more})
            topics = (FetchTopic("t", partitions=(partition,)),)
            request = FetchRequest(max_wait_ms=3_600_000, min_bytes=1, topics=topics)
            (topic,) = (await peer.ask(request, 12)).responses
            assert topic.partitions[0].error_code is code

    asyncio.run(story())


def test_a_fetch_of_a_broker_that_has_no_replica_is_refused(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            topic_id = running.broker.image.topics["t"].topic_id
            topics = (FetchTopic("t", topic_id, partitions=(FetchPartition(0),)),)
            for request, version in (
                (FetchRequest(replica_id=2, topics=topics), 12),
                (FetchRequest(replica_state=ReplicaState(2, 1), topics=topics), 15),
            ):
                follower = await peer.ask(request, version)
                code = follower.responses[0].partitions[0].error_code
                assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(story())


# ---- offsets by time and epoch -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp", "found", "at"),
    [
        (-2, 0, -1),
        (-1, 3, -1),
        (-4, 0, -1),
        (-5, -1, -1),
        (-3, 1, 300),
        (0, 0, 100),
        (101, 1, 300),
        (301, -1, -1),
    ],
)
def test_offsets_by_time(start: Start, timestamp: int, found: int, at: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            batch = encode(Columns([None] * 3, [b"v"] * 3, [100, 300, 200]))
            await peer.produce("t", batch=batch)
            wanted = (ListOffsetsTopic("t", (ListOffsetsPartition(0, timestamp=timestamp),)),)
            (topic,) = (await peer.ask(ListOffsetsRequest(-1, 0, wanted), 9)).topics
            answer = topic.partitions[0]
            assert (answer.error_code, answer.offset, answer.timestamp) == (0, found, at)

    asyncio.run(story())


def test_offsets_of_what_is_not_there(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            partitions = (
                ListOffsetsPartition(3, timestamp=-1),
                ListOffsetsPartition(0, current_leader_epoch=9, timestamp=-1),
                ListOffsetsPartition(1, timestamp=-9),
            )
            request = ListOffsetsRequest(-1, 0, (ListOffsetsTopic("t", partitions),))
            (topic,) = (await peer.ask(request, 8)).topics
            assert [p.error_code for p in topic.partitions] == [
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                ErrorCode.UNSUPPORTED_VERSION,
            ]

    asyncio.run(story())


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9)])
def test_special_timestamps_are_refused_to_versions_that_do_not_know_them(
    start: Start, timestamp: int, since: int
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            wanted = (ListOffsetsTopic("t", (ListOffsetsPartition(0, timestamp=timestamp),)),)
            for version in range(1, 10):
                (topic,) = (await peer.ask(ListOffsetsRequest(-1, 0, wanted), version)).topics
                refused = topic.partitions[0].error_code == ErrorCode.UNSUPPORTED_VERSION
                assert refused == (version < since), version

    asyncio.run(story())


def test_where_leader_epochs_end(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            await peer.produce("t", b"a", b"b")
            partitions = (
                OffsetForLeaderPartition(0, leader_epoch=0),
                OffsetForLeaderPartition(0, leader_epoch=5),
                OffsetForLeaderPartition(9, leader_epoch=0),
                OffsetForLeaderPartition(0, current_leader_epoch=4, leader_epoch=0),
                OffsetForLeaderPartition(1, leader_epoch=0),
                OffsetForLeaderPartition(1, leader_epoch=-1),
            )
            request = OffsetForLeaderEpochRequest(-1, (OffsetForLeaderTopic("t", partitions),))
            (topic,) = (await peer.ask(request, 4)).topics
            assert [(p.error_code, p.leader_epoch, p.end_offset) for p in topic.partitions] == [
                (ErrorCode.NONE, 0, 2),
                (ErrorCode.NONE, -1, -1),
                (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
                (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
                (ErrorCode.NONE, 0, 0),
                (ErrorCode.NONE, -1, -1),
            ]

    asyncio.run(story())


def test_a_failing_disk_is_told_to_clients_and_harms_one_partition(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            await peer.create("other")
            file = running.broker.partition("t", 0).log.segments[-1].log

            def full(_: object) -> int:
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patched:
                patched.setattr(type(file), "append", lambda self, data: full(data))
                refused = await peer.produce("t", b"v")
            assert refused.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left" in (refused.error_message or "")
            assert (await peer.produce("t", b"again")).error_code is ErrorCode.NONE
            assert await peer.values("t") == [b"again"]
            assert TopicPartition("t", 0) == running.broker.partition("t", 0).topic_partition

    asyncio.run(story())


@pytest.mark.parametrize("event", ["append", "deletion"])
def test_many_pollers_are_answered_by_one_event(
    start: Start, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with start() as running:
            other = await running.connect()
            await other.create("t")
            readers = [await running.connect() for _ in range(300)]
            for reader in readers:
                reader.send_fetch("t", max_wait_ms=3_600_000)
            await running.until(lambda: len(running.broker.waiting) == len(readers))
            if event == "append":
                await other.produce("t", b"now")
            else:
                await other.ask(DeleteTopicsRequest(topic_names=("t",)), 5)
            code = (await readers[0].received_fetch()).error_code
            for reader in readers[1:]:
                assert (await reader.received_fetch()).error_code is code

    asyncio.run(story())
    assert not caplog.records
