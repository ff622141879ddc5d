"""JSON: UTF-8, compact, keys in the order of the dict. orjson writes it, msgspec reads it.    [P]

Values without a form in JSON are refused: datetimes, bytes, sets, Decimals, dataclasses, keys
that are no str, integers of more than 64 bits. The exception is orjson's: NaN and the infinities
are written as null, tuples as arrays, an Enum as its value and a UUID as its text.

An integer of any size is read as it is; a number beyond the range of a float is refused. Where only
some fields of the values will be looked at, the others are passed over: their syntax is checked,
the range of their numbers and their text are not.

If no code needs objects, the texts of a large column become columns of their fields at once,
and columns become texts (`json_form`): native code, for texts that are alike. The results are those
of orjson and msgspec, to the byte.

Fails  with SerdeError; the message names the type that has no form, or the byte that is no JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import orjson
from msgspec import DecodeError
from msgspec.json import Decoder

from kafkalite.core.columns import FEW, joined
from kafkalite.core.protocol.record_codec import NATIVE as SPANS
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.errors import SerdeError
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_columns import is_row
from kafkalite.serde.column_values import ReadValues
from kafkalite.serde.json_form import NATIVE, columns_of, keys_of, texts_of
from kafkalite.serde.serde import Codec, EachRecord, Serde, SerdeContext

READER: Final = Decoder()
TEXTS_MAX: Final = 1_000  # that are held as orjson writes them
FORM_RECORDS: Final = 500  # read together, below which objects cost less than Arrow's calls
PAUSE: Final = 15  # columns read as objects, after one whose texts are not alike
OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


@dataclass(frozen=True, slots=True)
class JsonSerde:
    """Values that JSON can hold."""

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return JsonCodec(context)

    def __repr__(self) -> str:
        return "json()"


def json() -> Serde[Any]:
    """JSON: dict, list, str, int, float, bool and None."""
    return JsonSerde()


class JsonCodec:
    """An open JSON serde."""

    takes_arrow = NATIVE

    def __init__(self, context: SerdeContext) -> None:
        fields = context.fields
        if fields is not None and not all(map(str.isascii, fields)):
            fields = None  # msgspec would lose a field whose name is not ASCII
        self._read = READER.decode if fields is None else _reader_of(fields)
        self._objects = EachRecord("json()", _write, self._read)
        self._keys = None if fields is None else keys_of(fields)
        is_known = fields is None or self._keys is not None
        self._as_forms = NATIVE and context.forms and context.arrow and is_known
        self._pause = 0  # columns that are read as objects, after one that had to be

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The text of each value."""
        if isinstance(column, ArrowForm) and len(column) >= FEW:
            texts = texts_of(column.arrow())
            if texts is not None:
                return texts
        if len(column) < FEW:
            return _trimmed(self._objects.serialize(topic, column))
        try:
            parts = [
                _trimmed(self._objects.serialize(topic, column[start : start + TEXTS_MAX]))
                for start in range(0, len(column), TEXTS_MAX)
            ]
        except SerdeError:
            return self._objects.serialize(topic, column)  # fails, with the index in the column
        return joined(parts)

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The value of each text."""
        if self._as_forms and isinstance(column, Spans) and len(column) >= FORM_RECORDS:
            form = self._form(column)
            if form is not None:
                return form
        return self._objects.deserialize(topic, column)

    def _form(self, texts: Spans) -> ArrowForm | None:
        """All values as columns; None where they are read as objects."""
        if self._pause:
            self._pause -= 1
            return None
        columns = columns_of(texts, self._keys)
        if columns is None:
            self._pause = PAUSE
            return None
        return ArrowForm(ReadValues(texts, columns, self._read))


def _trimmed(texts: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """The same texts. With each that orjson has written it holds four KiB, however short it is."""
    if SPANS and len(texts) >= FEW:
        gathered = Spans.gathered(texts)
        if gathered is not None:
            return gathered
    return [None if text is None else bytes(memoryview(text)) for text in texts]


def _reader_of(fields: frozenset[str]) -> Callable[[bytes], Any]:
    """Reads objects with no fields but these, and everything else as it is."""
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
