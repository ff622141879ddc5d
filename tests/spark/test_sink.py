"""`write.format("kafkalite")` by Spark on a real broker: tables, streams, and kill -9."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from whole_topics import read_topic

from kafkalite.clients.sync import Producer
from kafkalite.core.types import Columns
from kafkalite.errors import ConfigError
from kafkalite.spark.failures import our_failures
from kafkalite.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(400),  # a JVM takes most of it
]

KILLS = int(os.environ.get("KAFKALITE_SINK_KILLS", "1"))
RECORDS = 30_000
BATCHES = 4  # each takes Spark seconds
APP = """
import sys
from kafkalite.spark.session import local_session
address, source, sink, checkpoint, per_batch = sys.argv[1:]
spark = local_session("sink", cores=2)
servers = {"kafka.bootstrap.servers": address}
read = spark.readStream.format("kafkalite").options(**servers, subscribe=source)
rows = read.options(startingOffsets="earliest", maxOffsetsPerTrigger=per_batch).load()
write = rows.select("key", "value").writeStream.format("kafkalite").options(**servers, topic=sink)
write = write.options(deliveryGuarantee="exactly-once", checkpointLocation=checkpoint)
query = write.trigger(availableNow=True).start()
query.awaitTermination()
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("kafkalite-tests", cores=2)
    yield session
    session.stop()


def append(frame: DataFrame, address: str, **options: str) -> None:
    """Writes a table; raises our own errors."""
    options["kafka.bootstrap.servers"] = address
    with our_failures("the sink"):
        frame.write.format("kafkalite").options(**options).mode("append").save()


def test_rows_become_records_with_all_their_columns(
    spark: SparkSession, bootstrap: str, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(3)
    frame = spark.range(600).selectExpr(
        "concat('k', id % 7) as key",
        "struct(id, if(id % 3 = 0, null, concat('item-', id)) as item) as value",
        "cast(if(id < 300, id % 3, null) as int) as partition",
        "timestamp_millis(id * 1000) as timestamp",
        "array(struct('n' as key, cast(cast(id as string) as binary) as value)) as headers",
        "id as ignored",
    )
    append(frame, bootstrap, topic=topic, **{"value.format": "avro", "kafka.linger.ms": "5"})
    read = spark.read.format("kafkalite").option("kafka.bootstrap.servers", bootstrap)
    read = read.options(subscribe=topic, includeHeaders="true", **{"value.format": "avro"})
    rows = read.load().selectExpr(
        "cast(key as string) as key", "value.id", "value.item", "partition", "timestamp",
        "cast(headers[0].value as string) as n",
    ).orderBy("id").collect()  # fmt: skip
    assert [row.id for row in rows] == list(range(600))
    assert [row.n for row in rows] == list(map(str, range(600)))
    assert [row.key for row in rows] == [f"k{n % 7}" for n in range(600)]
    assert [row.item for row in rows] == [None if n % 3 == 0 else f"item-{n}" for n in range(600)]
    assert [row.partition for row in rows[:300]] == [n % 3 for n in range(300)]
    assert [int(row.timestamp.timestamp()) for row in rows] == list(range(600))
    by_key = {row.key: row.partition for row in rows[300:]}
    assert all(by_key[row.key] == row.partition for row in rows[300:])


def test_a_table_is_written_as_a_whole(
    spark: SparkSession, bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = make_topic(2)
    exactly = {"deliveryGuarantee": "exactly-once", "stagingLocation": str(tmp_path)}
    good = spark.range(100).selectExpr("cast(id as string) as value", f"'{topic}' as topic")
    bad = good.selectExpr("value", "if(value = '99', null, topic) as topic")
    with pytest.raises(ConfigError, match="a row has no topic: its column 'topic' is null"):
        append(bad, bootstrap, **exactly)
    assert len(asyncio.run(read_topic(bootstrap, topic, 2))) == 0
    append(good, bootstrap, **exactly)
    assert len(asyncio.run(read_topic(bootstrap, topic, 2))) == 100
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


REFUSED = [
    ("cast(id as string) as key", {"topic": "t"}, "the column 'value' is missing"),
    ("id as value", {"topic": "t"}, "column 'value' is int64: give value.format json or avro"),
    ("cast(id as string) as value", {}, "give the option 'topic' or a column 'topic'"),
    ("cast(id as string) as value", {"topic": "t", "value.format": "x"}, "value.format: 'x' is no"),
]


def test_what_makes_no_records_is_refused_before_a_row_is_read(spark: SparkSession) -> None:
    for columns, options, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            append(spark.range(3).selectExpr(columns), "127.0.0.1:1", **options)
    rows = spark.range(3).selectExpr("cast(id as string) as value").write.format("kafkalite")
    rows = rows.options(topic="t", **{"kafka.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(ConfigError, match="a log is only added to"), our_failures("the sink"):
        rows.mode("overwrite").save()


def commits(checkpoint: Path) -> int:
    return sum(path.name.isdigit() for path in (checkpoint / "commits").glob("*"))


def test_every_row_is_there_once_though_driver_and_tasks_are_killed(
    bootstrap: str, topic: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    source, sink = make_topic(2), f"{topic}-out"
    numbers = [b"%d" % number for number in range(RECORDS)]
    with Producer(bootstrap) as producer:
        producer.send_columns(source, Columns(numbers, numbers, [1_700_000_000_000] * RECORDS))
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-c", APP, bootstrap, source, sink, str(checkpoint)]
    for run in range(KILLS + 1):
        log = (tmp_path / f"{run}.log").open("w+b")
        at_start = commits(checkpoint)
        process = subprocess.Popen(
            [*command, str(RECORDS // BATCHES // KILLS)],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            while run < KILLS and process.poll() is None and commits(checkpoint) == at_start:
                time.sleep(0.05)
            if run < KILLS:
                time.sleep(random.uniform(0, 1.5))  # somewhere in one of the next batches
            else:
                process.wait(300)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # driver, JVM and the processes of tasks
            process.wait()
        log.seek(0)
        assert run < KILLS or process.returncode == 0, log.read().decode()
    times = Counter(map(int, asyncio.run(read_topic(bootstrap, sink, 1)).values))
    assert sorted(times) == list(range(RECORDS))
    assert set(times.values()) == {1}
