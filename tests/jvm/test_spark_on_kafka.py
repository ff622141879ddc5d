"""Spark's source on Apache Kafka: tables, streams, transactions, moments, group lag.

The tests make the calls that Spark makes, without its JVM.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.spark.source import BatchReader, KafkaliteSource, StreamReader

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ALL = ReadAllAvailable()
MARKER_SECONDS_MAX = 20

Wait = Callable[[Coroutine[Any, Any, Any]], Any]


def values(reader: BatchReader | StreamReader, planned: Any) -> list[int]:
    batches = [batch for each in planned for batch in reader.read(each)]
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def given(kafka: str, topic: str, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka, "subscribe": topic} | options


def table(kafka: str, topic: str, **options: str) -> list[int]:
    reader = BatchReader(given(kafka, topic, **options))
    return values(reader, reader.partitions())


def stable_table(kafka: str, topic: str, count: int) -> list[int]:
    """The table once it has so many records. Apache Kafka answers the end of a transaction before
    its markers are in the log.
    """
    deadline = time.monotonic() + MARKER_SECONDS_MAX
    while len(found := table(kafka, topic)) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def columns(numbers: range) -> Columns:
    return Columns(
        [b"k"] * len(numbers), [b"%d" % n for n in numbers], [1_000 + n for n in numbers]
    )


async def create(kafka: str, topic: str, partitions: int = 1) -> None:
    async with Admin(kafka) as admin:
        await admin.create_topics([NewTopic(topic, partitions)])


async def send(kafka: str, topic: str, numbers: range) -> None:
    async with Producer(kafka) as producer:
        await producer.send_columns(topic, columns(numbers), 0)
        await producer.flush()


@pytest.fixture(scope="module")
def transactions(kafka: str) -> str:
    """A topic: 0 to 9, 10 to 19 of an aborted transaction, 20 to 29 of a committed one."""
    topic = "spark-transactions"

    async def go() -> None:
        await create(kafka, topic)
        await send(kafka, topic, range(10))
        async with TransactionalProducer(kafka, "spark-source") as producer:
            for numbers, end in ((range(10, 20), producer.abort), (range(20, 30), producer.commit)):
                await within(producer, topic, numbers, end)

    asyncio.run(go())
    stable_table(kafka, topic, 20)
    return topic


async def within(
    producer: TransactionalProducer, topic: str, numbers: range, end: Callable[[], Awaitable[None]]
) -> None:
    producer.begin()
    await producer.send_columns(topic, columns(numbers), 0)
    await producer.flush()
    await end()


def test_records_of_aborted_transactions_stay_out(kafka: str, transactions: str) -> None:
    committed = [*range(10), *range(20, 30)]
    assert table(kafka, transactions) == committed
    assert table(kafka, transactions, minPartitions="5") == committed
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    assert table(kafka, transactions, **uncommitted) == list(range(30))


def test_a_query_ends_before_an_open_transaction(kafka: str) -> None:
    async def go() -> tuple[list[int], list[int]]:
        await create(kafka, "spark-open")
        await send(kafka, "spark-open", range(5))
        async with TransactionalProducer(kafka, "spark-open") as producer:
            producer.begin()
            await producer.send_columns("spark-open", columns(range(5, 8)), 0)
            await producer.flush()
            during = await asyncio.to_thread(table, kafka, "spark-open")
            await producer.commit()
        return during, await asyncio.to_thread(stable_table, kafka, "spark-open", 8)

    assert asyncio.run(go()) == (list(range(5)), list(range(8)))


def test_a_query_begins_and_ends_at_moments(kafka: str) -> None:
    asyncio.run(create(kafka, "spark-moments"))
    asyncio.run(send(kafka, "spark-moments", range(10)))
    at = {"startingTimestamp": "1003", "endingTimestamp": "1007"}
    assert table(kafka, "spark-moments", **at) == [3, 4, 5, 6]


def test_batches_of_a_stream_and_the_lag_of_its_group(kafka: str, jvm: Any) -> None:
    """Apache Kafka's own tool sees how far the query is."""
    topic = "spark-stream"
    asyncio.run(create(kafka, topic))
    asyncio.run(send(kafka, topic, range(10)))
    options = given(kafka, topic, startingOffsets="earliest", groupIdPrefix="spark")
    reader = StreamReader(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(6))
    assert values(reader, reader.partitions(start, end)) == list(range(6))
    reader.commit(end)
    told = jvm.run(GROUPS, "--bootstrap-server", kafka, "--describe", "--group", f"spark-{topic}")
    (line,) = [line.split() for line in told.splitlines() if topic in line]
    assert line[1:6] == [topic, "0", "6", "10", "4"] or line[1:7] == [
        topic,
        "0",
        "-",
        "6",
        "10",
        "4",
    ]
    last = reader.latestOffset(end, ALL)
    assert values(reader, reader.partitions(end, last)) == list(range(6, 10))
    reader.stop()


def test_columns_are_those_of_a_registry_in_the_log(kafka: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    asyncio.run(create(kafka, "spark-avro"))

    async def write(found: list[bytes | None]) -> None:
        async with Producer(kafka) as producer:
            await producer.send_columns("spark-avro", Columns([None], found, [0]), 0)
            await producer.flush()

    with LogRegistry(kafka) as registry:
        codec = avro(schema=schema).open(SerdeContext(registry))
        asyncio.run(write(list(codec.serialize("spark-avro", [{"id": 7}]))))
    source = KafkaliteSource(given(kafka, "spark-avro") | {"value.format": "avro"})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    (found,) = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert found.column("value").to_pylist() == [{"id": 7}]
