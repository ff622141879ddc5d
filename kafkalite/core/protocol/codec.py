"""Message definitions as data, and the two functions that everyone calls: encode, decode.  [P]

Owns   the decorators `message`, `struct` and `schema`, and the registry of what they defined.
Never  interprets a message; a definition says which fields there are in which versions, and the
       compiler (`compiler.py`) makes one encoder and one decoder of it per version, on first use.
       What a version lacks, `encode` leaves out and `decode` gives its default.
Fails  `decode` with WireError on any bytes that do not begin with one message, and on nothing else.
       What follows its end is ignored, as Apache Kafka does. librdkafka (2.16 and before) needs
       that: it asks for all topics with four zero bytes where a flexible version has one.
       `encode` with WireError when a value does not fit its field.

A definition reads like Kafka's JSON, in Python's words:

    @message(api_key=12, versions=(0, 4), flexible_since=4)
    class HeartbeatRequest(Request["HeartbeatResponse"]):
        group_id: String
        generation_id: Int32
        member_id: String
        group_instance_id: Annotated[String | None, Since(3)] = None

`X | None` may be null, `tuple[X, ...]` is an array, `ErrorCode` is an Int16. The classes are
slotted dataclasses, hashable, and frozen to the type checker. They are not frozen at run time:
a frozen `__init__` takes five times as long, and a response may hold thousands of them. Nor is any
message written or read by hand: what the compiler makes of Produce and Fetch is as fast.

Source KIP-482; apache/kafka `clients/src/main/resources/common/message`.
"""

from __future__ import annotations

import struct as struct_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform

from kafkalite.core.protocol import compiler
from kafkalite.core.protocol.primitives import ENTRIES_UNLIMITED, Buffer, SizedRecords
from kafkalite.errors import WireError

T = TypeVar("T")
R = TypeVar("R")

NEVER_FLEXIBLE: Final = 32_767
VERSION_PREFIX: Final = struct_module.Struct(">h")

Encoder = Callable[[Any, list[Any]], list[int]]
Decoder = Callable[[memoryview, int], tuple[Any, int]]


@dataclass(frozen=True, slots=True)
class Definition:
    """A decorator's description of a message. `versions`: first and last, both included."""

    name: str
    api_key: int | None
    versions: tuple[int, int]
    flexible_since: int
    is_response: bool


class Request(Generic[R]):
    """A request's base class, with the response's type for type checkers."""

    __slots__: ClassVar[tuple[str, ...]] = ()


_definitions: dict[type, Definition] = {}
_encoders: dict[tuple[type, int], Encoder] = {}
_decoders: dict[tuple[type, int], Decoder] = {}


@dataclass_transform(frozen_default=True)
def message(
    *,
    api_key: int,
    versions: tuple[int, int],
    flexible_since: int = NEVER_FLEXIBLE,
    response: bool = False,
) -> Callable[[type[T]], type[T]]:
    """A request or a response: `versions` are the first and the last that are defined."""

    def define(cls: type[T]) -> type[T]:
        made = struct(cls)
        _definitions[made] = Definition(cls.__name__, api_key, versions, flexible_since, response)
        return made

    return define


@dataclass_transform(frozen_default=True)
def schema(
    *, versions: tuple[int, int], flexible_since: int = NEVER_FLEXIBLE
) -> Callable[[type[T]], type[T]]:
    """Versioned data that is no request: a record's key or value, a group member's metadata."""

    def define(cls: type[T]) -> type[T]:
        made = struct(cls)
        _definitions[made] = Definition(cls.__name__, None, versions, flexible_since, False)
        return made

    return define


@dataclass_transform(frozen_default=True)
def struct(cls: type[T]) -> type[T]:
    """A part of a message. Its fields' versions are those of the message that it is part of."""
    # What dataclass would write for each class is the same for all, and makes an import slow.
    cls.__eq__, cls.__hash__, cls.__repr__ = _equal, _hash, _repr  # type: ignore[method-assign]
    return dataclass(slots=True, eq=False, repr=False)(cls)


def _values(value: Any) -> tuple[object, ...]:
    """The fields of a struct, in their order."""
    return tuple([getattr(value, name) for name in value.__match_args__])


def _equal(self: Any, other: object) -> bool:
    if type(other) is type(self):
        return _values(self) == _values(other)
    return NotImplemented  # type: ignore[no-any-return]


def _hash(self: Any) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    fields = zip(self.__match_args__, _values(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in fields)})"


def definition(cls: type) -> Definition:
    """The definition of a message's class. KeyError for a class that is none."""
    return _definitions[cls]


def encode(value: object, version: int) -> bytes:
    """The bytes of a message in one version. Its records must be in memory (see `encode_parts`)."""
    parts: list[bytes] = []
    _write(value, version, parts)
    return b"".join(parts)


def encode_parts(value: object, version: int) -> list[bytes | SizedRecords]:
    """The same, in as few pieces as possible.

    Records that are not in memory, and large ones that are, stay pieces of their own. The pieces
    share nothing with buffers that may change: bytearrays and memoryviews are copied.
    """
    written: list[Any] = []
    apart = _write(value, version, written)
    if not apart:
        return [b"".join(written)]
    parts: list[bytes | SizedRecords] = []
    start = 0
    for place in apart:
        parts.append(b"".join(written[start:place]))
        records = written[place]
        parts.append(bytes(records) if isinstance(records, bytearray | memoryview) else records)
        start = place + 1
    if start < len(written):
        parts.append(b"".join(written[start:]))
    return parts


def decode(cls: type[T], data: Buffer, version: int, entries_max: int = ENTRIES_UNLIMITED) -> T:
    """The message that `data` begins with. Its records are memoryviews into `data`.

    TooManyEntries where its arrays and tagged fields have more than `entries_max` entries in all.
    """
    decoder = _decoders.get((cls, version)) or _compile_decoder(cls, version)
    view = data if isinstance(data, memoryview) else memoryview(data)
    try:
        value, end = decoder(view, entries_max)
        if end > len(view):
            raise IndexError
    except (struct_module.error, IndexError):
        size = len(view)
        raise WireError(f"{cls.__name__} v{version} runs past its {size} bytes") from None
    except WireError as error:
        raise type(error)(f"{cls.__name__} v{version}: {error}") from None
    return value  # type: ignore[no-any-return]


def encode_with_version(value: object, version: int) -> bytes:
    """A schema's bytes behind their version, as Kafka stores records and group members send."""
    return VERSION_PREFIX.pack(version) + encode(value, version)


def decode_with_version(cls: type[T], data: Buffer, *, accept_newer: bool = False) -> T:
    """The schema's value that `encode_with_version` wrote, in whichever version it did.

    With `accept_newer`, a version that we do not know yet is read as the last one that we do: so
    are group members to read one another (KIP-429).
    """
    version = read_version(data)
    if accept_newer:
        version = min(version, definition(cls).versions[1])
    return decode(cls, memoryview(data)[VERSION_PREFIX.size :], version)


def read_version(data: Buffer) -> int:
    """The version that prefixes `data`."""
    if len(data) < VERSION_PREFIX.size:
        raise WireError(f"no version fits into {len(data)} bytes")
    version: int = VERSION_PREFIX.unpack_from(data)[0]
    return version


def _write(value: object, version: int, parts: list[Any]) -> list[int]:
    """Appends the message to `parts`; returns the indexes of the parts that stay apart."""
    cls = type(value)
    encoder = _encoders.get((cls, version)) or _compile_encoder(cls, version)
    try:
        return encoder(value, parts)
    except struct_module.error as error:
        raise WireError(f"{cls.__name__} v{version}: a value does not fit: {error}") from None
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        raise WireError(f"{cls.__name__} v{version}: a value has no such form: {error}") from error
    except WireError as error:
        raise WireError(f"{cls.__name__} v{version}: {error}") from None


def _compile_encoder(cls: type, version: int) -> Encoder:
    flexible = version >= _checked(cls, version).flexible_since
    _encoders[cls, version] = encoder = compiler.compile_encoder(cls, version, flexible)
    return encoder


def _compile_decoder(cls: type, version: int) -> Decoder:
    flexible = version >= _checked(cls, version).flexible_since
    _decoders[cls, version] = decoder = compiler.compile_decoder(cls, version, flexible)
    return decoder


def _checked(cls: type, version: int) -> Definition:
    """The definition of `cls`, once it is known to have this version."""
    found = _definitions.get(cls)
    if found is None:
        raise TypeError(f"{cls.__name__} is not a message")
    first, last = found.versions
    if not first <= version <= last:
        raise WireError(f"{cls.__name__} has versions {first} to {last}, not {version}")
    return found
