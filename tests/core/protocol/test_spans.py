"""Forms of bytes and of integers: what a list does, without an object for each record."""

from __future__ import annotations

import gc
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.columns import (
    Form,
    first_over,
    furthest_behind,
    greatest,
    greatest_so_far,
    joined,
    least,
    take,
    where,
)
from kafkalite.core.protocol import record_codec
from kafkalite.core.protocol.record_codec import Int64s, Spans

if not record_codec.NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

ENTRIES = st.lists(st.none() | st.binary(max_size=5), max_size=12)
NUMBERS = st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=12)
COLUMNS = st.one_of(
    ENTRIES.map(lambda entries: (spans(entries), entries)),
    ENTRIES.map(lambda entries: (Spans.gathered(entries), entries)),
    NUMBERS.map(lambda numbers: (Int64s(numbers), numbers)),
)


def spans(entries, data=b"<"):
    """Entries in a buffer that has more than they."""
    starts, ends = [], []
    for entry in entries:
        starts.append(-1 if entry is None else len(data))
        data += entry or b""
        ends.append(-1 if entry is None else len(data))
        data += b"."
    return Spans(data, starts, ends)


def outcome(function, *arguments):
    """What a call gives: its result, or the kind of its error."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)


@given(COLUMNS, st.data())
def test_a_form_gives_what_a_list_gives(column, data):
    form, plain = column
    count = len(plain)
    bounds = st.none() | st.integers(-count - 2, count + 2)
    part = slice(data.draw(bounds), data.draw(bounds), data.draw(bounds.filter(lambda n: n != 0)))
    at = data.draw(st.integers(-count - 2, count + 1))
    wanted = data.draw(st.none() | st.binary(max_size=2) | st.integers(-3, 3) | st.text(max_size=1))
    if plain and data.draw(st.booleans()):
        wanted = data.draw(st.sampled_from(plain))
    assert isinstance(form, Form)
    assert len(form) == count
    assert list(form) == form.tolist() == plain
    assert list(reversed(form)) == plain[::-1]
    assert outcome(form.__getitem__, at) == outcome(plain.__getitem__, at)
    assert type(form[part]) is type(form)
    assert list(form[part]) == plain[part]
    assert list(form[part][part]) == plain[part][part]
    assert (wanted in form) == (wanted in plain)
    assert form.count(wanted) == plain.count(wanted)
    start, stop = data.draw(st.integers(-3, 5)), data.draw(st.integers(-3, 15))
    found = outcome(plain.index, wanted, start, stop)
    assert outcome(form.index, wanted, start, stop) == found
    assert pickle.loads(pickle.dumps(form)).tolist() == plain


@given(COLUMNS, st.data())
def test_where_and_take_and_joined(column, data):
    form, plain = column
    count = len(plain)
    mask = data.draw(st.binary(max_size=count + 2))
    for made in (mask, bytearray(mask), list(mask), [bool(keep) for keep in mask], tuple(mask)):
        assert list(where(form, made)) == where(plain, made)
    indexes = data.draw(st.lists(st.integers(-count - 1, count)))
    for made in (indexes, Int64s(indexes), tuple(indexes)):
        expected = outcome(lambda: [plain[index] for index in indexes])
        assert outcome(lambda made=made: take(form, made).tolist()) == expected
    first = data.draw(st.integers(0, count))
    assert take(form, range(first, count)).tolist() == plain[first:]
    assert take(form, range(count - 1, -1, -1)).tolist() == plain[::-1]
    for others in ([form, form[first:], form[::2]], [form, plain], [plain, form, tuple(plain)]):
        whole = joined(others)
        assert type(whole) is type(form)
        assert list(whole) == [entry for each in others for entry in each]


def test_a_join_with_another_thing_is_a_list():
    assert joined([spans([b"a"]), ["text"]]) == [b"a", "text"]
    assert joined([spans([b"a"]), Int64s([1])]) == [b"a", 1]
    assert joined([Int64s([1]), [2**63]]) == [1, 2**63]
    assert joined([Int64s([1]), [True]]) == [1, True]
    assert list(joined([Int64s([1]), range(3)])) == [1, 0, 1, 2]


@given(ENTRIES)
def test_what_spans_say_of_themselves(entries):
    column = spans(entries)
    there = [entry for entry in entries if entry is not None]
    assert column.has_nulls == (None in entries)
    assert column.longest == max(map(len, there), default=0)
    assert column.bytes_total == sum(map(len, there))
    again = Spans(column.data, column.starts, column.ends)
    assert again.tolist() == entries
    offsets, data, validity = column.contiguous()
    assert Spans.of_offsets(memoryview(offsets).cast("i"), data, validity).tolist() == entries
    assert (validity is None) == (None not in entries)
    wide = Int64s(memoryview(offsets).cast("i").tolist())
    assert Spans.of_offsets(wide, data, validity).tolist() == entries


@given(NUMBERS.filter(bool), st.integers(-5, 5))
def test_what_numbers_say_of_themselves(numbers, limit):
    column = Int64s(numbers)
    assert (least(column), greatest(column)) == (min(numbers), max(numbers))
    assert column.is_ascending == (sorted(numbers) == numbers)
    stop = len(numbers)
    assert first_over(column, limit, 0, stop) == first_over(numbers, limit, 0, stop)
    reached = list(accumulate(numbers, max, initial=limit))[1:]
    assert (
        list(greatest_so_far(column, limit))
        == reached
        == list(accumulate(numbers, max, initial=limit))[1:]
    )
    assert furthest_behind(column, limit) == furthest_behind(numbers, limit)
    assert memoryview(column).tolist() == numbers
    assert Int64s.of_buffer(column).tolist() == numbers


@pytest.mark.parametrize(
    ("starts", "ends"),
    [([0], [4]), ([2], [1]), ([-1], [0]), ([-2], [-2]), ([0, 1], [1]), ([0], [2**40])],
)
def test_spans_that_leave_their_buffer_are_refused(starts, ends):
    with pytest.raises(ValueError, match="entry|starts"):
        Spans(b"abc", starts, ends)


def test_offsets_that_fall_or_leave_the_buffer_are_refused():
    for offsets in ([1, 0], [0, 4], [-1, 1], [0, 2**40]):
        with pytest.raises(ValueError, match="entry 0"):
            Spans.of_offsets(Int64s(offsets), b"abc")
    with pytest.raises(ValueError, match="bytes of offsets"):
        Spans.of_offsets(b"", b"abc")
    with pytest.raises(ValueError, match="which of 9"):
        Spans.of_offsets(Int64s([0] * 10), b"abc", b"\1")


def test_numbers_beyond_64_bits_and_other_things_are_refused():
    assert outcome(Int64s, [2**63]) is OverflowError
    assert Int64s.gathered([2**63]) is None
    assert Spans.gathered([b"a", "b"]) is None
    assert first_over(Int64s([1, 2]), 5, 0, 2) == 2
    assert outcome(first_over, Int64s([1]), 0, 0, 2) is IndexError
    assert outcome(least, Int64s()) is outcome(min, [])


def test_a_truth_that_fails_fails_as_with_a_list():
    class Unsure:
        def __bool__(self):
            raise KeyError("unsure")

    for column in (spans([b"a", b"b"]), Int64s([1, 2]), [1, 2]):
        with pytest.raises(KeyError, match="unsure"):
            where(column, [True, Unsure()])


def test_a_buffer_stays_while_spans_look_at_it():
    data = bytearray(b"abcdef" * 100)
    column = Spans(memoryview(data)[6:], [0, 3], [3, 594])[1:]
    assert column.data is data  # the parts of one buffer know that they share it
    with pytest.raises(BufferError):
        data.clear()
    del data
    gc.collect()
    assert column[0] == b"def" + b"abcdef" * 98


def test_joined_spans_of_one_buffer_share_it():
    data = b"abcdef" * 1000
    one, two = Spans(data, [0], [4000]), Spans(memoryview(data)[3:], [0], [4000])
    whole = joined([one, two])
    assert whole.data is data
    assert list(whole) == [data[:4000], data[3:4003]]
    apart = joined([one, Spans(bytes(bytearray(data)), [0], [1])])
    assert apart.data is not data
    assert apart.held_bytes == apart.bytes_total == 4001


def test_few_records_do_not_keep_a_large_buffer():
    column = spans([b"x" * 100] * 1000)
    assert column[:2].data is column.data  # a slice is taken to be passing
    assert where(column, b"\1" * 900 + b"\0" * 100).data is column.data
    for few in (where(column, b"\1\1" + b"\0" * 998), take(column, [5, 5]), column[::500]):
        assert list(few) == [b"x" * 100] * 2
        assert few.held_bytes == 200


def test_nothing_leaks():
    class Counted(bytes):
        pass

    data = Counted(b"abc" * 1000)

    def work():
        column = Spans(data, range(2000), range(1, 2001))
        assert len(list(column)) == len(column.tolist()) == 2000
        for made in (column[1:], column[::7], where(column, b"\1\0" * 1000), take(column, [5, 1])):
            joined([made, column, [b"new", None]])
            made.contiguous()
            Int64s(made.starts).where(b"\1\1").followed_by([made.ends]).take([0])
        outcome(take, column, [2000])
        outcome(where, column, ["", object(), 3][:2])
        outcome(Spans, data, [5], [4])
        Spans.gathered([b"a", "b"])
        assert b"nothing like it" not in column

    work()
    gc.collect()
    references, blocks = sys.getrefcount(data), sys.getallocatedblocks()
    for _ in range(50):
        work()
    gc.collect()
    assert sys.getrefcount(data) == references
    assert sys.getallocatedblocks() < blocks + 200


@settings(max_examples=5, deadline=None)
@given(ENTRIES)
def test_threads_may_share_a_column(entries):
    column = spans(entries * 50)
    expected = entries * 50

    def look(seed):
        mask = bytes((i + seed) % 3 > 0 for i in range(len(column)))
        kept = where(expected, mask)
        assert list(where(column, mask)) == kept
        assert list(joined([where(column, mask), column])) == kept + expected
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(look, range(40)))
