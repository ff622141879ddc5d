"""Spark's readers without Spark: their calls, in the order in which Spark makes them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.errors import ConfigError, SchemaError, SerdeError, StorageError
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry import Draft
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.spark.source import BatchReader, KafkaliteSource, PruningReader, StreamReader
from kafkalite.spark.source.reading import RangePartition
from kafkalite.spark.source.schemas import as_text

ALL = ReadAllAvailable()
Send = Callable[..., None]


@pytest.fixture
def send(bootstrap: str) -> Send:
    """Sends records of these timestamps to partition 0 of a topic of two, which it makes."""

    def go(topic: str, stamps: range) -> None:
        async def records() -> None:
            async with Admin(bootstrap) as admin:
                if topic not in await admin.list_topics():
                    await admin.create_topics([NewTopic(topic, 2)])
            async with Producer(bootstrap) as producer:
                texts = [b"%d" % i for i in stamps]
                await producer.send_columns(topic, Columns(texts, texts, list(stamps)), 0)
                await producer.flush()

        asyncio.run(records())

    return go


@pytest.fixture
def stream(bootstrap: str) -> Iterator[Callable[..., StreamReader]]:
    """Makes stream readers, and stops them."""
    made: list[StreamReader] = []

    def make(topic: str, **options: str) -> StreamReader:
        servers = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        made.append(StreamReader(servers | options))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


Make = Callable[..., StreamReader]


def values(reader: BatchReader | StreamReader, partitions: Any) -> list[int]:
    batches = [batch for planned in partitions for batch in reader.read(planned)]
    return [int(v) for batch in batches for v in batch.column("value").to_pylist()]


def batch(bootstrap: str, topic: str, **options: str) -> list[int]:
    servers = {"kafka.bootstrap.servers": bootstrap}
    which = {} if "subscribePattern" in options else {"subscribe": topic}
    reader = BatchReader(servers | which | options)
    return values(reader, reader.partitions())


def test_latest_is_where_the_log_ended_when_the_query_was_new(send: Send, stream: Make) -> None:
    """Spark asks for the first offset twice, and again after a restart before the first commit:
    what came in between is not lost."""
    send("reads-latest", range(5))
    reader = stream("reads-latest")
    assert reader.initialOffset() == reader.initialOffset()
    first = reader.latestOffset(reader.initialOffset(), ALL)
    send("reads-latest", range(5, 8))
    again = stream("reads-latest")  # a new process; Spark has `first` in its log of offsets
    assert values(again, again.partitions(again.initialOffset(), first)) == []
    second = again.latestOffset(first, ALL)
    assert values(again, again.partitions(first, second)) == [5, 6, 7]
    assert again.latestOffset(second, ALL) == second


def test_a_repeated_batch_has_the_same_records(send: Send, stream: Make) -> None:
    send("reads-again", range(10))
    reader = stream("reads-again", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    send("reads-again", range(10, 20))
    for _ in range(2):
        assert values(reader, reader.partitions(start, end)) == [0, 1, 2, 3]


def test_what_is_available_now_ends_where_the_log_did(send: Send, stream: Make) -> None:
    send("reads-now", range(6))
    reader = stream("reads-now", startingOffsets="earliest", minOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    send("reads-now", range(6, 9))
    read, start = [], reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(4))) != start:
        read += values(reader, reader.partitions(start, end))
        start = end
    assert read == [0, 1, 2, 3, 4, 5]
    late = stream("reads-now")  # from the latest, which is after what is available now
    late.prepareForTriggerAvailableNow()
    send("reads-now", range(9, 10))
    start = late.initialOffset()
    end = late.latestOffset(start, ALL)
    assert values(late, late.partitions(start, end)) == []


def test_a_batch_waits_for_enough_records(send: Send, stream: Make) -> None:
    send("reads-few", range(3))
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "5"}
    reader = stream("reads-few", **options)
    first = reader.latestOffset(reader.initialOffset(), ALL)  # the first batch waits for none
    assert len(values(reader, reader.partitions(reader.initialOffset(), first))) == 3
    send("reads-few", range(4))
    assert reader.latestOffset(first, ALL) == first
    send("reads-few", range(1))
    assert reader.latestOffset(first, ALL) != first
    impatient = stream("reads-few", **options, maxTriggerDelay="0ms")
    second = impatient.latestOffset(first, ALL)
    send("reads-few", range(1))
    assert impatient.latestOffset(second, ALL) != second


def test_offsets_are_committed_to_a_group(send: Send, stream: Make, bootstrap: str) -> None:
    send("reads-lag", range(7))
    """`kafkalite groups describe` shows how far the query is."""
    reader = stream("reads-lag", startingOffsets="earliest", groupIdPrefix="spark")
    reader.commit(reader.latestOffset(reader.initialOffset(), ReadMaxRows(5)))
    describe = ["groups", "describe", "spark-reads-lag", "--json", "-b", bootstrap]
    command = [sys.executable, "-m", "kafkalite.cli", *describe]
    (told,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (told["state"], told["lag"]) == ("Empty", 2)
    first = told["partitions"][0]
    assert (first["topic"], first["committed"], first["end"]) == ("reads-lag", 5, 7)
    assert "7" in str(reader.reportLatestOffset())


def test_a_query_begins_and_ends_at_moments(send: Send, bootstrap: str) -> None:
    send("reads-times", range(1_000, 1_010))
    late = {"startingOffsetsByTimestampStrategy": "latest"}  # partition 1 is empty
    assert batch(
        bootstrap, "reads-times", startingTimestamp="1004", endingTimestamp="1007", **late
    ) == [1004, 1005, 1006]
    each = '{"reads-times": {"0": 1008, "1": 5}}'
    assert batch(bootstrap, "reads-times", startingOffsetsByTimestamp=each, **late) == [1008, 1009]
    with pytest.raises(ConfigError, match="startingTimestamp: reads-times-1 has no record"):
        batch(bootstrap, "reads-times", startingTimestamp="1004")


def test_topics_by_a_pattern_in_parts(send: Send, bootstrap: str) -> None:
    send("reads-pattern-a", range(10))
    send("reads-pattern-b", range(10, 15))
    servers = {"kafka.bootstrap.servers": bootstrap, "subscribePattern": "reads-pattern-."}
    reader = BatchReader(servers | {"maxRecordsPerPartition": "4"})
    planned = reader.partitions()
    assert len(planned) == 5
    assert sorted(values(reader, planned)) == list(range(15))


def test_a_log_that_became_shorter_ends_a_query_unless_loss_is_allowed(
    send: Send, stream: Make
) -> None:
    send("reads-short", range(3))
    start = {"offsets": '{"reads-short": {"0": 500, "1": 0}}'}
    with pytest.raises(StorageError, match="reads-short-0 ends at offset 3, before 500"):
        stream("reads-short").latestOffset(start, ALL)
    allowed = stream("reads-short", failOnDataLoss="false")
    assert allowed.latestOffset(start, ALL) == start


def test_some_fields_are_decoded_as_a_pinned_schema_and_bad_records_dropped(bootstrap: str) -> None:
    topic = "reads-avro"
    old = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    new = {**old, "fields": [{"name": n, "type": "int", "default": 5} for n in ("id", "more")]}

    async def send_both() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, 1)])
        records: list[bytes | None] = [b"no avro", None]
        with LogRegistry(bootstrap) as registry:
            for schema, value in ((old, {"id": 7}), (new, {"id": 7, "more": 8})):
                codec = avro(schema=schema).open(SerdeContext(registry))
                records += codec.serialize(topic, [value])
        async with Producer(bootstrap) as producer:
            await producer.send_columns(topic, Columns([None] * 4, records, [0] * 4), 0)
            await producer.flush()

    asyncio.run(send_both())

    def read(**options: str) -> list[Any]:
        servers = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        reader = BatchReader(servers | {"value.format": "avro"} | options)
        batches = [b for planned in reader.partitions() for b in reader.read(planned)]
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    with pytest.raises(SerdeError, match="reads-avro-0 offset 0"):
        read()
    whole = [None, {"id": 7, "more": 5}, {"id": 7, "more": 8}]
    assert read(mode="dropmalformed") == whole
    assert read(mode="permissive") == [None, *whole]
    some = {"mode": "dropmalformed", "value.columns": "more"}
    assert read(**some) == [None, {"more": 5}, {"more": 8}]
    for pin in ({"value.schema": json.dumps(old)}, {"value.schema.version": "1"}):
        assert read(mode="dropmalformed", **pin) == [None, {"id": 7}, {"id": 7}]


def send_json(bootstrap: str, topic: str, values: list[bytes | None]) -> None:
    """To the only partition of a new topic; the moment of each record is its offset."""

    async def go() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, 1)])
        async with Producer(bootstrap) as producer:
            columns = Columns([None] * len(values), values, list(range(len(values))))
            await producer.send_columns(topic, columns, 0)
            await producer.flush()

    asyncio.run(go())


def rows(bootstrap: str, topic: str, **options: str) -> list[Any]:
    """The values that a batch query reads, with the schema of its definition."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic} | options
    schema = KafkaliteSource(given).schema()
    reader = KafkaliteSource(given).reader(schema)
    assert isinstance(reader, BatchReader)
    batches = [b for planned in reader.partitions() for b in reader.read(planned)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_only_the_wanted_columns_are_there_and_decoded(bootstrap: str) -> None:
    send_json(bootstrap, "columns", [b"no json", None, b"{}"])
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": "columns", "value.format": "json"}
    given |= {"inferSchema": "true", "includeHeaders": "true", "columns": "headers, offset,at"}
    with pytest.raises(ConfigError, match=r"columns: 'at' is not one of key, value, topic"):
        KafkaliteSource(given).schema()
    source = KafkaliteSource(given | {"columns": "headers, offset,TOPIC"})
    assert source.schema().names == ["topic", "offset", "headers"]
    reader = source.reader(source.schema())
    (batch,) = (b for planned in reader.partitions() for b in reader.read(planned))
    found = batch.to_pydict()
    assert found == {"topic": ["columns"] * 3, "offset": [0, 1, 2], "headers": [[]] * 3}


def test_columns_of_json_are_inferred_from_heads_and_tails(bootstrap: str) -> None:
    """A sample sees old and new objects; one in between that has a field of its own is an error
    that names the field."""
    old, new = [b'{"id": 1}'] * 50, [b'{"id": 2.5, "tag": "t"}'] * 50
    send_json(bootstrap, "infer-json", [*old, *new])
    found = rows(bootstrap, "infer-json", **{"value.format": "json", "inferSchema": "true"})
    assert found == [{"id": 1.0, "tag": None}] * 50 + [{"id": 2.5, "tag": "t"}] * 50
    send_json(bootstrap, "infer-odd", [*old, b'{"odd": 1}', *old])
    options = {"value.format": "json", "inferSchema": "true"}
    assert rows(bootstrap, "infer-odd", **options)[50] == {"id": None, "odd": 1}
    with pytest.raises(SerdeError, match="infer-odd-0 offset 50: .*'odd' has no column"):
        rows(bootstrap, "infer-odd", **options, **{"inferSchema.records": "10"})
    send_json(bootstrap, "infer-none", [None, b"[]"])
    with pytest.raises(SchemaError, match="a sample of infer-none has no JSON object"):
        rows(bootstrap, "infer-none", **options)


def test_columns_of_json_are_those_of_the_registry(bootstrap: str) -> None:
    """Values with and without Confluent's header; the latest version, or one by its number."""
    topic, subject = "registry-json", "registry-json-value"
    one = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
    two = '{"type": "object", "properties": {"id": {"type": "integer"}, "tag": {"type": "string"}}}'
    as_json = {"value.format": "json"}
    send_json(bootstrap, topic, [b'{"id": 1}', b'\0\0\0\0\7{"id": 2}', None])
    with pytest.raises(
        ConfigError, match=r"value\.format json needs columns: the option value.sch"
    ):
        rows(bootstrap, topic, **as_json)
    with LogRegistry(bootstrap) as registry:
        registry.set_compatibility(Compatibility.NONE, subject)
        number = registry.register(subject, Draft(one, "JSON"))
        registry.register(subject, Draft(two, "JSON"))
    newest = [{"id": 1, "tag": None}, {"id": 2, "tag": None}, None]
    assert rows(bootstrap, topic, **as_json) == newest
    assert rows(bootstrap, topic, **as_json, **{"value.schema.version": "latest"}) == newest
    by_version = rows(bootstrap, topic, **as_json, **{"value.schema.version": "1"})
    assert by_version == [{"id": 1}, {"id": 2}, None]
    assert rows(bootstrap, topic, **as_json, **{"value.schema.id": str(number)}) == by_version
    with pytest.raises(SchemaError, match="value.format avro: version 2 of registry-json-value is"):
        rows(bootstrap, topic, **{"value.format": "avro"})


def test_a_query_keeps_the_schema_of_its_definition(bootstrap: str) -> None:
    send_json(bootstrap, "kept-json", [b'{"id": 1}'])
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": "kept-json"}
    given |= {"value.format": "json", "inferSchema": "true", "inferSchema.records": "1"}
    source = KafkaliteSource(given)
    schema = source.schema()
    reader = source.streamReader(schema)
    assert isinstance(reader, StreamReader)
    assert reader.reading.columns().field("value").type == pa.struct([("id", pa.int64())])


def test_filters_save_fetches_and_rows(bootstrap: str) -> None:
    send_json(bootstrap, "pruned", [b'{"id": %d}' % number for number in range(100)])
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": "pruned", "value.format": "json"}
    given |= {"value.schema": as_text(pa.struct([("id", pa.int64())])), "pushFilters": "once"}

    def read(*filters: Filter) -> tuple[list[Any], list[int]]:
        """The ranges that are fetched, and the rows that go to Spark."""
        reader = KafkaliteSource(given).reader(KafkaliteSource(given).schema())
        assert isinstance(reader, PruningReader)
        list(reader.pushFilters(list(filters)))
        planned = reader.partitions()
        ranges = [(p.wanted.start, p.wanted.end) for p in planned if isinstance(p, RangePartition)]
        batches = [batch for part in planned for batch in reader.read(part)]
        return ranges, [v["id"] for batch in batches for v in batch.column("value").to_pylist()]

    at = datetime(1970, 1, 1, microsecond=90_000, tzinfo=UTC)
    assert read() == ([(0, 100)], list(range(100)))
    assert read(GreaterThanOrEqual(("offset",), 97)) == ([(97, 100)], [97, 98, 99])
    assert read(EqualTo(("partition",), 1)) == ([], [])
    assert read(GreaterThan(("timestamp",), at)) == ([(91, 100)], list(range(91, 100)))
    assert read(GreaterThan(("timestamp",), at.replace(year=2000)))[0] == []
    assert read(EqualTo(("value", "id"), 7)) == ([(0, 100)], [7])


def test_what_every_application_of_spark_imports_is_light() -> None:
    """Spark imports `pyspark_kafkalite` wherever a source is looked up, ours or not."""
    listed = "import pyspark_kafkalite, sys; print(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    heavy = ("kafkalite.clients", "kafkalite.serde.avro", "kafkalite.columnar.decoding", "fastavro")
    assert [name for name in ran.stdout.split() if name.startswith(heavy)] == []
