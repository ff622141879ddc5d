"""The flights loader as a user runs it, against a broker of our own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.registry_log import LogRegistry

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOAD = ROOT / "examples" / "flights" / "load.py"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker.bootstrap_servers


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LOAD), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)


async def read(address: str, count: int) -> Columns:
    partitions = [TopicPartition("flights", number) for number in range(4)]
    batches: list[Columns] = []
    async with Consumer(address) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        while sum(map(len, batches)) < count:
            batches += (await consumer.poll(1_000)).values()
    return concat(batches)


def flights(address: str, count: int) -> tuple[Columns, list[dict[str, Any]]]:
    columns = asyncio.run(read(address, count))
    with LogRegistry(address) as registry:
        codec = avro().open(SerdeContext(registry))
        return columns, list(codec.deserialize("flights", columns.values))


def test_the_first_flights_arrive_in_two_versions_with_keys_and_event_times(address: str) -> None:
    done = run("--bootstrap-servers", address, "--limit", "1000")
    assert done.returncode == 0, done.stderr
    *_, refusal, last = done.stdout.splitlines()
    assert refusal.startswith("a breaking third version is refused: subject 'flights-value'")
    assert "field 'captain' has no default" in refusal
    assert last.startswith("1,000 records in ")
    assert last.endswith(" records/s")

    columns, values = flights(address, 1000)
    ids = [data[1:5] for data in columns.values]
    assert [ids.count(which) for which in sorted(set(ids))] == [500, 500]
    assert sum(value["distance_km"] == 0.0 for value in values) == 500
    assert [key and key.decode() for key in columns.keys] == [value["tailnum"] for value in values]
    first = next(v for v in values if v["tailnum"] == "N14228" and v["day"] == 1)
    assert first == {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2,
        "arr_time": 830, "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545,
        "tailnum": "N14228", "origin": "EWR", "dest": "IAH", "air_time": 227, "distance": 1400,
        "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z", "distance_km": 0.0,
    }  # fmt: skip
    assert columns.timestamps[values.index(first)] == 1_357_035_300_000  # 10:15 UTC
    assert any(value["dep_delay"] is None for value in values)


def test_a_second_run_loads_nothing_unless_told_to(address: str) -> None:
    at = ("--bootstrap-servers", address, "--limit", "100")
    assert run(*at).returncode == 0
    again = run(*at)
    assert again.stdout == "topic flights already holds 100 records; --again loads them once more\n"
    assert run(*at, "--again").stdout.splitlines()[-1].startswith("100 records in ")
    assert run(*at).stdout.startswith("topic flights already holds 200 records")


def test_a_broker_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run("--bootstrap-servers", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("load.py: no broker answers at 127.0.0.1:1")
    assert done.stderr.count("\n") == 1


def test_a_limit_that_makes_no_two_halves_is_refused() -> None:
    done = run("--bootstrap-servers", "127.0.0.1:1", "--limit", "1")
    assert done.returncode == 2
    assert "--limit is 1, expected 2 or more" in done.stderr


def test_the_flights_come_into_the_warehouse_row_for_row(address: str, tmp_path: Path) -> None:
    assert run("--bootstrap-servers", address, "--limit", "1000").returncode == 0
    sql = tmp_path / "all.sql"
    sql.write_text("SELECT * FROM flights ORDER BY _partition, _offset")
    command = [sys.executable, "-m", "kafkalite.cli.spark", "load", "flights"]
    command += ["--bootstrap-servers", address, "--warehouse", str(tmp_path / "warehouse")]
    command += ["--key", "flights=string", "--query", str(sql), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]

    columns, values = flights(address, 1000)
    fields = values[0].keys() - {"day"}  # in SQL that is the day of departure
    by_place = {(row["_partition"], row["_offset"]): row for row in rows}
    assert len(by_place) == len(rows) == 1000
    found = sorted(tuple(str(row[name]) for name in fields) for row in rows)
    assert found == sorted(tuple(str(value[name]) for name in fields) for value in values)
    assert {row["key"] for row in rows} == {k and k.decode() for k in columns.keys}
