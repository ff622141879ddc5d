"""The aborted transactions of a segment, for readers of committed records.                [D]

    .txnindex    version int16 0 | producer_id int64 | first_offset int64 | last_offset int64
                 | last_stable_offset int64

An entry lies with the segment that holds the marker; `last_stable_offset` is where readers stopped
once the marker was replicated, so that a search knows when no later entry can matter.

Owns   nothing in memory: aborts are few, and the file is read on demand.
Fails  with StorageError on a file that is no index; it is then made anew from the log.
Source KIP-98; apache/kafka TransactionIndex.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kafkalite.core.log.port import File
from kafkalite.core.log.values import AbortedTransaction
from kafkalite.errors import StorageError

_VERSION: Final = 0
_ENTRY: Final = Struct(">hqqqq")


class TransactionIndex:
    """The aborted transactions whose markers lie in one segment."""

    __slots__ = ("file",)

    def __init__(self, file: File) -> None:
        self.file = file

    def append(self, aborted: AbortedTransaction) -> None:
        """Adds a transaction; markers come in the order of their offsets."""
        self.file.append(_ENTRY.pack(_VERSION, *aborted))

    def entries(self) -> list[AbortedTransaction]:
        """All entries, in the order of their markers."""
        if not self.file.size_bytes:
            return []
        data = self.file.read(0, self.file.size_bytes)
        if len(data) % _ENTRY.size:
            raise StorageError(f"{self.file.path}: {len(data)} bytes, not of {_ENTRY.size} each")
        found = [
            (version, AbortedTransaction(*rest)) for version, *rest in _ENTRY.iter_unpack(data)
        ]
        for version, _ in found:
            if version != _VERSION:
                raise StorageError(f"{self.file.path}: entry of version {version}")
        return [aborted for _, aborted in found]

    def truncate(self, offset: int) -> None:
        """Drops the transactions whose marker lies at `offset` or beyond."""
        if self.file.size_bytes:
            kept = sum(aborted.last_offset < offset for aborted in self.entries())
            self.file.truncate(kept * _ENTRY.size)

    def clear(self) -> None:
        """Drops all entries."""
        if self.file.size_bytes:
            self.file.truncate(0)
