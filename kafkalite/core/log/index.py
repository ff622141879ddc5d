"""Sparse indexes of a segment: from an offset to a place, from a time to an offset.       [D]

    .index       relative offset int32 | position int32       of a batch: its last offset, its start
    .timeindex   timestamp int64 | relative offset int32      largest so far, its record's offset

Entries ascend, so a lookup is a binary search; offsets are relative to the segment's base offset.
About one batch in `index.interval.bytes` gets an entry, so a lookup ends near the place and the
log itself is walked for the rest.

Owns   the entries in memory, exactly as in the file. Those of the active segment always, those of
       older segments while they fit into the `IndexCache`.
Never  writes at an append: new entries reach the file at `write`, when the segment is rolled or
       closed. After a crash they are rebuilt from the log.
Fails  never. Whether an entry fits the log, the segment sees when it follows one.
Source apache/kafka OffsetIndex, TimeIndex; KIP-33.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from kafkalite.core.log.port import File
from kafkalite.core.types import NO_TIMESTAMP

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1

_RELATIVE: Final = Struct(">i")
_POSITION: Final = Struct(">4xi")
_TIMESTAMP: Final = Struct(">q")
_TIME_OFFSET: Final = Struct(">8xi")


class OffsetEntry(NamedTuple):
    """A batch, or several that were written at once: their last offset, where the first begins."""

    last_offset: int
    position: int


class TimeEntry(NamedTuple):
    """The largest timestamp up to a batch, which bears it, and an offset of that batch."""

    timestamp: int
    offset: int


class IndexCache:
    """The entries of older segments that were read lately: at most `bytes_max` of them."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_now = 0
        self._indexes: OrderedDict[_Index, int] = OrderedDict()

    def hold(self, index: _Index, size: int) -> None:
        """`index` has loaded `size` bytes; the least recently read indexes drop theirs."""
        self.forget(index)
        self._indexes[index] = size
        self.bytes_now += size
        while self.bytes_now > self.bytes_max and len(self._indexes) > 1:
            next(iter(self._indexes)).unload()

    def touch(self, index: _Index) -> None:
        """`index` was read."""
        if index in self._indexes:
            self._indexes.move_to_end(index)

    def forget(self, index: _Index) -> int:
        """`index` holds nothing any more, or is held for good; how many bytes counted here."""
        size = self._indexes.pop(index, 0)
        self.bytes_now -= size
        return size


class _Index:
    """Entries of one size in a file. `_data` is None while they are only there."""

    __slots__ = ("_cache", "_data", "_entry", "_written", "base_offset", "file")

    def __init__(self, file: File, base_offset: int, entry: Struct, cache: IndexCache) -> None:
        self.file = file
        self.base_offset = base_offset
        self._entry = entry
        self._cache = cache
        self._data: bytearray | None = None
        self._written = file.size_bytes  # bytes of _data that the file has

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries, written or not."""
        return self._written if self._data is None else len(self._data)

    @property
    def is_whole(self) -> bool:
        """Whether the file's size is one that whole entries have."""
        return self._written % self._entry.size == 0

    @property
    def is_written(self) -> bool:
        """Whether the file has all entries."""
        is_whole = self._data is None or self._written == len(self._data)
        return is_whole and self._written == self.file.size_bytes

    def is_full(self, bytes_max: int) -> bool:
        """Whether another entry would make the index larger than `segment.index.bytes`."""
        size = self._written if self._data is None else len(self._data)
        return size + self._entry.size > bytes_max

    def data(self) -> bytearray:
        """The entries, loaded if they are not."""
        data = self._data
        if data is None:
            data = bytearray(self.file.read(0, self._written)) if self._written else bytearray()
            self._data = data
            self._cache.hold(self, len(data))
        else:
            self._cache.touch(self)
        return data

    def pin(self) -> None:
        """Keeps the entries in memory: the segment is written to."""
        self.data()
        self._cache.forget(self)

    def unpin(self) -> None:
        """Writes new entries. The segment is closed, so the cache may drop them now."""
        self.write()
        if self._data is not None:
            self._cache.hold(self, len(self._data))

    def move_to(self, cache: IndexCache) -> None:
        """From now on another cache decides, where the entries are not pinned."""
        before, self._cache = self._cache, cache
        if size := before.forget(self):
            cache.hold(self, size)

    def unload(self) -> None:
        """Drops the entries from memory; the file has them."""
        assert self._data is None or self._written == len(self._data), self.file.path
        self._data = None
        self._cache.forget(self)

    def discard(self) -> None:
        """Drops the entries from memory, written or not: the file is about to go."""
        self._data = None
        self._cache.forget(self)

    def write(self) -> None:
        """Appends to the file the entries that it has not."""
        data = self._data
        if data is not None and not self.is_written:
            if self.file.size_bytes != self._written:  # cleared, or an append failed half way
                self.file.truncate(self._written)
            if self._written < len(data):
                self.file.append(bytes(memoryview(data)[self._written :]))
            self._written = len(data)

    def close(self) -> None:
        """Writes new entries and releases memory and descriptor."""
        self.write()
        self.unload()
        self.file.close()

    def _search(self, bisect: Callable[..., int], field: Struct, value: int) -> int:
        """The number of entries below `value` in `field`; with bisect_right, `value` or less."""
        data, size = self.data(), self._entry.size
        return bisect(
            range(len(data) // size),
            value,
            key=lambda number: field.unpack_from(data, number * size)[0],
        )

    def _keep(self, count: int) -> None:
        """Drops all entries but the first `count`, also from the file."""
        data, size = self.data(), count * self._entry.size
        del data[size:]
        if self._written > size:
            self.file.truncate(size)
            self._written = size

    def clear(self) -> None:
        """Drops all entries; those in the file go when it is written next."""
        if self._data is None:
            self._data = bytearray()
        self._data.clear()
        self._written = 0


class OffsetIndex(_Index):
    """From an offset to the position of a batch at or before it."""

    __slots__ = ()

    def __init__(self, file: File, base_offset: int, cache: IndexCache) -> None:
        super().__init__(file, base_offset, OFFSET_ENTRY, cache)

    def is_sane(self, log_bytes: int) -> bool:
        """Whether the last entry can be what was once written."""
        size = self.size_bytes
        if not size:
            return True
        relative, position = OFFSET_ENTRY.unpack(
            self.file.read(size - OFFSET_ENTRY.size, OFFSET_ENTRY.size)
        )
        return bool(relative >= 0 and 0 < position < log_bytes)

    def append(self, offset: int, position: int) -> None:
        """The batch that ends with `offset` begins at `position`."""
        assert self._data is not None
        self._data += OFFSET_ENTRY.pack(offset - self.base_offset, position)

    def floor(self, offset: int) -> OffsetEntry:
        """The last batch whose last offset is at most `offset`; without one, the beginning."""
        return self._last_of(self._search(bisect_right, _RELATIVE, offset - self.base_offset))

    def floor_position(self, position: int) -> OffsetEntry:
        """The last batch that begins at or before `position`; without one, the beginning."""
        return self._last_of(self._search(bisect_right, _POSITION, position))

    def _last_of(self, count: int) -> OffsetEntry:
        """The last of the first `count` entries."""
        if not count:
            return OffsetEntry(self.base_offset - 1, 0)
        relative, position = OFFSET_ENTRY.unpack_from(self.data(), (count - 1) * self._entry.size)
        return OffsetEntry(self.base_offset + relative, position)

    def truncate(self, position: int) -> None:
        """Drops the entries of batches that begin at or after `position`."""
        self._keep(self._search(bisect_left, _POSITION, position))


class TimeIndex(_Index):
    """From a time to the batch that was the first to be as late."""

    __slots__ = ()

    def __init__(self, file: File, base_offset: int, cache: IndexCache) -> None:
        super().__init__(file, base_offset, TIME_ENTRY, cache)

    def is_sane(self) -> bool:
        """Whether the last entry can be what was once written."""
        if not self.size_bytes:
            return True
        timestamp, offset = self.last()
        first = _TIMESTAMP.unpack(self.file.read(0, _TIMESTAMP.size))[0]
        return bool(offset >= self.base_offset and timestamp >= first)

    def last(self) -> TimeEntry:
        """The last entry: the largest timestamp and its offset; (-1, base offset) without one."""
        size = self.size_bytes
        if not size:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        start = size - TIME_ENTRY.size
        if self._data is not None:
            timestamp, relative = TIME_ENTRY.unpack_from(self._data, start)
        else:
            timestamp, relative = TIME_ENTRY.unpack(self.file.read(start, TIME_ENTRY.size))
        return TimeEntry(timestamp, relative + self.base_offset)

    def append(self, timestamp: int, offset: int) -> None:
        """The largest timestamp so far, at `offset`; without effect unless it is a new one."""
        assert self._data is not None
        if timestamp > self.last()[0]:
            self._data += TIME_ENTRY.pack(timestamp, offset - self.base_offset)

    def around(self, timestamp: int) -> tuple[TimeEntry | None, TimeEntry | None]:
        """The last entry that is older than `timestamp`, and the first that is not."""
        place = self._search(bisect_left, _TIMESTAMP, timestamp)
        return self._entry_at(place - 1), self._entry_at(place)

    def _entry_at(self, number: int) -> TimeEntry | None:
        data, start = self.data(), number * self._entry.size
        if not 0 <= start < len(data):
            return None
        timestamp, relative = TIME_ENTRY.unpack_from(data, start)
        return TimeEntry(timestamp, relative + self.base_offset)

    def truncate(self, offset: int) -> None:
        """Drops the entries for `offset` and beyond."""
        self._keep(self._search(bisect_left, _TIME_OFFSET, offset - self.base_offset))
