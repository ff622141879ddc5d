from __future__ import annotations

from typing import Any

import fastavro
import pytest

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import logical, parse_schema


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("datetime", "is not JSON"),
        ({"type": "datetime"}, "type 'datetime' is not known"),
        (record(field("a", record(field("b", "text"), name="N"))), "field 'a.b': type 'text'"),
        (record(field("a", {"type": "array", "items": "x"})), r"field 'a\[\]': type 'x'"),
        (record(name="1x"), "'1x' is no legal name"),
        (record(name="int"), "'int' is no legal name"),
        ({"type": "record", "fields": []}, "record without a name"),
        ({"type": "record", "name": "R"}, "has no list of fields"),
        (record(field("a-b", "int")), "is no field"),
        (record({"name": "a"}), "field 'a': no 'type'"),
        (record(field("a", "int"), field("a", "int")), "has field 'a' twice"),
        (record(field("a", record(name="R"))), "type 'R' is defined twice"),
        (record(field("a", "int", default="x")), "field 'a': default 'x' is no int"),
        (record(field("a", "int", default=2**31)), "is no int"),
        (record(field("a", "int", default=True)), "default True is no int"),
        (record(field("a", ["null", "int"], default="x")), "default 'x' is no union"),
        (record(field("a", {"type": "array", "items": "int"}, default=["x"])), "'x' is no int"),
        (record(field("a", record(field("b", "int"), name="N"), default={})), "lacks field 'b'"),
        (["int", "int"], "a union with 'int' twice"),
        ([["int"]], "a union directly in a union"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "each once"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "not one of its symbols"),
        ({"type": "enum", "name": "E", "symbols": ["a b"]}, "no legal symbol"),
        ({"type": "fixed", "name": "F"}, "size None"),
        ({"type": "fixed", "name": "F", "size": -1}, "size -1"),
        ({"type": "array"}, "array without 'items'"),
        ({"type": "map"}, "map without 'values'"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, "decimal of"),
        ({"name": "x"}, "has no 'type'"),
        (5, "5 is no type"),
        ("{", "is not JSON"),
    ],
    ids=str,
)
def test_what_is_no_schema_is_refused_with_its_place(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        parse_schema(schema)


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: Any = "int"
    for depth in range(10_000):
        schema = {"type": "array", "items": schema}
        if depth in (300, 9_999):
            with pytest.raises(SchemaError, match="nested too deeply"):
                parse_schema(schema)


def test_the_canonical_text_is_one_for_all_spellings() -> None:
    spelled = [
        record(field("a", {"type": "int"}), field("b", ["null", "R"], default=None)),
        """{"name": "R", "fields": [{"type": "int", "name": "a"},
            {"default": null, "name": "b", "type": ["null", {"type": "R"}]}], "type": "record"}""",
    ]
    first, second = map(parse_schema, spelled)
    assert first.text == second.text
    assert parse_schema(first.text).text == first.text


def test_the_canonical_text_keeps_what_resolution_needs_and_gives_full_names() -> None:
    schema = record(
        field("a", "int", default=1, aliases=["b"], doc="why"),
        field("when", {"type": "long", "logicalType": "timestamp-millis"}),
        field("next", ["null", "R"]),
        namespace="org",
        aliases=["Old"],
    )
    assert parse_schema(schema).json == {
        "type": "record",
        "name": "org.R",
        "aliases": ["org.Old"],
        "fields": [
            {"name": "a", "type": "int", "aliases": ["b"], "doc": "why", "default": 1},
            {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "next", "type": ["null", "org.R"]},
        ],
    }


def test_schemas_that_differ_in_a_default_or_alias_alone_are_different() -> None:
    texts = {
        parse_schema(record(field("a", "int", **more))).text
        for more in ({}, {"default": 0}, {"default": 1}, {"aliases": ["b"]})
    }
    assert len(texts) == 4


def test_a_record_may_contain_itself() -> None:
    schema = parse_schema(record(field("next", ["null", "R"])))
    union = schema.root["fields"][0]["type"]
    assert union == ["null", "R"]
    assert schema.deref("R") is schema.root
    assert schema.recursive


def test_a_type_that_is_mentioned_twice_does_not_contain_itself() -> None:
    inner = record(field("x", "int"), name="N")
    assert not parse_schema(record(field("a", inner), field("b", "N"))).recursive


@pytest.mark.parametrize(
    ("items", "boundless"),
    [
        ("null", True),
        ({"type": "fixed", "name": "F", "size": 0}, True),
        ({"type": "fixed", "name": "F", "size": 1}, False),
        (record(), True),
        (record(field("a", "null"), field("b", record(name="N")), field("c", "N")), True),
        (record(field("a", "null"), field("b", "boolean")), False),
        (["null"], False),
        ({"type": "array", "items": "int"}, False),
    ],
    ids=str,
)
def test_an_array_whose_items_take_no_bytes_is_known(items: Any, boundless: bool) -> None:
    array = {"type": "array", "items": items}
    assert parse_schema({"type": "map", "values": array}).boundless is boundless


def test_a_logical_type_where_it_has_no_meaning_is_ignored() -> None:
    for kind, name in (("string", "date"), ("long", "uuid"), ("int", "invented")):
        assert logical(parse_schema({"type": kind, "logicalType": name}).root) is None
    assert logical(parse_schema({"type": "int", "logicalType": "date"}).root) == "date"


def test_fastavro_takes_every_canonical_text() -> None:
    schema = parse_schema(
        record(
            field("e", {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"}),
            field("f", {"type": "fixed", "name": "F", "size": 4}, default="\u00ff" * 4),
            field("again", "E", default="A"),
            field("m", {"type": "map", "values": {"type": "array", "items": "F"}}, default={}),
            namespace="org.x",
        )
    )
    fastavro.parse_schema(schema.json)
