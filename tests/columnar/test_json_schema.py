"""The columns of a JSON Schema, and what has none."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from kafkalite.columnar.json_schema import columns_of_schema
from kafkalite.errors import SchemaError


def of(**properties: Any) -> pa.StructType:
    return columns_of_schema(json.dumps({"type": "object", "properties": properties}))


def test_types_become_columns() -> None:
    found = of(
        id={"type": "integer"},
        price={"type": ["number", "null"]},
        name={"oneOf": [{"type": "null"}, {"type": "string"}]},
        state={"enum": ["on", "off", None]},
        share={"enum": [1, 0.5]},
        kind={"const": True},
        tags={"type": "array", "items": {"type": "string"}},
        at={"type": "object", "properties": {"x": {"type": "number"}}},
    )
    assert found == pa.struct(
        [
            ("id", pa.int64()),
            ("price", pa.float64()),
            ("name", pa.string()),
            ("state", pa.string()),
            ("share", pa.float64()),
            ("kind", pa.bool_()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.struct([("x", pa.float64())])),
        ]
    )


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"type": ["string", "integer"]}, r"value\.a: 2 types"),
        ({"$ref": "#/definitions/x"}, r"value\.a: \$ref"),
        ({}, r"value\.a: 0 types"),
        (True, r"value\.a: the schema True names no type"),
        ({"type": "object"}, r"value\.a: the type 'object' without properties"),
        ({"type": "array"}, r"value\.a\[\]: the schema None names no type"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "anyOf of 2 types"),
        ({"type": "record"}, "the type 'record' without properties"),
    ],
)
def test_what_has_no_column_is_named_by_its_place(wrong: object, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        of(a=wrong)


def test_values_are_objects() -> None:
    with pytest.raises(SchemaError, match="describes a string, not an object"):
        columns_of_schema('{"type": "string"}')
    deep: Any = {"type": "string"}
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaError, match="nested more than 50"):
        of(a=deep)
