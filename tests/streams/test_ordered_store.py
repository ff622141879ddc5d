"""Rows in the order of their keys: against a plain dict, through commits, restarts and memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kafkalite.core.types import Columns, Headers, concat
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.serde.json import json
from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.serde import SerdeContext
from kafkalite.streams.local.state import OrderedStore
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.state.ordered import RESERVED_KEY
from kafkalite.streams.local.state.rocks import RocksBackend

TOPIC = "app-join-left-changelog"
CODEC = msgpack().open(SerdeContext(None, False))
# Few different keys, so that they meet; the greatest and the smallest byte are where ends slip.
KEYS = st.lists(st.sampled_from([0, 97, 255]), min_size=1, max_size=2).map(
    lambda end: b"row-k" + bytes(end)
)
ENDS = KEYS | st.none()
HEADERS = st.sampled_from([(), (("trace", b"1"),)])


def make_store(backend: Backend | None = None) -> OrderedStore:
    return OrderedStore("join-left", TOPIC, CODEC, backend)


class StoreMachine(RuleBasedStateMachine):
    """A store beside the dict that it must equal."""

    def __init__(self, backend: Callable[[], Backend]) -> None:
        super().__init__()
        self.make_backend = backend
        self.backend = backend()
        self.store = make_store(self.backend)
        self.rows: dict[bytes, tuple[Any, int, Headers]] = {}
        self.note: bytes | None = None
        self.log: list[Columns] = []  # the changelog
        self.committed = 0  # entries of it that a checkpoint has told of

    @rule(key=KEYS, value=st.integers(0, 5), stamp=st.integers(0, 9), headers=HEADERS)
    def put(self, key: bytes, value: int, stamp: int, headers: Headers) -> None:
        self.store.put(key, [value], stamp, headers)
        self.rows[key] = ([value], stamp, headers)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.store.delete(key, 10)
        self.rows.pop(key, None)

    @rule(low=KEYS, high=ENDS)
    def delete_range(self, low: bytes, high: bytes | None) -> None:
        self.store.delete_range(low, high, 10)
        self.rows = {
            k: row for k, row in self.rows.items() if k < low or (high is not None and k >= high)
        }

    @rule(note=st.binary(max_size=3))
    def leave_note(self, note: bytes) -> None:
        self.store.note = self.note = note

    @rule(is_checkpointed=st.booleans())
    def commit(self, is_checkpointed: bool) -> None:
        if (columns := self.store.changelog()) is not None:
            self.log.append(columns)
        if is_checkpointed:
            self.store.checkpoint(sum(map(len, self.log)), now_ms=0)
            self.committed = len(self.log)
            if self.backend.is_durable:
                self.store.shrink(0)

    @rule()
    def restart(self) -> None:
        """All that was committed comes back: what the disk lacks from the changelog."""
        self.commit(is_checkpointed=False)
        if not self.backend.is_durable:
            self.backend, self.committed = self.make_backend(), 0
        self.store = make_store(self.backend)
        for columns in self.log[self.committed :]:
            self.store.restore(columns)
        self.store.settle()

    @invariant()
    def note_is_kept(self) -> None:
        assert self.store.note == self.note

    @rule(low=KEYS, high=ENDS, reverse=st.booleans())
    def range(self, low: bytes, high: bytes | None, reverse: bool) -> None:
        expected = sorted(
            ((k, row) for k, row in self.rows.items() if k >= low and (not high or k < high)),
            reverse=reverse,
        )
        assert list(self.store.range(low, high, reverse=reverse)) == expected

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.rows.get(key)

    @rule()
    def length(self) -> None:
        assert len(self.store) == len(self.rows)

    def teardown(self) -> None:
        self.backend.close()


@contextmanager
def rocks() -> Iterator[Callable[[], Backend]]:
    with tempfile.TemporaryDirectory() as folder:
        made = iter(range(10_000))
        yield lambda: RocksBackend(Path(folder) / str(next(made)))


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_a_store_equals_a_dict(kind: str) -> None:
    examples = settings(max_examples=60 if kind == "memory" else 20, stateful_step_count=30)
    if kind == "memory":
        run_state_machine_as_test(lambda: StoreMachine(MemoryBackend), settings=examples)
        return
    with rocks() as backend:
        run_state_machine_as_test(lambda: StoreMachine(backend), settings=examples)


def test_a_row_that_is_deleted_before_the_changelog_heard_of_it_is_a_deletion_there() -> None:
    store = make_store()
    store.put(b"row-key", 1, 5)
    store.delete(b"row-key", 7)
    columns = store.changelog()
    assert columns is not None
    assert (columns.keys, columns.values, columns.timestamps) == ([b"row-key"], [None], [7])
    assert store.changelog() is None


def test_what_cannot_be_written_is_still_to_be_written() -> None:
    store = make_store()
    store.put(b"row-key", object(), 5)
    with pytest.raises(SerdeError):
        store.changelog()
    store.put(b"row-key", 1, 5)
    assert store.changelog() is not None


def test_a_record_that_is_no_row_is_named_by_its_index() -> None:
    store = make_store()
    rows = [CODEC.serialize(TOPIC, [1])[0], b"\xc1"]
    with pytest.raises(SerdeError) as refused:
        store.restore(Columns([b"row-key1", b"row-key2"], rows, [0, 0]))
    assert refused.value.index == 1


def test_a_row_of_another_shape_names_store_and_topic_when_it_is_wanted() -> None:
    store = OrderedStore("join-left", TOPIC, json().open(SerdeContext(None, False)))
    store.restore(Columns([b"row-%d" % n for n in range(100)], [b"1"] * 40 + [b"{"] + [b"1"] * 59,
                          list(range(100))))  # fmt: skip
    with pytest.raises(ProcessingError, match=r"store 'join-left': a row of 'app-join-left"):
        store.settle()


def test_only_a_store_with_a_view_can_be_looked_into() -> None:
    with pytest.raises(TopologyError, match="store 'join-left' has no rows for users"):
        make_store().view()
    store = OrderedStore("timers", TOPIC, CODEC, view=lambda store: [k for k, _ in store.range()])
    store.put(b"row-key", 1, 0)
    assert store.view() == [b"row-key"]


def test_the_note_is_no_key_on_disk_either() -> None:
    with rocks() as backend:
        store = OrderedStore("st", TOPIC, CODEC, backend(), note_key=RESERVED_KEY)
        store.put(b"key", 1, 0)
        store.note = b"note"
        store.changelog()
        store.checkpoint(1, 0)
        assert store.keys() == [b"key"]


def test_a_standby_takes_in_what_the_changelog_goes_on_with() -> None:
    log = []
    first, standby = make_store(), make_store()
    for value in range(3):
        first.put(b"row-key", value, value)
        first.put(b"row-%03d" % value, value, value)
        log.append(first.changelog())
        standby.restore(log[-1])
        standby.settle()
    assert list(standby.range()) == list(first.range())
    assert len(concat(c for c in log if c is not None)) == 6
