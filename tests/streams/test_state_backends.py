"""Backends of state: one suite for all of them, against a plain dict."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkalite.errors import TopologyError
from kafkalite.streams.local.state import rocks
from kafkalite.streams.local.state.backend import Backend, StateDamaged, after
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.state.rocks import DAMAGED, RocksBackend

# Few different bytes, so that keys meet; the greatest and the smallest byte are where ends slip.
KEYS = st.lists(st.sampled_from([0, 1, 97, 254, 255]), max_size=4).map(bytes)
VALUES = st.binary(max_size=3) | st.none()
ROWS = st.dictionaries(KEYS, VALUES, max_size=8)
ENDS = KEYS | st.none()
NAMES = st.sampled_from(["offset", "times"])


class BackendMachine(RuleBasedStateMachine):
    """A backend beside the dict that it must equal."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        super().__init__()
        self.rows: dict[bytes, bytes] = {}
        self.entries: dict[str, bytes] = {}
        self.make = make
        self.backend = make()

    @rule(rows=ROWS, entries=st.dictionaries(NAMES, st.binary(max_size=3)))
    def put(self, rows: dict[bytes, bytes | None], entries: dict[str, bytes]) -> None:
        self.backend.put_many(rows, entries)
        self._put(rows)
        self.entries |= entries

    @rule(rows=ROWS, start=KEYS, end=ENDS)
    def put_over_a_cleared_range(
        self, rows: dict[bytes, bytes | None], start: bytes, end: bytes | None
    ) -> None:
        self.backend.put_many(rows, cleared=[(start, end)])
        self._delete(start, end)
        self._put(rows)

    @rule(rows=ROWS, entries=st.dictionaries(NAMES, st.binary(max_size=3)))
    def load(self, rows: dict[bytes, bytes | None], entries: dict[str, bytes]) -> None:
        table = self.backend.loading()
        table.update(list(rows), list(rows.values()))
        for _ in self.backend.load(table, entries):
            pass
        self._put(rows)
        self.entries |= entries

    @rule(start=KEYS, end=ENDS)
    def delete_range(self, start: bytes, end: bytes | None) -> None:
        self.backend.delete_range(start, end)
        self._delete(start, end)

    @rule()
    def clear(self) -> None:
        self.backend.clear()
        self.rows, self.entries = {}, {}

    @rule(keys=st.lists(KEYS, max_size=6))
    def get(self, keys: list[bytes]) -> None:
        assert self.backend.get_many(keys) == [self.rows.get(key) for key in keys]

    @rule(start=KEYS, end=ENDS)
    def range(self, start: bytes, end: bytes | None) -> None:
        assert list(self.backend.range(start, end)) == sorted(
            (k, v) for k, v in self.rows.items() if k >= start and (end is None or k < end)
        )

    @rule(prefix=KEYS)
    def range_of_a_prefix(self, prefix: bytes) -> None:
        found = [key for key, _ in self.backend.range(prefix, after(prefix))]
        assert found == sorted(key for key in self.rows if key.startswith(prefix))

    @rule(length=st.integers(1, 3))
    def prefixes(self, length: int) -> None:
        if all(len(key) >= length for key in self.rows):
            assert self.backend.prefixes(length) == sorted({key[:length] for key in self.rows})

    @precondition(lambda self: self.backend.is_durable)
    @rule()
    def open_again(self) -> None:
        self.backend.close()
        self.backend = self.make()

    @invariant()
    def rows_and_metadata_are_all_there(self) -> None:
        assert list(self.backend.range()) == sorted(self.rows.items())
        for name in ("offset", "times"):
            assert self.backend.metadata(name) == self.entries.get(name)
        assert self.backend.is_empty == (not self.rows)
        assert (self.backend.approximate_bytes() > 0) >= bool(self.rows)

    def teardown(self) -> None:
        self.backend.close()

    def _put(self, rows: dict[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def _delete(self, start: bytes, end: bytes | None) -> None:
        self.rows = {
            k: v for k, v in self.rows.items() if k < start or (end is not None and k >= end)
        }


class MemoryMachine(BackendMachine):
    def __init__(self) -> None:
        super().__init__(MemoryBackend)


class RocksMachine(BackendMachine):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        super().__init__(lambda: RocksBackend(Path(self.folder.name) / "store"))

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class BulkRocksMachine(RocksMachine):
    """Every call of two rows goes the way of many rows."""

    def __init__(self) -> None:
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(rocks, "BULK_ROWS", 2)
        self.patched.setattr(rocks, "STEP_ROWS", 2)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.patched.undo()


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestRocks = RocksMachine.TestCase
TestRocksInBulk = BulkRocksMachine.TestCase
TestRocks.settings = TestRocksInBulk.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None
)
TestRocks = pytest.mark.slow(TestRocks)
TestRocksInBulk = pytest.mark.slow(TestRocksInBulk)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "store"


def test_many_rows_are_taken_in_as_a_file_and_survive(path: Path) -> None:
    backend = RocksBackend(path)
    rows: dict[bytes, bytes | None] = {b"%06d" % i: b"v%d" % i for i in range(rocks.BULK_ROWS + 5)}
    backend.put_many({b"000007": b"older", b"x": b"1"})
    backend.put_many(rows | {b"x": None}, {"offset": b"7"})
    backend.close()
    again = RocksBackend(path)
    assert again.get_many([b"000007", b"x"]) == [b"v7", None]
    assert sum(1 for _ in again.range()) == len(rows)
    assert again.metadata("offset") == b"7"
    again.close()


def test_a_process_that_dies_leaves_what_it_put(path: Path, tmp_path: Path) -> None:
    backend = RocksBackend(path)
    backend.put_many({b"a": b"1"}, {"offset": b"1"})
    copy = tmp_path / "copy"  # the files as they are while the first one is still open
    copy.mkdir()
    for file in path.iterdir():
        if file.name != "LOCK":
            (copy / file.name).write_bytes(file.read_bytes())
    again = RocksBackend(copy)
    assert (again.get_many([b"a"]), again.metadata("offset")) == ([b"1"], b"1")
    again.close()
    backend.close()


def test_files_that_cannot_be_read_are_said_and_marked(path: Path) -> None:
    RocksBackend(path).close()
    (path / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(StateDamaged, match=r"store: .*; the next start rebuilds this state"):
        RocksBackend(path)
    assert RocksBackend.is_damaged(path)
    assert (path / DAMAGED).exists()


def test_without_rocksdict_the_message_says_how_to_get_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
    with pytest.raises(TopologyError, match=r"rocksdict is not installed: pip install 'kafkalite"):
        RocksBackend(path)
