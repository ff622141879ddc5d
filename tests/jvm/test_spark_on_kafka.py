"""Spark's source and sink on Apache Kafka: tables, streams, transactions, moments, group lag.

The tests make the calls that Spark makes, without its JVM; a deep one runs streams of Spark.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns
from kafkalite.errors import KafkaliteError
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.spark.failures import our_failures
from kafkalite.spark.sink.epochs import Epoch, commit
from kafkalite.spark.sink.options import parse_sink_options
from kafkalite.spark.sink.rows import records_of
from kafkalite.spark.sink.writers import BatchWriter
from kafkalite.spark.source import BatchReader, KafkaliteSource, StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ALL = ReadAllAvailable()
MARKER_SECONDS_MAX = 20

ROWS = StructType().add("key", "string").add("value", "string")
GUARANTEES = ("at-least-once", "exactly-once")

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


# ---- the sink ----------------------------------------------------------------------------------


def rows(numbers: range) -> pa.RecordBatch:
    texts = [str(number) for number in numbers]
    return pa.RecordBatch.from_pydict({"key": texts, "value": texts})


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_table_becomes_records(kafka: str, tmp_path: Path, guarantee: str) -> None:
    topic = f"spark-sink-{guarantee}"
    asyncio.run(create(kafka, topic, 2))
    options = {"kafka.bootstrap.servers": kafka, "topic": topic, "deliveryGuarantee": guarantee}
    options |= {"stagingLocation": str(tmp_path)} if guarantee == "exactly-once" else {}
    writer = BatchWriter(options, ROWS)
    written = [writer.write(iter([rows(range(n, n + 50))])) for n in (0, 50)]
    staged = table(kafka, topic)
    writer.commit(written)
    assert sorted(stable_table(kafka, topic, 100)) == list(range(100))
    assert len(staged) == (0 if guarantee == "exactly-once" else 100)


def test_an_epoch_is_there_once_and_as_a_whole(kafka: str) -> None:
    """Apache Kafka says with a transaction's record that the epoch was committed."""
    topic = "spark-epochs"
    asyncio.run(create(kafka, topic))
    given = {"kafka.bootstrap.servers": kafka, "deliveryGuarantee": "exactly-once"}
    options = parse_sink_options(given | {"stagingLocation": "/unused"})

    def batches(first: int, *, is_broken: bool = False) -> Iterator[pa.RecordBatch]:
        yield from records_of(rows(range(first, first + 10)), topic, {}, 1_000)
        if is_broken:
            raise KafkaliteError("the file is gone")

    assert commit(options, "spark-epochs", batches(0), Epoch("query", 0))
    assert not commit(options, "spark-epochs", batches(0), Epoch("query", 0))
    with pytest.raises(KafkaliteError, match="the file is gone"):
        commit(options, "spark-epochs", batches(10, is_broken=True), Epoch("query", 1))
    assert commit(options, "spark-epochs", batches(10), Epoch("query", 1))
    assert stable_table(kafka, topic, 20) == list(range(20))
    aborted = table(kafka, topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert sorted(set(aborted)) == list(range(20))


@pytest.mark.deep
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_stream_of_spark_is_copied(
    spark: SparkSession, kafka: str, tmp_path: Path, guarantee: str
) -> None:
    """A query that goes on where it was, after each of two runs."""
    source, sink = f"spark-stream-{guarantee}", f"spark-copies-{guarantee}"
    asyncio.run(create(kafka, source))
    asyncio.run(create(kafka, sink))
    servers = {"kafka.bootstrap.servers": kafka}
    read = spark.readStream.format("kafkalite").options(**servers, subscribe=source)
    read = read.options(startingOffsets="earliest", maxOffsetsPerTrigger="400")
    write = read.load().select("key", "value", "timestamp").writeStream.format("kafkalite")
    write = write.queryName("copies").options(**servers, topic=sink, deliveryGuarantee=guarantee)
    write = write.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    for first in (0, 1_000):
        asyncio.run(send(kafka, source, range(first, first + 1_000)))
        with our_failures("the stream"):
            write.start().awaitTermination()
        assert stable_table(kafka, sink, first + 1_000) == list(range(first + 1_000))
