"""One Spark of `bench.spark`: it takes cases as lines of JSON and answers each with its figures.

    python bench/spark_driver.py kafkalite|kafka SERVERS FOLDER [JAR,JAR…]

This file imports nothing but pyspark, as the official connector's Python has nothing else. Rows of
a sink come from Spark's own range, so that no source is part of the figure. A case of the official
connector has the shape of ours: the same columns, the same types at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS: Final = "kafkalite"
HZ: Final = os.sysconf("SC_CLK_TCK")
COLUMNS: Final = ("partition", "offset", "timestamp", "value")  # those that a stream's query takes
FRAME_BYTES: Final = 5  # before a value of Avro: a zero and the number of its schema
Stat = tuple[int, float]  # the parent, and the CPU seconds of a process and its reaped children


def process_stat(pid: int) -> Stat:
    """OSError where the process is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[1]), sum(map(int, fields[11:15])) / HZ


def tree_cpu_s(pid: int) -> dict[int, float]:
    """CPU seconds of a process and of each of its descendants, with the children it has reaped."""
    stats: dict[int, Stat] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stats[int(name)] = process_stat(int(name))
        except OSError:
            continue
    found, todo = {}, [pid]
    while todo:
        parent = todo.pop()
        if parent in stats:
            found[parent] = stats[parent][1]
        todo += [child for child, (its_parent, _) in stats.items() if its_parent == parent]
    return found


def cpu_between(before: dict[int, float], after: dict[int, float]) -> float:
    """What the processes that are still there have used; Spark ends idle ones after a minute."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


class Driver:
    """A session of Spark with two threads, and what it does with a topic."""

    def __init__(self, form: str, servers: str, folder: Path, jars: str) -> None:
        self.form, self.folder = form, folder
        self.servers = {"kafka.bootstrap.servers": servers}
        self.spark = self._session(jars)
        jvm: Any = self.spark._jvm
        self.jvm = int(jvm.java.lang.ProcessHandle.current().pid())

    def _session(self, jars: str) -> SparkSession:
        settings = {
            "spark.driver.memory": "4g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        if jars:
            settings["spark.jars"] = jars
        session = self._made(settings)
        session.sparkContext.setLogLevel("ERROR")
        return session

    def _made(self, settings: dict[str, str]) -> SparkSession:
        if self.form == OURS:
            import kafkalite.spark

            return kafkalite.spark.session("bench", master="local[2]", settings=settings)
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").appName("bench")
        for name, value in settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """The figures of one case; its action is a method of this class."""
        action = getattr(self, f"do_{case.pop('action')}")
        if not case.pop("keep", False):
            for name in ("checkpoint", "out"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
        before, began = tree_cpu_s(self.jvm), time.monotonic()
        found = action(**case)
        seconds = time.monotonic() - began
        figures = {"s": seconds, "cpu_s": cpu_between(before, tree_cpu_s(self.jvm))}
        return figures | (found or {})

    def _read(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format(self.form).options(**self.servers, **options)
        return reader.options(subscribe=topic, startingOffsets="earliest").load()

    def _stream(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(self.form).options(**self.servers, **options)
        return reader.options(subscribe=topic, startingOffsets="earliest").load()

    def _out(self) -> str:
        return str(self.folder / "out")

    def do_batch_noop(self, topic: str) -> None:
        """A table that is read and thrown away."""
        self._read(topic).write.format("noop").mode("overwrite").save()

    def do_stream(self, topic: str, sink: str) -> dict[str, Any]:
        """What is there, as a stream, thrown away or into Parquet."""
        named = {"columns": ",".join(COLUMNS)} if self.form == OURS else {}
        return self._streamed(self._stream(topic, **named), sink)

    def do_prepared(self, rows: int, size: int) -> dict[str, Any]:
        """The same query over a source that reads nothing."""
        from bench.spark_prepared import NAME, PreparedSource

        self.spark.dataSource.register(PreparedSource)
        reader = self.spark.readStream.format(NAME).options(rows=str(rows), size=str(size))
        return self._streamed(reader.load(), "noop")

    def _streamed(self, rows: DataFrame, sink: str) -> dict[str, Any]:
        columns = (*COLUMNS[:-1], "CAST(value AS STRING) AS v")
        writer = rows.selectExpr(*columns).writeStream.format(sink)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if sink == "parquet":
            writer = writer.option("path", self._out())
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return {"rows": sum(done["numInputRows"] for done in query.recentProgress)}

    def do_avro_parquet(self, topic: str, schema: str) -> dict[str, Any]:
        """Values of Avro as typed columns, into Parquet."""
        if self.form == OURS:
            options = {"value.format": "avro", "columns": "value"}
            rows = self._read(topic, **options).select("value.*")
        else:
            from pyspark.sql.avro.functions import from_avro
            from pyspark.sql.functions import expr

            value = expr(f"substring(value, {FRAME_BYTES + 1})")
            rows = self._read(topic).select(from_avro(value, schema).alias("v")).select("v.*")
        rows.write.mode("overwrite").parquet(self._out())
        return {}

    def do_count_parquet(self) -> dict[str, Any]:
        """The rows of the table that the case before wrote."""
        return {"rows": self.spark.read.parquet(self._out()).count()}

    def do_load(self, topic: str, value: str) -> dict[str, Any]:
        """`kafkalite-spark load`, without Spark's start; a second load finds nothing new."""
        from kafkalite.spark.engine import SparkEngine
        from kafkalite.warehouse.load import Layout
        from kafkalite.warehouse.tables import TopicLoad

        table = self.folder / "out"
        engine = SparkEngine(lambda: self.spark, str(table))
        load = TopicLoad(topic, "binary", value)
        servers = self.servers["kafka.bootstrap.servers"]
        done = load.into(table, servers, engine, Layout()).run()
        return {"rows": done.records, "files": done.files}

    def do_sink(self, topic: str, records: int, exactly_once: bool) -> None:
        """Rows of 100 bytes, made by Spark."""
        value = "lpad(cast(id as string), 100, '0123456789') as value"
        options = dict(self.servers, topic=topic)
        if exactly_once:
            staging = str(self.folder / "staging")
            options |= {"deliveryGuarantee": "exactly-once", "stagingLocation": staging}
        rows = self.spark.range(0, records, 1, 4).selectExpr("cast(null as string) as key", value)
        rows.write.format(self.form).options(**options).mode("append").save()

    def do_micro(self, topic: str, to: str, exactly_once: bool) -> dict[str, Any]:
        """Micro-batches of a few rows from topic to topic: the median of their seconds, but for the
        first two, whose processes start."""
        options = dict(self.servers, topic=to, checkpointLocation=str(self.folder / "checkpoint"))
        if exactly_once:
            options["deliveryGuarantee"] = "exactly-once"
        rows = self._stream(topic, maxOffsetsPerTrigger="20").select("key", "value")
        query = rows.writeStream.format(self.form).options(**options)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        took = [done["durationMs"]["triggerExecution"] for done in running.recentProgress]
        return {"batch_s": statistics.median(took[2:]) / 1000}


def main() -> None:
    """Answers cases until its input ends."""
    form, servers, folder = sys.argv[1:4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    driver = Driver(form, servers, Path(folder), "".join(sys.argv[4:]))
    print(json.dumps({"pyspark": driver.spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = driver.run(json.loads(line))
        except Exception as error:  # whatever Spark raises: the other cases go on
            lines = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {lines[0][:300]} … {lines[-1][:300]}"}
        print(json.dumps(answer), file=answers, flush=True)
    driver.spark.stop()


if __name__ == "__main__":
    main()
