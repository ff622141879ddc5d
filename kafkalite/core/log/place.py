"""Where a partition's log lies: its storage, directory, settings, and what all its files share. [D]

Owns   nothing; every part of one log holds the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.index import IndexCache
from kafkalite.core.log.port import Storage
from kafkalite.core.log.segment import Segment
from kafkalite.core.types import TopicPartition


@dataclass(slots=True)
class Place:
    """Where a log lies and what all its files share."""

    storage: Storage
    directory: str
    partition: TopicPartition
    cache: IndexCache
    config: LogConfig
    now_ms: int
    was_cleaned: bool = False  # compaction has left gaps between its offsets, whatever it is now

    def segment(self, base_offset: int, sizes: dict[str, int] | None = None) -> Segment:
        """The segment of that base offset; its files need not be there."""
        return Segment(
            self.storage, self.directory, base_offset, self.cache, self.now_ms, sizes=sizes
        )

    def path(self, name: str) -> str:
        """A file of this log."""
        return f"{self.directory}/{name}"
