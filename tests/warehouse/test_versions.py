"""Versions of a folder: a reader sees one of them entirely, wherever the process breaks off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from memory_log import MemoryTopic

from kafkalite.errors import StorageError
from kafkalite.warehouse import versions
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.versions import NoExchange, Versions
from kafkalite.warehouse.workspace import Workspace

SMALL = Layout(file_bytes=1_000)  # ten records


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made = tmp_path / "orders"
    (made / "day=1").mkdir(parents=True)
    for name in ("a", "day=1/b", "day=1/c"):
        (made / name).write_text(name)
    return made


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def load(table: Path, topic: MemoryTopic) -> Load:
    dead = ParquetTable(table.with_name("dead"))
    return Load(topic, ParquetTable(table), dead, LocalEngine(), SMALL)


def test_a_version_has_the_files_of_the_table_without_copies(table: Path) -> None:
    before = content(table)
    fresh = Versions(table).build("1.load", without=["day=1/c"])
    assert content(fresh) == {"a": "a", "day=1/b": "day=1/b"}
    assert (fresh / "a").stat().st_ino == (table / "a").stat().st_ino
    (fresh / "d").write_text("d")
    assert content(table) == before
    Versions(table).switch(fresh)
    assert content(table) == {"a": "a", "day=1/b": "day=1/b", "d": "d"}
    assert content(fresh) == before, "the older version is there for readers that have begun"


def test_an_attempt_that_broke_off_is_made_anew(table: Path) -> None:
    (Versions(table).build("1.load") / "half").touch()
    assert "half" not in content(Versions(table).build("1.load"))


def test_versions_go_after_a_time(table: Path) -> None:
    found = Versions(table)
    for kind in ("1.load", "2.compaction", "3.load"):
        found.build(kind)
    os.utime(found.folder / "1.load", (1, 1))
    os.utime(found.folder / "2.compaction", (1, 1))
    assert [path.name for path in found.remove(found.now() - 10, ".load")] == ["1.load"]
    assert [path.name for path in found.remove(2)] == ["2.compaction"]


def test_the_folder_may_be_behind_a_symbolic_link(table: Path) -> None:
    alias = table.with_name("alias")
    alias.symlink_to(table)
    fresh = Versions(alias).build("1.load")
    (fresh / "d").write_text("d")
    Versions(alias).switch(fresh)
    assert alias.is_symlink()
    assert "d" in content(table)


def test_a_load_appears_in_the_folder_in_one_step(tmp_path: Path) -> None:
    topic = MemoryTopic({0: 30})
    steps = load(tmp_path / "orders", topic).steps()
    seen = [(step, len(list((tmp_path / "orders").glob("*.parquet")))) for step in steps]
    assert {files for _, files in seen} == {0, 3}
    assert next(step for step, files in seen if files) == "committed"


def test_without_an_exchange_files_get_their_names_after_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise NoExchange("no")

    monkeypatch.setattr(versions, "_exchange", refuse)
    table, topic = tmp_path / "orders", MemoryTopic({0: 30})
    running = load(table, topic).steps()
    while next(running) != "committed":
        assert not list(table.glob("*.parquet"))
    running.close()
    assert load(table, topic).run().records == 0
    assert len(list(table.glob("*.parquet"))) == 3
    assert not list(Versions(table).folder.iterdir())


def test_versions_of_loads_do_not_pile_up(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    for end in range(1, 6):
        load(table, MemoryTopic({0: end})).run()
        for old in Versions(table).folder.iterdir():
            os.utime(old, (1, 1))
    assert len(list(Versions(table).folder.iterdir())) == 1


def test_dead_letters_wait_for_the_lock_of_their_table(tmp_path: Path) -> None:
    topic = MemoryTopic({0: 5}, bad=frozenset({3}), on_error="dlq")
    dead = ParquetTable(tmp_path / "dead")
    with (
        Workspace(dead.table).locked("compaction"),
        pytest.raises(StorageError, match="dead is held by a compaction: process"),
    ):
        load(tmp_path / "orders", topic).run()
    assert load(tmp_path / "orders", topic).run().dead == 1
