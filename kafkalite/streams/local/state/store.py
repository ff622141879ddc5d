"""State stores: rows as objects in dicts, keyed by the key's bytes, kept in a changelog.  [P]

A store has one bucket for each window (a single one without windows). A bucket keeps one dict of
partials per aggregate, and the timestamp of each row; a row is put together when it is looked at.
What changed is written once per row and commit, however often it changed.

The dicts are a cache over the rows as bytes (kept.py). A bucket is cold while rows of it may be
bytes alone; whoever wants rows of it names their keys, and they are read together. Without a
restart and without a state directory no bucket is ever cold, and no bytes are made.

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

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import compress, filterfalse, islice, repeat
from typing import Any, Final, TypeAlias

from kafkalite.core.types import Columns, Headers, Windowed
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.serde.serde import Codec
from kafkalite.streams.aggregates import MISSING, Aggregate, Partials
from kafkalite.streams.local.sharing import copied
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY, START, Found
from kafkalite.streams.local.state.kept import Kept
from kafkalite.streams.local.state.key_order import KeyOrder
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.windows import TimeWindow

CHECKED_ROWS: Final = 16  # of each restored batch: rows of another shape are all of another shape
ROW_BYTES: Final = 250  # about what the objects of a row take besides those of its partials
PARTIAL_BYTES: Final = 100
KEYS_FIRST: Final = 8  # of a window, where a page of rows begins; then twice as many each time
KEYS_MAX: Final = 1_024
CHANGED_BYTES: Final = 250  # that a commit makes of a row: for the changelog, and for the disk
OBJECT_BYTES: Final = 3  # that an object takes for each byte of its row, about


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
        """Whether the partials follow from the row."""
        return all(aggregate.is_plain for aggregate in self.aggregates)

    def rows(self, bucket: Bucket, keys: Sequence[Any]) -> Sequence[Any]:
        """The rows of `keys`, None where there is none."""
        columns = [
            aggregate.rows(partials, keys)
            for aggregate, partials in zip(self.aggregates, bucket.partials, strict=True)
        ]
        return self.named(columns)

    def named(self, columns: Sequence[Sequence[Any]]) -> Sequence[Any]:
        """Rows of columns, one column for each aggregate."""
        if self.fields is None:
            return columns[0]
        return [dict(zip(self.fields, row, strict=True)) for row in zip(*columns, strict=True)]

    def dump(self, bucket: Bucket, keys: Sequence[Any]) -> Sequence[Any]:
        """What the changelog keeps of the rows of `keys`."""
        if self.is_plain:
            parts = zip(self.aggregates, bucket.partials, strict=True)
            return self.named([aggregate.results(partials, keys) for aggregate, partials in parts])
        columns = [
            [None if (found := partials.get(key, MISSING)) is MISSING else dump(found)
             for key in keys]
            for dump, partials in zip(
                (aggregate.dump for aggregate in self.aggregates), bucket.partials, strict=True
            )
        ]  # fmt: skip
        return [list(row) for row in zip(*columns, strict=True)]

    def gathered(self, picks: Picks) -> tuple[Bucket, Sequence[Any]]:
        """One bucket with the rows of several, by their places among all; and these places."""
        if len(picks) == 1:
            return picks[0]
        every = tuple(aggregate.partials() for aggregate in self.aggregates)
        places = range(sum(len(keys) for _, keys in picks))
        for number, found in enumerate(every):
            place = 0
            for bucket, keys in picks:
                partials = bucket.partials[number]
                for key in keys:
                    if key in partials:
                        found[place] = partials[key]
                    place += 1
        return Bucket(NO_WINDOW, every), places

    def load(self, bucket: Bucket, keys: Sequence[Any], stored: Sequence[Any]) -> None:
        """Puts rows back that `dump` gave."""
        columns: Iterable[Sequence[Any]]
        if not self.is_plain:
            columns = zip(*stored, strict=True)
        elif self.fields is None:
            columns = [stored]
        else:
            columns = [[row[name] for row in stored] for name in self.fields]
        for aggregate, partials, column in zip(
            self.aggregates, bucket.partials, columns, strict=True
        ):
            there = [part is not None for part in column]
            parts: Iterable[Any] = compress(column, there)
            if type(aggregate).load is not Aggregate.load:
                parts = map(aggregate.load, parts)
            # The update of a Counter would add.
            dict.update(partials, zip(compress(keys, there), parts, strict=True))


@dataclass(slots=True, eq=False)
class Bucket:
    """The rows of one window.

    The dicts are by the key's bytes; those of a SpanStore by its windows.
    `changed`: rows that nobody below was told of, with what they were before if that is needed.
    `unlogged`: rows that the changelog was not told of.
    """

    start: int
    partials: tuple[Partials, ...]
    stamps: dict[Any, int] = field(default_factory=dict)
    headers: dict[Any, Headers] = field(default_factory=dict)
    changed: dict[Any, Any] = field(default_factory=dict)
    unlogged: dict[Any, Any] = field(default_factory=dict)
    newest: int = -1  # of all timestamps that came in
    is_logged: bool = False  # whether the changelog has rows of it
    is_cold: bool = False  # whether rows of it may be kept as bytes alone
    order: KeyOrder | None = None  # of `stamps`, once somebody has wanted it

    def forget(self, key: Any) -> None:
        """Removes a row and every trace of it."""
        for partials in self.partials:
            partials.pop(key, None)
        self.stamps.pop(key, None)
        self.headers.pop(key, None)
        if self.order is not None:
            self.order.forget([key])

    def forget_all(self, keys: Sequence[Any]) -> None:
        """Removes many rows: all from one dict, then from the next."""
        for rows in (*self.partials, self.stamps, self.headers):
            if rows:
                deque(map(rows.pop, keys, repeat(None)), maxlen=0)
        if self.order is not None:
            self.order.forget(keys)

    def ascending(self, low: bytes) -> Iterator[bytes]:
        """The keys of `stamps` from `low` on. Nothing may change before they are read."""
        if self.order is None:
            self.order = KeyOrder(self.stamps)
        return self.order.irange(low)

    def mark(self, keys: Iterable[Any], headers: Iterable[Headers] | None) -> None:
        """Notes the headers of the records that changed `keys` last."""
        if headers is not None:
            self.headers.update(zip(keys, headers, strict=True))
        elif self.headers:
            for key in keys:
                self.headers.pop(key, None)


Picks: TypeAlias = Sequence[tuple[Bucket, Sequence[Any]]]  # rows of several buckets


def headers_of(picks: Picks) -> list[Headers] | None:
    """The headers column of some rows, None when there are none at all."""
    if not any(bucket.headers for bucket, _ in picks):
        return None
    return [bucket.headers.get(key, ()) for bucket, keys in picks for key in keys]


def stamps_of(picks: Picks) -> list[int]:
    """The timestamps of some rows."""
    if len(picks) == 1:
        ((bucket, keys),) = picks
        return list(map(bucket.stamps.__getitem__, keys))
    return [stamp for bucket, keys in picks for stamp in map(bucket.stamps.__getitem__, keys)]


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
        backend: Backend | None = None,
    ) -> None:
        self.name = name
        self.changelog_topic = changelog_topic
        self.layout = layout
        self.window = window
        self.buckets: dict[int, Bucket] = {}
        self.shown_from = 0  # joins find no windows that start (sessions: end) before
        self.kept = Kept(backend or MemoryBackend(), has_windows=window is not None)
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._tombstones: dict[bytes, int] = {}  # changelog keys of closed windows
        self._note: bytes | None = None
        self._is_note_logged = True
        self.catch_up: Callable[[], None] = _nothing  # folds in what waits for somebody to look
        self.coming = 0  # records that wait: each may bring a row
        self._coded_rows = self._coded_bytes = 0  # of rows that were written or read, for a mean
        if window is None:
            self.bucket(NO_WINDOW)
        self.settle()

    @property
    def newest(self) -> int:
        """The newest timestamp in the changelog."""
        return self.kept.newest

    @property
    def has_cold_rows(self) -> bool:
        """Whether rows may be kept as bytes alone."""
        return self.kept.is_durable or not self.kept.is_empty

    def settle(self) -> None:
        """What a restore has left gets buckets, in which rows are bytes until they are wanted."""
        self.kept.settle()
        if self.kept.is_empty:
            return
        for start in [NO_WINDOW] if self.window is None else self.kept.starts():
            bucket = self.bucket(start)
            bucket.is_cold = bucket.is_logged = True
            bucket.newest = max(bucket.newest, self.newest)

    def bucket(self, start: int, keys: Collection[bytes] = ()) -> Bucket:
        """The bucket of the window that starts at `start`, made when there is none.

        The rows of `keys` are in it: those that were kept as bytes alone are read.
        """
        if (bucket := self.buckets.get(start)) is None:
            partials = tuple(aggregate.partials() for aggregate in self.layout.aggregates)
            bucket = self.buckets[start] = Bucket(start, partials)
        elif bucket.is_cold and keys:
            here, gone = bucket.stamps, bucket.unlogged
            wanted = [k for k in dict.fromkeys(keys) if k not in here and k not in gone]
            if wanted:
                wanted.sort()  # rows on disk that lie together are read together
                self._read(bucket, self.kept.take(start, wanted))
                bucket.is_cold = self.has_cold_rows
        return bucket

    @property
    def note(self) -> bytes | None:
        """What the operator wants to find again after a restart besides rows."""
        return self.kept.note if self._note is None else self._note

    @note.setter
    def note(self, note: bytes) -> None:
        assert self.window is not None, f"{self.name}: a store without windows has no note"
        if note != self.note:
            self._note, self._is_note_logged = note, False

    @property
    def note_key(self) -> bytes | None:
        """The key under which the changelog has the note; None where there is none."""
        return None if self.window is None else NOTE_KEY

    def whole(self, start: int) -> Bucket:
        """A bucket that is there, with all its rows."""
        bucket = self.buckets[start]
        if bucket.is_cold:
            self.bucket(start, self.kept.keys(start))
            bucket.is_cold = False
        return bucket

    def _read(self, bucket: Bucket, found: Found) -> None:
        """Puts rows among the objects."""
        if not found.keys:
            return
        try:
            stored = self._value_codec.deserialize(self.changelog_topic, found.values)
            self.layout.load(bucket, found.keys, stored)
        except (SerdeError, LookupError, TypeError, ValueError) as error:
            raise ProcessingError(
                f"store {self.name!r}: a row of {self.changelog_topic!r} cannot be read: {error!r}"
                "; rows of another shape need another name"
            ) from error
        bucket.stamps.update(zip(found.keys, found.stamps, strict=True))
        if found.headers is not None:
            pairs = zip(found.keys, found.headers, strict=True)
            bucket.headers.update((key, headers) for key, headers in pairs if headers)
        self._measure(found.keys, found.values)

    def close(self, start: int, stream_time: int) -> None:
        """Removes a window, also from the changelog if it is there."""
        bucket = self.buckets.pop(start)
        if bucket.is_logged:
            suffix = START.pack(start)
            self._tombstones.update((key + suffix, stream_time) for key in bucket.stamps)
            if bucket.is_cold:
                kept = self.kept.keys(start)
                self._tombstones.update((key + suffix, stream_time) for key in kept)
        if bucket.is_cold or self.kept.is_durable:
            self.kept.drop(start)

    # The changelog

    def changelog(self) -> Columns | None:
        """What changed since the last call; None for nothing."""
        self.kept.begin()
        keys = list(self._tombstones)
        values: list[bytes | None] = [None] * len(keys)
        stamps = list(self._tombstones.values())
        headers: list[Headers] = [()] * len(keys)
        self._tombstones = {}
        before = len(keys) + (not self._is_note_logged)  # the rows
        if not self._is_note_logged:
            self._is_note_logged = True
            keys.append(NOTE_KEY)
            values.append(self._note)
            stamps.append(max(0, self.newest))
            headers.append(())
        picks = self._unlogged()
        if picks:
            keys += self.record_keys(picks)
            stored = self.layout.dump(*self.layout.gathered(picks))
            if self.layout.deletes and not self.layout.is_plain:
                stored = [None if row == [None] else row for row in stored]
            values += self._value_codec.serialize(self.changelog_topic, stored)
            stamps += stamps_of(picks)
            headers += headers_of(picks) or [()] * (len(keys) - len(headers))
        for bucket, rows in picks:
            self._purge(bucket, rows)
        if not keys:
            return None
        columns = Columns(keys, values, stamps, None, headers if any(headers) else None)
        if self.kept.is_durable:  # closed windows are dropped there as a whole
            changed = columns.slice(before, len(keys))
            self.kept.write(changed, self._note)
            self._measure(changed.keys, changed.values)
        return columns

    def _unlogged(self) -> Picks:
        """The rows that the changelog lacks; they count as written from now on."""
        picks: list[tuple[Bucket, list[bytes]]] = []
        for _, bucket in sorted(self.buckets.items()):
            if bucket.unlogged:
                picks.append((bucket, list(bucket.unlogged)))
                bucket.unlogged = {}
                bucket.is_logged = True
        return picks

    def checkpoint(self, offset: int | None, now_ms: int) -> None:
        """The commit of everything that `changelog` gave so far went through."""
        self.kept.checkpoint(offset, now_ms)

    def restore(self, columns: Columns) -> None:
        """Takes rows back as the changelog tells; the later record of a key replaces the earlier.

        SerdeError, with the record's index, for one that is no row of this store. Rows are not
        decoded before they are wanted, but for a few of each batch.
        """
        if not len(columns):
            return
        self._check_rows(columns)
        self.kept.load(columns)
        if any(bucket.stamps for bucket in self.buckets.values()):  # somebody has looked
            self._forget(columns.keys)

    def _forget(self, record_keys: Iterable[bytes]) -> None:
        """Removes the objects of rows that the changelog tells of again."""
        for record_key in record_keys:
            key, start = record_key, NO_WINDOW
            if self.window is not None and record_key != NOTE_KEY:
                key, suffix = record_key[: -START.size], record_key[-START.size :]
                (start,) = START.unpack(suffix)
            if (bucket := self.buckets.get(start)) is not None:
                bucket.forget(key)

    def _check_rows(self, columns: Columns) -> None:
        count = len(columns)
        indexes = sorted({*range(0, count, max(1, count // CHECKED_ROWS)), count - 1})
        for index in indexes:
            if (value := columns.values[index]) is None or columns.keys[index] == self.note_key:
                continue
            scratch = Bucket(NO_WINDOW, tuple({} for _ in self.layout.aggregates))
            try:
                (stored,) = self._value_codec.deserialize(self.changelog_topic, [value])
                self.layout.load(scratch, [b""], [stored])
            except SerdeError as error:
                raise SerdeError(error.words, index) from error
            except (LookupError, TypeError, ValueError) as error:
                raise SerdeError(f"{type(error).__name__}: {error}", index) from error

    # Memory

    @property
    def object_bytes(self) -> int:
        """About how many bytes the rows take that are objects, or soon will be; with those that a
        commit makes of the rows that have changed."""
        rows = sum(len(bucket.stamps) for bucket in self.buckets.values())
        changed = sum(len(bucket.unlogged) for bucket in self.buckets.values())
        rows_bytes = (rows + self.coming) * self._row_bytes
        return rows_bytes + (changed + self.coming) * CHANGED_BYTES

    @property
    def _row_bytes(self) -> int:
        coded = self._coded_bytes // self._coded_rows if self._coded_rows else 0
        return ROW_BYTES + PARTIAL_BYTES * len(self.layout.aggregates) + OBJECT_BYTES * coded

    def shrink(self, bytes_max: int) -> None:
        """Lets go of rows that are on disk as they are here until the rest fits, those that came
        first before others. Rows that the changelog or somebody below has yet to hear of stay."""
        assert self.kept.is_durable, f"store {self.name!r} is nowhere but in memory"
        excess = (self.object_bytes - bytes_max) // self._row_bytes
        for start in sorted(self.buckets):
            if excess <= 0:
                return
            bucket = self.buckets[start]
            busy, waits = bucket.unlogged, bucket.changed
            clean: Iterable[Any] = bucket.stamps
            for those in (busy, waits):
                clean = filterfalse(those.__contains__, clean) if those else clean
            gone = list(islice(clean, excess))
            bucket.forget_all(gone)
            bucket.is_cold = bucket.is_cold or bool(gone)
            excess -= len(gone)

    def _measure(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self._coded_rows += len(keys)
        self._coded_bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))

    def view(self) -> StoreView:
        """The store as users look into it."""
        self.catch_up()
        return StoreView(self)

    def record_keys(self, picks: Picks) -> list[bytes]:
        """The bytes of keys in topics: followed by the window's start if there are windows."""
        if self.window is None:
            return [key for _, keys in picks for key in keys]
        suffixed = [(START.pack(bucket.start), keys) for bucket, keys in picks]
        return [key + suffix for suffix, keys in suffixed for key in keys]

    def key_objects(self, picks: Picks) -> Sequence[Any]:
        """Keys as users see them."""
        inner = self.inner_keys([key for _, keys in picks for key in keys])
        if self.window is None:
            return inner
        size, starts = self.window.size_ms, [b.start for b, keys in picks for _ in keys]
        pairs = zip(inner, starts, strict=True)
        return [Windowed(key, start, start + size) for key, start in pairs]

    def inner_keys(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """The keys as users see them, without windows."""
        return self._key_codec.deserialize(self.changelog_topic, keys)

    def has(self, bucket: Bucket, key: Any) -> bool:
        """Whether there is a row of `key`."""
        return key in (bucket.partials[0] if self.layout.deletes else bucket.stamps)

    def keys_from(self, start: int, low: bytes, count: int) -> list[bytes]:
        """The first `count` keys of a window's rows from `low` on, ascending."""
        if (bucket := self.buckets.get(start)) is None:
            return []
        found: Iterable[bytes] = (k for k in bucket.ascending(low) if self.has(bucket, k))
        if bucket.is_cold:
            here, gone = bucket.stamps, bucket.unlogged
            kept = self.kept.keys_from(start, low)
            found = merge(found, (key for key in kept if key not in here and key not in gone))
        return list(islice(found, count))

    def key_bytes(self, key: Any) -> bytes:
        """The bytes that a user's key has in this store, without a window."""
        (data,) = self._key_codec.serialize(self.changelog_topic, [key])
        if data is None:
            raise TopologyError(f"store {self.name!r}: None is no key")
        return data

    def _purge(self, bucket: Bucket, keys: Iterable[bytes]) -> None:
        """Deleted rows keep their timestamp until the deletion has been sent everywhere."""
        if self.layout.deletes:
            for key in keys:
                if key not in bucket.partials[0]:
                    bucket.forget(key)


def _nothing() -> None:
    """Every record is in the rows."""


class StoreView:
    """A store to look into: decoded keys and rows, in the order of the keys' bytes. Whoever looks
    may change what it gets."""

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
        data = store.key_bytes(key)
        if start not in store.buckets or not store.has(bucket := store.bucket(start, [data]), data):
            return None
        return copied(store.layout.rows(bucket, [data])[0])

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every (key, row)."""
        return self.range()

    def range(self, start: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs with keys from `start` to `end`, both included; None: no bound.

        Rows that nobody takes cost nothing. The store may change meanwhile.
        """
        low = b"" if start is None else self._store.key_bytes(start)
        high = None if end is None else self._store.key_bytes(end)
        windows = sorted(self._store.buckets)
        return self._pairs(merge(*(self._ascending(each, low, high) for each in windows)))

    def fetch(self, key: Any, start: int, end: int) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs of a key's windows that start in [start, end]."""
        if self._store.window is None:
            raise TopologyError(f"store {self._store.name!r} has no windows to fetch from")
        data = self._store.key_bytes(key)
        return self._pairs(
            [(data, w) for w in sorted(self._store.buckets)
             if start <= w <= end and self._store.has(self._store.bucket(w, [data]), data)]
        )  # fmt: skip

    def __len__(self) -> int:
        """How many rows there are."""
        return sum(1 for _ in self._rows())

    def _rows(self) -> Iterator[tuple[bytes, int]]:
        has = self._store.has
        for window in self._store.buckets:
            bucket = self._store.whole(window)
            yield from ((key, window) for key in bucket.stamps if has(bucket, key))

    def _ascending(
        self, window: int, low: bytes, high: bytes | None
    ) -> Iterator[tuple[bytes, int]]:
        count = KEYS_FIRST
        while some := self._store.keys_from(window, low, count):
            for key in some:
                if high is not None and key > high:
                    return
                yield key, window
            low, count = some[-1] + b"\0", min(2 * count, KEYS_MAX)

    def _pairs(self, rows: Iterable[tuple[bytes, int]]) -> Iterator[tuple[Any, Any]]:
        store = self._store
        for key, window in rows:
            if window not in store.buckets:  # closed meanwhile
                continue
            bucket = store.bucket(window, [key])
            if store.has(bucket, key):
                (user_key,) = store.key_objects([(bucket, [key])])
                yield user_key, copied(store.layout.rows(bucket, [key])[0])
