"""The consumer against a real broker, on its own: positions, resets, limits, offsets, errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, OffsetAndMetadata
from kafkalite.clients.consumer.fetcher import Fetcher
from kafkalite.clients.consumer.positions import FetchSettings, Positions
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ConfigError, ErrorCode

Run = Callable[[Any], None]
Name = Callable[[], str]


async def filled(
    client: Client, topic: str, count: int = 100, partitions: int = 1, batch_bytes: int = 1_000
) -> list[TopicPartition]:
    """A new topic with `count` records in each partition; record i has timestamp 1,000 + i."""
    async with Admin(client) as admin, Producer(client, batch_bytes=batch_bytes) as producer:
        await admin.create_topics([NewTopic(topic, partitions)])
        for partition in range(partitions):
            await producer.send_columns(topic, numbered(0, count), partition=partition)
    return [TopicPartition(topic, p) for p in range(partitions)]


def numbered(start: int, stop: int) -> Columns:
    numbers = range(start, stop)
    return Columns(
        [None] * len(numbers), [b"%d" % i for i in numbers], [1_000 + i for i in numbers]
    )


async def polled(consumer: Consumer, count: int) -> list[int]:
    """The values of the next `count` records, whichever partitions they are from."""
    seen: list[int] = []
    while len(seen) < count:
        taken = await consumer.poll(10_000)
        assert taken, f"{len(seen)} records, then nothing for 10 s"
        for columns in taken.values():
            seen += map(int, columns.values)
    return seen


def test_from_the_beginning_to_the_end(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            tps = await filled(client, name(), 500, partitions=3)
            async with Consumer(client, auto_offset_reset="earliest") as consumer:
                consumer.assign(tps)
                assert consumer.position(tps[0]) is None
                seen = await polled(consumer, 1_500)
                assert sorted(seen) == sorted([*range(500)] * 3)
                assert [consumer.position(tp) for tp in tps] == [500] * 3
                assert [consumer.lag(tp) for tp in tps] == [0] * 3
                assert await consumer.poll(50) == {}

    run(scenario)


def test_latest_gives_what_comes_from_now_on(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            (tp,) = await filled(client, name())
            async with Consumer(client, auto_offset_reset="latest") as consumer:
                consumer.assign([tp])
                while consumer.position(tp) is None:
                    assert await consumer.poll(10) == {}
                await producer.send_columns(tp.topic, numbered(100, 110), partition=0)
                assert await polled(consumer, 10) == list(range(100, 110))

    run(scenario)


def test_a_waiting_poll_ends_when_a_record_comes(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Producer(client) as producer:
            (tp,) = await filled(client, name(), 1)
            async with Consumer(client) as consumer:
                consumer.assign([tp])
                consumer.seek(tp, 1)
                polling = asyncio.create_task(consumer.poll(60_000))
                await asyncio.sleep(0.05)
                await producer.send(tp.topic, b"7")
                assert list((await polling)[tp].values) == [b"7"]

    run(scenario)


def test_seek_to_an_offset_within_a_batch(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            (tp,) = await filled(client, name(), batch_bytes=1_000_000)
            async with Consumer(client) as consumer:
                consumer.assign([tp])
                consumer.seek(tp, 42)
                assert (await polled(consumer, 58))[0] == 42
                consumer.seek(tp, 7)
                assert (await polled(consumer, 93))[0] == 7
                consumer.seek_to_beginning([tp])
                assert (await polled(consumer, 100))[0] == 0
                consumer.seek_to_end([tp])
                assert await consumer.poll(100) == {}
                assert consumer.position(tp) == 100
                with pytest.raises(ValueError, match="offset -5 is negative"):
                    consumer.seek(tp, -5)
                with pytest.raises(ValueError, match="is not assigned"):
                    consumer.seek(TopicPartition("other", 0), 0)

    run(scenario)


def test_records_max_bounds_a_poll(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            tps = await filled(client, name(), 100, partitions=2)
            async with Consumer(client, auto_offset_reset="earliest", records_max=30) as consumer:
                consumer.assign(tps)
                seen: dict[TopicPartition, list[int]] = {tp: [] for tp in tps}
                while sum(map(len, seen.values())) < 200:
                    taken = await consumer.poll(10_000)
                    assert 0 < sum(map(len, taken.values())) <= 30
                    for tp, columns in taken.items():
                        seen[tp] += map(int, columns.values)
                        assert consumer.position(tp) == len(seen[tp])
                assert seen == {tp: list(range(100)) for tp in tps}

    run(scenario)


def test_small_fetches_lose_nothing(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            (tp,) = await filled(client, name(), 2_000)
            async with Consumer(
                client,
                auto_offset_reset="earliest",
                max_partition_fetch_bytes=100,
                fetch_max_bytes=100,
            ) as consumer:
                consumer.assign([tp])
                assert await polled(consumer, 2_000) == list(range(2_000))

    run(scenario)


def test_a_paused_partition_gives_nothing(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            tps = await filled(client, name(), 10, partitions=2)
            async with Consumer(client, auto_offset_reset="earliest") as consumer:
                consumer.assign(tps)
                consumer.pause(tps[:1])
                assert consumer.paused == (tps[0],)
                assert await polled(consumer, 10) == list(range(10))
                assert await consumer.poll(50) == {}
                consumer.resume(tps[:1])
                assert await polled(consumer, 10) == list(range(10))

    run(scenario)


def test_partitions_that_stay_assigned_go_on(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            tps = await filled(client, name(), 10, partitions=2)
            async with Consumer(client, auto_offset_reset="earliest") as consumer:
                consumer.assign(tps[:1])
                await polled(consumer, 10)
                consumer.assign(tps)
                assert await polled(consumer, 10) == list(range(10))
                assert consumer.position(tps[0]) == 10
                consumer.assign([])
                assert consumer.assignment == ()

    run(scenario)


def test_an_offset_outside_the_log_is_reset(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            (tp,) = await filled(client, name(), 10)
            async with Consumer(client, auto_offset_reset="earliest") as consumer:
                consumer.assign([tp])
                consumer.seek(tp, 1_000)
                assert await polled(consumer, 10) == list(range(10))

    run(scenario)


def test_an_offset_outside_the_log_is_an_error_without_a_reset(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            (tp,) = await filled(client, name(), 10)
            async with Consumer(client, auto_offset_reset="none") as consumer:
                consumer.assign([tp])
                with pytest.raises(ApiError, match=f"{tp}: there is no committed offset"):
                    await consumer.poll(10_000)
                consumer.seek(tp, 1_000)
                with pytest.raises(ApiError, match=f"{tp}: offset 1000 is not in the log"):
                    await consumer.poll(10_000)
                consumer.seek(tp, 5)
                assert await polled(consumer, 5) == [5, 6, 7, 8, 9]

    run(scenario)


def test_offsets_by_time_and_ends(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Consumer(client) as consumer:
            tps = await filled(client, name(), 100, partitions=2)
            assert await consumer.beginning_offsets(tps) == dict.fromkeys(tps, 0)
            assert await consumer.end_offsets(tps) == dict.fromkeys(tps, 100)
            found = await consumer.offsets_for_times({tps[0]: 1_050, tps[1]: 9_999})
            there = found[tps[0]]
            assert there is not None
            assert (there.offset, there.timestamp) == (50, 1_050)
            assert found[tps[1]] is None

    run(scenario)


def test_the_offsets_of_a_missing_topic_are_an_error(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        missing = TopicPartition(name(), 0)
        async with Consumer(bootstrap) as consumer:
            with pytest.raises(ApiError, match=f"topic {missing.topic} does not exist") as caught:
                await consumer.end_offsets([missing])
            assert caught.value.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_offsets_are_committed_with_their_notes(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            tps = await filled(client, name(), 10, partitions=2)
            group = name()
            async with Consumer(client, group_id=group, enable_auto_commit=False) as consumer:
                assert await consumer.committed(tps) == dict.fromkeys(tps)
                consumer.assign(tps)
                consumer.seek_to_beginning(tps)
                await polled(consumer, 20)
                await consumer.commit({tps[0]: OffsetAndMetadata(4, metadata="stream time 17")})
                kept = (await consumer.committed(tps))[tps[0]]
                assert kept is not None
                assert (kept.offset, kept.metadata) == (4, "stream time 17")
                await consumer.commit({tps[0]: 5})
            async with Consumer(client, group_id=group, auto_offset_reset="earliest") as another:
                another.assign(tps[:1])
                assert await polled(another, 5) == [5, 6, 7, 8, 9]
                await another.commit()
                assert (await another.committed(tps[:1]))[tps[0]] is not None

    run(scenario)


def test_what_needs_a_group_says_so(run: Run) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Consumer(bootstrap) as consumer:
            for call in (lambda: consumer.subscribe(["t"]), consumer.group_metadata):
                with pytest.raises(ConfigError, match="needs a group_id"):
                    call()
            with pytest.raises(ConfigError, match="commit needs a group_id"):
                await consumer.commit()

    run(scenario)


def test_one_consumer_is_polled_by_one_task(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Consumer(client) as consumer:
            (tp,) = await filled(client, name(), 1)
            consumer.assign([tp])
            polling = asyncio.create_task(consumer.poll(60_000))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await consumer.poll()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            assert await consumer.poll() == {}  # a cancelled poll leaves nothing behind
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll()

    run(scenario)


def test_a_cancel_ends_a_wait_that_has_just_been_woken(run: Run) -> None:
    async def scenario(bootstrap: str) -> None:
        positions = Positions(FetchSettings(), random.Random())
        async with Client(bootstrap) as client:
            fetcher = Fetcher(client, positions)
            waiting = asyncio.create_task(fetcher.wait(60))
            await asyncio.sleep(0)
            fetcher.wake()
            waiting.cancel()  # both before the task runs again
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await fetcher.close()

    run(scenario)


def test_settings_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"auto_offset_reset": "newest"}, "auto_offset_reset is 'newest'"),
        ({"isolation_level": "serializable"}, "isolation_level is 'serializable'"),
        ({"records_max": 0}, "records_max is 0"),
        ({"group_instance_id": "i"}, "without a group_id"),
        ({"group_id": "g", "heartbeat_interval_ms": 60_000}, "not below session_timeout_ms, 45000"),
    ]
    for settings, message in wrong:
        with pytest.raises(ConfigError, match=message):
            Consumer("h:1", **settings)
