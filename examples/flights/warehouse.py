"""Flights into tables of Parquet, Delta and Iceberg, twice, with a new schema in between.

    python examples/flights/warehouse.py [--limit N] [--spark] [--warehouse DIR] -b 127.0.0.1:9092

The first half of the flights has the first schema. The second half has another one:

    dep_delay    is named departure_delay, with the old name as alias
    distance     is double, and was int
    distance_km  is new
    minute       is gone

Each half is loaded into all three kinds of table by `kafkalite-spark load --engine local`. At the
end every reader must see the same rows in every table.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from load import KM_PER_MILE, PARTITIONS, Flights, flight_schema, read_flights

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.errors import KafkaliteError
from kafkalite.serde import SerdeContext, avro, string
from kafkalite.serde.registry_log import LogRegistry

os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # polars need not look for another
TOPIC = "flights-schemas"
KINDS = ("parquet", "delta", "iceberg")
RENAMED = {"dep_delay": "departure_delay"}
NEWER: dict[str, dict[str, Any]] = {
    "dep_delay": {"name": "departure_delay", "aliases": ["dep_delay"]},
    "distance": {"type": "double"},
}


def newer_schema() -> dict[str, Any]:
    """The schema of the second half."""
    schema: dict[str, Any] = flight_schema(
        {"name": "distance_km", "type": "double", "default": 0.0}
    )
    schema["fields"] = [
        field | NEWER.get(field["name"], {})
        for field in schema["fields"]
        if field["name"] != "minute"
    ]
    return schema


def newer(flights: Flights) -> Flights:
    """Flights with the fields of the newer schema."""
    fields = {RENAMED.get(name, name): column for name, column in flights.fields.items()}
    del fields["minute"]
    miles = flights.fields["distance"]
    fields["distance"] = [float(each) for each in miles]
    fields["distance_km"] = [round(each * KM_PER_MILE, 1) for each in miles]
    return Flights(fields, flights.timestamps)


async def send(address: str, flights: Flights, schema: Any, start: int, stop: int) -> None:
    """Sends the flights [start, stop) to the topic, which is made if there is none."""
    kept = {"retention.ms": "-1"}  # the events are of 2013
    keys = string().open(SerdeContext(is_key=True))
    with LogRegistry(address) as registry:
        values = avro(schema=schema).open(SerdeContext(registry))
        async with Client(address) as client, Admin(client) as admin, Producer(client) as producer:
            await admin.create_missing_topics([NewTopic(TOPIC, PARTITIONS, configs=kept)])
            for tails, rows, times in flights.chunks(start, stop):
                columns = Columns(
                    keys.serialize(TOPIC, tails), values.serialize(TOPIC, rows), times
                )
                await producer.send_columns(TOPIC, columns)
            await producer.flush()


def load(address: str, warehouse: Path) -> None:
    """Loads what is new into all three tables, by the command."""
    for kind in KINDS:
        command = [sys.executable, "-m", "kafkalite.cli.spark", "load", TOPIC, "-b", address]
        command += ["--engine", "local", "--format", kind, "--key", f"{TOPIC}=string"]
        if subprocess.run([*command, "--warehouse", str(warehouse / kind)], check=False).returncode:
            raise SystemExit(f"the load into {kind} failed")


def compare(warehouse: Path, spark: Any) -> None:
    """Reads every table by every reader; ends the program where two see other rows."""
    from readers import READERS, by_spark

    expected = None
    for kind in KINDS:
        table = warehouse / kind / TOPIC.replace("-", "_")
        readers = dict(READERS[kind])
        if spark is not None:
            readers["Spark"] = lambda table: by_spark(spark, table)
        for name, read in readers.items():
            started = time.perf_counter()
            rows = in_one_order(read(table))
            seconds = time.perf_counter() - started
            expected = rows if expected is None else expected
            if not rows.equals(expected):
                raise SystemExit(f"{name} sees other rows in {kind}: {differences(rows, expected)}")
            print(f"{kind:8} {name:8} {rows.num_rows:,} rows, {seconds:.2f} s")
    assert expected is not None
    named = expected["departure_delay"].null_count, expected["distance_km"].null_count
    print(f"all agree; departure_delay is null in {named[0]:,} rows, distance_km in {named[1]:,}")


def in_one_order(rows: Any) -> Any:
    """The rows of an Arrow table by their place in the log, with one type for texts."""
    import pyarrow as pa

    plain = {pa.large_string(): pa.string(), pa.string_view(): pa.string()}
    names = sorted(rows.column_names)
    made = pa.table({name: _plain(rows[name], plain) for name in names})
    return made.sort_by([("_partition", "ascending"), ("_offset", "ascending")]).combine_chunks()


def _plain(column: Any, plain: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC"))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(plain.get(column.type, column.type))


def differences(rows: Any, expected: Any) -> str:
    """What differs, in a few words."""
    if rows.schema != expected.schema:
        return f"{set(rows.schema) ^ set(expected.schema)}"
    return ", ".join(name for name in rows.column_names if not rows[name].equals(expected[name]))


def run(address: str, warehouse: Path, limit: int | None, with_spark: bool) -> None:
    """Everything; prints what happened."""
    started = time.perf_counter()
    flights = read_flights(limit)
    half = len(flights) // 2
    asyncio.run(send(address, flights, flight_schema(), 0, half))
    load(address, warehouse)
    asyncio.run(send(address, newer(flights), newer_schema(), half, len(flights)))
    load(address, warehouse)
    spark = None
    if with_spark:
        import kafkalite.spark

        spark = kafkalite.spark.session("flights")
    compare(warehouse, spark)
    if spark is not None:
        spark.stop()
    print(f"{len(flights):,} flights in {time.perf_counter() - started:.1f} s")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", required=True, metavar="HOST:PORT")
    parser.add_argument("--warehouse", type=Path, default=Path("warehouse"))
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--spark", action="store_true", help="read the tables in Spark, too")
    given = parser.parse_args()
    try:
        run(given.bootstrap_servers, given.warehouse, given.limit, given.spark)
    except KafkaliteError as error:
        print(f"warehouse.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
