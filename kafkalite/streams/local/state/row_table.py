"""Rows as bytes in one table: native, or a dict where that is not built.                      [P]

What a restore reads goes here record by record, the later of a key over the earlier. The native
table makes no object of a record, and takes some forty bytes a row besides its key and value; a
dict takes four times as much. Its twin here gives the same results.

Owns   the choice, made once at import; rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from kafkalite.core.types import Columns

INTERFACE: Final = 2  # what the native module and this one agree on
ROW_BYTES: Final = 150  # about what a dict and two objects take on top of the bytes

__all__ = ["INTERFACE", "NATIVE", "PureRowTable", "RowTable", "Rows", "load"]

Rows = tuple[list[bytes], list[bytes | None]]  # keys, and the row of each


class PureRowTable:
    """Rows by key. With `keeps_deletions` a row that is deleted stays as a deletion."""

    def __init__(self, *, keeps_deletions: bool = False) -> None:
        self._keeps = keeps_deletions
        self._rows: dict[bytes, bytes | None] = {}
        self._deletions = self._row_bytes = 0
        self.version = 0  # another one after each change

    def __len__(self) -> int:
        """How many rows there are, with the deletions."""
        return len(self._rows)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._rows) - self._deletions

    @property
    def bytes_held(self) -> int:
        """About how much memory all of it takes."""
        return len(self._rows) * ROW_BYTES + self._row_bytes

    def clear(self) -> None:
        """Deletes everything."""
        self._rows.clear()
        self._deletions = self._row_bytes = 0
        self.version += 1

    def update(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Puts rows, the later of one key over the earlier; None deletes."""
        known = self._rows
        for key, row in zip(keys, rows, strict=True):
            self._forget(key)
            if row is not None or self._keeps:
                known[key] = row
                self._deletions += row is None
                self._row_bytes += len(key) + len(row or b"")
        self.version += 1

    def _forget(self, key: bytes) -> None:
        if key in self._rows:
            row = self._rows.pop(key)
            self._deletions -= row is None
            self._row_bytes -= len(key) + len(row or b"")

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The row of each key, None where there is none."""
        return list(map(self._rows.get, keys))

    def keys(self) -> list[bytes]:
        """The keys of rows, in any order."""
        return [key for key, row in self._rows.items() if row is not None]

    def prefixes(self, length: int) -> set[bytes]:
        """The different first `length` bytes of the keys of rows."""
        return {key[:length] for key in self.keys()}

    def in_order(self, prefix: bytes, count: int) -> Iterator[Rows]:
        """The rows and deletions by their keys, ascending, so many at a time: keys behind `prefix`,
        and rows. RuntimeError from it where the table has changed.

        Many rows are sorted step by step by the native table: at first no rows come.
        """
        version, known = self.version, self._rows
        ordered = iter(sorted(known))
        while keys := list(islice(ordered, max(count, 1))):
            if version != self.version:
                raise RuntimeError("the table has changed")
            yield [prefix + key for key in keys], [known[key] for key in keys]


NATIVE = False
if TYPE_CHECKING:
    from kafkalite.streams.local.state._row_table import RowTable
else:
    RowTable = PureRowTable
    try:
        from kafkalite.streams.local.state import _row_table

        if _row_table.INTERFACE == INTERFACE:
            NATIVE, RowTable = True, _row_table.RowTable
    except ImportError:
        pass


def load(rows: RowTable, columns: Columns, note_key: bytes | None) -> tuple[int, int] | None:
    """Puts records of a changelog as they were fetched, without an object for each.

    Gives the newest timestamp, -1 where no record is a row, and the index of the last note, -1.
    None, and nothing is put: the records are no spans, or one is neither row nor note.
    """
    if not NATIVE or columns.headers is not None:
        return None
    from kafkalite.core.protocol.record_codec import Int64s, Spans

    keys, values, stamps = columns.keys, columns.values, columns.timestamps
    if isinstance(keys, Spans) and isinstance(values, Spans) and isinstance(stamps, Int64s):
        return rows.load(keys, values, stamps, note_key)
    return None
