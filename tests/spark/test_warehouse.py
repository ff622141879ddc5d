"""Spark against a real broker: what it reads is what was sent, and no range is loaded twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from kafkalite.cli.spark import Answer, ask, show
from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, TopicPartition, Windowed
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ConfigError, SchemaError, SerdeError, StorageError
from kafkalite.serde import SerdeContext, avro, string, windowed
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.spark.engine import SparkEngine
from kafkalite.spark.options import format_offsets
from kafkalite.spark.source import BatchReader
from kafkalite.spark.views import read_table as view
from kafkalite.warehouse.load import Layout, Loaded
from kafkalite.warehouse.tables import TopicLoad

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "price", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def load_topic(spark: SparkSession, address: str, load: TopicLoad, warehouse: Path) -> Loaded:
    engine = SparkEngine(lambda: spark, str(warehouse))
    return load.into(warehouse, address, engine, Layout(partition_by="day")).run()


def read_table(spark: SparkSession, warehouse: Path, load: TopicLoad) -> bool:
    return view(spark, warehouse / load.table)


def order(i: int) -> dict[str, Any]:
    return {
        "id": i,
        "item": f"item-{i}" if i % 3 else None,
        "price": i / 4,
        "tags": ["a"] * (i % 3),
    }


def send(address: str, topic: str, ids: range, *, window: bool = False) -> None:
    """Orders `ids`, keyed by their number modulo 7, one every ten minutes."""

    async def go() -> None:
        async with Admin(address) as admin:
            if topic not in await admin.list_topics():
                await admin.create_topics([NewTopic(topic, 3, configs={"retention.ms": "-1"})])
        key = windowed(string(), size="1h") if window else string()
        hours = [i * 600_000 // 3_600_000 * 3_600_000 for i in ids]
        keys: list[Any] = [f"k{i % 7}" for i in ids]
        if window:
            keys = [Windowed(k, h, h + 3_600_000) for k, h in zip(keys, hours, strict=True)]
        with LogRegistry(address) as registry:
            values = avro(schema=ORDER).open(SerdeContext(registry))
            columns = Columns(
                key.open(SerdeContext(is_key=True)).serialize(topic, keys),
                values.serialize(topic, [order(i) for i in ids]),
                [i * 600_000 for i in ids],
            )
        async with Producer(address) as producer:
            await producer.send_columns(topic, columns)
            await producer.flush()

    asyncio.run(go())


def rows_of(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    """The table's orders by id, as they were sent."""
    names = ("id", "item", "price", "tags")
    rows = spark.sql(f"SELECT * FROM {table} ORDER BY id").collect()
    return [{name: row[name] for name in names} for row in rows]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_sql_reads_tables_of_other_kinds_without_a_jar(
    address: str, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    load = TopicLoad(f"orders-{kind}", key_format="string", table_format=kind)
    send(address, load.topic, range(50))
    assert load_topic(spark, address, load, tmp_path).records == 50
    assert read_table(spark, tmp_path, load)
    assert rows_of(spark, load.table) == [order(i) for i in range(50)]


def test_a_load_holds_every_row_once_however_often_it_runs(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    load = TopicLoad("orders-once", key_format="string")
    send(address, load.topic, range(500))
    assert load_topic(spark, address, load, tmp_path).records == 500
    assert load_topic(spark, address, load, tmp_path).records == 0
    send(address, load.topic, range(500, 700))
    assert load_topic(spark, address, load, tmp_path).records == 200
    assert read_table(spark, tmp_path, load)
    assert rows_of(spark, load.table) == [order(i) for i in range(700)]
    keyed = spark.sql(f"SELECT id, key, _timestamp, day FROM {load.table}").collect()
    assert all(row.key == f"k{row.id % 7}" for row in keyed)
    assert all(row.day.toordinal() - 719_163 == row.id * 600_000 // DAY_MS for row in keyed)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_are_updated_and_deleted_by_tasks_of_spark(
    address: str, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Changes of many keys in three partitions: some keys change twice, some end, some return."""
    load = TopicLoad(
        f"customers-{kind}", key_format="string", value_format="string", table_format=kind,
        upsert=True,
    )  # fmt: skip
    rows: dict[str, str] = {}

    def change(changes: list[tuple[int, str | None]]) -> Loaded:
        asyncio.run(put(changes))
        for number, value in changes:
            rows[f"c{number}"] = "" if value is None else value
        return load_topic(spark, address, load, tmp_path)

    async def put(changes: list[tuple[int, str | None]]) -> None:
        async with Admin(address) as admin:
            await admin.create_missing_topics([NewTopic(load.topic, 3)])
        async with Producer(address) as producer:
            for number, value in changes:
                text = None if value is None else value.encode()
                await producer.send(load.topic, text, key=f"c{number}".encode())
            await producer.flush()

    def check() -> None:
        assert read_table(spark, tmp_path, load)
        found = spark.sql(f"SELECT key, value FROM `{load.table}`").collect()
        assert len(found) == len({row.key for row in found})
        assert {row.key: row.value for row in found} == {k: v for k, v in rows.items() if v}

    assert change([(number, "first") for number in range(300)]).updated == 300
    check()
    updates: list[tuple[int, str | None]] = [(number, "second") for number in range(0, 300, 3)]
    deletes: list[tuple[int, str | None]] = [(number, None) for number in range(0, 300, 7)]
    done = change([*updates, *deletes, (0, "back"), (300, "new")])
    assert (done.updated, done.deleted) == (87, 42)
    check()
    assert load_topic(spark, address, load, tmp_path).records == 0
    check()


def test_a_load_ends_before_a_transaction_that_is_open(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    load = TopicLoad("orders-open", value_format="string")
    one = Columns([None], [b"v"], [DAY_MS])

    def loaded() -> int:
        return load_topic(spark, address, load, tmp_path).records

    async def go() -> None:
        async with Producer(address) as plain:
            await plain.send_columns(load.topic, one)
        async with TransactionalProducer(
            address, "spark-tests", transaction_timeout_ms=300_000
        ) as producer:
            async with producer.transaction():
                await producer.send_columns(load.topic, one)
                await producer.flush()
                assert await asyncio.to_thread(loaded) == 1
            assert await asyncio.to_thread(loaded) == 1

    asyncio.run(go())
    assert loaded() == 0


def test_sql_sees_rows_under_any_name_of_a_topic_and_of_any_time(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    warehouse, load = tmp_path / "of [all] {kinds}*", TopicLoad("_2024.orders")
    number = record("Number", id="int")
    late = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}

    async def create() -> None:
        async with Admin(address) as admin:
            await admin.create_topics([NewTopic(load.topic, 1, configs=late)])

    asyncio.run(create())
    for day in (1, 5_000_000):
        send_one(address, load.topic, number, {"id": day}, day)
    load_topic(spark, address, load, warehouse)
    read_table(spark, warehouse, load)
    rows = spark.sql("SELECT id, day FROM topic_2024_orders ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, date(1970, 1, 2)), (5_000_000, None)]


def test_what_a_task_failed_with_is_raised_as_it_was(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    load = TopicLoad("numbers-spoilt")
    send_one(address, load.topic, record("Number", id="int"), {"id": 1}, 1)
    for topic in (load.topic, "strange"):
        asyncio.run(send_columns(address, topic, Columns([None], [b"no Avro"], [0])))
    with pytest.raises(SerdeError, match=r"^numbers-spoilt-0 offset 1: .*not Confluent's"):
        load_topic(spark, address, load, tmp_path)
    with pytest.raises(SchemaError, match=r"^subject 'strange-value' is not known"):
        load_topic(spark, address, TopicLoad("strange"), tmp_path)


def test_an_answer_is_in_utc_and_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        asked = ask(
            spark,
            tmp_path,
            "SELECT timestamp '1970-01-02 03:04:05' AS at, named_struct('a', map('k', 1.5D)) AS s,"
            " X'00ff' AS bytes, CAST('1.25' AS decimal(9, 2)) AS price, '[/x]' AS text, 1 AS text",
        )
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    at = datetime(1970, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert asked.names == ["at", "s", "bytes", "price", "text", "text"]
    assert asked.rows == [(at, {"a": {"k": 1.5}}, b"\x00\xff", Decimal("1.25"), "[/x]", 1)]


def test_an_answer_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(Answer(["[b]"], [("[/x]",), ("[red]",)]))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[b]", "[/x]", "[red]"))


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("SELEC 1", r"q\.sql: \[PARSE_SYNTAX_ERROR\] Syntax error at or near 'SELEC'"),
        ("SELECT 1 FROM nowhere", r"q\.sql: \[TABLE_OR_VIEW_NOT_FOUND\]"),
        ("SELECT timestamp_micros(9000000000000000000)", r"q\.sql: a time beyond the years"),
    ],
)
def test_a_query_that_cannot_be_answered_is_one_line(
    spark: SparkSession, sql: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as raised:
        ask(spark, Path("q.sql"), sql)
    assert "\n" not in str(raised.value)


def test_a_windowed_key_becomes_columns(address: str, spark: SparkSession, tmp_path: Path) -> None:
    load = TopicLoad("orders-windowed", key_format="windowed:1h")
    send(address, load.topic, range(20), window=True)
    load_topic(spark, address, load, tmp_path)
    read_table(spark, tmp_path, load)
    rows = spark.sql(f"SELECT id, key, window_start, window_end FROM {load.table}").collect()
    assert len(rows) == 20
    for row in rows:
        assert row.key == f"k{row.id % 7}"
        assert (row.window_end - row.window_start).total_seconds() == 3600


async def send_columns(address: str, topic: str, columns: Columns) -> None:
    async with Producer(address) as producer:
        await producer.send_columns(topic, columns)


def send_one(address: str, topic: str, schema: Any, value: Any, day: int) -> None:
    with LogRegistry(address) as registry:
        values = avro(schema=schema).open(SerdeContext(registry)).serialize(topic, [value])

    async def go() -> None:
        async with Producer(address) as producer:
            await producer.send_columns(topic, Columns([None], values, [day * DAY_MS]))
            await producer.flush()

    asyncio.run(go())


def record(name: str, **fields: Any) -> dict[str, Any]:
    """A schema; what is no type alone is a type and a default."""
    described = [
        {"name": field, "type": told[0], "default": told[1]}
        if isinstance(told, tuple)
        else {"name": field, "type": told}
        for field, told in fields.items()
    ]
    return {"type": "record", "name": name, "fields": described}


def test_logical_types_are_columns_of_their_own(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    load = TopicLoad("payments")
    sent = {"amount": Decimal("12.345"), "id": UUID(int=5), "wall": datetime(2024, 5, 6, 7, 8, 9)}
    schema = record(
        "Payment",
        amount={"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        id={"type": "string", "logicalType": "uuid"},
        wall={"type": "long", "logicalType": "local-timestamp-micros"},
    )
    send_one(address, load.topic, schema, sent, day=1)
    load_topic(spark, address, load, tmp_path)
    read_table(spark, tmp_path, load)
    (row,) = spark.sql("SELECT amount, id, wall FROM payments").collect()
    assert row.asDict() == sent | {"id": str(sent["id"])}


def test_a_field_named_as_the_folders_are_is_in_the_files(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    load = TopicLoad("visits")
    send_one(address, load.topic, record("Visit", id="int", day="int"), {"id": 1, "day": 31}, day=6)
    load_topic(spark, address, load, tmp_path)
    read_table(spark, tmp_path, load)
    (row,) = spark.sql("SELECT id, day FROM visits").collect()
    assert (row.id, row.day) == (1, date(1970, 1, 7))
    (file,) = (tmp_path / load.table).glob("day=1970-01-07/*.parquet")
    assert pq.ParquetFile(file).read().column("day").to_pylist() == [31]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_sql_sees_the_columns_of_the_newest_load(
    address: str, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    load = TopicLoad(f"readings-{kind}", table_format=kind)
    older = record("Reading", id="int", gone=("string", ""), at="string")
    newer = record("Reading", id="long", celsius=("double", 0.0), place="string")
    newer["fields"][-1]["aliases"] = ["at"]
    for schema, value, day in (
        (older, {"id": 1, "gone": "x", "at": "a"}, 5),
        (newer, {"id": 2**40, "celsius": 21.5, "place": "b"}, 6),
        (newer, {"id": 3, "celsius": 19.0, "place": "c"}, 4),
    ):
        send_one(address, load.topic, schema, value, day)
        load_topic(spark, address, load, tmp_path)
    read_table(spark, tmp_path, load)
    assert "at" not in spark.table(load.table).columns
    names = "id, celsius, gone, place"
    rows = spark.sql(f"SELECT {names} FROM {load.table} ORDER BY place").collect()
    assert [tuple(row) for row in rows] == [
        (1, None, "x", "a"), (2**40, 21.5, None, "b"), (3, 19.0, None, "c"),
    ]  # fmt: skip
    if kind == "parquet":  # the folder tells its columns
        plain = spark.read.parquet(str(tmp_path / load.table)).select(*names.split(", "), "day")
        assert sorted(tuple(row) for row in plain.collect()) == [
            (1, None, "x", "a", date(1970, 1, 6)),
            (3, 19.0, None, "c", date(1970, 1, 5)),
            (2**40, 21.5, None, "b", date(1970, 1, 7)),
        ]


def test_a_query_keeps_the_schema_that_it_began_with(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    topic = "readings-grown"
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "value.format": "avro",
    }
    send_one(address, topic, record("Reading", id="int", at="string"), {"id": 1, "at": "x"}, 1)
    batch = spark.read.format("kafkalite").options(**options).load().select("value.*")
    stream = spark.readStream.format("kafkalite").options(**options).load().select("value.*")
    query = stream.writeStream.format("memory").queryName("grown").start()
    try:
        query.processAllAvailable()
        newer = record("Reading", celsius=("double", 0.0), at="string", id="int")
        send_one(address, topic, newer, {"celsius": 2.5, "id": 2, "at": "y"}, 1)
        query.processAllAvailable()
    finally:
        query.stop()
    for frame in (batch, spark.table("grown")):
        assert sorted(tuple(row) for row in frame.collect()) == [(1, "x"), (2, "y")]


def test_a_stream_goes_on_from_its_checkpoint(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    topic = "orders-stream"
    send(address, topic, range(100))

    def run() -> None:
        source = spark.readStream.format("kafkalite").options(
            **{
                "kafka.bootstrap.servers": address,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "value.format": "avro",
                "maxOffsetsPerTrigger": "40",
            }
        )
        frame = source.load().selectExpr("value.id AS id", "partition", "offset")
        sink = frame.writeStream.format("parquet").trigger(availableNow=True)
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = sink.start(str(tmp_path / "out"))
        assert query.awaitTermination(100)

    for upto, ids in ((100, range(0)), (150, range(100, 150))):
        if ids:
            send(address, topic, ids)
        run()
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted(row.id for row in rows) == list(range(upto))


def test_the_columns_are_those_of_the_official_connector(address: str, spark: SparkSession) -> None:
    send(address, "orders-raw", range(10))
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": "orders-raw",
        "includeHeaders": "true",
    }
    frame = spark.read.format("kafkalite").options(**options).load()
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert frame.count() == 10
    assert {row.value[:1] for row in frame.select("value").collect()} == {b"\x00"}


def test_a_batch_of_nothing_is_empty(address: str, spark: SparkSession) -> None:
    async def create() -> None:
        async with Admin(address) as admin:
            await admin.create_topics([NewTopic("orders-none", 2)])

    asyncio.run(create())
    options = {"kafka.bootstrap.servers": address, "subscribe": "orders-none"}
    assert spark.read.format("kafkalite").options(**options).load().collect() == []


def test_what_is_not_there_is_not_waited_for(address: str) -> None:
    send(address, "orders-few", range(10))
    servers = {"kafka.bootstrap.servers": address}
    with pytest.raises(ConfigError, match="assign names orders-few-7, which does not exist"):
        BatchReader({**servers, "assign": '{"orders-few": [0, 7]}'}).partitions()
    ends = {TopicPartition("orders-few", number): 5000 for number in range(3)}
    options = {**servers, "subscribe": "orders-few", "endingOffsets": format_offsets(ends)}
    with pytest.raises(StorageError, match=r"orders-few-0 ends at offset \d+, before 5000"):
        BatchReader(options).partitions()
    reader = BatchReader({**options, "failOnDataLoss": "false"})
    read = [batch.num_rows for planned in reader.partitions() for batch in reader.read(planned)]
    assert sum(read) == 10


def test_a_batch_that_would_end_before_it_starts_has_lost_records(address: str) -> None:
    send(address, "orders-short", range(10))
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": "orders-short",
        "startingOffsets": format_offsets(
            {TopicPartition("orders-short", number): 5000 for number in range(3)}
        ),
    }
    with pytest.raises(StorageError, match=r"orders-short-0 ends at offset \d+, before 5000"):
        BatchReader(options).partitions()
    assert BatchReader(options | {"failOnDataLoss": "false"}).partitions() == []
