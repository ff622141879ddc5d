"""Rows of the source and of the warehouse: what does not fit is named by its place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kafkalite.columnar.column_types import TIMESTAMP
from kafkalite.columnar.decoding import Decoder
from kafkalite.columnar.formats import Binary
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.columnar.rows import Rows
from kafkalite.columnar.source_rows import _repeated, arrow_schema, flattened, source_batch
from kafkalite.core.types import Columns
from kafkalite.errors import ApiError, ConfigError, KafkaliteError, SchemaError, StorageError
from kafkalite.spark.failures import failure_in
from kafkalite.warehouse.partitioning import file_name
from kafkalite.warehouse.tables import TopicLoad


def test_a_timestamp_that_is_no_column_value_is_named_by_its_offset() -> None:
    columns = Columns([None] * 3, [b"v"] * 3, [0, 1_700_000_000_000_000_000, 0], [7, 8, 9])
    decoded = Decoder(Binary(), Binary()).decode(Rows("t", 2, columns))
    with pytest.raises(KafkaliteError, match=r"t-2 offset 8: timestamp 17\d+ is no timestamp"):
        source_batch(decoded, arrow_schema("binary", pa.binary()))


def value_with(*names: str) -> pa.RecordBatch:
    origin = {
        "key": pa.array([b"k"]),
        "topic": pa.array(["t"]),
        "partition": pa.array([0], pa.int32()),
        "offset": pa.array([0]),
        "timestamp": pa.array([0], TIMESTAMP),
    }
    return pa.RecordBatch.from_pydict({"value": [dict.fromkeys(names, 1)], **origin})


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["key"], "field 'key' has the name of our column key"),
        (["Key"], "field 'Key' has the name of our column key"),
        (["_OFFSET"], "field '_OFFSET' has the name of our column _offset"),
        (["id", "ID"], "fields 'id' and 'ID', one name in SQL"),
    ],
)
def test_two_columns_of_one_name_are_refused(names: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        flattened(value_with(*names))


def test_columns_that_sql_can_tell_apart_stand_side_by_side() -> None:
    row = flattened(value_with("id", "offset"))
    assert row.schema.names == [
        "id", "offset", "key", "_topic", "_partition", "_offset", "_timestamp",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "table"),
    [
        ("delays-by.origin", "delays_by_origin"),
        ("_events", "topic_events"),
        ("..x", "topic_x"),
        ("2024-orders", "topic_2024_orders"),
        ("1e5", "topic_1e5"),
    ],
)
def test_a_table_has_a_name_that_sql_and_readers_of_parquet_take(topic: str, table: str) -> None:
    assert TopicLoad(topic).table == table
    assert file_name(OffsetRange(topic, 0, 1, 2))[0] not in "._"


def test_a_format_that_is_none_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"key\.format: 'text' is not one of"):
        TopicLoad("t", key_format="text")
    with pytest.raises(ConfigError, match=r"value\.format: 'xml' is not one of"):
        TopicLoad("t", value_format="xml")


@pytest.mark.parametrize(
    ("last", "kind", "message"),
    [
        ("kafkalite.errors.SchemaError: subject 'x' is unknown", SchemaError, "subject 'x' is"),
        ("kafkalite.errors.ApiError: t: INVALID_TOPIC", KafkaliteError, "t: INVALID_TOPIC"),
        (
            "OSError: [Errno 28] No space left on device",
            StorageError,
            "wh/t: No space left on device",
        ),
    ],
)
def test_what_a_worker_failed_with_is_found_in_its_traceback(
    last: str, kind: type[KafkaliteError], message: str
) -> None:
    text = f"An exception was thrown:\nTraceback (most recent call last):\n  File x\n{last}\n"
    found = failure_in(f"{text} SQLSTATE: 38000", "wh/t")
    assert isinstance(found, kind)
    assert not isinstance(found, ApiError)
    assert str(found).startswith(message)


def test_a_fault_of_our_own_keeps_its_traceback() -> None:
    assert failure_in("Traceback (most recent call last):\nTypeError: no", "wh/t") is None


def test_columns_of_one_value_are_kept_for_the_next_batch() -> None:
    first, again = (_repeated("topic", pa.string(), count) for count in (600, 1_000))
    assert again.to_pylist() == ["topic"] * 1_000
    assert first.buffers()[2].address == again.buffers()[2].address
    assert _repeated("topic", pa.string(), 0).to_pylist() == []
    assert _repeated(-1, pa.int32(), 1).to_pylist() == [-1]
