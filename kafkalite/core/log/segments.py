"""The segments of one log, in order, and the files on their way out.                      [D]

    [ 0 ][ 1200 ][ 2750 ]   the last is the active one; each ends where the next begins
                            deleted: renamed at once, removed when file.delete.delay.ms is over

Removing a large file takes time, so callers do it in another thread. A removed file holds no
descriptor of ours; readers that are not done with it have their own.

Owns   the list. There is always an active segment.
Never  knows of high watermarks, producers or error codes: that is `PartitionLog`.
Fails  with OSError from the storage, CorruptBatchError for a damaged log.
Source apache/kafka LogSegments, LocalLog; Cleaner (replacing segments).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from zlib import crc32

from kafkalite.core.log.index import IndexCache
from kafkalite.core.log.loading import CLEANED_SUFFIX, SWAP_SUFFIX
from kafkalite.core.log.place import Place
from kafkalite.core.log.runs import Run
from kafkalite.core.log.segment import DELETED_SUFFIX, FileRecords, Segment
from kafkalite.core.log.values import AbortedTransaction, GoOn, TimestampAndOffset


class Segments:
    """The segments of the log in `place`; appends go to `active`."""

    __slots__ = ("_bases", "_doomed", "_place", "active", "all")

    def __init__(self, place: Place, segments: list[Segment]) -> None:
        self._place = place
        self.all = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self._doomed: list[tuple[int, Segment]] = []  # when its files go

    @property
    def size_bytes(self) -> int:
        """Bytes of all logs."""
        return sum(segment.size_bytes for segment in self.all)

    def join(self, cache: IndexCache) -> None:
        """Shares `cache` with other logs from now on."""
        self._place.cache = cache
        for segment in self.all:
            segment.move_indexes(cache)

    @property
    def first_offset(self) -> int:
        """Base offset of the first segment."""
        return self._bases[0]

    def since(self, offset: int) -> list[Segment]:
        """The segment that holds `offset`, or the first, and all after it."""
        return self.all[max(bisect_right(self._bases, offset) - 1, 0) :]

    # ---- reading -------------------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int, before_offset: int, end_offset: int
    ) -> FileRecords | None:
        """Whole batches of one segment from the one that holds `offset`; None when there is none.

        `end_offset` is where the log ends.
        """
        bases, number = self._bases, bisect_right(self._bases, offset) - 1
        while number < len(bases):
            segment = self.all[number]
            number += 1
            next_base = bases[number] if number < len(bases) else end_offset
            if before_offset < next_base:
                return segment.read(offset, bytes_max, before_offset)
            found = segment.read(offset, bytes_max, next_base, to_end=True)
            if found is not None:
                if found.position + found.size_bytes == segment.size_bytes:
                    segment.remember(next_base, segment.size_bytes)  # for whoever waits there
                return found
        return None

    def offset_for_timestamp(
        self, timestamp: int, first_offset: int, batches_max: int
    ) -> TimestampAndOffset | GoOn | None:
        """The first record at or after `first_offset` that is not older than `timestamp`.

        After `batches_max` batches of a segment in vain: from which offset to go on.
        """
        for segment in self.since(first_offset):
            if segment.max_timestamp >= timestamp:
                found = segment.offset_for_timestamp(timestamp, first_offset, batches_max)
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> int:
        """The largest timestamp of all, -1 without one."""
        return max(segment.max_timestamp for segment in self.all)

    def written(self, first_offset: int) -> list[tuple[int, int]]:
        """Where each begins, not before `first_offset`, and when its file was last written (epoch
        ms), newest first.
        """
        return [(max(s.base_offset, first_offset), s.modified_ms()) for s in reversed(self.all)]

    def aborted_transactions(self, offset: int, before_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [offset, before_offset), by their markers."""
        found: list[AbortedTransaction] = []
        for segment in self.since(offset):
            for aborted in segment.transaction_index.since(offset):
                if aborted.first_offset < before_offset:
                    found.append(aborted)
                if aborted.last_stable_offset >= before_offset:
                    return found
        return found

    # ---- rolling and truncating ----------------------------------------------------------------

    def must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch of `size` bytes needs a new segment, for its size or the time."""
        config, segment = self._place.config, self.active
        if not segment.log.size_bytes:
            return False
        waited_ms = segment.waited_ms(now_ms, max_timestamp)
        roll_ms = config.roll_ms
        if config.segment_jitter_ms:
            roll_ms -= self._jitter_ms(roll_ms)
        return waited_ms > roll_ms or segment.is_full(
            size, last_offset, config.segment_bytes, config.segment_index_bytes
        )

    def room_for(self, run: Run, now_ms: int) -> int:
        """How many batches of a run the active segment takes; 0: it must roll."""
        config, active, size = self._place.config, self.active, 0
        for number, (_, header) in enumerate(run):
            size += header.size_bytes
            if active.size_bytes:
                is_over = self.must_roll(size, header.last_offset, header.max_timestamp, now_ms)
            else:  # takes one batch, however large
                is_over = number > 0 and active.is_full(
                    size, header.last_offset, config.segment_bytes, config.segment_index_bytes
                )
            if is_over:
                return number
        return len(run)

    def _jitter_ms(self, roll_ms: int) -> int:
        """At most segment.jitter.ms, and the same for a segment whenever it is asked."""
        jitter_ms = min(self._place.config.segment_jitter_ms, roll_ms)
        return crc32(self.active.stem.encode()) % jitter_ms if jitter_ms else 0

    def roll(self, offset: int, now_ms: int, before: Callable[[], None]) -> Segment:
        """Closes the active segment, does `before` and opens the next one, at `offset`.

        If that fails, the active segment is unchanged.
        """
        old = self.active
        try:
            old.end_writing()
            before()
            segment = self._place.segment(offset, {})
            segment.log.create()
        except OSError:
            old.begin_writing()
            raise
        segment.created_ms = now_ms
        segment.begin_writing()
        self.active = segment
        self.all.append(segment)
        self._bases.append(offset)
        return segment

    def truncate_to(self, offset: int) -> int:
        """Removes the batches from the one that holds `offset` on. Returns the log's new end.

        The newest go first, durably, before the one that is cut: else a crash could bring them back
        behind a gap. A segment that is cut and was not the active one is another from then on: what
        a cleaner makes of the one that it has read does not take its place.
        """
        kept = bisect_right(self._bases, offset)
        assert kept, f"{self._place.partition}: offset {offset} is below {self._bases[0]}"
        for segment in reversed(self.all[kept:]):
            segment.delete()
        if kept < len(self.all):
            self._place.storage.sync_directory(self._place.directory)
        if self.all[kept - 1] is not self.active:
            self.all[kept - 1].abandon()
            self.all[kept - 1] = self._place.segment(self._bases[kept - 1])
        del self.all[kept:], self._bases[kept:]
        self.active = self.all[-1]
        self.active.begin_writing()
        return self.active.truncate_to(offset)

    def start_anew(self, offset: int) -> None:
        """Removes everything; one empty segment remains, at `offset`."""
        for segment in reversed(self.all):
            segment.delete()
        self.active = self._place.segment(offset, {})
        self.all[:] = [self.active]
        self._bases[:] = [offset]
        self.active.log.create()
        self.active.begin_writing()

    # ---- files on their way out ----------------------------------------------------------------

    def delete_first(self, count: int, monotonic_ms: int) -> None:
        """Removes the oldest `count` segments, not the active one."""
        assert count < len(self.all), (count, len(self.all))
        gone = self.all[:count]
        del self.all[:count], self._bases[:count]
        self._doom(gone, monotonic_ms)

    def _doom(self, segments: Sequence[Segment], monotonic_ms: int) -> None:
        """Renames segments, the oldest first, to be removed when their delay is over."""
        due_ms = monotonic_ms + self._place.config.file_delete_delay_ms
        for segment in segments:
            segment.abandon()
            segment.rename("", DELETED_SUFFIX)
            self._doomed.append((due_ms, segment))

    def take_due(self, monotonic_ms: int) -> list[Segment]:
        """The segments whose delay is over, for the caller to remove their files."""
        due = [segment for due_ms, segment in self._doomed if due_ms <= monotonic_ms]
        self._doomed = [each for each in self._doomed if each[0] > monotonic_ms]
        return due

    # ---- compaction ----------------------------------------------------------------------------

    def new_cleaned(self, base_offset: int, now_ms: int) -> Segment:
        """A segment for what compaction keeps, to be filled, sealed and given to `replace`.

        Nothing of it is shared with the log, so that another thread may fill it.
        """
        place = self._place
        segment = Segment(
            place.storage, place.directory, base_offset, IndexCache(), now_ms,
            suffix=CLEANED_SUFFIX, mend=place.mend,
        )  # fmt: skip
        segment.delete()  # a cleaning that failed may have left one
        segment.begin_writing()
        return segment

    def are_neighbours(self, segments: Sequence[Segment]) -> bool:
        """Whether `segments` still follow one another here, the active one not among them."""
        if segments[0] not in self.all or segments[-1] is self.active:
            return False
        first = self.all.index(segments[0])
        return self.all[first : first + len(segments)] == list(segments)

    def replace(self, cleaned: Segment, old: Sequence[Segment], monotonic_ms: int) -> None:
        """Puts `cleaned`, which is sealed, where the neighbours `old` were.

        It has the base offset of the first of them. Once it is called `.swap` a crash completes
        this, before that undoes it; in between the system keeps the order of changes of names.
        """
        assert self.are_neighbours(old), "not neighbours, or the active segment"
        assert cleaned.base_offset == old[0].base_offset, (cleaned.base_offset, old[0].base_offset)
        cleaned.rename(CLEANED_SUFFIX, SWAP_SUFFIX)
        self._doom(old, monotonic_ms)
        cleaned.rename(SWAP_SUFFIX, "")
        cleaned.abandon()
        first = self.all.index(old[0])
        self.all[first : first + len(old)] = [self._place.segment(cleaned.base_offset)]
        self._bases[first : first + len(old)] = [cleaned.base_offset]

    def end_writing(self) -> bool:
        """Writes the last index entries of the active segment. True if there were any."""
        return self.active.end_writing()

    def abandon(self) -> None:
        """Gives memory and descriptors back and writes nothing."""
        for segment in self.all:
            segment.abandon()
