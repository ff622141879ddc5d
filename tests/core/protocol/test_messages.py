"""Every message in every version: round trip, equality with an independent codec, hostile bytes.

Values are drawn from the definitions themselves: a field gives its own strategy.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import importlib
import io
import random
import struct
import uuid
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from kafkalite.core.protocol import codec, consumer_protocol, group_records
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

SCHEMAS = [
    consumer_protocol.ConsumerProtocolSubscription,
    consumer_protocol.ConsumerProtocolAssignment,
    group_records.OffsetCommitKey,
    group_records.OffsetCommitValue,
    group_records.GroupMetadataKey,
    group_records.GroupMetadataValue,
]
MESSAGES: list[type] = [c for api in API.values() for c in (api.request, api.response)] + SCHEMAS
EVERY = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls in MESSAGES
    for version in range(definition(cls).versions[0], definition(cls).versions[1] + 1)
]

FEW = settings(
    max_examples=5,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
YEAR_5138_MS = 10**14


# --- values drawn from the definitions --------------------------------------------------------


def values_of(cls: type, version: int) -> st.SearchStrategy[Any]:
    """Values whose fields that the version lacks have their defaults."""
    present = {f.name: field_of(f, version) for f in fields_of(cls) if f.is_in(version)}
    absent = {f.name: st.just(f.default) for f in fields_of(cls) if not f.is_in(version)}
    return st.builds(cls, **present, **absent)


def field_of(field: Field, version: int) -> st.SearchStrategy[Any]:
    drawn = element_of(field.element, field.name, version)
    if field.tag is not None:
        drawn = st.one_of(st.just(field.default), drawn)
    if field.is_nullable(version):
        return st.one_of(st.none(), drawn)
    return drawn


def element_of(element: Element, name: str, version: int) -> st.SearchStrategy[Any]:
    match element:
        case Struct(cls):
            return values_of(cls, version)
        case Array(inner):
            return st.lists(element_of(inner, name, version), max_size=3).map(tuple)
        case Sized():
            if element is STRING:
                return st.one_of(st.text(max_size=5), st.just("ž" * 100))
            drawn = st.one_of(st.binary(max_size=5), st.just(bytes(200)))
            return drawn.map(memoryview) if element is RECORDS else drawn
        case Fixed("?"):
            return st.booleans()
        case Fixed("d"):
            return st.floats(allow_nan=False)
        case Fixed(letter):
            if element is ERROR_CODE:
                return st.sampled_from(ErrorCode)
            if element is UUID:
                return st.uuids()
            if letter == "q" and ("time" in name or name.endswith("_ms")):
                return st.integers(0, YEAR_5138_MS)  # what a datetime can hold as well
            bits = 8 * struct.calcsize(letter)
            signed = letter.islower()
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
            return st.one_of(st.integers(-1 if signed else 0, 3), st.integers(low, high))


@pytest.mark.parametrize(("cls", "version"), EVERY)
@FEW
@given(data=st.data())
def test_what_was_encoded_is_decoded_again(cls: type, version: int, data: st.DataObject) -> None:
    value = data.draw(values_of(cls, version))
    wire = encode(value, version)
    assert decode(cls, wire, version) == value
    assert decode(cls, wire + b"\xff" * 9, version) == value  # what follows is not looked at
    parts = codec.encode_parts(value, version)
    assert all(type(part) is bytes for part in parts)
    assert b"".join(parts) == wire  # type: ignore[arg-type]


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
        mine = [f.name for f in fields_of(ours.__class__) if f.is_in(version)]
        others = [f.name for f in fields(kios)]
        assert [m.removesuffix("_ms") for m in mine] == [o.removesuffix("_ms") for o in others]
        pairs = zip(mine, others, strict=True)
        return all(same(getattr(ours, m), getattr(kios, o), version) for m, o in pairs)
    return bool(ours == kios)


WITH_KIO = [p for p in EVERY if kio_class(*p.values)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("cls", "version"), WITH_KIO)
@settings(FEW, max_examples=10)
@given(data=st.data())
def test_kio_reads_what_we_write_and_writes_what_we_read(
    cls: type, version: int, data: st.DataObject
) -> None:
    kio = kio_class(cls, version)
    value = data.draw(values_of(cls, version))
    wire = encode(value, version)
    theirs, size = entity_reader(kio)(wire, 0)
    assert size == len(wire)
    assert same(value, theirs, version)
    buffer = io.BytesIO()
    entity_writer(kio)(buffer, theirs)
    assert buffer.getvalue() == wire


def test_kio_knows_most_versions() -> None:
    unknown = {str(p.id) for p in EVERY} - {str(p.id) for p in WITH_KIO}
    assert len(WITH_KIO) > 230, sorted(unknown)


# --- hostile bytes ----------------------------------------------------------------------------


def samples(cls: type, version: int) -> Iterator[bytes]:
    """A few encoded values of a message, always the same ones."""
    found: list[bytes] = []

    @settings(FEW, max_examples=6)
    @given(value=values_of(cls, version))
    def collect(value: Any) -> None:
        wire = encode(value, version)
        if len(wire) < 1_000:
            found.append(wire)

    collect()
    yield from sorted(set(found), key=len)[-3:]


def decode_or_refuse(cls: type, wire: bytes, version: int) -> None:
    with contextlib.suppress(WireError):
        decode(cls, wire, version)


@pytest.mark.parametrize(("cls", "version"), EVERY)
def test_whatever_is_cut_off_flipped_or_added_is_read_or_refused(cls: type, version: int) -> None:
    chance = random.Random(version)
    for wire in samples(cls, version):
        for end in range(0, len(wire), max(1, len(wire) // 100)):
            with pytest.raises(WireError):
                decode(cls, wire[:end], version)
        for _ in range(60):
            broken = bytearray(wire or b"\0")
            for _ in range(chance.randint(1, 3)):
                broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
            decode_or_refuse(cls, bytes(broken), version)
        for huge in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\0\0\0", b"\xff" * 9):
            place = chance.randrange(len(wire) + 1)
            decode_or_refuse(cls, wire[:place] + huge + wire[place + len(huge) :], version)
