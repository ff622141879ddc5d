"""`write.format("kafkalite")` by Spark on a real broker: tables, streams, and kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from whole_topics import read_topic

from kafkalite.clients.sync import Producer
from kafkalite.core.types import Columns
from kafkalite.errors import ConfigError
from kafkalite.spark.failures import our_failures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KILLS = int(os.environ.get("KAFKALITE_SINK_KILLS", "2"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400 + 60 * KILLS),  # a JVM takes most of it
]

OF_TASKS = 4  # of five kills: the next one is the driver's
PER_BATCH = 1_000
BATCHES = 8  # for each driver; each takes Spark a second or so
APP = """
import sys
from kafkalite.spark.sessions import session
address, source, sink, checkpoint, per_batch = sys.argv[1:]
spark = session("sink", master="local[2,8]")  # a task may fail seven times
servers = {"kafka.bootstrap.servers": address}
read = spark.readStream.format("kafkalite").options(**servers, subscribe=source)
rows = read.options(startingOffsets="earliest", maxOffsetsPerTrigger=per_batch).load()
write = rows.select("key", "value").writeStream.format("kafkalite").options(**servers, topic=sink)
write = write.options(deliveryGuarantee="exactly-once", checkpointLocation=checkpoint)
query = write.trigger(availableNow=True).start()
query.awaitTermination()
"""


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


def test_a_stream_with_a_name_is_written_and_lag_tools_follow_it(
    spark: SparkSession, bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    """Spark hands the name of a query to the sink as an option."""
    source = make_topic(1)
    numbers = [b"%d" % number for number in range(15)]
    with Producer(bootstrap) as producer:
        producer.send_columns(source, Columns(numbers, numbers, [1_000] * 15))
    servers = {"kafka.bootstrap.servers": bootstrap}
    read = spark.readStream.format("kafkalite").options(**servers, subscribe=source)
    read = read.options(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    rows = read.option("groupIdPrefix", "lag").load().select("key", "value")
    write = rows.writeStream.format("kafkalite").queryName("copies").options(**servers)
    write = write.options(topic=f"{source}-copies", deliveryGuarantee="exactly-once")
    write = write.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with our_failures("the sink"):
        query = write.trigger(availableNow=True).start()
        query.awaitTermination()
    assert query.name == "copies"
    found = asyncio.run(read_topic(bootstrap, f"{source}-copies", 1)).values
    assert list(map(int, found)) == list(range(15))
    command = [sys.executable, "-m", "kafkalite.cli", "groups", "describe", "--json"]
    command += [f"lag-{source}", "-b", bootstrap]
    (group,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    # Two batches; Spark reports a batch to the source when the next one begins.
    assert [(each["committed"], each["lag"]) for each in group["partitions"]] == [(10, 5)]


def commits(checkpoint: Path) -> int:
    return sum(path.name.isdigit() for path in (checkpoint / "commits").glob("*"))


def task_processes(driver: int) -> list[int]:
    """The Python processes below a driver's JVM, the one that it talks to left out."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found: list[int] = []
    for pid in parents:
        with suppress(OSError):
            above, line = pid, Path(f"/proc/{pid}/cmdline").read_bytes()
            while above in parents and above != driver:
                above = parents[above]
            if above == driver and line.endswith(b"pyspark.daemon\0pyspark.worker\0"):
                found.append(pid)
    return found


class Killed:
    """A query that is killed at random moments, and started again."""

    def __init__(self, command: list[str], folder: Path, checkpoint: Path) -> None:
        self._command, self._folder, self._checkpoint = command, folder, checkpoint
        self.of_tasks = self.of_drivers = self.starts = 0
        self.finished = False

    @property
    def kills(self) -> int:
        return self.of_tasks + self.of_drivers

    def run(self) -> None:
        """One driver, up to its end or its kill."""
        log = (self._folder / f"{self.starts}.log").open("w+b")
        self.starts += 1
        at_start, kills, self.finished = commits(self._checkpoint), self.kills, False
        process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        try:
            while process.poll() is None and commits(self._checkpoint) == at_start:
                time.sleep(0.05)
            while self.kills < KILLS and process.poll() is None:
                time.sleep(random.uniform(0, 1.5))  # somewhere in one of the next batches
                if self.kills - kills == min(OF_TASKS, KILLS - 1):
                    self.of_drivers += 1
                    return
                victims = task_processes(process.pid)
                if victims:
                    os.kill(random.choice(victims), signal.SIGKILL)
                    self.of_tasks += 1
            process.wait(300)
            self.finished = process.returncode == 0
            if self.kills == kills:  # nobody has killed it
                log.seek(0)
                assert self.finished, log.read().decode()
        finally:
            with suppress(ProcessLookupError):  # it may have ended
                os.killpg(process.pid, signal.SIGKILL)  # driver, JVM and the processes of tasks
            process.wait()


@pytest.mark.deep
def test_every_row_is_there_once_though_driver_and_tasks_are_killed(
    bootstrap: str, topic: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    source, sink = make_topic(2), f"{topic}-out"
    command = [sys.executable, "-c", APP, bootstrap, source, sink, str(tmp_path / "checkpoint")]
    query = Killed([*command, str(PER_BATCH)], tmp_path, tmp_path / "checkpoint")
    records = 0
    while True:
        numbers = [b"%d" % (records + number) for number in range(BATCHES * PER_BATCH)]
        records += len(numbers)
        with Producer(bootstrap) as producer:
            times = [1_700_000_000_000] * len(numbers)
            producer.send_columns(source, Columns(numbers, numbers, times))
        query.run()
        if query.kills == KILLS and query.finished:
            break
    found = Counter(map(int, asyncio.run(read_topic(bootstrap, sink, 1)).values))
    print(f"{query.of_tasks} tasks and {query.of_drivers} drivers were killed; {records:,} rows")
    assert sorted(found) == list(range(records))
    assert set(found.values()) == {1}
