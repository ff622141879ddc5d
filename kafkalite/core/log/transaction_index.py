"""The aborted transactions of a segment, for readers of committed records.                [D]

    .txnindex    version int16 0 | producer_id int64 | first_offset int64 | last_offset int64
                 | last_stable_offset int64

An entry lies with the segment that holds the marker; `last_stable_offset` is where readers stopped
once the marker was replicated, so that a search knows when no later entry can matter.

Markers ascend, and so do the entries' offsets: a search reads a few entries to find its place, and
from there on only what its caller takes.

Owns   in memory only what the disk refused: the system caches pages that are read often.
Fails  with StorageError on a file that is no index; the caller rebuilds it from the log.
Source KIP-98; apache/kafka TransactionIndex.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Final

from kafkalite.core.log.port import File
from kafkalite.core.log.values import AbortedTransaction
from kafkalite.errors import StorageError

_VERSION: Final = 0
_ENTRY: Final = Struct(">hqqqq")
_RUN_ENTRIES: Final = 128  # read at once


class TransactionIndex:
    """The aborted transactions whose markers lie in one segment."""

    __slots__ = ("_refused", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self._refused: list[AbortedTransaction] = []

    def append(self, aborted: AbortedTransaction) -> None:
        """Adds a transaction; markers come in the order of their offsets.

        OSError: it is not on the disk. Readers find it all the same, as its marker is in the log.
        """
        try:
            self.file.append(_ENTRY.pack(_VERSION, *aborted))
        except OSError:
            self._refused.append(aborted)
            raise

    @property
    def is_empty(self) -> bool:
        """Whether no transaction was aborted here."""
        return not self.file.size_bytes and not self._refused

    def since(self, offset: int) -> Iterator[AbortedTransaction]:
        """The transactions whose marker lies at `offset` or beyond, in the order of the markers."""
        number, count = self._before(offset), self._count()
        while number < count:
            run = self._read(number, min(_RUN_ENTRIES, count - number))
            number += len(run)
            yield from run
        yield from [each for each in self._refused if each.last_offset >= offset]

    def truncate(self, offset: int) -> None:
        """Drops the transactions whose marker lies at `offset` or beyond."""
        if self.file.size_bytes:
            self.file.truncate(self._before(offset) * _ENTRY.size)
        self._refused = [each for each in self._refused if each.last_offset < offset]

    def _before(self, offset: int) -> int:
        """How many markers lie before `offset`."""
        every = range(self._count())
        return bisect_left(every, offset, key=lambda number: self._read(number, 1)[0].last_offset)

    def _count(self) -> int:
        count, rest = divmod(self.file.size_bytes, _ENTRY.size)
        if rest and not self._refused:  # of which a part may be there
            size = self.file.size_bytes
            raise StorageError(f"{self.file.path}: {size} bytes, not of {_ENTRY.size} each")
        return count

    def _read(self, number: int, count: int) -> list[AbortedTransaction]:
        data = self.file.read(number * _ENTRY.size, count * _ENTRY.size)
        if len(data) != count * _ENTRY.size:
            raise StorageError(f"{self.file.path}: it is shorter than it was")
        found = list(_ENTRY.iter_unpack(data))
        for version, *_ in found:
            if version != _VERSION:
                raise StorageError(f"{self.file.path}: entry of version {version}")
        return [AbortedTransaction(*rest) for _, *rest in found]

    def clear(self) -> None:
        """Drops all entries."""
        if self.file.size_bytes:
            self.file.truncate(0)
        self._refused.clear()
