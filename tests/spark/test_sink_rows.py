"""Rows of Spark as records, without Spark: columns, formats, options; staged files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.errors import ConfigError, StorageError
from kafkalite.serde import SerdeContext, json
from kafkalite.spark.sink.options import parse_sink_options
from kafkalite.spark.sink.rows import HEADERS, RECORDS, by_topic, check_columns, records_of
from kafkalite.spark.sink.staging import Staged, Staging

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


def in_order(rows: list[Row]) -> list[Row]:
    """By topic and whether a partition was chosen; within them as they came."""
    return sorted(rows, key=lambda row: (row[0], row[1] is None))


class TestRecords:
    @given(rows=ROWS, skipped=st.integers(0, 9))
    def test_every_row_becomes_its_record(self, rows: list[Row], skipped: int) -> None:
        batch = batch_of(rows).slice(skipped)  # arrays that begin within their buffers
        made = sent(records_of(batch, None, {}, NOW))
        assert in_order(made) == in_order(rows[skipped:])

    def test_a_batch_of_values_alone(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": ["x", None, "z"]})
        ((topic, columns, partitions),) = by_topic(records_of(batch, "t", {}, NOW))
        assert (topic, partitions) == ("t", None)
        assert list(columns.values) == [b"x", None, b"z"]
        assert list(columns.keys) == [None] * 3
        assert list(columns.timestamps) == [NOW] * 3
        assert columns.headers is None

    def test_the_option_goes_before_the_column(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": ["x"], "topic": ["column"]})
        assert [row[0] for row in sent(records_of(batch, "option", {}, NOW))] == ["option"]

    def test_headers_and_timestamps_with_nulls(self) -> None:
        headers = pa.array([[("a", b"1"), ("a", None)], None], HEADERS)
        times = pa.array([datetime(2020, 1, 1, tzinfo=UTC), None], pa.timestamp("us", tz="UTC"))
        batch = pa.RecordBatch.from_arrays(
            [pa.array(["x", "y"]), headers, times], ["value", "headers", "timestamp"]
        )
        ((_, columns, _),) = by_topic(records_of(batch, "t", {}, NOW))
        assert columns.headers == [(("a", b"1"), ("a", None)), ()]
        assert list(columns.timestamps) == [1_577_836_800_000, NOW]

    def test_structs_are_written_by_their_format(self) -> None:
        values = pa.array([{"id": number} for number in range(300)])
        batch = pa.RecordBatch.from_arrays([values], ["value"])
        codecs = {"value": json().open(SerdeContext())}
        ((_, columns, _),) = by_topic(records_of(batch, "t", codecs, NOW))
        assert list(columns.values) == [b'{"id":%d}' % number for number in range(300)]

    def test_a_row_without_a_topic(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": ["x", "y"], "topic": ["a", None]})
        with pytest.raises(ConfigError, match="its column 'topic' is null"):
            records_of(batch, None, {}, NOW)


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
    def records(self, count: int) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_pydict({"value": [str(n) for n in range(count)]})
        return records_of(batch, "t", {}, NOW)

    @pytest.mark.parametrize("prefix", ["", "file:", "file://"])
    def test_what_is_staged_is_read_and_removed(self, tmp_path: Path, prefix: str) -> None:
        staging = Staging(f"{prefix}{tmp_path}", "name")
        staged = [
            staging.write(n, "task", iter([self.records(2), self.records(3)])) for n in (9, 10, 11)
        ]
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
        batches = [records_of(batch_of(each), None, {}, NOW) for each in rows]
        staged = staging.write(0, "task", iter(batches))
        found = [row for batch in staging.read(staged) for row in sent(batch)]
        assert sorted(found, key=lambda row: row[3] or b"") == [*rows[0], *rows[1]]

    def test_a_task_without_rows_leaves_no_file(self, tmp_path: Path) -> None:
        assert Staging(str(tmp_path), "name").write(0, "task", iter(())) == Staged("", 0)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match=f"stagingLocation {tmp_path}/file: "):
            Staging(f"{tmp_path}/file", "name").write(0, "task", iter([self.records(1)]))
