"""The column type of each Avro type, and the conversion of values to it.                   [P]

    Avro                                     column
    record, array, map                       struct, list, map
    enum, uuid                               string
    bytes, fixed                             binary
    decimal                                  decimal, of 38 digits at most
    date                                     date
    time-millis, time-micros                 int, long: since midnight
    timestamp-millis, timestamp-micros       timestamp, in UTC
    local-timestamp-millis, -micros          timestamp without a time zone
    null and one type                        that type
    boolean, int, long, float, double, string: their own

A value that was written before its type became a logical one stays a number, as in the serde.

Fails  with SchemaError, naming the place, for types without a column: a union of several types, a
       type that contains itself, null alone; with ConfigError for a field that there is not.
Source Spark's own `from_avro`, for times as well: Spark refuses Parquet tables with a column of its
       type `time`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import time, timedelta
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafkalite.errors import ConfigError, SchemaError
from kafkalite.serde.avro_schema import Node, Schema, kind, logical, type_name

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
LOCAL_TIMESTAMP: Final = pa.timestamp("us")
DECIMAL_DIGITS_MAX: Final = 38
PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "time-millis": pa.int32(),
    "time-micros": pa.int64(),
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": LOCAL_TIMESTAMP,
    "local-timestamp-micros": LOCAL_TIMESTAMP,
    "uuid": pa.string(),
}

MILLISECOND: Final = timedelta(milliseconds=1)
MICROSECOND: Final = timedelta(microseconds=1)

Convert: TypeAlias = Callable[[Any], Any]


def _since_midnight(at: time | int, unit: timedelta) -> int:
    if isinstance(at, int):
        return at
    passed = timedelta(0, at.second, at.microsecond, 0, at.minute, at.hour)
    return passed // unit


def _of_millis(at: Any) -> Any:
    return at * 1000 if isinstance(at, int) else at


CONVERTS: Final[dict[str, Convert]] = {
    "time-millis": lambda at: _since_midnight(at, MILLISECOND),
    "time-micros": lambda at: _since_midnight(at, MICROSECOND),
    "timestamp-millis": _of_millis,
    "local-timestamp-millis": _of_millis,
    "uuid": str,
}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type; `convert` is None where Arrow takes the values as they are read."""

    arrow: pa.DataType
    convert: Convert | None = None


PLAIN: Final = {"string": ColumnType(pa.string()), "binary": ColumnType(pa.binary())}


def column_type(schema: Schema, fields: Sequence[str] | None = None) -> ColumnType:
    """The column that values of a schema make, or some fields of them, in this order."""
    if schema.recursive:
        raise SchemaError(f"{schema.name}: a type that contains itself has no column type")
    if fields is None:
        return _of(schema.root, schema, "value")
    node = schema.deref(schema.root)
    known = {f["name"]: f for f in node["fields"]} if kind(node) == "record" else {}
    if unknown := [name for name in fields if name not in known]:
        there = ", ".join(known) or "no fields"
        raise ConfigError(f"the value has no field {unknown[0]!r}; it has {there}")
    return _of_record({"fields": [known[name] for name in fields]}, schema, "value")


def _of(node: Node, schema: Schema, path: str) -> ColumnType:
    node = schema.deref(node)
    match kind(node):
        case "union":
            return _of_union(node, schema, path)
        case "record":
            return _of_record(node, schema, path)
        case "array":
            items = _of(node["items"], schema, f"{path}[]")
            each = items.convert
            return ColumnType(pa.list_(items.arrow), each and (lambda v: [each(i) for i in v]))
        case "map":
            of = _of(node["values"], schema, f"{path}{{}}")
            one = of.convert
            mapped = one and (lambda v: {k: one(item) for k, item in v.items()})
            return ColumnType(pa.map_(pa.string(), of.arrow), mapped)
    return _of_scalar(node, path)


def _of_union(node: Node, schema: Schema, path: str) -> ColumnType:
    branches = [branch for branch in node if branch != "null"]
    if len(branches) != 1:
        raise SchemaError(f"{path}: a union of {len(branches)} types has no column type")
    inner = _of(branches[0], schema, path)
    convert = inner.convert
    if convert is None or len(node) == 1:
        return inner
    return ColumnType(inner.arrow, lambda value: None if value is None else convert(value))


def _of_record(node: Node, schema: Schema, path: str) -> ColumnType:
    fields = {f["name"]: _of(f["type"], schema, f"{path}.{f['name']}") for f in node["fields"]}
    converts = {name: each.convert for name, each in fields.items() if each.convert}
    struct = pa.struct([(name, each.arrow) for name, each in fields.items()])
    if not converts:
        return ColumnType(struct)
    return ColumnType(
        struct, lambda v: v | {name: each(v[name]) for name, each in converts.items()}
    )


def _of_scalar(node: Node, path: str) -> ColumnType:
    meaning = logical(node)
    if meaning == "decimal":
        digits = node["precision"]
        if digits > DECIMAL_DIGITS_MAX:
            raise SchemaError(f"{path}: a decimal of {digits} digits has no column type")
        return ColumnType(pa.decimal128(digits, node.get("scale", 0)))
    if meaning in LOGICAL:
        return ColumnType(LOGICAL[meaning], CONVERTS.get(meaning))
    if kind(node) not in PRIMITIVES:
        raise SchemaError(f"{path}: Avro type {type_name(node)} has no column type")
    return ColumnType(PRIMITIVES[kind(node)])
