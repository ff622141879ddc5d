"""Rows in a dict.                                                                        [P]

Keys are sorted when somebody asks for an order, and again only after new ones came.

Owns   the rows of one store for as long as its task lives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from kafkalite.streams.local.state.backend import NO_METADATA, Range

ROW_BYTES = 150  # about what a dict and two objects take on top of the bytes
SAMPLED_ROWS = 100


class MemoryBackend:
    """A backend that is gone with its process."""

    is_durable = False

    def __str__(self) -> str:
        return "memory"

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._metadata: dict[str, bytes] = {}
        self._sorted: list[bytes] | None = None  # every key, and perhaps some that are gone

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not self._rows

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        return list(map(self._rows.get, keys))

    def put_many(
        self,
        rows: Mapping[bytes, bytes | None],
        metadata: Mapping[str, bytes] = NO_METADATA,
        cleared: Sequence[Range] = (),
    ) -> None:
        """Deletes the rows in `cleared`, then puts `rows`; a value of None deletes the row."""
        for start, end in cleared:
            self.delete_range(start, end)
        count = len(self._rows)
        if not count:
            self._rows = dict(rows)  # type: ignore[arg-type]  # what is None goes below
        else:
            self._rows.update(rows)  # type: ignore[arg-type]
        if len(self._rows) > count:
            self._sorted = None
        if not all(rows.values()):
            for key, value in rows.items():
                if value is None:
                    self._rows.pop(key, None)
        self._metadata |= metadata

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < end, ascending."""
        rows = self._rows
        for key in self._keys(start, end):
            if key in rows:
                yield key, rows[key]

    def delete_range(self, start: bytes = b"", end: bytes | None = None) -> None:
        """Deletes the rows with start <= key < end."""
        for key in self._keys(start, end):
            self._rows.pop(key, None)

    def prefixes(self, length: int) -> list[bytes]:
        """The different first `length` bytes of the keys, ascending."""
        return sorted({key[:length] for key in self._rows})

    def metadata(self, name: str) -> bytes | None:
        """An entry of the metadata."""
        return self._metadata.get(name)

    def clear(self) -> None:
        """Deletes all rows and all metadata."""
        self._rows.clear()
        self._metadata.clear()
        self._sorted = None

    def approximate_bytes(self) -> int:
        """The number of rows times the size of the first ones."""
        sample = list(zip(self._rows.items(), range(SAMPLED_ROWS), strict=False))
        if not sample:
            return 0
        size = sum(len(key) + len(value) for (key, value), _ in sample) // len(sample)
        return len(self._rows) * (size + ROW_BYTES)

    def close(self) -> None:
        """Lets go of the rows."""
        self.clear()

    def _keys(self, start: bytes, end: bytes | None) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._rows)
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
