"""Primitive types of the wire: their names in annotations, and what the compiled codecs call.  [P]

Owns   the aliases that message definitions are written in (`Int32`, `String`, `Records`, …), the
       markers that say in which versions a field exists (`Since`, `Until`, `Tag`, `NullableSince`),
       and the few functions that a compiled codec calls while it runs.
Never  knows a message.
Fails  with WireError.

    kind            up to the first flexible version     from it on (KIP-482)
    Int8 … Float64  big endian                           the same
    String, Bytes   Int16 / Int32 length, -1 is null     unsigned varint of length + 1, 0 is null
    Records         Int32 length, -1 is null             unsigned varint of length + 1, 0 is null
    array           Int32 count, -1 is null              unsigned varint of count + 1, 0 is null
    struct          its fields                           its fields, then its tagged fields

What is written as -1 is read as null for any number below 0, and bytes of a String that are not
UTF-8 as replacement characters, as Apache Kafka does.

Source the protocol guide's "Protocol Primitive Types"; KIP-482 (flexible versions, tagged fields).
"""

from __future__ import annotations

import codecs
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, Literal, NoReturn, Protocol, TypeAlias, runtime_checkable

from kafkalite.errors import ErrorCode, TooManyEntries, WireError

UVARINT_BYTES_MAX: Final = 5
STRING_BYTES_MAX: Final = 32_767  # in every version, though a varint could say more
REPLACE: Final = "kafkalite.replace"  # how text is decoded that is no UTF-8
ENTRIES_UNLIMITED: Final = 1 << 62  # of a message that this program or its own broker has made
UUID_CACHE_SIZE: Final = 4_096
ZERO_UUID: Final = uuid.UUID(int=0)

Buffer: TypeAlias = bytes | bytearray | memoryview


@runtime_checkable
class SizedRecords(Protocol):
    """Records that are not in memory, for example a stretch of a file: only their size is written.

    `codec.encode_parts` leaves such an object as a part of its own, for whoever sends the parts.
    """

    @property
    def size_bytes(self) -> int:
        """How many bytes will be sent in its place."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value of a fixed size; `letter` is its format in the `struct` module."""

    letter: str


@dataclass(frozen=True, slots=True)
class Sized:
    """A value behind its length. `letter` is that length's format before flexible versions."""

    letter: str
    kind: Literal["string", "bytes", "records"]


@dataclass(frozen=True, slots=True)
class Since:
    """The field exists from this version on."""

    version: int


@dataclass(frozen=True, slots=True)
class Until:
    """The field exists up to and including this version."""

    version: int


@dataclass(frozen=True, slots=True)
class NullableSince:
    """The field may be null from this version on; before it, null is an error."""

    version: int


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged field: left out if it has its default, skipped by readers that do not know it."""

    tag: int
    since: int


STRING: Final = Sized("h", "string")
BYTES: Final = Sized("i", "bytes")
RECORDS: Final = Sized("i", "records")  # read as a memoryview into the frame, not as a copy
UUID: Final = Fixed("16s")

Int8 = Annotated[int, Fixed("b")]
Int16 = Annotated[int, Fixed("h")]
Int32 = Annotated[int, Fixed("i")]
Int64 = Annotated[int, Fixed("q")]
UInt16 = Annotated[int, Fixed("H")]
Float64 = Annotated[float, Fixed("d")]
Bool = Annotated[bool, Fixed("?")]
Uuid = Annotated[uuid.UUID, UUID]
String = Annotated[str, STRING]
Bytes = Annotated[bytes, BYTES]
Records = Annotated[Buffer | SizedRecords, RECORDS]


class _ErrorCodes(dict[int, ErrorCode]):
    """Numbers to error codes, several times faster than calling the enum."""

    def __missing__(self, number: int) -> ErrorCode:
        return ErrorCode(number)


ERROR_CODES: Final = _ErrorCodes({int(code): code for code in ErrorCode})


@lru_cache(maxsize=UUID_CACHE_SIZE)
def to_uuid(sixteen_bytes: bytes) -> uuid.UUID:
    """The UUID of these bytes. Topic ids come again and again, and building one is slow."""
    return uuid.UUID(bytes=sixteen_bytes)


def write_uvarint(number: int) -> bytes:
    """`number` in groups of seven bits, lowest first; the high bit says that more follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_string_size(number: int) -> bytes:
    """A long string's length + 1; WireError for a string that no reader accepts."""
    if number > STRING_BYTES_MAX + 1:
        raise WireError(f"a string of {number - 1} bytes; {STRING_BYTES_MAX} are allowed")
    return write_uvarint(number)


UVARINTS: Final = tuple(write_uvarint(number) for number in range(1024))  # the usual lengths


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it. IndexError past the end of `data`."""
    number = 0
    for shift in range(0, 7 * UVARINT_BYTES_MAX, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    start = position - UVARINT_BYTES_MAX
    raise WireError(f"a varint at byte {start} is longer than {UVARINT_BYTES_MAX} bytes")


def replace_invalid(error: UnicodeError) -> tuple[str, int]:
    """The replacement of bytes that are not UTF-8: `str` decodes so with REPLACE.

    The replacement takes three bytes where it is written again, perhaps into a record, and must fit
    there; WireError where it might not.
    """
    assert isinstance(error, UnicodeDecodeError)
    data = error.object
    if len(REPLACEMENT.encode()) * len(data) > STRING_BYTES_MAX:
        raise WireError(f"{len(data)} bytes of a string that are no UTF-8")
    return data[error.start :].decode(errors="replace"), len(data)  # one call, not one a byte


REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
codecs.register_error(REPLACE, replace_invalid)


def skip_tagged_fields(data: Buffer, position: int, room: int) -> tuple[int, int]:
    """The position after the tagged fields that begin at `position`, none of which we know, and
    how many entries there is `room` for after them."""
    count, position = read_uvarint(data, position)
    room -= count
    if room < 0:
        refuse_entries("tagged fields", count)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
    return position, room


def records_size(records: Buffer | SizedRecords) -> int:
    """How many bytes `records` will take."""
    if type(records) is bytes:
        return len(records)
    if isinstance(records, bytes | bytearray | memoryview):
        return memoryview(records).nbytes
    return records.size_bytes


def is_in_memory(records: Buffer | SizedRecords) -> bool:
    """Whether `records` are bytes, and not an object that stands for bytes elsewhere."""
    return isinstance(records, bytes | bytearray | memoryview)


def refuse_null(field: str) -> NoReturn:
    """A length below zero where the version knows no null."""
    raise WireError(f"{field} is null or has a negative length")


def refuse_string(field: str, size: int) -> NoReturn:
    """A string longer than versions that are not flexible could say."""
    raise WireError(f"{field} has {size} bytes; {STRING_BYTES_MAX} are allowed")


def refuse_count(field: str, count: int, remaining: int) -> NoReturn:
    """An array that says to hold more than what follows can hold; nothing was allocated for it."""
    raise WireError(f"{field} claims {count} entries in {max(remaining, 0)} bytes")


def refuse_entries(field: str, count: int) -> NoReturn:
    """More entries in arrays and tagged fields, of the whole message, than its reader allows."""
    raise TooManyEntries(f"{field} with {count} entries are too many for one message")


def refuse_tag(field: str, size: int) -> NoReturn:
    """A tagged field whose content does not fill the size that it announced."""
    raise WireError(f"tagged field {field} does not fill its {size} bytes")
