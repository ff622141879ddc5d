"""Every message in every version: round trip, equality with an independent codec, hostile bytes.

Values are drawn from the definitions themselves: a field's type says what it may hold. The draws
are seeded with the version, so every run sees the same values.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import importlib
import io
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields
from operator import attrgetter
from random import Random
from typing import Any

import pytest

from kafkalite.core.protocol import codec, consumer_protocol, group_records, peers, transactions
from kafkalite.core.protocol.apis import API
from kafkalite.core.protocol.codec import decode, definition, encode
from kafkalite.core.protocol.fields import (
    ERROR_CODE,
    Array,
    Element,
    Field,
    Struct,
    fields_of,
)
from kafkalite.core.protocol.primitives import RECORDS, STRING, UUID, Fixed, Sized
from kafkalite.errors import ErrorCode, WireError

GROUP_RECORDS = [
    group_records.OffsetCommitKey,
    group_records.OffsetCommitValue,
    group_records.GroupMetadataKey,
    group_records.GroupMetadataValue,
]
MESSAGES: list[type] = [
    *(cls for api in API.values() for cls in (api.request, api.response)),
    consumer_protocol.ConsumerProtocolSubscription,
    consumer_protocol.ConsumerProtocolAssignment,
    *GROUP_RECORDS,
]
UNKNOWN_TO_KIO = [
    *GROUP_RECORDS,
    peers.ControlledShutdownRequest,  # gone with Kafka 4
    peers.ControlledShutdownResponse,
    peers.FollowMetadataRequest,
    peers.FollowMetadataResponse,
    peers.VerifyTransactionsRequest,
    peers.VerifyTransactionsResponse,
    peers.ReportReplicasRequest,
    peers.ReportReplicasResponse,
]
VALUES = 8  # of each version
SAMPLES, PREFIXES, DAMAGED = 3, 100, 60  # of values, of each value, of each value
CHARACTERS = "aZ09._- \0žЖ世😀"
ERROR_CODES = list(ErrorCode)
YEAR_5138_MS = 10**14

Few = Callable[[int], int]  # of so many examples, those that this tier tries
name_of = attrgetter("__name__")
each_message = pytest.mark.parametrize("cls", MESSAGES, ids=name_of)


def versions_of(cls: type) -> range:
    first, last = definition(cls).versions
    return range(first, last + 1)


# --- values drawn from the definitions --------------------------------------------------------


def values(cls: type, version: int, count: int) -> Iterator[Any]:
    chance = Random(version)
    return (draw(cls, version, chance) for _ in range(count))


def draw(cls: type, version: int, chance: Random) -> Any:
    """A value whose fields that the version lacks have their defaults."""
    drawn = {
        field.name: draw_field(field, version, chance) if field.is_in(version) else field.default
        for field in fields_of(cls)
    }
    return cls(**drawn)


def draw_field(field: Field, version: int, chance: Random) -> Any:
    if field.tag is not None and chance.random() < 0.5:
        return field.default
    if field.is_nullable(version) and chance.random() < 0.5:
        return None
    return draw_element(field.element, field.name, version, chance)


def draw_element(element: Element, name: str, version: int, chance: Random) -> Any:
    match element:
        case Struct(cls):
            return draw(cls, version, chance)
        case Array(inner):
            length = chance.randrange(4)
            return tuple(draw_element(inner, name, version, chance) for _ in range(length))
        case Sized():
            long = chance.random() < 0.2
            if element is STRING:
                text = "".join(chance.choices(CHARACTERS, k=chance.randrange(6)))
                return "ž" * 100 if long else text
            drawn = bytes(200) if long else chance.randbytes(chance.randrange(6))
            return memoryview(drawn) if element is RECORDS else drawn
        case Fixed("?"):
            return chance.random() < 0.5
        case Fixed("d"):
            return chance.choice((0.0, -0.0, 1e-310, 1e308, float("inf"), chance.gauss(0, 1e6)))
        case Fixed(letter):
            if element is ERROR_CODE:
                return chance.choice(ERROR_CODES)
            if element is UUID:
                return uuid.UUID(int=chance.choice((0, chance.getrandbits(128))))
            is_time = letter == "q" and ("time" in name or name.endswith("_ms"))
            return draw_number(letter, is_time, chance)


def draw_number(letter: str, is_time: bool, chance: Random) -> int:
    """A number of the type: a small one, one of its ends or any other."""
    bits = 8 * struct.calcsize(letter)
    low, high = (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if letter.islower() else (0, (1 << bits) - 1)
    )
    if is_time:
        low, high = 0, YEAR_5138_MS  # what a datetime can hold as well
    small = chance.randint(max(low, -1), 3)
    return chance.choice((small, low, high, chance.randint(low, high)))


@each_message
def test_what_was_encoded_is_decoded_again(cls: type, few: Few) -> None:
    for version in versions_of(cls):
        for value in values(cls, version, few(VALUES)):
            wire = encode(value, version)
            assert decode(cls, wire, version) == value, version
            assert decode(cls, wire + b"\xff" * 9, version) == value, "it reads on after its end"
            parts = codec.encode_parts(value, version)
            assert all(type(part) is bytes for part in parts), version
            assert b"".join(parts) == wire, version  # type: ignore[arg-type]


# --- an independent codec ---------------------------------------------------------------------


def kio_class(cls: type, version: int) -> type[Any] | None:
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).strip("_")
    for suffix in ("request", "response"):
        if snake.endswith(f"_{suffix}"):
            name, module = snake.removesuffix(f"_{suffix}"), suffix
            break
    else:
        name, module = snake, "data"
    try:
        found = importlib.import_module(f"kio.schema.{name}.v{version}.{module}")
    except ModuleNotFoundError:
        return None
    kio: type[Any] = getattr(found, cls.__name__)
    return kio


def same(ours: Any, kios: Any, version: int) -> bool:
    """Whether a value of ours says what a value of kio says."""
    if isinstance(kios, tuple):
        return len(ours) == len(kios) and all(
            same(one, other, version) for one, other in zip(ours, kios, strict=True)
        )
    if isinstance(kios, datetime.timedelta):
        return bool(datetime.timedelta(milliseconds=ours) == kios)
    if isinstance(kios, datetime.datetime):
        return bool(ours == round(kios.timestamp() * 1000))
    if kios is None and isinstance(ours, uuid.UUID):
        return ours.int == 0
    if isinstance(kios, enum.Enum):
        return bool(int(ours) == kios.value)
    if hasattr(kios, "__dataclass_fields__"):
        of_kafka = (f for f in fields_of(ours.__class__) if f.is_in(version) and not is_ours(f))
        mine = [f.name for f in of_kafka]
        others = [f.name for f in fields(kios)]
        assert [m.removesuffix("_ms") for m in mine] == [o.removesuffix("_ms") for o in others]
        pairs = zip(mine, others, strict=True)
        return all(same(getattr(ours, m), getattr(kios, o), version) for m, o in pairs)
    return bool(ours == kios)


def without_ours(value: Any) -> Any:
    """A value without the tagged fields that brokers of ours add to Kafka's messages."""
    if isinstance(value, tuple):
        return tuple(map(without_ours, value))
    if not hasattr(value, "__dataclass_fields__"):
        return value
    kept = {
        field.name: field.default if is_ours(field) else without_ours(getattr(value, field.name))
        for field in fields_of(type(value))
    }
    return type(value)(**kept)


def is_ours(field: Field) -> bool:
    return field.tag is not None and field.tag >= transactions.PRIVATE_TAG


@pytest.mark.slow
@pytest.mark.parametrize("cls", [m for m in MESSAGES if m not in UNKNOWN_TO_KIO], ids=name_of)
def test_kio_reads_what_we_write_and_writes_what_we_read(cls: type) -> None:
    from kio.serial import entity_reader, entity_writer

    versions = versions_of(cls)
    classes = {version: kio_class(cls, version) for version in versions}
    assert classes[versions[-1]], "kio knows all but the first versions"
    for version, kio in classes.items():
        if kio is None:
            continue
        read, write = entity_reader(kio), entity_writer(kio)
        for value in map(without_ours, values(cls, version, VALUES)):
            wire = encode(value, version)
            theirs, size = read(wire, 0)
            assert size == len(wire), version
            assert same(value, theirs, version), version
            buffer = io.BytesIO()
            write(buffer, theirs)
            assert buffer.getvalue() == wire, version


# --- hostile bytes ----------------------------------------------------------------------------


def samples(cls: type, version: int, count: int) -> list[bytes]:
    """A few encoded values of a message, always the same ones."""
    found = {encode(value, version) for value in values(cls, version, VALUES)}
    return sorted((wire for wire in found if len(wire) < 1_000), key=len)[-count:]


def decode_or_refuse(cls: type, wire: bytes, version: int) -> None:
    with contextlib.suppress(WireError):
        decode(cls, wire, version)


def assert_every_prefix_is_refused(cls: type, wire: bytes, version: int, count: int) -> None:
    for end in range(0, len(wire), max(1, len(wire) // count)):
        with pytest.raises(WireError):
            decode(cls, wire[:end], version)


@each_message
def test_whatever_is_cut_off_flipped_or_added_is_read_or_refused(cls: type, few: Few) -> None:
    for version in versions_of(cls):
        chance = Random(version)
        for wire in samples(cls, version, few(SAMPLES)):
            assert_every_prefix_is_refused(cls, wire, version, few(PREFIXES))
            for _ in range(few(DAMAGED)):
                broken = bytearray(wire or b"\0")
                for _ in range(chance.randint(1, 3)):
                    broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
                decode_or_refuse(cls, bytes(broken), version)
            for huge in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\0\0\0", b"\xff" * 9):
                place = chance.randrange(len(wire) + 1)
                damaged = wire[:place] + huge + wire[place + len(huge) :]
                decode_or_refuse(cls, damaged, version)
