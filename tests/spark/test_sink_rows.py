"""Rows of Spark as records, without Spark: columns, formats, options; staged files."""

from __future__ import annotations

import json as json_text
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.errors import ConfigError, StorageError
from kafkalite.serde import MemoryRegistry, SerdeContext, avro, json
from kafkalite.serde.arrow_form import ArraySource, ArrowForm
from kafkalite.spark.sink.avro_types import avro_schema
from kafkalite.spark.sink.columns import HEADERS, RECORDS, check_columns
from kafkalite.spark.sink.messages import Staged
from kafkalite.spark.sink.options import parse_sink_options
from kafkalite.spark.sink.rows import by_topic, records_of
from kafkalite.spark.sink.staging import Staging

NOW = 1_700_000_000_000
SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
EXACTLY = SERVERS | {"deliveryGuarantee": "exactly-once"}

Row = tuple[str, int | None, bytes | None, bytes | None, int]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.none() | st.integers(0, 3),
        st.none() | st.binary(max_size=5),
        st.none() | st.binary(max_size=5),
        st.integers(-(10**12), 10**12),
    ),
    max_size=40,
)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    topics, partitions, keys, values, times = zip(*rows, strict=True) if rows else ([],) * 5
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "offset": pa.array(range(len(rows)), pa.int64()),  # another column
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int64()),
            "timestamp": pa.array([1000 * t for t in times], pa.timestamp("us", tz="UTC")),
        }
    )


def sent(records: pa.RecordBatch) -> list[Row]:
    made: list[Row] = []
    for topic, columns, partitions in by_topic(records):
        numbers: list[Any] = list(partitions or [None] * len(columns))
        rows = zip(numbers, columns.keys, columns.values, columns.timestamps, strict=True)
        made.extend((topic, *row) for row in rows)
    return made


def records(batch: pa.RecordBatch, topic: str | None, codecs: Mapping[str, Any]) -> pa.RecordBatch:
    """Rows that become one batch."""
    (made,) = records_of(batch, topic, codecs, NOW)
    return made


def in_order(rows: list[Row]) -> list[Row]:
    """By topic and whether a partition was chosen; within them as they came."""
    return sorted(rows, key=lambda row: (row[0], row[1] is None))


class TestRecords:
    @given(rows=ROWS, skipped=st.integers(0, 9))
    def test_every_row_becomes_its_record(self, rows: list[Row], skipped: int) -> None:
        batch = batch_of(rows).slice(skipped)  # arrays that begin within their buffers
        made = sent(records(batch, None, {}))
        assert in_order(made) == in_order(rows[skipped:])

    def test_a_batch_of_values_alone(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": ["x", None, "z"]})
        ((topic, columns, partitions),) = by_topic(records(batch, "t", {}))
        assert (topic, partitions) == ("t", None)
        assert list(columns.values) == [b"x", None, b"z"]
        assert list(columns.keys) == [None] * 3
        assert list(columns.timestamps) == [NOW] * 3
        assert columns.headers is None

    def test_the_option_goes_before_the_column(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": ["x"], "topic": ["column"]})
        assert [row[0] for row in sent(records(batch, "option", {}))] == ["option"]

    def test_headers_and_timestamps_with_nulls(self) -> None:
        headers = pa.array([[("a", b"1"), ("a", None)], None], HEADERS)
        times = pa.array([datetime(2020, 1, 1, tzinfo=UTC), None], pa.timestamp("us", tz="UTC"))
        batch = pa.RecordBatch.from_arrays(
            [pa.array(["x", "y"]), headers, times], ["value", "headers", "timestamp"]
        )
        ((_, columns, _),) = by_topic(records(batch, "t", {}))
        assert columns.headers == [(("a", b"1"), ("a", None)), ()]
        assert list(columns.timestamps) == [1_577_836_800_000, NOW]

    def test_structs_are_written_by_their_format(self) -> None:
        values = pa.array([{"id": number} for number in range(300)])
        batch = pa.RecordBatch.from_arrays([values], ["value"])
        codecs = {"value": json().open(SerdeContext())}
        ((_, columns, _),) = by_topic(records(batch, "t", codecs))
        assert list(columns.values) == [b'{"id":%d}' % number for number in range(300)]

    def test_each_topic_of_a_column_has_its_own_schema(self) -> None:
        registry = MemoryRegistry()
        values = pa.array([{"id": number} for number in range(6)])
        topics = pa.array(["a", "b", "b", "a", "a", "b"])
        batch = pa.RecordBatch.from_arrays([values, topics], ["value", "topic"])
        schema = avro_schema(values.type, "value", "Value")
        codecs = {"value": avro(schema=schema).open(SerdeContext(registry))}
        made = [row for part in records_of(batch, None, codecs, NOW) for row in sent(part)]
        assert [len(registry.versions(f"{topic}-value")) for topic in "ab"] == [1, 1]
        reader = avro().open(SerdeContext(registry))
        found = {topic: [] for topic in "ab"}
        for topic, _, _, value, _ in made:
            found[topic] += [record["id"] for record in reader.deserialize(topic, [value])]
        assert found == {"a": [0, 3, 4], "b": [1, 2, 5]}

    def test_a_row_without_a_topic(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": ["x", "y"], "topic": ["a", None]})
        with pytest.raises(ConfigError, match="its column 'topic' is null"):
            records(batch, None, {})


class TestAvroTypes:
    def test_every_type_of_spark_is_written_and_read_again(self) -> None:
        inner = pa.struct([("x", pa.int32())])
        kind = pa.struct(
            [
                ("flag", pa.bool_()), ("byte", pa.int8()), ("short", pa.int16()),
                ("whole", pa.int32()), ("long", pa.int64()), ("float", pa.float32()),
                ("double", pa.float64()), ("text", pa.string()), ("bytes", pa.binary()),
                ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
                ("local", pa.timestamp("us")), ("price", pa.decimal128(10, 2)),
                ("list", pa.list_(inner)), ("map", pa.map_(pa.string(), inner)), ("row", inner),
            ]
        )  # fmt: skip
        row = {
            "flag": True, "byte": 1, "short": 2, "whole": 3, "long": 2**40, "float": 1.5,
            "double": 0.1, "text": "é", "bytes": b"y", "day": date(2020, 1, 1),
            "at": datetime(2020, 1, 1, tzinfo=UTC), "local": datetime(2020, 1, 1),
            "price": Decimal("1.25"), "list": [{"x": 1}, None], "map": {"k": {"x": 2}},
            "row": {"x": None},
        }  # fmt: skip
        registry, nothing = MemoryRegistry(), dict.fromkeys(row)
        codec = avro(schema=avro_schema(kind, "value", "V")).open(SerdeContext(registry))
        for rows in ([row], [nothing, None, row] * 100):
            written = codec.serialize("t", ArrowForm(ArraySource(pa.array(rows, kind))))
            read = avro().open(SerdeContext(registry)).deserialize("t", list(written))
            assert [each and dict(each) for each in read] == rows
        assert list(registry.versions("t-value")) == [1]

    def test_a_schema_does_not_depend_on_values(self) -> None:
        kind = pa.struct([("id", pa.int64()), pa.field("kind", pa.int32(), nullable=False)])
        assert json_text.loads(avro_schema(kind, "value", "Order")) == {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "id", "type": ["null", "long"], "default": None},
                {"name": "kind", "type": "int"},
            ],
        }

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            (pa.struct([("a", pa.duration("us"))]), "column 'value.a' is duration.us., for which"),
            (pa.struct([("a b", pa.int32())]), "column 'value.a b' has no name of Avro's"),
            (pa.map_(pa.int32(), pa.int32()), "for which there is no Avro type: cast it"),
        ],
    )
    def test_types_that_avro_does_not_have(self, kind: pa.DataType, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            avro_schema(kind, "value", "Value")


COLUMNS = [
    ({"key": pa.string()}, "t", {}, "the column 'value' is missing"),
    ({"value": pa.string()}, None, {}, "give the option 'topic' or a column 'topic'"),
    ({"value": pa.int64()}, "t", {"value": "binary"}, "'value' is int64: give value.format"),
    ({"value": pa.string(), "partition": pa.string()}, "t", {}, "'partition' is string, not int32"),
    ({"value": pa.string(), "headers": pa.string()}, "t", {}, "not an array of .key, value."),
]


@pytest.mark.parametrize(("columns", "topic", "formats", "message"), COLUMNS)
def test_columns_that_make_no_records(
    columns: dict[str, pa.DataType], topic: str | None, formats: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_columns(pa.schema(list(columns.items())), topic, formats)


OPTIONS = [
    ({}, "option 'kafka.bootstrap.servers' is missing"),
    (SERVERS | {"subscribe": "a"}, "option 'subscribe' is not one of a sink"),
    (SERVERS | {"value.format": "xml"}, "value.format: 'xml' is not one of binary, json, avro"),
    (SERVERS | {"value.schema": "{}"}, "value.schema is for value.format avro"),
    (SERVERS | {"kafka.retries": "3"}, "kafka.retries is no setting of the producer: acks,"),
    (SERVERS | {"kafka.batch.size": "many"}, "kafka.batch.size: 'many' is no value"),
    (SERVERS | {"deliveryGuarantee": "twice"}, "'twice' is neither at-least-once nor exactly"),
    (SERVERS | {"transactionalId": "a"}, "transactionalId: 'a' is for deliveryGuarantee exactly"),
    (SERVERS | {"stagingLocation": "/a"}, "stagingLocation is for deliveryGuarantee exactly"),
    (EXACTLY | {"kafka.acks": "1"}, "kafka.acks: deliveryGuarantee exactly-once leaves no choice"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_options_that_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sink_options(options)


def test_options_by_any_case_and_their_defaults() -> None:
    given = EXACTLY | {"Kafka.Linger.MS": "5", "checkpointLocation": "/c/"}
    options = parse_sink_options(given)
    assert options.producer == {"linger_ms": 5.0}
    assert options.staging == "/c/kafkalite-staging"
    assert options.transaction_timeout_ms == 900_000
    assert options.topic is None


class TestStaging:
    def numbered(self, count: int) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_pydict({"value": [str(n) for n in range(count)]})
        return records(batch, "t", {})

    @pytest.mark.parametrize("prefix", ["", "file:", "file://"])
    def test_what_is_staged_is_read_and_removed(self, tmp_path: Path, prefix: str) -> None:
        staging = Staging(f"{prefix}{tmp_path}", "name")
        batches = [self.numbered(2), self.numbered(3)]
        staged = [staging.write(n, "task", iter(batches)) for n in (9, 10, 11)]
        assert [each.rows for each in staged] == [5, 5, 5]
        assert [batch.num_rows for batch in staging.read(staged[0])] == [2, 3]
        assert all(batch.schema == RECORDS for batch in staging.read(staged[0]))
        staging.remove_up_to(10)
        assert [path.name for path in (tmp_path / "name").iterdir()] == ["11"]

    def test_batches_of_other_topics_stand_in_one_file(self, tmp_path: Path) -> None:
        staging = Staging(str(tmp_path), "name")
        rows: list[list[Row]] = [
            [("a", None, None, b"1", NOW), ("b", 2, b"k", b"2", NOW)],
            [("c", None, None, b"3", NOW), ("b", None, None, b"4", NOW)],
        ]
        batches = [records(batch_of(each), None, {}) for each in rows]
        staged = staging.write(0, "task", iter(batches))
        found = [row for batch in staging.read(staged) for row in sent(batch)]
        assert sorted(found, key=lambda row: row[3] or b"") == [*rows[0], *rows[1]]

    def test_a_task_without_rows_leaves_no_file(self, tmp_path: Path) -> None:
        assert Staging(str(tmp_path), "name").write(0, "task", iter(())) == Staged("", 0)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match=f"stagingLocation {tmp_path}/file: "):
            Staging(f"{tmp_path}/file", "name").write(0, "task", iter([self.numbered(1)]))


LIGHT = """
import sys
from pyspark.sql.types import StringType, StructField, StructType
from kafkalite.spark.sink.writers import StreamWriter
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "value.format": "json"}
StreamWriter(options, StructType([StructField("value", StringType())]))
print([name for name in sys.argv[1:] if name in sys.modules])
"""
HEAVY = ["asyncio", "pandas", "pyarrow.compute", "pyarrow.fs", "kafkalite.serde"]


def test_a_writer_imports_what_writes_when_there_are_rows() -> None:
    """Spark makes writers in processes of the driver, too, where a query waits for each."""
    command = [sys.executable, "-c", LIGHT, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
