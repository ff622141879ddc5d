"""Rows in the order of their keys' bytes: state that is not a row per key, or key and window.  [P]

Joins, sessions, buffers and timers lay out their keys so that what they look for stands together,
and read ranges. A row is an object with a timestamp and headers.

    put, delete      changes, which the changelog hears of once per row and commit
    get, range       rows as they are now

The rows are objects over rows as bytes (kept.py), as in StateStore. Without a state directory all
of them are objects from the end of the restore on. With one, objects are those rows that changed
since the last commit and those that were looked at; `shrink` lets go of the latter.

    changelog record    key, timestamp, headers   of the row
                        value                     by the store's serde; null: no row

The note of the store's operator stands under a key that no row has: NOTE_KEY, which is shorter than
those that operators lay out, or RESERVED_KEY where users choose the keys.

Owns   rows, and what the changelog has not seen yet.
Fails  with ProcessingError for bytes that the serde of the rows does not read.
Source Kafka Streams' SegmentedBytesStore, InMemoryTimeOrderedKeyValueBuffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from kafkalite.core.types import Columns, Headers
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.serde.serde import Codec
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY, Found
from kafkalite.streams.local.state.kept import Kept
from kafkalite.streams.local.state.late_sorted import LateSorted
from kafkalite.streams.local.state.memory import MemoryBackend

CHECKED_ROWS: Final = 16  # of each restored batch: rows of another shape are all of another shape
READ_ROWS: Final = 1_000  # that are decoded at a time
ROW_BYTES: Final = 300  # about what the objects of a row take besides those of its value
OBJECT_BYTES: Final = 3  # that an object takes for each byte of its row, about
RESERVED_KEY: Final = b"\x00kafkalite-note\x00"


class Row(NamedTuple):
    """A row of an OrderedStore."""

    value: Any
    stamp: int
    headers: Headers = ()


class OrderedStore:
    """One store of one task. `view` makes of it what users look into; without it they cannot."""

    def __init__(
        self,
        name: str,
        changelog_topic: str,
        codec: Codec,
        backend: Backend | None = None,
        view: Callable[[OrderedStore], Any] | None = None,
        note_key: bytes = NOTE_KEY,
    ) -> None:
        self.name = name
        self.changelog_topic = changelog_topic
        self.kept = Kept(backend or MemoryBackend(), has_windows=False)
        self._codec = codec
        self._view = view
        self._note_key = note_key
        self._rows = LateSorted[Row | None]()  # None: deleted, the bytes may be
        self._unlogged: dict[bytes, int] = {}  # changed keys, with the timestamps of deletions
        self._note: bytes | None = None
        self._is_note_logged = True
        self._coded_rows = self._coded_bytes = 0  # for a mean

    # Rows

    def get(self, key: bytes) -> Row | None:
        """The row of `key`, None when there is none."""
        if key in self._rows or not self.kept.is_durable:
            return self._rows.get(key)
        ((_, row),) = self._read(self.kept.take(NO_WINDOW, [key])) or ((key, None),)
        if row is not None:
            self._rows[key] = row
        return row

    def put(self, key: bytes, value: Any, stamp: int, headers: Headers = ()) -> None:
        """Puts a row, whatever there was. `value` is not None."""
        assert key != self._note_key, f"store {self.name!r}: the key {key!r} is reserved"
        assert self._note_key != NOTE_KEY or len(key) > len(NOTE_KEY), (
            f"store {self.name!r}: the key {key!r} is too short"
        )
        self._rows[key] = Row(value, stamp, headers)
        self._unlogged[key] = stamp

    def change(self, changes: Iterable[tuple[bytes, Any, int]]) -> None:
        """Puts rows of (key, value, timestamp); None in the place of a value deletes one."""
        put, pop, unlogged = self._rows.__setitem__, self._rows.pop, self._unlogged
        is_durable, new = self.kept.is_durable, tuple.__new__  # quicker than Row()
        for key, value, stamp in changes:
            if value is not None:
                put(key, new(Row, (value, stamp, ())))
                unlogged[key] = stamp
            elif is_durable:
                self.delete(key, stamp)
            elif pop(key):
                unlogged[key] = stamp

    def delete(self, key: bytes, stamp: int) -> None:
        """Deletes a row, at `stamp` for the changelog; nothing where there is none."""
        if self.get(key) is None:
            return
        if self.kept.is_durable:
            self._rows[key] = None
        else:
            del self._rows[key]
        self._unlogged[key] = stamp

    def delete_range(self, low: bytes, high: bytes | None, stamp: int) -> None:
        """Deletes the rows with low <= key < high."""
        for key, _ in list(self.range(low, high)):
            self.delete(key, stamp)

    def range(
        self, low: bytes = b"", high: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Row]]:
        """The rows with low <= key < high, ascending or with `reverse` descending.

        The store may change meanwhile: rows are those of the beginning.
        """
        keys = list(self._rows.irange(low, high, reverse=reverse))
        if not self.kept.is_durable:
            found = ((key, self._rows[key]) for key in keys)
            return iter([(key, row) for key, row in found if row is not None])
        there: dict[bytes, Row | None] = dict(self._stored(low, high))
        there.update((key, self._rows[key]) for key in keys)
        rows = [(key, row) for key, row in there.items() if row is not None]
        rows.sort(key=itemgetter(0), reverse=reverse)
        return iter(rows)

    def keys(self) -> list[bytes]:
        """The keys of all rows, ascending. No row is decoded."""
        if not self.kept.is_durable:
            return list(self._rows)
        there = self.kept.keys_between(b"", None)
        kept = (key for key in there if key != self._note_key)
        gone = {key for key, row in self._rows.items() if row is None}
        return sorted({*kept, *self._rows} - gone)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._rows) if not self.kept.is_durable else sum(1 for _ in self.range())

    def _stored(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, Row]]:
        """The rows as they are kept, those apart that are objects."""
        known = self._rows
        keys = (key for key in self.kept.keys_between(low, high) if key not in known)
        wanted = (key for key in keys if key != self._note_key)
        while some := list(islice(wanted, READ_ROWS)):
            yield from self._read(self.kept.take(NO_WINDOW, some))

    def _read(self, found: Found) -> list[tuple[bytes, Row]]:
        """Rows of bytes."""
        if not found.keys:
            return []
        try:
            values = self._codec.deserialize(self.changelog_topic, found.values)
        except SerdeError as error:
            raise ProcessingError(
                f"store {self.name!r}: a row of {self.changelog_topic!r} cannot be read: "
                f"{error.words}; rows of another shape need another name"
            ) from error
        self._measure(found.keys, found.values)
        headers = found.headers or [()] * len(found.keys)
        return list(zip(found.keys, map(Row, values, found.stamps, headers), strict=True))

    @property
    def note(self) -> bytes | None:
        """What the operator wants to find again after a restart besides rows."""
        if self._note is None:
            found = self.kept.take(NO_WINDOW, [self._note_key])
            self._note = found.values[0] if found.keys else None
        return self._note

    @note.setter
    def note(self, note: bytes) -> None:
        if note != self.note:
            self._note, self._is_note_logged = note, False

    # The changelog

    @property
    def newest(self) -> int:
        """The newest timestamp in the changelog."""
        return self.kept.newest

    def changelog(self) -> Columns | None:
        """What changed since the last call; None for nothing."""
        changes, self._unlogged = self._unlogged, {}
        keys = list(changes)
        rows = [self._rows.get(key) for key in keys]
        objects = [None if row is None else row.value for row in rows]
        try:
            values = list(self._codec.serialize(self.changelog_topic, objects))
        except SerdeError:
            self._unlogged = changes
            raise
        headers: list[Headers] = [() if row is None else row.headers for row in rows]
        stamps = list(changes.values())
        for key, row in zip(keys, rows, strict=True):
            if row is None:
                self._rows.pop(key)  # it is in the changelog now, or on its way to the disk
        if not self._is_note_logged:
            self._is_note_logged = True
            keys.append(self._note_key)
            values.append(self._note)
            stamps.append(max(0, self.newest))
            headers.append(())
        if not keys:
            return None
        columns = Columns(keys, values, stamps, None, headers if any(headers) else None)
        if self.kept.is_durable:
            self.kept.write(columns, None)
        self._measure(columns.keys, columns.values)
        return columns

    def checkpoint(self, offset: int | None, now_ms: int) -> None:
        """The commit of everything that `changelog` gave so far went through."""
        self.kept.checkpoint(offset, now_ms)

    def restore(self, columns: Columns) -> None:
        """Takes rows back as the changelog tells; the later record of a key replaces the earlier.

        SerdeError, with the record's index, for one that is no row of this store; a few of each
        batch are looked at.
        """
        if not len(columns):
            return
        count = len(columns)
        for index in sorted({*range(0, count, max(1, count // CHECKED_ROWS)), count - 1}):
            if (value := columns.values[index]) is None or columns.keys[index] == self._note_key:
                continue
            try:
                self._codec.deserialize(self.changelog_topic, [value])
            except SerdeError as error:
                raise SerdeError(error.words, index) from error
        self.kept.load(columns)
        self._note = None
        for key in columns.keys:
            self._rows.pop(key)

    def settle(self) -> None:
        """What a restore has left becomes rows to look at."""
        self.kept.settle()
        if self.kept.is_durable or self.kept.is_empty:
            return
        _ = self.note  # is no row
        for key, row in list(self._stored(b"", None)):
            self._rows[key] = row

    # Memory

    @property
    def object_bytes(self) -> int:
        """About how many bytes the rows take that are objects."""
        return len(self._rows) * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        coded = self._coded_bytes // self._coded_rows if self._coded_rows else 0
        return ROW_BYTES + OBJECT_BYTES * coded

    def shrink(self, bytes_max: int) -> None:
        """Lets go of rows that are on disk as they are here, until the rest fits."""
        assert self.kept.is_durable, f"store {self.name!r} is nowhere but in memory"
        excess = (self.object_bytes - bytes_max) // self._row_bytes
        clean = (key for key in self._rows if key not in self._unlogged)
        for key in list(islice(clean, max(0, excess))):
            del self._rows[key]

    def _measure(self, keys: Sequence[bytes], values: Iterable[bytes | None]) -> None:
        self._coded_rows += len(keys)
        self._coded_bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))

    def view(self) -> Any:
        """The store as users look into it."""
        if self._view is None:
            raise TopologyError(f"store {self.name!r} has no rows for users to look at")
        return self._view(self)
