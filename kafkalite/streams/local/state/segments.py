"""Rows by key and time, in segments of time: what a side of a join keeps.                     [P]

A segment holds the rows of `width_ms` by their keys, as bytes and in the order of their arrival. A
lookup reads the few segments that its range touches, and a segment that is over leaves as a whole.

    segments     0 ── 30s ── 60s ── 90s          rows ── key ── [(timestamp, value), …]
    piece     what a commit adds to a page: rows, and which rows have met a partner meanwhile
    page      the rows of a segment whose keys have one hash: the fold of its pieces, in order

A piece is a record of the changelog, and a row of the backend. So the changelog has one record
for many rows, and one deletion for each piece of a segment that is over.

    key       start of the segment Int64 · hash of the keys UInt8 · number of the piece Int64
    value     msgpack: [version, keys, timestamps, values, kinds]

Without a state directory all pages are objects. With one, a page is read when a key of it is
looked for, and `shrink` lets go of segments that are on disk as they are here.

A row that waits has not met a partner yet. `expire` gives the waiting rows that are over.

Owns   the rows, and what the changelog has not seen yet.
Fails  with SerdeError for a record that is no piece, ProcessingError for a piece on disk.
Source Kafka Streams' AbstractRocksDBSegmentedBytesStore, TimeOrderedKeyAndJoinSide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgpack

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY
from kafkalite.streams.local.state.kept import Kept
from kafkalite.streams.local.state.memory import MemoryBackend

PIECE_KEY: Final = Struct(">qBq")
PIECE_VERSION: Final = 1
PIECE_BYTES: Final = 1 << 18  # of a piece; a larger row is a piece of its own
PAGES: Final = 64  # of a segment, so that few rows are read for a key
ROW_BYTES: Final = 200  # about what a row takes besides key and value
READ_PIECES: Final = 100  # that are decoded at a time
NEVER: Final = -1
NOT_SOON: Final = 1 << 63
PLAIN, WAITS, MET = range(3)  # kinds of events: a row, a row that waits, rows that wait no more

Row = tuple[int, bytes]  # timestamp, value
Event = tuple[bytes, int, bytes | None, int]  # key, timestamp, value, kind


class Expired(NamedTuple):
    """A row that has waited in vain. They sort by time, key, arrival."""

    stamp: int
    key: bytes
    number: int
    value: bytes


class Segment:
    """The rows of one segment."""

    __slots__ = ("bytes", "count", "events", "missing", "pieces", "rows", "waiting")

    def __init__(self) -> None:
        self.rows: dict[bytes, list[Row]] = {}
        self.waiting: dict[bytes, list[Expired]] = {}
        self.events: list[Event] = []  # that the changelog has not seen
        self.pieces: list[bytes] = []  # their keys in the changelog
        self.missing: set[int] = set()  # pages that are on disk alone
        self.count = self.bytes = 0


class SegmentStore:
    """One side of one join in one task."""

    def __init__(
        self,
        name: str,
        changelog_topic: str,
        width_ms: int,
        backend: Backend | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self.name = name
        self.changelog_topic = changelog_topic
        self.kept = Kept(backend or MemoryBackend(), has_windows=False)
        self.width_ms = width_ms
        self.waits = waits  # whether rows may wait
        self.newest = NEVER  # of the rows that ever were
        self.due = NOT_SOON  # the first time at which `expire` has something to do
        self.segments: dict[int, Segment] = {}
        self._heap: list[Expired] = []  # rows that wait, and some that did
        self._gone: list[tuple[bytes, int]] = []  # pieces to delete, with timestamps
        self._arrivals = 0
        self._last_piece = 0
        self._note: bytes | None = None
        self._is_note_logged = True

    # Rows

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in memory."""
        return not (self.kept.is_durable and any(each.missing for each in self.segments.values()))

    def matches(self, key: bytes, low: int, high: int) -> list[Row]:
        """The rows of `key` with low <= timestamp <= high, oldest first, then as they arrived."""
        found: list[Row] = []
        width = self.width_ms
        for number in range(max(0, low) // width, high // width + 1):
            if (segment := self.segments.get(number)) is None:
                continue
            if segment.missing:
                self._load_page(number, segment, key)
            if rows := segment.rows.get(key):
                found += [row for row in rows if low <= row[0] <= high]
        if len(found) > 1:
            found.sort(key=itemgetter(0))
        return found

    def put(self, key: bytes, stamp: int, value: bytes, *, waits: bool = False) -> None:
        """Adds a row."""
        number = stamp // self.width_ms
        if (segment := self.segments.get(number)) is None:
            segment = self.segments[number] = Segment()
            self.due = min(self.due, (number + 1) * self.width_ms - 1)
        if segment.missing:
            self._load_page(number, segment, key)
        self._add(segment, key, stamp, value, waits=waits)
        segment.events.append((key, stamp, value, WAITS if waits else PLAIN))

    def meet(self, key: bytes, low: int, high: int) -> None:
        """The rows that `matches` gives for this have met a partner."""
        width = self.width_ms
        for number in range(max(0, low) // width, high // width + 1):
            segment = self.segments.get(number)
            if segment is None or not (waiting := segment.waiting.get(key)):
                continue
            for stamp in {row.stamp for row in waiting if low <= row.stamp <= high}:
                self._meet(segment, key, stamp)
                segment.events.append((key, stamp, None, MET))

    def expire(self, limit: int) -> list[Expired]:
        """Rows up to `limit` are over: those of them that waited, in order. Spans leave whole."""
        found: list[Expired] = []
        if limit < self.due:
            return found
        for number, segment in sorted(self.segments.items()):
            if segment.missing and number * self.width_ms <= limit and self.waits:
                self._load(number, segment, range(PAGES))
        while self._heap and self._heap[0].stamp <= limit:
            row = heappop(self._heap)
            segment = self.segments[row.stamp // self.width_ms]
            if row in segment.waiting.get(row.key, ()):
                segment.waiting[row.key].remove(row)
                segment.events.append((row.key, row.stamp, None, MET))
                found.append(row)
        for number in [n for n in self.segments if (n + 1) * self.width_ms - 1 <= limit]:
            self._drop(number)
        self._reckon()
        return found

    def _add(self, segment: Segment, key: bytes, stamp: int, value: bytes, *, waits: bool) -> None:
        if (rows := segment.rows.get(key)) is None:
            segment.rows[key] = [(stamp, value)]
        else:
            rows.append((stamp, value))
        self.newest = max(self.newest, stamp)
        if waits:
            self._arrivals += 1
            row = Expired(stamp, key, self._arrivals, value)
            segment.waiting.setdefault(key, []).append(row)
            heappush(self._heap, row)
            self.due = min(self.due, stamp)

    @staticmethod
    def _meet(segment: Segment, key: bytes, stamp: int) -> None:
        """The rows of a key and time wait no more."""
        waiting = [row for row in segment.waiting.pop(key, ()) if row.stamp != stamp]
        if waiting:
            segment.waiting[key] = waiting

    def _drop(self, number: int) -> None:
        """A segment is over."""
        segment = self.segments.pop(number)
        last = (number + 1) * self.width_ms - 1
        self._gone += [(piece, last) for piece in segment.pieces]

    def _reckon(self) -> None:
        """When `expire` has to do something next."""
        ends = ((number + 1) * self.width_ms - 1 for number in self.segments)
        unread = (n * self.width_ms for n, segment in self.segments.items() if segment.missing)
        self.due = min(
            min(ends, default=NOT_SOON),
            min(unread, default=NOT_SOON) if self.waits else NOT_SOON,
            self._heap[0].stamp if self._heap else NOT_SOON,
        )

    # Pages

    def _load_page(self, number: int, segment: Segment, key: bytes) -> None:
        page = crc32(key) % PAGES
        if page in segment.missing:
            self._load(number, segment, [page])

    def _load(self, number: int, segment: Segment, pages: Iterable[int]) -> None:
        """Makes objects of pages that are on disk."""
        for page in pages:
            if page in segment.missing:
                segment.missing.discard(page)
                start = number * self.width_ms
                low, high = PIECE_KEY.pack(start, page, 0), PIECE_KEY.pack(start, page + 1, 0)
                for _, value in self._pieces(self.kept.keys_between(low, high)):
                    self._fold(segment, value)
                    segment.bytes += len(value)

    def _pieces(self, keys: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Pieces as they are kept, by their keys."""
        for first in range(0, len(keys), READ_PIECES):
            found = self.kept.take(NO_WINDOW, keys[first : first + READ_PIECES])
            for key, value in zip(found.keys, found.values, strict=True):
                assert value is not None
                yield key, value

    def _fold(self, segment: Segment, piece: bytes) -> None:
        try:
            events = decode_piece(piece)
        except SerdeError as error:
            raise ProcessingError(
                f"store {self.name!r}: a piece of {self.changelog_topic!r} cannot be read: "
                f"{error.words}"
            ) from error
        segment.count += len(events)
        for key, stamp, value, kind in events:
            if kind == MET:
                self._meet(segment, key, stamp)
            else:
                assert value is not None
                self._add(segment, key, stamp, value, waits=kind == WAITS)

    # The changelog

    @property
    def note(self) -> bytes | None:
        """What the operator wants to find again after a restart besides rows."""
        if self._note is None:
            found = self.kept.take(NO_WINDOW, [NOTE_KEY])
            self._note = found.values[0] if found.keys else None
        return self._note

    @note.setter
    def note(self, note: bytes) -> None:
        if note != self.note:
            self._note, self._is_note_logged = note, False

    def changelog(self) -> Columns | None:
        """What changed since the last call; None for nothing."""
        columns = Columns([], [], [])
        for number, segment in self.segments.items():
            if not segment.events:
                continue
            for page, events in _by_page(segment.events):
                for piece, stamp in pieces_of(events):
                    self._last_piece += 1
                    key = PIECE_KEY.pack(number * self.width_ms, page, self._last_piece)
                    segment.pieces.append(key)
                    segment.bytes += len(piece)
                    _append(columns, key, piece, stamp)
            segment.count += len(segment.events)
            segment.events.clear()
        for key, stamp in self._gone:
            _append(columns, key, None, stamp)
        self._gone.clear()
        if not self._is_note_logged:
            self._is_note_logged = True
            _append(columns, NOTE_KEY, self._note, max(0, self.newest))
        if not len(columns):
            return None
        if self.kept.is_durable:
            self.kept.write(columns, None)
        return columns

    def checkpoint(self, offset: int | None, now_ms: int) -> None:
        """The commit of everything that `changelog` gave so far went through."""
        self.kept.checkpoint(offset, now_ms)

    def restore(self, columns: Columns) -> None:
        """Takes pieces back as the changelog tells. SerdeError, with the record's index, for one
        that is no piece of this store."""
        for index, (key, value) in enumerate(zip(columns.keys, columns.values, strict=True)):
            if key == NOTE_KEY:
                continue
            if key is None or len(key) != PIECE_KEY.size:
                raise SerdeError(f"{key!r} is not the key of a piece", index)
            if value is not None and index in (0, len(columns) - 1):
                try:
                    decode_piece(value)
                except SerdeError as error:
                    raise SerdeError(error.words, index) from error
        self.kept.load(columns)
        self._note = None

    def settle(self) -> None:
        """The restore is over, for now: its pieces become pages, at once or when looked for."""
        self.kept.settle()
        self.newest = max(self.newest, self.kept.newest)
        if not self.kept.is_durable and self.kept.is_empty:
            return
        _ = self.note  # is no piece
        others = {NOTE_KEY, *(piece for piece, _ in self._gone)}
        keys = [key for key in self.kept.keys_between(b"", None) if key not in others]
        for start, some in groupby(keys, key=lambda key: PIECE_KEY.unpack(key)[0]):
            number, pieces = start // self.width_ms, list(some)
            segment = self.segments.setdefault(number, Segment())
            new = set(pieces).difference(segment.pieces)
            segment.pieces += sorted(new)
            segment.missing |= {PIECE_KEY.unpack(key)[1] for key in new}
            self._last_piece = max(self._last_piece, *(PIECE_KEY.unpack(key)[2] for key in pieces))
            if not self.kept.is_durable:
                self._load(number, segment, range(PAGES))
        self._reckon()

    # Memory

    @property
    def object_bytes(self) -> int:
        """About how many bytes the rows take that are objects."""
        return sum(
            (segment.count + len(segment.events)) * ROW_BYTES + segment.bytes
            for segment in self.segments.values()
        )

    def shrink(self, bytes_max: int) -> None:
        """Lets go of segments that are on disk as they are here, until the rest fits."""
        assert self.kept.is_durable, f"store {self.name!r} is nowhere but in memory"
        excess = self.object_bytes - bytes_max
        for number, segment in sorted(self.segments.items()):
            if excess <= 0:
                break
            if segment.events or not segment.count:
                continue
            excess -= segment.count * ROW_BYTES + segment.bytes
            left = self.segments[number] = Segment()
            left.pieces = segment.pieces
            left.missing = {PIECE_KEY.unpack(key)[1] for key in segment.pieces}
            if segment.waiting:
                self._heap = [e for e in self._heap if e.stamp // self.width_ms != number]
                heapify(self._heap)
        self._reckon()

    def view(self) -> Any:
        """Sides of joins have nothing for users to look at."""
        raise TopologyError(f"store {self.name!r} has no rows for users to look at")


# Pieces


def pieces_of(events: list[Event]) -> Iterator[tuple[bytes, int]]:
    """Events as values of the changelog, each with its newest timestamp."""
    columns = list(zip(*events, strict=True))
    piece: bytes = msgpack.packb([PIECE_VERSION, *columns])
    if len(piece) <= PIECE_BYTES or len(events) == 1:
        yield piece, max(columns[1])
        return
    half = len(events) // 2
    yield from pieces_of(events[:half])
    yield from pieces_of(events[half:])


def decode_piece(piece: bytes) -> list[Event]:
    """The events of a value of the changelog. SerdeError for anything else."""
    try:
        version, *columns = msgpack.unpackb(piece, use_list=False)
        if version != PIECE_VERSION or len(columns) != len(Event.__args__):  # type: ignore[attr-defined]
            raise ValueError(f"version {version!r}, expected {PIECE_VERSION}")
        return list(zip(*columns, strict=True))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise SerdeError(f"no rows of a join: {error}") from None


def _by_page(events: list[Event]) -> Iterator[tuple[int, list[Event]]]:
    """The events of each page, in their order."""
    pages: list[list[Event]] = [[] for _ in range(PAGES)]
    for event in events:
        pages[crc32(event[0]) % PAGES].append(event)
    return ((page, some) for page, some in enumerate(pages) if some)


def _append(columns: Columns, key: bytes, value: bytes | None, stamp: int) -> None:
    for column, entry in zip(
        (columns.keys, columns.values, columns.timestamps), (key, value, stamp), strict=True
    ):
        assert isinstance(column, list)
        column.append(entry)
