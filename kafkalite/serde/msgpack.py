"""MessagePack: what Python's plain values are, and they come back as they were.           [P]

None, bool, int (64 bits), float, str, bytes, list, dict (keys of any of these) are MessagePack's
own. What it lacks travels in an extension type, so that a key stays hashable and a state store's
value is the same after a restore:

    tuple       ext 1: its items as an array
    datetime    ext -1, MessagePack's timestamp; needs a time zone, comes back in UTC

Equal values of equal types give equal bytes as long as their dicts have one order. A key that is
an array, which others may write, comes back as a tuple.

Fails  with SerdeError for anything else: sets, Decimals, dataclasses, subclasses of the above
       (they would come back as something else), naive datetimes, more than 64 bits.
Source MessagePack specification, `ext` and `timestamp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from msgpack import ExtType, Packer, packb
from msgspec.msgpack import Decoder

from kafkalite.serde.avro_columns import is_row
from kafkalite.serde.serde import Codec, EachRecord, Serde, SerdeContext

TUPLE: Final = 1
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
        packer = Packer(default=_extend, strict_types=True, datetime=True)
        return EachRecord("msgpack()", packer.pack, READER.decode)

    def __repr__(self) -> str:
        return "msgpack()"


def msgpack() -> Serde[Any]:
    """MessagePack: None, bool, int, float, str, bytes, list, tuple, dict, aware datetime."""
    return MsgpackSerde()


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
