"""Tables of Parquet: their manifest, the first format of it, and folders."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from memory_log import DAY_US, MemoryTopic, rows

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.partitioning import Partitioning
from kafkalite.warehouse.splitting import pieces

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def load(table: Path, topic: MemoryTopic, partition_by: str | None = None) -> Load:
    dead = ParquetTable(table.with_name("dead"))
    return Load(topic, ParquetTable(table), dead, LocalEngine(), Layout(partition_by))


def first_format(table: Path, *, pending: bool) -> None:
    """A table as loads left it which wrote a file per day and committed with a rename."""
    folder = table / "_kafkalite"
    folder.mkdir(parents=True)
    loads = [("00000000", [(0, 0, 6), (1, 0, 3)])] + [("pending", [(0, 6, 9)])] * pending
    for name, ranges in loads:
        entries = [OffsetRange("orders", *numbers) for numbers in ranges]
        for wanted in entries:
            for day in (1, 2):
                path = (
                    table
                    / f"day=1970-01-0{day}"
                    / (f"orders-{wanted.partition}-{wanted.start}-{wanted.end}.parquet")
                )
                path.parent.mkdir(exist_ok=True)
                own = range(wanted.start + day - 1, wanted.end, 2)
                pq.write_table(pa.table(rows(wanted, own, ["id"])), path)
        listed = [
            {"topic": "orders", "partition": r.partition, "start": r.start, "end": r.end}
            for r in entries
        ]
        (folder / f"{name}.json").write_text(json.dumps(listed))
    (folder / "lock").touch()


@pytest.mark.parametrize("pending", [False, True])
def test_a_table_of_the_first_format_goes_on(tmp_path: Path, pending: bool) -> None:
    table = tmp_path / "orders"
    first_format(table, pending=pending)
    assert ParquetTable(table).offsets() == {A: 6, B: 3}
    columns = ParquetTable(table).columns()
    assert columns is not None
    assert "id" in columns.names
    topic = MemoryTopic({0: 12, 1: 5})
    assert load(table, topic).run().records == 8
    found = ds.dataset(table, format="parquet", partitioning="hive").to_table()
    assert sorted(found["id"].to_pylist()) == [*range(12), *range(1_000_000, 1_000_005)]
    assert all(path.parent.name.startswith("day=") for path in table.glob("**/[!_]*.parquet"))
    assert not (table / "_kafkalite" / "pending.json").exists()
    with pytest.raises(ConfigError, match="is partitioned by day, not by month"):
        load(table, topic, "month").run()


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path)
    table.folder.mkdir()
    entry = table.folder / "00000000.json"
    for text, complaint in (
        ("{nonsense", "not a manifest of offset ranges"),
        ('[{"topic": "a"}]', "not a manifest of offset ranges"),
        ('{"version": 3}', "not an entry of a manifest: version 3"),
        ('{"version": 2}', "not an entry of a manifest: 'columns'"),
    ):
        entry.write_text(text)
        with pytest.raises(StorageError, match=rf"00000000\.json: {complaint}"):
            table.offsets()


@pytest.mark.parametrize(
    ("by", "folders"),
    [
        ("day", ["day=1970-01-01", "day=1970-01-02"]),
        ("hour", ["hour=1970-01-01-00", "hour=1970-01-02-03"]),
        ("month", ["month=1970-01"]),
        ("place", ["place=New York", "place=a%2Fb", "place=__HIVE_DEFAULT_PARTITION__"]),
        ("number", ["number=1", "number=2", "number=3"]),
    ],
)
def test_rows_are_divided_into_folders(by: str, folders: list[str]) -> None:
    hour = DAY_US // 24
    table = pa.table(
        {
            "_timestamp": pa.array([DAY_US + 3 * hour, 5, 4], pa.timestamp("us", "UTC")),
            "place": ["a/b", None, "New York"],
            "number": [3, 1, 2],
        }
    )
    partitioning = Partitioning(by)
    parts = list(partitioning.parts(table, is_sorted=True))
    assert [partitioning.folder(value) for value, _ in parts] == [f"{f}/" for f in folders]
    assert sum(rows.num_rows for _, rows in parts) == 3
    for _, own in parts:
        assert own["_timestamp"].to_pylist() == sorted(own["_timestamp"].to_pylist())


def test_a_moment_in_no_year_that_has_dates_is_of_no_day() -> None:
    moments = [0, 253_402_300_800_000_000, DAY_US, -62_135_596_800_000_001, -1, 2**63 - 1]
    table = pa.table({"_timestamp": pa.array(moments, pa.timestamp("us", "UTC"))})
    found = {day: own.num_rows for day, own in Partitioning("day").parts(table, is_sorted=False)}
    assert found == {"1970-01-01": 1, None: 3, "1970-01-02": 1, "1969-12-31": 1}


@pytest.mark.parametrize(
    ("by", "complaint"), [("nothing", "the rows have no such field"), ("tags", "makes no folders")]
)
def test_a_field_that_makes_no_folders_is_refused(by: str, complaint: str) -> None:
    table = pa.table({"_timestamp": pa.array([0], pa.timestamp("us", "UTC")), "tags": [["a"]]})
    with pytest.raises(ConfigError, match=f"--partition-by {by}: .*{complaint}"):
        list(Partitioning(by).parts(table, is_sorted=True))


def test_a_range_is_divided_by_size_and_by_share() -> None:
    ranges = [OffsetRange("orders", 0, 100, 200), OffsetRange("orders", 1, 0, 10)]
    assert pieces(ranges, {A: 10.0, B: 10.0}, file_bytes=1_000) == ranges
    by_size = pieces(ranges, {A: 10.0, B: 10.0}, file_bytes=400)
    assert [(r.start, r.end) for r in by_size] == [(100, 133), (133, 166), (166, 200), (0, 10)]
    shared = pieces(ranges, {}, min_partitions=11)
    assert len(shared) == 11
    assert sum(r.end - r.start for r in shared) == 110
    tiny = pieces([OffsetRange("orders", 0, 0, 2)], {A: 1e9})
    assert [(r.start, r.end) for r in tiny] == [(0, 1), (1, 2)]
