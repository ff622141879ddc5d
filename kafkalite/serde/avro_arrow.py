"""Columns of Avro as Arrow's arrays, without a copy.                                        [P]

| Avro | Arrow |
|---|---|
| boolean, int, long, float, double | bool, int32, int64, float, double |
| bytes, string | binary, string |
| record, array, map | struct, list, map |
| enum | dictionary of strings; the reader's symbols in their order |
| fixed, duration | fixed_size_binary |
| uuid | fixed_size_binary(16) |
| decimal | decimal128 up to 38 digits, else decimal256 |
| date, time-millis, time-micros | date32, time32("ms"), time64("us") |
| timestamp-millis, -micros, -nanos | timestamp("ms", "us", "ns") in UTC |
| local-timestamp-… | timestamp without a zone |
| an int or long read as float or double | double: a float would lose digits that Python keeps |
| null, and a field without a value | null; a nullable type is the type |

A logical type is the writer's, as everywhere in this package. pyarrow is imported when it is
needed; nothing else of Avro needs it.

Owns   the Arrow type of each kind of column.
Fails  with SerdeError for a record that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkalite.serde.avro_columns import decoder
from kafkalite.serde.avro_plan import DECIMAL128_DIGITS, Column, Kind, Plan
from kafkalite.serde.vectors import Table, Values, Vector

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.serde.avro_columns import Batch


def avro_to_arrow(plan: Plan, values: Sequence[bytes | None], skip: int = 0) -> pa.Array:
    """The array of a column of records: a struct where the schema is a record's.

    Each record begins with `skip` bytes that are not Avro's: HEADER_BYTES in Confluent's format.
    None is a null row. SerdeError names the first record that cannot be read, and its field;
    SchemaError where the native module is missing.
    """
    return to_arrow(decoder(plan).decode(values, skip))


def to_arrow(batch: Batch) -> pa.Array:
    """The array of all columns of a batch."""
    return _array(batch, 0, batch.rows)


def table_to_arrow(table: Table) -> pa.Array:
    """The array of a table whose columns all have memory."""
    import pyarrow as pa

    columns = [_known(column) for column in table.fields.values()]
    return pa.StructArray.from_arrays(list(map(column_to_arrow, columns)), names=list(table.fields))


def column_to_arrow(column: Vector | Values) -> pa.Array:
    """The array of a column."""
    import pyarrow as pa

    if isinstance(column, Vector):
        whole = _array(column.batch, column.place, column.batch.rows)
        if column.places is None:
            return whole
        places = pa.py_buffer(column.places)
        return whole.take(pa.Array.from_buffers(pa.int64(), len(column), [None, places]))
    size, _, valid, data, *_ = column.source()
    bits = (size + 7) >> 3
    made = pa.bool_() if column.is_bools else pa.float64() if column.is_floats else pa.int64()
    sizes = (bits, bits if column.is_bools else 8 * size)
    lent = [
        pa.foreign_buffer(address, length, base=column) if address else None
        for address, length in zip((valid, data), sizes, strict=True)
    ]
    return pa.Array.from_buffers(made, size, lent)


def _known(column: Vector | Values | None) -> Vector | Values:
    assert column is not None, "a column without memory is in no result"
    return column


def arrow_type(plan: Plan, place: int = 0) -> pa.DataType:
    """The Arrow type of a column of a plan; of the root, unless another is given."""
    import pyarrow as pa

    column = plan.columns[place]
    parts = [arrow_type(plan, part) for part in column.parts]
    match column.kind:
        case Kind.RECORD:
            names = [plan.columns[part].name for part in column.parts]
            return pa.struct(list(zip(names, parts, strict=True)))
        case Kind.ARRAY:
            return pa.list_(parts[0])
        case Kind.MAP:
            return pa.map_(*parts)
        case Kind.CONSTANT:
            return parts[0]
    return _leaf_type(column)


def _leaf_type(column: Column) -> pa.DataType:
    import pyarrow as pa

    match column.kind:
        case Kind.FIXED:
            return pa.binary(column.size)
        case Kind.ENUM:
            return pa.dictionary(pa.int32(), pa.string())
        case Kind.DECIMAL:
            is_narrow = column.precision <= DECIMAL128_DIGITS
            make = pa.decimal128 if is_narrow else pa.decimal256
            return make(column.precision, column.scale)
    return _plain_types()[column.kind]


@cache
def _plain_types() -> dict[Kind, pa.DataType]:
    """The types of kinds that need no more to be said."""
    import pyarrow as pa

    return {
        Kind.NULL: pa.null(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.INT: pa.int32(),
        Kind.LONG: pa.int64(),
        Kind.FLOAT: pa.float32(),
        Kind.DOUBLE: pa.float64(),
        Kind.BYTES: pa.binary(),
        Kind.STRING: pa.string(),
        Kind.DATE: pa.date32(),
        Kind.TIME_MILLIS: pa.time32("ms"),
        Kind.TIME_MICROS: pa.time64("us"),
        Kind.TIMESTAMP_MILLIS: pa.timestamp("ms", "UTC"),
        Kind.TIMESTAMP_MICROS: pa.timestamp("us", "UTC"),
        Kind.LOCAL_MILLIS: pa.timestamp("ms"),
        Kind.LOCAL_MICROS: pa.timestamp("us"),
        Kind.TIMESTAMP_NANOS: pa.timestamp("ns", "UTC"),
        Kind.LOCAL_NANOS: pa.timestamp("ns"),
        Kind.UUID: pa.binary(16),
    }


def _array(batch: Batch, place: int, length: int) -> pa.Array:
    """A column as an array; `length` is that of the column it is part of."""
    import pyarrow as pa

    plan = batch.plan
    column = plan.columns[place]
    if column.kind is Kind.CONSTANT:
        (inner,) = column.parts
        default = arrow_value(plan, inner, column.default)
        if default is None:
            return pa.nulls(length, arrow_type(plan, inner))
        return pa.array([default] * length, arrow_type(plan, inner))  # which imports pandas
    if column.kind is Kind.NULL:
        return pa.nulls(length)
    lent = [
        None if found is None else pa.foreign_buffer(*found, base=batch)
        for found in batch.buffers(place)
    ]
    valid, data, content = lent
    empty = pa.py_buffer(b"")
    nulls = 0 if valid is None else batch.null_count(place)
    made = arrow_type(plan, place)
    match column.kind:
        case Kind.RECORD:
            parts = [_array(batch, part, length) for part in column.parts]
            return pa.Array.from_buffers(made, length, [valid], nulls, children=parts)
        case Kind.ARRAY | Kind.MAP:
            parts = [_array(batch, part, batch.length(part)) for part in column.parts]
            if column.kind is Kind.MAP:
                parts = [pa.StructArray.from_arrays(parts, ["key", "value"])]
            return pa.Array.from_buffers(
                made, length, [valid, data or empty], nulls, children=parts
            )
        case Kind.ENUM:
            indices = pa.Array.from_buffers(pa.int32(), length, [valid, data or empty], nulls)
            return pa.DictionaryArray.from_arrays(indices, list(column.symbols))
        case Kind.BYTES | Kind.STRING:
            buffers = [valid, data or empty, content or empty]
            return pa.Array.from_buffers(made, length, buffers, nulls)
    return pa.Array.from_buffers(made, length, [valid, data or empty], nulls)


def arrow_value(plan: Plan, place: int, value: Any) -> Any:
    """A value of a column, as pyarrow takes it."""
    column = plan.columns[place]
    match column.kind, value:
        case Kind.RECORD, dict():
            names = {plan.columns[part].name: part for part in column.parts}
            return {name: arrow_value(plan, names[name], value[name]) for name in value}
        case Kind.ARRAY, list():
            return [arrow_value(plan, column.parts[0], item) for item in value]
        case Kind.MAP, dict():
            return [(key, arrow_value(plan, column.parts[1], part)) for key, part in value.items()]
        case Kind.UUID, UUID():
            return value.bytes
    return value
