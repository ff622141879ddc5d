"""The Avro schema of a column: the same for a type, whatever the values are.               [P]

    struct                             record; a field that may be null defaults to null
    array, map with strings as keys    array, map
    string, binary, boolean            string, bytes, boolean
    byte, short, int; long             int; long
    float, double                      float, double
    decimal                            bytes with the logical type decimal
    date                               int with the logical type date
    timestamp, timestamp_ntz           timestamp-micros, local-timestamp-micros

Spark's own `to_avro` writes the same types. A record inside takes the name of the one around it and
of the field: `Order_address`.

Owns   nothing.
Fails  with ConfigError naming the column or field whose type or name Avro does not have.
Source Spark's `SchemaConverters`, for types.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from kafkalite.errors import ConfigError
from kafkalite.serde.avro_schema import NAME

Test = Callable[[pa.DataType], bool]
types = pa.types
PLAIN: Final[tuple[tuple[Test, Any], ...]] = (
    (types.is_boolean, "boolean"),
    (types.is_int8, "int"),
    (types.is_int16, "int"),
    (types.is_int32, "int"),
    (types.is_int64, "long"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (types.is_string, "string"),
    (types.is_large_string, "string"),
    (types.is_binary, "bytes"),
    (types.is_large_binary, "bytes"),
    (types.is_date32, {"type": "int", "logicalType": "date"}),
)


def avro_schema(kind: pa.DataType, column: str, name: str) -> str:
    """The schema of the column `column`, as JSON; a record in it is called `name`. A row that is
    null has no value in the log, so the column itself is not nullable.
    """
    return json.dumps(_of(kind, column, name))


def _of(kind: pa.DataType, path: str, name: str) -> Any:
    for fits, plain in PLAIN:
        if fits(kind):
            return plain
    if types.is_struct(kind):
        return {"type": "record", "name": name, "fields": [_field(f, path, name) for f in kind]}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, f"{path}[]", name)}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": _nullable(kind.item_field, f"{path}{{}}", name)}
    if types.is_decimal(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if types.is_timestamp(kind):
        logical = "local-timestamp-micros" if kind.tz is None else "timestamp-micros"
        return {"type": "long", "logicalType": logical}
    raise ConfigError(f"column {path!r} is {kind}, for which there is no Avro type: cast it")


def _field(field: pa.Field, path: str, name: str) -> Any:
    inside = f"{path}.{field.name}"
    if not NAME.fullmatch(field.name):
        raise ConfigError(f"column {inside!r} has no name of Avro's: letters, digits and _ alone")
    made = {"name": field.name, "type": _nullable(field, inside, f"{name}_{field.name}")}
    return made | {"default": None} if field.nullable else made


def _nullable(field: pa.Field, path: str, name: str) -> Any:
    found = _of(field.type, path, name)
    return ["null", found] if field.nullable else found
