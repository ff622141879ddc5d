"""Files merged in order of time: what comes out, what statistics prune, what stays in memory."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kafkalite.warehouse import sorted_runs
from kafkalite.warehouse.sorted_runs import (
    SortedFiles,
    is_sorted,
    merged,
    runs_of,
    times_of,
)

US = pa.timestamp("us", "UTC")


def write(path: Path, times: list[int], *, rows: int = 1_000, padding: int = 0) -> Path:
    columns = {
        "_timestamp": pa.array(times, US),
        "id": pa.array(times, pa.int64()),
        "text": pa.array(["x" * padding] * len(times)),
    }
    pq.write_table(pa.table(columns), path, row_group_size=rows, use_dictionary=False)
    return path


def merge(paths: list[Path], folder: Path, **more: Any) -> list[int]:
    return [t for part in merged(runs_of(paths, folder), **more) for t in part["id"].to_pylist()]


@pytest.mark.parametrize("seed", range(20))
def test_all_rows_come_in_order_of_their_times(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    paths, every = [], []
    for number in range(random.randrange(1, 9)):
        first, width = random.randrange(5_000), random.choice((1, 50, 5_000))
        times = [first + random.randrange(width) for _ in range(random.randrange(1, 3_000))]
        if random.random() < 0.7:
            times.sort()
        every += times
        path = tmp_path / f"{number}.parquet"
        paths.append(write(path, times, rows=random.choice((100, 1_000))))
    assert merge(paths, tmp_path, memory=random.choice((1, 1 << 20))) == sorted(every)


def test_a_file_is_sorted_or_each_of_its_row_groups_becomes_a_run(tmp_path: Path) -> None:
    rising = write(tmp_path / "rising", [1, 2, 2, 5])
    mixed = write(tmp_path / "mixed", [3, 4, 1, 2], rows=2)
    assert (is_sorted(rising), is_sorted(mixed)) == (True, False)
    assert [(run.path.name, run.first) for run in runs_of([mixed, rising], tmp_path)] == [
        ("run-0-1.parquet", 1),
        ("rising", 1),
        ("run-0-0.parquet", 3),
    ]


def test_a_file_without_times_has_no_bounds(tmp_path: Path) -> None:
    for name, table in (
        ("none", pa.table({"id": [1]})),
        ("null", pa.table({"_timestamp": pa.array([1, None], US)})),
        ("empty", pa.table({"_timestamp": pa.array([], US)})),
    ):
        pq.write_table(table, tmp_path / name)
        assert times_of(pq.read_metadata(tmp_path / name)) is None, name
    far = write(tmp_path / "far", [-(2**62), 2**62])  # times that have no date in Python
    assert times_of(pq.read_metadata(far)) == (-(2**62), 2**62)


def test_statistics_of_row_groups_prune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "ROW_GROUP_ROWS", 1_000)
    paths = [
        write(tmp_path / f"{n}.parquet", list(range(n, 20_000, 10)), rows=500) for n in range(10)
    ]
    wanted = (ds.field("id") >= 7_500) & (ds.field("id") < 7_600)
    before = [g for p in paths for g in groups(p, wanted)]
    out = SortedFiles(tmp_path, "out", 10_000)
    for rows in merged(runs_of(paths, tmp_path)):
        out.add(rows)
    out.close()
    assert [pq.read_metadata(path).num_rows for path in out.paths] == [10_000, 10_000]
    after = [g for path in out.paths for g in groups(path, wanted)]
    assert (len(before), len(after)) == (10, 1)
    order = pq.read_metadata(out.paths[0]).row_group(0).sorting_columns
    assert [(each.column_index, each.descending) for each in order] == [(0, False)]


def groups(path: Path, wanted: ds.Expression) -> list[ds.Fragment]:
    """The row groups of a file that a reader with this filter reads."""
    (fragment,) = ds.dataset(path).get_fragments()
    return list(fragment.split_by_row_group(wanted))


def test_memory_holds_a_few_batches_and_not_the_table(tmp_path: Path) -> None:
    """Files that overlap in time entirely, the worst case."""
    rows, files, padding = 20_000, 6, 1_000
    paths = [
        write(tmp_path / f"{n}.parquet", list(range(n, rows * files, files)), padding=padding)
        for n in range(files)
    ]
    before = pa.total_allocated_bytes()
    most = count = 0
    for part in merged(runs_of(paths, tmp_path), memory=1):
        count += part.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == rows * files
    # A run needs a batch of 1,024 rows, what the reader has decoded, and what the merge sorts.
    assert most < files * 1_024 * padding * 8 < rows * files * padding / 2
