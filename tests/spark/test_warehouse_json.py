"""JSON values in the warehouse: columns from all of them, and what does not fit is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.spark.session import local_session
from kafkalite.spark.warehouse import TopicLoad, load_topic, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("kafkalite-tests", cores=2)
    yield session
    session.stop()


def send(address: str, topic: str, *values: Any) -> None:
    """Values as JSON, by turns in two partitions; bytes go as they are."""

    async def go() -> None:
        async with Admin(address) as admin:
            if topic not in await admin.list_topics():
                await admin.create_topics([NewTopic(topic, 2)])
        async with Producer(address) as producer:
            for index, value in enumerate(values):
                data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
                await producer.send(topic, data, partition=index % 2)
            await producer.flush()

    asyncio.run(go())


def rows(spark: SparkSession, warehouse: Path, load: TopicLoad, *names: str) -> list[Any]:
    read_table(spark, warehouse, load)
    order = "ORDER BY _timestamp, _partition, _offset"
    found = spark.sql(f"SELECT {', '.join(names)} FROM {load.table} {order}").collect()
    return [tuple(row) for row in found]


def test_fields_become_columns_and_a_table_keeps_them(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    load = TopicLoad("json", value_format="json")
    send(address, load.topic, {"a": 1, "s": {"x": "y"}}, {"a": 2.5, "tags": ["t"]}, None)
    assert load_topic(spark, address, load, tmp_path).records == 3
    columns = dict(read_table(spark, tmp_path, load) and spark.table(load.table).dtypes)
    assert columns["a"] == "double"
    assert columns["s"] == "struct<x:string>"
    assert columns["tags"] == "array<string>"
    assert sorted(map(str, rows(spark, tmp_path, load, "a", "s.x", "tags"))) == [
        "(1.0, 'y', None)", "(2.5, None, ['t'])", "(None, None, None)",
    ]  # fmt: skip
    send(address, load.topic, {"a": 4, "new": True})
    assert load_topic(spark, address, load, tmp_path).records == 1
    assert sorted(map(str, rows(spark, tmp_path, load, "a", "s.x", "new"))) == [
        "(1.0, 'y', None)", "(2.5, None, None)", "(4.0, None, True)", "(None, None, None)",
    ]  # fmt: skip
    send(address, load.topic, {"a": 5}, {"a": "six"})
    with pytest.raises(SerdeError, match=r"json-1 offset 1: .* the field 'a' is 'six', and its"):
        load_topic(spark, address, load, tmp_path)


@pytest.mark.parametrize(
    ("value", "complaint"), [(b"{", "unexpected end of data"), (b"5", "not a JSON object")]
)
def test_what_is_no_object_is_named_by_its_offset(
    address: str, spark: SparkSession, tmp_path: Path, value: bytes, complaint: str
) -> None:
    load = TopicLoad(f"json-wrong-{len(value)}{value[0]}", value_format="json")
    send(address, load.topic, {"a": 1}, {"a": 1}, {"a": 2}, value)
    with pytest.raises(SerdeError, match=rf"{load.topic}-1 offset 1: .*{complaint}"):
        load_topic(spark, address, load, tmp_path)


def test_a_table_of_avro_dates_is_none_for_json(
    address: str, spark: SparkSession, tmp_path: Path
) -> None:
    load = TopicLoad("json-dates", value_format="json")
    send(address, load.topic, {"a": 1})
    load_topic(spark, address, load, tmp_path)
    table = tmp_path / load.table
    (file,) = table.glob("day=*/*.parquet")
    spark.sql("SELECT DATE'2024-01-01' AS a, 1 AS _offset").toPandas().to_parquet(file)
    send(address, load.topic, {"a": 2}, {"a": 3})
    with pytest.raises(ConfigError, match=r"the table's column 'a' is a date32\[day\]"):
        load_topic(spark, address, load, tmp_path)
