"""A log's producer snapshots, and the batches after them: producers as they were.          [D]

    00000000000000001200.snapshot    the producers below offset 1200  (producer_state.py)

One is written when a segment is closed, under the next one's base offset, and when the log is
closed. To know the producers again, the last good snapshot is read and the log after it.

Owns   the list of snapshots.
Never  waits for the disk: a snapshot torn by a crash fails its CRC, and the one before it serves.
Source apache/kafka ProducerStateManager, LogLoader, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafkalite.core.log.place import Place
from kafkalite.core.log.producer_state import ProducerState
from kafkalite.core.log.segment import SNAPSHOT_SUFFIX, Segment, offset_name
from kafkalite.core.log.values import AbortedTransaction
from kafkalite.core.protocol.records import BatchHeader
from kafkalite.errors import StorageError


class Snapshots:
    """The snapshot files of one log; `offsets` ascend."""

    __slots__ = ("_place", "offsets")

    def __init__(self, place: Place, offsets: list[int]) -> None:
        self._place = place
        self.offsets = offsets

    def _path(self, offset: int) -> str:
        return self._place.path(offset_name(offset) + SNAPSHOT_SUFFIX)

    def write(self, producers: ProducerState, offset: int) -> None:
        """Writes the state below `offset`, unless that snapshot exists."""
        if offset in self.offsets[-1:]:
            return
        file = self._place.storage.open(self._path(offset))
        if file.size_bytes:
            file.truncate(0)
        file.append(producers.to_snapshot())
        file.close()
        self.offsets.append(offset)

    def drop(self, is_stale: Callable[[int], bool]) -> None:
        """Removes those whose offset `is_stale`."""
        for offset in list(filter(is_stale, self.offsets)):
            self._place.storage.delete(self._path(offset))
            self.offsets.remove(offset)

    def keep_needed(self, segments: Sequence[Segment]) -> None:
        """Removes the snapshots within a segment, except the last of all."""
        needed = {segment.base_offset for segment in segments} | set(self.offsets[-1:])
        self.drop(lambda offset: offset not in needed)

    def reload(
        self,
        producers: ProducerState,
        segments: Sequence[Segment],
        log_start_offset: int,
        end_offset: int,
    ) -> None:
        """Makes `producers` what they were when the log ended at `end_offset`.

        Snapshots that cannot be right are removed.
        """
        offset = self._load_last(producers, end_offset)
        offset = log_start_offset if offset is None else offset
        for segment in segments if offset < end_offset else ():
            for position, header in segment.headers(segment.position_of(offset)):
                if header.base_offset >= end_offset:
                    return
                replay(producers, segment, position, header)

    def _load_last(self, producers: ProducerState, end_offset: int) -> int | None:
        """Reads the last good snapshot up to `end_offset`: its offset, None without one."""
        producers.clear()
        for offset in [offset for offset in reversed(self.offsets) if offset <= end_offset]:
            path = self._path(offset)
            try:
                producers.load_snapshot(self._place.storage.read_small(path) or b"", path)
            except StorageError:
                self.drop(offset.__eq__)
            else:
                return offset
        return None


def replay(
    producers: ProducerState, segment: Segment, position: int, header: BatchHeader
) -> AbortedTransaction | None:
    """Applies a batch of the log to `producers`. Returns the transaction that it aborted."""
    if header.producer_id < 0:
        return None
    data = segment.log.read(position, header.size_bytes) if header.is_control else b""
    return producers.replay(header, header.base_offset, header.max_timestamp, data)
