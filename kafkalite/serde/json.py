"""JSON through orjson: UTF-8, compact, keys in the order of the dict.                     [P]

What JSON has no form for is refused, not bent: datetimes, bytes, sets, Decimals, dataclasses, keys
that are no str, integers of more than 64 bits. The exception is orjson's: NaN and the infinities
are written as null, tuples as arrays, an Enum as its value and a UUID as its text.

Fails  with SerdeError; the message names the type that has no form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

from kafkalite.serde.avro_columns import is_row
from kafkalite.serde.serde import Codec, EachRecord, SerdeContext

OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


@dataclass(frozen=True, slots=True)
class JsonSerde:
    """Values that JSON can hold."""

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return EachRecord("json()", _write, orjson.loads)

    def __repr__(self) -> str:
        return "json()"


def json() -> JsonSerde:
    """JSON: dict, list, str, int, float, bool and None."""
    return JsonSerde()


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
