"""Loads of every kind of table: each record once, whatever breaks off and whenever."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from killed import is_killed_after
from memory_log import MemoryTopic

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, SerdeError, StorageError
from kafkalite.warehouse.compaction import Compaction
from kafkalite.warehouse.delta_table import DeltaTarget
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.iceberg_table import IcebergTarget
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.partitioning import Partitioning
from kafkalite.warehouse.target import Epoch, Target
from kafkalite.warehouse.workspace import Workspace

Make = Callable[[Path], Target]
SMALL = Layout(file_bytes=1_000)  # ten records


def rows_of(table: Path) -> list[dict[str, Any]]:
    """The rows as a reader sees them who knows nothing of loads."""
    if DeltaTable.is_deltatable(str(table)):
        rows = DeltaTable(str(table)).to_pyarrow_table()
    elif (table.parent / "iceberg.db").exists():
        found = IcebergTarget(table)._open()
        rows = pa.table({}) if found is None else found.scan().to_arrow()
    elif not any(table.glob("**/[!_]*.parquet")):
        return []
    else:
        rows = ds.dataset(table, format="parquet").to_table()
    made: list[dict[str, Any]] = rows.to_pylist()
    return made


def ids(table: Path) -> list[int]:
    return sorted(row["id"] for row in rows_of(table))


def expected(ends: dict[int, int], first: dict[int, int] | None = None) -> list[int]:
    starts = first or {}
    return sorted(
        p * 1_000_000 + o for p, end in ends.items() for o in range(starts.get(p, 0), end)
    )


@pytest.fixture(params=[ParquetTable, DeltaTarget, IcebergTarget])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
def load(make: Make, tmp_path: Path) -> Callable[..., Load]:
    def of(topic: MemoryTopic, layout: Layout = SMALL) -> Load:
        dead = make(tmp_path / "orders_dead_letters")
        return Load(topic, make(tmp_path / "orders"), dead, LocalEngine(), layout)

    return of


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


LoadOf = Callable[..., Load]


def test_each_load_adds_what_is_new(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 25, 1: 8})
    done = load(topic).run()
    assert (done.records, done.files, done.gaps) == (33, 4, [])
    assert load(topic).run().records == 0
    topic.ends = {0: 31, 1: 8, 2: 5}
    assert load(topic).run().records == 11
    assert ids(table) == expected(topic.ends)
    assert not Workspace(table).staging.exists()


def broken_off_after(load: Load | Compaction, steps: int) -> str | None:
    """Runs that many steps; None if the load has fewer."""
    running = load.steps()
    name = None
    for _ in range(steps):
        name = next(running, None)
        if name is None:
            return None
    running.close()
    return name


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", [None, "day"])
def test_a_load_that_breaks_off_after_any_step_is_finished_by_the_next(
    make: Make, tmp_path: Path, partition_by: str | None
) -> None:
    """So is one that breaks off again, and where the log has grown meanwhile."""
    layout = replace(SMALL, partition_by=partition_by)
    names: set[str] = set()
    for steps in range(1, 200):
        folder = tmp_path / str(steps)
        topic = MemoryTopic({0: 8, 1: 2})

        def load(folder: Path = folder, topic: MemoryTopic = topic) -> Load:
            dead = make(folder / "dead")
            return Load(topic, make(folder / "orders"), dead, LocalEngine(), layout)

        Load.run(load())
        topic.ends = {0: 19, 1: 4}
        name = broken_off_after(load(), steps)
        if name is None:
            break
        names.add(name.split()[0])
        seen = ids(folder / "orders")
        assert len(seen) == len(set(seen)), f"a row twice after {name}"
        broken_off_after(load(), steps % 5 + 1)
        topic.ends = {0: 22, 1: 4}
        load().run()
        assert ids(folder / "orders") == expected(topic.ends), f"broken off after {name}"
    assert {"locked", "planned", "staged", "committed", "cleared"} <= names


def test_a_range_that_is_staged_is_not_read_again(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 30})
    first, second, third = (OffsetRange("orders", 0, n, n + 10) for n in (0, 10, 20))
    assert broken_off_after(load(topic), 4) == f"staged {second}"
    topic.staged = frozenset({first, second})  # their rows would fail now
    resumed = list(load(topic).steps())
    assert "resumed" in resumed
    assert f"staged {third}" in resumed
    assert ids(table) == expected(topic.ends)


def test_a_plan_of_other_columns_or_folders_is_made_anew(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 30})
    broken_off_after(load(topic), 4)
    other = load(topic, replace(SMALL, partition_by="day"))
    assert "discarded" in list(other.steps())
    assert ids(table) == expected(topic.ends)
    assert {path.name for path in table.glob("day=*")} == {f"day=1970-01-0{n}" for n in (1, 2, 3)}


@pytest.mark.slow
def test_kill_9_between_steps_loses_no_row_and_doubles_none(
    make: Make, load: LoadOf, tmp_path: Path
) -> None:
    topic = MemoryTopic({0: 12, 1: 8})
    kills = 0
    for steps in (0, 2, 3, 4, 5, 6, 1, 7):
        kills += is_killed_after(steps, make, tmp_path, topic, SMALL)
        topic.ends = {p: end + 9 for p, end in topic.ends.items()}
    assert kills > 5
    load(topic).run()
    assert ids(tmp_path / "orders") == expected(topic.ends)


def test_a_second_load_says_who_holds_the_table(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 5})
    running = load(topic).steps()
    assert next(running) == "locked"
    holder = rf"is held by a load: process {os.getpid()} on \S+, since \d{{4}}-.* UTC$"
    with pytest.raises(StorageError, match=holder):
        load(topic).run()
    assert list(running)[-1] == "cleared"
    assert ids(table) == expected(topic.ends)


def test_records_that_cannot_be_read_end_the_load_or_are_skipped_or_kept(
    load: LoadOf, table: Path, tmp_path: Path
) -> None:
    topic = MemoryTopic({0: 30}, bad=frozenset({3, 12}))
    with pytest.raises(SerdeError, match="orders-0 offset 3: bad"):
        load(topic).run()
    topic.on_error = "dlq"
    done = load(topic).run()
    assert (done.records, done.skipped, done.dead) == (28, 2, 2)
    assert ids(table) == [n for n in range(30) if n not in topic.bad]
    dead = rows_of(tmp_path / "orders_dead_letters")
    assert sorted((row["_offset"], row["value"]) for row in dead) == [(3, b"?"), (12, b"?")]
    topic.ends, topic.bad, topic.on_error = {0: 40}, frozenset({35}), "skip"
    done = load(topic).run()
    assert (done.records, done.skipped, done.dead) == (9, 1, 0)


@pytest.mark.slow
def test_dead_letters_come_once_where_a_load_breaks_off(make: Make, tmp_path: Path) -> None:
    for steps in range(1, 100):
        folder = tmp_path / str(steps)
        topic = MemoryTopic({0: 20}, bad=frozenset({3, 12}), on_error="dlq")

        def load(layout: Layout, folder: Path = folder, topic: MemoryTopic = topic) -> Load:
            tables = make(folder / "orders"), make(folder / "dead")
            return Load(topic, *tables, LocalEngine(), layout)

        name = broken_off_after(load(SMALL), steps)
        if name is None:
            break
        topic.ends = {0: 23}
        load(replace(SMALL, is_sorted=False)).run()
        assert [row["_offset"] for row in rows_of(folder / "dead")] == [3, 12], f"after {name}"
        assert ids(folder / "orders") == [n for n in range(23) if n not in topic.bad]
    assert steps > 8


def test_a_table_has_one_topic_and_one_kind_of_folders(load: LoadOf) -> None:
    load(MemoryTopic({0: 5})).run()
    with pytest.raises(ConfigError, match="orders holds topic orders, not others"):
        load(MemoryTopic({0: 5}, topic="others")).run()
    with pytest.raises(ConfigError, match="is partitioned by nothing, not by day"):
        load(MemoryTopic({0: 9}), replace(SMALL, partition_by="day")).run()


def test_dead_letters_do_not_go_into_the_table_of_another_topic(
    make: Make, load: LoadOf, tmp_path: Path
) -> None:
    """A topic may have the name of the table that another topic's dead letters have."""
    other, dead = make(tmp_path / "orders_dead_letters"), make(tmp_path / "dead")
    Load(MemoryTopic({0: 2}, topic="orders_dead_letters"), other, dead, LocalEngine()).run()
    with pytest.raises(ConfigError, match="dead_letters holds topic orders_dead_letters, not orde"):
        load(MemoryTopic({0: 5})).run()


def test_records_that_were_deleted_before_a_load_are_gaps(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 10, 1: 10}, first={0: 7, 1: 0})
    assert load(topic).run().gaps == [], "nothing was loaded before"
    topic.ends, topic.first = {0: 20, 1: 20}, {0: 12, 1: 5}
    assert load(topic).run().gaps == [OffsetRange("orders", 0, 10, 12)]
    assert load(topic).run().gaps == [], "the table is up to date"


def test_what_was_deleted_of_a_plan_that_broke_off_is_a_gap(load: LoadOf) -> None:
    topic = MemoryTopic({0: 30})
    assert broken_off_after(load(topic), 3) == "staged orders-0[0, 10)"
    topic.first = {0: 14}
    assert load(topic).run().gaps == [OffsetRange("orders", 0, 10, 14)]


def test_a_log_that_is_shorter_than_its_table_or_its_plan_is_refused(load: LoadOf) -> None:
    topic = MemoryTopic({0: 10})
    load(topic).run()
    topic.ends = {0: 4}
    with pytest.raises(StorageError, match=r"holds orders-0 up to offset 10, .* ends at 4: "):
        load(topic).run()
    topic.ends = {0: 30}
    broken_off_after(load(topic), 3)
    topic.ends = {0: 20}
    with pytest.raises(StorageError, match=r"holds orders-0 up to offset 30, .* ends at 20: "):
        load(topic).run()


def test_rows_are_sorted_by_time_in_each_file(load: LoadOf, table: Path) -> None:
    load(MemoryTopic({0: 50}), replace(SMALL, file_bytes=2_000)).run()
    files = sorted(table.glob("*.parquet"))
    assert len(files) == 3
    for file in files:
        times = ds.dataset(file).to_table()["_timestamp"].to_pylist()
        assert times == sorted(times)


def test_rows_can_keep_the_order_of_their_offsets(load: LoadOf, table: Path) -> None:
    load(MemoryTopic({0: 20}), replace(SMALL, file_bytes=10_000, is_sorted=False)).run()
    assert [row["_offset"] for row in rows_of(table)] == list(range(20))


@pytest.mark.slow
def test_processes_share_the_ranges(make: Make, tmp_path: Path) -> None:
    topic = MemoryTopic({0: 40, 1: 13})
    tables = make(tmp_path / "orders"), make(tmp_path / "dead")
    done = Load(topic, *tables, LocalEngine(2), SMALL).run()
    assert done.records == 53
    assert ids(tmp_path / "orders") == expected(topic.ends)


def test_progress_tells_staged_and_planned_records(load: LoadOf) -> None:
    told: list[tuple[int, int]] = []
    running = load(MemoryTopic({0: 25}))
    running.progress = lambda staged, planned: told.append((staged, planned))
    running.run()
    assert [planned for _, planned in told] == [25] * 4
    assert told[0] == (0, 25)
    assert told[-1] == (25, 25)


def test_a_partition_without_records_is_committed_all_the_same(
    load: LoadOf, make: Make, table: Path
) -> None:
    topic = MemoryTopic({0: 3}, bad=frozenset(range(3)), on_error="skip")
    assert load(topic).run().files == 0
    assert make(table).offsets() == {TopicPartition("orders", 0): 3}


def by_newest_columns(target: Target) -> list[dict[str, Any]]:
    """The rows as a reader sees them who knows the newest columns."""
    if not isinstance(target, ParquetTable):
        return rows_of(target.table)
    columns = target.columns()
    assert columns is not None
    found: list[dict[str, Any]] = (
        ds.dataset(target.table, columns, "parquet").to_table().to_pylist()
    )
    return found


def test_columns_come_and_go(make: Make, load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 3}, fields=("id", "gone"))
    load(topic).run()
    topic.ends, topic.fields = {0: 5}, ("id", "new")
    load(topic).run()
    columns = make(table).columns()
    assert columns is not None
    assert {"id", "new", "_offset", "_timestamp"} <= set(columns.names)
    rows = sorted(by_newest_columns(make(table)), key=lambda row: row["_offset"])
    assert [(row["id"], row["new"]) for row in rows] == [
        (0, None), (1, None), (2, None), (3, 3), (4, 4),
    ]  # fmt: skip


def test_a_column_becomes_wider(make: Make, load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 3}, kind=pa.int32())
    load(topic).run()
    topic.ends, topic.kind = {0: 5}, pa.int64()
    load(topic).run()
    rows = by_newest_columns(make(table))
    assert sorted(row["id"] for row in rows) == list(range(5))
    assert (make(table).columns() or pa.schema([])).field("id").type == pa.int64()


@pytest.mark.parametrize("by", ["day", "hour", "month", "shop"])
def test_rows_lie_in_folders_and_readers_see_them_all(load: LoadOf, table: Path, by: str) -> None:
    topic = MemoryTopic({0: 12}, fields=("id", "shop"))
    layout = replace(SMALL, partition_by=by, file_bytes=10_000)
    load(topic, layout).run()
    topic.ends = {0: 15}
    load(topic).run()
    assert ids(table) == list(range(15))
    assert {path.parent.name.partition("=")[0] for path in table.glob("*=*/*.parquet")} == {by}


# Not with Parquet's manifest, which needs the lock.
@pytest.mark.parametrize("make", [DeltaTarget, IcebergTarget], indirect=True)
def test_of_two_writers_without_a_lock_one_commits(load: LoadOf, table: Path) -> None:
    """Machines that do not share the lock meet in the log of Delta or in Iceberg's catalog."""
    topic = MemoryTopic({0: 5})
    load(topic).run()
    slow = load(MemoryTopic({0: 9})).steps()
    while not next(slow).startswith("published"):
        pass
    staging = Workspace(table).staging
    staging.rename(table / "_aside")
    (Workspace(table).folder / "plan.json").unlink()
    other = (table / "_kafkalite" / "lock").rename(table / "_kafkalite" / "lock-of-another-machine")
    load(MemoryTopic({0: 9})).run()
    assert other.exists()
    with pytest.raises(StorageError, match="another writer"):
        list(slow)
    assert ids(table) == list(range(9))


def test_a_commit_without_files_takes_no_offsets_of_another_writer_back(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have skipped all their records; the catalog of Iceberg sees a conflict all the same."""

    def load(topic: MemoryTopic) -> Load:
        dead = IcebergTarget(table.with_name("dead"))
        return Load(topic, IcebergTarget(table), dead, LocalEngine(), SMALL)

    load(MemoryTopic({0: 5})).run()
    append = IcebergTarget._append

    def late(target: IcebergTarget, *commit: Any) -> None:
        monkeypatch.setattr(IcebergTarget, "_append", append)
        columns, ranges = IcebergTarget(table).columns(), (OffsetRange("orders", 0, 5, 12),)
        assert columns is not None
        list(IcebergTarget(table).commit(Epoch(ranges, (), columns, Partitioning()), table))
        append(target, *commit)

    monkeypatch.setattr(IcebergTarget, "_append", late)
    with pytest.raises(StorageError, match="another writer was first"):
        load(MemoryTopic({0: 9}, bad=frozenset(range(5, 9)), on_error="skip")).run()
    assert IcebergTarget(table).offsets() == {TopicPartition("orders", 0): 12}
    assert ids(table) == list(range(5))
