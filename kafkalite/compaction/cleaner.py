"""One cleaning of one log: two passes over its segments.                                  [D]

    [ clean      ][ dirty                 ][ not yet      ][ active ]
    0             first_dirty_offset       end_offset

    1  The dirty part is read, and the map learns the latest offset of each key in it. When the map
       is full the pass ends there: `mapped_until`.
    2  Clean and dirty part are read from the log's start, and what stays goes into new segments:
       neighbours that fit into one become one. Each new one, once synced, takes the place of those
       it was made from, with all its files: .cleaned, .swap, and then under the log's own names.

A crash leaves, of each group of segments, the old ones or the new one, and the next opening of the
log puts that in order (loading.py). The second pass may be broken off after any group: what is left
is a log in which more records are superseded than need be.

`Cleaning.steps` is a walk on the broker's event loop, which owns the log. What it yields is work on
bytes, on files that nobody else knows, and on the disk: it may be done in any thread, before the
walk goes on.

Owns   the segments that it makes until they are in place; they are removed when it fails.
Never  touches the active segment, or what is above the last stable offset.
Fails  with CorruptBatchError or StorageError on a log that cannot be cleaned, with OSError from the
       disk, with CleaningAborted where the log changed meanwhile or the broker stops.
Source apache/kafka Cleaner.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

from kafkalite.compaction.offset_map import OffsetMap, Output, Stop, slots_for
from kafkalite.compaction.retain import Cleaned, LastBatch, Transactions, judge
from kafkalite.compaction.rewrite import clean_batch, marker_in, put_batch
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.segment import Segment
from kafkalite.core.log.storage import Reader
from kafkalite.core.protocol.records import BATCH_HEADER_BYTES, BatchHeader, read_header, verify_crc
from kafkalite.errors import CorruptBatchError, KafkaliteError, StorageError

GROUP_SEGMENTS_MAX: Final = 64  # their files are open, and renamed at once
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1  # what an index entry can hold
SEGMENT_BYTES_MAX: Final = (1 << 31) - 1

Work: TypeAlias = Callable[[], object]
Ended: TypeAlias = tuple[Segment, int]  # a segment and the offset where it ends
Pace: TypeAlias = Callable[[int], None]  # told of bytes read or written; may wait, or raise


class CleaningAborted(KafkaliteError):
    """The log changed under the cleaning, or the broker stops. Nothing is wrong with the log."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """What of the broker's settings one cleaning reads."""

    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """What is to be cleaned of a log: [first_dirty_offset, end_offset)."""

    first_dirty_offset: int
    end_offset: int  # base offset of the first segment that stays as it is


@dataclass(slots=True)
class CleaningStats:
    """What a cleaning did."""

    mapped_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    keys: int = 0
    map_slots: int = 0
    segments_before: int = 0
    segments_after: int = 0


class Cleaning:
    """A cleaning of `log`, of the part that `dirty` says. `secret` are 16 random bytes."""

    def __init__(
        self,
        log: PartitionLog,
        dirty: DirtyRange,
        settings: CleanerSettings,
        secret: bytes,
        now_ms: int,
        pace: Pace = lambda byte_count: None,
    ) -> None:
        self.stats: Final = CleaningStats()
        self.mapped_until = dirty.first_dirty_offset
        self._log = log
        self._dirty = dirty
        self._settings = settings
        self._now_ms = now_ms
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
        """Cleans. What it yields is to be done before it goes on; an error there is thrown in."""
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
        return Cleaned(self._dirty.end_offset, producers, self._now_ms)

    # ---- first pass ----------------------------------------------------------------------------

    def _map(self, segments: Sequence[Ended]) -> Iterator[Work]:
        first, end_offset = self._dirty.first_dirty_offset, self._dirty.end_offset
        aborted = self._log.aborted_transactions(first, end_offset)
        mapping = _Mapping(self._offsets, Transactions(aborted), first, self._entries_max)
        for segment, segment_end in segments:
            if segment_end <= first:
                continue
            start = segment.position_of(first) if segment.base_offset < first else 0
            yield self._runs(segment, start, segment_end, mapping)
            self.stats.mapped_bytes += segment.size_bytes - start
            if mapping.full_at is not None:
                self.mapped_until = mapping.full_at
                break
            self.mapped_until = segment_end
        self.stats.keys = self._offsets.size

    def _runs(self, segment: Segment, start: int, end_offset: int, walk: _Walk) -> Work:
        """The work of walking over a segment, which ends with `end_offset`, from `start` on."""
        return partial(
            self._walk_runs, segment.log.reader(), start, segment.size_bytes, segment.log.path,
            partial(walk.begin, segment.base_offset, end_offset), walk.take,
        )  # fmt: skip

    def _walk_runs(
        self,
        reader: Reader,
        position: int,
        end: int,
        path: str,
        begin: Callable[[], None],
        take: Callable[[bytes], int],
    ) -> None:
        """`take` returns how many bytes of whole batches it has seen in a run, -1 to stop."""
        begin()
        wanted = self._settings.io_buffer_bytes
        while position < end:
            run = reader.read(position, min(wanted, end - position))
            self._pace(len(run))
            taken = take(run)
            if taken < 0:
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
            target = log.new_cleaned_segment(group[0][0].base_offset, self._now_ms)
            try:
                has_changed = yield from self._fill(target, group, transactions, cleaned)
            except BaseException:
                target.delete()
                raise
            self.stats.segments_after += 1
            if not has_changed:
                target.delete()
            elif log.replace_segments(target, [segment for segment, _ in group], self._now_ms):
                yield log.sync_directory
            else:
                target.delete()
                raise CleaningAborted(f"{log.topic_partition}: its segments changed meanwhile")

    def _fill(
        self,
        target: Segment,
        group: Sequence[Ended],
        transactions: Transactions,
        cleaned: Cleaned,
    ) -> Generator[Work, None, bool]:
        """Writes what stays of a group; whether that is anything else than the group."""
        log = self._log
        horizon_ms = self._now_ms + log.config.delete_retention_ms
        filling = _Filling(
            self._offsets, transactions, cleaned, self.mapped_until, log.config.delete_retention_ms,
            horizon_ms, target, log.config.index_interval_bytes, self._pace,
        )  # fmt: skip
        for segment, end_offset in group:
            yield self._runs(segment, 0, end_offset, filling)
        self.stats.read_bytes += sum(segment.size_bytes for segment, _ in group)
        self.stats.written_bytes += target.size_bytes
        if len(group) == 1 and not filling.has_changed:
            return False
        yield target.seal
        return True


class _Walk:
    """What both passes do with a run: the native loop as far as it goes, then a batch by hand.

    The offsets of batches lie outside of their CRC: that they ascend within their segment is all
    that tells whether they are what was written.
    """

    next_offset: int
    end_offset: int

    def begin(self, next_offset: int, end_offset: int) -> None:
        """What comes is of a segment with the offsets [next_offset, end_offset)."""
        self.next_offset, self.end_offset = next_offset, end_offset

    def take(self, run: bytes) -> int:
        """Sees to the batches of `run`: how many bytes of whole ones, -1 if it wants no more."""
        raise NotImplementedError

    def batch_at(self, run: bytes, position: int) -> tuple[memoryview, BatchHeader] | None:
        """The whole batch there, its CRC true; None when it is not whole."""
        if len(run) - position < BATCH_HEADER_BYTES:
            return None
        header = read_header(run, position)
        if position + header.size_bytes > len(run):
            return None
        first, end = self.next_offset, self.end_offset
        if not first <= header.base_offset < header.next_offset <= end:
            raise CorruptBatchError(
                f"batch with offsets [{header.base_offset}, {header.next_offset}) where those in "
                f"[{first}, {end}) are expected"
            )
        try:
            verify_crc(run, position, header)
        except CorruptBatchError as error:
            raise CorruptBatchError(f"batch at offset {header.base_offset}: {error}") from error
        self.next_offset = header.next_offset
        return memoryview(run)[position : position + header.size_bytes], header


class _Mapping(_Walk):
    """The first pass: keys into the map."""

    def __init__(
        self, offsets: OffsetMap, transactions: Transactions, first_offset: int, entries_max: int
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._first_offset = first_offset
        self._entries_max = entries_max
        self._aborted = transactions.ranges
        self.full_at: int | None = None  # the first offset that found no place in the map

    def take(self, run: bytes) -> int:
        position = 0
        while True:
            position, stop, self.next_offset = self._offsets.put_batches(
                run, position, self.next_offset, self.end_offset, self._first_offset,
                self._entries_max, self._aborted,
            )  # fmt: skip
            if stop is Stop.FULL:
                self.full_at = self.next_offset
                return -1
            found = self.batch_at(run, position) if stop is Stop.OTHER else None
            if found is None:
                return position
            self.full_at = self._put(*found)
            if self.full_at is not None:
                return -1
            position += found[1].size_bytes

    def _put(self, batch: memoryview, header: BatchHeader) -> int | None:
        if header.is_control:
            self._transactions.on_marker(header, marker_in(batch, header))
            return None
        if self._transactions.on_data(header):
            return None
        return put_batch(batch, header, self._offsets, self._first_offset, self._entries_max)


class _Filling(_Walk):
    """The second pass: what stays of a group of segments goes into `target`."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: Transactions,
        cleaned: Cleaned,
        mapped_until: int,
        delete_retention_ms: int,
        horizon_ms: int,
        target: Segment,
        index_interval_bytes: int,
        pace: Pace,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._cleaned = cleaned
        self._mapped_until = mapped_until
        self._delete_retention_ms = delete_retention_ms
        self._horizon_ms = horizon_ms
        self._target = target
        self._pace = pace
        self._aborted = transactions.ranges
        self._needed = memoryview(array("q", cleaned.needed_offsets()))
        self._output = Output(index_interval_bytes)
        self.has_changed = False

    def take(self, run: bytes) -> int:
        position = 0
        while True:
            position, stop, self.next_offset = self._offsets.filter_batches(
                run, position, self.next_offset, self.end_offset, self._output,
                self._mapped_until, self._cleaned.now_ms, self._delete_retention_ms, self._needed,
                self._aborted,
            )  # fmt: skip
            self._transactions.saw(self._output.take_producers())
            found = self.batch_at(run, position) if stop is Stop.OTHER else None
            if found is None:
                break
            self._keep(*found)
            position += found[1].size_bytes
        self._write(memoryview(run)[:position])
        return position

    def _keep(self, batch: memoryview, header: BatchHeader) -> None:
        marker = marker_in(batch, header) if header.is_control else None
        known = len(self._transactions.still_aborted)
        verdict = judge(header, marker, self._transactions, self._cleaned)
        for aborted in self._transactions.still_aborted[known:]:
            self._target.transaction_index.append(aborted)
        kept = clean_batch(
            batch, header, verdict, self._offsets, self._mapped_until, self._horizon_ms
        )
        if kept is not None:
            self._output.append(kept[0], header.last_offset, kept[1].max_timestamp)

    def _write(self, run: memoryview) -> None:
        output, target = self._output, self._target
        with output.view() as data:
            self.has_changed = self.has_changed or data != run
            if len(data) > SEGMENT_BYTES_MAX - target.size_bytes:
                raise StorageError(f"{target.log.path}: what stays needs more than 2 GiB")
            if len(data):
                target.append_run(data, output.marks(), output.latest)
                self._pace(len(data))
        output.clear()


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
