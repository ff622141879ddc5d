"""A topology on Spark beside the local engine, and beside Spark's own aggregates.

    python -m bench.spark_topology --records 1000000

JSON in, counts of windows for each user, out. All three read the same topic of a broker of their
own, in the same run, one after the other; Spark's session has started and has run a query of each
kind before. The native query parses JSON with Spark's `from_json` and counts with
`groupBy(window)`; it writes the updates of a micro-batch at least once, where the topology writes
exactly once.
"""

from __future__ import annotations

import argparse
import json as plain_json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.streams import Streams, json, string, tumbling

PARTITIONS = 4
USERS = 1_000
PIECE = 10_000
WARM_UP = 20_000
BEGIN_MS = time.time_ns() // 1_000_000 - 6 * 3_600_000  # brokers delete what is old


def user(value: dict[str, Any]) -> str:
    """The user of a record."""
    return str(value["user"])


def topology(name: str, sink: str) -> Streams[str, Any]:
    """Counts of windows for each user."""
    app: Streams[str, Any] = Streams(name, key=string(), value=json())
    windows = app.stream("clicks").group_by("user").window(tumbling("1m"))
    windows.count().to_stream().to(sink)
    return app


def fill(address: str, first: int, count: int) -> None:
    """Writes records, a millisecond of event time apart."""
    seen = random.Random(first)
    with Producer(address) as producer:
        for at in range(first, first + count, PIECE):
            numbers = range(at, min(at + PIECE, first + count))
            values = [
                plain_json.dumps(
                    {"user": f"user-{seen.randrange(USERS)}", "page": f"/page/{n % 97}", "n": n}
                ).encode()
                for n in numbers
            ]
            columns = Columns([None] * len(values), values, [BEGIN_MS + n for n in numbers])
            producer.send_columns("clicks", columns, partition=at // PIECE % PARTITIONS)


def on_spark(spark: Any, address: str, folder: Path) -> None:
    """The topology as a query."""
    from kafkalite.spark.topology.preparing import prepare
    from kafkalite.spark.topology.query import QuerySettings, TopologyQuery
    from kafkalite.spark.topology.shipping import Shipment
    from kafkalite.spark.topology.stages import stages_of

    layout = prepare(address, stages_of(topology("on-spark", "counts-spark").plan()))
    shipment = Shipment.of(layout, address, sys.modules[__name__])
    query = TopologyQuery(spark, layout, shipment, QuerySettings(str(folder / "topology")))
    query.run(lambda: False, until_caught_up=True)


def natively(spark: Any, address: str, folder: Path) -> None:
    """The same counts by Spark's aggregates."""
    servers = {"kafka.bootstrap.servers": address}
    rows = (
        spark.readStream.format("kafkalite")
        .options(**servers, subscribe="clicks", startingOffsets="earliest")
        .load()
        .selectExpr(
            "timestamp", "from_json(cast(value as string), 'user string, page string, n long') as v"
        )
        .withWatermark("timestamp", "0 seconds")
    )
    counts = (
        rows.groupBy("v.user", _window())
        .count()
        .selectExpr("concat(user, window.start) as key", "cast(count as string) as value")
    )

    def write(batch: Any, _: int) -> None:
        rows = batch.write.format("kafkalite").mode("append")
        rows.options(**servers, topic="counts-native").save()

    query = (
        # Spark gives a sink in Python no updates, but whole batches of them.
        counts.writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", str(folder / "native"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _window() -> Any:
    from pyspark.sql import functions

    return functions.window("timestamp", "1 minute")


def locally(address: str) -> None:
    """The topology in a worker of the local engine."""
    topology("local", "counts-local").run(address, until_caught_up=True)


def timed(work: Callable[[], None]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    from kafkalite.spark import session

    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(f"{name}/log") as broker:
        address, folder = broker.bootstrap_servers, Path(name)
        sinks = ("counts-spark", "counts-native", "counts-local")
        with Admin(address) as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS) for topic in ("clicks", *sinks)])
        spark = session("bench", master=args.master)
        runs: dict[str, Callable[[], None]] = {
            "local engine, one worker": lambda: locally(address),
            f"topology on Spark, {args.master}": lambda: on_spark(spark, address, folder),
            f"native groupBy(window), {args.master}": lambda: natively(spark, address, folder),
        }
        fill(address, 0, WARM_UP)
        for run in runs.values():
            run()
        fill(address, WARM_UP, args.records)
        for what, run in runs.items():
            seconds = timed(run)
            print(f"{what:40} {args.records / seconds:12,.0f} records/s  {seconds:7.1f} s")
        spark.stop()


if __name__ == "__main__":
    main()
