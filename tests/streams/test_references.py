"""The native loops of joins by a foreign key do what their twins do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.streams.foreign import HASH_BYTES, Asked, AskedCodec, What
from kafkalite.streams.local.operators import references, references_pure

if not references.NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

KEYS = st.one_of(st.none(), st.binary(max_size=3))
HASHES = st.one_of(st.none(), st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES))
ROWS = st.one_of(st.none(), st.just({}))
UPDATES = st.lists(st.tuples(st.binary(max_size=3), ROWS, ROWS, KEYS, KEYS, HASHES), max_size=8)
PARTITIONS = st.integers(0, (1 << 31) - 1)
ASKED = st.builds(
    lambda what, its, task, key: AskedCodec().serialize("", [Asked(what, its, task, key)])[0],
    st.sampled_from(What), HASHES, PARTITIONS, st.binary(max_size=3),
)  # fmt: skip


def columns(rows: list[Any], count: int) -> list[list[Any]]:
    return [[row[at] for row in rows] for at in range(count)]


@given(UPDATES, PARTITIONS, st.booleans())
def test_updates_ask_for_the_same(updates: list[Any], task: int, is_left: bool) -> None:
    given_columns = columns(updates, 6)
    native = references.asks(*given_columns, task, is_left)
    assert native == references_pure.asks(*given_columns, task, is_left)


@given(st.lists(st.tuples(KEYS, ASKED, st.integers(0, 9)), max_size=8))
def test_the_store_changes_alike(records: list[Any]) -> None:
    given_columns = columns(records, 3)
    try:
        expected = references_pure.matched(*given_columns)
    except AssertionError:
        with pytest.raises(AssertionError, match="a reference of no row"):
            references.matched(*given_columns)
    else:
        assert references.matched(*given_columns) == expected


@given(st.lists(st.tuples(ASKED, st.one_of(st.none(), st.binary(max_size=3)), HASHES), max_size=8))
def test_answers_are_written_and_opened_alike(records: list[Any]) -> None:
    asked, rows, hashes = columns(records, 3)
    found = references.answers(asked, rows)
    assert found == references_pure.answers(asked, rows)
    assert references.opened(found[1], hashes) == references_pure.opened(found[1], hashes)
    fresh, data = references.opened(found[1], [each[7:23] if each[2] else None for each in asked])
    assert all(fresh)
    assert data == rows


def test_columns_of_several_lengths_are_refused() -> None:
    with pytest.raises(AssertionError):
        references.asks([b"k"], [], [], [], [], [], 0, True)
    with pytest.raises(AssertionError):
        references.matched([b"k"], [], [])
    with pytest.raises(AssertionError):
        references.opened([b"short"], [None])
