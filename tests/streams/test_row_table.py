"""The native table of rows does what its twin does, and takes no more memory than it may."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.protocol.record_codec import Int64s, Spans
from kafkalite.core.types import Columns
from kafkalite.errors import SerdeError
from kafkalite.streams.local.state import row_table
from kafkalite.streams.local.state.forms import NOTE_KEY, TableKeys, WindowKeys, load_records
from kafkalite.streams.local.state.row_table import PureRowTable, RowTable

native = pytest.mark.skipif(not row_table.NATIVE, reason="the native module was not built")

Row = tuple[bytes, bytes | None]

# Few different bytes, so that keys meet; longer than the eight bytes that are sorted at once.
KEYS = st.lists(st.sampled_from([0, 97, 255]), max_size=11).map(bytes) | st.sampled_from(
    [b"", b"a", b"a\0", b"a" * 9, b"a" * 9 + b"\0", b"a" * 20, b"a" * 20 + b"b"]
)
ROWS = st.lists(st.tuples(KEYS, st.binary(max_size=30) | st.none()), max_size=30)
CHUNK_BYTES = 1 << 18


def everything(table: Any) -> list[object]:
    rows = [pair for some in table.in_order(b"r", 3) for pair in zip(*some, strict=True)]
    keys = [key[1:] for key, _ in rows]
    return [
        len(table),
        table.rows,
        rows,
        table.get(keys),
        sorted(table.keys()),
        table.prefixes(2),
        table.get([b"absent", b""]),
    ]


@native
@given(st.lists(ROWS, max_size=4), st.booleans(), st.booleans())
def test_both_tables_have_the_same_rows(
    updates: list[list[Row]], keeps_deletions: bool, is_cleared: bool
) -> None:
    tables: list[Any] = [made(keeps_deletions=keeps_deletions) for made in (RowTable, PureRowTable)]
    for number, rows in enumerate(updates):
        for table in tables:
            if is_cleared and number == 2:
                table.clear()
            table.update([key for key, _ in rows], [row for _, row in rows])
        assert everything(tables[0]) == everything(tables[1])
    assert (tables[0].bytes_held > 0) >= (len(tables[0]) > 0)


def as_lists(rows: list[tuple[bytes | None, bytes | None, int]]) -> Columns:
    return Columns([k for k, _, _ in rows], [v for _, v, _ in rows], [t for _, _, t in rows])


def as_forms(columns: Columns) -> Columns:
    keys, values = Spans.gathered(columns.keys), Spans.gathered(columns.values)
    assert keys is not None
    assert values is not None
    return Columns(keys, values, Int64s(columns.timestamps))


STARTS = st.integers(0, 3) | st.sampled_from([2**62, 2**63 - 1])
WINDOWED = st.builds(lambda key, start: key + start.to_bytes(8, "big"), KEYS, STARTS)
ODD = st.sampled_from([None, b"", b"not", b"note", b"key" + b"\xff" * 8, b"noted"])
TIMES = st.integers(-1, 3) | st.sampled_from([2**40, 2**63 - 1])


def records(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(keys, st.binary(max_size=20) | st.none(), TIMES), max_size=40)


@native
@given(
    st.one_of(
        st.tuples(st.just(False), records(KEYS)),
        st.tuples(st.just(True), records(WINDOWED | st.just(NOTE_KEY))),
        st.tuples(st.booleans(), records(WINDOWED | ODD)),
    ),
    st.booleans(),
)
def test_records_that_were_fetched_as_spans_leave_the_rows_that_lists_leave(
    case: tuple[bool, list[Any]], keeps_deletions: bool
) -> None:
    has_windows, rows = case
    form = WindowKeys() if has_windows else TableKeys()
    columns = as_lists(rows)
    tables: list[Any] = [made(keeps_deletions=keeps_deletions) for made in (RowTable, PureRowTable)]
    told: list[object] = []
    for table, given_columns in zip(tables, (as_forms(columns), columns), strict=True):
        table.update([b"\0" * 8 + b"here"], [b"\0" * 9])
        try:
            told.append(load_records(table, form, given_columns))
        except SerdeError as error:
            told.append((str(error), error.index))
    assert told[0] == told[1]
    assert everything(tables[0]) == everything(tables[1])


@native
def test_no_object_is_made_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(columns: Columns) -> list[bytes | None]:
        raise AssertionError("rows were made one by one")

    monkeypatch.setattr("kafkalite.streams.local.state.forms.write_rows", refuse)
    columns = as_forms(as_lists([(b"k%d" % (n % 300), b"v", n) for n in range(1_000)]))
    table = RowTable()
    assert load_records(table, TableKeys(), columns).newest == 999
    assert len(table) == 300


def test_rows_of_all_sizes_that_come_and_go() -> None:
    numbers = random.Random(5)
    table, expected = RowTable(), dict[bytes, bytes]()
    for _ in range(60):
        keys = [b"%d" % numbers.randrange(600) for _ in range(400)]
        sizes = [numbers.choice([0, 10, 100, 3_000, 9_000]) for _ in keys]
        rows = [None if numbers.random() < 0.3 else numbers.randbytes(size) for size in sizes]
        if numbers.random() < 0.1:
            rows[0] = numbers.randbytes(CHUNK_BYTES + 1)  # has a chunk of its own
        table.update(keys, rows)
        for key, row in zip(keys, rows, strict=True):
            expected.pop(key, None)
            if row is not None:
                expected[key] = row
        assert len(table) == len(expected)
        assert table.get(list(expected)) == list(expected.values())
        live = sum(len(key) + len(row) + 16 for key, row in expected.items())
        assert table.bytes_held <= 2 * live + (1 << 20) + 2 * CHUNK_BYTES + (1 << 16)


@native
def test_many_rows_that_are_deleted_leave_their_memory() -> None:
    keys = [b"key-%06d" % number for number in range(200_000)]
    table = RowTable()
    table.update(keys, [b"row"] * len(keys))
    full = table.bytes_held
    assert full < 80 * len(keys)
    for first in range(0, len(keys), 1_000):  # as rows become objects, some at a time
        table.update(keys[first : first + 1_000], [None] * 1_000)
    assert (len(table), table.keys()) == (0, [])
    assert table.bytes_held < full / 2
    table.update(keys[:3], [b"again"] * 3)
    assert table.get(keys[:4]) == [b"again"] * 3 + [None]


def test_rows_that_are_written_over_take_no_more_memory() -> None:
    keys = [b"key-%06d" % number for number in range(20_000)]
    table = RowTable(keeps_deletions=True)
    held = []
    for turn in range(20):
        table.update(keys, [b"%d" % turn * (1 + turn % 7 * 10)] * len(keys))
        held.append(table.bytes_held)
    live = len(keys) * (16 + 10 + 61 * 2)
    assert max(held) < 2 * live + (1 << 20) + CHUNK_BYTES + 8 * (1 << 16)


@native
@pytest.mark.parametrize("length", [3, 40])
def test_many_rows_are_sorted_step_by_step(length: int) -> None:
    """Keys that differ in few bytes, and keys that differ behind what is sorted at once."""
    numbers = random.Random(7)
    keys = list({bytes(numbers.choices(b"ab\0\xff", k=9 + length)) for _ in range(40_000)})
    keys = [b"same" + key[:1] + b"-" * length + key for key in keys]
    table = RowTable()
    table.update(keys, [b"%d" % number for number in range(len(keys))])
    steps = list(table.in_order(b"r", 1_000))
    assert [key for some, _ in steps for key in some] == [b"r" + key for key in sorted(keys)]
    assert [row for _, some in steps for row in some] == table.get(sorted(keys))
    assert max(len(some) for some, _ in steps) == 1_000
    assert sum(not some for some, _ in steps) >= 4  # words, bytes, the rest in several steps


def test_an_order_of_a_table_that_has_changed_is_refused() -> None:
    for table in (RowTable(), PureRowTable()):
        table.update([b"a", b"b"], [b"1", b"2"])
        ordered = table.in_order(b"", 1)
        assert next(ordered) == ([b"a"], [b"1"])
        table.update([b"c"], [b"3"])
        with pytest.raises(RuntimeError, match="changed"):
            next(ordered)


@native
def test_what_is_no_bytes_is_refused() -> None:
    table: Any = RowTable()
    with pytest.raises(TypeError, match="expected bytes"):
        table.update(["a"], [b"1"])
    with pytest.raises(TypeError, match="expected bytes"):
        table.update([b"a"], ["1"])
    with pytest.raises(TypeError, match="expected bytes"):
        table.get(["a"])
    with pytest.raises(ValueError, match="1 keys and 0 rows"):
        table.update([b"a"], [])
    assert len(table) == 0
