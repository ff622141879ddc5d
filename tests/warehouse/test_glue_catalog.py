"""Iceberg tables in AWS Glue's catalog, which moto serves: loads, merges, updates, conflicts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from memory_log import MemoryTopic
from moto.server import ThreadedMotoServer
from test_loads import expected
from test_rest_catalog import (
    Make,
    check_rows_are_updated_and_deleted,
    check_two_writers_without_a_lock,
    ids,
    load,
)

from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.compaction import Compaction
from kafkalite.warehouse.iceberg_files import IcebergFiles
from kafkalite.warehouse.iceberg_table import IcebergTarget

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def glue() -> Iterator[str]:
    """The address of the server."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def make(glue: str, tmp_path: Path) -> Callable[..., IcebergTarget]:
    """A target in an empty catalog."""
    requests.post(f"{glue}/moto-api/reset").raise_for_status()
    properties: dict[str, Any] = {
        "type": "glue",
        "glue.endpoint": glue,
        "glue.region": "eu-central-1",
        "glue.access-key-id": "key",
        "glue.secret-access-key": "secret",
        "glue.max-retries": 1,  # pyiceberg's own are ten, and a number of its configuration is text
    }

    def of(folder: Path = tmp_path, name: str = "orders") -> IcebergTarget:
        return IcebergTarget(folder / name, "aws", properties)

    return of


def test_rows_come_once_and_files_are_merged(make: Make) -> None:
    topic = MemoryTopic({0: 95, 1: 7})
    assert load(make, topic).run().records == 102
    topic.ends = {0: 99, 1: 9}
    assert load(make, topic).run().records == 6
    assert load(make, topic).run().records == 0
    assert ids(make) == expected(topic.ends)
    assert Compaction(IcebergFiles(make()), "c", 2**50, 0).run().made == 1
    assert len(list(make().table.glob("*.parquet"))) == 1
    assert ids(make) == expected(topic.ends)
    assert not (make().table.parent / "iceberg.db").exists()


def test_rows_are_updated_and_deleted_wherever_a_load_breaks_off(make: Make) -> None:
    check_rows_are_updated_and_deleted(make)


def test_of_two_writers_without_a_lock_one_commits(make: Make) -> None:
    check_two_writers_without_a_lock(make)


def test_a_glue_that_does_not_answer_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make()
    away = {**target.properties, "glue.endpoint": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match=r"orders: its catalog failed: .*127\.0\.0\.1:9"):
        IcebergTarget(target.table, "aws", away).offsets()
    monkeypatch.setitem(sys.modules, "boto3", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.glue")
    with pytest.raises(ConfigError, match=r"--catalog aws: .*pyiceberg\[glue\]"):
        IcebergTarget(target.table, "aws", away).offsets()
