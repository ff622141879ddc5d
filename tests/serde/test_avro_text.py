"""Avro's text in Java's form, and without references: always the same schema."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import canonical_text, parse_schema
from kafkalite.serde.avro_text import rendered, self_contained

SPACES = ["", "a", "a.b", "c"]


@pytest.mark.parametrize(
    ("given", "java"),
    [
        ('{"type":"int"}', '"int"'),
        ('{"type":"int","name":"x","doc":"y"}', '"int"'),
        (
            '{"doc":"d","fields":[],"name":"a.R","type":"record"}',
            '{"type":"record","name":"R","namespace":"a","doc":"d","fields":[]}',
        ),
        (
            (
                '{"type":"record","name":"a.R","aliases":["Old","b.Older"],"fields":['
                '{"name":"x","default":"A","doc":"f","type":{"type":"enum","name":"E","symbols":["A"]}},'
                '{"name":"y","type":["null","a.E","a.R"],"order":"ignore","p":1}]}'
            ),
            (
                '{"type":"record","name":"R","namespace":"a","fields":['
                '{"name":"x","type":{"type":"enum","name":"E","symbols":["A"]},"doc":"f","default":"A"},'
                '{"name":"y","type":["null","E","R"],"order":"ignore","p":1}],'
                '"aliases":["Old","b.Older"]}'
            ),
        ),
        (
            (
                '{"type":"record","name":"a.R","fields":[{"name":"f","type":'
                '{"type":"fixed","namespace":"","name":"F","size":2}}]}'
            ),
            (
                '{"type":"record","name":"R","namespace":"a","fields":[{"name":"f","type":'
                '{"type":"fixed","name":"F","namespace":"","size":2}}]}'
            ),
        ),
        (
            '{"logicalType":"decimal","precision":4,"type":"bytes","scale":2}',
            '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}',
        ),
    ],
)
def test_schemas_are_written_as_java_writes_them(given: str, java: str) -> None:
    assert rendered(parse_schema(given)) == java


def test_a_form_that_would_be_read_as_another_type_is_not_used() -> None:
    """Within `a`, `E` is `a.E`: the E that has no namespace cannot be written there."""
    e = {"type": "enum", "name": "E", "symbols": ["X"]}
    inner = {**e, "namespace": "a"}
    fields = [{"name": "one", "type": inner}, {"name": "two", "type": "E"}]
    inside = {"type": "record", "name": "a.R", "fields": fields}
    texts = (orjson.dumps(e).decode(),)
    schema = parse_schema(orjson.dumps(inside).decode(), texts)
    assert parse_schema(rendered(schema, texts), texts).text == schema.text


@st.composite
def named_schemas(draw: st.DrawFn) -> Any:
    """Records and enums in namespaces, which mention one another."""
    count = draw(st.integers(1, 6))
    known: list[str] = []

    def named(depth: int) -> Any:
        number, space = len(known), draw(st.sampled_from(SPACES))
        name = f"T{number}"
        known.append(f"{space}.{name}" if space else name)
        head = {"name": name, "namespace": space}
        if draw(st.booleans()):
            head["aliases"] = [draw(st.sampled_from(["Old", "a.Old", "c.Old"]))]
        if depth > 2 or draw(st.booleans()):
            return {"type": "enum", "symbols": ["A", "B"], **head}
        fields = [
            {"name": f"f{n}", "type": some(depth + 1)} for n in range(draw(st.integers(0, 3)))
        ]
        return {"type": "record", "fields": fields, **head}

    def some(depth: int) -> Any:
        match draw(st.integers(0, 4)):
            case 0 if len(known) < count:
                return named(depth)
            case 1:
                return draw(st.sampled_from(known))
            case 2:
                return {"type": "array", "items": some(depth + 1) if depth < 4 else "int"}
            case 3:
                return ["null", {"type": "map", "values": "long"}]
        return draw(st.sampled_from(["int", {"type": "string", "p": {"b": 1, "a": 2}}]))

    return named(0)


def parsed(schema: Any) -> Any:
    try:
        return parse_schema(orjson.dumps(schema).decode())
    except SchemaError:  # a mention of a name that its namespace turned into another
        return None


@given(named_schemas())
@settings(max_examples=200, deadline=None)
def test_both_texts_mean_the_same(schema: Any) -> None:
    found = parsed(schema)
    if found is None:
        return
    assert parse_schema(rendered(found)).text == found.text
    assert self_contained(found) == found.text
    assert canonical_text(rendered(found)) == canonical_text(found.text) == found.text


@given(named_schemas())
@settings(max_examples=200, deadline=None)
def test_a_schema_with_references_is_the_one_that_has_them_in_it(schema: Any) -> None:
    """What a record is whose field is of a type that stands elsewhere."""
    first = parsed(schema)
    if first is None:
        return
    outer = {"type": "record", "name": "z.Outer", "fields": [{"name": "f", "type": first.name}]}
    texts = (rendered(first),)
    referring = parse_schema(orjson.dumps(outer).decode(), texts)
    inner = first.json if "." in first.name else {**first.json, "namespace": ""}
    whole = {**outer, "fields": [{"name": "f", "type": inner}]}
    assert self_contained(referring) == parse_schema(orjson.dumps(whole).decode()).text
    assert rendered(referring, texts).count('"name":') == 2
    again = parse_schema(rendered(referring, texts), texts)
    assert again.text == referring.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(
        ["record", "enum", "array", "map", "fixed", "int", "null", "R", "", "a.b", "x-y", "decimal"]
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "name", "namespace", "fields", "symbols", "items", "values",
                         "size", "default", "aliases", "logicalType", "precision", "scale"]),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow
@given(JSON)
@settings(max_examples=500, deadline=None)
def test_any_json_is_a_schema_or_an_error(value: Any) -> None:
    text = orjson.dumps(value).decode()
    for parse in (canonical_text, parse_schema):
        try:
            parse(text)
        except SchemaError:
            continue


def test_names_that_nobody_knows_are_taken_for_types_where_references_are_not_at_hand() -> None:
    text = '{"type":"record","name":"R","namespace":"n","fields":[{"name":"f","type":"X"}]}'
    with pytest.raises(SchemaError, match="type 'X' is not known"):
        parse_schema(text)
    assert '"type":"n.X"' in canonical_text(text)
    with pytest.raises(SchemaError, match="type 'no name' is not known"):
        canonical_text('"no name"')
