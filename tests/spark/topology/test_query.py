"""Topologies as queries of Spark, on a real broker."""

from __future__ import annotations

import asyncio
import json as plain_json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from whole_topics import read_topic

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns
from kafkalite.errors import KafkaliteError, ProcessingError
from kafkalite.streams import Streams, count, json, string, sum_, tumbling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkalite.spark.topology.query import Seen

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),  # a JVM takes most of it
]

WINDOW_MS = 10_000
USERS = "abcdefg"


def write(address: str, topic: str, first: int, count: int) -> Counter[tuple[str, int]]:
    """Records of three partitions, one far behind the others; the counts of their windows."""
    wanted: Counter[tuple[str, int]] = Counter()
    with Producer(address) as producer:
        for partition in range(3):
            times = [(first + n) * 100 + 40_000 * partition for n in range(count)]
            users = [USERS[n * (partition + 1) % 7] for n in range(count)]
            values = [plain_json.dumps({"user": user}).encode() for user in users]
            columns = Columns([None] * count, values, times)
            producer.send_columns(topic, columns, partition=partition)
            wanted.update(
                (u, t // WINDOW_MS * WINDOW_MS) for u, t in zip(users, times, strict=True)
            )
    return wanted


def counting(
    name: str, source: str, sink: str, user: Callable[[Any], str | None]
) -> Streams[str, Any]:
    app: Streams[str, Any] = Streams(name, key=string(), value=json())
    # A run up to the end counts all partitions as idle then, so slower ones need a grace later.
    windows = app.stream(source).group_by(user).window(tumbling("10s", grace="1m"))
    windows.count().to_stream().to(sink, create={"partitions": 2})
    return app


def run(spark: SparkSession, app: Streams[str, Any], address: str, checkpoint: Path) -> Seen:
    """Runs until caught up."""
    from kafkalite.spark.topology.preparing import prepare
    from kafkalite.spark.topology.query import QuerySettings, TopologyQuery
    from kafkalite.spark.topology.shipping import Shipment
    from kafkalite.spark.topology.stages import stages_of

    layout = prepare(address, stages_of(app.plan()))
    shipment = Shipment.of(layout, address, sys.modules[__name__])
    query = TopologyQuery(spark, layout, shipment, QuerySettings(str(checkpoint)))
    query.run(lambda: False, until_caught_up=True)
    return query.seen


def counts(address: str, topic: str) -> dict[tuple[str, int], int]:
    """The last count of each window. Fails where a count comes twice or goes back."""
    found: dict[tuple[str, int], int] = {}
    columns = asyncio.run(read_topic(address, topic, 2))
    for key, value in zip(columns.keys, columns.values, strict=True):
        assert key is not None
        assert value is not None
        window = key[:-8].decode(), int.from_bytes(key[-8:], "big")
        count = int.from_bytes(value, "big")
        assert count > found.get(window, 0)
        found[window] = count
    return found


def test_counts_go_on_over_restarts_and_a_dead_worker(
    spark: SparkSession, bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    source, marker = make_topic(3), tmp_path / "killed"
    sink = f"{source}-counts"

    def user(value: Any) -> str | None:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return None if value["user"] == "g" else str(value["user"])

    app = counting(f"app-{source}", source, sink, user)
    wanted = write(bootstrap, source, 0, 700)
    with pytest.raises(KafkaliteError):
        run(spark, app, bootstrap, tmp_path / "checkpoint")
    assert marker.exists()
    assert not counts(bootstrap, sink)
    for more in (None, (1_000, 350)):
        new = write(bootstrap, source, *more) if more else wanted
        wanted = wanted + new if more else new
        seen = run(spark, app, bootstrap, tmp_path / "checkpoint")
        assert counts(bootstrap, sink) == {key: n for key, n in wanted.items() if key[0] != "g"}
        (drop,) = seen.drops.document()
        assert drop["reason"] == "null_key"
        assert drop["records"] == sum(n for (user, _), n in new.items() if user == "g")
        assert seen.records >= sum(new.values())


def test_an_error_in_a_function_is_told_in_one_line(
    spark: SparkSession, bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    source = make_topic(3)
    sink = f"{source}-counts"
    app = counting(f"app-{source}", source, sink, lambda value: str(value["nobody"]))
    write(bootstrap, source, 0, 5)
    with pytest.raises(ProcessingError, match="KeyError: 'nobody'") as failed:
        run(spark, app, bootstrap, tmp_path / "checkpoint")
    assert isinstance(failed.value, KafkaliteError)
    assert source in str(failed.value)


def visits(name: str, clicks: str, users: str, sink: str) -> Streams[str, Any]:
    """A join, windows by city, a global table's name of each country, and the sums of all windows
    by it: three levels of Spark.
    """
    app: Streams[str, Any] = Streams(name, key=string(), value=json())
    joined = app.stream(clicks).join(app.table(users), lambda click, user: {**click, **user})
    windows = joined.group_by(lambda value: str(value["city"])).window(tumbling("10s"))
    (
        windows.aggregate(visits=count(), seconds=sum_("seconds"))
        .final()
        .map(lambda key, row: {"country": key.key[:2], **row}, with_key=True)
        .join(
            app.global_table(f"{users}-countries"),
            lambda row, country: {**row, "country": country["name"]},
            key="country",
        )
        .group_by("country")
        .aggregate(windows=count(), visits=sum_("visits"), seconds=sum_("seconds"))
        .to_stream()
        .to(sink, create={"partitions": 2})
    )
    return app


def send(address: str, topic: str, rows: list[tuple[str, dict[str, Any], int]]) -> None:
    keys, values, times = zip(*rows, strict=True)
    texts = [plain_json.dumps(value).encode() for value in values]
    with Producer(address) as producer:
        producer.send_columns(topic, Columns([key.encode() for key in keys], texts, times))


def last_rows(address: str, topic: str) -> dict[str, Any]:
    columns = asyncio.run(read_topic(address, topic, 2))
    rows = zip(map(bytes, columns.keys), map(bytes, columns.values), strict=True)
    return {key.decode(): plain_json.loads(value) for key, value in rows}


def test_joins_and_repartitions_give_what_the_local_engine_gives(
    spark: SparkSession, bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    clicks = make_topic(3)
    users, random = f"{clicks}-users", Random(5)
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(users, 3), NewTopic(f"{users}-countries", 2)])
    cities = ["AT-Graz", "AT-Linz", "CH-Basel", "DE-Jena", "DE-Ulm"]
    send(bootstrap, users, [(f"u{n}", {"city": cities[n % 5]}, 0) for n in range(50)])
    names = {"AT": "Austria", "CH": "Switzerland", "DE": "Germany"}
    rows = [(code, {"name": name}, 0) for code, name in names.items()]
    send(bootstrap, f"{users}-countries", rows)
    who = [f"u{random.randrange(60)}" for _ in range(3_000)]  # some are no users
    rows = [(user, {"seconds": random.randrange(9)}, 100 * n) for n, user in enumerate(who)]
    send(bootstrap, clicks, rows)
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")  # three levels: each has its processes
    try:
        run(spark, visits(f"{clicks}-s", clicks, users, f"{clicks}-spark"), bootstrap, tmp_path)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    local = visits(f"{clicks}-l", clicks, users, f"{clicks}-local")
    local.run(bootstrap, until_caught_up=True)
    found = last_rows(bootstrap, f"{clicks}-spark")
    assert found == last_rows(bootstrap, f"{clicks}-local")
    assert sum(row["windows"] for row in found.values()) > 100
    assert set(found) == set(names.values())


APP = """
from kafkalite.streams import Streams, count, json, string, sum_, tumbling
from users import user

app = Streams("APP", key=string(), value=json())
(app.stream("SOURCE").filter(lambda v: v["user"] != "g").group_by(user)
    .window(tumbling("10s")).count().to_stream().to("SINK", create={"partitions": 2}))
"""


@pytest.mark.deep
def test_the_command_runs_an_app_on_spark(
    bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    source = make_topic(3)
    sink = f"{source}-counts"
    text = APP.replace("APP", f"app-{source}").replace("SOURCE", source).replace("SINK", sink)
    (tmp_path / "app.py").write_text(text)
    (tmp_path / "users.py").write_text("def user(value):\n    return value['user']\n")
    wanted = write(bootstrap, source, 0, 700)
    options = ["--engine", "spark", "--master", "local[2]", "--until-caught-up", "--json"]
    command = [sys.executable, "-m", "kafkalite.cli.streams", "run", "app.py", "-b", bootstrap]
    ran = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert plain_json.loads(ran.stdout)["records"] == 2_100
    assert counts(bootstrap, sink) == {each: n for each, n in wanted.items() if each[0] != "g"}
    assert "Starting Streaming" not in ran.stdout
