"""Bytes that are not text: how they are shown, and what they probably are.                [P]

Text is UTF-8 without NUL. NUL is valid UTF-8, but it occurs in numbers and in headers such as that
of Confluent's serializers rather than in text, and a terminal would not show it.

    \\x00\\x00\\x00\\x00\\x07\\x02a     as shown: text stays, other bytes and controls are escaped

A guess is a hint for the user and decides nothing.

Owns   nothing.
Source Confluent's wire format (0, then the schema's id in four bytes); MessagePack's first bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

HEADER_BYTES: Final = 5
ID_MAX: Final = 10_000_000  # registries count from 1; a larger number is hardly a schema's id
NUMBER_BYTES: Final = 8
PLAUSIBLE_TIMES: Final = range(631_152_000_000, 4_102_444_800_000)  # epoch ms, 1990 to 2099
PLAUSIBLE_FLOATS: Final = (1e-9, 1e15)
PLAUSIBLE_INTS: Final = range(-(1 << 56), 1 << 56)
ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


class Guess(NamedTuple):
    """The likely format of bytes, and the kinds of `--key` or `--value` that read it, if any."""

    looks_like: str
    kinds: tuple[str, ...]


def is_text(data: bytes) -> bool:
    """Whether bytes can be shown as they are."""
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def readable(data: bytes) -> bytes:
    """Text unchanged; other bytes as readable text with escapes."""
    if is_text(data):
        return data
    return data.decode(errors="backslashreplace").translate(ESCAPED).encode()


def first_unreadable(column: Sequence[Any]) -> int | None:
    """The index of the first bytes in a column that are not text."""
    whole = b"\n".join(value for value in column if isinstance(value, bytes))
    if is_text(whole):
        return None
    return next(i for i, v in enumerate(column) if isinstance(v, bytes) and not is_text(v))


def guess(data: bytes, *, is_key: bool = False) -> Guess | None:
    """The likely format of bytes that are not text."""
    of_key = _windowed(data) if is_key else None
    return _registered(data) or of_key or _msgpack(data) or _number(data)


def _registered(data: bytes) -> Guess | None:
    if len(data) < HEADER_BYTES or data[0] != 0:
        return None
    schema_id = int.from_bytes(data[1:HEADER_BYTES], "big")
    if not 0 < schema_id <= ID_MAX:
        return None
    named = f"with the schema id {schema_id}"
    if _is_json(data[HEADER_BYTES:]):
        return Guess(f"JSON in Confluent's wire format {named}", ())
    kinds = ("avro", "int64") if len(data) == NUMBER_BYTES else ("avro",)
    return Guess(f"Avro in Confluent's wire format {named}", kinds)


def _is_json(data: bytes) -> bool:
    import orjson

    try:
        return isinstance(orjson.loads(data), dict | list)
    except orjson.JSONDecodeError:
        return False


def _windowed(data: bytes) -> Guess | None:
    """A key of a window: the inner key and the window's start."""
    inner, start = data[:-NUMBER_BYTES], int.from_bytes(data[-NUMBER_BYTES:], "big", signed=True)
    if len(data) > NUMBER_BYTES and is_text(inner) and start in PLAUSIBLE_TIMES:
        return Guess("the key of a window", ("windowed:1h (the window's size)",))
    return None


def _msgpack(data: bytes) -> Guess | None:
    """A map or an array; other values of MessagePack look like anything."""
    import msgpack

    first = data[:1]
    if not (b"\x80" <= first <= b"\x9f" or b"\xdc" <= first <= b"\xdf"):
        return None
    try:
        msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return None
    return Guess("MessagePack", ("msgpack",))


def _number(data: bytes) -> Guess | None:
    if len(data) != NUMBER_BYTES:
        return None
    low, high = PLAUSIBLE_FLOATS
    if int.from_bytes(data, "big", signed=True) in PLAUSIBLE_INTS:
        return Guess("a number", ("int64",))
    (number,) = struct.unpack(">d", data)
    return Guess("a number", ("float64",)) if low < abs(number) < high else None
