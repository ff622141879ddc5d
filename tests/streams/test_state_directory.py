"""Directories of state: who has which, and what happens to those that cannot be read."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.errors import TopologyError
from kafkalite.streams.local.state import directory as module
from kafkalite.streams.local.state.directory import StateDirectory
from kafkalite.streams.local.state.rocks import DAMAGED

HOLD = """
import sys
from kafkalite.streams.local.state.directory import StateDirectory
task = StateDirectory(sys.argv[1], "app").task("0_1")
task.backend("n").put_many({b"a": b"1"})
print("has", flush=True)
sys.stdin.read()
"""


def test_a_task_finds_its_rows_again(tmp_path: Path) -> None:
    task = StateDirectory(tmp_path, "app").task("0_1")
    task.backend("n").put_many({b"a": b"1"}, {"offset": b"1"})
    task.close()
    again = StateDirectory(tmp_path, "app").task("0_1")
    assert again.path == tmp_path / "app" / "0_1"
    assert again.backend("n").get_many([b"a"]) == [b"1"]
    again.close()


def test_what_another_process_has_is_left_alone_until_it_dies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "has\n"
        ours = StateDirectory(tmp_path, "app")
        with caplog.at_level(logging.INFO):
            task = ours.task("0_1")
        assert task.path.name == "0_1.2"
        assert f"0_1: process {other.pid} has this state" in caplog.text
        assert ours.task("0_2").path.name == "0_2"
        task.close()
        other.kill()
        other.wait()
    task = ours.task("0_1")
    assert task.path.name == "0_1"
    assert task.backend("n").get_many([b"a"]) == [b"1"]
    task.close()


def test_so_many_processes_are_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS_MAX", 2)
    directory = StateDirectory(tmp_path, "app")
    tasks = [directory.task("0_0"), directory.task("0_0")]
    with pytest.raises(TopologyError, match="app: 2 processes have the state of task 0_0"):
        directory.task("0_0")
    for task in tasks:
        task.close()


@pytest.mark.parametrize("harm", ["file", "marker"])
def test_a_damaged_store_is_made_anew_and_said(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = StateDirectory(tmp_path, "app")
    task = directory.task("0_1")
    task.backend("n").put_many({b"a": b"1"}, {"offset": b"1"})
    task.backend("other").put_many({b"b": b"2"})
    task.close()
    if harm == "file":
        (task.path / "n" / "CURRENT").write_bytes(b"nonsense")
    else:
        (task.path / "n" / DAMAGED).touch()
    task = directory.task("0_1")
    damaged = task.backend("n")
    assert (damaged.is_empty, damaged.metadata("offset")) == (True, None)
    assert task.backend("other").get_many([b"b"]) == [b"2"]
    assert len(caplog.records) == 1
    assert "0_1/n: thrown away and rebuilt from the changelog: " in caplog.text
    task.close()


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TopologyError, match="file/app cannot be used: Not a directory"):
        StateDirectory(tmp_path / "file", "app")
