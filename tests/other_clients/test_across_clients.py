"""What one client writes, every other reads: ours, confluent-kafka, kafka-python, aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest

from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import TopicPartition

SECONDS_MAX = 30.0
EPOCH_MS = 1_700_000_000_000
PARTITIONS = 4


class Record(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]


RECORDS = [
    Record(b"key %d" % i, None if i % 10 == 9 else b"value %d" % i, EPOCH_MS + i, headers)
    for i in range(200)
    for headers in [(("n", b"%d" % i), ("empty", b"")) if i % 3 else ()]
]


# ---- writers: (bootstrap, topic, compression) ----------------------------------------------------


def write_ours(bootstrap: str, topic: str, codec: str) -> None:
    async def run() -> None:
        async with Producer(bootstrap, compression=codec, linger_ms=20) as producer:
            for r in RECORDS:
                await producer.send(
                    topic, r.value, r.key, timestamp_ms=r.timestamp, headers=r.headers
                )

    asyncio.run(run())


def write_confluent(bootstrap: str, topic: str, codec: str) -> None:
    # librdkafka hashes with CRC-32 unless told to do as the Java client does.
    config = {"partitioner": "murmur2_random", "compression.type": codec, "linger.ms": 20}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **config})
    for r in RECORDS:
        producer.produce(
            topic, r.value, r.key, timestamp=r.timestamp, headers=list(r.headers) or None
        )
    assert producer.flush(SECONDS_MAX) == 0


def write_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    config = {"compression_type": None if codec == "none" else codec, "linger_ms": 20}
    with closing(kafka.KafkaProducer(bootstrap_servers=bootstrap, **config)) as producer:
        for r in RECORDS:
            producer.send(topic, r.value, r.key, list(r.headers), timestamp_ms=r.timestamp)
        producer.flush(SECONDS_MAX)


def write_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    compression = None if codec == "none" else codec

    async def run() -> None:
        config = {"compression_type": compression, "linger_ms": 20}
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **config) as producer:
            for r in RECORDS:
                await producer.send(
                    topic, r.value, r.key, timestamp_ms=r.timestamp, headers=list(r.headers)
                )

    asyncio.run(run())


# ---- readers: (bootstrap, topic) -> every partition's records ------------------------------------

Read = dict[int, list[Record]]


def grouped(places: list[tuple[int, int, Record]]) -> Read:
    """By partition, in the order of arrival, which must be that of the offsets."""
    read: Read = {index: [] for index in range(PARTITIONS)}
    for partition, offset, record in places:
        assert offset == len(read[partition])
        read[partition].append(record)
    return read


def read_ours(bootstrap: str, topic: str) -> Read:
    places: list[tuple[int, int, Record]] = []

    async def run() -> None:
        async with asyncio.timeout(SECONDS_MAX), Consumer(bootstrap) as consumer:
            consumer.assign(wanted := [TopicPartition(topic, p) for p in range(PARTITIONS)])
            consumer.seek_to_beginning(wanted)
            while len(places) < len(RECORDS):
                for where, batch in (await consumer.poll(1_000)).items():
                    for i in range(len(batch)):
                        headers = batch.headers[i] if batch.headers else ()
                        assert batch.offsets is not None
                        record = Record(
                            batch.keys[i], batch.values[i], batch.timestamps[i], tuple(headers)
                        )
                        places.append((where.partition, batch.offsets[i], record))

    asyncio.run(run())
    return grouped(places)


def read_confluent(bootstrap: str, topic: str) -> Read:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    beginning = confluent_kafka.OFFSET_BEGINNING
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, p, beginning) for p in range(PARTITIONS)]
    )
    messages = consumer.consume(len(RECORDS), SECONDS_MAX)
    consumer.close()
    assert len(messages) == len(RECORDS)
    return grouped(
        [
            (
                m.partition(),
                m.offset(),
                Record(m.key(), m.value(), m.timestamp()[1], tuple(m.headers() or ())),
            )
            for m in messages
        ]
    )


def plain(message: Any) -> tuple[int, int, Record]:
    """A message of kafka-python or aiokafka."""
    m = message
    return m.partition, m.offset, Record(m.key, m.value, m.timestamp, tuple(m.headers))


def read_kafka_python(bootstrap: str, topic: str) -> Read:
    with closing(
        kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=SECONDS_MAX * 1_000)
    ) as consumer:
        consumer.assign([kafka.TopicPartition(topic, p) for p in range(PARTITIONS)])
        consumer.seek_to_beginning()
        return grouped([plain(message) for _, message in zip(RECORDS, consumer, strict=False)])


def read_aiokafka(bootstrap: str, topic: str) -> Read:
    async def run() -> list[Any]:
        async with (
            asyncio.timeout(SECONDS_MAX),
            aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer,
        ):
            consumer.assign([aiokafka.TopicPartition(topic, p) for p in range(PARTITIONS)])
            await consumer.seek_to_beginning()
            return [await consumer.getone() for _ in RECORDS]

    return grouped([plain(message) for message in asyncio.run(run())])


WRITERS = [write_ours, write_confluent, write_kafka_python, write_aiokafka]
READERS = [read_ours, read_confluent, read_kafka_python, read_aiokafka]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_all_read_what_one_wrote(
    bootstrap: str,
    make_topic: Callable[[int], str],
    write: Callable[[str, str, str], None],
    codec: str,
) -> None:
    """Every key's records are in one partition, the same for all writers, in their order."""
    topic = make_topic(PARTITIONS)
    write(bootstrap, topic, codec)
    expected = read_ours(bootstrap, topic)
    assert sorted(record for records in expected.values() for record in records) == sorted(RECORDS)
    assert {p: [r.key for r in records] for p, records in expected.items()} == by_java()
    for read in READERS[1:]:
        assert read(bootstrap, topic) == expected, read.__name__


def by_java() -> dict[int, list[bytes]]:
    """Where the Java client's partitioner puts the keys, as kafka-python has it."""
    from kafka.partitioner.default import murmur2

    placed: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    for record in RECORDS:
        placed[(murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS].append(record.key)
    return placed
