"""Rows in a table of this process.                                                       [P]

Keys are sorted when somebody asks for an order, and again only after new ones came.

Owns   the rows of one store for as long as its task lives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from kafkalite.streams.local.state.backend import NO_METADATA, Range
from kafkalite.streams.local.state.row_table import RowTable

READ_ROWS = 1_000  # at a time, where many are read


class MemoryBackend:
    """A backend that is gone with its process."""

    is_durable = False

    def __str__(self) -> str:
        return "memory"

    def __init__(self) -> None:
        self._rows = RowTable()
        self._metadata: dict[str, bytes] = {}
        self._sorted: list[bytes] | None = None  # every key, and perhaps some that are gone

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not len(self._rows)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        return self._rows.get(keys)

    def put_many(
        self,
        rows: Mapping[bytes, bytes | None],
        metadata: Mapping[str, bytes] = NO_METADATA,
        cleared: Sequence[Range] = (),
    ) -> None:
        """Deletes the rows in `cleared`, then puts `rows`; a value of None deletes the row."""
        for start, end in cleared:
            self.delete_range(start, end)
        if not all(value is None for value in rows.values()):
            self._sorted = None
        self._rows.update(list(rows), list(rows.values()))
        self._metadata |= metadata

    def loading(self) -> RowTable:
        """The rows themselves: what a restore reads is there at once."""
        self._sorted = None
        return self._rows

    def load(self, rows: RowTable, metadata: Mapping[str, bytes]) -> Iterator[None]:
        """The rows are here already."""
        self._metadata |= metadata
        yield from ()

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < end, ascending."""
        keys = self._keys(start, end)
        for first in range(0, len(keys), READ_ROWS):
            some = keys[first : first + READ_ROWS]
            for key, row in zip(some, self._rows.get(some), strict=True):
                if row is not None:
                    yield key, row

    def delete_range(self, start: bytes = b"", end: bytes | None = None) -> None:
        """Deletes the rows with start <= key < end."""
        keys = self._keys(start, end)
        self._rows.update(keys, [None] * len(keys))

    def prefixes(self, length: int) -> list[bytes]:
        """The different first `length` bytes of the keys, ascending."""
        return sorted(self._rows.prefixes(length))

    def metadata(self, name: str) -> bytes | None:
        """An entry of the metadata."""
        return self._metadata.get(name)

    def clear(self) -> None:
        """Deletes all rows and all metadata."""
        self._rows.clear()
        self._metadata.clear()
        self._sorted = None

    def approximate_bytes(self) -> int:
        """The memory of the table."""
        return self._rows.bytes_held

    def close(self) -> None:
        """Lets go of the rows."""
        self.clear()

    def _keys(self, start: bytes, end: bytes | None) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._rows.keys())
        first = bisect_left(self._sorted, start)
        last = len(self._sorted) if end is None else bisect_left(self._sorted, end)
        return self._sorted[first:last]


class InMemory:
    """A place that keeps nothing."""

    def backend(self, store: str) -> MemoryBackend:
        """A backend without rows."""
        return MemoryBackend()

    def note(self, now_ms: int) -> None:
        """Nobody can look."""

    def close(self) -> None:
        """Nothing is to be let go."""
