"""One cleaning of one log: two passes over its segments.                                  [D]

    [ clean      ][ dirty                 ][ not yet      ][ active ]
    0             first_dirty_offset       end_offset

    1  The first pass reads the dirty part and notes the latest offset of each key in the map. If
       the map fills up, the pass ends there, at `mapped_until`.
    2  The second pass reads the clean and the dirty part from the log's start and copies the
       records to keep into new segments. Small neighbours become one segment. A new segment is
       synced, then it replaces the old ones: its files are named .cleaned, then .swap, and
       finally as the log's own.

After a crash each group of segments is either old or new; the next opening of the log tidies up
(loading.py). The second pass may stop after any group: the log is then correct, and holds some
superseded records more.

`Cleaning.steps` runs on the broker's event loop, which owns the log. It yields the work on bytes,
on private files and on the disk; the caller does that work in any thread, then goes on.

Owns   the new segments until they are in place; after a failure it removes them.
Never  touches the active segment, or records above the last stable offset.
Fails  with CorruptBatchError or StorageError if the log cannot be cleaned, with OSError from the
       disk, with CleaningAborted if the log changed meanwhile or the broker stops.
Source apache/kafka Cleaner.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

from kafkalite.compaction.loops import OffsetMap
from kafkalite.compaction.offset_map import slots_for
from kafkalite.compaction.passes import Ahead, Filling, Mapping, Pace, Take
from kafkalite.compaction.retain import Cleaned, LastBatch, Transactions
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.port import Reader
from kafkalite.core.log.segment import Segment
from kafkalite.core.protocol.records import BATCH_HEADER_BYTES, read_header
from kafkalite.core.types import Now
from kafkalite.errors import CorruptBatchError, KafkaliteError, StorageError

GROUP_SEGMENTS_MAX: Final = 64  # their files are open, and renamed at once
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1  # what an index entry can hold

Work: TypeAlias = Callable[[], object]
Ended: TypeAlias = tuple[Segment, int]  # a segment and the offset where it ends


class CleaningAborted(KafkaliteError):
    """The log changed during the cleaning, or the broker stops. The log itself is sound."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The broker's settings that a cleaning reads."""

    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """The part of a log to clean: [first_dirty_offset, end_offset)."""

    first_dirty_offset: int
    end_offset: int  # base offset of the first segment that stays as it is


@dataclass(slots=True)
class CleaningStats:
    """The numbers of one cleaning."""

    mapped_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    keys: int = 0
    map_slots: int = 0
    segments_before: int = 0
    segments_after: int = 0


class Cleaning:
    """One cleaning of the part `dirty` of `log`. `secret` is 16 random bytes."""

    def __init__(
        self,
        log: PartitionLog,
        dirty: DirtyRange,
        settings: CleanerSettings,
        secret: bytes,
        now: Now,
        pace: Pace = lambda byte_count: None,
    ) -> None:
        self.stats: Final = CleaningStats()
        self.mapped_until = dirty.first_dirty_offset
        self._log = log
        self._dirty = dirty
        self._settings = settings
        self._now = now
        self._pace = pace
        keys_max = dirty.end_offset - dirty.first_dirty_offset
        slots = slots_for(keys_max, settings.load_factor, settings.dedupe_buffer_bytes)
        self._entries_max = int(slots * settings.load_factor)
        if not self._entries_max:
            raise StorageError(
                f"{log.topic_partition}: log.cleaner.dedupe.buffer.size "
                f"{settings.dedupe_buffer_bytes} holds no key at load {settings.load_factor}"
            )
        self._offsets = OffsetMap(slots, secret)
        self.stats.map_slots = slots

    def steps(self) -> Generator[Work, None, None]:
        """Cleans. The caller runs each yielded step at once, and throws a step's error in."""
        log, dirty = self._log, self._dirty
        below = [
            (segment, after.base_offset)
            for segment, after in pairwise(log.segments)
            if segment.base_offset < dirty.end_offset
        ]
        yield from self._map(below)
        walked = [
            (segment, end) for segment, end in below if segment.base_offset < self.mapped_until
        ]
        self.stats.segments_before = len(walked)
        aborted = log.aborted_transactions(0, dirty.end_offset)
        yield from self._clean(walked, Transactions(aborted), self._cleaned(log))
        yield self._offsets.release  # many pages: their return takes a while

    def _cleaned(self, log: PartitionLog) -> Cleaned:
        producers = {
            producer_id: LastBatch(
                entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch
            )
            for producer_id, entry in log.producers.entries.items()
        }
        horizon_ms = self._now.wall_ms + log.config.delete_retention_ms
        return Cleaned(
            self._dirty.end_offset, self.mapped_until, producers, self._now.retention_ms, horizon_ms
        )

    # ---- first pass ----------------------------------------------------------------------------

    def _map(self, segments: Sequence[Ended]) -> Iterator[Work]:
        first, end_offset = self._dirty.first_dirty_offset, self._dirty.end_offset
        aborted = self._log.aborted_transactions(first, end_offset)
        mapping = Mapping(self._offsets, Transactions(aborted), first, self._entries_max)
        for segment, segment_end in segments:
            if segment_end <= first:
                continue
            start = segment.position_of(first) if segment.base_offset < first else 0
            yield self._runs(segment, start, segment_end, mapping.take)
            self.stats.mapped_bytes += segment.size_bytes - start
            if mapping.full_at is not None:
                self.mapped_until = mapping.full_at
                break
            self.mapped_until = segment_end
        self.stats.keys = self._offsets.size

    def _runs(self, segment: Segment, start: int, end_offset: int, take: Take) -> Work:
        """The work of walking over a segment, which ends with `end_offset`, from `start` on."""
        ahead = Ahead(segment.base_offset, end_offset)
        reader, end, path = segment.log.reader(), segment.size_bytes, segment.log.path
        return partial(self._walk, reader, start, end, path, partial(take, ahead))

    def _walk(
        self,
        reader: Reader,
        position: int,
        end: int,
        path: str,
        take: Callable[[bytes], int | None],
    ) -> None:
        wanted = self._settings.io_buffer_bytes
        while position < end:
            run = reader.read(position, min(wanted, end - position))
            self._pace(len(run))
            taken = take(run)
            if taken is None:
                return
            wanted = self._settings.io_buffer_bytes
            if not taken:
                wanted = _size_of_first(run, position, end, path)
            position += taken

    # ---- second pass ---------------------------------------------------------------------------

    def _clean(
        self, segments: Sequence[Ended], transactions: Transactions, cleaned: Cleaned
    ) -> Iterator[Work]:
        """Makes one segment of each group and puts it in the group's place."""
        log, config = self._log, self._log.config
        for group in grouped(segments, config.segment_bytes, config.segment_index_bytes):
            target = log.new_cleaned_segment(group[0][0].base_offset, self._now.wall_ms)
            try:
                has_changed = yield from self._fill(target, group, transactions, cleaned)
            except GeneratorExit:  # nobody is there any more to do it elsewhere
                target.delete()
                raise
            except BaseException:
                yield target.delete
                raise
            self.stats.segments_after += 1
            old = [segment for segment, _ in group]
            if not has_changed:
                yield target.delete
            elif log.replace_segments(target, old, self._now.monotonic_ms):
                yield log.sync_directory
            else:
                yield target.delete
                raise CleaningAborted(f"{log.topic_partition}: its segments changed meanwhile")

    def _fill(
        self,
        target: Segment,
        group: Sequence[Ended],
        transactions: Transactions,
        cleaned: Cleaned,
    ) -> Generator[Work, None, bool]:
        """Writes the kept records of a group. Returns whether they differ from the group."""
        filling = Filling(
            self._offsets, transactions, cleaned, target, self._log.config.index_interval_bytes,
            self._pace,
        )  # fmt: skip
        for segment, end_offset in group:
            yield self._runs(segment, 0, end_offset, filling.take)
        self.stats.read_bytes += sum(segment.size_bytes for segment, _ in group)
        self.stats.written_bytes += target.size_bytes
        if len(group) == 1 and not filling.has_changed:
            return False
        yield target.seal
        return True


def _size_of_first(run: bytes, position: int, end: int, path: str) -> int:
    """How many bytes to read for the batch that `run` begins and does not end."""
    if len(run) >= BATCH_HEADER_BYTES:
        size = read_header(run).size_bytes
        if len(run) < size <= end - position:
            return size
    raise CorruptBatchError(f"{path}: byte {position}: no whole batch in {end - position} bytes")


def grouped(segments: Sequence[Ended], bytes_max: int, index_bytes_max: int) -> list[list[Ended]]:
    """Neighbours that together fit into one segment."""
    groups: list[list[Ended]] = []
    size = index_size = time_index_size = 0
    for segment, end in segments:
        size += segment.size_bytes
        index_size += segment.index.size_bytes
        time_index_size += segment.time_index.size_bytes
        if not (
            groups
            and len(groups[-1]) < GROUP_SEGMENTS_MAX
            and size <= bytes_max
            and max(index_size, time_index_size) <= index_bytes_max
            and end - 1 - groups[-1][0][0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            groups.append([])
            size, index_size = segment.size_bytes, segment.index.size_bytes
            time_index_size = segment.time_index.size_bytes
        groups[-1].append((segment, end))
    return groups
