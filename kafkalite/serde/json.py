"""JSON: UTF-8, compact, keys in the order of the dict. orjson writes it, msgspec reads it.    [P]

What JSON has no form for is refused, not bent: datetimes, bytes, sets, Decimals, dataclasses, keys
that are no str, integers of more than 64 bits. The exception is orjson's: NaN and the infinities
are written as null, tuples as arrays, an Enum as its value and a UUID as its text.

An integer of any size is read as it is; a number beyond the range of a float is refused. Where only
some fields of the values will be looked at, the others are passed over: their syntax is checked,
the range of their numbers and their text are not.

Fails  with SerdeError; the message names the type that has no form, or the byte that is no JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import orjson
from msgspec import DecodeError
from msgspec.json import Decoder

from kafkalite.serde.avro_columns import is_row
from kafkalite.serde.serde import Codec, EachRecord, Serde, SerdeContext

READER: Final = Decoder()
OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


@dataclass(frozen=True, slots=True)
class JsonSerde:
    """Values that JSON can hold."""

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        read = READER.decode if context.fields is None else _reader_of(context.fields)
        return EachRecord("json()", _write, read)

    def __repr__(self) -> str:
        return "json()"


def json() -> Serde[Any]:
    """JSON: dict, list, str, int, float, bool and None."""
    return JsonSerde()


def _reader_of(fields: frozenset[str]) -> Callable[[bytes], Any]:
    """Reads objects with no fields but these, and everything else as it is.

    A field whose name is not ASCII makes it read them whole: msgspec would lose that field.
    """
    if not all(map(str.isascii, fields)):
        return READER.decode
    kind = TypedDict("Fields", dict.fromkeys(sorted(fields), Any), total=False)  # type: ignore[misc]
    decode, decode_all = Decoder(kind).decode, READER.decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:  # no object, or no JSON
            return decode_all(data)

    return read


def _write(value: Any) -> bytes:
    try:
        return orjson.dumps(value, _plain, OPTIONS)
    except TypeError as error:
        raise error.__cause__ or error from None  # orjson wraps what `_plain` said


def _plain(value: object) -> dict[str, Any]:
    """A record read from Avro as its dict."""
    if is_row(value):
        return dict(value)  # type: ignore[call-overload, no-any-return]  # a mapping
    raise TypeError(f"JSON has no form for {type(value).__name__}: convert it first")
