"""What filters of Spark save: partitions, offsets, moments, rows. Never a row that passes."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from kafkalite.core.types import TopicPartition
from kafkalite.spark.source.pruning import pushed

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
START, END = {A0: 5, A1: 0, B0: 10}, {A0: 100, A1: 50, B0: 10}
AT = datetime(2024, 1, 1, tzinfo=UTC)
AT_MS = 1_704_067_200_000


def ranges(*filters: Filter) -> dict[TopicPartition, tuple[int, int]]:
    pruning, rest = pushed(filters)
    assert rest == []
    start, end = pruning.cut(START, END)
    return {tp: (start[tp], end[tp]) for tp in end}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("partition",), 1)], {A1: (0, 50)}),
        ([In(("partition",), (1, 7))], {A1: (0, 50)}),
        ([GreaterThan(("partition",), 0), IsNotNull(("partition",))], {A1: (0, 50)}),
        ([EqualTo(("topic",), "b")], {B0: (10, 10)}),
        ([StringStartsWith(("topic",), "b")], {B0: (10, 10)}),
        (
            [GreaterThanOrEqual(("offset",), 40), LessThan(("offset",), 60)],
            {A0: (40, 60), A1: (40, 50), B0: (40, 40)},
        ),
        (
            [GreaterThan(("offset",), 40), LessThanOrEqual(("offset",), 60)],
            {A0: (41, 61), A1: (41, 50), B0: (41, 41)},
        ),
        ([EqualTo(("offset",), 7), EqualTo(("partition",), 0)], {A0: (7, 8), B0: (10, 10)}),
        ([EqualTo(("offset",), 7), EqualTo(("offset",), 9)], {tp: (max(9, s), max(9, s))
          for tp, s in START.items()}),
    ],
)  # fmt: skip
def test_places_are_cut_exactly(
    filters: list[Filter], expected: dict[TopicPartition, tuple[int, int]]
) -> None:
    assert ranges(*filters) == expected


@pytest.mark.parametrize(
    "filter_",
    [
        In(("offset",), (1, 90)),
        Not(EqualTo(("partition",), 1)),
        EqualTo(("partition",), "1"),
        EqualTo(("value", "partition"), 1),
    ],
)
def test_a_filter_that_is_not_known_is_left_to_spark(filter_: Filter) -> None:
    pruning, rest = pushed([filter_])
    assert rest == [filter_]
    assert pruning.cut(START, END) == (START, END)


def test_a_moment_is_where_reading_begins_and_spark_filters_again() -> None:
    def first(filter_: Filter) -> int | None:
        pruning, rest = pushed([filter_])
        assert rest == [filter_]
        return pruning.from_ms

    half = AT.replace(microsecond=500)
    assert first(GreaterThanOrEqual(("timestamp",), AT)) == AT_MS
    assert first(GreaterThanOrEqual(("timestamp",), half)) == AT_MS + 1
    assert first(GreaterThan(("timestamp",), AT)) == AT_MS + 1
    assert first(GreaterThan(("timestamp",), half)) == AT_MS + 1
    assert first(EqualTo(("timestamp",), AT)) == AT_MS
    assert first(LessThan(("timestamp",), AT)) is None


ROWS = pa.RecordBatch.from_pylist(
    [
        {"key": "x", "value": {"id": 1, "price": float("nan"), "tag": None}},
        {"key": "y", "value": {"id": 2, "price": 1.0, "tag": b"t"}},
        {"key": "y", "value": None},
    ],
    pa.schema(
        [
            ("key", pa.string()),
            ("value", pa.struct({"id": pa.int32(), "price": pa.float64(), "tag": pa.binary()})),
        ]
    ),
)


@pytest.mark.parametrize(
    ("filter_", "kept"),
    [
        (EqualTo(("key",), "y"), [1, 2]),
        (EqualTo(("value", "id"), 2), [1]),
        (LessThanOrEqual(("value", "id"), 2), [0, 1]),
        (In(("value", "id"), (1, 5)), [0]),
        (IsNotNull(("value", "tag")), [1]),
        (EqualTo(("value", "tag"), b"t"), [1]),
        (GreaterThan(("value", "price"), 5.0), [0, 1, 2]),  # NaN is more in Spark, not in Arrow
        (EqualTo(("value", "id"), 2**40), [0, 1, 2]),  # no value of the column's type
        (EqualTo(("value", "id"), "2"), [0, 1, 2]),
        (EqualTo(("value", "gone"), 2), [0, 1, 2]),
        (Not(EqualTo(("value", "id"), 2)), [0, 1, 2]),
    ],
)
def test_rows_are_left_out_where_arrow_and_spark_agree(filter_: Filter, kept: list[int]) -> None:
    pruning, rest = pushed([filter_])
    assert rest == [filter_]
    assert pruning.passing(ROWS).to_pylist()[0]["key"] == ("x" if kept[0] == 0 else "y")
    assert pruning.passing(ROWS).num_rows == len(kept)
