"""Where a partition's log lies: its storage, its directory, its settings.                      [D]

Owns   nothing; every part of one log holds the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.index import IndexCache
from kafkalite.core.log.port import Storage
from kafkalite.core.log.segment import Segment
from kafkalite.core.log.uncached import cached_only
from kafkalite.core.types import Now, TopicPartition

Report = Callable[[str], None]  # tells the operator, in one line


@dataclass(slots=True)
class Place:
    """A log's directory, and the values that all its files share."""

    storage: Storage
    directory: str
    partition: TopicPartition
    cache: IndexCache
    config: LogConfig
    opened: Now
    report: Report
    was_cleaned: bool = False  # compaction has left gaps between its offsets, whatever it is now

    def segment(self, base_offset: int, sizes: dict[str, int] | None = None) -> Segment:
        """The segment of that base offset; its files need not be there."""
        return Segment(
            self.storage, self.directory, base_offset, self.cache, self.opened.wall_ms, sizes=sizes,
            mend=self.mend,
        )  # fmt: skip

    def mend(self, segment: Segment) -> None:
        """Makes the indexes of a segment anew from its log, which they do not fit."""
        self.report(f"{segment.log.path}: an index does not fit the log, and is made anew from it")
        with cached_only(False):  # it is read whole, or stays as it is
            segment.rebuild_indexes(self.config.index_interval_bytes)

    def path(self, name: str) -> str:
        """A file of this log."""
        return f"{self.directory}/{name}"
