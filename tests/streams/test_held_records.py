"""Records that wait until many rows on disk are read at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError
from kafkalite.streams import Streams, json, string, sum_
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.operators import folding
from kafkalite.streams.local.operators.held import BATCHES_MAX
from kafkalite.streams.local.state.directory import StateDirectory
from kafkalite.streams.local.state.rocks import RocksBackend
from kafkalite.streams.local.task import Task

# Without native code each batch is folded in as it comes.
native = pytest.mark.skipif(not folding.NATIVE, reason="folded in native code alone")
KEYS = [b"d", b"a", b"c", b"b"]


def totals(*, goes_out: bool = False) -> Streams:
    app = Streams("app", key=string())
    table = (
        app.stream("in", value=json()).group_by_key().aggregate(sum_(), name="sum", value=json())
    )
    if goes_out:
        table.to_stream().to("out", value=json())
    return app


class Disk:
    """A task whose rows are on disk, and the reads of its backend."""

    def __init__(self, path: Path, app: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
        (self.sub,) = compile_topology(app.plan())
        self.directory = StateDirectory(path, "app")
        self.reads: list[list[bytes]] = []
        get_many = RocksBackend.get_many

        def counted(backend: RocksBackend, keys: Sequence[bytes]) -> list[bytes | None]:
            self.reads.append(list(keys))
            return get_many(backend, keys)

        monkeypatch.setattr(RocksBackend, "get_many", counted)
        self.offset = 0
        self.open()
        self.feed(KEYS, [1, 2, 3, 4])
        self.commit()
        self.task.close()
        self.open()

    def open(self) -> None:
        self.task = Task(self.sub, 0, place=self.directory.task("0_0"))

    def feed(self, keys: Sequence[bytes], values: Sequence[object]) -> None:
        end = self.offset + len(keys)
        data: list[bytes | None] = [f"{value}".encode() for value in values]
        self.task.enqueue("in", Columns(keys, data, [5] * len(keys), range(self.offset, end)))
        self.offset = end
        self.task.process(100, 5)

    def commit(self) -> Any:
        made = self.task.commit()
        self.task.checkpoint({self.task.changelog_topics["sum"]: self.offset})
        return made

    def rows(self) -> dict[str, int]:
        return dict(self.task.store("sum").all())


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(tmp_path, totals(), monkeypatch)
    yield made
    made.task.close()


@native
def test_rows_of_several_batches_are_read_at_once_and_in_order(disk: Disk) -> None:
    for keys, values in (([b"d", b"b"], [10, 20]), ([b"a"], [30]), ([b"d", b"n"], [40, 50])):
        disk.feed(keys, values)
    assert disk.reads == []
    (changelog,) = disk.commit().changelog
    assert disk.reads == [[b"a", b"b", b"d", b"n"]]
    written = dict(zip(changelog.columns.keys, changelog.columns.values, strict=True))
    assert written == {b"d": b"51", b"b": b"24", b"a": b"32", b"n": b"50"}
    assert disk.rows() == {"a": 32, "b": 24, "c": 3, "d": 51, "n": 50}


def test_who_looks_into_the_store_finds_every_record(disk: Disk) -> None:
    disk.feed([b"a"], [10])
    disk.feed([b"a"], [20])
    assert disk.task.store("sum").get("a") == 32


@native
def test_no_more_than_some_batches_wait(disk: Disk) -> None:
    for _ in range(BATCHES_MAX - 1):
        disk.feed([b"a"], [1])
    assert not disk.reads
    disk.feed([b"c"], [1])
    assert disk.reads == [[b"a", b"c"]]


def test_records_that_wait_count_as_rows_in_memory(disk: Disk) -> None:
    assert disk.task.object_bytes == 0
    disk.feed([b"a", b"b"], [1, 1])
    waiting = disk.task.object_bytes
    assert waiting > 0
    disk.task.commit()
    assert disk.task.object_bytes > 0


@native
def test_a_record_that_cannot_be_added_is_named(disk: Disk) -> None:
    disk.feed([b"a", b"b"], [1, 2])
    disk.feed([b"c", b"d"], [3, '"x"'])
    with pytest.raises(ProcessingError, match=r"'in', partition 0, offset 7.*unsupported operand"):
        disk.task.store("sum")
    with pytest.raises(ProcessingError, match="has failed"):
        disk.task.commit()


@native
def test_those_below_hear_of_it_with_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, totals(goes_out=True), monkeypatch)
    disk.feed([b"a"], [10])
    disk.feed([b"b", b"a"], [10, 10])
    assert not disk.task.drain()
    (output,) = disk.commit().outputs
    assert sorted(zip(output.columns.keys, output.columns.values, strict=True)) == [
        (b"a", b"22"),
        (b"b", b"14"),
    ]
    assert disk.reads == [[b"a", b"b"]]
    disk.task.close()


def test_records_do_not_wait_where_each_update_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Streams("app", key=string())
    table = app.stream("in", value=json()).group_by_key().count(name="sum", cached=False)
    table.to_stream().to("out", value=json())
    disk = Disk(tmp_path, app, monkeypatch)
    disk.feed([b"a"], [10])
    (output,) = disk.task.drain()
    assert list(output.columns.values) == [b"2"]
    disk.task.close()
