"""Which Arrow type stands for which type of expressions.                                  [P]

`pa.scalar`, `pa.array` and kernels that are given a Python constant look whether it is one of
pandas, and import pandas for that: 0.3 s of CPU. `constant` and `constants` do not.

Owns   the types in which kernels compute: 64 bits, UTF-8, microseconds in UTC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.streams.expressions.types import (
    ANY,
    BOOL,
    BYTES,
    DATE,
    FLOAT64,
    INT64,
    NULL,
    STRING,
    TIMESTAMP,
    ListType,
    StructType,
    Type,
    list_of,
    struct_of,
    type_of,
)

Data = Any  # an Array, or the Scalar of a constant
TYPES_MAX: Final = 1_000  # Arrow types whose type of expressions is remembered
UTC_US: Final = pa.timestamp("us", "UTC")
ARROW: Final[Mapping[Type, Any]] = {
    NULL: pa.null(),
    BOOL: pa.bool_(),
    INT64: pa.int64(),
    FLOAT64: pa.float64(),
    STRING: pa.string(),
    BYTES: pa.binary(),
    TIMESTAMP: UTC_US,
    DATE: pa.date32(),
}


@lru_cache(TYPES_MAX)
def type_of_arrow(of: Any) -> Type:
    """The type of an Arrow type; nothing is known of those that expressions do not compute with."""
    if pa.types.is_struct(of):
        return struct_of({each.name: type_of_arrow(each.type) for each in of})
    if pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of):
        return list_of(type_of_arrow(of.value_type))
    if pa.types.is_dictionary(of):
        return type_of_arrow(of.value_type)
    if pa.types.is_timestamp(of):
        return TIMESTAMP if of.tz is not None else ANY
    return next((type_ for holds, type_ in TYPES if holds(of)), ANY)


TYPES: Final[Sequence[tuple[Callable[[Any], bool], Type]]] = (
    (pa.types.is_null, NULL),
    (pa.types.is_boolean, BOOL),
    (pa.types.is_integer, INT64),
    (pa.types.is_floating, FLOAT64),
    (pa.types.is_string, STRING),
    (pa.types.is_large_string, STRING),
    (pa.types.is_binary, BYTES),
    (pa.types.is_large_binary, BYTES),
    (pa.types.is_fixed_size_binary, BYTES),
    (pa.types.is_date, DATE),
)


def arrow_type(of: Type) -> Any:
    """The Arrow type that holds values of a type."""
    if isinstance(of, ListType):
        return pa.list_(arrow_type(of.of))
    if isinstance(of, StructType):
        return pa.struct([pa.field(name, arrow_type(each)) for name, each in of.fields])
    return ARROW.get(of, pa.null())


def is_known(of: Type) -> bool:
    """Whether an Arrow type stands for it."""
    if isinstance(of, ListType):
        return is_known(of.of)
    if isinstance(of, StructType):
        return all(is_known(each) for _, each in of.fields)
    return of in ARROW


def constant(value: Any, of: Any = None) -> Any:
    """The scalar of a constant."""
    return _array_of_one(value, of)[0]


def constants(values: Sequence[Any], of: Any) -> Any:
    """The array of constants of one type, one of them at least."""
    return pa.concat_arrays([_array_of_one(value, of) for value in values])


def _array_of_one(value: Any, of: Any = None) -> Any:
    type_ = type_of(value)
    of = arrow_type(type_) if of is None else of
    if value is None:
        return pa.nulls(1, of)
    if type_ not in PACKED or of != ARROW[type_]:
        return pa.array([value], of)
    if type_ in (STRING, BYTES):
        content = value.encode() if type_ is STRING else value
        buffers = [struct.pack("=ii", 0, len(content)), content]
    else:
        buffers = [struct.pack(PACKED[type_], value)]
    return pa.Array.from_buffers(of, 1, [None, *map(pa.py_buffer, buffers)])


PACKED: Final[Mapping[Type, str]] = {
    BOOL: "?",
    INT64: "=q",
    FLOAT64: "=d",
    STRING: "",
    BYTES: "",
}  # types whose constants are put into buffers here


def normal(data: Data) -> Data:
    """An array of the Arrow type that stands for its type; structs as they are."""
    of = data.type
    if pa.types.is_dictionary(of):
        return normal(data.dictionary_decode())
    type_ = type_of_arrow(of)
    if isinstance(type_, StructType) or not is_known(type_):
        return data
    wanted = arrow_type(type_)
    return data if of == wanted else pc.cast(data, wanted)


def to_type(data: Data, of: Any) -> Data:
    """As another type, for branches and logic: from null, or from integers to floats."""
    if data.type == of:
        return data
    if pa.types.is_null(data.type):
        return constant(None, of) if isinstance(data, pa.Scalar) else pa.nulls(len(data), of)
    return pc.cast(data, of, safe=not pa.types.is_floating(of))
