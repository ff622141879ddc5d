"""Schemas from values: a writer without a schema registers them.                          [P]

    int -> long      float -> double      str -> string      bool -> boolean     bytes -> bytes
    datetime -> timestamp-millis          date -> date       list, tuple -> array
    dict -> record when all its keys are names, else map     None -> null

A field of a record is nullable and defaults to null, so that fields may come and go. Fields stand
in the order in which the values show them first. A record inside takes the name of the one around
it and of the field: `Order_address`.

Values that do not fit a schema widen it: `evolve` gives the smallest schema that takes both what
the schema takes and the values. long and double make double, null and T a nullable T, two records
have the fields of both. Values without a common type, such as long and string, are a SchemaError:
a union of them would hide a mistake.

Schemas are JSON values here. At first they are *natural*: they say no more than the values do. An
integer of 32 bits is `SMALL` and fits an int as well as a long, an empty list has items of
`NOTHING`, a field is nullable when a None was seen or it was missing. So a schema that is stricter
than an inferred one stays as strict as its values allow.

Owns   the rules of inference.
Never  gives another schema for the same values in the same order.
Fails  with SchemaError naming the field and both types, or the value that has no Avro type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from functools import reduce
from typing import Any, Final

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import INT_RANGE, NAME, at, takes_no_bytes
from kafkalite.serde.glimpse import glimpse

NOTHING: Final = "nothing"  # no Avro type: the items of an empty list; becomes null
SMALL: Final = "integer"  # of 32 bits; no Avro type: becomes int or long
TIMESTAMP: Final = {"type": "long", "logicalType": "timestamp-millis"}
DATE: Final = {"type": "int", "logicalType": "date"}
DEPTH_MAX: Final = 64
PLAIN: Final[Mapping[type, Any]] = {
    type(None): "null",
    bool: "boolean",
    float: "double",
    str: "string",
    bytes: "bytes",
    bytearray: "bytes",
    datetime: TIMESTAMP,
    date: DATE,
}
# (what a schema has, what the values are): what takes both. Equal ones are not listed.
WIDER: Final[Mapping[tuple[str, str], str]] = {
    (SMALL, "long"): "long",
    (SMALL, "double"): "double",
    ("int", SMALL): "int",
    ("int", "long"): "long",
    ("int", "double"): "double",
    ("long", SMALL): "long",
    ("long", "double"): "double",
    ("float", SMALL): "double",
    ("float", "long"): "double",
    ("float", "double"): "float",  # Python knows doubles only; who chose float meant it
    ("double", SMALL): "double",
    ("double", "long"): "double",
    ("enum", "string"): "enum",  # whether the symbol is known, the writer says
    ("fixed", "bytes"): "fixed",  # and whether the size is right
}


def record_name(topic: str) -> str:
    """A record's name from a topic's: `delays-by-origin` gives `DelaysByOrigin`."""
    words = re.findall(r"[A-Za-z0-9]+", topic)
    name = "".join(word[0].upper() + word[1:] for word in words)
    return name if NAME.fullmatch(name) else f"Record{name}"


def infer(values: Iterable[Any], name: str) -> Any:
    """The schema that takes all `values`; a record in it is called `name`."""
    natural = _merged((_of_value(value, name, "", 0) for value in values), "")
    return _finished(_all_nullable(natural))


def evolve(schema: Any, values: Iterable[Any], name: str) -> Any:
    """The smallest schema that takes all that `schema` takes, and all `values`.

    The schema keeps its defaults, aliases and docs. Its named types must be
    written out where they are widened. SchemaError when there is no such schema.
    """
    before = None
    for value in values:
        natural = _of_value(value, name, "", 0)
        if natural != before:
            schema = merge(schema, natural, "")
        before = natural
    return _finished(schema)


def _of_value(value: Any, name: str, path: str, depth: int) -> Any:
    """The natural schema of one value."""
    if depth > DEPTH_MAX:
        raise SchemaError(f"{at(path)}nested more than {DEPTH_MAX} deep")
    if type(value) is int:
        return SMALL if value in INT_RANGE else "long"
    plain = PLAIN.get(type(value))
    if plain is TIMESTAMP and value.tzinfo is None:
        raise SchemaError(f"{at(path)}datetime {value} is no moment: give it a time zone")
    if plain is not None:
        return plain
    if isinstance(value, Mapping):
        return _of_mapping(value, name, path, depth)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = (_of_value(item, name, f"{path}[]", depth + 1) for item in value)
        return {"type": "array", "items": _merged(items, f"{path}[]")}
    raise SchemaError(
        f"{at(path)}{type(value).__name__} {glimpse(value)} has no Avro type to infer; "
        "give avro() a schema, or convert it"
    )


def _of_mapping(value: Mapping[Any, Any], name: str, path: str, depth: int) -> Any:
    wrong = next((key for key in value if not isinstance(key, str)), None)
    if wrong is not None:
        raise SchemaError(f"{at(path)}key {glimpse(wrong)} of a dict is no str")
    if not all(NAME.fullmatch(key) for key in value):
        values = (_of_value(v, name, f"{path}{{}}", depth + 1) for v in value.values())
        return {"type": "map", "values": _merged(values, f"{path}{{}}")}
    fields = []
    for key, item in value.items():
        inside = f"{path}.{key}" if path else key
        fields.append({"name": key, "type": _of_value(item, f"{name}_{key}", inside, depth + 1)})
    return {"type": "record", "name": name, "fields": fields}


def _merged(schemas: Iterable[Any], path: str) -> Any:
    """The schema that accepts the values of all `schemas`."""
    return reduce(lambda found, schema: merge(found, schema, path), schemas, NOTHING)


def _finished(schema: Any) -> Any:
    """The schema as it is registered: an integer that nothing else asked for is a long.

    The items of an array take a byte at least, in a union if need be: else nobody could tell how
    many the bytes of a record may stand for.
    """
    if schema in (SMALL, NOTHING):
        return "long" if schema == SMALL else "null"
    if isinstance(schema, list):
        return [_finished(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {
        part: _finished(schema[part]) for part in ("type", "items", "values") if part in schema
    }
    if "items" in inner and takes_no_bytes(inner["items"]):
        inner["items"] = ["null", *(item for item in [inner["items"]] if item != "null")]
    fields = {"fields": [_finished(f) for f in schema["fields"]]} if "fields" in schema else {}
    return {**schema, **inner, **fields}


def _all_nullable(schema: Any) -> Any:
    """A natural schema whose records' fields, also those inside, are nullable."""
    if isinstance(schema, list):
        return [_all_nullable(branch) for branch in schema]
    match schema:
        case {"type": "array", "items": items}:
            return {**schema, "items": _all_nullable(items)}
        case {"type": "map", "values": values}:
            return {**schema, "values": _all_nullable(values)}
        case {"type": "record", "fields": fields}:
            return {**schema, "fields": [_nullable_field(field) for field in fields]}
    return schema


def _nullable_field(field: dict[str, Any]) -> dict[str, Any]:
    return {"name": field["name"], "type": nullable(_all_nullable(field["type"])), "default": None}


def nullable(schema: Any) -> Any:
    """A union of null, first, and what the schema takes."""
    others = [branch for branch in _branches(schema) if branch != "null"]
    return ["null", *others] if others else "null"


def _branches(schema: Any) -> list[Any]:
    return schema if isinstance(schema, list) else [schema]


def merge(schema: Any, natural: Any, path: str) -> Any:
    """The smallest schema that takes what `schema` takes and the values that are `natural`."""
    if schema == natural or natural == NOTHING:
        return schema
    if schema == NOTHING:
        return natural
    if "null" in (schema, natural) or isinstance(schema, list) or isinstance(natural, list):
        return _merge_union(schema, natural, path)
    kinds = (_kind(schema), _kind(natural))
    match kinds:
        case ("record", "record"):
            return _merge_records(schema, natural, path)
        case ("array", "array"):
            return {**schema, "items": merge(schema["items"], natural["items"], f"{path}[]")}
        case ("map", "map"):
            return {**schema, "values": merge(schema["values"], natural["values"], f"{path}{{}}")}
        case ("map", "record"):
            return {**schema, "values": _with_fields(schema["values"], natural, path)}
        case ("record", "map"):
            return {**natural, "values": _with_fields(natural["values"], schema, path)}
    if kinds in WIDER or kinds[0] == kinds[1]:
        wider = WIDER.get(kinds, kinds[0])
        return schema if wider == kinds[0] else wider
    if isinstance(schema, dict) and (schema["type"], kinds[1]) in WIDER:
        return schema  # the plain number of a logical type
    raise SchemaError(
        f"{at(path)}{kinds[0]} and {kinds[1]} have no type in common; "
        "give avro() a schema with a union"
    )


def _kind(schema: Any) -> str:
    """The name of a type; a logical type has its own."""
    if isinstance(schema, dict):
        return str(schema.get("logicalType", schema["type"]))
    return str(schema)


def _merge_union(schema: Any, natural: Any, path: str) -> Any:
    """Null and one other type each, or a union that already has the natural type."""
    ours = [branch for branch in _branches(schema) if branch != "null"]
    theirs = [branch for branch in _branches(natural) if branch != "null"]
    if not ours and not theirs:
        return schema
    if len(ours) > 1:
        return _into_branches(schema, ours, theirs, "null" in _branches(natural), path)
    merged = merge(ours[0], theirs[0], path) if ours and theirs else (ours or theirs)[0]
    null_comes_last = isinstance(schema, list) and schema[0] != "null"
    return [merged, "null"] if null_comes_last else ["null", merged]


def _into_branches(schema: Any, ours: list[Any], theirs: list[Any], null: bool, path: str) -> Any:
    """A union of several types keeps them: which one a value takes is for the writer to say."""
    kinds = [_kind(branch) for branch in ours]
    for branch in theirs:
        kind = _kind(branch)
        if not any(mine in (kind, WIDER.get((mine, kind))) for mine in kinds):
            known = ", ".join(kinds)
            raise SchemaError(f"{at(path)}{kind} is no branch of the union of {known}")
    return [*schema, "null"] if null and "null" not in schema else schema


def _merge_records(schema: Any, natural: Any, path: str) -> Any:
    """The fields of `schema`, then the new ones. Fields that the values lack become nullable."""
    theirs = {field["name"]: field for field in natural["fields"]}
    fields = []
    for field in schema["fields"]:
        inside = f"{path}.{field['name']}" if path else field["name"]
        fields.append(_merge_field(field, theirs.pop(field["name"], None), inside))
    return {**schema, "fields": [*fields, *map(_nullable_field, theirs.values())]}


def _merge_field(field: dict[str, Any], other: dict[str, Any] | None, path: str) -> dict[str, Any]:
    if other is not None:
        merged = merge(field["type"], other["type"], path)
        if field.get("default") is not None and merged != field["type"]:
            merged = _null_last(merged)  # the default is of the first branch
        return {**field, "type": merged}
    if "default" in field:
        return field
    return {**field, "type": nullable(field["type"]), "default": None}


def _null_last(schema: Any) -> Any:
    others = [branch for branch in _branches(schema) if branch != "null"]
    return [*others, "null"] if len(others) < len(_branches(schema)) else schema


def _with_fields(values: Any, record: Any, path: str) -> Any:
    """A map's values with a record's fields among them."""
    return reduce(
        lambda merged, field: merge(merged, field["type"], f"{path}{{}}"), record["fields"], values
    )
