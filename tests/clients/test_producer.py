"""The producer against a real broker: what arrives, where, in which order, at what acks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.protocol.partitioner import partition_column
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ConfigError, ErrorCode

Run = Callable[[Any], None]
Name = Callable[[], str]


def columns(count: int, *, keyed: bool = True, size: int = 20) -> Columns:
    keys = [f"k{i}".encode() if keyed else None for i in range(count)]
    return Columns(keys, [b"%0*d" % (size, i) for i in range(count)], list(range(count)))


async def made(client: Client, topic: str, partitions: int = 1, **configs: str) -> str:
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    async with Admin(client) as admin:
        await admin.create_topics([NewTopic(topic, partitions, configs=dotted)])
    return topic


async def read(client: Client, topic: str, partitions: int = 1) -> dict[int, Columns]:
    """Everything in a topic, by partition."""
    tps = [TopicPartition(topic, p) for p in range(partitions)]
    seen: dict[int, list[Columns]] = {p: [] for p in range(partitions)}
    async with Consumer(client, auto_offset_reset="earliest") as consumer:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
            for tp, batch in (await consumer.poll(1_000)).items():
                seen[tp.partition].append(batch)
    return {
        p: Columns(
            [key for batch in batches for key in batch.keys],
            [value for batch in batches for value in batch.values],
            [timestamp for batch in batches for timestamp in batch.timestamps],
            [offset for batch in batches for offset in batch.offsets or ()],
            [h for batch in batches for h in (batch.headers or [()] * len(batch))],
        )
        for p, batches in seen.items()
    }


def test_a_record_arrives_with_all_it_has(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name())
            headers = (("trace", b"\x01"), ("empty", None))
            first = await producer.send(topic, b"v", b"k", timestamp_ms=1_234, headers=headers)
            second = await producer.send(topic, None, None, timestamp_ms=1_235)
            await producer.flush()
            assert first.result() == (topic, 0, 0, 1_234)
            assert second.result() == (topic, 0, 1, 1_235)
            stored = (await read(client, topic))[0]
            assert list(stored.keys) == [b"k", None]
            assert list(stored.values) == [b"v", None]
            assert list(stored.timestamps) == [1_234, 1_235]
            assert stored.headers is not None
            assert [tuple(h) for h in stored.headers] == [headers, ()]

    run(scenario)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_columns_arrive_in_order(run: Run, name: Name, compression: str) -> None:
    async def scenario(bootstrap: str) -> None:
        async with (
            Client(bootstrap) as client,
            Producer(client, compression=compression, batch_bytes=4_000) as producer,
        ):
            topic = await made(client, name())
            sent = columns(3_000)
            await producer.send_columns(topic, sent, partition=0)
            await producer.flush()
            stored = (await read(client, topic))[0]
            assert list(stored.values) == list(sent.values)
            assert list(stored.keys) == list(sent.keys)
            assert list(stored.timestamps) == list(sent.timestamps)

    run(scenario)


def test_keys_decide_the_partition_as_everywhere_in_kafka(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name(), 4)
            sent = columns(1_000)
            await producer.send_columns(topic, sent)
            single = await producer.send(topic, b"v", sent.keys[0])
            await producer.flush()
            expected = partition_column(sent.keys, 4)
            stored = await read(client, topic, 4)
            for partition, there in stored.items():
                wanted = [v for v, p in zip(sent.values, expected, strict=True) if p == partition]
                assert [v for v in there.values if v != b"v"] == wanted
            assert single.result().partition == expected[0]

    run(scenario)


def test_records_without_a_key_stick_to_a_partition_per_batch(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client, batch_bytes=1_000) as producer:
            topic = await made(client, name(), 3)
            sent = columns(2_000, keyed=False)
            await producer.send_columns(topic, sent)
            mixed = Columns([None, b"k1", None], [b"a", b"b", b"c"], [0, 0, 0])
            await producer.send_columns(topic, mixed)
            await producer.flush()
            stored = await read(client, topic, 3)
            assert Counter(v for there in stored.values() for v in there.values) == Counter(
                [*sent.values, *mixed.values]
            )
            assert all(len(there) for there in stored.values())

    run(scenario)


def test_each_record_may_name_its_partition(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name(), 3)
            await producer.send_columns(topic, columns(6), partitions=[2, 0, 1, 2, 0, 1])
            await producer.flush()
            stored = await read(client, topic, 3)
            assert [int(v or b"") for v in stored[2].values] == [0, 3]
            with pytest.raises(ValueError, match="has partitions 0 to 2, not 3"):
                await producer.send_columns(topic, columns(1), partition=3)

    run(scenario)


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_all_acks_deliver(run: Run, name: Name, acks: Any) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name())
            async with Producer(client, acks=acks) as producer:
                future = await producer.send(topic, b"v")
                await producer.send_columns(topic, columns(500), partition=0)
            assert future.result().offset == (-1 if acks == 0 else 0)
            tp = TopicPartition(topic, 0)
            async with Consumer(client) as consumer:
                for _ in range(100):  # with acks=0 nobody says when
                    if (await consumer.end_offsets([tp]))[tp] == 501:
                        return
                    await asyncio.sleep(0.05)
                pytest.fail("501 records were sent")

    run(scenario)


def test_more_than_the_buffer_holds_goes_through(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with (
            Client(bootstrap) as client,
            Producer(client, buffer_bytes_max=20_000, batch_bytes=5_000) as producer,
        ):
            topic = await made(client, name())
            most = 0
            for _ in range(20):
                await producer.send_columns(topic, columns(500), partition=0)
                most = max(most, producer.buffered_bytes)
            await producer.flush()
            assert most <= 20_000
            assert len((await read(client, topic))[0]) == 10_000

    run(scenario)


def test_a_batch_larger_than_the_topic_allows_is_split(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name(), max_message_bytes="3000")
            sent = columns(1_000)
            await producer.send_columns(topic, sent, partition=0)
            await producer.flush()
            assert list((await read(client, topic))[0].values) == list(sent.values)

    run(scenario)


def test_a_record_larger_than_the_topic_allows_is_an_error(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name(), max_message_bytes="3000")
            future = await producer.send(topic, b"x" * 4_000)
            with pytest.raises(ApiError, match=f"{topic}-0: 1 records.*MESSAGE_TOO_LARGE") as told:
                await producer.flush()
            assert str(told.value).count("MESSAGE_TOO_LARGE") == 1
            assert isinstance(future.exception(), ApiError)
            after = await producer.send(topic, b"fits")
            await producer.flush()
            assert after.result().offset == 0

    run(scenario)


def test_a_refused_record_is_named_by_flush(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name(), cleanup_policy="compact")
            await producer.send_columns(topic, columns(3, keyed=False), partition=0)
            with pytest.raises(ApiError, match=f"{topic}-0: 3 records") as caught:
                await producer.flush()
            assert caught.value.error_code is ErrorCode.INVALID_RECORD
            await producer.flush()  # told once
            await producer.send_columns(topic, columns(3), partition=0)
            await producer.flush()
            assert len((await read(client, topic))[0]) == 3

    run(scenario)


def test_entries_that_are_no_bytes_are_refused_at_once(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name())
            with pytest.raises(TypeError, match="the value is str, not bytes"):
                await producer.send(topic, "text")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="record 1: the key is int"):
                await producer.send_columns(topic, Columns([b"a", 5], [b"", b""], [0, 0]), 0)
            with pytest.raises(ValueError, match="1 keys, 2 values, 2 timestamps"):
                await producer.send_columns(topic, Columns([b"a"], [b"", b""], [0, 0]), 0)

    run(scenario)


def test_what_only_the_encoder_can_refuse_fails_its_batch_alone(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name())
            with pytest.raises(TypeError, match="a header is int and bytes"):
                await producer.send(topic, b"v", headers=((1, b""),))  # type: ignore[arg-type]
            future = await producer.send(topic, b"v", headers=(("\ud800", b""),))
            with pytest.raises(ApiError, match=f"{topic}-0: 1 records, .*: INVALID_RECORD"):
                await producer.flush()
            assert isinstance(future.exception(), ApiError)
            after = await producer.send(topic, b"v")
            await producer.flush()
            assert after.result().offset == 0

    run(scenario)


def test_a_topic_that_does_not_exist_is_named(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Producer(bootstrap) as producer:
            with pytest.raises(ApiError, match="no such topic!"):
                await producer.send("no such topic!", b"v")

    run(scenario)


def test_sends_of_one_turn_of_the_loop_leave_in_one_batch(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            topic = await made(client, name())
            futures = [await producer.send(topic, b"%d" % i) for i in range(100)]
            places = await asyncio.gather(*futures)
            assert [place.offset for place in places] == list(range(100))

    run(scenario)


def test_leaving_the_block_flushes(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name())
            async with Producer(client, linger_ms=60_000) as producer:
                future = await producer.send(topic, b"v")
            assert future.result().offset == 0
            with pytest.raises(RuntimeError, match="closed"):
                await producer.send(topic, b"v")

    run(scenario)


def test_what_is_not_started_or_closed_asks_nobody_for_a_topic(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        topic = name()
        producer = Producer(bootstrap)
        for send in (
            lambda: producer.send(topic, b"v"),
            lambda: producer.send_columns(topic, Columns([None], [b"v"], [0])),
        ):
            with pytest.raises(RuntimeError, match="the producer is not started"):
                await send()
        await producer.start()
        await producer.close()
        with pytest.raises(RuntimeError, match="the producer is closed"):
            await producer.send(topic, b"v")
        async with Admin(bootstrap) as admin:
            assert topic not in {found.name for found in await admin.describe_topics()}

    run(scenario)


def test_a_record_that_cannot_be_written_is_told_of_without_a_flush(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name())
            async with Producer(client) as producer:
                future = await producer.send(topic, b"v", headers=(("\ud800", b"x"),))
                with pytest.raises(ApiError, match="INVALID_RECORD"):
                    await asyncio.wait_for(future, 30)
                with pytest.raises(ApiError, match="INVALID_RECORD"):
                    await producer.flush()
                assert (await (await producer.send(topic, b"v"))).offset == 0

    run(scenario)


def test_what_no_record_can_have_is_refused_at_once(run: Run, name: Name) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"timestamp_ms": 1 << 63}, ValueError, "timestamp 9223372036854775808 does not fit"),
        ({"timestamp_ms": 1.5}, TypeError, "float"),
        ({"headers": {"a": b"x"}}, TypeError, "a header is 'a', not a pair"),
    ]

    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name())
            async with Producer(client) as producer:
                for given, kind, complaint in wrong:
                    with pytest.raises(kind, match=complaint):
                        await producer.send(topic, b"v", **given)
                with pytest.raises(ValueError, match="1 partitions for 2 records"):
                    await producer.send_columns(topic, columns(2), partitions=[0])
            assert len((await read(client, topic))[0]) == 0

    run(scenario)


def test_a_producer_that_was_not_started_says_so(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name())
            producer = Producer(client)
            with pytest.raises(RuntimeError, match="not started"):
                await producer.send(topic, b"v")
            with pytest.raises(RuntimeError, match="not started"):
                await producer.send_columns(topic, Columns([b"k"], [b"v"], [0]))
            await producer.close()

    run(scenario)


def test_settings_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match="acks is 2"):
        Producer("h:1", acks=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="enable_idempotence needs acks='all', acks is 1"):
        Producer("h:1", acks=1, enable_idempotence=True)
    with pytest.raises(ConfigError, match="max_in_flight is 6"):
        Producer("h:1", max_in_flight=6)
    with pytest.raises(ConfigError, match="compression is 'rar'"):
        Producer("h:1", compression="rar")
    with pytest.raises(ConfigError, match="'localhost' is not host:port"):
        Producer("localhost")


def test_nobody_at_the_address_is_said_so() -> None:
    async def scenario() -> None:
        client = Client("127.0.0.1:1", unavailable_after_ms=200)
        with pytest.raises(
            BrokerUnavailable, match=r"no broker answers at 127.0.0.1:1 \(tried for"
        ):
            async with Producer(client):
                pass

    asyncio.run(scenario())
