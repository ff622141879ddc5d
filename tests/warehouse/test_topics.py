"""Loads of topics without Spark: columns of Avro and JSON, dead letters, a time to end at."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from readers import by_every_reader

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ConfigError, SchemaError, SerdeError
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout, Loaded
from kafkalite.warehouse.tables import TopicLoad, format_of


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def send(address: str, topic: str, values: list[bytes], first_ms: int = 0) -> None:
    """One record a second, in one partition."""

    async def go() -> None:
        async with Admin(address) as admin:
            if topic not in await admin.list_topics():
                await admin.create_topics([NewTopic(topic, 1, configs={"retention.ms": "-1"})])
        async with Producer(address) as producer:
            times = [first_ms + 1000 * number for number in range(len(values))]
            await producer.send_columns(topic, Columns([b"k"] * len(values), values, times))

    asyncio.run(go())


def send_avro(address: str, topic: str, schema: Any, values: list[Any]) -> None:
    with LogRegistry(address) as registry:
        data = avro(schema=schema).open(SerdeContext(registry)).serialize(topic, values)
    send(address, topic, list(data))


def record(**fields: Any) -> dict[str, Any]:
    described = [
        {"name": name, "type": kind[0], "default": kind[1]}
        if isinstance(kind, tuple)
        else {"name": name, "type": kind}
        for name, kind in fields.items()
    ]
    return {"type": "record", "name": "Reading", "fields": described}


def load(address: str, wanted: TopicLoad, warehouse: Path, until_ms: int | None = None) -> Loaded:
    return wanted.into(warehouse, address, LocalEngine(), Layout(), until_ms).run()


def table(warehouse: Path, wanted: TopicLoad) -> pa.Table:
    """The rows as other readers see them, in the order of their offsets."""
    place = warehouse / wanted.table
    match format_of(place):
        case "delta":
            found = DeltaTable(str(place)).to_pyarrow_table()
        case "iceberg":
            uri = f"sqlite:///{warehouse / 'iceberg.db'}"
            catalog = load_catalog("kafkalite", type="sql", uri=uri)
            found = catalog.load_table(f"kafkalite.{wanted.table}").scan().to_arrow()
        case _:
            found = ds.dataset(place, format="parquet").to_table()
    return found.sort_by("_offset")


def test_avro_fields_are_columns_of_the_newest_schema(address: str, tmp_path: Path) -> None:
    wanted = TopicLoad("readings", key_format="string")
    send_avro(
        address, wanted.topic, record(id="int", gone=("string", "")), [{"id": 1, "gone": "x"}]
    )
    assert load(address, wanted, tmp_path).records == 1
    newer = record(id="long", celsius=("double", 0.5))
    send_avro(address, wanted.topic, newer, [{"id": 2**40, "celsius": 21.5}])
    load_of = wanted.into(tmp_path, address, LocalEngine(), Layout())
    assert load_of.run().records == 1
    columns = load_of.target.columns()
    assert columns is not None
    assert columns.field("id").type == pa.int64()
    rows = ds.dataset(tmp_path / wanted.table, schema=columns, format="parquet").to_table()
    rows = rows.sort_by("_offset")
    assert rows["id"].to_pylist() == [1, 2**40]
    assert rows["celsius"].to_pylist() == [None, 21.5]
    assert rows["gone"].to_pylist() == ["x", None], "a load takes no data away"
    assert rows["key"].to_pylist() == ["k", "k"]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_json_columns_are_inferred_and_stay(address: str, tmp_path: Path, kind: str) -> None:
    wanted = TopicLoad(f"json-{kind}", value_format="json", table_format=kind)
    nested = {"a": 2.5, "t": ["x"], "s": {"n": 1, "m": ["y"]}}
    send(address, wanted.topic, [b'{"a": 1}', orjson.dumps(nested)])
    load(address, wanted, tmp_path)
    assert table(tmp_path, wanted)["a"].to_pylist() == [1.0, 2.5]
    send(address, wanted.topic, [b'{"a": 3, "s": {"n": 2, "o": "z"}, "new": true}'])
    load(address, wanted, tmp_path)
    assert table(tmp_path, wanted)["a"].to_pylist() == [1.0, 2.5, 3.0]
    send(address, wanted.topic, [orjson.dumps({"a": "six"})])
    with pytest.raises(SerdeError, match=r"json-\w+-0 offset 3: .* the field 'a' is 'six', "):
        load(address, wanted, tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_records_that_cannot_be_decoded_become_dead_letters(
    address: str, tmp_path: Path, kind: str
) -> None:
    schema, topic = record(id="int"), f"spoilt_{kind}"
    send_avro(address, topic, schema, [{"id": n} for n in range(40)])
    send(address, topic, [b"no Avro", b""])
    send_avro(address, topic, schema, [{"id": n} for n in range(40, 50)])
    with pytest.raises(SerdeError, match=f"^{topic}-0 offset 40: "):
        load(address, TopicLoad(topic, table_format=kind), tmp_path)
    wanted = TopicLoad(topic, on_error="dlq", table_format=kind)
    done = load(address, wanted, tmp_path)
    assert (done.records, done.dead) == (50, 2)
    assert table(tmp_path, wanted)["id"].to_pylist() == list(range(50))
    letters = TopicLoad(f"{topic}_dead_letters")
    assert format_of(tmp_path / letters.table) == kind
    dead = table(tmp_path, letters).to_pylist()
    assert [(row["_offset"], row["key"], row["value"]) for row in dead] == [
        (40, b"k", b"no Avro"), (41, b"k", b""),
    ]  # fmt: skip
    assert "not Confluent's wire format" in dead[0]["reason"]
    with pytest.raises(ConfigError, match="on-error: 'drop' is not one of fail, skip, dlq"):
        TopicLoad(topic, on_error="drop")


def place(city: str, zip_: Any, *aliases: str) -> dict[str, Any]:
    fields = [{"name": city, "type": "string", "aliases": list(aliases)}]
    return {
        "type": "record",
        "name": "Place",
        "fields": [*fields, {"name": "zip", "type": zip_}],
    }


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_fields_of_fields_are_renamed_and_widened(address: str, tmp_path: Path, kind: str) -> None:
    wanted = TopicLoad(f"nested-{kind}", table_format=kind)
    older = record(home=place("town", "int"), stops={"type": "array", "items": "Place"})
    old = {"town": "a", "zip": 1}
    send_avro(address, wanted.topic, older, [{"home": old, "stops": [old, old]}])
    load(address, wanted, tmp_path)
    at = place("city", "double", "town")
    newer = record(house=at, stops={"type": "array", "items": "Place"})
    newer["fields"][0]["aliases"] = ["home"]
    new = {"city": "b", "zip": 2.5}
    send_avro(address, wanted.topic, newer, [{"house": new, "stops": [new]}])
    done = load(address, wanted, tmp_path)
    assert [line for line in done.changes if "column home is now house" in line]
    rows = by_every_reader(tmp_path / wanted.table)
    was = {"city": "a", "zip": 1.0}
    assert [(row["house"], row["stops"]) for row in rows] == [(was, [was, was]), (new, [new])]
    assert not {"home", "town"} & set(rows[0])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_that_are_updated_have_the_newest_columns(
    address: str, tmp_path: Path, kind: str
) -> None:
    wanted = TopicLoad(f"updated-{kind}", table_format=kind, upsert=True)
    send_avro(address, wanted.topic, record(town="string", n="int"), [{"town": "a", "n": 1}])
    load(address, wanted, tmp_path)
    newer = record(city="string", n="long")
    newer["fields"][0]["aliases"] = ["town"]
    send_avro(address, wanted.topic, newer, [{"city": "b", "n": 2**40}])
    assert load(address, wanted, tmp_path).updated == 1
    (row,) = by_every_reader(tmp_path / wanted.table)
    assert (row["city"], row["n"]) == ("b", 2**40)
    assert "town" not in row


def test_a_load_ends_at_a_time(address: str, tmp_path: Path) -> None:
    wanted = TopicLoad("timed", value_format="string")
    send(address, wanted.topic, [b"%d" % n for n in range(10)], first_ms=1_000_000)
    assert load(address, wanted, tmp_path, until_ms=1_004_000).records == 4
    assert load(address, wanted, tmp_path, until_ms=1_002_000).records == 0
    assert load(address, wanted, tmp_path, until_ms=2_000_000).records == 6
    assert table(tmp_path, wanted)["value"].to_pylist() == [str(n) for n in range(10)]


def test_a_topic_without_a_schema_is_named(address: str, tmp_path: Path) -> None:
    send(address, "strange", [b"x"])
    with pytest.raises(SchemaError, match=r"^subject 'strange-value' is not known"):
        load(address, TopicLoad("strange"), tmp_path)


@pytest.mark.parametrize(("value", "complaint"), [(b"{", "truncated"), (b"5", "not a JSON object")])
def test_what_is_no_object_is_named_by_its_offset(
    address: str, tmp_path: Path, value: bytes, complaint: str
) -> None:
    wanted = TopicLoad(f"json-wrong-{value.hex()}", value_format="json")
    send(address, wanted.topic, [b'{"a": 1}', value])
    with pytest.raises(SerdeError, match=rf"{wanted.topic}-0 offset 1: .*{complaint}"):
        load(address, wanted, tmp_path)


def test_a_table_of_dates_is_none_for_json(address: str, tmp_path: Path) -> None:
    wanted = TopicLoad("json-dates", value_format="json")
    send(address, wanted.topic, [b'{"a": 1}'])
    source = wanted.into(tmp_path, address, LocalEngine(), Layout()).source
    dates = pa.schema([("a", pa.date32()), ("_offset", pa.int64())])
    ranges = [OffsetRange(wanted.topic, 0, 0, 1)]
    with pytest.raises(ConfigError, match=r"the column 'a' is a date32\[day\]"):
        source.resolved(LocalEngine(), ranges, dates)


RICH = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "city", "type": ["null", "string"]}],
            },
        },
    ],
}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_types_of_avro_are_columns_of_every_table(address: str, tmp_path: Path, kind: str) -> None:
    payment = {
        "id": UUID(int=5),
        "at": datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC),
        "on": date(2024, 5, 6),
        "amount": Decimal("12.345"),
        "tags": ["a", "b"],
        "counts": {"x": 1},
        "place": {"city": None},
    }
    wanted = TopicLoad(f"rich-{kind}", table_format=kind)
    send_avro(address, wanted.topic, RICH, [payment, payment])
    load_of = wanted.into(tmp_path, address, LocalEngine(), Layout(partition_by="month"))
    assert load_of.run().records == 2
    assert load(address, wanted, tmp_path).records == 0
    rows = table(tmp_path, wanted)
    (row, _) = rows.drop_columns(["key"]).to_pylist(maps_as_pydicts="strict")
    assert {name: row[name] for name in payment} == payment | {"id": str(payment["id"])}
    with pytest.raises(ConfigError, match=f"is of format {kind}, not parquet"):
        TopicLoad(wanted.topic, table_format="parquet").into(
            tmp_path, address, LocalEngine(), Layout()
        )
    assert format_of(tmp_path / wanted.table) == kind


@pytest.mark.slow
def test_a_load_that_finds_nothing_new_imports_neither_spark_nor_pandas(
    address: str, tmp_path: Path
) -> None:
    wanted = TopicLoad("idle", value_format="string")
    send(address, wanted.topic, [b"x"])
    load(address, wanted, tmp_path)
    words = ["load", "idle", "-b", address, "--warehouse", str(tmp_path), "--value", "idle=string"]
    program = (
        "import sys; from kafkalite.cli.spark import cli\n"
        f"cli({words}, standalone_mode=False)\n"
        "assert not {'pyspark', 'pandas', 'deltalake', 'pyiceberg'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout
