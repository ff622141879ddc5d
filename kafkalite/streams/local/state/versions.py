"""Versions of rows: a table that knows what a key had at a time, some way back.             [P]

    version     'v' · key size uint32 · key · timestamp uint64        a row, or that it was deleted
    end         'x' · end uint64 · key size uint32 · key · timestamp  of a version that ended

A version ends where the next one of its key begins; a deletion ends where it begins. Ended versions
that no time within `history_ms` of the newest put can see are deleted, by their ends. The latest
version of a key stays for good.

Owns   the layout of keys in an OrderedStore, and which versions are there.
Source Kafka Streams' RocksDBVersionedStore.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafkalite.core.types import Headers
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Codec
from kafkalite.streams.local.sharing import copied
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.ordered import OrderedStore, Row

VERSION: Final = b"v"
END: Final = b"x"
SIZE: Final = struct.Struct(">I")
TIME: Final = struct.Struct(">Q")
GONE: Final = object()  # the value of a version that is a deletion


@dataclass(frozen=True, slots=True)
class VersionCodec:
    """Values of versions: a byte that says whether there is one, and what `inner` writes."""

    inner: Codec

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each; None stays None."""
        plain = self.inner.serialize(topic, [None if x is GONE else x for x in column])
        return [
            b"\x00" if x is GONE else None if data is None else b"\x01" + data
            for x, data in zip(column, plain, strict=True)
        ]

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """What `serialize` wrote."""
        bodies = [None if not data or data[:1] == b"\x00" else data[1:] for data in column]
        plain = self.inner.deserialize(topic, bodies)
        return [
            GONE if data is not None and body is None else x
            for x, body, data in zip(plain, bodies, column, strict=True)
        ]


class Put(NamedTuple):
    """What became of a put: whether it is a version now, and the latest one; the row before."""

    is_kept: bool
    is_latest: bool = False
    old: Any = None


class VersionStore(OrderedStore):
    """The versions of a table. `history_ms`: how far back they are seen."""

    def __init__(
        self,
        name: str,
        changelog_topic: str,
        history_ms: int,
        key_codec: Codec,
        value_codec: Codec,
        backend: Backend | None = None,
    ) -> None:
        view: Callable[[OrderedStore], Any] = lambda _: VersionsView(self, key_codec)  # noqa: E731
        super().__init__(name, changelog_topic, value_codec, backend, view)
        self.history_ms = history_ms
        self._newest = -1

    @property
    def horizon(self) -> int:
        """The oldest time at which a version that has ended is seen."""
        self._newest = max(self._newest, self.newest)
        return self._newest - self.history_ms

    def put_version(self, key: bytes, value: Any, stamp: int, headers: Headers) -> Put:
        """A version from `stamp` on, None for a deletion. One older than the horizon is none."""
        self._newest = max(self._newest, stamp)
        if stamp < self.horizon:
            return Put(is_kept=False)
        rows = [(row.stamp, row.value) for _, row in self._of(key)]
        before = next((row for row in reversed(rows) if row[0] < stamp), None)
        same = next((row for row in rows if row[0] == stamp), None)
        after = next((at for at, _ in rows if at > stamp), None)
        made = (stamp, GONE if value is None else value)
        was, now = _ends([before, same], after), _ends([before, made], after)
        for version, end in was - now:
            self.delete(_end(key, version, end), self._newest)
        for version, end in now - was:
            self.put(_end(key, version, end), GONE, self._newest)
        self.put(_version(key, stamp), made[1], stamp, headers)
        old = rows[-1][1] if rows else None
        return Put(True, after is None, None if old is GONE else old)

    def expire(self) -> None:
        """Deletes the versions that nobody can see any more."""
        horizon = self.horizon
        if horizon < 0:
            return
        for place, _ in self.range(END, END + TIME.pack(horizon + 1)):
            self.delete(place, self._newest)
            self.delete(VERSION + place[len(END) + TIME.size :], self._newest)

    def at(self, key: bytes, stamp: int) -> Row | None:
        """The row at a time, None for none."""
        found: Row | None = None
        last: Row | None = None
        for _, row in self._of(key):
            last = row
            if row.stamp <= stamp:
                found = row
        if found is None or found.value is GONE:
            return None
        return found if found is last or stamp >= self.horizon else None

    def latest(self, key: bytes) -> Row | None:
        """The row as it is now."""
        found = next(iter(self._of(key, reverse=True)), None)
        return None if found is None or found[1].value is GONE else found[1]

    def _of(self, key: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Row]]:
        """The versions of a key, oldest first."""
        prefix = VERSION + SIZE.pack(len(key)) + key
        return self.range(prefix, prefix + b"\xff" * (TIME.size + 1), reverse=reverse)

    def known(self) -> list[bytes]:
        """The keys that have a version, in order."""
        head = len(VERSION) + SIZE.size
        places = self.range(VERSION, END)
        return sorted({place[head : -TIME.size] for place, _ in places})


class VersionsView:
    """A versioned store to look into."""

    def __init__(self, versions: VersionStore, key_codec: Codec) -> None:
        self._versions = versions
        self._codec = key_codec

    def get(self, key: Any, at: int | None = None) -> Any:
        """The row of a key, or what it was at a time; None for none."""
        (data,) = self._codec.serialize(self._versions.changelog_topic, [key])
        if data is None:
            raise TopologyError(f"store {self._versions.name!r}: None is no key")
        row = self._versions.latest(data) if at is None else self._versions.at(data, at)
        return None if row is None else copied(row.value)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every (key, latest row)."""
        topic = self._versions.changelog_topic
        for data in self._versions.known():
            if (row := self._versions.latest(data)) is not None:
                (key,) = self._codec.deserialize(topic, [data])
                yield key, copied(row.value)


def _ends(rows: Sequence[tuple[int, Any] | None], after: int | None) -> set[tuple[int, int]]:
    """The ends of neighbouring versions, `after` being where the next one begins."""
    there = [row for row in rows if row is not None]
    found = set()
    for index, (stamp, value) in enumerate(there):
        end = there[index + 1][0] if index + 1 < len(there) else after
        if end is None and value is GONE:
            end = stamp
        if end is not None:
            found.add((stamp, end))
    return found


def _version(key: bytes, stamp: int) -> bytes:
    return VERSION + SIZE.pack(len(key)) + key + TIME.pack(stamp)


def _end(key: bytes, stamp: int, end: int) -> bytes:
    return END + TIME.pack(end) + _version(key, stamp)[len(VERSION) :]
