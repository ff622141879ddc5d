"""The embedded coordination: a tree that survives, all or nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.cluster import local
from kafkalite.core.cluster.coordination import Check, Create, Delete, Entry, Operation, Set
from kafkalite.core.cluster.local import JOURNAL, LocalCoordination
from kafkalite.core.log.storage import FileStorage
from kafkalite.errors import (
    CoordinationError,
    NodeExists,
    NoSuchNode,
    StorageError,
    VersionMismatch,
)


def opened(path: Path) -> LocalCoordination:
    return LocalCoordination(FileStorage(path))


def transact(coordination: LocalCoordination, *operations: Operation) -> None:
    asyncio.run(coordination.transact(operations))


def get(coordination: LocalCoordination, path: str) -> Entry:
    return asyncio.run(coordination.get(path))


def test_values_and_versions_survive(tmp_path: Path) -> None:
    first = opened(tmp_path)
    transact(first, Create("/topics", b""), Create("/topics/a", b"1"))
    transact(first, Set("/topics/a", b"2", version=0))
    transact(first, Create("/brokers", b""), Create("/brokers/1", b"here", is_ephemeral=True))
    transact(first, Set("/brokers/1", b"there"))
    second = opened(tmp_path)
    assert get(second, "/topics/a") == Entry(b"2", 1)
    assert asyncio.run(second.children("/topics")) == ["a"]
    assert asyncio.run(second.children("/brokers")) == []


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a", b""), NodeExists),
        (Create("/b/c", b""), NoSuchNode),
        (Create("b", b""), CoordinationError),
        (Set("/b", b""), NoSuchNode),
        (Set("/a", b"", version=3), VersionMismatch),
        (Delete("/a", version=1), VersionMismatch),
        (Delete("/a"), NodeExists),
        (Check("/a", 1), VersionMismatch),
    ],
)
def test_one_that_fails_undoes_the_whole_transaction(
    tmp_path: Path, operation: Operation, error: type[Exception]
) -> None:
    coordination = opened(tmp_path)
    transact(coordination, Create("/a", b"1"), Create("/a/child", b""))
    with pytest.raises(error):
        transact(coordination, Create("/other", b""), operation)
    for each in (coordination, opened(tmp_path)):
        with pytest.raises(NoSuchNode):
            get(each, "/other")


def test_a_transaction_sees_its_own_changes(tmp_path: Path) -> None:
    coordination = opened(tmp_path)
    transact(coordination, Create("/a", b""), Create("/a/b", b""), Delete("/a/b"), Delete("/a"))
    with pytest.raises(NoSuchNode):
        get(coordination, "/a")


def test_a_torn_last_line_did_not_happen(tmp_path: Path) -> None:
    transact(opened(tmp_path), Create("/a", b""))
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    transact(opened(tmp_path), Create("/b", b"value"))
    after = journal.read_bytes()
    for length in range(len(whole), len(after)):
        journal.write_bytes(after[:length])
        torn = opened(tmp_path)
        with pytest.raises(NoSuchNode):
            get(torn, "/b")
        transact(torn, Create("/c", b""))
        assert get(opened(tmp_path), "/c") == Entry(b"")


def test_damage_before_the_end_is_refused_and_named(tmp_path: Path) -> None:
    coordination = opened(tmp_path)
    transact(coordination, Create("/a", b""))
    transact(coordination, Create("/b", b""))
    journal = tmp_path / JOURNAL
    data = bytearray(journal.read_bytes())
    data[12] ^= 1
    journal.write_bytes(data)
    with pytest.raises(StorageError, match="line 1"):
        opened(tmp_path)


def test_watchers_hear_of_values_and_children(tmp_path: Path) -> None:
    coordination = opened(tmp_path)
    transact(coordination, Create("/a", b""))
    heard: list[str] = []
    stop = coordination.watch("/a", heard.append)
    transact(coordination, Set("/a", b"1"))
    transact(coordination, Create("/a/b", b""))
    transact(coordination, Set("/a/b", b"1"))
    stop()
    transact(coordination, Set("/a", b"2"))
    assert heard == ["/a", "/a"]


def test_history_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "HISTORY_BYTES_MIN", 1_000)
    coordination = opened(tmp_path)
    transact(coordination, Create("/a", b""), Create("/e", b"", is_ephemeral=True))
    for number in range(200):
        transact(coordination, Set("/a", b"%d" % number))
    assert (tmp_path / JOURNAL).stat().st_size < 2_000
    assert get(opened(tmp_path), "/a") == Entry(b"199", 200)


paths = st.sampled_from(["/a", "/a/b", "/a/c", "/d"])
operations = st.one_of(
    st.builds(Create, paths, st.binary(max_size=3)),
    st.builds(Set, paths, st.binary(max_size=3), st.integers(-1, 2)),
    st.builds(Delete, paths, st.integers(-1, 2)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(operations, min_size=1, max_size=3), max_size=10))
def test_what_was_acknowledged_is_what_comes_back(
    tmp_path_factory: pytest.TempPathFactory, script: list[list[Operation]]
) -> None:
    path = tmp_path_factory.mktemp("coordination")
    coordination = opened(path)
    for step in script:
        before = dict(coordination._tree.entries)
        try:
            transact(coordination, *step)
        except CoordinationError:
            assert coordination._tree.entries == before
    kept = {p: e for p, e in coordination._tree.entries.items() if not e.is_ephemeral}
    assert opened(path)._tree.entries == kept
