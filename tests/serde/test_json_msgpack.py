from __future__ import annotations

import importlib
import tracemalloc
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.columns import FEW
from kafkalite.errors import SchemaError, SerdeError
from kafkalite.serde import SerdeContext, json, msgpack
from kafkalite.serde.serde import Serde

TEXTS_MAX = importlib.import_module("kafkalite.serde.json").TEXTS_MAX

CONTEXT = SerdeContext()


class Pair(NamedTuple):
    left: int
    right: int


def roundtrip(serde: Serde, column: list[Any]) -> list[Any]:
    codec = serde.open(CONTEXT)
    return list(codec.deserialize("t", codec.serialize("t", column)))


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    plain | numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
keys = (
    st.text() | st.binary() | st.integers(-(2**31), 2**31) | st.tuples(st.text(), st.integers(0, 9))
)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
msgpack_values = st.recursive(
    plain | numbers | st.binary() | moments,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(left: Any, right: Any) -> bool:
    """Equal and of the same types all the way down: a tuple is no list, True no 1."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, dict):
        return all(same(*pair) for pair in zip(left.items(), right.items(), strict=True))
    if isinstance(left, list | tuple):
        return all(same(*pair) for pair in zip(left, right, strict=True))
    return True


@given(st.lists(json_values))
def test_json_comes_back(column: list[Any]) -> None:
    assert same(roundtrip(json(), column), column)


@given(st.lists(msgpack_values))
def test_msgpack_comes_back_with_its_types(column: list[Any]) -> None:
    assert same(roundtrip(msgpack(), column), column)


def test_json_is_compact_and_keeps_the_order() -> None:
    codec = json().open(CONTEXT)
    assert codec.serialize("t", [{"b": 1, "a": [None, "é"]}, None]) == [
        '{"b":1,"a":[null,"é"]}'.encode(),
        None,
    ]


def test_msgpack_is_plain_msgpack_where_msgpack_has_a_form() -> None:
    assert msgpack().open(CONTEXT).serialize("t", [{"a": [1, None, "é"]}]) == [
        b"\x81\xa1a\x93\x01\xc0\xa2\xc3\xa9"
    ]


def test_msgpack_datetimes_are_moments() -> None:
    elsewhere = datetime(2013, 1, 1, 10, tzinfo=timezone(timedelta(hours=-5)))
    (found,) = roundtrip(msgpack(), [elsewhere])
    assert found == elsewhere
    assert found.tzinfo is UTC


class Point:
    def __repr__(self) -> str:
        return "Point()"


@pytest.mark.parametrize(
    ("serde", "value", "reason"),
    [
        (json(), datetime(2013, 1, 1, tzinfo=UTC), "no form for datetime"),
        (json(), {"a": {1, 2}}, "no form for set"),
        (json(), b"x", "no form for bytes"),
        (json(), {1: 2}, "key must be str"),
        (json(), 2**64, "64-bit"),
        (json(), Decimal(1), "no form for Decimal"),
        (msgpack(), {1, 2}, "no form for set: use a sorted list"),
        (msgpack(), [frozenset()], "no form for frozenset"),
        (msgpack(), datetime(2013, 1, 1), "no form for datetime: give it a time zone"),
        (msgpack(), Decimal(1), "no form for Decimal"),
        (msgpack(), Counter("aa"), "no form for Counter"),
        (msgpack(), Pair(1, 2), "no form for Pair"),
        (msgpack(), (1, {2}), "no form for set"),
        (msgpack(), 2**64, "out of range"),
        (msgpack(), Point(), "no form for Point"),
    ],
    ids=str,
)
def test_what_has_no_form_is_refused(serde: Serde, value: Any, reason: str) -> None:
    with pytest.raises(SerdeError, match=reason) as caught:
        serde.open(CONTEXT).serialize("orders", [None, "fine", value])
    assert caught.value.index == 2
    assert repr(serde) in str(caught.value)
    assert "'orders'" in str(caught.value)


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (json(), b"{"),
        (msgpack(), b"\x92\x01"),
        (msgpack(), b"\xc7\x01\x05a"),
        (msgpack(), b"\x01\x01"),
    ],
    ids=str,
)
def test_broken_bytes_are_refused(serde: Serde, data: bytes) -> None:
    codec = serde.open(CONTEXT)
    (good,) = codec.serialize("t", [1])
    with pytest.raises(SerdeError, match="cannot read") as caught:
        codec.deserialize("t", [good, None, data])
    assert caught.value.index == 2


def test_an_error_names_its_record_by_its_place_or_as_the_caller_knows_it() -> None:
    with pytest.raises(SerdeError) as caught:
        json().open(SerdeContext()).deserialize("orders", [b"1", None, b"{"])
    error = caught.value
    assert error.words.startswith("json() cannot read b'{' of topic 'orders': ")
    assert (str(error), error.index) == (f"{error.words} (record 2, from 0)", 2)
    placed = error.of_record("orders-3, offset 17")
    assert str(placed) == f"orders-3, offset 17: {error.words}"
    assert (type(placed), placed.index) == (SerdeError, 2)
    assert str(error) != str(placed), "the one that was raised stays as it was"


def test_an_error_of_the_schema_keeps_its_code() -> None:
    error = SchemaError("no such schema", 4, code=40403)
    placed = error.of_record("orders-3, offset 17")
    assert (str(placed), placed.code) == ("orders-3, offset 17: no such schema", 40403)
    assert str(SchemaError("no such schema")) == "no such schema"


def test_equal_values_give_equal_bytes() -> None:
    codec = msgpack().open(CONTEXT)
    assert codec.serialize("t", [("a", 1)]) == codec.serialize("t", [("a", 1)])
    assert (repr(json()), repr(msgpack())) == ("json()", "msgpack()")
    assert json() == json()
    assert hash(msgpack()) == hash(msgpack())


@pytest.mark.parametrize("name", ["amount", "größe", "日本"])
def test_json_reads_the_fields_that_somebody_looks_at(name: str) -> None:
    codec = json().open(SerdeContext(fields=frozenset({name})))
    text = f'{{"x":0,"{name}":7}}'.encode()
    assert codec.deserialize("t", [text])[0][name] == 7


@pytest.mark.parametrize("count", [FEW - 1, 5 * TEXTS_MAX + 7])
def test_json_holds_no_more_than_the_texts(count: int) -> None:
    """orjson leaves four KiB with each text that it writes."""
    codec = json().open(CONTEXT)
    values: list[Any] = [{"id": number, "name": "a name"} for number in range(count)]
    values[3] = None
    codec.serialize("t", values)  # what is loaded only once
    tracemalloc.start()
    try:
        texts = codec.serialize("t", values)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 250 * count
    assert most < 250 * count + 8_192 * TEXTS_MAX
    assert list(texts) == [value and orjson.dumps(value) for value in values]


def test_json_names_the_value_that_it_cannot_write_in_a_long_column() -> None:
    values: list[Any] = [1] * (3 * TEXTS_MAX)
    values[2 * TEXTS_MAX + 5] = {1, 2}
    with pytest.raises(SerdeError) as failure:
        json().open(CONTEXT).serialize("t", values)
    assert failure.value.index == 2 * TEXTS_MAX + 5
