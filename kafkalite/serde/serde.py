"""A serde describes how values become bytes; its codec converts whole columns.              [P]

A `Serde` is frozen data and part of a plan: hashable, comparable, and its repr can be evaluated.
`open` returns the `Codec` that does the work, and gives it the schema registry.

    column of values  --serialize-->  column of bytes  --deserialize-->  column of values

Owns   the protocol of all serdes, and the way in which an error names its record.
Never  converts None: a null value is None on both sides.
Fails  with SerdeError, whose `index` is the first record of the column that failed.
Source `Serializer` and `Deserializer` of apache/kafka, turned from records to columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kafkalite.core.generics import T, T_contra
from kafkalite.errors import SerdeError
from kafkalite.serde.glimpse import glimpse

if TYPE_CHECKING:
    from kafkalite.serde.registry import SchemaRegistry


@dataclass(frozen=True, slots=True)
class SerdeContext:
    """The arguments of `open`: the registry, if any, and whether the serde is for keys or values.

    `as_dicts`: records of Avro are to be dicts, not rows that look like dicts. `fields`: the only
    fields of the values read that anybody will look at, so a serde may leave out the others.
    `forms`: a column that is read may be a `Form`, no list. `arrow`: nobody is going to look at
    objects where such a form is an Arrow array as well.
    """

    registry: SchemaRegistry | None = None
    is_key: bool = False
    as_dicts: bool = False
    fields: frozenset[str] | None = None
    forms: bool = False
    arrow: bool = False


class Codec(Protocol[T]):
    """A serde at work, on columns of one topic at a time."""

    def serialize(self, topic: str, column: Sequence[T | None]) -> Sequence[bytes | None]:
        """The bytes of each value; None stays None."""

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[T | None]:
        """The value of each record's bytes; None stays None."""


def takes_arrow(codec: Codec[Any]) -> bool:
    """Whether a codec writes a column that is an Arrow array without looking at objects."""
    return getattr(codec, "takes_arrow", False)


class Serde(Protocol[T]):
    """How values become bytes and bytes become values: data, to be opened where it is used.

        from kafkalite.serde import Serde, SerdeContext, json

        def lines(serde: Serde, topic: str, values: list[object]) -> bytes:
            codec = serde.open(SerdeContext())
            return b"\\n".join(line or b"" for line in codec.serialize(topic, values))

        lines(json(), "orders", [{"id": 7}, None])      # b'{"id":7}\\n'

    One of your own is any object with `open`; `kafkalite.serde.json` is a short example. Plans
    compare and hash their serdes, so make it a frozen dataclass.

    `Serde[Order]` is for a type checker: the values are orders, and None is the null record. What
    is read is not compared with the type. `json()`, `msgpack()` and `avro()` are `Serde[Any]`, so
    `orders: Serde[Order] = json()` says what they hold.
    """

    def open(self, context: SerdeContext) -> Codec[T]:
        """The codec that does it."""


class Encoder(Protocol[T_contra]):
    """The half of a codec that writes. Every `Codec[T]` is an encoder of T and of None."""

    def serialize(self, topic: str, column: Sequence[T_contra | None]) -> Sequence[bytes | None]:
        """The bytes of each value; None stays None."""


class Serializer(Protocol[T_contra]):
    """The half of a serde that writes: all that an operator needs which writes values.

    A `Serde[Mapping[str, int]]` can write a stream of `dict[str, int]`, and a `Serde[str]` one of
    `str | None`: each is such a `Serializer`.
    """

    def open(self, context: SerdeContext) -> Encoder[T_contra]:
        """The codec that does it."""


@dataclass(frozen=True, slots=True)
class EachRecord:
    """A codec of two functions, each called once for every value that is not None."""

    name: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each value."""
        write = self.write
        try:
            return [None if value is None else write(value) for value in column]
        except Exception:
            raise self.failure("write", topic, column, write) from None

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The value of each record's bytes."""
        read = self.read
        try:
            return [None if data is None else read(data) for data in column]
        except Exception:
            raise self.failure("read", topic, column, read) from None

    def failure(
        self, verb: str, topic: str, column: Sequence[Any], function: Callable[[Any], object]
    ) -> SerdeError:
        """The error of the first record that `function` fails on. Goes over the column again."""
        return first_failure(f"{self.name} cannot {verb}", topic, column, function)


def first_failure(
    what: str, topic: str, column: Sequence[Any], function: Callable[[Any], object]
) -> SerdeError:
    """The error of the first record in `column` that `function` fails on, with its index.

    A column is worked on at the speed of a comprehension, which does not say where it stopped; the
    rare failure pays with a second pass.
    """
    for index, value in enumerate(column):
        if value is None:
            continue
        try:
            function(value)
        except Exception as error:
            return refusal(what, topic, index, value, error)
    raise AssertionError(f"{what} of {topic!r}: failed on the column, on none of its records")


def refusal(what: str, topic: str, index: int, value: object, error: Exception) -> SerdeError:
    """The message about one record: serde, topic, position, value and reason."""
    reason = str(error) or type(error).__name__
    failure = SerdeError(f"{what} {glimpse(value)} of topic {topic!r}: {reason}", index)
    failure.__cause__ = error
    return failure
