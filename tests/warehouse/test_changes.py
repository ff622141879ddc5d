"""Loads that update from a real log: null values delete, windows are keys, keyless records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
from deltalake import DeltaTable

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, Windowed
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde import SerdeContext, avro, string, windowed
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout, Loaded
from kafkalite.warehouse.tables import TopicLoad

HOUR = 3_600_000
CLOCK = count()  # each call sends later records, as keys of one row may be in two partitions


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def send(address: str, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    async def go() -> None:
        async with Admin(address) as admin:
            if topic not in await admin.list_topics():
                await admin.create_topics([NewTopic(topic, 2)])
        async with Producer(address) as producer:
            keys, values = zip(*records, strict=True)
            at = next(CLOCK)
            await producer.send_columns(topic, Columns(list(keys), list(values), [at] * len(keys)))

    asyncio.run(go())


def load(address: str, wanted: TopicLoad, warehouse: Path) -> Loaded:
    return wanted.into(warehouse, address, LocalEngine(), Layout()).run()


def rows(warehouse: Path, wanted: TopicLoad, order: str = "key") -> list[dict[str, Any]]:
    found = DeltaTable(str(warehouse / wanted.table)).to_pyarrow_table()
    made: list[dict[str, Any]] = found.sort_by(order).to_pylist()
    return made


def customers(**others: Any) -> TopicLoad:
    given = {"key_format": "string", "value_format": "json", "table_format": "delta"}
    return TopicLoad(**{"topic": "customers", **given, "upsert": True, **others})


def test_null_values_delete_rows(address: str, tmp_path: Path) -> None:
    wanted = customers()
    rows_of = {b"ada": {"city": "London"}, b"bob": {"city": "Rome", "age": 5}}
    send(address, wanted.topic, [(key, orjson.dumps(row)) for key, row in rows_of.items()])
    assert load(address, wanted, tmp_path).updated == 2
    send(address, wanted.topic, [(b"ada", None), (b"bob", b'{"city": "Oslo"}')])
    done = load(address, wanted, tmp_path)
    assert (done.records, done.updated, done.deleted) == (2, 1, 1)
    (row,) = rows(tmp_path, wanted)
    assert (row["key"], row["city"], row["age"]) == ("bob", "Oslo", None)


def test_windows_are_keys(address: str, tmp_path: Path) -> None:
    wanted = customers(topic="counts", key_format="windowed:1h", value_format="string")
    codec = windowed(string(), size="1h").open(SerdeContext(is_key=True))
    keys = [Windowed("a", 0, HOUR), Windowed("a", HOUR, 2 * HOUR), Windowed("a", 0, HOUR)]
    data = codec.serialize(wanted.topic, keys)
    send(address, wanted.topic, list(zip(data, (b"1", b"2", b"3"), strict=True)))
    load(address, wanted, tmp_path)
    found = sorted((row["window_start"].hour, row["value"]) for row in rows(tmp_path, wanted))
    assert found == [(0, "3"), (1, "2")]


def test_a_record_without_a_key_is_an_error_or_a_dead_letter(address: str, tmp_path: Path) -> None:
    wanted = customers(topic="keyless", value_format="string")
    send(address, wanted.topic, [(b"a", b"1")])
    send(address, wanted.topic, [(None, b"lost")])
    with pytest.raises(SerdeError, match=r"keyless-\d offset \d: the record has no key"):
        load(address, wanted, tmp_path)
    kept = customers(topic="keyless", value_format="string", on_error="dlq")
    assert load(address, kept, tmp_path).dead == 1
    (dead,) = rows(tmp_path, TopicLoad("keyless_dead_letters"))
    assert (dead["value"], dead["key"]) == (b"lost", None)
    assert [row["value"] for row in rows(tmp_path, wanted)] == ["1"]


def test_fields_of_json_keys_are_columns(address: str, tmp_path: Path) -> None:
    wanted = customers(topic="sites", key_format="json", value_format="json")
    first = [(b'{"id": 1, "site": "a"}', b'{"id": 1}'), (b'{"id": 1, "site": "b"}', b'{"id": 2}')]
    send(address, wanted.topic, first)
    load(address, wanted, tmp_path)
    send(address, wanted.topic, [(b'{"id": 1, "site": "a"}', b'{"id": 3}'), (first[1][0], None)])
    load(address, wanted, tmp_path)
    (row,) = rows(tmp_path, wanted, "key_id")
    assert (row["key_id"], row["key_site"], row["id"]) == (1, "a", 3)
    assert "key" not in row


KEY: dict[str, Any] = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
WIDER_KEY = {
    **KEY,
    "fields": [*KEY["fields"], {"name": "site", "type": ["null", "string"], "default": None}],
}


def test_fields_of_avro_keys_are_columns(address: str, tmp_path: Path) -> None:
    wanted = customers(topic="places", key_format="avro", value_format="string")

    def send_places(schema: Any, places: list[tuple[dict[str, Any], bytes | None]]) -> None:
        with LogRegistry(address) as registry:
            codec = avro(schema=schema).open(SerdeContext(registry, is_key=True))
            keys = codec.serialize(wanted.topic, [key for key, _ in places])
        send(
            address,
            wanted.topic,
            [(key, value) for key, (_, value) in zip(keys, places, strict=True)],
        )

    send_places(KEY, [({"id": 1}, b"x"), ({"id": 2}, b"y"), ({"id": 1}, b"z")])
    load(address, wanted, tmp_path)
    assert [(r["key_id"], r["value"]) for r in rows(tmp_path, wanted, "key_id")] == [
        (1, "z"),
        (2, "y"),
    ]
    send_places(WIDER_KEY, [({"id": 1, "site": None}, None), ({"id": 2, "site": "s"}, b"other")])
    load(address, wanted, tmp_path)
    found = [(r["key_id"], r["key_site"], r["value"]) for r in rows(tmp_path, wanted, "value")]
    assert found == [(2, "s", "other"), (2, None, "y")]


@pytest.mark.parametrize("kind", [None, "parquet"])
def test_parquet_is_refused_by_name(address: str, tmp_path: Path, kind: str | None) -> None:
    with pytest.raises(ConfigError, match="of format parquet, which cannot replace rows: --upsert"):
        load(address, customers(table_format=kind), tmp_path)
