"""The rows of a segment: native code against its twin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.streams.local.state.segment_rows import (
    MET,
    NATIVE,
    PLAIN,
    WAITS,
    PureSegmentRows,
    SegmentRows,
    decode_piece,
)

native = pytest.mark.skipif(not NATIVE, reason="the native module was not built")

keys = st.one_of(st.sampled_from([b"", b"a", b"ab", b"b"]), st.binary(max_size=12))
LAST = (1 << 63) - 1
far = st.sampled_from([0x7F, 0x100, 1 << 16, 1 << 32, 1 << 62, LAST])
stamps = st.one_of(st.integers(0, 20), far)
values = st.one_of(st.binary(max_size=9), st.sampled_from([b"x" * 300, b"y" * 70_000]))
puts = st.tuples(st.just("put"), keys, stamps, values, st.booleans(), st.booleans())
meets = st.tuples(st.just("meet"), keys, stamps, stamps, st.booleans())
expiries = st.tuples(st.just("expire"), stamps)
commits = st.tuples(st.just("take_news"), st.sampled_from([50, 1_000, 1 << 18]))
lookups = st.tuples(st.just("matches"), keys, stamps, stamps)


@native
@pytest.mark.slow
@given(st.lists(st.one_of(puts, puts, meets, expiries, commits, lookups), max_size=60))
@settings(max_examples=300, deadline=None)
def test_native_rows_and_their_twin_agree(calls: list[Any]) -> None:
    rows, pure = SegmentRows(), PureSegmentRows()
    for name, *arguments in calls:
        assert getattr(rows, name)(*arguments) == getattr(pure, name)(*arguments)
        assert len(rows) == len(pure)
        assert rows.next_wait == pure.next_wait
        assert rows.has_news == pure.has_news


@pytest.mark.parametrize("kind", [SegmentRows, PureSegmentRows])
class TestRows:
    def test_many_keys_are_found_again(self, kind: Any) -> None:
        rows = kind()
        for n in range(20_000):
            rows.put(b"%d" % (n % 5_000), n, b"v%d" % n, False, True)
        assert rows.matches(b"17", 5_000, 10_017) == [(5_017, b"v5017"), (10_017, b"v10017")]
        assert rows.matches(b"none", 0, 20_000) == []
        assert rows.bytes_held > 20_000 * 4

    def test_rows_that_met_before_the_changelog_saw_them_are_plain_ones(self, kind: Any) -> None:
        rows = kind()
        rows.put(b"k", 1, b"old", True)
        ((_, piece, _),) = rows.take_news(1_000)
        assert decode_piece(piece) == [(b"k", 1, b"old", WAITS)]
        rows.put(b"k", 2, b"new", True)
        rows.put(b"k", 3, b"waits", True)
        rows.meet(b"k", 0, 2)
        ((_, piece, newest),) = rows.take_news(1_000)
        events = [(b"k", 1, None, MET), (b"k", 2, b"new", PLAIN), (b"k", 3, b"waits", WAITS)]
        assert (decode_piece(piece), newest) == (events, 3)

    def test_what_waits_ends_in_the_order_of_time_key_and_arrival(self, kind: Any) -> None:
        rows = kind()
        for key, stamp, value in [
            (b"b", 2, b"1"),
            (b"a", 2, b"2"),
            (b"ab", 1, b"3"),
            (b"a", 2, b"4"),
        ]:
            rows.put(key, stamp, value, True)
        rows.put(b"a", 9, b"5", True)
        expired = rows.expire(8)
        assert [value for _, _, value in expired] == [b"3", b"2", b"4", b"1"]
        assert rows.next_wait == 9

    def test_at_the_end_of_time_no_row_comes_twice(self, kind: Any) -> None:
        rows = kind()
        rows.put(b"a", 1, b"1", True)
        assert rows.expire(LAST) == [(1, b"a", b"1")]
        assert rows.expire(LAST) == []
        rows.put(b"a", LAST, b"2", True)
        assert rows.next_wait == LAST
        assert rows.expire(LAST) == [(LAST, b"a", b"2")]


@native
def test_native_rows_take_bytes_alone() -> None:
    with pytest.raises(TypeError, match="bytes expected, got str"):
        SegmentRows().put("k", 1, b"")  # type: ignore[arg-type]
