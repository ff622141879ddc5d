"""One segment: a file of batches with its indexes.                                        [D]

    00000000000000001200.log         batches from offset 1200 on, as they lie on the wire
    00000000000000001200.index       offset to position       (index.py)
    00000000000000001200.timeindex   time to offset
    00000000000000001200.txnindex    aborted transactions     (transaction_index.py), if any

A read begins with the batch that holds the offset asked for and ends between two batches. Where a
reader stopped is remembered: the next read from there needs no search.

Owns   the four files. The log's size in memory counts whole writes only.
Never  decodes a record except to answer which offset a time has.
Fails  with OSError from the storage; CorruptBatchError for a damaged log.
Source apache/kafka LogSegment, FileRecords, LazyIndex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Final, TypeAlias, TypeVar

from kafkalite.core.log.index import (
    RELATIVE_OFFSET_MAX,
    IndexCache,
    OffsetEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from kafkalite.core.log.port import Buffer, File, Reader, Storage
from kafkalite.core.log.transaction_index import TransactionIndex
from kafkalite.core.log.values import GoOn, Mark, TimestampAndOffset
from kafkalite.core.protocol.records import (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_MIN,
    BatchHeader,
    decode,
    read_header,
)
from kafkalite.core.protocol.records_pure import (
    LENGTH_OVERHEAD,
    MAGIC,
)
from kafkalite.core.types import NO_TIMESTAMP
from kafkalite.errors import CorruptBatchError

T = TypeVar("T")

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"

_WINDOW_BYTES: Final = 4096  # headers are read through windows of this size
_CURSORS_MAX: Final = 32
_PLACE: Final = Struct(">qi4xb6xi")  # of a header: base offset, length, magic, last offset delta
_UNKNOWN: Final = -2  # a timestamp that the time index was not yet asked for


def offset_name(offset: int) -> str:
    """A file's name without its suffix: the offset in twenty digits."""
    return f"{offset:020d}"


def offset_of(name: str) -> int | None:
    """The offset that a file is named for; None when that is not how its name begins."""
    digits, dot, _ = name.partition(".")
    return int(digits) if dot and len(digits) == 20 and digits.isdecimal() else None


@dataclass(frozen=True, slots=True)
class FileRecords:
    """Whole batches in a file, for sendfile or `read`; they stay readable while this is held."""

    reader: Reader
    position: int
    size_bytes: int
    before_offset: int  # above the last record's

    def fileno(self) -> int | None:
        """The descriptor to send from; None where there is none, and `read` is the way."""
        return self.reader.fileno()

    def read(self) -> bytes:
        """The bytes. Fewer than `size_bytes` if the log was truncated in between."""
        return self.reader.read(self.position, self.size_bytes)


Mend: TypeAlias = "Callable[[Segment], None]"


class Segment:
    """The batches [base_offset, next segment's base_offset) of a partition's log."""

    __slots__ = (
        "_bytes_since_entry",
        "_cursors",
        "_first_timestamp",
        "_is_active",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_mend",
        "_storage",
        "base_offset",
        "created_ms",
        "index",
        "log",
        "stem",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        cache: IndexCache,
        now_ms: int,
        sizes: dict[str, int] | None = None,
        suffix: str = "",
        *,
        mend: Mend,
    ) -> None:
        """`sizes` are the directory's files where they are known; `suffix` ends all names; `mend`
        is called with a segment whose indexes do not fit its log, to `rebuild_indexes`."""
        self._storage = storage
        self._mend = mend
        self.stem = f"{directory}/{offset_name(base_offset)}"
        self.base_offset = base_offset
        self.created_ms = now_ms
        files = []
        for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            path = self.stem + kind + suffix
            name = path[len(directory) + 1 :]
            files.append(storage.open(path, None if sizes is None else sizes.get(name, 0)))
        self.log, index, time_index, transaction_index = files
        self.index = OffsetIndex(index, base_offset, cache)
        self.time_index = TimeIndex(time_index, base_offset, cache)
        self.transaction_index = TransactionIndex(transaction_index)
        self._bytes_since_entry = 0
        self._is_active = False
        self._cursors: dict[int, int] = {}  # offset -> position of the batch that holds it
        self._first_timestamp: int | None = None
        self._max_timestamp = _UNKNOWN
        self._max_timestamp_offset = base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of the log file."""
        return self.log.size_bytes

    # ---- writing -------------------------------------------------------------------------------

    def append(
        self, data: Buffer, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Writes one batch, or several at once that end with `last_offset`.

        The segment is the active one: its indexes are pinned.
        """
        position = self.log.append(data)
        self._note(position, len(data), last_offset, max_timestamp, index_interval_bytes)

    def append_run(self, data: Buffer, marks: Sequence[Mark], latest: tuple[int, int]) -> None:
        """Writes many batches at once. `latest` is the largest timestamp of the segment then, and
        the last offset of the batch that bears it."""
        start = self.log.append(data)
        for position, last_offset, max_timestamp, max_timestamp_offset in marks:
            self.index.append(last_offset, start + position)
            self.time_index.append(max_timestamp, max_timestamp_offset)
        self._max_timestamp, self._max_timestamp_offset = latest

    def _note(
        self,
        position: int,
        size: int,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
    ) -> None:
        """Keeps the indexes and the largest timestamp up with a batch at `position`."""
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._bytes_since_entry > index_interval_bytes:
            self.index.append(last_offset, position)
            self.time_index.append(self._max_timestamp, self._max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def is_full(
        self, size: int, last_offset: int, segment_bytes: int, segment_index_bytes: int
    ) -> bool:
        """Whether a batch of `size` bytes that ends with `last_offset` needs a new segment."""
        return (
            self.log.size_bytes > segment_bytes - size
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or self.index.is_full(segment_index_bytes)
            or self.time_index.is_full(segment_index_bytes)
        )

    def waited_ms(self, now_ms: int, timestamp: int) -> int:
        """How long the segment has been open: in the records' own time, where they have one."""
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp
        if first >= 0 and timestamp >= 0:
            return timestamp - first
        return now_ms - self.created_ms

    def begin_writing(self) -> None:
        """Becomes the active segment, if it is not."""
        if self._is_active:
            return
        self._is_active = True
        self.index.pin()
        self.time_index.pin()
        self._load_max_timestamp()

    def end_writing(self) -> bool:
        """Is the active segment no more; the time index gets its last word. Whether an index file
        had to be written for it.

        The offset index is made even when it has no entry: a missing one is made anew at the
        next start, which takes a walk through the log.
        """
        index, time_index = self.index, self.time_index
        if self.size_bytes:
            time_index.append(self.max_timestamp, self._max_timestamp_offset)
            if not index.size_bytes:
                index.file.create()
        is_written = not (index.is_written and time_index.is_written)
        self._is_active = False
        index.unpin()
        time_index.unpin()
        return is_written

    def seal(self) -> None:
        """Is complete, and on the disk: nothing is written to it any more."""
        self.log.create()
        self.end_writing()
        self.sync()

    def sync(self, *, after_truncation: bool = False) -> None:
        """Returns when the segment is on the disk, all but what indexes have in memory alone.

        An active segment's are made anew after a crash, so its entries may wait. A truncation may
        have emptied some, and they must stay so.
        """
        self.log.sync()  # also when empty: it may have been cut
        for file in self._files()[1:]:
            if file.size_bytes or after_truncation:
                file.sync()

    def close(self) -> None:
        """Writes new index entries and releases memory and descriptors."""
        if self._is_active:
            self.end_writing()
        self.abandon()

    def abandon(self) -> None:
        """Gives memory and descriptors back and writes nothing."""
        self.discard_indexes()
        for file in self._files():
            file.close()

    def rename(self, old_suffix: str, new_suffix: str) -> None:
        """Gives all files another last suffix, the log last: it decides what the others are."""
        for file in self._files()[:0:-1]:
            if file.size_bytes:
                file.rename(file.path.removesuffix(old_suffix) + new_suffix)
            else:
                file.delete()
        self.log.rename(self.log.path.removesuffix(old_suffix) + new_suffix)

    def delete(self) -> None:
        """Removes all files."""
        self.discard_indexes()
        self.delete_files()

    def delete_files(self) -> None:
        """The same for an abandoned segment; another thread may do this."""
        for file in self._files()[::-1]:
            file.delete()

    def move_indexes(self, cache: IndexCache) -> None:
        """From now on another cache decides which indexes stay in memory."""
        self.index.move_to(cache)
        self.time_index.move_to(cache)

    def discard_indexes(self) -> None:
        """Gives the indexes' memory back; the segment is about to go."""
        self.index.discard()
        self.time_index.discard()

    def _files(self) -> tuple[File, File, File, File]:
        return self.log, self.index.file, self.time_index.file, self.transaction_index.file

    # ---- timestamps ----------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all batches, -1 without one."""
        if self._max_timestamp == _UNKNOWN:
            self._load_max_timestamp()
        return self._max_timestamp

    def _load_max_timestamp(self) -> None:
        last = self.time_index.last()
        if self._is_latest(last):
            self._max_timestamp, self._max_timestamp_offset = last
        else:
            self._mend(self)  # finds it in the log

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 while there is none."""
        if self._first_timestamp is None:
            if not self.size_bytes:
                return -1
            self._first_timestamp = self._header_at(0).max_timestamp
        return self._first_timestamp

    def retention_timestamp(self) -> int:
        """The time for retention: the largest timestamp, else that of the file's last write."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 and self.size_bytes else self.modified_ms()

    def modified_ms(self) -> int:
        """When the file was last written (epoch ms), or the segment made that has none yet."""
        return self._storage.modified_ms(self.log.path) if self.size_bytes else self.created_ms

    # ---- indexes that are held to the log ------------------------------------------------------

    def _sound(self, look: Callable[[], T], fits: Callable[[T], bool]) -> T:
        """The position in an index, which is rebuilt if the log does not agree with it."""
        said = look()
        if not fits(said):
            self._mend(self)
            said = look()
        return said

    def _is_place(self, entry: OffsetEntry) -> bool:
        """Whether a batch begins there that the entry's offset does not precede."""
        position, size = entry.position, self.log.size_bytes
        if not position:
            return True
        if not 0 < position <= size - BATCH_HEADER_BYTES:
            return False
        base, length, magic, delta = _PLACE.unpack(self.log.read(position, _PLACE.size))
        if magic != MAGIC or not BATCH_LENGTH_MIN <= length <= size - position:
            return False
        return bool(self.base_offset <= base <= base + delta <= entry.last_offset)

    def _is_latest(self, *entries: TimeEntry | None) -> bool:
        """Whether the batch with an entry's offset bears its timestamp."""
        for entry in entries:
            if entry is not None and entry.timestamp != NO_TIMESTAMP:
                position = self.position_of(entry.offset)
                if position == self.log.size_bytes:
                    return False
                header = self._header_at(position)
                if header.base_offset > entry.offset or header.max_timestamp != entry.timestamp:
                    return False
        return True

    def _indexed(self, offset: int) -> int:
        """The position of the last indexed batch whose last offset is at most `offset`, or 0."""
        return self._sound(partial(self.index.floor, offset), self._is_place).position

    def _indexed_before(self, position: int) -> int:
        """The position of the last indexed batch at or before `position`, or 0."""
        return self._sound(partial(self.index.floor_position, position), self._is_place).position

    # ---- reading -------------------------------------------------------------------------------

    def headers(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of every batch from `position` to `end`; whole ones only.

        CorruptBatchError where no batch begins.
        """
        end = self.size_bytes if end is None else end
        if position + BATCH_HEADER_BYTES > end:
            return  # above all: no file is opened that may not be there
        reader = self.log.reader()
        window, start = b"", position
        while position + BATCH_HEADER_BYTES <= end:
            if position + BATCH_HEADER_BYTES > start + len(window):
                window, start = reader.read(position, min(_WINDOW_BYTES, end - position)), position
            header = read_header(window, position - start)
            if position + header.size_bytes > end:
                return
            yield position, header
            position += header.size_bytes

    def _walk(self, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Like `headers`, only what a search needs: position, end, base offset, next offset."""
        if position + BATCH_HEADER_BYTES > end:
            return
        reader = self.log.reader()
        window, start = b"", position
        while position + BATCH_HEADER_BYTES <= end:
            if position + BATCH_HEADER_BYTES > start + len(window):
                window, start = reader.read(position, min(_WINDOW_BYTES, end - position)), position
            base_offset, length, magic, delta = _PLACE.unpack_from(window, position - start)
            if magic != MAGIC or length < BATCH_LENGTH_MIN:
                read_header(window, position - start)  # says what is wrong
            next_position = position + length + LENGTH_OVERHEAD
            if next_position > end:
                return
            yield position, next_position, base_offset, base_offset + delta + 1
            position = next_position

    def _header_at(self, position: int) -> BatchHeader:
        return read_header(self.log.read(position, BATCH_HEADER_BYTES))

    def position_of(self, offset: int) -> int:
        """The position of the first batch whose last offset is `offset` or more, or the size."""
        cursor = self._cursors.get(offset)
        if cursor is not None:
            return cursor
        size = self.log.size_bytes
        for position, _, _, next_offset in self._walk(self._indexed(offset), size):
            if next_offset > offset:
                return position
        return size

    def read(
        self, offset: int, bytes_max: int, before_offset: int, *, to_end: bool = False
    ) -> FileRecords | None:
        """Whole batches from the one that holds `offset`, all below `before_offset`.

        At least one, however large; else `bytes_max` bytes at most. None when there is none.
        `to_end`: the whole segment is below `before_offset`.
        """
        start = self.position_of(offset)
        end = self.log.size_bytes if to_end else self.position_of(before_offset)
        if start >= end:
            return None
        if end - start > bytes_max:
            end, before_offset = self._last_boundary(start, bytes_max, end)
        elif not to_end:
            self.remember(before_offset, end)
        return FileRecords(self.log.reader(), start, end - start, before_offset)

    def _last_boundary(self, start: int, bytes_max: int, end: int) -> tuple[int, int]:
        """The end of the last batch that ends within `bytes_max` of `start`, the first's at least,
        and the offset after it. Remembered for the next read from there.
        """
        limit = start + bytes_max
        boundary, next_offset = start, -1
        walk_from = max(start, self._indexed_before(limit))
        for position, batch_end, base_offset, after in self._walk(walk_from, end):
            boundary, next_offset = position, base_offset
            if position > start and batch_end > limit:
                break
            boundary, next_offset = batch_end, after
        self.remember(next_offset, boundary)
        return boundary, next_offset

    def remember(self, offset: int, position: int) -> None:
        """Notes that the batch of `offset`, the next one to be read, is at `position`."""
        cursors = self._cursors
        if offset not in cursors and len(cursors) >= _CURSORS_MAX:
            del cursors[next(iter(cursors))]
        cursors[offset] = position

    def end_offset(self) -> int:
        """The offset after the last batch, found from the last index entry on.

        CorruptBatchError when the file does not end with a whole batch.
        """
        end_offset = self.base_offset
        end = self._indexed_before(self.size_bytes)
        for _, batch_end, _, after in self._walk(end, self.size_bytes):
            end, end_offset = batch_end, after  # the last one counts
        if end != self.size_bytes:
            raise CorruptBatchError(
                f"{self.log.path}: {self.size_bytes - end} bytes after the last whole batch"
            )
        return end_offset

    def offset_for_timestamp(
        self, timestamp: int, first_offset: int, batches_max: int
    ) -> TimestampAndOffset | GoOn | None:
        """The first record at or after `first_offset` that is not older than `timestamp`.

        After `batches_max` batches in vain: from which offset to go on.
        """
        start = max(self._all_older_before(timestamp), self.position_of(first_offset))
        for number, (position, header) in enumerate(self.headers(start)):
            if number == batches_max:
                return GoOn(header.base_offset)
            if header.max_timestamp < timestamp or header.is_control:
                continue
            found = self._first_in_batch(position, header, timestamp, first_offset)
            if found is not None:
                return found
        return None

    def _all_older_before(self, timestamp: int) -> int:
        """A position before which every batch is older than `timestamp`, however many are.

        Both indexes get their entries at the same batches. So before the batch that is the first
        as late as `timestamp`, the offset index goes on where the time index has nothing new.
        """
        if timestamp > self.max_timestamp:
            return self.size_bytes
        look = partial(self.time_index.around, timestamp)
        _, first = self._sound(look, lambda around: self._is_latest(*around))
        first_as_late = self._max_timestamp_offset if first is None else first.offset
        return self._indexed(first_as_late - 1)

    def _first_in_batch(
        self, position: int, header: BatchHeader, timestamp: int, first_offset: int
    ) -> TimestampAndOffset | None:
        columns = decode(self.log.read(position, header.size_bytes))
        for offset, time in zip(columns.offsets or (), columns.timestamps, strict=True):
            if time >= timestamp and offset >= first_offset:
                return TimestampAndOffset(time, offset, header.partition_leader_epoch)
        return None

    # ---- cutting and mending -------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Cuts the batches from the one that holds `offset` on. Returns the log's end offset."""
        position = self.position_of(offset)
        if position < self.size_bytes:
            offset = min(offset, self._header_at(position).base_offset)
            self.truncate(position, offset)
        return offset

    def truncate(self, position: int, offset: int) -> None:
        """Cuts the log at `position`, where the batch with `offset` begins, and the indexes."""
        self._cursors.clear()
        self.index.truncate(position)
        self.time_index.truncate(offset)
        self.transaction_index.truncate(offset)
        self.log.truncate(position)
        if position == 0:
            self._first_timestamp = None
        self._load_tail()

    def has_sane_indexes(self, *, thoroughly: bool) -> bool:
        """Whether the index files can be what was written; the last entries are read only when
        `thoroughly`. That they are there is for the caller to know."""
        if not (self.index.is_whole and self.time_index.is_whole):
            return False
        if not self.time_index.size_bytes and self.first_timestamp >= 0:
            return False  # the last word of a closed segment is missing
        if not thoroughly:
            return True
        return self.index.is_sane(self.size_bytes) and self.time_index.is_sane()

    def clear_indexes(self) -> None:
        """Empties the indexes, for `reindex` to fill while the log is walked.

        The index of aborted transactions stays: rebuilding it needs the transactions open before.
        """
        self._cursors.clear()
        self.index.clear()
        self.time_index.clear()
        self._max_timestamp, self._max_timestamp_offset = -1, self.base_offset
        self._bytes_since_entry = 0

    def rebuild_indexes(self, index_interval_bytes: int) -> None:
        """Makes the indexes anew, all but that of aborted transactions. CorruptBatchError where the
        log is damaged itself: then they stay as they are."""
        for _ in self.headers(0):
            pass
        was_active = self._is_active
        self.clear_indexes()
        self.begin_writing()
        for position, header in self.headers(0):
            self.reindex(position, header, index_interval_bytes)
        if not was_active:
            self.end_writing()

    def reindex(self, position: int, header: BatchHeader, index_interval_bytes: int) -> None:
        """Does for a batch that is in the log what `append` would have done to the indexes."""
        size, last_offset = header.size_bytes, header.last_offset
        self._note(position, size, last_offset, header.max_timestamp, index_interval_bytes)

    def _load_tail(self) -> None:
        """The largest timestamp after a cut: the last entry's, or that of a batch after it."""
        self._load_max_timestamp()
        position = self._indexed_before(self.size_bytes)
        for _, header in self.headers(position):
            if header.max_timestamp > self.max_timestamp:
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = header.last_offset
