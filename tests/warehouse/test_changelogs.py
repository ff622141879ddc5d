"""Changelogs of a topology as tables: a row for each row of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import json, string
from kafkalite.streams import Streams, tumbling
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout, Loaded
from kafkalite.warehouse.tables import TopicLoad

FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def topology() -> Streams:
    app: Streams = Streams("app", key=string(), value=json())
    orders, shops = app.stream("orders"), app.table("shops")
    orders.join(shops, lambda order, shop: order | shop).to("both", create={"partitions": 1})
    last = (
        orders.group_by_key()
        .window(tumbling("10s", grace="1h"))
        .reduce(lambda _, order: order, name="last")
    )
    last.to_stream().to("windows", create={"partitions": 1})
    orders.join(app.stream("payments"), lambda left, _: left, within="5s", name="pay").to(
        "paid", create={"partitions": 1}
    )
    return app


async def send(address: str, first: int) -> None:
    """Ten orders and payments of two keys, two seconds apart; the shop `a`, or its end."""
    numbers = range(first, first + 10)
    keys, times = [b"ab"[n % 2 :][:1] for n in numbers], [FIRST_MS + n * 2_000 for n in numbers]
    values = [b'{"n": %d}' % n for n in numbers]
    shop = b'{"shop": "north"}' if first == 0 else None
    async with Admin(address) as admin, Producer(address) as producer:
        if "orders" not in await admin.list_topics():
            topics = [NewTopic(name, 1) for name in ("orders", "payments", "shops")]
            await admin.create_topics(topics)
        await producer.send_columns("shops", Columns([b"a"], [shop], times[:1]))
        for topic in ("orders", "payments"):
            await producer.send_columns(topic, Columns(keys, values, times))
    await topology().run_async(address, until_caught_up=True)


def load(address: str, warehouse: Path, topic: str, key: str, value: str) -> Loaded:
    wanted = TopicLoad(topic, key, value, table_format="delta", upsert=True)
    return wanted.into(warehouse, address, LocalEngine(), Layout()).run()


def test_rows_of_stores_become_rows_of_tables(address: str, tmp_path: Path) -> None:
    windows, shops, side = "app-last-changelog", "app-shops-changelog", "app-pay-left-changelog"

    def rows(topic: str) -> list[dict[str, object]]:
        table = DeltaTable(str(tmp_path / topic.replace("-", "_")))
        found: list[dict[str, object]] = table.to_pyarrow_table().to_pylist()
        return found

    found: dict[tuple[object, int], object] = {}
    for first in (0, 10):
        asyncio.run(send(address, first))
        for n in range(first, first + 10):
            found["ab"[n % 2], n * 2 // 10 * 10] = n
        load(address, tmp_path, windows, "windowed:10s", "json")
        load(address, tmp_path, shops, "string", "json")
        assert load(address, tmp_path, side, "binary", "binary").records
        assert {
            (row["key"], int(row["window_start"].timestamp()) - FIRST_MS // 1000): row["n"]  # type: ignore[attr-defined]
            for row in rows(windows)
        } == found
        assert [row["shop"] for row in rows(shops)] == (["north"] if first == 0 else [])
    # The packed rows of a join's side are what they are: bytes, one row for each packed row.
    keys = [row["key"] for row in rows(side)]
    assert len(keys) == len(set(keys)) > 0
