"""How a column of keys or values becomes an Arrow array of a type that is known before.      [D]

    binary     the bytes                      avro   the columns of a schema, or some of its fields
    text       UTF-8                          json   the fields of a struct
    windowed   a key with its window

Avro and JSON go through native code where that gives the same values, else through Python objects.

Owns   the choice between the two ways for each column.
Fails  with SerdeError, whose index is the first record that cannot be read, and with SchemaError
       for an Avro schema that has no column type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from kafkalite.columnar.column_types import TIMESTAMP, Convert, column_type
from kafkalite.columnar.json_columns import row_reader, unframed
from kafkalite.core.arrow import binary
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_codec import (
    FORM_RECORDS,
    AvroCodec,
    SubjectStrategy,
    has_one_header,
)
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.json import json
from kafkalite.serde.primitives import string
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.serde.serde import EachRecord, SerdeContext
from kafkalite.serde.windowed import named_windowed

WINDOWED: Final = pa.struct([("key", pa.string()), ("start", TIMESTAMP), ("end", TIMESTAMP)])
MISFITS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
# Of Arrow's types for Avro, those that hold what the column's type holds.
SAME_VALUES: Final = frozenset(
    {
        (pa.time32("ms"), pa.int32()),
        (pa.time64("us"), pa.int64()),
        (pa.timestamp("ms", "UTC"), TIMESTAMP),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.float64(), pa.float32()),
        (pa.int64(), pa.float64()),
    }
)


class Format(Protocol):
    """How bytes are read."""

    @property
    def type(self) -> pa.DataType:
        """The type of every array."""

    def arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        """The array of a column; null for None."""


class Binary:
    """The bytes as they are."""

    type = pa.binary()

    def arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        """One copy of the bytes."""
        return binary(column)


class Unwanted:
    """Bytes that nobody asks for: nulls in their place."""

    type = pa.null()

    def arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        """As many nulls."""
        return pa.nulls(len(column))


class Text:
    """UTF-8."""

    type = pa.string()

    def __init__(self) -> None:
        self._codec = string().open(SerdeContext())

    def arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        """The same bytes, once they are known to be UTF-8."""
        try:
            return binary(column).cast(pa.string())
        except pa.ArrowInvalid:
            self._codec.deserialize(topic, column)  # says which record it is
            raise


class WindowedKeys:
    """Keys of windowed results, by the name of a `key.format`."""

    type = WINDOWED

    def __init__(self, name: str) -> None:
        serde = named_windowed(name, string())
        if serde is None:
            raise ConfigError(f"{name!r} is no format of windowed keys")
        self._codec = serde.open(SerdeContext(None, is_key=True))

    def arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        """A struct of each key."""
        keys = self._codec.deserialize(topic, column)
        rows = [k and {"key": k.key, "start": k.start * 1000, "end": k.end * 1000} for k in keys]
        return array_of(rows, WINDOWED)


def plain(name: str) -> Format:
    """The format `string` or `binary`."""
    return Text() if name == "string" else Binary()


def key_format(name: str) -> Format:
    """The format that a `key.format` names."""
    return WindowedKeys(name) if name.startswith("windowed") else plain(name)


class AvroValues:
    """Avro in Confluent's wire format as the columns of `schema`, or of some of its fields."""

    def __init__(
        self, schema: str, registry: SchemaRegistry, fields: Sequence[str] | None = None
    ) -> None:
        self._column = column_type(parse_schema(schema), fields)
        wanted = None if fields is None else frozenset(fields)
        self._codec = AvroCodec(
            registry,
            what="avro",
            name=None,
            schema=schema,
            strategy=SubjectStrategy.TOPIC,
            is_key=False,
            as_dicts=True,
            fields=wanted,
            forms=True,
        )

    @property
    def type(self) -> pa.DataType:
        """The column's type."""
        return self._column.arrow

    def arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        """A struct of each record. Where the writer's schema changes, all but the records around
        the change are read natively.
        """
        parts = list(self._parts(topic, column, 0))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _parts(self, topic: str, column: Sequence[bytes | None], first: int) -> Iterator[pa.Array]:
        """The column in halves of halves, until a part has one schema or is short. `first` is the
        place of its first record.
        """
        if len(column) >= 2 * FORM_RECORDS and not has_one_header(column):
            middle = len(column) // 2
            yield from self._parts(topic, column[:middle], first)
            yield from self._parts(topic, column[middle:], first + middle)
            return
        try:
            yield self._array(topic, column)
        except SerdeError as error:
            if error.index is not None:
                error.index += first
            raise

    def _array(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        values = self._codec.deserialize(topic, column)
        if isinstance(values, ArrowForm):
            found = fitted(values.arrow(), self.type)
            if found is not None:
                return found
        return array_of(converted(values, self._column.convert), self.type)


class JsonValues:
    """JSON objects as the fields of a struct, or as some of them. A field that is missing is null;
    one without a column is an error, unless some fields were named. The header of Confluent's wire
    format is passed over.
    """

    def __init__(self, columns: pa.StructType, fields: Sequence[str] | None = None) -> None:
        if fields is not None:
            if unknown := [name for name in fields if name not in columns.names]:
                there = ", ".join(columns.names)
                raise ConfigError(f"the value has no field {unknown[0]!r}; it has {there}")
            columns = pa.struct([columns.field(name) for name in fields])
        self.type = columns
        wanted = None if fields is None else frozenset(fields)
        self._forms = json().open(SerdeContext(fields=wanted, forms=True, arrow=True))
        read = row_reader(columns, ignore_others=fields is not None)
        self._rows = EachRecord("json", _unwritten, read)

    def arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        """A struct of each object."""
        try:
            return self._arrow(topic, column)
        except SerdeError:
            if not any(value and value[0] == 0 for value in column):
                raise
            return self._arrow(topic, [unframed(value) for value in column])

    def _arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array:
        values = self._forms.deserialize(topic, column)
        if isinstance(values, ArrowForm):
            found = with_fields(values.arrow(), self.type)
            if found is not None:
                return found
        return array_of(self._rows.deserialize(topic, column), self.type)


def _unwritten(value: object) -> bytes:
    raise AssertionError("a reader writes nothing")


def converted(values: Sequence[Any], convert: Convert | None) -> list[Any]:
    """Objects as Arrow takes them."""
    if convert is None:
        return list(values)
    return [None if value is None else convert(value) for value in values]


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Objects as an array; SerdeError with the index of the first that does not fit."""
    try:
        return pa.array(values, kind)
    except MISFITS as error:
        index = next(i for i, value in enumerate(values) if _is_misfit(value, kind))
        shown = glimpse(values[index])
        raise SerdeError(f"{shown} is no {kind}: {error}", index) from error


def _is_misfit(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except MISFITS:
        return True
    return False


def fitted(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The array as one of this type, where that holds the same values; else None."""
    if array.type == kind:
        return array
    if not holds(array.type, kind):
        return None
    try:
        return array.cast(kind)
    except MISFITS:  # a moment beyond 64 bits of microseconds
        return None


def holds(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether every value of one type is the same value as the other; a float may be rounded."""
    if found == kind or (found, kind) in SAME_VALUES:
        return True
    if _is_struct(found) and _is_struct(kind):
        alike = [f.name for f in found] == [f.name for f in kind]
        return alike and all(holds(f.type, k.type) for f, k in zip(found, kind, strict=True))
    if pa.types.is_list(found) and pa.types.is_list(kind):
        return holds(found.value_type, kind.value_type)
    if pa.types.is_dictionary(found):
        return bool(kind == found.value_type)
    return bool(pa.types.is_fixed_size_binary(found) and kind == pa.binary())


def _is_struct(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind))


def with_fields(array: pa.Array, kind: pa.StructType) -> pa.Array | None:
    """A struct with exactly these fields, null where the array has none. None where a field does
    not fit, or has no place.
    """
    if not _is_struct(array.type):
        return None
    there = dict(zip(array.type.names, array.flatten(), strict=True))
    if any(name not in kind.names and part.null_count < len(array) for name, part in there.items()):
        return None
    parts: list[pa.Array] = []
    for field in kind:
        part = there.get(field.name)
        if part is None or pa.types.is_null(part.type):
            part = pa.nulls(len(array), field.type)
        elif _is_struct(field.type):
            part = with_fields(part, field.type)
        else:
            part = fitted(part, field.type)
        if part is None:
            return None
        parts.append(part)
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
