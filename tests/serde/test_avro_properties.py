"""Avro as fastavro does it: values come back, and what we call compatible it can read."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from itertools import count
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from kafkalite.errors import SerdeError
from kafkalite.serde import MemoryRegistry, SerdeContext, avro
from kafkalite.serde.avro_binary import binary
from kafkalite.serde.avro_resolve import added_fields, unreadable
from kafkalite.serde.avro_schema import parse_schema

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = [
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
]
SYMBOLS = ["RED", "GREEN", "BLUE", "BLACK"]


def kind(schema: Any) -> str:
    return (
        schema
        if isinstance(schema, str)
        else "union"
        if isinstance(schema, list)
        else schema["type"]
    )


def branch_key(schema: Any) -> str:
    return schema.get("name", schema["type"]) if isinstance(schema, dict) else schema


def shape(schema: Any) -> str:
    """What a union holds once here: fastavro takes the first branch that a value fits, and by it
    an int is a double, bytes are a list of ints, and one dict fits several records."""
    shapes = {"int": "number", "long": "number", "float": "number", "double": "number",
              "bytes": "sequence", "fixed": "sequence", "array": "sequence",
              "record": "dict", "map": "dict"}  # fmt: skip
    return shapes.get(kind(schema), branch_key(schema))


@cache
@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, *, union: bool = True, logical: bool = False) -> Any:
    """A schema; every named type has a name of its own."""
    names = draw(st.shared(st.builds(count), key="names"))
    kinds = ["primitive", "primitive", "enum", "fixed"]
    if depth:
        kinds += ["record", "record", "array", "map"] + (["union"] if union else [])
    match draw(st.sampled_from(kinds)):
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES + (LOGICAL if logical else [])))
        case "enum":
            return {
                "type": "enum",
                "name": f"E{next(names)}",
                "symbols": SYMBOLS[: draw(st.integers(1, 4))],
            }
        case "fixed":
            return {"type": "fixed", "name": f"F{next(names)}", "size": draw(st.integers(0, 9))}
        case "array":
            return {"type": "array", "items": draw(schemas(depth - 1, logical=logical))}
        case "map":
            return {"type": "map", "values": draw(schemas(depth - 1, logical=logical))}
        case "record":
            return draw(records(depth, names, logical))
    inner = schemas(depth - 1, union=False)
    return draw(st.lists(inner, min_size=1, max_size=4, unique_by=shape))


@st.composite
def records(draw: st.DrawFn, depth: int, names: Any, logical: bool) -> Any:
    types = draw(st.lists(schemas(depth - 1, logical=logical), max_size=5))
    fields = [{"name": f"f{place}", "type": schema} for place, schema in enumerate(types)]
    return {"type": "record", "name": f"R{next(names)}", "fields": fields}


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Values of a schema, as they are read."""
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    if isinstance(schema, dict) and "logicalType" in schema:
        return LOGICAL_VALUES[schema["logicalType"]]
    match kind(schema):
        case "record":
            return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
        case "array":
            return st.lists(values(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=3)
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            letters = st.characters(max_codepoint=127)
            return st.text(letters, min_size=schema["size"], max_size=schema["size"]).map(
                str.encode
            )
    return PRIMITIVE_VALUES[kind(schema)]


PRIMITIVE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.text(max_size=60).map(str.encode),  # readable as a string
    "string": st.text(max_size=100),
}
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
LOGICAL_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "timestamp-millis": MOMENTS.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    "timestamp-micros": MOMENTS,
    "date": st.dates(),
    "time-millis": st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    "time-micros": st.times(),
    "uuid": st.uuids(),
    "decimal": st.decimals(-(10**8), 10**8, places=3),
}


def write(schema: Any, value: Any) -> bytes:
    data = BytesIO()
    binary(parse_schema(schema).text).encode(value, data)
    return data.getvalue()


def read(data: bytes, writer: Any, reader: Any) -> Any:
    return binary(parse_schema(writer).text).decode(
        BytesIO(data), binary(parse_schema(reader).text)
    )


def bounded(schema: Any) -> bool:
    return not parse_schema(schema).boundless


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_columns_come_back(data: st.DataObject) -> None:
    schema = data.draw(schemas(logical=True).filter(bounded))
    column = data.draw(st.lists(values(schema), max_size=4))
    codec = avro(schema=schema).open(SerdeContext(MemoryRegistry()))
    assert codec.deserialize("t", codec.serialize("t", column)) == column


TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "trees", "type": {"type": "array", "items": "Tree"}},
        {"name": "more", "type": ["null", "Tree"]},
    ],
}


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_bytes_end_in_an_error_that_names_the_record_or_in_a_value(
    data: st.DataObject,
) -> None:
    schema = data.draw(st.just(TREE) | schemas(logical=True).filter(bounded))
    registry = MemoryRegistry()
    registry.register("t-value", schema)
    try:
        valid = b"" if schema is TREE else write(schema, data.draw(values(schema)))
    except ValueError:  # a value that two branches of a union could hold and the library mistook
        reject()
    broken = bytearray(valid)
    for place in data.draw(st.lists(st.integers(0, max(len(valid) - 1, 0)), max_size=3)):
        broken[place : place + 1] = [data.draw(st.integers(0, 255))]
    record = bytes(broken)[: data.draw(st.integers(0, len(broken)))] + data.draw(
        st.just(b"") | st.binary(max_size=20)
    )
    for reader in (avro(), avro(schema={"type": "record", "name": "Tree", "fields": []})):
        with suppress(SerdeError):
            reader.open(SerdeContext(registry)).deserialize("t", [b"\0\0\0\0\1" + record])


# --- evolution ---------------------------------------------------------------------------

PROMOTED = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"],
            "string": ["bytes"], "bytes": ["string"]}  # fmt: skip


@st.composite
def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """Another schema, a step or two away; often compatible, often not."""
    if isinstance(schema, list):
        return draw(evolved_unions(schema))
    match kind(schema):
        case "record":
            return draw(evolved_records(schema))
        case "array":
            return {**schema, "items": draw(evolved(schema["items"]))}
        case "map":
            return {**schema, "values": draw(evolved(schema["values"]))}
        case "enum":
            symbols = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
            default = draw(st.sampled_from([None, symbols[0]]))
            return {**schema, "symbols": symbols} | ({"default": default} if default else {})
        case "fixed":
            return {**schema, "size": draw(st.sampled_from([schema["size"], schema["size"], 5]))}
    others = [schema, schema, *PROMOTED.get(kind(schema), [])]
    changed = draw(st.sampled_from([*others, "string"]))
    wrap = draw(st.sampled_from([False, False, True]))
    return ["null", changed] if wrap and changed != "null" else changed


@st.composite
def evolved_unions(draw: st.DrawFn, union: list[Any]) -> Any:
    branches = [branch for branch in union if draw(st.integers(0, 9))]
    branches = [draw(evolved(branch)) for branch in branches]
    branches = [inner for b in branches for inner in (b if isinstance(b, list) else [b])]
    if draw(st.booleans()):
        branches.append(draw(st.sampled_from(PRIMITIVES)))
    unique = {branch_key(branch): branch for branch in branches}
    return list(unique.values()) or ["null"]


@st.composite
def evolved_records(draw: st.DrawFn, record: dict[str, Any]) -> Any:
    fields = []
    for field in record["fields"]:
        match draw(st.integers(0, 9)):
            case 0:
                continue
            case 1:
                name, aliases = f"{field['name']}_new", [field["name"]]
                fields.append({"name": name, "type": field["type"], "aliases": aliases})
            case _:
                fields.append({**field, "type": draw(evolved(field["type"]))})
    if draw(st.booleans()):
        default = draw(st.sampled_from([{}, {"default": 1}]))
        fields.append({"name": "added", "type": "int", **default})
    if draw(st.booleans()):
        fields = draw(st.permutations(fields))
    name = draw(st.sampled_from([record["name"]] * 9 + [f"{record['name']}_renamed"]))
    return {**record, "name": name, "fields": fields}


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_compatible_is_read(data: st.DataObject) -> None:
    writer = data.draw(schemas().filter(bounded))
    reader = data.draw(evolved(writer).filter(bounded))
    assume(not unreadable(parse_schema(writer), parse_schema(reader)))
    value = data.draw(values(writer))
    found = read(write(writer, value), writer, reader)
    write(reader, found)  # it is a value of the reader's schema


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_what_cannot_be_read_is_not_compatible(data: st.DataObject) -> None:
    writer = data.draw(schemas().filter(bounded))
    reader = data.draw(evolved(writer).filter(bounded))
    record = write(writer, data.draw(values(writer)))
    try:
        read(record, writer, reader)
    except Exception:
        assert unreadable(parse_schema(writer), parse_schema(reader))


@st.composite
def widened(draw: st.DrawFn, record: dict[str, Any]) -> Any:
    """The record with more fields at its end; now and then changed otherwise too."""
    if not draw(st.integers(0, 4)):
        record = draw(evolved(record))
    types = draw(st.lists(st.sampled_from(WITH_DEFAULTS), max_size=3))
    more = [{"name": f"new{n}", "type": t, "default": d} for n, (t, d) in enumerate(types)]
    return {**record, "fields": [*record["fields"], *more]}


WITH_DEFAULTS: list[tuple[Any, Any]] = [
    ("int", 5),
    ("double", 1),
    (["null", "string"], None),
    ("bytes", "\u00ff"),
    ({"type": "array", "items": "int"}, []),
    ({"type": "int", "logicalType": "date"}, 3),
]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_completed_records_are_those_that_the_library_resolves(data: st.DataObject) -> None:
    names = data.draw(st.shared(st.builds(count), key="names"))
    writer = data.draw(records(3, names, logical=True).filter(bounded))
    reader = data.draw(widened(writer).filter(bounded))
    added = added_fields(parse_schema(writer), parse_schema(reader))
    assume(added is not None)
    record = write(writer, data.draw(values(writer)))
    completed = binary(parse_schema(writer).text).decode(BytesIO(record), None) | (added or {})
    resolved = read(record, writer, reader)
    assert completed == resolved
    assert list(completed) == list(resolved)
