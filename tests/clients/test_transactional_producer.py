"""Our transactional producer and committed readers, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.transaction import ProducerState
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ConfigError, ErrorCode

Run = Callable[[Any], None]
Name = Callable[[], str]


def columns(first: int, count: int) -> Columns:
    numbers = range(first, first + count)
    return Columns([b"k%d" % n for n in numbers], [b"%d" % n for n in numbers], [1] * count)


async def made(client: Client, topic: str, partitions: int = 3, **configs: str) -> str:
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    async with Admin(client) as admin:
        await admin.create_topics([NewTopic(topic, partitions, configs=dotted)])
    return topic


async def read(
    client: Client, topic: str, partitions: int = 3, level: Any = "read_committed"
) -> Any:
    """The numbers in a topic, in order, as a reader of this isolation level sees them.

    A commit is answered when it is decided: the last markers may still be on their way.
    """
    tps = [TopicPartition(topic, p) for p in range(partitions)]
    numbers: list[int] = []
    async with Admin(client) as admin, asyncio.timeout(30):
        while (await admin.end_offsets(tps, isolation_level="read_committed")) != (
            await admin.end_offsets(tps)
        ):
            await asyncio.sleep(0.01)
    async with Consumer(client, auto_offset_reset="earliest", isolation_level=level) as consumer:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
            for batch in (await consumer.poll(1_000)).values():
                numbers += map(int, batch.values)
    return sorted(numbers)


def test_a_block_is_read_whole_or_not_at_all(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with (
            Client(bootstrap) as client,
            TransactionalProducer(client, name()) as producer,
        ):
            topic = await made(client, name())
            for round_number in range(5):
                async with producer.transaction():
                    await producer.send_columns(topic, columns(round_number * 1_000, 500))
                with pytest.raises(KeyError):
                    async with producer.transaction():
                        await producer.send_columns(topic, columns(round_number * 1_000, 700))
                        await producer.flush()
                        raise KeyError("no")
                async with producer.transaction():
                    pass  # brokers never hear of it
            wanted = [n for r in range(5) for n in range(r * 1_000, r * 1_000 + 500)]
            assert await read(client, topic) == wanted
            assert len(await read(client, topic, level="read_uncommitted")) == 5 * 1_200

    run(scenario)


def test_readers_wait_for_the_end_and_records_have_their_places(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with (
            Client(bootstrap) as client,
            TransactionalProducer(client, name()) as producer,
            Consumer(client, isolation_level="read_committed") as reader,
        ):
            topic = await made(client, name(), 1)
            tp = TopicPartition(topic, 0)
            reader.assign([tp])
            reader.seek_to_beginning([tp])
            producer.begin()
            place = await producer.send(topic, b"7")
            assert (await place).offset == 0
            assert await reader.poll(100) == {}
            assert await reader.end_offsets([tp]) == {tp: 0}
            await producer.commit()
            got = {}
            while not got:
                got = await reader.poll(1_000)
            assert got[tp].values == [b"7"]
            producer.begin()
            assert (await (await producer.send(topic, b"8"))).offset == 2
            await producer.abort()

    run(scenario)


def test_what_an_abort_drops_leaves_no_gap(run: Run, name: Name) -> None:
    """Batches that were numbered and never sent: the next transaction has an epoch of its own."""

    async def scenario(bootstrap: str) -> None:
        async with (
            Client(bootstrap) as client,
            TransactionalProducer(client, name(), linger_ms=60_000) as producer,
        ):
            topic = await made(client, name())
            for number in range(0, 40, 2):
                producer.begin()
                futures = [await producer.send(topic, b"%d" % number, partition=0)]
                if number % 4:
                    await producer.flush()
                futures.append(await producer.send(topic, b"%d" % number, partition=1))
                await producer.abort()
                assert futures[-1].exception() is not None
                async with producer.transaction():
                    await producer.send(topic, b"%d" % (number + 1), partition=number % 3)
            assert await read(client, topic) == list(range(1, 41, 2))

    run(scenario)


def test_a_zombie_is_fenced_and_stays_so(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, transactional_id = await made(client, name()), name()
            zombie = TransactionalProducer(client, transactional_id)
            await zombie.start()
            zombie.begin()
            await zombie.send_columns(topic, columns(0, 10))
            await zombie.flush()
            async with TransactionalProducer(client, transactional_id) as heir:
                async with heir.transaction():
                    await heir.send_columns(topic, columns(100, 10))
                with pytest.raises(ApiError) as raised:
                    await zombie.commit()
                assert raised.value.error_code is ErrorCode.PRODUCER_FENCED
                for call in (zombie.commit, zombie.abort):
                    with pytest.raises(ApiError, match="PRODUCER_FENCED"):
                        await call()
                with pytest.raises(ApiError, match="PRODUCER_FENCED"):
                    zombie.begin()
                with pytest.raises(ApiError, match="PRODUCER_FENCED"):
                    await zombie.send(topic, b"1")
                await zombie.close()
                async with heir.transaction():
                    await heir.send_columns(topic, columns(200, 10))
            assert await read(client, topic) == [*range(100, 110), *range(200, 210)]

    run(scenario)


def test_a_record_that_is_refused_ends_the_transaction(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with (
            Client(bootstrap) as client,
            TransactionalProducer(client, name()) as producer,
        ):
            topic = await made(client, name(), 2, max_message_bytes="1000")
            producer.begin()
            await producer.send(topic, b"1", partition=0)
            await producer.send(topic, b"9" * 2_000, partition=1)
            with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
                await producer.commit()
            with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
                await producer.send(topic, b"2")
            with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
                await producer.commit()
            with pytest.raises(RuntimeError, match="abort it"):
                producer.begin()
            await producer.abort()
            with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
                async with producer.transaction():
                    await producer.send(topic, b"9" * 2_000, partition=1)
            async with producer.transaction():
                await producer.send_columns(topic, columns(3, 5))
            assert await read(client, topic, 2) == [3, 4, 5, 6, 7]

    run(scenario)


def test_offsets_go_with_the_transaction(run: Run, name: Name) -> None:
    """Consume, transform, produce: every number once, though every other attempt is aborted."""

    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            source, target, group = await made(client, name()), await made(client, name()), name()
            async with (
                TransactionalProducer(client, name()) as producer,
                TransactionalProducer(client, name()) as filler,
            ):
                async with filler.transaction():
                    await filler.send_columns(source, columns(0, 300))
                done = attempts = 0
                while done < 300:
                    async with Consumer(
                        client,
                        group_id=group,
                        auto_offset_reset="earliest",
                        enable_auto_commit=False,
                        isolation_level="read_committed",
                        records_max=100,
                    ) as consumer:
                        consumer.subscribe([source])
                        while not (taken := await consumer.poll(200)):
                            pass  # some are left for as long as they are not all committed
                        producer.begin()
                        for batch in taken.values():
                            await producer.send_columns(target, batch)
                        offsets = {
                            tp: (batch.offsets or [0])[-1] + 1 for tp, batch in taken.items()
                        }
                        await producer.send_offsets(offsets, consumer.group_metadata())
                        attempts += 1
                        if attempts % 2:
                            await producer.abort()
                        else:
                            await producer.commit()
                            done += sum(map(len, taken.values()))
            assert await read(client, target) == list(range(300))

    run(scenario)


def test_offsets_of_a_member_that_the_group_went_on_without_are_refused(
    run: Run, name: Name
) -> None:
    async def scenario(bootstrap: str) -> None:
        async with (
            Client(bootstrap) as client,
            TransactionalProducer(client, name()) as producer,
            Consumer(client, group_id=name(), isolation_level="read_committed") as consumer,
        ):
            topic = await made(client, name())
            tp = TopicPartition(topic, 0)
            consumer.subscribe([topic])
            while not consumer.assignment:
                await consumer.poll(100)
            current = consumer.group_metadata()
            stale = type(current)(current.group_id, current.generation_id + 1, current.member_id)
            producer.begin()
            with pytest.raises(ApiError, match="ILLEGAL_GENERATION"):
                await producer.send_offsets({tp: 5}, stale)
            await producer.abort()
            async with producer.transaction():
                await producer.send_offsets({tp: 5}, current)
            committed = await consumer.committed([tp])
            assert committed[tp] is not None
            assert committed[tp].offset == 5
            async with producer.transaction():
                await producer.send_offsets({tp: 6}, f"{current.group_id}-plain")

    run(scenario)


def test_the_order_of_calls_is_kept(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name())
            with pytest.raises(ConfigError, match="empty"):
                TransactionalProducer(client, "")
            with pytest.raises(ConfigError, match="acks is 1"):
                TransactionalProducer(client, "tx", acks=1)
            async with TransactionalProducer(client, name()) as producer:
                for call in (producer.commit, producer.abort):
                    with pytest.raises(RuntimeError, match="between transactions"):
                        await call()
                with pytest.raises(RuntimeError, match="between transactions"):
                    await producer.send(topic, b"1")
                producer.begin()
                with pytest.raises(RuntimeError, match="is in a transaction"):
                    producer.begin()
                await producer.send(topic, b"1")
            # leaving it in the midst of a transaction aborts that
            with pytest.raises(RuntimeError, match="the producer is closed"):
                producer.begin()
            for end in (producer.commit, producer.abort):
                with pytest.raises(RuntimeError, match="the producer is closed"):
                    await end()
            with pytest.raises(RuntimeError, match="the producer is closed"):
                await producer.send_offsets({}, "group")
            async with Consumer(client, isolation_level="read_committed") as reader:
                tps = [TopicPartition(topic, p) for p in range(3)]
                ends = await reader.end_offsets(tps)
                async with asyncio.timeout(10):
                    while ends != (ends := await reader.end_offsets(tps)):
                        await asyncio.sleep(0.05)
            assert await read(client, topic) == []

    run(scenario)


def test_a_commit_that_was_broken_off_is_ended_by_the_close(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name())
            async with TransactionalProducer(client, name()) as producer:
                producer.begin()
                await producer.send(topic, b"1")
                await producer.flush()
                async with producer._coordination._in_turn:  # so that the commit has to wait
                    committing = asyncio.create_task(producer.commit())
                    await asyncio.sleep(0.05)
                    committing.cancel()
                    await asyncio.gather(committing, return_exceptions=True)
                assert producer._transaction.state is ProducerState.COMMITTING
            assert await read(client, topic) == [1]

    run(scenario)


def test_timeouts_end_at_the_broker(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = await made(client, name(), 1)
            with pytest.raises(ApiError, match="INVALID_TRANSACTION_TIMEOUT"):
                async with TransactionalProducer(
                    client, name(), transaction_timeout_ms=2_000_000_000
                ):
                    pass
            producer = TransactionalProducer(client, name(), transaction_timeout_ms=100)
            await producer.start()
            producer.begin()
            await producer.send(topic, b"1")
            await producer.flush()
            async with Consumer(client, isolation_level="read_committed") as reader:
                tp = TopicPartition(topic, 0)
                async with asyncio.timeout(30):
                    while await reader.end_offsets([tp]) != {tp: 2}:
                        await asyncio.sleep(0.02)
            with pytest.raises(ApiError, match="PRODUCER_FENCED"):
                await producer.commit()
            await producer.close()

    run(scenario)
