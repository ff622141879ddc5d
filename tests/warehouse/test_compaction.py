"""Compaction of every kind of table: no row changes, wherever it breaks off."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from keyed_log import Change, ChangeTopic
from killed import loading
from memory_log import MemoryTopic
from test_loads import broken_off_after, expected, ids, rows_of

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.errors import StorageError
from kafkalite.warehouse.compaction import Compaction
from kafkalite.warehouse.delta_table import DeltaTarget
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.iceberg_table import IcebergTarget
from kafkalite.warehouse.load import Layout, Load, Source
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.reading import Reading
from kafkalite.warehouse.rewritable import rewritable
from kafkalite.warehouse.sorted_runs import times_of
from kafkalite.warehouse.target import Target
from kafkalite.warehouse.workspace import Workspace
from kafkalite.warehouse.writing import Read, ReadRange

Make = Callable[[Path], Target]
SMALL = Layout(file_bytes=1_000)  # ten records
BIG = Layout()
FIELDS = ("id", *(f"field{number}" for number in range(9)))  # so that rows outweigh footers
DAY_S = 24 * 3_600
SHOPS = ("a/b", "50 % & more", None)


@pytest.fixture(params=[ParquetTable, DeltaTarget, IcebergTarget])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


class Shops(MemoryTopic):
    """A topic whose rows have a field `shop`, null in some."""

    def columns(self, reading: Reading) -> pa.Schema:
        return super().columns(reading).append(pa.field("shop", pa.string()))

    def rows(self, reading: Reading) -> ReadRange:
        read = super().rows(reading)

        def with_shops(wanted: OffsetRange) -> Iterator[Read]:
            for part in read(wanted):
                shops = [SHOPS[number % 3] for number in part.rows["id"].to_pylist()]
                yield Read(part.rows.append_column("shop", pa.array(shops, pa.string())))

        return with_shops


def load(make: Make, table: Path, topic: Source, layout: Layout = SMALL) -> Load:
    dead = make(table.with_name(f"{table.name}_dead"))
    return Load(topic, make(table), dead, LocalEngine(), layout)


def compaction(table: Path, token: str = "c", **more: Any) -> Compaction:
    now_ms = int(time.time() * 1000)
    return Compaction(rewritable(table, now_ms), token, now_ms, **more)


def data_files(table: Path) -> list[Path]:
    return [table / file.path for file in rewritable(table, 0).data_files()]


def test_small_files_become_one_that_is_sorted(make: Make, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 35, 1: 12})
    load(make, table, topic).run()
    before = sorted(map(str, rows_of(table)))
    done = compaction(table).run()
    assert (done.merged, done.made, done.rows) == (6, 1, 47)
    (file,) = data_files(table)
    times = pq.read_table(file)["_timestamp"].to_pylist()
    assert times == sorted(times)
    assert sorted(map(str, rows_of(table))) == before
    assert compaction(table).run().merged == 0
    assert load(make, table, topic).run().records == 0, "the table knows its offsets"
    topic.ends = {0: 41, 1: 12}
    assert load(make, table, topic).run().records == 6
    assert compaction(table, "d").run().merged == 2
    assert ids(table) == expected(topic.ends)


@pytest.mark.parametrize("by", ["day", "hour", "month", "shop"])
def test_files_are_merged_within_their_folders(make: Make, tmp_path: Path, by: str) -> None:
    table, topic = tmp_path / "orders", Shops({0: 30})
    load(make, table, topic, replace(SMALL, partition_by=by)).run()
    before, folders = sorted(map(str, rows_of(table))), {f.parent for f in data_files(table)}
    compaction(table).run()
    after = data_files(table)
    assert {file.parent for file in after} == folders
    assert len(after) == len(folders)
    assert sorted(map(str, rows_of(table))) == before
    topic.ends = {0: 60}
    load(make, table, topic).run()
    compaction(table, "d").run()
    assert ids(table) == list(range(60))


def test_files_have_equal_sizes_and_their_times_do_not_overlap(make: Make, tmp_path: Path) -> None:
    table = tmp_path / "orders"
    load(make, table, MemoryTopic({0: 400})).run()
    size = sum(file.stat().st_size for file in data_files(table))
    target = size // 16
    compaction(table, file_bytes=target).run()
    files = data_files(table)
    sizes = sorted(file.stat().st_size for file in files)
    assert len(files) > 2
    assert sizes[1] >= target // 2, "one file may be small"
    assert sizes[-1] <= target * 3 // 2
    bounds = sorted(times_of(pq.read_metadata(file)) or (0, 0) for file in files)
    assert all(one[1] <= other[0] for one, other in pairwise(bounds))


def test_files_of_different_columns_stay_apart(make: Make, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 20}, fields=("id", "gone"))
    load(make, table, topic).run()
    topic.ends, topic.fields = {0: 40}, ("id", "new")
    load(make, table, topic).run()
    columns = make(table).columns()
    compaction(table).run()
    assert make(table).columns() == columns
    names = [set(pq.read_schema(file).names) & {"gone", "new"} for file in data_files(table)]
    assert sorted(map(sorted, names)) == [["gone"], ["new"]]
    assert ids(table) == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(1, 11))
def test_a_compaction_that_breaks_off_after_any_step_changes_no_row(
    make: Make, tmp_path: Path, steps: int
) -> None:
    """Nor does a load that breaks off before or after it."""
    table, topic = tmp_path / "orders", MemoryTopic({0: 15, 1: 2})
    layout = replace(SMALL, partition_by="day" if steps % 2 and make is ParquetTable else None)
    load(make, table, topic, layout).run()
    topic.ends = {0: 23, 1: 5}
    broken_off_after(load(make, table, topic, layout), steps % 9 + 1)
    held = ids(table)
    name = broken_off_after(compaction(table), steps)
    assert ids(table) == held, f"broken off after {name}"
    if steps % 3:
        compaction(table, "d").run()
        assert ids(table) == held, f"broken off after {name}"
    topic.ends = {0: 26, 1: 5}
    load(make, table, topic).run()
    compaction(table, "e").run()
    assert ids(table) == expected(topic.ends), f"broken off after {name}"


def test_a_compaction_and_a_load_wait_for_each_other(make: Make, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 25})
    load(make, table, topic).run()
    running = compaction(table).steps()
    assert next(running) == "locked"
    with pytest.raises(StorageError, match=r"orders is held by a compaction: process \d+ on"):
        load(make, table, topic).run()
    running.close()
    topic.ends = {0: 30}
    other = load(make, table, topic).steps()
    next(other)
    with pytest.raises(StorageError, match=r"orders is held by a load: process \d+ on"):
        compaction(table).run()


# Not with Parquet's manifest, which needs the lock.
@pytest.mark.parametrize("make", [DeltaTarget, IcebergTarget], indirect=True)
def test_of_a_compaction_and_a_writer_without_the_lock_one_commits(
    make: Make, tmp_path: Path
) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 25})
    load(make, table, topic).run()
    slow = compaction(table).steps()
    target = rewritable(table, 0)
    while not next(slow).startswith("published"):
        pass
    (table / "_kafkalite" / "lock").rename(table / "_kafkalite" / "lock-of-another-machine")
    topic.ends = {0: 30}
    load(make, table, topic).run()
    assert target.data_files()
    with pytest.raises(StorageError, match="another writer was first"):
        list(slow)
    assert ids(table) == list(range(30))
    compaction(table, "d").run()
    assert ids(table) == list(range(30))


def test_old_files_go_after_a_time(make: Make, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 25})
    load(make, table, topic).run()
    offsets = make(table).offsets()
    old = data_files(table)
    (table / "left-by-a-crash.parquet").write_bytes(old[0].read_bytes())
    if isinstance(make(table), ParquetTable):
        (table / "left-by-a-crash.parquet").unlink()  # no crash leaves any
    assert compaction(table).run().removed == 0
    assert all(file.exists() for file in old) or isinstance(make(table), ParquetTable)
    assert compaction(table, keep_ms=0).run().removed >= 1
    everything = [*tmp_path.rglob("*.parquet")]
    assert [file for file in everything if "orders" in file.parts] == data_files(table)
    assert make(table).offsets() == offsets
    assert ids(table) == list(range(25))
    topic.ends = {0: 33}
    assert load(make, table, topic).run().records == 8


def test_files_stay_for_keep_however_old_they_are(make: Make, tmp_path: Path) -> None:
    """Also where Delta's checkpoints would forget after a week which files left the table."""
    table, topic = tmp_path / "orders", MemoryTopic({0: 25})
    load(make, table, topic).run()
    now_ms = int(time.time() * 1000)
    for file in table.rglob("*.parquet"):
        os.utime(file, (now_ms / 1000 - 60 * DAY_S,) * 2)
    files = {file.stat().st_ino for file in data_files(table)}

    def there() -> set[int]:
        return files & {file.stat().st_ino for file in tmp_path.rglob("*.parquet")}

    before_ms = now_ms - (8 * DAY_S * 1000 if make is DeltaTarget else 0)  # others take the time
    merging = Compaction(rewritable(table, before_ms), "c", before_ms, keep_ms=30 * DAY_S * 1000)
    assert merging.run().merged == len(files)
    if make is DeltaTarget:
        DeltaTable(str(table)).create_checkpoint()
    assert compaction(table, "d", keep_ms=30 * DAY_S * 1000).run().removed == 0
    assert there() == files
    assert compaction(table, "e", keep_ms=0).run().removed
    assert not there()


def test_files_of_a_load_that_broke_off_stay(make: Make, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 25})
    load(make, table, topic).run()
    topic.ends = {0: 40}
    running = load(make, table, topic).steps()
    while not next(running).startswith(("published", "version filled")):
        pass
    running.close()
    done = compaction(table, keep_ms=0).run()
    assert (done.is_kept, done.removed) == (True, 0)
    assert load(make, table, topic).run().records == 15
    assert ids(table) == list(range(40))
    assert not compaction(table, "d", keep_ms=0).run().is_kept
    assert Workspace(table).plan() is None


def test_many_files_are_merged_in_groups_and_then_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalite.warehouse.compaction.ROW_GROUPS_MAX", 5)
    table, topic = tmp_path / "orders", MemoryTopic({0: 230})
    load(ParquetTable, table, topic).run()
    names = list(compaction(table).steps())
    assert [name.count("merged") for name in names].count(1) > 5
    assert names.count("replaced") == 2
    assert len(data_files(table)) == 1
    assert ids(table) == list(range(230))


def test_files_that_a_new_type_has_rewritten_are_merged(make: Make, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 25}, kind=pa.int32())
    load(make, table, topic).run()
    topic.ends, topic.kind = {0: 40}, pa.int64()
    load(make, table, topic).run()
    assert compaction(table).run().made == 1
    (file,) = data_files(table)
    assert pq.read_schema(file).field("id").type == pa.int64()
    assert ids(table) == list(range(40))
    topic.ends = {0: 45}
    assert load(make, table, topic).run().records == 5


# Not a Parquet table, which has a row for each record.
@pytest.mark.parametrize("make", [DeltaTarget, IcebergTarget], indirect=True)
def test_a_table_that_is_updated_is_merged_between_its_updates(make: Make, tmp_path: Path) -> None:
    table, random, topic = tmp_path / "orders", Random(3), ChangeTopic()
    for token in range(5):
        topic.add(0, *(Change(f"k{random.randrange(30)}", f"{token}-{n}") for n in range(25)))
        update = load(make, table, topic)
        update.updates = True
        update.run()
        compaction(table, str(token), keep_ms=0).run()
        assert len(data_files(table)) == 1
        last = {change.key: change.value for change in topic.logs[0]}
        assert {row["key"]: row["value"] for row in rows_of(table)} == last
        assert len(rows_of(table)) == len(last)


@pytest.mark.slow
def test_merges_after_loads_write_a_row_a_few_times(tmp_path: Path) -> None:
    """Not once for each merge: that would be 8 times on average here."""
    table, written = tmp_path / "orders", 0
    for token in range(16):
        load(ParquetTable, table, MemoryTopic({0: 600 * (token + 1)}, fields=FIELDS), BIG).run()
        written += compaction(table, str(token), is_lazy=True).run().rows
    assert written < 16 * 600 * 5
    assert len(data_files(table)) <= 6
    compaction(table, "end").run()
    assert len(data_files(table)) == 1
    assert ids(table) == list(range(16 * 600))


def test_a_lock_holds_other_processes_off(make: Make, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", MemoryTopic({0: 5})
    with Workspace(table).locked("compaction"):
        other = loading(make, table, topic, SMALL, 0, 10**9)
        other.join(100)
    assert other.exitcode == 1, "the process ends with an error"
    assert make(table).offsets() == {}
    load(make, table, topic).run()
    assert ids(table) == list(range(5))
