"""What a store keeps its rows in: ordered bytes, and metadata that is written with them.     [P]

    rows      key -> value, both bytes, in the order of the keys' bytes
    metadata  a few named entries of bytes, apart from the rows

Owns   the port alone: `memory` and `rocks` keep its promises, and one suite tests both.
Never  knows what keys and values are made of: that is `forms`.
Fails  with StateDamaged where a row that was written cannot be read any more.
Source RocksDB's WriteBatch; Kafka Streams' KeyValueStore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from kafkalite.errors import ProcessingError
from kafkalite.streams.local.state.row_table import RowTable

NO_METADATA: Final[Mapping[str, bytes]] = {}
Range = tuple[bytes, bytes | None]  # keys from the first up to, not with, the second; None: no end


class StateDamaged(ProcessingError):
    """A row on disk cannot be read. The next start rebuilds the store from its changelog."""


class Backend(Protocol):
    """Rows of one store."""

    @property
    def is_durable(self) -> bool:
        """Whether rows are still there after a restart."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def put_many(
        self,
        rows: Mapping[bytes, bytes | None],
        metadata: Mapping[str, bytes] = NO_METADATA,
        cleared: Sequence[Range] = (),
    ) -> None:
        """Deletes the rows in `cleared`, then puts `rows`; a value of None deletes the row.

        After a crash the metadata is never newer than the rows: either all of a call is there, or
        the metadata are those of an earlier call.
        """

    def loading(self) -> RowTable:
        """A table for the rows of a restore, which go to the backend by `load`."""

    def load(self, rows: RowTable, metadata: Mapping[str, bytes]) -> Iterator[None]:
        """Puts what the table has, deletions too, then the metadata: a bit at each step. Nothing
        else may be called meanwhile, and the table must not change."""

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < end, ascending. Nothing may be put meanwhile."""

    def delete_range(self, start: bytes = b"", end: bytes | None = None) -> None:
        """Deletes the rows with start <= key < end."""

    def prefixes(self, length: int) -> list[bytes]:
        """The different first `length` bytes of the keys, ascending; keys are not shorter."""

    def metadata(self, name: str) -> bytes | None:
        """An entry of the metadata."""

    def clear(self) -> None:
        """Deletes all rows and all metadata."""

    def approximate_bytes(self) -> int:
        """About how many bytes the rows take, in memory or on disk."""

    def close(self) -> None:
        """Lets go of files. Nothing may be called afterwards but `close`."""


def after(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with `prefix`; None where no key is behind them."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class Place(Protocol):
    """Where the stores of one task are kept."""

    def backend(self, store: str) -> Backend:
        """The backend of a store, by its name."""

    def note(self, now_ms: int) -> None:
        """Writes down how far each store follows its changelog, now and then, for those who look
        at the place without opening it."""

    def close(self) -> None:
        """Closes every backend, and lets the place go."""
