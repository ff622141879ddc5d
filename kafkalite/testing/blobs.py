"""The state of a task on Spark, in memory.                                                   [P]

Owns   the blobs of one task, and their head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class MemoryBlobs:
    """Keeps what `kafkalite.spark.topology.state` asks of Spark's state."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self._head: bytes | None = None

    def head(self) -> bytes | None:
        """What was written last beside the blobs."""
        return self._head

    def read(self) -> Iterable[bytes]:
        """All blobs."""
        return list(self.blobs)

    def append(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Adds blobs, and writes the head."""
        self.blobs += blobs
        self._head = head

    def replace(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Puts blobs in the place of all others."""
        self.blobs, self._head = list(blobs), head

    def copied(self) -> MemoryBlobs:
        """The same, to go on alone, as after a checkpoint."""
        other = MemoryBlobs()
        other.blobs, other._head = list(self.blobs), self._head
        return other
