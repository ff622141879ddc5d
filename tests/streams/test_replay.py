"""Where the replay of a changelog begins, and what becomes of rows that are of no use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.replay import DELETIONS_STAY_MS, Replay
from kafkalite.streams.local.state.kept import Kept
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.state.row_table import RowTable
from kafkalite.streams.sizes import size_in_bytes

CHANGELOG = TopicPartition("app-n-changelog", 3)


class Disk(MemoryBackend):
    is_durable = True


class Slow(Disk):
    """A disk that takes a row at each step."""

    def loading(self) -> RowTable:
        return RowTable(keeps_deletions=True)

    def load(self, rows: RowTable, metadata: Mapping[str, bytes]) -> Iterator[None]:
        for some in rows.in_order(b"", 1):
            self.put_many(dict(zip(*some, strict=True)))
            yield
        self.put_many({}, metadata)


class Task:
    """A task of one store of two rows, at offset 20."""

    def __init__(self, disk: MemoryBackend | None = None) -> None:
        self.disk = Disk() if disk is None else disk
        self.open()

    def open(self) -> None:
        self.store = Kept(self.disk, has_windows=False)

    def kept(self, name: str) -> Kept:
        return self.store

    def restore(self, store: str, batch: Columns) -> None:
        self.store.load(batch)

    def keys(self) -> list[bytes]:
        return [key for key, _ in self.disk.range()]


def begin(task: Task, **changed: Any) -> Replay:
    told = {"topic_id": "id-1", "beginning": 0, "end": 30, "now_ms": 1_000} | changed
    return Replay.begin(task, "n", told.pop("changelog", CHANGELOG), **told)


def restored(**changed: Any) -> Task:
    task = Task()
    replay = begin(task, end=20, **changed)
    replay.take(Columns([b"a", b"b"], [b"1", b"2"], [5, 6]))
    assert replay.reached(20, 1_000)
    task.open()  # as after a restart
    return task


def test_without_rows_it_begins_at_the_first_offset() -> None:
    replay = begin(Task(), beginning=7)
    assert (replay.start, replay.end, replay.thrown_away) == (7, 30, None)


def test_a_checkpoint_leaves_the_tail() -> None:
    task = restored()
    assert begin(task).start == 20
    assert task.keys() == [b"a", b"b"]
    assert task.store.newest == 6


def test_a_replay_is_over_at_the_end_whatever_was_read() -> None:
    task = Task()
    replay = begin(task, end=30)
    assert not replay.reached(29, 1_000)
    assert task.store.offset == 29
    assert replay.reached(31, 1_000)  # a marker behind the last record
    assert begin(task, end=31).start == 31


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"end": 19}, "it is at offset 20 of a changelog that ends at 19"),
        ({"beginning": 21}, "it is at offset 20 of a changelog that begins at 21"),
        ({"now_ms": 1_001 + DELETIONS_STAY_MS}, "it is older than deletions stay in the changelog"),
        ({"changelog": TopicPartition("other", 3)}, "it is of app-n-changelog-3"),
    ],
)
def test_rows_that_do_not_belong_are_thrown_away(changed: dict[str, Any], reason: str) -> None:
    task = restored()
    replay = begin(task, **changed)
    assert replay.thrown_away == reason
    assert (task.keys(), replay.start) == ([], changed.get("beginning", 0))


def test_an_old_checkpoint_without_a_tail_is_good() -> None:
    assert begin(restored(), end=20, now_ms=10 * DELETIONS_STAY_MS).thrown_away is None


def test_rows_of_another_form_are_thrown_away() -> None:
    task = restored()
    task.disk.put_many({}, {"format": b"0"})
    assert begin(task).thrown_away == "another version of kafkalite wrote it"
    assert task.keys() == []


def test_rows_without_an_offset_are_thrown_away() -> None:
    disk = Disk()
    disk.put_many({b"x": b"y"})
    task = Task(disk)
    assert begin(task).thrown_away == "it was never finished"
    assert task.keys() == []


def test_a_changelog_that_was_made_anew_is_refused_by_name() -> None:
    task = restored()
    with pytest.raises(
        TopologyError, match=r"'app-n-changelog' was deleted and created again .*id-2"
    ):
        begin(task, topic_id="id-2")
    assert task.keys() == [b"a", b"b"]


def test_what_is_deleted_while_it_is_read_is_read_anew() -> None:
    task = Task()
    replay = begin(task)
    replay.take(Columns([b"a"], [b"1"], [5]))
    assert not replay.reached(5, 1_000)
    replay.start_over(12)
    replay.take(Columns([b"b"], [b"2"], [5]))
    assert replay.reached(30, 1_000)
    assert task.keys() == [b"b"]
    task.open()
    assert begin(task).start == 30


def test_a_replay_is_over_once_its_rows_are_written() -> None:
    task = Task(Slow())
    replay = begin(task)
    replay.take(Columns([b"a", b"b", b"a"], [b"1", b"2", None], [5, 6, 7]))
    assert not replay.reached(30, 1_000)
    assert replay.is_writing
    assert not replay.reached(30, 1_000)
    assert (task.keys(), task.disk.metadata("offset")) == ([b"b"], None)
    assert replay.reached(30, 1_000)
    assert task.disk.metadata("offset") == b"30"
    task.open()
    assert begin(task).start == 30


def test_a_replay_with_much_in_memory_writes_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkalite.streams.local.state.kept.LOAD_BYTES_MAX", 1)
    task = Task(Slow())
    replay = begin(task)
    replay.take(Columns([b"a", b"b"], [b"1", b"2"], [5, 6]))
    steps = 0
    while not replay.reached(2, 1_000) and replay.is_writing:
        steps += 1
    assert (steps, task.disk.metadata("offset")) == (2, b"2")
    replay.take(Columns([b"a"], [None], [7]))
    while not replay.reached(30, 1_000):
        pass
    assert (task.keys(), task.disk.metadata("offset")) == ([b"b"], b"30")


def test_a_replay_that_starts_over_forgets_what_it_was_about_to_write() -> None:
    task = Task(Slow())
    replay = begin(task)
    replay.take(Columns([b"a", b"b"], [b"1", b"2"], [5, 6]))
    assert not replay.reached(30, 1_000)
    replay.start_over(12)
    replay.take(Columns([b"c"], [b"3"], [5]))
    assert not replay.reached(20, 1_000)  # its end is to be reached again
    replay.settle()
    while not replay.reached(30, 1_000):
        pass
    assert task.keys() == [b"c"]


def test_a_restore_that_broke_off_goes_on_where_it_wrote_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkalite.streams.local.state.kept.LOAD_BYTES_MAX", 1)
    task = Task()
    replay = begin(task)
    replay.take(Columns([b"a"], [b"1"], [5]))
    assert not replay.reached(5, 1_000)
    task.open()
    assert begin(task).start == 5


@pytest.mark.parametrize(
    ("text", "size"),
    [(7, 7), ("7", 7), ("64MB", 64_000_000), ("1.5 GiB", 1_610_612_736), ("2k", 2_000)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert size_in_bytes(text, "memory") == size


@pytest.mark.parametrize("text", ["", "much", "-1", 0, -5, True, "1TB", "1I"])
def test_no_sizes(text: int | str) -> None:
    with pytest.raises(TopologyError, match="memory: expected bytes or text"):
        size_in_bytes(text, "memory")
