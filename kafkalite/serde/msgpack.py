"""MessagePack: Python's plain values, which come back with their types.                   [P]

None, bool, int (64 bits), float, str, bytes, list, dict (keys of any of these) are MessagePack's
own. What it lacks travels in an extension type, so that a key stays hashable and a state store's
value is the same after a restore:

    tuple       ext 1: its items as an array
    datetime    ext -1, MessagePack's timestamp; needs a time zone, comes back in UTC

Equal values of equal types give equal bytes as long as their dicts have one order. A key that is
an array, which others may write, comes back as a tuple.

If no code needs objects, the values of a large column become columns of their fields at once,
and columns become bytes (`msgpack_form`): native code, for dicts that are alike. The bytes are the
same, so either side may have gone the other way.

Fails  with SerdeError for anything else: sets, Decimals, dataclasses, subclasses of the above
       (they would come back as something else), naive datetimes, more than 64 bits.
Source MessagePack specification, `ext` and `timestamp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgpack import ExtType, Packer, packb
from msgspec.msgpack import Decoder

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_columns import is_row
from kafkalite.serde.column_values import ReadValues
from kafkalite.serde.msgpack_form import NATIVE, columns_of, values_of
from kafkalite.serde.serde import Codec, EachRecord, Serde, SerdeContext

TUPLE: Final = 1
FORM_RECORDS: Final = 500  # read together, below which objects cost less than Arrow's calls
PAUSE: Final = 15  # columns read as objects, after one whose values are not alike
REMEDY: Final = {
    "set": "use a sorted list",
    "frozenset": "use a sorted tuple",
    "datetime": "give it a time zone",
    "int": "it is out of range, more than 64 bits",
}


@dataclass(frozen=True, slots=True)
class MsgpackSerde:
    """Plain Python values."""

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return MsgpackCodec(context)

    def __repr__(self) -> str:
        return "msgpack()"


def msgpack() -> Serde[Any]:
    """MessagePack: None, bool, int, float, str, bytes, list, tuple, dict, aware datetime."""
    return MsgpackSerde()


class MsgpackCodec:
    """An open MessagePack serde."""

    takes_arrow = NATIVE

    def __init__(self, context: SerdeContext) -> None:
        packer = Packer(default=_extend, strict_types=True, datetime=True)
        self._objects = EachRecord("msgpack()", packer.pack, READER.decode)
        self._fields = context.fields
        self._as_forms = NATIVE and context.forms and context.arrow
        self._pause = 0  # columns that are read as objects, after one that had to be

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each value."""
        if isinstance(column, ArrowForm) and len(column) >= FEW:
            values = values_of(column.arrow())
            if values is not None:
                return values
        return self._objects.serialize(topic, column)

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The value of each record's bytes."""
        if self._as_forms and isinstance(column, Spans) and len(column) >= FORM_RECORDS:
            form = self._form(column)
            if form is not None:
                return form
        return self._objects.deserialize(topic, column)

    def _form(self, values: Spans) -> ArrowForm | None:
        """All values as columns; None where they are read as objects."""
        if self._pause:
            self._pause -= 1
            return None
        columns = columns_of(values, self._fields)
        if columns is None:
            self._pause = PAUSE
            return None
        return ArrowForm(ReadValues(values, columns, READER.decode))


def _extend(value: Any) -> ExtType | dict[Any, Any]:
    if is_row(value):
        return dict(value)
    if type(value) is not tuple:
        kind = type(value).__name__
        remedy = REMEDY.get(kind, "convert it to a plain value first")
        raise TypeError(f"MessagePack has no form for {kind}: {remedy}")
    items = packb(list(value), default=_extend, strict_types=True, datetime=True)
    return ExtType(TUPLE, items)  # not by the packer, which is in the middle of the value around


def _restore(code: int, data: memoryview) -> Any:
    if code == TUPLE:
        return tuple(READER.decode(data))
    remedy = (
        "only tuples (1) and datetimes (-1) are read; read it with bytes_() and unpack it yourself"
    )
    raise ValueError(f"extension type {code} is not known: {remedy}")


READER: Final = Decoder(ext_hook=_restore)  # msgspec's: it makes each key of a dict once
