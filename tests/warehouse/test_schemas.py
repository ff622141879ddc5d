"""Topics whose values get new schemas: every kind of table, and everybody who reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from memory_log import MemoryTopic
from readers import by_every_reader

from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.delta_table import DeltaTarget
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.iceberg_table import IcebergTarget
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.target import Target
from kafkalite.warehouse.workspace import Workspace

Make = Callable[[Path], Target]
LoadOf = Callable[..., Load]
SMALL = Layout(file_bytes=1_000)  # ten records


@pytest.fixture(params=[ParquetTable, DeltaTarget, IcebergTarget])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def load(make: Make, table: Path) -> LoadOf:
    def of(topic: MemoryTopic, layout: Layout = SMALL) -> Load:
        dead = make(table.with_name("dead"))
        return Load(topic, make(table), dead, LocalEngine(), layout)

    return of


def pairs(table: Path, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in by_every_reader(table)]


def test_columns_come_and_none_goes(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 2}, fields=("id", "gone"))
    load(topic).run()
    topic.ends, topic.fields = {0: 4}, ("new", "id")
    done = load(topic).run()
    assert done.changes == ["column new is new; older rows are null there"]
    assert pairs(table, "id", "new", "gone") == [
        (0, None, 0), (1, None, 1), (2, 2, None), (3, 3, None),
    ]  # fmt: skip
    topic.ends, topic.fields = {0: 5}, ("gone",)
    assert load(topic).run().changes == []
    assert pairs(table, "id", "new", "gone")[3:] == [(3, 3, None), (None, None, 4)]


@pytest.mark.parametrize("by", [None, "month", "shop"])
def test_a_column_gets_the_name_that_has_the_old_one_as_alias(
    load: LoadOf, table: Path, by: str | None
) -> None:
    topic = MemoryTopic({0: 12}, fields=("town", "shop"))
    layout = replace(SMALL, partition_by=by)
    load(topic, layout).run()
    topic.ends, topic.fields, topic.older_names = {0: 14}, ("city", "shop"), {"city": ["town"]}
    done = load(topic, layout).run()
    assert (done.records, done.changes) == (2, ["column town is now city"])
    rows = by_every_reader(table)
    assert [(row["city"], row["shop"]) for row in rows] == [(n, n) for n in range(14)]
    assert "town" not in rows[0]
    assert load(topic, layout).run().changes == []


@pytest.mark.parametrize("wide", [pa.int64(), pa.float64()])
def test_a_column_gets_a_wider_type_and_never_a_narrower_one(
    make: Make, load: LoadOf, table: Path, wide: pa.DataType
) -> None:
    topic = MemoryTopic({0: 12}, kind=pa.int32())
    load(topic).run()
    topic.ends, topic.kind = {0: 13}, wide
    assert load(topic).run().changes == [f"column id is now {wide}, and was int32"]
    topic.ends, topic.kind = {0: 15}, pa.int32()
    assert load(topic).run().changes == []
    assert (make(table).columns() or pa.schema([])).field("id").type == wide
    assert pairs(table, "id") == [(n,) for n in range(15)]


def test_a_name_that_is_free_again_is_a_column_of_its_own(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 2}, fields=("town",))
    load(topic).run()
    topic.ends, topic.fields, topic.older_names = {0: 4}, ("city",), {"city": ["town"]}
    load(topic).run()
    topic.ends, topic.fields = {0: 6}, ("city", "town")
    load(topic).run()
    assert pairs(table, "city", "town") == [
        (0, None), (1, None), (2, None), (3, None), (4, 4), (5, 5),
    ]  # fmt: skip


def test_a_type_that_the_column_cannot_get_is_refused_before_anything_is_staged(
    load: LoadOf, table: Path
) -> None:
    topic = MemoryTopic({0: 3})
    load(topic).run()
    topic.ends, topic.kind = {0: 4}, pa.date32()
    with pytest.raises(ConfigError, match=r"column id is int64 and cannot become date32"):
        load(topic).run()
    assert not Workspace(table).staging.exists()
    assert pairs(table, "id") == [(n,) for n in range(3)]


def test_files_are_written_anew_only_for_names_and_types(load: LoadOf, table: Path) -> None:
    topic = MemoryTopic({0: 20}, fields=("town",))
    load(topic).run()
    topic.ends, topic.fields, topic.older_names = {0: 21}, ("city",), {"city": ["town"]}
    assert load(topic).run().rewritten == 2
    topic.ends, topic.fields = {0: 22}, ("city", "more")
    assert load(topic).run().rewritten == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pa.int32(), pa.float64()])
def test_a_change_that_breaks_off_after_any_step_is_finished_by_the_next_load(
    make: Make, tmp_path: Path, kind: pa.DataType
) -> None:
    seen: set[str] = set()
    for steps in range(1, 100):
        table = tmp_path / str(steps) / "orders"
        topic = MemoryTopic({0: 12}, fields=("town",), kind=pa.int32())

        def load(table: Path = table, topic: MemoryTopic = topic) -> Load:
            dead = make(table.with_name("dead"))
            return Load(topic, make(table), dead, LocalEngine(), SMALL)

        load().run()
        topic.ends, topic.fields, topic.older_names = {0: 15}, ("city",), {"city": ["town"]}
        topic.kind = kind
        running = load().steps()
        names = [name for name, _ in zip(running, range(steps), strict=False)]
        running.close()
        if len(names) < steps:
            break
        seen.add(names[-1].split()[0])
        topic.ends = {0: 17}
        load().run()
        assert pairs(table, "city") == [(n,) for n in range(17)], f"broken off after {names[-1]}"
    assert {"planned", "staged", "rewritten", "columns:", "committed", "cleared"} <= seen


def test_files_written_anew_are_no_longer_those_of_the_table_if_another_writer_commits(
    table: Path,
) -> None:
    """Machines that do not share the lock meet in Delta's log: no row of the other one is lost."""

    def load(topic: MemoryTopic) -> Load:
        dead = DeltaTarget(table.with_name("dead"))
        return Load(topic, DeltaTarget(table), dead, LocalEngine(), SMALL)

    load(MemoryTopic({0: 3}, fields=("town",))).run()
    renamed = MemoryTopic({0: 3, 1: 2}, fields=("city",), older_names={"city": ["town"]})
    slow = load(renamed).steps()
    while not next(slow).startswith("rewritten"):
        pass
    staging = Workspace(table).staging
    kept = staging.rename(table / "_aside")
    (Workspace(table).folder / "plan.json").unlink()
    (Workspace(table).folder / "lock").rename(table / "_lock-of-another-machine")
    load(MemoryTopic({0: 5}, fields=("town",))).run()
    kept.rename(staging)
    with pytest.raises(StorageError, match="another writer was first"):
        list(slow)
    assert sorted(DeltaTable(table).to_pyarrow_table()["town"].to_pylist()) == [0, 1, 2, 3, 4]


def test_a_table_of_parquet_tells_its_columns_to_every_reader(table: Path) -> None:
    def load(topic: MemoryTopic) -> Load:
        tables = ParquetTable(table), ParquetTable(table.with_name("dead"))
        return Load(topic, *tables, LocalEngine(), Layout(partition_by="day"))

    topic = MemoryTopic({0: 3})
    load(topic).run()
    (table / "_common_metadata").unlink()  # as in tables of earlier versions
    load(topic).run()
    told = pq.read_schema(table / "_common_metadata")
    assert told.names == ["id", "key", "_topic", "_partition", "_offset", "_timestamp", "day"]
    assert told.field("day").type == pa.date32()
