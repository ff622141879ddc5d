"""State stores: rows in dicts, keyed by the key's bytes, kept in a changelog.              [P]

A store has one bucket for each window (a single one without windows). A bucket keeps one dict of
partials per aggregate, and the timestamp of each row; a row is put together when it is looked at.
What changed is written once per row and commit, however often it changed.

    changelog record    key      the key's bytes, in windows followed by the window's start
                        value    the row by the store's serde; msgpack of the partials where rows
                                 do not tell them (a mean's sum and count); null: no row
                        timestamp, headers   of the row

A store with windows may also keep a note of its operator's under NOTE_KEY, which is shorter than
the key of any row.

Owns   rows, timestamps, what the changelog has not seen yet.
Never  decodes a key unless somebody looks at it.
Source Kafka Streams' KeyValueStore, WindowStore, WindowKeySchema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafkalite.core.types import Columns, Headers, Windowed
from kafkalite.errors import SerdeError, TopologyError
from kafkalite.serde.serde import Codec
from kafkalite.streams.aggregates import MISSING, Aggregate, Partials
from kafkalite.streams.windows import TimeWindow

START: Final = struct.Struct(">q")
NOTE_KEY: Final = b"note"
NO_WINDOW: Final = 0  # the start of the only bucket of a store without windows


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are made of partials: a dict by `fields`, or the one aggregate's bare value."""

    aggregates: tuple[Aggregate, ...]
    fields: tuple[str, ...] | None = None

    @property
    def deletes(self) -> bool:
        """Whether a row may come out as None, which is no row."""
        return self.fields is None and self.aggregates[0].may_be_none

    @property
    def is_plain(self) -> bool:
        """Whether the partials can be told from the row."""
        return all(aggregate.is_plain for aggregate in self.aggregates)

    def rows(self, bucket: Bucket, keys: Sequence[bytes]) -> list[Any]:
        """The rows of `keys`, None where there is none."""
        columns = [
            aggregate.rows(partials, keys)
            for aggregate, partials in zip(self.aggregates, bucket.partials, strict=True)
        ]
        return self._named(columns)

    def _named(self, columns: list[list[Any]]) -> list[Any]:
        """Rows of columns, one column for each aggregate."""
        if self.fields is None:
            return columns[0]
        return [dict(zip(self.fields, row, strict=True)) for row in zip(*columns, strict=True)]

    def dump(self, bucket: Bucket, keys: Sequence[bytes]) -> list[Any]:
        """What the changelog keeps of the rows of `keys`."""
        if self.is_plain:
            parts = zip(self.aggregates, bucket.partials, strict=True)
            return self._named([aggregate.results(partials, keys) for aggregate, partials in parts])
        columns = [
            [None if (found := partials.get(key, MISSING)) is MISSING else dump(found)
             for key in keys]
            for dump, partials in zip(
                (aggregate.dump for aggregate in self.aggregates), bucket.partials, strict=True
            )
        ]  # fmt: skip
        return [list(row) for row in zip(*columns, strict=True)]

    def load(self, bucket: Bucket, key: bytes, stored: Any) -> None:
        """Puts a row back that `dump` gave."""
        if not self.is_plain:
            parts = stored
        elif self.fields is None:
            parts = [stored]
        else:
            parts = [stored[name] for name in self.fields]
        for aggregate, partials, part in zip(self.aggregates, bucket.partials, parts, strict=True):
            if part is not None:
                partials[key] = aggregate.load(part)


@dataclass(slots=True, eq=False)
class Bucket:
    """The rows of one window.

    `changed`: rows that nobody below was told of, with what they were before if that is needed.
    `unlogged`: rows that the changelog was not told of.
    """

    start: int
    partials: tuple[Partials, ...]
    stamps: dict[bytes, int] = field(default_factory=dict)
    headers: dict[bytes, Headers] = field(default_factory=dict)
    changed: dict[bytes, Any] = field(default_factory=dict)
    unlogged: dict[bytes, Any] = field(default_factory=dict)
    newest: int = -1  # of all timestamps that came in
    is_logged: bool = False  # whether the changelog has rows of it

    def forget(self, key: bytes) -> None:
        """Removes a row and every trace of it."""
        for partials in self.partials:
            partials.pop(key, None)
        self.stamps.pop(key, None)
        self.headers.pop(key, None)

    def mark(self, keys: Iterable[bytes], headers: Iterable[Headers] | None) -> None:
        """Notes the headers of the records that changed `keys` last."""
        if headers is not None:
            self.headers.update(zip(keys, headers, strict=True))
        elif self.headers:
            for key in keys:
                self.headers.pop(key, None)

    def headers_of(self, keys: Sequence[bytes]) -> list[Headers] | None:
        """The headers column of `keys`, None when there are none at all."""
        if not self.headers:
            return None
        get = self.headers.get
        return [get(key, ()) for key in keys]


class StateStore:
    """One store of one task."""

    def __init__(
        self,
        name: str,
        changelog_topic: str,
        layout: Layout,
        window: TimeWindow | None,
        key_codec: Codec,
        value_codec: Codec,
    ) -> None:
        self.name = name
        self.changelog_topic = changelog_topic
        self.layout = layout
        self.window = window
        self.buckets: dict[int, Bucket] = {}
        self.newest = -1  # the newest timestamp that the changelog has told of
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._tombstones: dict[bytes, int] = {}  # changelog keys of closed windows
        self._note: bytes | None = None
        self._is_note_logged = True
        if window is None:
            self.bucket(NO_WINDOW)

    def bucket(self, start: int) -> Bucket:
        """The bucket of the window that starts at `start`, made when there is none."""
        if (bucket := self.buckets.get(start)) is None:
            partials = tuple(aggregate.partials() for aggregate in self.layout.aggregates)
            bucket = self.buckets[start] = Bucket(start, partials)
        return bucket

    @property
    def note(self) -> bytes | None:
        """What the operator wants to find again after a restart besides rows."""
        return self._note

    @note.setter
    def note(self, note: bytes) -> None:
        assert self.window is not None, f"{self.name}: a store without windows has no note"
        if note != self._note:
            self._note, self._is_note_logged = note, False

    def close(self, start: int, stream_time: int) -> None:
        """Removes a window; the changelog hears of it if it knows it."""
        bucket = self.buckets.pop(start)
        if bucket.is_logged:
            suffix = START.pack(start)
            self._tombstones.update((key + suffix, stream_time) for key in bucket.stamps)

    # The changelog

    def changelog(self) -> Columns | None:
        """What changed since the last call; None for nothing."""
        keys: list[bytes | None] = list(self._tombstones)
        values: list[bytes | None] = [None] * len(keys)
        stamps = list(self._tombstones.values())
        headers: list[Headers] = [()] * len(keys)
        self._tombstones = {}
        if not self._is_note_logged:
            self._is_note_logged = True
            keys.append(NOTE_KEY)
            values.append(self._note)
            stamps.append(max(0, self.newest))
            headers.append(())
        for bucket in self.buckets.values():
            if not bucket.unlogged:
                continue
            rows = list(bucket.unlogged)
            bucket.unlogged = {}
            bucket.is_logged = True
            keys += self.record_keys(bucket, rows)
            stored = self.layout.dump(bucket, rows)
            if self.layout.deletes and not self.layout.is_plain:
                stored = [None if row == [None] else row for row in stored]
            values += self._value_codec.serialize(self.changelog_topic, stored)
            stamps += [bucket.stamps[key] for key in rows]
            headers += bucket.headers_of(rows) or [()] * len(rows)
            self._purge(bucket, rows)
        if not keys:
            return None
        return Columns(keys, values, stamps, None, headers if any(headers) else None)

    def restore(self, columns: Columns) -> None:
        """Puts rows back as the changelog tells; the later record of a key replaces the earlier.

        SerdeError, with the record's index, for one that is no row of this store.
        """
        if self.window is not None and NOTE_KEY in columns.keys:
            columns = self._take_notes(columns)
        stored = self._value_codec.deserialize(self.changelog_topic, columns.values)
        headers = columns.headers or [()] * len(columns)
        index = 0
        try:
            for index, key in enumerate(columns.keys):
                self._put_back(key, stored[index], columns.timestamps[index], headers[index])
        except (LookupError, TypeError, ValueError, struct.error) as error:
            raise SerdeError(f"{type(error).__name__}: {error}", index) from error

    def _take_notes(self, columns: Columns) -> Columns:
        """Keeps the last note among the rows, which stand there without a value then."""
        values = list(columns.values)
        for index, key in enumerate(columns.keys):
            if key == NOTE_KEY:
                self._note, values[index] = values[index], None
        return replace(columns, values=values)

    def _put_back(
        self, record_key: bytes | None, stored: Any, stamp: int, headers: Headers
    ) -> None:
        if stored is None and record_key == NOTE_KEY and self.window is not None:
            return
        key, start = self._split(record_key)
        self.newest = max(self.newest, stamp)
        if (bucket := self.buckets.get(start)) is not None:
            bucket.forget(key)
        if stored is None:
            return
        bucket = self.bucket(start)
        self.layout.load(bucket, key, stored)
        bucket.stamps[key] = stamp
        bucket.newest = max(bucket.newest, stamp)
        bucket.is_logged = True
        if headers:
            bucket.headers[key] = headers

    def record_keys(self, bucket: Bucket, keys: Sequence[bytes]) -> Sequence[bytes]:
        """The bytes of `keys` in topics: followed by the window's start if there are windows."""
        if self.window is None:
            return keys
        suffix = START.pack(bucket.start)
        return [key + suffix for key in keys]

    def key_objects(self, bucket: Bucket, keys: Sequence[bytes]) -> Sequence[Any]:
        """The keys as users see them."""
        inner = self._key_codec.deserialize(self.changelog_topic, keys)
        if self.window is None:
            return inner
        start, end = bucket.start, bucket.start + self.window.size_ms
        return [Windowed(key, start, end) for key in inner]

    def has(self, bucket: Bucket, key: bytes) -> bool:
        """Whether there is a row of `key`."""
        return key in (bucket.partials[0] if self.layout.deletes else bucket.stamps)

    def key_bytes(self, key: Any) -> bytes:
        """The bytes that a user's key has in this store, without a window."""
        (data,) = self._key_codec.serialize(self.changelog_topic, [key])
        if data is None:
            raise TopologyError(f"store {self.name!r}: None is no key")
        return data

    def _purge(self, bucket: Bucket, keys: Iterable[bytes]) -> None:
        """Rows that are gone leave their timestamp behind until everyone was told."""
        if self.layout.deletes:
            for key in keys:
                if key not in bucket.partials[0]:
                    bucket.forget(key)

    def _split(self, record_key: bytes | None) -> tuple[bytes, int]:
        if record_key is None:
            raise ValueError("a row without a key")
        if self.window is None:
            return record_key, NO_WINDOW
        key, suffix = record_key[: -START.size], record_key[-START.size :]
        return key, START.unpack(suffix)[0]


class StoreView:
    """A store to look into: decoded keys and rows, in the order of the keys' bytes."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def get(self, key: Any) -> Any:
        """The row of a key (`Windowed(key, start, end)` in windows), None when there is none."""
        store = self._store
        start = NO_WINDOW
        if store.window is not None:
            if not isinstance(key, Windowed):
                raise TopologyError(f"store {store.name!r}: expected a Windowed key, got {key!r}")
            key, start, _ = key
        bucket = store.buckets.get(start)
        data = store.key_bytes(key)
        if bucket is None or not store.has(bucket, data):
            return None
        return store.layout.rows(bucket, [data])[0]

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every (key, row)."""
        return self._pairs(sorted(self._rows()))

    def range(self, start: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs with keys from `start` to `end`, both included; None: no bound."""
        low = b"" if start is None else self._store.key_bytes(start)
        high = None if end is None else self._store.key_bytes(end)
        found = (
            (key, window)
            for key, window in self._rows()
            if key >= low and (high is None or key <= high)
        )
        return self._pairs(sorted(found))

    def fetch(self, key: Any, start: int, end: int) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs of a key's windows that start in [start, end]."""
        if self._store.window is None:
            raise TopologyError(f"store {self._store.name!r} has no windows to fetch from")
        data = self._store.key_bytes(key)
        return self._pairs(
            [(data, w) for w, bucket in sorted(self._store.buckets.items())
             if start <= w <= end and self._store.has(bucket, data)]
        )  # fmt: skip

    def __len__(self) -> int:
        """How many rows there are."""
        return sum(1 for _ in self._rows())

    def _rows(self) -> Iterator[tuple[bytes, int]]:
        has = self._store.has
        for window, bucket in self._store.buckets.items():
            yield from ((key, window) for key in bucket.stamps if has(bucket, key))

    def _pairs(self, rows: Iterable[tuple[bytes, int]]) -> Iterator[tuple[Any, Any]]:
        store = self._store
        for key, window in rows:
            bucket = store.buckets[window]
            (user_key,) = store.key_objects(bucket, [key])
            yield user_key, store.layout.rows(bucket, [key])[0]
