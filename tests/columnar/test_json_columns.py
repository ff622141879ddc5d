"""JSON objects as columns: what they make, and what does not fit."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.columnar.json_columns import FIELDS_MAX, Seen, columns_of, row_reader
from kafkalite.errors import ConfigError, SerdeError

INT, DOUBLE, TEXT, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


def columns(*objects: Any, table: pa.StructType | None = None) -> pa.StructType:
    seen = Seen()
    seen.add(orjson.dumps(each) for each in objects)
    return columns_of(orjson.loads(orjson.dumps(seen.shape)), table)


@pytest.mark.parametrize(
    ("objects", "made"),
    [
        ([{"a": 1, "b": "x", "c": True, "d": 1.5}], struct(a=INT, b=TEXT, c=BOOL, d=DOUBLE)),
        ([{"a": 1}, {"b": 2}], struct(a=INT, b=INT)),
        ([{"a": 1}, {"a": 1.5}], struct(a=DOUBLE)),
        ([{"a": 1.5}, {"a": 1}], struct(a=DOUBLE)),
        ([{"a": 1 << 63}], struct(a=DOUBLE)),
        ([{"a": None}, {"a": 3}], struct(a=INT)),
        ([{"a": None, "b": {}, "c": [], "d": [None], "e": {"f": []}}], struct()),
        ([{"a": {}}, {"a": "x"}], struct(a=TEXT)),
        ([{"a": []}, {"a": {"b": 1}}], struct(a=struct(b=INT))),
        ([{"a": {"b": 1}}, {"a": {"c": "x"}}], struct(a=struct(b=INT, c=TEXT))),
        ([{"a": [1, None, 2.5]}, {"a": []}], struct(a=pa.list_(DOUBLE))),
        ([{"a": [{"b": 1}, {"c": 2}]}], struct(a=pa.list_(struct(b=INT, c=INT)))),
        ([{"a": 1}, {"a": "x"}], struct(a=INT)),
        ([{"a": True}, {"a": 1}], struct(a=BOOL)),
        ([{"a": "x"}, {"a": {"b": 1}}], struct(a=TEXT)),
    ],
)
def test_columns(objects: list[Any], made: pa.StructType) -> None:
    assert columns(*objects) == made


def test_a_table_keeps_its_columns_and_their_types() -> None:
    table = struct(a=INT, old=TEXT, s=struct(b=INT), list=pa.list_(INT))
    new = {"a": 1.5, "new": True, "s": {"c": "x"}, "list": ["x"]}
    assert columns(new, table=table) == struct(
        a=INT, old=TEXT, s=struct(b=INT, c=TEXT), list=pa.list_(INT), new=BOOL
    )
    assert columns(table=table) == table


@pytest.mark.parametrize(
    ("made", "value", "complaint"),
    [
        (struct(a=INT), {"a": "x"}, "the field 'a' is 'x', and its column is bigint"),
        (struct(a=INT), {"a": 1.5}, "the field 'a' is 1.5, and its column is bigint"),
        (struct(a=INT), {"a": True}, "the field 'a' is True, and its column is bigint"),
        (struct(a=INT), {"a": 1 << 63}, "and its column is bigint"),
        (struct(a=pa.int8()), {"a": 128}, "the field 'a' is 128, and its column is int8"),
        (struct(a=pa.int32()), {"a": 1.0}, "and its column is int32"),
        (struct(a=pa.int32()), {"a": True}, "and its column is int32"),
        (struct(a=DOUBLE), {"a": False}, "and its column is double"),
        (struct(a=TEXT), {"a": {"b": 1}}, "and its column is string"),
        (struct(a=pa.list_(TEXT)), {"a": "xy"}, "and its column is array"),
        (struct(a=pa.list_(INT)), {"a": [1, "x"]}, r"the field 'a\[\]' is 'x'"),
        (struct(a=struct(b=INT)), {"a": []}, "and its column is struct"),
        (struct(a=struct(b=INT)), {"a": {"b": "x"}}, r"the field 'a\.b' is 'x'"),
        (struct(a=struct(b=INT)), {"a": {"c": 1}}, r"the field 'a\.c' has no column"),
        (struct(), 5, "not a JSON object"),
    ],
)
def test_what_does_not_fit_is_named(made: pa.StructType, value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        row_reader(made)(orjson.dumps(value))


def test_a_given_schema_may_have_narrow_numbers() -> None:
    made = struct(a=pa.int16(), b=pa.float32())
    row = row_reader(made)(b'{"a": -32768, "b": 1}')
    assert pa.array([row], made).to_pylist() == [{"a": -32768, "b": 1.0}]


def test_a_column_that_json_has_no_values_for() -> None:
    with pytest.raises(ConfigError, match=r"'s\.at' is a date32\[day\]; JSON has no such"):
        row_reader(struct(s=struct(at=pa.date32())))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=3)
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner),
    max_leaves=8,
)  # fmt: skip


def trimmed(value: Any) -> Any:
    """Without what makes no column: nulls, and objects and arrays without a value."""
    if isinstance(value, dict):
        found = {name: trimmed(item) for name, item in value.items()}
        return {name: item for name, item in found.items() if item is not None} or None
    if isinstance(value, list):
        found = [trimmed(item) for item in value]
        return found if any(item is not None for item in found) else None
    return value


@settings(deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), JSON))
def test_an_object_comes_out_of_its_own_columns_as_it_was(value: dict[str, Any]) -> None:
    """Items of an array may differ, and then no row is made."""
    made, complaint = columns(value), ""
    try:
        row = row_reader(made)(orjson.dumps(value))
    except ValueError as error:
        complaint = str(error)
    if complaint:
        assert "[]" in complaint
        return
    (read,) = pa.array([row], made).to_pylist()
    assert trimmed(read) == trimmed(value)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("ab"), JSON), max_size=4), st.integers(0, 4))
def test_what_two_tasks_have_seen_is_what_one_would_have(objects: list[Any], cut: int) -> None:
    texts = [orjson.dumps(each) for each in objects]
    one, first, second = Seen(), Seen(), Seen()
    one.add(texts)
    first.add(texts[:cut])
    second.add(texts[cut:])
    first.merge(second.shape)
    for made in (columns_of(one.shape), columns_of(first.shape)):
        read = row_reader(made)
        for text in texts:
            try:
                read(text)
            except ValueError:
                break
        else:
            assert columns_of(one.shape) == columns_of(first.shape)


def test_names_that_are_data_and_depth_have_bounds() -> None:
    seen = Seen()
    seen.add([json.dumps({f"id-{i}": 1 for i in range(FIELDS_MAX)}).encode()])
    with pytest.raises(SerdeError, match="load the topic as string"):
        seen.add([b'{"one more": 1}'])
    deep = "[" * 60 + "]" * 60
    with pytest.raises(SerdeError, match="more than 50 levels"):
        Seen().add([f'{{"a": {deep}}}'.encode()])


def test_what_is_no_object_is_passed_over() -> None:
    seen = Seen()
    seen.add([b"5", b"{", None, b"[1]", b'{"a": 1}'])
    assert columns_of(seen.shape) == struct(a=INT)
