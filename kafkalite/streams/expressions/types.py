"""The types of expressions, and what is known of them before any record is there.         [P]

    any        nothing is known: a field of JSON, the result of a user's function
    null       the literal None alone
    bool int64 float64 string bytes timestamp date
    list[…]    struct{name: …}

An int64 that meets a float64 becomes a float64; no other types mix.

Owns   the types and the rule by which two of them become one.
Fails  with Mismatch, which says what was expected and found; its catcher knows where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from kafkalite.core.nearest import did_you_mean

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
SHOWN_MAX: Final = 40  # characters of a value in a message


class Mismatch(Exception):
    """Types that do not go together; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type without parts."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ListType(Type):
    """A list whose elements have one type."""

    of: Type

    def __str__(self) -> str:
        return f"list[{self.of}]"


@dataclass(frozen=True, slots=True)
class StructType(Type):
    """Named fields, in order."""

    fields: tuple[tuple[str, Type], ...]

    def __str__(self) -> str:
        return f"struct{{{', '.join(f'{name}: {type_}' for name, type_ in self.fields)}}}"

    def field(self, name: str) -> Type:
        """The type of a field. Mismatch when there is none of that name."""
        known = dict(self.fields)
        if name not in known:
            hint = did_you_mean(name, known) or f"; it has {', '.join(known) or 'no fields'}"
            raise Mismatch(f"there is no field {name!r}{hint}")
        return known[name]


ANY: Final = Type("any")
NULL: Final = Type("null")
BOOL: Final = Type("bool")
INT64: Final = Type("int64")
FLOAT64: Final = Type("float64")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
TIMESTAMP: Final = Type("timestamp")
DATE: Final = Type("date")
SCALARS: Final[Mapping[str, Type]] = {
    each.name: each for each in (BOOL, INT64, FLOAT64, STRING, BYTES, TIMESTAMP, DATE)
}
NUMBERS: Final = frozenset({INT64, FLOAT64})
OF_PYTHON: Final[Mapping[type, Type]] = {
    bool: BOOL,
    int: INT64,
    float: FLOAT64,
    str: STRING,
    bytes: BYTES,
    datetime: TIMESTAMP,
    date: DATE,
    type(None): NULL,
}


def list_of(of: Type) -> ListType:
    """A list of one type."""
    return ListType("list", of)


def struct_of(fields: Mapping[str, Type]) -> StructType:
    """A struct with these fields."""
    return StructType("struct", tuple(fields.items()))


def is_unknown(type_: Type) -> bool:
    """Whether anything may fit: nothing is known, or it is null."""
    return type_ in (ANY, NULL)


def unify(types: Iterable[Type]) -> Type:
    """The one type that values of all `types` have. Mismatch when there is none."""
    result = NULL
    for type_ in types:
        result = _both(result, type_)
    return result


def _both(one: Type, other: Type) -> Type:
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if ANY in (one, other):
        return ANY
    if {one, other} <= NUMBERS:
        return FLOAT64
    if isinstance(one, ListType) and isinstance(other, ListType):
        return list_of(_both(one.of, other.of))
    if isinstance(one, StructType) and isinstance(other, StructType):
        names = [name for name, _ in one.fields]
        if names == [name for name, _ in other.fields]:
            pairs = zip(one.fields, other.fields, strict=True)
            return struct_of({name: _both(a, b) for (name, a), (_, b) in pairs})
    raise Mismatch(f"{one} and {other} have no type in common")


def show(value: object) -> str:
    """A value and its Python type, for a message."""
    text = repr(value)
    shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return "null" if value is None else f"{type(value).__name__} {shown}"


def type_of(value: Any) -> Type:
    """The type of a literal. Mismatch for a value that no expression can hold."""
    if isinstance(value, list | tuple):
        return list_of(unify(map(type_of, value)))
    found = OF_PYTHON.get(type(value))
    if found is None:
        raise Mismatch(f"expected None, a bool, number, text, bytes, moment or list of them, "
                       f"got {show(value)}")  # fmt: skip
    if found is INT64 and not INT64_MIN <= value <= INT64_MAX:
        raise Mismatch(f"{value} does not fit 64 bits")
    if found is TIMESTAMP and value.tzinfo is None:
        raise Mismatch(f"{value!r} has no time zone; pass one with tzinfo=UTC")
    return found
