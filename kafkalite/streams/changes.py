"""A table's changes on their way through a repartition topic: old row, new row, or both.  [P]

    old row, 0              the row left this group
    new row, 1              the row came into this group
    size of the new row as uint32 big-endian, new row, old row, 2      it changed within

The rows are written by the serde of the values. In memory a change is the tuple (old, new), with
None for the row that is not there.

Source Kafka Streams' ChangedSerializer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafkalite.errors import SerdeError
from kafkalite.serde.serde import Codec, Serde, SerdeContext

OLD: Final = 0
NEW: Final = 1
BOTH: Final = 2
SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ChangeSerde:
    """Tuples (old, new) of rows that `inner` writes."""

    inner: Serde

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return ChangeCodec(self.inner.open(context))

    def __repr__(self) -> str:
        return f"changes({self.inner!r})"


@dataclass(frozen=True, slots=True)
class ChangeCodec:
    """Writes and reads columns of changes."""

    inner: Codec

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each change."""
        olds = self.inner.serialize(topic, [old for old, _ in column])
        news = self.inner.serialize(topic, [new for _, new in column])
        return [_join(old, new) for old, new in zip(olds, news, strict=True)]

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The change in each record."""
        parts = [_split(topic, index, data) for index, data in enumerate(column)]
        olds = self.inner.deserialize(topic, [old for old, _ in parts])
        news = self.inner.deserialize(topic, [new for _, new in parts])
        return list(zip(olds, news, strict=True))


def _join(old: bytes | None, new: bytes | None) -> bytes | None:
    if old is None:
        return None if new is None else new + bytes((NEW,))
    if new is None:
        return old + bytes((OLD,))
    return len(new).to_bytes(SIZE_BYTES, "big") + new + old + bytes((BOTH,))


def _split(topic: str, index: int, data: bytes | None) -> tuple[bytes | None, bytes | None]:
    if not data:
        return None, None
    flag, body = data[-1], data[:-1]
    if flag == OLD:
        return body, None
    if flag == NEW:
        return None, body
    size = int.from_bytes(body[:SIZE_BYTES], "big")
    if flag != BOTH or SIZE_BYTES + size > len(body):
        raise SerdeError(f"{topic!r} holds {len(data)} bytes that are no change of a table", index)
    return body[SIZE_BYTES + size :], body[SIZE_BYTES : SIZE_BYTES + size]
