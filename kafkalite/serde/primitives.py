"""Bytes, strings, 64 bit integers and floats, as Apache Kafka's own serdes write them.    [P]

    bytes_    the bytes                        ByteArraySerializer
    string    UTF-8                            StringSerializer
    int64     8 bytes, big-endian, signed      LongSerializer
    float64   8 bytes, big-endian, IEEE 754    DoubleSerializer

Fails  with SerdeError: a bool is no number, a str is no bytes, 7 bytes are no int64.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from operator import index
from struct import Struct, pack, unpack
from types import NoneType
from typing import Any, Final

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import NATIVE, Int64s, Spans
from kafkalite.serde.arrow_form import ArrowForm, texts_of
from kafkalite.serde.serde import Codec, EachRecord, Serde, SerdeContext, first_failure

INT64: Final = Struct(">q")
FLOAT64: Final = Struct(">d")
NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class BytesSerde:
    """The bytes themselves."""

    def open(self, context: SerdeContext) -> Codec[bytes]:
        """The identity: columns pass through uncopied."""
        return BytesCodec()

    def __repr__(self) -> str:
        return "bytes_()"


class BytesCodec:
    """Returns every column unchanged, after a check of its types."""

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The column itself; SerdeError where a value is not bytes."""
        if isinstance(column, Spans):
            return column
        if not set(map(type, column)) <= {bytes, type(None)}:
            try:
                return [None if value is None else _to_bytes(value) for value in column]
            except TypeError:
                raise first_failure("bytes_() cannot write", topic, column, _to_bytes) from None
        return column

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The column itself."""
        return column


def _to_bytes(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"bytes expected, got {type(value).__name__}: encode it first")
    return bytes(value)


@dataclass(frozen=True, slots=True)
class StringSerde:
    """Text as UTF-8."""

    def open(self, context: SerdeContext) -> Codec[str]:
        """The codec."""
        return StringCodec("string()", _encode_text, _decode_text)

    def __repr__(self) -> str:
        return "string()"


class StringCodec(EachRecord):
    """`str.encode` and `bytes.decode` over the column; without a None in it at the speed of C.

    Text of a form is written as it lies in memory.
    """

    __slots__ = ()

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """UTF-8 of each text."""
        if isinstance(column, ArrowForm) and (spans := _spans_of(column)) is not None:
            return spans
        try:
            return list(map(str.encode, column))
        except (TypeError, UnicodeEncodeError):  # a None, most likely
            return EachRecord.serialize(self, topic, column)

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The text of each record."""
        try:
            return list(map(bytes.decode, column))  # type: ignore[arg-type]
        except (TypeError, UnicodeDecodeError):
            return EachRecord.deserialize(self, topic, column)


def _spans_of(column: ArrowForm) -> Spans | None:
    """The bytes of a column of text without an object for each; None where it is no such."""
    if not NATIVE or len(column) < FEW:
        return None
    if (texts := texts_of(column)) is not None:
        return texts
    array = column.arrow()
    is_shifted = array.offset % 8 != 0 and array.null_count > 0  # its first bit begins no byte
    if str(array.type) != "string" or is_shifted:
        return None
    try:
        array.validate(full=True)  # text that is no UTF-8 fails as an object
    except ValueError:
        return None
    validity, offsets, data = array.buffers()
    first, end = array.offset, array.offset + len(array) + 1
    bits = memoryview(validity)[first // 8 :] if array.null_count else None
    places = memoryview(offsets).cast("B").cast("i")[first:end]
    return Spans.of_offsets(places, b"" if data is None else data, bits)


def _encode_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"str expected, got {type(value).__name__}: convert it with str()")
    return value.encode()


def _decode_text(data: bytes) -> str:
    return str(data, "utf-8")


@dataclass(frozen=True, slots=True)
class Int64Serde:
    """Integers of 64 bits with sign."""

    def open(self, context: SerdeContext) -> Codec[int]:
        """The codec."""
        return NumberCodec("int64()", _encode_int, _decode_int, "q", int)

    def __repr__(self) -> str:
        return "int64()"


@dataclass(frozen=True, slots=True)
class Float64Serde:
    """Floating point numbers of 64 bits; an int is taken as one."""

    def open(self, context: SerdeContext) -> Codec[float]:
        """The codec."""
        return NumberCodec("float64()", _encode_float, _decode_float, "d", float)

    def __repr__(self) -> str:
        return "float64()"


@dataclass(frozen=True, slots=True)
class NumberCodec(EachRecord):
    """A column of numbers packed and unpacked in one call; with a None unpacked one by one."""

    letter: str  # of the struct module
    python_type: type

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """Eight bytes of each number."""
        if isinstance(column, Int64s) and self.python_type is int:
            return _packed(column)
        kinds = set(map(type, column))
        there = column
        if kinds == {self.python_type, NoneType}:
            there = [number for number in column if number is not None]
        elif kinds != {self.python_type}:
            return EachRecord.serialize(self, topic, column)
        try:
            packed = pack(f">{len(there)}{self.letter}", *there)
        except Exception:  # struct.error: does not fit; found one by one
            return EachRecord.serialize(self, topic, column)
        each = [packed[at : at + NUMBER_BYTES] for at in range(0, len(packed), NUMBER_BYTES)]
        if there is column:
            return each
        found = iter(each)
        return [None if number is None else next(found) for number in column]

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The number of each eight bytes."""
        if None in column or set(map(len, column)) != {NUMBER_BYTES}:  # type: ignore[arg-type]
            return EachRecord.deserialize(self, topic, column)
        return list(unpack(f">{len(column)}{self.letter}", b"".join(column)))  # type: ignore[arg-type]


def _packed(numbers: Int64s) -> Spans:
    """Eight bytes of each number, the highest first, in one buffer."""
    data = array("q", memoryview(numbers).tobytes())
    if sys.byteorder == "little":
        data.byteswap()
    count = len(numbers)
    return Spans.of_offsets(memoryview(_offsets(count.bit_length()))[: count + 1], data.tobytes())


@lru_cache(maxsize=1)
def _offsets(bits: int) -> array[int]:
    """Where numbers begin that stand side by side, for a count of so many bits."""
    return array("q", range(0, NUMBER_BYTES << bits, NUMBER_BYTES))


def _encode_int(value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(
            f"int expected, got {type(value).__name__}: convert it first, or use float64()"
        )
    number = index(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError("more than 64 bits: json() and string() hold integers of any size")
    return INT64.pack(number)


def _decode_int(data: bytes) -> int:
    _check_size(data)
    number: int = INT64.unpack(data)[0]
    return number


def _encode_float(value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"float expected, got {type(value).__name__}: convert it with float()")
    return FLOAT64.pack(float(value))


def _decode_float(data: bytes) -> float:
    _check_size(data)
    number: float = FLOAT64.unpack(data)[0]
    return number


def _check_size(data: bytes) -> None:
    if len(data) != NUMBER_BYTES:
        what = f"{len(data)} bytes, expected {NUMBER_BYTES}"
        raise ValueError(f"{what}: another serde wrote it, try string() or json()")


def bytes_() -> Serde[bytes]:
    """Bytes as they are. Kafka's ByteArraySerde."""
    return BytesSerde()


def string() -> Serde[str]:
    """Text as UTF-8. Kafka's StringSerde."""
    return StringSerde()


def int64() -> Serde[int]:
    """Integers of 64 bits, big-endian. Kafka's LongSerde."""
    return Int64Serde()


def float64() -> Serde[float]:
    """Floats of 64 bits, big-endian. Kafka's DoubleSerde."""
    return Float64Serde()
