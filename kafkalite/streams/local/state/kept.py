"""The rows of a store as bytes: what is not, or not only, there as objects.               [P]

    load         what a restore reads of the changelog
    take         rows that are wanted as objects
    write        what the changelog hears in a commit that begins
    checkpoint   that commit went through: the backend gets it, with the changelog's offset

In memory a row is here or among the objects, so `take` removes it, and `write` has nothing to do.
On disk a row stays here, and is as the last commit that went through left it: never newer. What
a commit wrote waits in `_pending` until `checkpoint`, and so do the windows that it closed; those
that close while it is under way wait for the next one.

Owns   the backend, and the entries that it keeps beside the rows: ENTRIES.
Fails  with SerdeError for a record that is no row, with StateDamaged where the backend does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import compress
from typing import Final

from kafkalite.core.types import Columns
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import (
    FORMAT,
    NOTHING_FOUND,
    START,
    START_BYTES,
    Found,
    KeyForm,
    TableKeys,
    WindowKeys,
    load_records,
    read_rows,
    write_rows,
)
from kafkalite.streams.local.state.row_table import RowTable

ENTRIES: Final = {
    "format": "of rows and keys, see forms.py",
    "identity": "which changelog the rows are from",
    "offset": "of the changelog: all records below it are in the rows",
    "newest": "the newest timestamp that the changelog told of",
    "written": "the wall clock at the last checkpoint, in epoch ms",
    "note": "of the store's operator",
}
LOAD_BYTES_MAX: Final = 32 << 20  # of a restore, held back so that rows are written once, sorted
OVER: Final = object()


class Kept:
    """Rows as bytes, in a backend."""

    def __init__(self, backend: Backend, *, has_windows: bool) -> None:
        self._backend = backend
        self._form: KeyForm = WindowKeys() if has_windows else TableKeys()
        self._has_windows = has_windows
        self._loaded: RowTable | None = None
        self._writing: Iterator[None] | None = None  # of what was loaded before
        self._pending: dict[bytes, bytes | None] = {}
        self._dropped: set[int] = set()  # windows of which the backend still has rows
        self._leaving: set[int] = set()  # the same, dropped before the commit that is under way
        self._is_under_way = False
        self._pending_newest = self.newest = self._number("newest", -1)
        self._offset = self._number("offset", -1)
        self._note = backend.metadata("note")

    def __str__(self) -> str:
        return str(self._backend)

    @property
    def is_durable(self) -> bool:
        """Whether rows survive the process."""
        return self._backend.is_durable

    @property
    def offset(self) -> int | None:
        """Up to where the rows follow the changelog; None: nothing of it is here."""
        return None if self._offset < 0 else self._offset

    @property
    def written_ms(self) -> int:
        """The wall clock of the last checkpoint."""
        return self._number("written", 0)

    @property
    def is_of_this_format(self) -> bool:
        """Whether the rows have the form that this version writes, or there are none yet."""
        return self._backend.metadata("format") in (None, b"%d" % FORMAT)

    @property
    def identity(self) -> bytes | None:
        """The argument of `identify`; None before."""
        return self._backend.metadata("identity")

    def identify(self, identity: bytes) -> None:
        """Notes which changelog the rows are from."""
        self._backend.put_many({}, {"identity": identity, "format": b"%d" % FORMAT})

    @property
    def note(self) -> bytes | None:
        """The operator's note."""
        return self._note

    # Restoring

    def load(self, columns: Columns) -> None:
        """Takes records of the changelog over; the later of one key replaces the earlier."""
        told = load_records(self._loading(), self._form, columns)
        self._note = self._note if told.note is None else told.note
        self.newest = self._pending_newest = max(self.newest, told.newest)

    def loaded_to(self, offset: int, now_ms: int, *, is_end: bool = False) -> None:
        """All records below `offset` have been loaded; the end of the restore writes them.

        Rows are written by `write_on`, which must have said that it is done.
        """
        assert self._writing is None, f"{self}: rows are on their way already"
        self._offset = offset
        is_full = self.is_durable and self._loading().bytes_held >= LOAD_BYTES_MAX
        if is_end or is_full:
            self._begin_to_write(self._entries(now_ms))

    @property
    def is_writing(self) -> bool:
        """Whether `write_on` has something to do."""
        return self._writing is not None

    def write_on(self) -> bool:
        """Writes some of what was loaded; whether there is more."""
        if self._writing is not None and next(self._writing, OVER) is OVER:
            self._writing = None
        return self._writing is not None

    def settle(self) -> None:
        """Writes what a restore has left in memory."""
        while self.write_on():
            pass
        if self._loaded is not None:
            self._begin_to_write({})
            while self.write_on():
                pass

    def _loading(self) -> RowTable:
        """What rows are loaded into."""
        if self._loaded is None:
            self._loaded = self._backend.loading()
        return self._loaded

    def _begin_to_write(self, entries: dict[str, bytes]) -> None:
        self._writing = self._backend.load(self._loading(), entries)
        self._loaded = None

    def clear(self) -> None:
        """Throws everything away."""
        self._loaded = self._writing = None
        self._pending, self._dropped, self._leaving = {}, set(), set()
        self._is_under_way = False
        self._offset = self.newest = self._pending_newest = -1
        self._note = None
        self._backend.clear()

    # As objects

    def starts(self) -> list[int]:
        """The windows that have rows, ascending."""
        assert self._has_windows
        starts = (START.unpack(prefix)[0] for prefix in self._backend.prefixes(START_BYTES))
        return [start for start in starts if start not in self._dropped | self._leaving]

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return self._backend.is_empty

    def take(self, start: int, keys: Sequence[bytes]) -> Found:
        """The rows of `keys` that there are."""
        places = self._form.in_bucket(start, keys)
        rows = self._backend.get_many(places)
        if self._pending:  # a row that was deleted is nowhere else
            pending = self._pending
            rows = list(map(pending.get, places, rows))
        found = list(filter(None, rows))
        if not found:
            return NOTHING_FOUND
        if not self.is_durable:
            self._backend.put_many(dict.fromkeys(compress(places, rows)))
        return read_rows(list(compress(keys, rows)), found)

    def keys(self, start: int) -> list[bytes]:
        """The keys of the rows in a bucket."""
        without_start = self._form.without_start
        stored = (key for key, _ in self._backend.range(*self._form.bucket(start)))
        return [without_start(key) for key in stored if self._pending.get(key, b"") is not None]

    def keys_from(self, start: int, low: bytes) -> Iterator[bytes]:
        """The keys of the rows in a bucket from `low` on, ascending, as they are wanted; nothing
        may change before they are read."""
        (first,), (_, end) = self._form.in_bucket(start, [low]), self._form.bucket(start)
        pending = self._pending
        new = sorted(key for key in pending if key >= first and (end is None or key < end))
        stored = (key for key, _ in self._backend.range(first, end) if key not in pending)
        for key in merge(stored, new):
            if pending.get(key, b"") is not None:
                yield self._form.without_start(key)

    def keys_between(self, low: bytes, high: bytes | None) -> list[bytes]:
        """The keys of rows with low <= key < high, in order; of a store without windows."""
        assert not self._has_windows
        found = {key for key, _ in self._backend.range(low, high)}
        for key, row in self._pending.items():
            if low <= key and (high is None or key < high):
                (found.discard if row is None else found.add)(key)
        return sorted(found)

    def drop(self, start: int) -> None:
        """Deletes the rows of a window."""
        window = self._form.bucket(start)
        if not self.is_durable:
            self._backend.delete_range(*window)
            return
        self._dropped.add(start)
        if self._is_under_way:  # its rows are in the changelog before they leave it
            return
        low, high = window
        self._pending = {
            key: row
            for key, row in self._pending.items()
            if key < low or (high is not None and key >= high)
        }

    # Commits

    def begin(self) -> None:
        """A commit begins. What changes from now on belongs to the next one."""
        self._is_under_way = self.is_durable
        self._leaving |= self._dropped
        self._dropped = set()

    def write(self, columns: Columns, note: bytes | None) -> None:
        """Takes the changelog's records of a commit; rows of dropped windows are gone already."""
        if not self.is_durable:
            return
        self._note = self._note if note is None else note
        places = self._form.to_backend(columns.keys)
        self._pending.update(zip(places, write_rows(columns), strict=True))
        self._pending_newest = max(self._pending_newest, max(columns.timestamps, default=-1))

    def checkpoint(self, offset: int | None, now_ms: int) -> None:
        """The commit went through; `offset` is behind what it wrote to the changelog.

        Without `offset` the rows are written all the same: a restart then reads records again
        that are in them already, with the same result.
        """
        if not self.is_durable:
            return
        self.newest = self._pending_newest
        self._offset = self._offset if offset is None else offset
        pending, self._pending = self._pending, {}
        cleared = [self._form.bucket(start) for start in sorted(self._leaving)]
        self._leaving.clear()
        self._is_under_way = False
        if pending or cleared or offset is not None:
            self._backend.put_many(pending, self._entries(now_ms), cleared)

    def _entries(self, now_ms: int) -> dict[str, bytes]:
        entries = {"newest": self.newest, "offset": self._offset, "written": now_ms}
        packed = {name: b"%d" % number for name, number in entries.items()}
        return packed if self._note is None else packed | {"note": self._note}

    def _number(self, name: str, default: int) -> int:
        found = self._backend.metadata(name)
        return default if found is None else int(found)
