"""Where a query begins, where its next batch ends, and how ranges become Spark's partitions."""

from __future__ import annotations

import pytest

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.spark.options import Times
from kafkalite.spark.source.planning import Bounds, next_end, planned, resolved, times_of

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BOUNDS = Bounds({A: 5, B: 0}, {A: 100, B: 10})


def test_a_place_becomes_offsets() -> None:
    def at(place: object, found: dict[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        return resolved(place, BOUNDS, found, "startingOffsets", latest_if_none=False)  # type: ignore[arg-type]

    assert at("earliest", {}) == {A: 5, B: 0}
    assert at("latest", {}) == {A: 100, B: 10}
    assert at({A: -2, B: -1}, {}) == {A: 5, B: 10}
    assert at(Times(7), {A: 40, B: 3}) == {A: 40, B: 3}
    with pytest.raises(ConfigError, match="startingOffsets does not name t-1"):
        at({A: 7}, {})


def test_moments_are_of_all_partitions_or_of_each() -> None:
    assert times_of("latest", [A, B], "x") == {}
    assert times_of(Times(7), [A, B], "x") == {A: 7, B: 7}
    assert times_of(Times(each={A: 7, B: 8}), [A, B], "x") == {A: 7, B: 8}
    with pytest.raises(ConfigError, match="does not name t-1$"):
        times_of(Times(each={A: 7}), [A, B], "startingOffsetsByTimestamp")


def test_a_moment_after_the_last_record_is_an_error_or_the_end() -> None:
    found = {A: 40, B: None}
    with pytest.raises(ConfigError, match="startingTimestamp: t-1 has no record at or after"):
        resolved(Times(7), BOUNDS, found, "startingTimestamp", latest_if_none=False)
    at = resolved(Times(7), BOUNDS, found, "endingTimestamp", latest_if_none=True)
    assert at == {A: 40, B: 10}


def test_a_batch_waits_for_enough_records_or_until_it_is_due() -> None:
    start, end = {A: 90, B: 10}, {A: 100, B: 10}

    def then(least: int | None, most: int | None, is_due: bool) -> object:
        return next_end(start, end, records_min=least, records_max=most, is_due=is_due)

    assert then(11, None, False) is None
    assert then(11, None, True) == end
    assert then(10, 4, False) == {A: 94, B: 10}
    assert then(None, None, False) == end


def test_a_log_that_became_shorter_gives_nothing_and_a_new_partition_is_read_from_its_start() -> (
    None
):
    assert next_end(
        {A: 200}, {A: 100, B: 10}, records_min=None, records_max=None, is_due=False
    ) == {A: 200, B: 10}


def lengths(partitions_min: int | None, records_max: int | None) -> list[tuple[int, int, int]]:
    ranges = planned(
        BOUNDS.first, BOUNDS.end, partitions_min=partitions_min, records_max=records_max
    )
    return [(r.partition, r.start, r.end) for r in ranges]


def test_a_spark_partition_is_a_range_unless_more_are_wanted() -> None:
    assert lengths(None, None) == [(0, 5, 100), (1, 0, 10)]
    assert lengths(2, None) == [(0, 5, 100), (1, 0, 10)]


def test_large_ranges_are_divided_in_proportion() -> None:
    divided = lengths(5, None)
    assert [p for p, _, _ in divided] == [0, 0, 0, 0, 0, 1]
    assert divided[0][1] == 5
    assert divided[4][2] == 100
    assert [end for _, _, end in divided[:4]] == [start for _, start, _ in divided[1:5]]


def test_no_range_is_longer_than_asked_and_none_is_empty() -> None:
    divided = lengths(None, 30)
    assert max(end - start for _, start, end in divided) <= 30
    assert sum(end - start for _, start, end in divided) == 105
    assert min(end - start for _, start, end in lengths(1_000, None)) == 1
