"""A real broker on real files, real clients: what is left of a compacted topic."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from kafkalite.node import start_node

SETTINGS = {"log.cleaner.backoff.ms": "50", "log.retention.check.interval.ms": "50"}


def create(address: str, topic: str, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    named = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=named)])[topic].result(30)


def alter(address: str, topic: str, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    change = AlterConfigOpType.SET
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=change)
        for key, value in config.items()
    ]
    resource = ConfigResource("topic", topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(30)


def produce(address: str, topic: str, rows: list[tuple[bytes | None, Any]], **config: Any) -> None:
    failed: list[Any] = []
    producer = confluent.Producer({"bootstrap.servers": address, "linger.ms": 0, **config})
    for key, value in rows:
        producer.produce(topic, value, key, on_delivery=lambda e, _: failed.append(e) if e else 0)
        producer.poll(0)
    producer.flush(30)
    if failed:
        raise confluent.KafkaException(failed[0])


def consume(address: str, topic: str) -> list[tuple[int, bytes, Any]]:
    """Everything, from the beginning."""
    consumer = confluent.Consumer(
        {"bootstrap.servers": address, "group.id": "x", "enable.partition.eof": True,
         "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    rows = []
    while True:
        message = consumer.poll(30)
        if message is None or message.error():
            assert message.error().code() == confluent.KafkaError._PARTITION_EOF, message
            break
        rows.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


async def wait_until(check: Any) -> None:
    """Returns once `check` is true; the test's time limit is the only clock."""
    while not check():
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_reader_from_the_beginning_finds_the_latest_of_each_key(
    tmp_path: Path, codec: str
) -> None:
    async def main() -> None:
        node = await start_node(tmp_path, "127.0.0.1:0", SETTINGS)
        address = str(node.address)
        await asyncio.to_thread(
            create, address, "state", cleanup_policy="compact", segment_bytes="20000",
            min_cleanable_dirty_ratio="0.01",
        )  # fmt: skip
        rows = [(b"%d" % (i % 50), b"value %d " % i * 20) for i in range(3_000)]
        rows += [(b"7", None), (b"end", b"")]
        await asyncio.to_thread(
            produce, address, "state", rows, **{"compression.codec": codec, "batch.size": 3_000}
        )
        log = node.broker.partition("state", 0).log
        cleaned = node.broker.logs.cleaned_offsets
        where = log.topic_partition
        await wait_until(lambda: cleaned.get(where) == log.segments[-1].base_offset)
        found = await asyncio.to_thread(consume, address, "state")
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(offsets)
        assert {key: value for _, key, value in found} == dict(rows)
        below = [key for offset, key, _ in found if offset < cleaned[where]]
        assert len(below) == len(set(below)), "one record of each key where it was cleaned"
        assert len(found) < 1_000
        await node.close()
        again = await start_node(tmp_path, "127.0.0.1:0", {"log.cleaner.enable": "false"})
        assert await asyncio.to_thread(consume, str(again.address), "state") == found
        await again.close()

    asyncio.run(main())


def test_compact_and_delete_does_both(tmp_path: Path) -> None:
    async def main() -> None:
        node = await start_node(tmp_path, "127.0.0.1:0", SETTINGS)
        address = str(node.address)
        await asyncio.to_thread(
            create, address, "state", cleanup_policy="compact,delete", segment_bytes="2000",
            min_cleanable_dirty_ratio="0.01", retention_records="200", retention_ms="-1",
            min_compaction_lag_ms="3600000",
        )  # fmt: skip
        rows = [(b"%d" % (i % 5), b"v" * 100) for i in range(1_000)]
        await asyncio.to_thread(produce, address, "state", rows, **{"batch.size": 500})
        log = node.broker.partition("state", 0).log
        # a cleaning before would merge segments into one that reaches into the last 200 offsets
        await wait_until(lambda: log.log_start_offset >= 700)
        assert log.topic_partition not in node.broker.logs.cleaned_offsets
        await asyncio.to_thread(alter, address, "state", min_compaction_lag_ms="0")
        await wait_until(
            lambda: node.broker.logs.cleaned_offsets.get(log.topic_partition, 0) >= 900
        )
        found = await asyncio.to_thread(consume, address, "state")
        assert {key for _, key, _ in found} == {b"%d" % i for i in range(5)}
        assert len(found) < 150
        await node.close()

    asyncio.run(main())


def test_a_record_without_a_key_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        node = await start_node(tmp_path, "127.0.0.1:0", SETTINGS)
        address = str(node.address)
        await asyncio.to_thread(create, address, "state", cleanup_policy="compact")
        for codec in ("none", "lz4"):
            with pytest.raises(confluent.KafkaException, match="INVALID_RECORD"):
                await asyncio.to_thread(
                    produce, address, "state", [(b"k", b"v"), (None, b"v")],
                    **{"compression.codec": codec},
                )  # fmt: skip
        await node.close()

    asyncio.run(main())


def transact(address: str, topic: str, count: int) -> dict[bytes, bytes]:
    """Transactions in turn committed and aborted; what is committed of each key."""
    producer = confluent.Producer(
        {"bootstrap.servers": address, "transactional.id": "t", "linger.ms": 0}
    )
    producer.init_transactions(30)
    state = {}
    for i in range(count):
        producer.begin_transaction()
        rows = {b"%d" % (i * j % 23): b"%d " % i * 20 for j in range(1, 6)}
        for key, value in rows.items():
            producer.produce(topic, value, key)
        if i % 3:
            producer.commit_transaction(30)
            state |= rows
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    return state


@pytest.mark.slow
def test_committed_readers_find_what_was_committed(tmp_path: Path) -> None:
    async def main() -> None:
        node = await start_node(tmp_path, "127.0.0.1:0", SETTINGS)
        address = str(node.address)
        await asyncio.to_thread(
            create, address, "state", cleanup_policy="compact", segment_bytes="4000",
            min_cleanable_dirty_ratio="0.01", delete_retention_ms="100",
        )  # fmt: skip
        state = await asyncio.to_thread(transact, address, "state", 120)
        log = node.broker.partition("state", 0).log
        cleaned = node.broker.logs.cleaned_offsets
        where = log.topic_partition
        await wait_until(lambda: cleaned.get(where) == log.segments[-1].base_offset)
        found = await asyncio.to_thread(consume, address, "state")
        assert {key: value for _, key, value in found} == state
        assert len(found) < 120 * 5 / 2
        await node.close()
        again = await start_node(tmp_path, "127.0.0.1:0", {"log.cleaner.enable": "false"})
        assert await asyncio.to_thread(consume, str(again.address), "state") == found
        more = await asyncio.to_thread(transact, str(again.address), "state", 2)
        found = await asyncio.to_thread(consume, str(again.address), "state")
        assert {key: value for _, key, value in found} == state | more, "the producer goes on"
        await again.close()

    asyncio.run(main())


def commit(address: str, group: str, offsets: range) -> None:
    """One commit for each offset."""
    consumer = confluent.Consumer({"bootstrap.servers": address, "group.id": group})
    for offset in offsets:
        place = confluent.TopicPartition("state", 0, offset)
        consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def committed(address: str, group: str) -> int:
    consumer = confluent.Consumer({"bootstrap.servers": address, "group.id": group})
    (place,) = consumer.committed([confluent.TopicPartition("state", 0)], timeout=30)
    consumer.close()
    return int(place.offset)


def test_groups_remember_their_offsets_after_their_log_was_cleaned(tmp_path: Path) -> None:
    async def main() -> None:
        settings = SETTINGS | {
            "offsets.topic.num.partitions": "1",
            "offsets.topic.segment.bytes": "3000",
            "log.cleaner.min.cleanable.ratio": "0.01",
        }
        node = await start_node(tmp_path, "127.0.0.1:0", settings)
        address = str(node.address)
        await asyncio.to_thread(create, address, "state")
        await asyncio.to_thread(commit, address, "old", range(7, 8))
        for start in (1, 101, 201):
            await asyncio.to_thread(commit, address, "busy", range(start, start + 100))
        log = node.broker.partition("__consumer_offsets", 0).log
        cleaned = node.broker.logs.cleaned_offsets
        await wait_until(lambda: cleaned.get(log.topic_partition) == log.segments[-1].base_offset)
        assert sum(segment.size_bytes for segment in log.segments[:-1]) < 2_000
        await node.close()
        again = await start_node(tmp_path, "127.0.0.1:0", settings)
        address = str(again.address)
        assert await asyncio.to_thread(committed, address, "busy") == 300
        assert await asyncio.to_thread(committed, address, "old") == 7
        await again.close()

    asyncio.run(main())
