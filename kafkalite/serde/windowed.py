"""Windowed keys, as Kafka Streams writes them.                                            [P]

    time window       | inner key ... | start: int64 |                 TimeWindowedSerializer
    session window    | inner key ... | end: int64 | start: int64 |    SessionWindowedSerializer

Both big-endian, epoch milliseconds. A time window's end is not written: it is start + size.

Fails  with SerdeError if a key is not a Windowed, has a null inner key or too few bytes, or ends at
       another time than start + size.
Source apache/kafka `WindowKeySchema`, `SessionKeySchema`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from struct import Struct
from typing import Any, Final, Generic, TypeAlias

from kafkalite.core.generics import K
from kafkalite.core.types import Windowed
from kafkalite.errors import ConfigError
from kafkalite.serde.serde import Codec, Serde, SerdeContext, refusal

# Shorter than any windowed key: in the changelog of a windowed store, notes of the engine have it.
NOTE_KEY: Final = b"note"
TIME: Final = Struct(">q")
SESSION: Final = Struct(">qq")
UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d|)")

Size: TypeAlias = int | timedelta | str  # milliseconds, a timedelta, or "1h"


@dataclass(frozen=True, slots=True)
class WindowedSerde(Generic[K]):
    """Keys of windows over keys of `inner`; without a size the windows are sessions."""

    inner: Serde[K]
    size_ms: int | None

    def open(self, context: SerdeContext) -> Codec[Windowed[K]]:
        """The codec."""
        inner = self.inner.open(context)
        if self.size_ms is None:
            return SessionWindowedCodec(repr(self), inner)
        return TimeWindowedCodec(repr(self), inner, self.size_ms)

    def __repr__(self) -> str:
        size = "" if self.size_ms is None else f", size={self.size_ms}"
        return f"windowed({self.inner!r}{size})"


@dataclass(frozen=True, slots=True)
class TimeWindowedCodec:
    """Inner key and start."""

    what: str
    inner: Codec
    size_ms: int

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each windowed key."""
        keys = _inner_bytes(self.what, self.inner, topic, column)
        pack, size = TIME.pack, self.size_ms
        out: list[bytes | None] = []
        for index, (window, key) in enumerate(zip(column, keys, strict=True)):
            if key is None:
                out.append(None)
                continue
            if window.end != window.start + size:
                reason = ValueError(f"a window of {window.end - window.start} ms, not {size}")
                raise refusal(f"{self.what} cannot write", topic, index, window, reason)
            out.append(key + pack(window.start))
        return out

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The windowed key of each record."""
        _check_length(self.what, topic, column, TIME.size)
        keys = self.inner.deserialize(topic, [data and data[: -TIME.size] for data in column])
        unpack, size = TIME.unpack_from, self.size_ms
        out: list[Windowed | None] = []
        for data, key in zip(column, keys, strict=True):
            if data is None:
                out.append(None)
                continue
            (start,) = unpack(data, len(data) - TIME.size)
            out.append(Windowed(key, start, start + size))
        return out


@dataclass(frozen=True, slots=True)
class SessionWindowedCodec:
    """Inner key, end and start."""

    what: str
    inner: Codec

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each windowed key."""
        keys = _inner_bytes(self.what, self.inner, topic, column)
        pack = SESSION.pack
        return [
            None if key is None else key + pack(window.end, window.start)
            for window, key in zip(column, keys, strict=True)
        ]

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The windowed key of each record."""
        _check_length(self.what, topic, column, SESSION.size)
        keys = self.inner.deserialize(topic, [data and data[: -SESSION.size] for data in column])
        unpack = SESSION.unpack_from
        out: list[Windowed | None] = []
        for data, key in zip(column, keys, strict=True):
            if data is None:
                out.append(None)
                continue
            end, start = unpack(data, len(data) - SESSION.size)
            out.append(Windowed(key, start, end))
        return out


def _inner_bytes(
    what: str, inner: Codec, topic: str, column: Sequence[Any]
) -> Sequence[bytes | None]:
    """The inner keys' bytes. Refuses values other than Windowed, times beyond int64, null keys."""
    for index, window in enumerate(column):
        if window is not None:
            reason = _reason(window)
            if reason is not None:
                raise refusal(f"{what} cannot write", topic, index, window, reason)
    return inner.serialize(topic, [None if window is None else window.key for window in column])


def _reason(window: object) -> Exception | None:
    if not isinstance(window, Windowed):
        return TypeError(f"Windowed expected, got {type(window).__name__}")
    if window.key is None:
        return ValueError("the key in the window is None")
    for time in (window.start, window.end):
        if type(time) is not int or not -(2**63) <= time < 2**63:
            return TypeError(f"{time!r} is no time in epoch milliseconds")
    return None


def _check_length(what: str, topic: str, column: Sequence[bytes | None], size: int) -> None:
    for index, data in enumerate(column):
        if data is not None and len(data) < size:
            reason = ValueError(f"{len(data)} bytes, expected {size} or more")
            raise refusal(f"{what} cannot read", topic, index, data, reason)


def windowed(serde: Serde[K], size: Size | None = None) -> Serde[Windowed[K]]:
    """Keys of windows over keys of `serde`; `size` of time windows, None for sessions."""
    return WindowedSerde(serde, None if size is None else _milliseconds(size))


def named_windowed(name: str, inner: Serde) -> WindowedSerde | None:
    """The serde that users call `windowed:1h`, or `windowed` for sessions; None for other names."""
    kind, colon, size = name.partition(":")
    if kind != "windowed":
        return None
    return WindowedSerde(inner, _milliseconds(size) if colon else None)


def _milliseconds(size: Size) -> int:
    found = DURATION.fullmatch(size) if isinstance(size, str) else None
    if found:
        count = int(found[1]) * UNITS_MS[found[2]]
    elif isinstance(size, timedelta):
        count = size // timedelta(milliseconds=1)
    elif isinstance(size, int) and not isinstance(size, bool):
        count = size
    else:
        raise ConfigError(f"window size {size!r}: expected milliseconds, a timedelta or '1h'")
    if count <= 0:
        raise ConfigError(f"window size {size!r}: expected more than 0 ms")
    return count
