"""The source of a topology against a broker, asked as Spark asks it; no JVM runs."""

from __future__ import annotations

import json as plain_json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns
from kafkalite.spark.topology.buckets import CLOCK, Row
from kafkalite.spark.topology.packets import unpack
from kafkalite.spark.topology.preparing import prepare
from kafkalite.spark.topology.reader import TopologyReader
from kafkalite.spark.topology.shipping import Shipment
from kafkalite.spark.topology.sink import records_of_packet
from kafkalite.spark.topology.stages import stages_of
from kafkalite.streams import Streams, json, string

Offset = dict[str, Any]


def write(address: str, topic: str, partition: int, times: list[int]) -> None:
    values = [plain_json.dumps({"user": f"u{time % 3}"}).encode() for time in times]
    with Producer(address) as producer:
        columns = Columns([None] * len(times), values, times)
        producer.send_columns(topic, columns, partition=partition)


@pytest.fixture
def counting(
    bootstrap: str, make_topic: Callable[[int], str]
) -> Iterator[tuple[str, TopologyReader]]:
    """A topic of two partitions, and the reader of a topology that counts its users."""
    topic = make_topic(2)
    app: Streams[str, Any] = Streams(f"app-{topic}", key=string(), value=json())
    app.stream(topic).group_by("user").count().to_stream().to(f"{topic}-out", create={})
    layout = prepare(bootstrap, stages_of(app.plan()), idle_ms=3_600_000)
    reader = TopologyReader(Shipment.of(layout, bootstrap), records_max=4)
    yield topic, reader
    reader.stop()


def rows_between(reader: TopologyReader, start: Offset, end: Offset) -> list[Row]:
    """What a micro-batch reads, by way of JSON and Arrow."""
    start, end = plain_json.loads(plain_json.dumps([start, end]))
    batches: list[pa.RecordBatch] = []
    for partition in reader.partitions(start, end):
        batches += reader.read(partition)
    return [Row(*row.values()) for batch in batches for row in batch.to_pylist()]


def next_of(reader: TopologyReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    return reader.latestOffset(start=start, limit=limit or ReadAllAvailable())


def test_a_micro_batch_is_read_as_often_as_spark_likes(
    bootstrap: str, counting: tuple[str, TopologyReader]
) -> None:
    topic, reader = counting
    write(bootstrap, topic, 0, [1, 2, 3])
    write(bootstrap, topic, 1, [4, 5])
    start = reader.initialOffset()
    end = next_of(reader, start)
    rows = rows_between(reader, start, end)
    assert rows_between(reader, start, end) == rows
    assert next_of(reader, end) == end
    assert {row.now_ms for row in rows} == {end["now"]}
    assert {row.to for row in rows if row.topic == CLOCK} == {"1_0", "1_1"}
    folded = sum(len(unpack(row.packet)) for row in rows if row.topic != CLOCK)
    assert folded >= 3  # rows of partial counts, and watermarks


def test_a_limit_divides_what_is_there(
    bootstrap: str, counting: tuple[str, TopologyReader]
) -> None:
    topic, reader = counting
    write(bootstrap, topic, 0, list(range(10)))
    start, sizes = reader.initialOffset(), []
    read = 0
    while (end := next_of(reader, start, reader.getDefaultReadLimit())) != start:
        now = sum(end["offsets"][topic].values())
        sizes.append(now - read)
        start, read = end, now
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    assert sizes == [4, 4, 2]


def test_a_run_to_the_end_stops_there_and_finds_all_idle(
    bootstrap: str, counting: tuple[str, TopologyReader]
) -> None:
    topic, reader = counting
    write(bootstrap, topic, 0, [1, 2, 3])
    reader.prepareForTriggerAvailableNow()
    write(bootstrap, topic, 0, [4])
    end = next_of(reader, reader.initialOffset())
    assert end["offsets"][topic] == {"0": 3, "1": 0}
    assert end["idle"] == {topic: [0, 1]}
    assert next_of(reader, end) == end


def test_the_sink_gets_the_records_of_a_packet(
    bootstrap: str, counting: tuple[str, TopologyReader]
) -> None:
    topic, reader = counting
    write(bootstrap, topic, 1, [7])
    start = reader.initialOffset()
    rows = rows_between(reader, start, next_of(reader, start))
    packet = next(row.packet for row in rows if row.topic != CLOCK)
    batch = records_of_packet("out", 3, pa.py_buffer(packet))
    assert batch.column("topic").to_pylist() == ["out"] * batch.num_rows
    assert batch.column("partition").to_pylist() == [3] * batch.num_rows
    assert batch.column("value").to_pylist() == list(unpack(packet).values)
    assert records_of_packet("out", -1, pa.py_buffer(packet)).column("partition").null_count


def test_a_repeated_micro_batch_sees_the_same_rows_of_global_tables(
    bootstrap: str, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(2)
    countries = f"{topic}-countries"
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(countries, 3)])

    def keep(key: bytes, country: str | None) -> None:
        with Producer(bootstrap) as producer:
            text = None if country is None else plain_json.dumps(country).encode()
            producer.send(countries, text, key=key)

    app: Streams[str, Any] = Streams(f"app-{topic}", key=string(), value=json())
    table = app.global_table(countries)
    orders = app.stream(topic).join(table, lambda _, country: country, key="user")
    orders.to(f"{topic}-out", create={})
    shipment = Shipment.of(prepare(bootstrap, stages_of(app.plan())), bootstrap)
    reader = TopologyReader(shipment, records_max=None)

    def joined(start: Offset, end: Offset) -> list[Any]:
        rows = [row for row in rows_between(reader, start, end) if row.topic != CLOCK]
        found = [value for row in rows for value in unpack(row.packet).values]
        return sorted(plain_json.loads(bytes(value)) for value in found)

    keep(b"u0", "AT")
    keep(b"u1", "CH")
    write(bootstrap, topic, 0, [0, 1, 2, 3])
    start = reader.initialOffset()
    end = next_of(reader, start)
    assert joined(start, end) == ["AT", "AT", "CH"]
    keep(b"u0", None)
    keep(b"u2", "DE")
    assert next_of(reader, end) == end, "a table alone is no reason for a micro-batch"
    write(bootstrap, topic, 1, [0, 1, 2])
    later = next_of(reader, end)
    assert joined(end, later) == ["CH", "DE"]
    assert joined(start, end) == ["AT", "AT", "CH"], "the copy is ahead, so it is made anew"
    assert joined(end, later) == ["CH", "DE"]
    reader.stop()
