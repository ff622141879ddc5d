from __future__ import annotations

from datetime import UTC, date, datetime
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_binary import binary
from kafkalite.serde.avro_infer import evolve, infer, record_name
from kafkalite.serde.avro_resolve import unreadable
from kafkalite.serde.avro_schema import parse_schema


def fields(schema: Any) -> dict[str, Any]:
    assert all(field["default"] is None for field in schema["fields"])
    return {field["name"]: field["type"] for field in schema["fields"]}


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([1], "long"),
        ([1, 2**40], "long"),
        ([1.5], "double"),
        ([1, 1.5], "double"),
        ([1.5, 2**40], "double"),
        (["a"], "string"),
        ([True], "boolean"),
        ([b"a"], "bytes"),
        ([datetime(2013, 1, 1, tzinfo=UTC)], {"type": "long", "logicalType": "timestamp-millis"}),
        ([date(2013, 1, 1)], {"type": "int", "logicalType": "date"}),
        ([[1], []], {"type": "array", "items": "long"}),
        ([[1, None]], {"type": "array", "items": ["null", "long"]}),
        ([()], {"type": "array", "items": ["null"]}),
        ([[None]], {"type": "array", "items": ["null"]}),
        ([{"a b": 1, "c": 2.5}], {"type": "map", "values": "double"}),
    ],
    ids=str,
)
def test_bare_values_have_bare_types(values: list[Any], schema: Any) -> None:
    assert infer(values, "R") == schema


def test_a_record_has_nullable_fields_in_the_order_they_show_up() -> None:
    schema = infer([{"b": 1, "a": None}, {"c": "x", "a": 1.5, "b": None}], "Flight")
    assert schema["name"] == "Flight"
    assert list(fields(schema)) == ["b", "a", "c"]
    assert fields(schema) == {
        "b": ["null", "long"],
        "a": ["null", "double"],
        "c": ["null", "string"],
    }


def test_a_field_that_is_always_none_is_null_until_it_is_something() -> None:
    schema = infer([{"a": None}], "R")
    assert fields(schema) == {"a": "null"}
    assert fields(evolve(schema, [{"a": 1}], "R")) == {"a": ["null", "long"]}


def test_records_inside_are_named_after_their_place() -> None:
    schema = infer([{"to": {"city": "x"}, "stops": [{"at": 1}, {"by": 2}]}], "Trip")
    inner = fields(schema)
    assert inner["to"][1]["name"] == "Trip_to"
    assert inner["stops"][1]["items"]["name"] == "Trip_stops"
    assert fields(inner["stops"][1]["items"]) == {"at": ["null", "long"], "by": ["null", "long"]}
    parse_schema(schema)


def test_the_items_of_a_list_take_a_byte_at_least() -> None:
    schema = infer([{"stops": [{"at": None}, {}]}], "Trip")
    (null, inner) = fields(schema)["stops"][1]["items"]
    assert (null, fields(inner)) == ("null", {"at": "null"})
    parsed = parse_schema(evolve(schema, [{"stops": [{"at": 1}]}], "Trip"))
    assert not parsed.boundless
    assert evolve(infer([[]], "R"), [[None]], "R") == infer([[]], "R")
    assert evolve(infer([[]], "R"), [["x"]], "R")["items"] == ["null", "string"]


def test_a_map_takes_what_would_be_a_record() -> None:
    assert infer([{"a": 1}, {"not a name": 2}], "R") == {"type": "map", "values": "long"}
    assert infer([{"not a name": 2}, {"a": 1.5}], "R") == {"type": "map", "values": "double"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, "a"], "integer and string have no type in common"),
        ([{"a": {"b": 1}}, {"a": {"b": "x"}}], "field 'a.b': integer and string"),
        ([{"a": [1, "x"]}], r"field 'a\[\]': integer and string"),
        ([{"a": 1}, 1], "record and integer"),
        ([True, 1], "boolean and integer"),
        ([datetime(2013, 1, 1, tzinfo=UTC), "x"], "timestamp-millis and string"),
        ([datetime(2013, 1, 1, tzinfo=UTC), date(2013, 1, 1)], "timestamp-millis and date"),
        ([[1], {"a": 1}], "array and record"),
        ([{"a": {1, 2}}], "field 'a': set {1, 2} has no Avro type to infer"),
        ([{"a": {1: 2}}], "field 'a': key 1 of a dict is no str"),
        ([object], "has no Avro type to infer"),
    ],
    ids=str,
)
def test_what_has_no_type_is_refused_with_its_place(values: list[Any], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        infer(values, "R")


def test_what_does_not_fit_the_type_of_another_value_is_refused_with_its_place() -> None:
    schema = infer([{"day": date(2013, 1, 1)}], "R")
    for value in (datetime(2013, 1, 1, tzinfo=UTC), [1], {"a": 1}):
        with pytest.raises(SchemaError, match="field 'day': date and .* have no type in common"):
            evolve(schema, [{"day": value}], "R")


def test_values_nested_without_end_are_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(SchemaError, match="nested more than 64 deep"):
        infer([value], "R")


def test_a_given_schema_stays_as_strict_as_the_values_allow() -> None:
    given_schema = {
        "type": "record",
        "name": "Flight",
        "doc": "kept",
        "fields": [
            {"name": "hour", "type": "int", "doc": "kept"},
            {"name": "ratio", "type": "float"},
            {"name": "km", "type": "double", "default": 0.0},
            {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        ],
    }
    value = {"hour": 5, "ratio": 0.5, "km": 1, "kind": "A"}
    assert evolve(given_schema, [value], "Flight") == given_schema
    grown = evolve(given_schema, [{**value, "hour": None, "km": None, "new": 1}], "Flight")
    assert grown["doc"] == "kept"
    assert [field["type"] for field in grown["fields"][:3]] == [
        ["null", "int"],
        "float",
        ["double", "null"],  # its default is a double
    ]
    assert grown["fields"][4] == {"name": "new", "type": ["null", "long"], "default": None}
    parse_schema(grown)


def test_a_field_without_default_that_values_lack_becomes_nullable() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    assert fields(evolve(schema, [{}], "R")) == {"a": ["null", "int"]}


def test_a_union_of_several_types_takes_no_more() -> None:
    schema = ["null", "int", "string"]
    assert evolve(schema, ["x", 1], "R") == schema
    assert evolve(["int", "string"], [None], "R") == ["int", "string", "null"]
    with pytest.raises(SchemaError, match="double is no branch of the union"):
        evolve(schema, [1.5], "R")


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("delays-by-origin", "DelaysByOrigin"),
        ("flights", "Flights"),
        ("9", "Record9"),
        ("-", "Record"),
    ],
)
def test_a_record_is_named_after_its_topic(topic: str, name: str) -> None:
    assert record_name(topic) == name


names = st.sampled_from(["a", "b", "c"])
leaves = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values = st.dictionaries(names, leaves | st.lists(leaves, max_size=3), max_size=3)


@given(st.lists(values, min_size=1, max_size=4), st.lists(values, min_size=1, max_size=4))
@settings(deadline=None)
def test_what_is_inferred_takes_the_values_and_evolves_compatibly(
    first: list[Any], then: list[Any]
) -> None:
    try:
        old = infer(first, "R")
        new = evolve(old, then, "R")
    except SchemaError:
        return  # a number here, a list there
    older, newer = parse_schema(old), parse_schema(new)
    for value in first:
        binary(older.text).encode(value, BytesIO())
    for value in [*first, *then]:
        binary(newer.text).encode(value, BytesIO())
    assert unreadable(older, newer) == []
    assert infer(first, "R") == old
