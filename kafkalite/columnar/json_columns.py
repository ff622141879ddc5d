"""JSON objects as columns: infers the columns, and converts each object to a row.           [P]

    JSON                      column
    true, false               boolean
    whole number              bigint; double if some are fractions, or longer than 64 bits
    number with a fraction    double
    text                      string
    object                    struct of its fields
    array                     array of the type that its items share
    null, {}, []              no column until an object has a value there

The columns are inferred from every object that a load reads, not from a sample. A missing field is
null in the row. A column that the table already has keeps its type. If two objects differ in a way
that no type above covers, the first one decides the type, and the other object is an error.

Owns   nothing.
Fails  with SerdeError in `row_reader` if an object does not fit the columns, and in `Seen` if
       objects have very many fields (their names are probably data) or are nested very deeply;
       with ConfigError if the table has a column whose type JSON lacks.
Source Spark's `spark.read.json`, which turns fields of different types into text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa

from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde.glimpse import glimpse

DEPTH_MAX: Final = 50
FIELDS_MAX: Final = 2_000  # of all objects of a load together
HEADER_BYTES: Final = 5  # a zero and the schema's id, of Confluent's wire format
INT64: Final = range(-(1 << 63), 1 << 63)
NUMBERS: Final = frozenset({"bigint", "double"})
SCALARS: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}
# Columns of given schemas; none is inferred.
NARROW_INTEGERS: Final = frozenset({pa.int8(), pa.int16(), pa.int32()})
FLOAT: Final = pa.float32()

# What was seen in one place: nothing, a scalar's name, {"struct": {name: …}} or {"array": …}.
Shape: TypeAlias = str | dict[str, Any] | None
Read: TypeAlias = Callable[[Any, str], Any]  # a value and its path to what stands in the column


class Seen:
    """The shape of all objects so far. `shape` is itself JSON, so that a task can send it."""

    def __init__(self, shape: Shape = None) -> None:
        self.shape = shape

    def add(self, objects: Iterable[bytes | None]) -> None:
        """Looks at more objects. `row_reader` refuses what is no object; here it is passed over."""
        for data in objects:
            try:
                value = None if data is None else orjson.loads(data)
            except orjson.JSONDecodeError:
                continue
            if isinstance(value, dict):
                self.shape = _with(self.shape, value, 1)
        self._check()

    def merge(self, later: Shape) -> None:
        """Adds what another task has seen."""
        self.shape = _merged(self.shape, later)
        self._check()

    def _check(self) -> None:
        if (count := _fields(self.shape)) > FIELDS_MAX:
            raise SerdeError(
                f"the JSON objects have {count:,} fields, more than {FIELDS_MAX:,}: their names "
                "seem to be data; load the topic as string"
            )


def _with(shape: Shape, value: Any, depth: int) -> Shape:
    """The shape of a place that holds `value` as well."""
    if value is None:
        return shape
    if not isinstance(value, dict | list):
        return _merged(shape, _scalar(value))
    if depth > DEPTH_MAX:
        raise SerdeError(f"JSON nested more than {DEPTH_MAX} levels deep: load the topic as string")
    kind = "struct" if isinstance(value, dict) else "array"
    if not (isinstance(shape, dict) and kind in shape):
        if not _is_empty(shape):
            return shape
        shape = {"struct": {}} if kind == "struct" else {"array": None}
    if isinstance(value, dict):
        fields = shape["struct"]
        for name, item in value.items():
            if item is not None:
                fields[name] = _with(fields.get(name), item, depth + 1)
    else:
        for item in value:
            shape["array"] = _with(shape["array"], item, depth + 1)
    return shape


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "bigint" if isinstance(value, int) and value in INT64 else "double"


def _merged(first: Shape, later: Shape) -> Shape:
    """The union of two shapes; where they conflict, the first one."""
    if first is None or later is None:
        return later if first is None else first
    if isinstance(first, dict) and isinstance(later, dict) and first.keys() == later.keys():
        if "array" in first:
            return {"array": _merged(first["array"], later["array"])}
        fields = dict(first["struct"])
        for name, shape in later["struct"].items():
            fields[name] = _merged(fields.get(name), shape)
        return {"struct": fields}
    if _is_empty(first) or first == later:
        return later
    are_numbers = isinstance(first, str) and isinstance(later, str) and {first, later} == NUMBERS
    return "double" if are_numbers else first


def _is_empty(shape: Shape) -> bool:
    """Whether no value was seen, at the most objects and arrays without any."""
    if isinstance(shape, dict):
        below = shape["struct"].values() if "struct" in shape else (shape["array"],)
        return all(map(_is_empty, below))
    return shape is None


def _fields(shape: Shape) -> int:
    if not isinstance(shape, dict):
        return 0
    if "array" in shape:
        return _fields(shape["array"])
    return sum(1 + _fields(below) for below in shape["struct"].values())


# ---- columns -----------------------------------------------------------------------------------


def columns_of(shape: Shape, table: pa.StructType | None = None) -> pa.StructType:
    """The columns for objects of a shape; those of the table first, each with its type."""
    found = _column(shape, pa.struct([]) if table is None else table)
    assert isinstance(found, pa.StructType)
    return found


def _column(shape: Shape, known: pa.DataType | None) -> pa.DataType | None:
    """The type of one place; `known` is what the table has there. None where there is no value."""
    if isinstance(known, pa.StructType):
        return _struct(shape, known)
    if known is not None and not pa.types.is_list(known):
        return known
    if isinstance(shape, dict) and "array" in shape:
        item = _column(shape["array"], known and known.value_type)
        return known if item is None else pa.list_(item)
    if known is not None or shape is None:
        return known
    if isinstance(shape, str):
        return SCALARS[shape]
    made = _struct(shape, pa.struct([]))
    return made if made.num_fields else None


def _struct(shape: Shape, known: pa.StructType) -> pa.StructType:
    seen = shape.get("struct", {}) if isinstance(shape, dict) else {}
    types = {field.name: field.type for field in known}
    types |= {name: _column(seen[name], types.get(name)) for name in seen}
    return pa.struct([(name, type_) for name, type_ in types.items() if type_ is not None])


def unframed(data: bytes | None) -> bytes | None:
    """The JSON of a value, which Confluent's serializer puts after a header."""
    return data[HEADER_BYTES:] if data and data[0] == 0 else data


# ---- rows --------------------------------------------------------------------------------------


def row_reader(
    columns: pa.StructType, *, ignore_others: bool = False
) -> Callable[[bytes], dict[str, Any]]:
    """A function from an object's bytes to a row. ValueError if the object does not fit: if it has
    a field without a column, for instance, unless the object's other fields are ignored.
    """
    read = _reader(columns, "")
    names = columns.names

    def row(data: bytes) -> dict[str, Any]:
        value = orjson.loads(data)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        if ignore_others:
            value = {name: value[name] for name in names if name in value}
        made: dict[str, Any] = read(value, "")
        return made

    return row


def _reader(column: pa.DataType, path: str) -> Read:
    """A function that checks and converts a column's value; null fits any column."""
    if isinstance(column, pa.StructType):
        return _object_reader(column, path)
    if pa.types.is_list(column):
        item = _reader(column.value_type, f"{path}[]")

        def array(value: Any, path: str) -> Any:
            if not isinstance(value, list):
                raise _misfit(value, path, "array")
            return [None if each is None else item(each, f"{path}[]") for each in value]

        return array
    if column in NARROW_INTEGERS:
        return _narrow_reader(column)
    wide = pa.float64() if column == FLOAT else column
    kind = next((name for name, type_ in SCALARS.items() if type_ == wide), None)
    if kind is None:
        raise ConfigError(f"the column '{path}' is a {column}; JSON has no such values")
    fits = {kind, "bigint"} if kind == "double" else {kind}
    into = float if kind == "double" else lambda value: value

    def scalar(value: Any, path: str) -> Any:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        found = None if isinstance(value, dict | list) else _scalar(value)
        if found not in fits and not (kind == "double" and is_whole):
            raise _misfit(value, path, kind)
        return into(value)

    return scalar


def _narrow_reader(column: pa.DataType) -> Read:
    """Whole numbers of few bits: others do not fit."""
    most = 1 << (column.bit_width - 1)

    def number(value: Any, path: str) -> Any:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not (is_whole and -most <= value < most):
            raise _misfit(value, path, str(column))
        return value

    return number


def _object_reader(column: pa.StructType, path: str) -> Read:
    reads = {f.name: _reader(f.type, f"{path}.{f.name}".lstrip(".")) for f in column}

    def row(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _misfit(value, path, "struct")
        made = dict.fromkeys(reads)
        for name, item in value.items():
            place = f"{path}.{name}" if path else name
            if name in reads:
                made[name] = None if item is None else reads[name](item, place)
            elif not _is_empty(_with(None, item, 1)):
                raise ValueError(f"the field '{place}' has no column")
        return made

    return row


def _misfit(value: Any, path: str, kind: str) -> ValueError:
    return ValueError(f"the field '{path}' is {glimpse(value)}, and its column is {kind}")
