"""The columns that a JSON Schema describes, as a schema registry holds it.                  [P]

    JSON Schema                          column
    object with `properties`             struct of them; an object without is refused
    array with `items`                   array
    integer, number, string, boolean     bigint, double, string, boolean
    ["null", X], oneOf/anyOf null and X  X
    enum or const without a type         the type of its values

Owns   nothing.
Fails  with SchemaError, naming the place: several types in one place, `$ref`, no type.
Source JSON Schema draft 7, as confluentinc/schema-registry registers it for `JsonSchemaSerializer`.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
import pyarrow as pa

from kafkalite.errors import SchemaError

DEPTH_MAX: Final = 50
SCALARS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
KINDS: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


def columns_of_schema(text: str) -> pa.StructType:
    """The columns of the values that a JSON Schema describes."""
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SchemaError(f"the JSON schema is not JSON: {error}") from error
    found = _column(schema, "value", 1)
    if not pa.types.is_struct(found):
        raise SchemaError(f"the JSON schema describes a {found}, not an object")
    return found


def _column(schema: Any, path: str, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise SchemaError(f"{path}: a schema nested more than {DEPTH_MAX} levels deep")
    if not isinstance(schema, dict):
        raise SchemaError(f"{path}: the schema {schema!r} names no type")
    kind, schema = _kind(schema, path)
    if kind in SCALARS:
        return SCALARS[kind]
    if kind == "array":
        return pa.list_(_column(schema.get("items"), f"{path}[]", depth + 1))
    properties = schema.get("properties")
    if kind != "object" or not isinstance(properties, dict) or not properties:
        raise SchemaError(f"{path}: the type {kind!r} without properties has no column type")
    fields = [(n, _column(each, f"{path}.{n}", depth + 1)) for n, each in properties.items()]
    return pa.struct(fields)


def _kind(schema: dict[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """The only type of a place besides null, and the schema that has it."""
    if "$ref" in schema:
        raise SchemaError(f"{path}: $ref {schema['$ref']!r} has no column type")
    for name in ("oneOf", "anyOf"):
        branches = schema.get(name)
        if isinstance(branches, list):
            others = [each for each in branches if each != {"type": "null"}]
            if len(others) != 1 or not isinstance(others[0], dict):
                raise SchemaError(f"{path}: {name} of {len(others)} types has no column type")
            return _kind(others[0], path)
    named = schema.get("type", _of_values(schema))
    kinds = [each for each in (named if isinstance(named, list) else [named]) if each != "null"]
    if len(kinds) != 1 or not isinstance(kinds[0], str):
        raise SchemaError(f"{path}: {len(kinds)} types {kinds} have no column type")
    return kinds[0], schema


def _of_values(schema: dict[str, Any]) -> list[str]:
    """The types of the values that `enum` or `const` allows."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {KINDS.get(type(value), "object") for value in values if value is not None}
    return ["number"] if kinds == {"integer", "number"} else sorted(kinds)
