"""Iceberg tables in a REST catalog: the same loads, merges and updates; a catalog that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from keyed_log import ChangeTopic
from memory_log import MemoryTopic
from rest_catalog import RestCatalogServer, rest_catalog
from test_loads import SMALL, expected
from test_updates import broken_off_after, first_changes, more_changes

from kafkalite.clients.sync import Producer
from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.compaction import Compaction
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.iceberg_files import IcebergFiles
from kafkalite.warehouse.iceberg_table import IcebergTarget
from kafkalite.warehouse.load import Load
from kafkalite.warehouse.workspace import Workspace

Topic = MemoryTopic | ChangeTopic


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestCatalogServer]:
    with rest_catalog(tmp_path / "rest") as running:
        yield running


@pytest.fixture
def make(server: RestCatalogServer, tmp_path: Path) -> Callable[..., IcebergTarget]:
    def of(folder: Path = tmp_path, name: str = "orders") -> IcebergTarget:
        return IcebergTarget(folder / name, "lab", server.properties)

    return of


Make = Callable[..., IcebergTarget]


def load(make: Make, topic: Topic) -> Load:
    dead, updates = make(name="orders_dead_letters"), isinstance(topic, ChangeTopic)
    return Load(topic, make(), dead, LocalEngine(), SMALL, updates)


def rows(make: Make) -> list[dict[str, Any]]:
    """As a reader sees them."""
    found = make()._open()
    made: list[dict[str, Any]] = [] if found is None else found.scan().to_arrow().to_pylist()
    return made


def ids(make: Make) -> list[int]:
    return sorted(row["id"] for row in rows(make))


def test_rows_come_once_and_columns_change(make: Make, server: RestCatalogServer) -> None:
    topic = MemoryTopic({0: 25, 1: 7}, kind=pa.int32())
    assert load(make, topic).run().records == 32
    topic.ends, topic.kind, topic.fields = {0: 30, 1: 9}, pa.float64(), ("id", "more")
    done = load(make, topic).run()
    assert (done.records, done.rewritten) == (7, 4)
    assert ids(make) == expected(topic.ends)
    assert sorted(row["id"] for row in rows(make) if row["more"] is None) == expected({0: 25, 1: 7})
    assert load(make, topic).run().records == 0
    assert not (make().table.parent / "iceberg.db").exists()
    assert "POST /v1/namespaces/kafkalite/tables/orders" in server.requests


def test_small_files_are_merged_and_older_snapshots_expire(make: Make) -> None:
    topic = MemoryTopic({0: 95})
    load(make, topic).run()
    done = Compaction(IcebergFiles(make()), "c", 2**50, 0).run()
    assert (done.merged, done.made) == (10, 1)
    assert len(list(make().table.glob("*.parquet"))) == 1, (
        "the others have gone with their snapshot"
    )
    assert ids(make) == expected(topic.ends)
    topic.ends = {0: 97}
    assert load(make, topic).run().records == 2


def test_rows_are_updated_and_deleted_wherever_a_load_breaks_off(make: Make) -> None:
    check_rows_are_updated_and_deleted(make)


def check_rows_are_updated_and_deleted(make: Make) -> None:
    topic = first_changes()
    for steps in (3, 5, 7, 9):
        load(make, topic).run()
        more_changes(topic, f"after {steps}")
        broken_off_after(load(make, topic), steps)
    load(make, topic).run()
    assert {row["key"]: row["value"] for row in rows(make)} == topic.rows_now()
    assert len(rows(make)) == len(topic.rows_now())


def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    make: Make, server: RestCatalogServer
) -> None:
    topic = MemoryTopic({0: 5})
    for end in (5, 9):  # the commit that makes the table, and one that adds to it
        topic.ends, server.lost_answers = {0: end}, 1
        with pytest.raises(StorageError, match="orders: its catalog failed"):
            load(make, topic).run()
        assert server.lost_answers == 0
        load(make, topic).run()
        assert ids(make) == expected(topic.ends)
    assert len(list(make().table.glob("*.parquet"))) == 2


def test_of_two_writers_without_a_lock_one_commits(make: Make) -> None:
    check_two_writers_without_a_lock(make)


def check_two_writers_without_a_lock(make: Make) -> None:
    topic = MemoryTopic({0: 5})
    load(make, topic).run()
    slow = load(make, MemoryTopic({0: 9})).steps()
    while not next(slow).startswith("published"):
        pass
    workspace = Workspace(make().table)
    workspace.staging.rename(make().table / "_aside")
    for name in ("plan.json", "lock"):
        (workspace.folder / name).unlink()
    load(make, MemoryTopic({0: 9})).run()
    with pytest.raises(StorageError, match="another writer was first"):
        list(slow)
    assert ids(make) == list(range(9))


def test_a_catalog_that_fails_is_named(make: Make, server: RestCatalogServer) -> None:
    server.failures = 1
    with pytest.raises(StorageError, match=r"orders: its catalog failed: Busy: busy"):
        make().offsets()
    server.shutdown()
    server.server_close()
    with pytest.raises(StorageError, match=r"orders: its catalog failed: .*Connection refused"):
        make().offsets()
    with pytest.raises(ConfigError, match="--catalog none: URI missing"):
        IcebergTarget(make().table, "none").offsets()


def test_a_table_is_not_made_a_second_time_in_another_catalog(make: Make) -> None:
    topic = MemoryTopic({0: 5})
    load(make, topic).run()
    with pytest.raises(ConfigError, match="catalog of its warehouse: load it with --catalog lab"):
        IcebergTarget(make().table).offsets()
    own = IcebergTarget(make().table.with_name("own"))
    letters = own.table.with_name("letters")
    Load(topic, own, IcebergTarget(letters), LocalEngine(), SMALL).run()
    with pytest.raises(ConfigError, match="not in the catalog lab: load it without --catalog"):
        make(name="own").offsets()


def test_the_commands_find_the_catalog_in_the_configuration(
    server: RestCatalogServer, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.send(topic, b'{"number": %d}' % number)
    configured = {
        f"PYICEBERG_CATALOG__LAB__{name.upper()}": value
        for name, value in server.properties.items()
    }

    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "kafkalite.cli.spark", *arguments]
        command += ["--warehouse", str(tmp_path / "lake"), "--catalog", "lab", "--json"]
        ran = subprocess.run(command, capture_output=True, env={**os.environ, **configured})
        assert ran.returncode == 0, ran.stderr.decode()
        return json.loads(ran.stdout)

    options = ["--engine", "local", "--format", "iceberg", "--value", f"{topic}=json"]
    for records in (20, 0):
        (table,) = run("load", topic, "-b", bootstrap, *options)["tables"]
        assert table["records"] == records
    run("compact", topic)
    found = IcebergTarget(Path(table["table"]), "lab", server.properties)._open()
    assert found is not None
    assert sorted(found.scan().to_arrow()["number"].to_pylist()) == list(range(20))
