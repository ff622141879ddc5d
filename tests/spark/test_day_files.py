"""Rows into a file for each day: all of them, and few of them in memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.spark import day_files
from kafkalite.spark.day_files import NO_DAY, DayFile, RangeWriter, by_day

DAY_US = 86_400_000_000


def batch(first: int, count: int, days: int = 10) -> pa.RecordBatch:
    """Records `first` to `first + count`, over ten days (or `days`) in turn."""
    numbers = list(range(first, first + count))
    return pa.RecordBatch.from_pydict(
        {
            "key": [None] * count,
            "value": numbers,
            "topic": ["t"] * count,
            "partition": [0] * count,
            "offset": numbers,
            "timestamp": pa.array([n % days * DAY_US for n in numbers], pa.timestamp("us", "UTC")),
        }
    )


def test_a_moment_in_no_year_that_has_dates_is_of_no_day() -> None:
    moments = [0, 253_402_300_800_000_000, DAY_US, -62_135_596_800_000_001, -1, 2**63 - 1]
    rows = pa.RecordBatch.from_pydict({"_timestamp": pa.array(moments, pa.timestamp("us", "UTC"))})
    found = {day: own.num_rows for day, own in by_day(rows)}
    assert found == {"1970-01-01": 1, NO_DAY: 3, "1970-01-02": 1, "1969-12-31": 1}


def test_a_range_of_more_days_than_files_may_be_open_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_files, "WRITE_ROWS_MAX", 10)
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 16, most))
    try:
        writer = RangeWriter(tmp_path, (OffsetRange("t", 0, 0, 1_000),))
        (told,) = writer(batch(first, 100, days=100) for first in range(0, 300, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    assert told.column("records").to_pylist() == [3] * 100
    assert pq.ParquetFile(told.column("file")[0].as_py()).read().num_rows == 3


def test_a_range_over_many_days_is_written_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_files, "WRITE_ROWS_MAX", 100)
    made: list[DayFile] = []
    most = 0

    class Watched(DayFile):
        def __init__(self, path: Path, schema: pa.Schema) -> None:
            super().__init__(path, schema)
            made.append(self)

        def add(self, rows: pa.RecordBatch) -> None:
            nonlocal most
            super().add(rows)
            most = max(most, sum(file.rows_waiting for file in made))

    monkeypatch.setattr(day_files, "DayFile", Watched)
    writer = RangeWriter(tmp_path, (OffsetRange("t", 0, 0, 1_000),))
    (told,) = writer(batch(first, 30) for first in range(0, 990, 30))
    assert most < 100 + 30
    assert sum(told.column("records").to_pylist()) == 990
    found = [
        pq.ParquetFile(path).read().column("value") for path in told.column("file").to_pylist()
    ]
    assert sorted(n.as_py() for column in found for n in column) == list(range(990))
    assert not list(tmp_path.rglob("*.tmp"))
