"""How rows stand in a backend: keys in an order that serves their store, values with stamps.  [P]

    store           key in the changelog      key in the backend
    table           key                       key
    window          key, start                start, key

A start is eight bytes, big-endian; no start is negative, so that the order of the bytes is that of
the windows. All rows of a window stand together: closing it deletes one range. The note of a
windowed store's operator stands in the changelog under NOTE_KEY, shorter than the key of any row.

    value in the backend    stamp (int64), 0, the changelog's value
                            stamp (int64), 1, length (uint32), msgpack of headers, the value

Owns   the forms; a change of them needs another `FORMAT`.
Fails  with SerdeError, with the record's index, for a record that is no row of such a store.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import add, itemgetter
from typing import Final, Protocol

import msgpack

from kafkalite.core.columns import negated
from kafkalite.core.types import Columns, Headers
from kafkalite.errors import SerdeError
from kafkalite.serde.windowed import NOTE_KEY as NOTE_KEY
from kafkalite.streams.local.state.backend import Range, after
from kafkalite.streams.local.state.row_table import RowTable, load

FORMAT: Final = 1
START: Final = struct.Struct(">q")
START_BYTES: Final = START.size
NO_WINDOW: Final = 0  # the start of the only bucket of a store without windows
HEAD: Final = struct.Struct(">qB")
STAMP: Final = struct.Struct(">qx")  # of a head
STAMP_BYTES: Final = 8
HEAD_OF: Final = itemgetter(slice(None, HEAD.size))
VALUE_OF: Final = itemgetter(slice(HEAD.size, None))  # of a row without headers
LENGTH: Final = struct.Struct(">I")


class KeyForm(Protocol):
    """How the keys of one kind of store are turned."""

    @property
    def note_key(self) -> bytes | None:
        """The key of the operator's note in the changelog; None where there is none."""

    def to_backend(self, record_keys: Sequence[bytes]) -> Sequence[bytes]:
        """The backend's keys of the changelog's."""

    def in_bucket(self, start: int, keys: Sequence[bytes]) -> Sequence[bytes]:
        """The backend's keys of rows of one bucket."""

    def bucket(self, start: int) -> Range:
        """The range of the backend's keys in which the rows of one bucket stand."""

    def without_start(self, backend_key: bytes) -> bytes:
        """The row's key alone."""

    def check(self, record_keys: Sequence[bytes | None]) -> None:
        """Whether each is the key of a row: SerdeError."""


class TableKeys:
    """Rows by key."""

    note_key = None

    def to_backend(self, record_keys: Sequence[bytes]) -> Sequence[bytes]:
        """They are the same."""
        return record_keys

    def in_bucket(self, start: int, keys: Sequence[bytes]) -> Sequence[bytes]:
        """They are the same; there is one bucket."""
        return keys

    def bucket(self, start: int) -> Range:
        """All rows."""
        return b"", None

    def without_start(self, backend_key: bytes) -> bytes:
        """It has none."""
        return backend_key

    def check(self, record_keys: Sequence[bytes | None]) -> None:
        """None is no key."""
        if not all(record_keys) and None in record_keys:  # an empty key is one
            raise SerdeError("ValueError: a row without a key", record_keys.index(None))


class WindowKeys:
    """Rows by the start of their window, then by key."""

    note_key = NOTE_KEY

    def to_backend(self, record_keys: Sequence[bytes]) -> Sequence[bytes]:
        """The start comes first."""
        return [key[-START_BYTES:] + key[:-START_BYTES] for key in record_keys]

    def in_bucket(self, start: int, keys: Sequence[bytes]) -> Sequence[bytes]:
        """The start comes first."""
        prefix = START.pack(start)
        return [prefix + key for key in keys]

    def bucket(self, start: int) -> Range:
        """All keys that begin with the start."""
        prefix = START.pack(start)
        return prefix, after(prefix)

    def without_start(self, backend_key: bytes) -> bytes:
        """The bytes behind the start."""
        return backend_key[START_BYTES:]

    def check(self, record_keys: Sequence[bytes | None]) -> None:
        """A key has a start at its end, which is not negative; or it is NOTE_KEY."""
        for index, key in enumerate(record_keys):
            if key is None:
                raise SerdeError("ValueError: a row without a key", index)
            if (len(key) < START_BYTES or key[-START_BYTES] > 127) and key != NOTE_KEY:
                raise SerdeError(f"ValueError: no window's start in the key {key!r:.80}", index)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows out of a backend, side by side. `headers` is None where no row has any."""

    keys: Sequence[bytes]  # without starts
    values: Sequence[bytes | None]
    stamps: Sequence[int]
    headers: Sequence[Headers] | None


NOTHING_FOUND: Final = Found((), (), (), None)


def write_rows(columns: Columns) -> list[bytes | None]:
    """The backend's values of a changelog's records; None deletes."""
    values = columns.values
    if columns.headers is not None:
        rows = zip(values, columns.timestamps, columns.headers, strict=True)
        return [None if value is None else _write(value, t, more) for value, t, more in rows]
    heads = map(HEAD.pack, columns.timestamps, repeat(0))
    if all(values) or None not in values:
        return list(map(add, heads, values))
    return [None if v is None else head + v for head, v in zip(heads, values, strict=True)]


def _write(value: bytes, stamp: int, headers: Headers) -> bytes:
    if not headers:
        return HEAD.pack(stamp, 0) + value
    packed: bytes = msgpack.packb(headers)
    return HEAD.pack(stamp, 1) + LENGTH.pack(len(packed)) + packed + value


def read_rows(keys: Sequence[bytes], rows: Sequence[bytes]) -> Found:
    """The changelog's values of the backend's."""
    heads = b"".join(map(HEAD_OF, rows))
    stamps = list(chain.from_iterable(STAMP.iter_unpack(heads)))
    flags = heads[STAMP_BYTES :: HEAD.size]
    if not any(flags):
        return Found(keys, list(map(VALUE_OF, rows)), stamps, None)
    values: list[bytes] = []
    headers: list[Headers] = []
    for row, has in zip(rows, flags, strict=True):
        if not has:
            values.append(row[HEAD.size :])
            headers.append(())
            continue
        (length,) = LENGTH.unpack_from(row, HEAD.size)
        start = HEAD.size + LENGTH.size
        packed = msgpack.unpackb(row[start : start + length])
        headers.append(tuple((name, content) for name, content in packed))
        values.append(row[start + length :])
    return Found(keys, values, stamps, headers)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What records of a changelog tell besides rows."""

    newest: int  # timestamp of a row; -1: there was none
    note: bytes | None = None  # the last one


def load_records(table: RowTable, form: KeyForm, columns: Columns) -> Loaded:
    """Puts records of a changelog into a table; the later of one key replaces the earlier.

    Records that were fetched as spans become no objects; others go through lists.
    """
    if (found := load(table, columns, form.note_key)) is not None:
        newest, note_at = found
        return Loaded(newest, None if note_at < 0 else columns.values[note_at])
    form.check(columns.keys)
    note: bytes | None = None
    if form.note_key is not None and form.note_key in columns.keys:
        is_note = [key == form.note_key for key in columns.keys]
        note = columns.where(is_note).values[-1]
        columns = columns.where(negated(is_note))
    table.update(form.to_backend(columns.keys), write_rows(columns))
    return Loaded(max(columns.timestamps, default=-1), note)
