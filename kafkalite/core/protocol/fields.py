"""What a definition says: its annotations, read into fields.                              [P]

Owns   `Field` and the four kinds of element that a field may hold. A definition is read once, and
       only when one of its versions is compiled, so that it may name classes that stand below it.
Fails  with TypeError on an annotation that the wire does not know.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Final

from kafkalite.core.protocol.primitives import (
    STRING,
    UUID,
    ZERO_UUID,
    Fixed,
    NullableSince,
    Since,
    Sized,
    Tag,
    Until,
)
from kafkalite.errors import ErrorCode

FOREVER: Final = 1 << 15  # above every version
ERROR_CODE: Final = Fixed("h")  # told from an Int16 by identity


@dataclass(frozen=True, slots=True)
class Array:
    """`tuple[X, ...]`."""

    element: Element


@dataclass(frozen=True, slots=True)
class Struct:
    """A class made by `codec.struct`."""

    cls: type


Element = Fixed | Sized | Array | Struct


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message: its type, its versions and its default."""

    name: str
    element: Element
    since: int
    until: int
    nullable_since: int  # FOREVER if it is never null
    tag: int | None
    default: Any

    def is_in(self, version: int) -> bool:
        """Whether the version has the field."""
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        """Whether the field may be null in the version."""
        return version >= self.nullable_since


@functools.cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields of a message or struct, in wire order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_field(cls, field, hints[field.name]) for field in dataclasses.fields(cls))


def tagged_and_not(cls: type, version: int) -> tuple[list[Field], list[Field]]:
    """The tagged fields of a version in the order of their tags, and the others."""
    present = [field for field in fields_of(cls) if field.is_in(version)]
    tagged = sorted((f for f in present if f.tag is not None), key=lambda f: f.tag or 0)
    return tagged, [field for field in present if field.tag is None]


def _field(cls: type, field: dataclasses.Field[Any], hint: Any) -> Field:
    marks: list[Any] = []
    nullable_since = FOREVER
    if typing.get_origin(hint) is Annotated:
        hint, *marks = typing.get_args(hint)
        if any(isinstance(mark, Fixed | Sized) for mark in marks):
            hint = Annotated[hint, next(m for m in marks if isinstance(m, Fixed | Sized))]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(arm for arm in typing.get_args(hint) if arm is not types.NoneType)
        nullable_since = 0
    since, until = 0, FOREVER
    tag: int | None = None
    for mark in marks:
        match mark:
            case Since(since):
                pass
            case Until(until):
                pass
            case Tag(tag, since):
                pass
            case NullableSince(nullable_since):
                pass
    element = _element(f"{cls.__name__}.{field.name}", hint)
    default = _zero(element) if field.default is dataclasses.MISSING else field.default
    return Field(field.name, element, since, until, nullable_since, tag, default)


def _element(where: str, hint: Any) -> Element:
    if hint is ErrorCode:
        return ERROR_CODE
    if typing.get_origin(hint) is Annotated:
        kind = typing.get_args(hint)[1]
        if isinstance(kind, Fixed | Sized):
            return kind
    if typing.get_origin(hint) is tuple:
        return Array(_element(where, typing.get_args(hint)[0]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Struct(hint)
    raise TypeError(f"{where}: the wire knows no {hint}")


def _zero(element: Element) -> Any:
    """The value of a field without a default in a version that lacks the field."""
    match element:
        case Fixed("?"):
            return False
        case Fixed("d"):
            return 0.0
        case Fixed():
            zeros = {id(UUID): ZERO_UUID, id(ERROR_CODE): ErrorCode.NONE}
            return zeros.get(id(element), 0)
        case Sized():
            return "" if element is STRING else b""
        case Array():
            return ()
        case Struct(cls):
            return cls()


def size_min(element: Element, version: int, flexible: bool) -> int:
    """The fewest bytes of an element, which bound an array's count."""
    match element:
        case Fixed(letter):
            return struct.calcsize(">" + letter)
        case Sized(letter):
            return 1 if flexible else struct.calcsize(">" + letter)
        case Array():
            return 1 if flexible else 4
        case Struct(cls):
            _, fields = tagged_and_not(cls, version)
            sizes = (
                1
                if isinstance(field.element, Struct) and field.is_nullable(version)
                else size_min(field.element, version, flexible)
                for field in fields
            )
            return max(1, sum(sizes) + flexible)
