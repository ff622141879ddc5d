"""A table's manifest: every offset range once, whatever breaks off."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalite.columnar.ranges import OffsetRange, limited, ranges_between
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError
from kafkalite.spark.manifest import Manifest

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_a_committed_range_is_not_planned_again(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    assert manifest.plan({A: 0, B: 0}, {A: 10, B: 0}) == [OffsetRange("orders", 0, 0, 10)]
    manifest.commit()
    assert manifest.plan({A: 0, B: 0}, {A: 10, B: 0}) == []
    assert manifest.plan({A: 0, B: 0}, {A: 12, B: 5}) == [
        OffsetRange("orders", 0, 10, 12),
        OffsetRange("orders", 1, 0, 5),
    ]


def test_a_load_that_broke_off_is_planned_as_it_was(tmp_path: Path) -> None:
    planned = Manifest(tmp_path).plan({A: 0}, {A: 10})
    assert Manifest(tmp_path).plan({A: 0}, {A: 99}) == planned
    Manifest(tmp_path).commit()
    assert Manifest(tmp_path).plan({A: 0}, {A: 99}) == [OffsetRange("orders", 0, 10, 99)]


def test_what_retention_deleted_is_not_waited_for(tmp_path: Path) -> None:
    assert Manifest(tmp_path).plan({A: 7}, {A: 10}) == [OffsetRange("orders", 0, 7, 10)]


def test_what_was_deleted_between_two_loads_is_a_gap(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    assert manifest.gaps({A: 7}) == [], "nothing was loaded before"
    manifest.plan({A: 0, B: 0}, {A: 10, B: 10})
    manifest.commit()
    assert manifest.gaps({A: 10, B: 3}) == []
    assert manifest.gaps({A: 12, B: 3}) == [OffsetRange("orders", 0, 10, 12)]
    assert manifest.plan({A: 12, B: 3}, {A: 20, B: 10}) == [OffsetRange("orders", 0, 12, 20)]


def test_a_log_that_is_shorter_than_its_table_is_refused(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.plan({A: 0}, {A: 10})
    manifest.commit()
    with pytest.raises(StorageError, match=r"holds orders-0 up to offset 10, .* ends at 4: "):
        manifest.plan({A: 0}, {A: 4})
    assert manifest.plan({A: 0}, {A: 10}) == []


def test_a_plan_that_broke_off_is_held_to_the_log_too(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.plan({A: 0, B: 0}, {A: 10, B: 10})
    for made_anew in ({A: 4, B: 10}, {A: 10}):
        with pytest.raises(StorageError, match="up to offset 10, and the log ends at"):
            manifest.plan({A: 0}, made_anew)


def test_what_was_deleted_of_a_plan_that_broke_off_is_a_gap(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.plan({A: 0, B: 0}, {A: 10, B: 10})
    assert manifest.gaps({A: 4, B: 0}) == [OffsetRange("orders", 0, 0, 4)]
    assert manifest.gaps({A: 14, B: 0}) == [OffsetRange("orders", 0, 0, 10)]
    manifest.commit()
    assert manifest.gaps({A: 14, B: 0}) == [OffsetRange("orders", 0, 10, 14)]


def test_one_load_at_a_time_holds_a_table(tmp_path: Path) -> None:
    with (
        Manifest(tmp_path).locked(),
        pytest.raises(StorageError, match="another load is writing it"),
        Manifest(tmp_path).locked(),
    ):
        pass
    with Manifest(tmp_path).locked():
        assert Manifest(tmp_path).loads() == []


def test_rows_are_on_the_disk_before_the_manifest_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest(tmp_path)
    seen: list[bool] = []
    monkeypatch.setattr("os.sync", lambda: seen.append(manifest.pending.exists()))
    manifest.plan({A: 0}, {A: 10})
    manifest.commit()
    assert seen == [True]


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.folder.mkdir()
    (manifest.folder / "00000000.json").write_text("{nonsense")
    with pytest.raises(StorageError, match=r"00000000\.json: not a manifest"):
        manifest.committed()


def test_a_limit_is_shared_by_lag_and_starves_nobody() -> None:
    end = limited({A: 0, B: 0}, {A: 1_000_000, B: 10}, 100)
    assert 0 < end[B] <= 10
    assert 90 <= end[A] <= 100
    assert ranges_between({A: 5}, {A: 5}) == []
