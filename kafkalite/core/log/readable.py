"""What a partition's log answers to readers: batches, offsets by time, ends of epochs.         [D]

A read returns places in files (`FileRecords`), never bytes.

Owns   the segments, and where the log begins and ends.
Never  changes a file.
Fails  with ApiError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR for a file that does not read.
Source apache/kafka UnifiedLog, LocalLog.
"""

from __future__ import annotations

from typing import Final

from kafkalite.core.config.keys import LONG_MAX
from kafkalite.core.log.epochs import LeaderEpochs
from kafkalite.core.log.health import Health, refuse
from kafkalite.core.log.loading import Loaded
from kafkalite.core.log.place import Place
from kafkalite.core.log.segment import FileRecords
from kafkalite.core.log.segments import Segments
from kafkalite.core.log.values import AbortedTransaction, GoOn, TimestampAndOffset
from kafkalite.core.types import NO_EPOCH
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, StorageError


class ReadableLog:
    """The reader's side of a log."""

    __slots__ = (
        "_segments",
        "epochs",
        "health",
        "log_end_offset",
        "log_start_offset",
        "topic_partition",
    )

    def __init__(self, place: Place, loaded: Loaded) -> None:
        self.topic_partition: Final = place.partition
        self._segments = Segments(place, loaded.segments)
        self.epochs: Final[LeaderEpochs] = loaded.epochs
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.health: Final = Health(place.partition)

    def read(self, offset: int, bytes_max: int, before_offset: int) -> FileRecords | None:
        """Whole batches below `before_offset`, from the one that holds `offset`, `bytes_max` at
        most but always the first. None when there is none (yet); ApiError OFFSET_OUT_OF_RANGE.
        """
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: offset {offset}, there is "
                f"[{self.log_start_offset}, {end_offset})",
            )
        if self.health.failure is not None:
            self.health.check_read(offset)
            before_offset = min(before_offset, self.health.readable_end)
        if offset >= end_offset or offset >= before_offset:
            return None
        try:
            return self._segments.read(offset, bytes_max, before_offset, end_offset)
        except (OSError, CorruptBatchError) as error:
            refuse(StorageError(f"{self.topic_partition}: {error}"))

    def offset_for_timestamp(
        self, timestamp: int, first_offset: int = 0, batches_max: int = LONG_MAX
    ) -> TimestampAndOffset | GoOn | None:
        """The first record from `first_offset` on that is not older than `timestamp`; None when
        all are. After `batches_max` batches in vain: from which offset to go on.
        """
        first_offset = max(first_offset, self.log_start_offset)
        try:
            return self._segments.offset_for_timestamp(timestamp, first_offset, batches_max)
        except (OSError, CorruptBatchError) as error:
            refuse(StorageError(f"{self.topic_partition}: {error}"))

    def max_timestamp(self) -> int:
        """The largest timestamp of all batches, -1 without one."""
        try:
            return self._segments.max_timestamp()
        except OSError as error:
            refuse(StorageError(f"{self.topic_partition}: {error}"))

    def segments_written(self, now_ms: int) -> list[tuple[int, int]]:
        """Each segment's base offset and the time of its last write (epoch ms), newest first. The
        log's end counts as a segment if the newest one is not empty.
        """
        try:
            written = self._segments.written(self.log_start_offset)
        except OSError as error:
            refuse(StorageError(f"{self.topic_partition}: {error}"))
        has_records = self._segments.active.size_bytes > 0
        return [(self.log_end_offset, now_ms), *written] if has_records else written

    def aborted_transactions(self, offset: int, before_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [offset, before_offset), by their markers."""
        try:
            return self._segments.aborted_transactions(offset, before_offset)
        except (OSError, StorageError) as error:
            refuse(StorageError(f"{self.topic_partition}: {error}"))

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last record; -1 without one."""
        return self.epochs.latest

    def end_offset_for_epoch(
        self, leader_epoch: int, current_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """The largest epoch up to `leader_epoch` and where it ends; (-1, -1) when unknown."""
        return self.epochs.end_offset(leader_epoch, self.log_end_offset, current_epoch)
