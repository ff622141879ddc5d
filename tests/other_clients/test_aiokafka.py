"""aiokafka against our broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    for_code,
)
from aiokafka.structs import OffsetAndMetadata

SECONDS_MAX = 30.0
EPOCH_MS = 1_700_000_000_000


async def produce(
    bootstrap: str, topic: str, records: list[dict[str, Any]], **config: Any
) -> list[Any]:
    """Produces, waits for all, and returns their places in order."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **config) as producer:
        futures = [await producer.send(topic, **record) for record in records]
        return [await future for future in futures]


def consumer_of(bootstrap: str, *topics: str, **config: Any) -> AIOKafkaConsumer:
    quick = {"heartbeat_interval_ms": 100, "auto_offset_reset": "earliest"}
    return AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **{**quick, **config})


async def take(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    async with asyncio.timeout(SECONDS_MAX):
        return [await consumer.getone() for _ in range(count)]


async def read_all(bootstrap: str, topic: str, count: int) -> list[Any]:
    async with consumer_of(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        return await take(consumer, count)


@pytest.mark.parametrize("idempotent", [False, True])
def test_what_is_produced_with_defaults_is_consumed(
    bootstrap: str, topic: str, group: str, idempotent: bool
) -> None:
    records = [{"key": b"%d" % (i % 7), "value": b"value %d" % i} for i in range(500)]

    async def run() -> None:
        done = await produce(bootstrap, topic, records, enable_idempotence=idempotent)
        assert [(m.partition, m.offset) for m in done] == [(0, i) for i in range(500)]
        async with consumer_of(bootstrap, topic, group_id=group) as consumer:
            messages = await take(consumer, 500)
        assert [{"key": m.key, "value": m.value} for m in messages] == records
        assert [m.offset for m in messages] == list(range(500))

    asyncio.run(run())


def test_nulls_headers_and_timestamps_arrive_as_they_were_sent(bootstrap: str, topic: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("null", None), ("empty", b""), ("ü", "é".encode())]
    records: list[dict[str, Any]] = [
        {"key": b"k", "value": b"v", "timestamp_ms": EPOCH_MS},
        {"key": None, "value": b"no key", "timestamp_ms": EPOCH_MS + 10},
        {"key": b"tombstone", "value": None, "timestamp_ms": EPOCH_MS - 10},
        {"key": b"", "value": b"", "timestamp_ms": EPOCH_MS},
        {"key": b"h", "value": b"v", "timestamp_ms": EPOCH_MS, "headers": headers},
        {"key": b"large", "value": bytes(range(256)) * 3_500, "timestamp_ms": EPOCH_MS},
    ]

    async def run() -> list[Any]:
        await produce(bootstrap, topic, records, linger_ms=50)
        return await read_all(bootstrap, topic, len(records))

    read = [
        {
            "key": m.key,
            "value": m.value,
            "timestamp_ms": m.timestamp,
            **({"headers": list(m.headers)} if m.headers else {}),
        }
        for m in asyncio.run(run())
    ]
    assert read == records


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_kept_as_they_came(
    bootstrap: str, topic: str, codec: str | None, codecs_on_disk: Callable[[str], set[str]]
) -> None:
    records = [{"value": b"the same again and again %d" % i} for i in range(500)]

    async def run() -> list[Any]:
        await produce(bootstrap, topic, records, compression_type=codec, linger_ms=50)
        return await read_all(bootstrap, topic, 500)

    assert [m.value for m in asyncio.run(run())] == [r["value"] for r in records]
    assert codecs_on_disk(topic) == {codec or "none"}


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(bootstrap: str, topic: str, acks: Any) -> None:
    async def run() -> list[Any]:
        await produce(bootstrap, topic, [{"value": b"made"}])
        await produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(20)], acks=acks)
        return await read_all(bootstrap, topic, 21)

    assert [m.value for m in asyncio.run(run())][1:] == [b"%d" % i for i in range(20)]


def test_two_members_share_a_topic_and_no_record_is_seen_twice(
    bootstrap: str, make_topic: Callable[[int], str], group: str
) -> None:
    topic = make_topic(4)
    got: list[tuple[int, int]] = []
    news = asyncio.Condition()

    async def read(consumer: AIOKafkaConsumer) -> None:
        async for message in consumer:
            got.append((message.partition, message.offset))
            async with news:
                news.notify_all()

    class Assigned(aiokafka.ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            async with news:
                news.notify_all()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX), news:
            await news.wait_for(condition)

    async def send(count: int) -> None:
        records = [{"value": b"", "partition": i % 4} for i in range(count)]
        await produce(bootstrap, topic, records)

    async def run() -> None:
        await send(40)
        first, second = (consumer_of(bootstrap, group_id=group) for _ in range(2))
        tasks: list[asyncio.Task[None]] = []
        async with AsyncExitStack() as stack:
            for consumer in (first, second):
                consumer.subscribe([topic], listener=Assigned())
                await stack.enter_async_context(consumer)
                tasks.append(asyncio.create_task(read(consumer)))
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            await send(200)
            await until(lambda: len(got) >= 240)
            tasks[1].cancel()
            await second.stop()
            await until(lambda: len(first.assignment()) == 4)
            await send(40)
            await until(lambda: len(got) >= 280)
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    asyncio.run(run())
    assert sorted(got) == [(p, offset) for p in range(4) for offset in range(70)]


def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str, group: str) -> None:
    where = TopicPartition(topic, 0)

    async def run() -> list[Any]:
        await produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(10)])
        config = {"group_id": group, "enable_auto_commit": False}
        async with consumer_of(bootstrap, topic, **config) as first:
            await take(first, 10)
            await first.commit({where: OffsetAndMetadata(4, "half of it")})
            assert await first.committed(where) == 4
        async with consumer_of(bootstrap, topic, **config) as second:
            return await take(second, 6)

    assert [m.offset for m in asyncio.run(run())] == [4, 5, 6, 7, 8, 9]


def test_seek_and_the_ends_of_the_log(bootstrap: str, topic: str) -> None:
    where = TopicPartition(topic, 0)

    async def run() -> None:
        await produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(10)])
        async with consumer_of(bootstrap) as consumer:
            consumer.assign([where])
            consumer.seek(where, 8)
            assert [m.offset for m in await take(consumer, 2)] == [8, 9]
            consumer.seek(where, 3)
            assert [m.offset for m in await take(consumer, 2)] == [3, 4]
            assert await consumer.position(where) == 5
            assert await consumer.beginning_offsets([where]) == {where: 0}
            assert await consumer.end_offsets([where]) == {where: 10}

    asyncio.run(run())


def test_an_offset_out_of_range_is_told(bootstrap: str, topic: str) -> None:
    where = TopicPartition(topic, 0)

    async def run() -> None:
        await produce(bootstrap, topic, [{"value": b"only"}])
        async with consumer_of(bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([where])
            consumer.seek(where, 100)
            with pytest.raises(OffsetOutOfRangeError):
                await take(consumer, 1)

    asyncio.run(run())


def test_offsets_for_times(bootstrap: str, topic: str) -> None:
    where = TopicPartition(topic, 0)
    records = [{"value": b"", "timestamp_ms": EPOCH_MS + 1_000 * i} for i in range(10)]

    async def run() -> list[Any]:
        await produce(bootstrap, topic, records)
        async with consumer_of(bootstrap) as consumer:
            consumer.assign([where])
            asked = [EPOCH_MS - 5, EPOCH_MS + 4_000, EPOCH_MS + 4_001, EPOCH_MS + 9_001]
            return [(await consumer.offsets_for_times({where: ms}))[where] for ms in asked]

    found = [place and (place.offset, place.timestamp - EPOCH_MS) for place in asyncio.run(run())]
    assert found == [(0, 0), (4, 4_000), (5, 5_000), None]


def test_topics_are_created_described_and_deleted(
    bootstrap: str, topic: str, settle: Callable[[], None]
) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            config = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
            new = NewTopic(topic, 3, 1, topic_configs=config)
            codes = [(await admin.create_topics([new])).topic_errors[0][1] for _ in range(2)]
            assert codes == [0, TopicAlreadyExistsError.errno]

            settle()
            (described,) = await admin.describe_topics([topic])
            assert sorted(p["partition"] for p in described["partitions"]) == [0, 1, 2]

            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            (answer,) = await admin.describe_configs([resource])
            told = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert told["cleanup.policy"] == "compact"
            assert told["segment.bytes"] == "1048576"
            assert told["retention.ms"] == "604800000"

            deleted = await admin.delete_topics([topic])
            assert deleted.topic_error_codes[0][1] == 0
            settle()
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(run())


def test_groups_are_listed_and_described(bootstrap: str, topic: str, group: str) -> None:
    async def run() -> None:
        await produce(bootstrap, topic, [{"value": b"1"}])
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            async with consumer_of(bootstrap, topic, group_id=group) as consumer:
                await take(consumer, 1)
                await consumer.commit()
                (answer,) = await admin.describe_consumer_groups([group])
                error_code, group_id, state = answer.groups[0][:3]
                assert (for_code(error_code).errno, group_id, state) == (0, group, "Stable")
            assert (group, "consumer") in await admin.list_consumer_groups()
            offsets = await admin.list_consumer_group_offsets(group)
            assert {k: v.offset for k, v in offsets.items()} == {TopicPartition(topic, 0): 1}
        finally:
            await admin.close()

    asyncio.run(run())


def test_a_message_that_is_too_large_is_refused(
    bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1, {"max.message.bytes": "1000"})

    async def run() -> None:
        with pytest.raises(MessageSizeTooLargeError):
            await produce(bootstrap, topic, [{"value": bytes(2_000)}])
        (place,) = await produce(bootstrap, topic, [{"value": bytes(20)}])
        assert place.offset == 0

    asyncio.run(run())
