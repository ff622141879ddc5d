"""Directories of state: who has which, and what happens to those that cannot be read."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.errors import TopologyError
from kafkalite.streams.local.state import directory as module
from kafkalite.streams.local.state.directory import NOTE_MS, OFFSETS, StateDirectory
from kafkalite.streams.local.state.rocks import DAMAGED

HOLD = """
import sys
from kafkalite.streams.local.state.directory import NOTE_MS, OFFSETS, StateDirectory
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


@pytest.mark.slow
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
    assert "0_1/n: deleted and rebuilt from the changelog: " in caplog.text
    task.close()


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TopologyError, match="file/app cannot be used: Not a directory"):
        StateDirectory(tmp_path / "file", "app")


class TestOffsets:
    """How far tasks on disk are, without opening them."""

    def test_they_are_noted_when_a_task_is_closed(self, tmp_path: Path) -> None:
        state = StateDirectory(tmp_path, "app")
        task = state.task("0_1")
        task.backend("n").put_many({b"a": b"1"}, {"offset": b"17"})
        task.backend("empty")
        assert state.offsets() == {}
        task.close()
        assert state.offsets() == {"0_1": {"n": 17}}

    def test_they_are_noted_now_and_then_while_it_runs(self, tmp_path: Path) -> None:
        state = StateDirectory(tmp_path, "app")
        task = state.task("0_1")
        backend = task.backend("n")
        for now_ms, offset in ((NOTE_MS, b"1"), (NOTE_MS + 1, b"2")):
            backend.put_many({}, {"offset": offset})
            task.note(now_ms)
            assert state.offsets() == {"0_1": {"n": 1}}
        task.note(2 * NOTE_MS)
        assert state.offsets() == {"0_1": {"n": 2}}
        task.close()

    def test_of_two_directories_of_a_task_the_one_that_is_further_counts(
        self, tmp_path: Path
    ) -> None:
        state = StateDirectory(tmp_path, "app")
        first, second = state.task("0_1"), state.task("0_1")
        assert second.path.name == "0_1.2"
        first.backend("n").put_many({}, {"offset": b"3"})
        second.backend("n").put_many({}, {"offset": b"9"})
        first.close()
        second.close()
        assert state.offsets() == {"0_1": {"n": 9}}
        again = state.first_choice("0_1")
        assert again is not None
        assert again.path.name == "0_1.2"
        again.close()

    def test_what_cannot_be_read_counts_as_nothing(self, tmp_path: Path) -> None:
        state = StateDirectory(tmp_path, "app")
        for number, text in enumerate(("", "[1]", '{"n": "x"}', "\xff")):
            (state.path / f"0_{number}").mkdir()
            (state.path / f"0_{number}" / OFFSETS).write_text(text)
        (state.path / "worker-1").touch()
        assert state.offsets() == {}


def test_all_stores_share_one_cache(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    first, second = directory.task("0_0"), directory.task("0_1")
    stores = [first.backend("a"), first.backend("b"), second.backend("a")]
    for number, store in enumerate(stores):
        store.put_many({b"%05d" % key: b"%d" % number * 100 for key in range(25_000)})
        store.get_many([b"%05d" % key for key in range(25_000)])
    used = {store.cached_bytes for store in stores}
    assert len(used) == 1
    assert used.pop() > 3 * 25_000 * 100 // 2
    first.close()
    second.close()
