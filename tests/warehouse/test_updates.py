"""Loads that update: a row for each key as its last change left it, whatever breaks off."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from keyed_log import Change, ChangeTopic, random_changes
from killed import is_killed_after
from memory_log import MemoryTopic

from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse import load as loads
from kafkalite.warehouse.compaction import Compaction
from kafkalite.warehouse.delta_table import DeltaTarget
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.iceberg_table import IcebergTarget
from kafkalite.warehouse.identity import buckets, identities
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.rewritable import rewritable
from kafkalite.warehouse.target import Target
from kafkalite.warehouse.workspace import Workspace

Make = Callable[[Path], Target]
SMALL = Layout(file_bytes=1_000)  # ten records


@pytest.fixture(params=[DeltaTarget, IcebergTarget])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def load(make: Make, folder: Path, topic: ChangeTopic, layout: Layout = SMALL) -> Load:
    dead = make(folder / "orders_dead_letters")
    return Load(topic, make(folder / "orders"), dead, LocalEngine(), layout, updates=True)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows as a reader sees them who knows nothing of loads."""
    table = folder / "orders"
    if DeltaTable.is_deltatable(str(table)):
        rows = DeltaTable(str(table)).to_pyarrow_table()
    else:
        found = IcebergTarget(table)._open()
        rows = pa.table({}) if found is None else found.scan().to_arrow()
    made: list[dict[str, Any]] = rows.to_pylist()
    return made


def values(folder: Path) -> dict[str, str]:
    rows = rows_of(folder)
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key has one row"
    return found


def test_a_table_has_the_last_value_of_each_key(make: Make, tmp_path: Path) -> None:
    topic = ChangeTopic()
    topic.add(0, Change("a", "1"), Change("b", "1"), Change("a", "2"), Change("c", None))
    done = load(make, tmp_path, topic).run()
    assert (done.records, done.updated, done.deleted) == (4, 2, 1)
    assert values(tmp_path) == {"a": "2", "b": "1"}
    topic.add(0, Change("b", None), Change("c", "3"), Change("d", "3"), Change("d", "4"))
    done = load(make, tmp_path, topic).run()
    assert (done.records, done.updated, done.deleted) == (4, 2, 1)
    assert values(tmp_path) == {"a": "2", "c": "3", "d": "4"}
    assert load(make, tmp_path, topic).run().records == 0


def test_a_row_says_where_its_last_change_is(make: Make, tmp_path: Path) -> None:
    topic = ChangeTopic()
    topic.add(0, Change("a", "1", 1000), Change("a", "2", 500))
    load(make, tmp_path, topic).run()
    (row,) = rows_of(tmp_path)
    assert (row["_offset"], row["_timestamp"].timestamp()) == (1, 0.5), "offsets decide, not times"
    assert not [name for name in row if "deleted" in name]


@pytest.mark.parametrize("together", [True, False])
def test_the_later_record_wins_where_partitions_share_a_key(
    make: Make, tmp_path: Path, together: bool
) -> None:
    topic = ChangeTopic()
    topic.add(0, Change("a", "new", 30), Change("b", "old", 10), Change("c", "even", 5))
    if not together:
        load(make, tmp_path, topic).run()
    topic.add(1, Change("a", "old", 20), Change("b", "new", 20), Change("c", "higher", 5))
    load(make, tmp_path, topic).run()
    assert values(tmp_path) == {"a": "new", "b": "new", "c": "higher"} == topic.rows_now()
    topic.add(2, Change("a", None, 25), Change("b", None, 25))
    load(make, tmp_path, topic).run()
    assert values(tmp_path) == {"a": "new", "c": "higher"}


@pytest.mark.parametrize("partition_by", [None, "day", "shop"])
def test_random_changes_leave_the_rows_of_the_definition(
    make: Make, tmp_path: Path, partition_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "BUCKET_RECORDS", 15)
    random, topic = Random(f"{make} {partition_by}"), ChangeTopic()
    layout = replace(SMALL, partition_by=partition_by)
    for _ in range(4):
        for partition in range(3):
            keyed = random_changes(random, random.randrange(20), 9)
            own = [replace(c, key=f"{partition}{c.key}", timestamp=partition) for c in keyed]
            topic.add(partition, *own)
        load(make, tmp_path, topic, layout).run()
        assert values(tmp_path) == topic.rows_now()
    assert not Workspace(tmp_path / "orders").staging.exists()


def test_files_without_a_changed_key_stay(make: Make, tmp_path: Path) -> None:
    topic = ChangeTopic()
    names = []
    for key in "abc":
        topic.add(0, Change(key, "1"), Change(f"{key}2", "1"))
        load(make, tmp_path, topic).run()
        names.append({file.path for file in make(tmp_path / "orders").stored()})
    first, second, third = names[0], names[1] - names[0], names[2] - names[1]
    topic.add(0, Change("b", "2"))
    load(make, tmp_path, topic).run()
    now = {file.path for file in make(tmp_path / "orders").stored()}
    assert first | third <= now
    assert not second & now
    assert values(tmp_path) == topic.rows_now()


@pytest.mark.parametrize("partition_by", [None, "shop"])
def test_updates_go_on_where_small_files_were_merged(
    make: Make, tmp_path: Path, partition_by: str | None
) -> None:
    layout, topic = replace(SMALL, partition_by=partition_by), first_changes()
    load(make, tmp_path, topic, layout).run()
    for number in range(3):
        more_changes(topic, f"2{number}")
        load(make, tmp_path, topic, layout).run()
    table = tmp_path / "orders"
    assert Compaction(rewritable(table, 0), "c", 0, 0).run().merged
    assert values(tmp_path) == topic.rows_now()
    assert make(table).has_updates()
    more_changes(topic, "3")
    assert load(make, tmp_path, topic, layout).run().records == 6
    assert values(tmp_path) == topic.rows_now()


def broken_off_after(load: Load, steps: int) -> str | None:
    """Runs that many steps; None if the load has fewer."""
    running = load.steps()
    name = None
    for _ in range(steps):
        name = next(running, None)
        if name is None:
            return None
    running.close()
    return name


def first_changes() -> ChangeTopic:
    topic = ChangeTopic()
    topic.add(0, *(Change(f"k{n}", "1") for n in range(6)))
    topic.add(1, *(Change(f"m{n}", "1") for n in range(4)))
    return topic


def more_changes(topic: ChangeTopic, value: str) -> None:
    topic.add(0, Change("k1", None), Change("k2", value), Change("new", value))
    topic.add(1, Change("m1", value), Change("m2", None), Change(f"of {value}", value))


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", [None, "shop"])
def test_a_load_that_breaks_off_after_any_step_is_finished_by_the_next(
    make: Make, tmp_path: Path, partition_by: str | None
) -> None:
    layout = replace(SMALL, partition_by=partition_by)
    names: set[str] = set()
    for steps in range(1, 100):
        folder, topic = tmp_path / str(steps), first_changes()
        load(make, folder, topic, layout).run()
        before = topic.rows_now()
        more_changes(topic, "2")
        name = broken_off_after(load(make, folder, topic, layout), steps)
        if name is None:
            break
        names.add(name.split()[0])
        assert values(folder) in (before, topic.rows_now()), f"half a load after {name}"
        broken_off_after(load(make, folder, topic, layout), steps % 5 + 1)
        more_changes(topic, "3")
        load(make, folder, topic, layout).run()
        assert values(folder) == topic.rows_now(), f"broken off after {name}"
        assert not (Workspace(folder / "orders").folder / "merge.json").exists()
    assert {"planned", "staged", "reduced", "replaced", "merged", "published", "cleared"} <= names


def test_files_that_no_commit_added_are_removed(make: Make, tmp_path: Path) -> None:
    topic = first_changes()
    load(make, tmp_path, topic).run()
    more_changes(topic, "2")
    running = load(make, tmp_path, topic).steps()
    for name in running:
        if name.startswith("published"):
            break
    running.close()
    table = tmp_path / "orders"
    orphans = {path.name for path in table.glob("*.parquet")}
    orphans -= {file.path for file in make(table).stored()}
    assert orphans
    load(make, tmp_path, topic).run()
    assert not orphans & {path.name for path in table.glob("*.parquet")}


def test_older_versions_keep_files_of_a_commit_whose_load_was_killed(
    make: Make, tmp_path: Path
) -> None:
    """The load ends right after its commit; a merge replaces its files; the next load cleans up."""
    topic = first_changes()
    load(make, tmp_path, topic).run()
    more_changes(topic, "2")
    running = load(make, tmp_path, topic).steps()
    while next(running) != "committed":
        pass
    running.close()
    table = tmp_path / "orders"
    files = [table / stored.path for stored in make(table).stored()]
    assert Compaction(rewritable(table, 0), "c", 0, 0).run().merged == len(files)
    load(make, tmp_path, topic).run()
    assert [file for file in files if not file.exists()] == []
    assert not (Workspace(table).folder / "merge.json").exists()


def test_replaced_files_stay_for_keep_in_folders_of_long_ago(make: Make, tmp_path: Path) -> None:
    """A Delta table says when a file left it: at the commit, however old the folders are."""
    layout, topic = replace(SMALL, partition_by="shop"), first_changes()
    load(make, tmp_path, topic, layout).run()
    table, now_s = tmp_path / "orders", time.time()
    files = [table / stored.path for stored in make(table).stored()]
    for path in (table, *files):
        os.utime(path, (now_s - 10 * 24 * 3_600,) * 2)
    more_changes(topic, "2")
    load(make, tmp_path, topic, layout).run()
    now_ms = int(now_s * 1000)
    assert Compaction(rewritable(table, now_ms), "c", now_ms, 3_600_000).run().removed == 0
    assert [file for file in files if not file.exists()] == []


@pytest.mark.slow
def test_kill_9_between_steps_leaves_one_row_for_each_key(make: Make, tmp_path: Path) -> None:
    topic = first_changes()
    kills = 0
    for steps in (2, 4, 5, 6, 7, 8, 10):
        kills += is_killed_after(steps, make, tmp_path, topic, SMALL, updates=True)
        more_changes(topic, f"after {steps}")
    assert kills > 4
    load(make, tmp_path, topic).run()
    assert values(tmp_path) == topic.rows_now()


@pytest.mark.slow
def test_processes_share_the_work(tmp_path: Path) -> None:
    topic = first_changes()
    for _ in range(2):
        running = load(DeltaTarget, tmp_path, topic)
        running.engine = LocalEngine(2)
        running.run()
        assert values(tmp_path) == topic.rows_now()
        more_changes(topic, "2")


@pytest.mark.parametrize("reached", ["merged", "published"])
def test_of_two_writers_without_a_lock_one_commits(
    make: Make, tmp_path: Path, reached: str
) -> None:
    """Machines that do not share the lock meet in the log of Delta or in Iceberg's catalog."""
    topic = first_changes()
    load(make, tmp_path, topic).run()
    more_changes(topic, "2")
    shorter = ChangeTopic({p: list(log) for p, log in topic.logs.items()})
    more_changes(topic, "3")
    steps = load(make, tmp_path, topic).steps()
    while not next(steps).startswith(reached):
        pass
    workspace = Workspace(tmp_path / "orders")
    workspace.staging.rename(tmp_path / "orders" / "_aside")
    for name in ("plan.json", "merge.json", "lock"):
        (workspace.folder / name).unlink()
    load(make, tmp_path, shorter).run()
    (tmp_path / "orders" / "_aside").rename(workspace.staging)
    with pytest.raises(StorageError, match="another writer was first"):
        list(steps)
    assert values(tmp_path) == shorter.rows_now()
    load(make, tmp_path, topic).run()
    assert values(tmp_path) == topic.rows_now()


def test_a_table_keeps_its_way(make: Make, tmp_path: Path) -> None:
    topic = first_changes()
    load(make, tmp_path, topic).run()
    more_changes(topic, "2")
    again = load(make, tmp_path, topic)
    again.updates = False
    again.run()
    assert values(tmp_path) == topic.rows_now()
    rows = MemoryTopic({0: 5})
    Load(rows, make(tmp_path / "rows"), make(tmp_path / "dead"), LocalEngine()).run()
    other = Load(rows, make(tmp_path / "rows"), make(tmp_path / "dead"), LocalEngine())
    other.updates = True
    with pytest.raises(ConfigError, match="has a row for each record, so --upsert cannot update"):
        other.run()


def test_folders_of_the_key_are_refused_where_files_lack_it(tmp_path: Path) -> None:
    layout = replace(SMALL, partition_by="key")
    load(IcebergTarget, tmp_path / "iceberg", first_changes(), layout).run()
    with pytest.raises(ConfigError, match="--partition-by key: rows are updated by that column"):
        load(DeltaTarget, tmp_path / "delta", first_changes(), layout).run()


def test_an_identity_tells_keys_of_several_columns_apart() -> None:
    rows = pa.table(
        {
            "a": ["x", "x:1", None, "", "-", "x"],
            "b": pa.array([11, 1, 1, 1, 1, 11], pa.int32()),
            "s": [{"c": 1.5}, {"c": None}, None, {"c": 0.0}, {"c": 0.0}, {"c": 1.5}],
        }
    )
    found = identities(rows, ["a", "b", "s"])
    assert len(set(found.to_pylist())) == 5
    assert found[0] == found[5]
    wider = rows.set_column(1, "b", rows["b"].cast(pa.int64()))
    assert identities(wider, ["a", "b", "s"]) == found
    assert buckets(found, 3)[0] == buckets(found, 3)[5]
    with pytest.raises(ConfigError, match=r"column t of the key is list<\w+: int64>, which is no"):
        identities(pa.table({"t": [[1]]}), ["t"])
