"""Rows by key and time, in segments of time: what a side of a join keeps.                     [P]

A segment holds the rows of `width_ms` by their keys, as bytes and in the order of their arrival
(segment_rows.py). A lookup reads the few segments that its range touches, and a segment that is
over leaves as a whole.

    segments     0 ── 30s ── 60s ── 90s          rows ── key ── (timestamp, value) …
    piece     what a commit adds to a page: rows, and which rows have met a partner meanwhile
    page      the rows of a segment whose keys have one hash: the fold of its pieces, in order

A piece is a record of the changelog, and a row of the backend. So the changelog has one record
for many rows, and one deletion for each piece of a segment that is over.

    key       start of the segment Int64 · hash of the keys UInt8 · number of the piece Int64
    value     msgpack: [version, keys, timestamps, values, kinds]

Without a state directory all pages are in memory. With one, a page is read when a key of it is
looked for, and `shrink` lets go of segments that are on disk as they are here.

A row that waits has not met a partner yet. `expire` gives the waiting rows that are over.

Owns   the segments, and what the changelog has not seen yet.
Fails  with SerdeError for a record that is no piece, ProcessingError for a piece on disk.
Source Kafka Streams' AbstractRocksDBSegmentedBytesStore, TimeOrderedKeyAndJoinSide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any, Final
from zlib import crc32

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY
from kafkalite.streams.local.state.kept import Kept
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.state.segment_rows import (
    MET,
    PAGES,
    WAITS,
    Expired,
    Row,
    SegmentRows,
    decode_piece,
)

PIECE_KEY: Final = Struct(">qBq")
PIECE_BYTES: Final = 1 << 18  # of a piece; a larger row is a piece of its own
READ_PIECES: Final = 100  # that are decoded at a time
NEVER: Final = -1
NOT_SOON: Final = 1 << 62


class Segment:
    """The rows of one segment."""

    __slots__ = ("missing", "pieces", "rows")

    def __init__(self, pieces: list[bytes] | None = None) -> None:
        self.rows = SegmentRows()
        self.pieces = pieces or []  # their keys in the changelog
        self.missing = {PIECE_KEY.unpack(piece)[1] for piece in self.pieces}  # pages on disk alone


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
        self._gone: list[tuple[bytes, int]] = []  # pieces to delete, with timestamps
        self._last_piece = 0
        self._note: bytes | None = None
        self._is_note_logged = True

    # Rows

    def matches(self, key: bytes, low: int, high: int) -> list[Row]:
        """The rows of `key` with low <= timestamp <= high, oldest first, then as they arrived."""
        found: list[Row] = []
        for segment in self._segments_of(key, low, high):
            found += segment.rows.matches(key, low, high)
        if len(found) > 1:
            found.sort(key=itemgetter(0))
        return found

    def put(self, key: bytes, stamp: int, value: bytes, *, waits: bool = False) -> None:
        """Adds a row."""
        number = stamp // self.width_ms
        segment = self.segments.get(number) or self.add(number)
        if segment.missing:
            self.load_page(number, key)
        segment.rows.put(key, stamp, value, waits)
        self.newest = max(self.newest, stamp)
        if waits:
            self.due = min(self.due, stamp)

    def meet(self, key: bytes, low: int, high: int) -> None:
        """The rows that `matches` gives for this have met a partner."""
        for segment in self._segments_of(key, low, high):
            segment.rows.meet(key, low, high)

    def expire(self, limit: int) -> list[Expired]:
        """Rows up to `limit` are over: those of them that waited, in order. Spans leave whole."""
        found: list[Expired] = []
        if limit < self.due:
            return found
        for number in sorted(self.segments):
            if number * self.width_ms > limit:
                break
            if self.waits:
                self.load(number)
                found += self.segments[number].rows.expire(limit)
            if (number + 1) * self.width_ms - 1 <= limit:
                self.drop(number)
        self.reckon()
        return found

    def _segments_of(self, key: bytes, low: int, high: int) -> Iterator[Segment]:
        """The segments of a span of time, with the page of `key` in memory."""
        width = self.width_ms
        for number in range(max(0, low) // width, high // width + 1):
            if (segment := self.segments.get(number)) is not None:
                if segment.missing:
                    self.load_page(number, key)
                yield segment

    # Segments

    def add(self, number: int) -> Segment:
        """A segment begins."""
        segment = self.segments[number] = Segment()
        self.due = min(self.due, (number + 1) * self.width_ms - 1)
        return segment

    def drop(self, number: int) -> None:
        """A segment is over."""
        segment = self.segments.pop(number)
        last = (number + 1) * self.width_ms - 1
        self._gone += [(piece, last) for piece in segment.pieces]

    def reckon(self) -> None:
        """When `expire` has to do something next: with the first segment."""
        self.due = NOT_SOON
        if self.segments:
            number = min(self.segments)
            first = self.segments[number]
            self.due = (number + 1) * self.width_ms - 1
            if first.missing and self.waits:
                self.due = number * self.width_ms
            elif (wait := first.rows.next_wait) is not None:
                self.due = min(self.due, wait)

    # Pages

    def load_page(self, number: int, key: bytes) -> None:
        """Reads the page of a key, if it is on disk alone."""
        self._load(number, [crc32(key) % PAGES])

    def load(self, number: int) -> None:
        """Reads the pages of a segment that are on disk alone."""
        if self.segments[number].missing:
            self._load(number, range(PAGES))

    def _load(self, number: int, pages: Iterable[int]) -> None:
        segment = self.segments[number]
        for page in pages:
            if page in segment.missing:
                segment.missing.discard(page)
                start = number * self.width_ms
                low, high = PIECE_KEY.pack(start, page, 0), PIECE_KEY.pack(start, page + 1, 0)
                for _, value in self._pieces(self.kept.keys_between(low, high)):
                    self._fold(segment, value)

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
        rows = segment.rows
        for key, stamp, value, kind in events:
            if kind == MET:
                rows.meet(key, stamp, stamp, True)
            else:
                assert value is not None
                rows.put(key, stamp, value, kind == WAITS, True)
                self.newest = max(self.newest, stamp)

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
            for page, piece, stamp in segment.rows.take_news(PIECE_BYTES):
                self._last_piece += 1
                key = PIECE_KEY.pack(number * self.width_ms, page, self._last_piece)
                segment.pieces.append(key)
                _append(columns, key, piece, stamp)
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
                self.load(number)
        self.reckon()

    # Memory

    @property
    def object_bytes(self) -> int:
        """About how many bytes the rows take in memory."""
        return sum(segment.rows.bytes_held for segment in self.segments.values())

    def shrink(self, bytes_max: int) -> None:
        """Lets go of segments that are on disk as they are here, until the rest fits."""
        assert self.kept.is_durable, f"store {self.name!r} is nowhere but in memory"
        excess = self.object_bytes - bytes_max
        for number, segment in sorted(self.segments.items()):
            if excess <= 0:
                break
            if len(segment.rows) and not segment.rows.has_news:
                excess -= segment.rows.bytes_held
                self.segments[number] = Segment(segment.pieces)
        self.reckon()

    def view(self) -> Any:
        """Sides of joins have nothing for users to look at."""
        raise TopologyError(f"store {self.name!r} has no rows for users to look at")


def _append(columns: Columns, key: bytes, value: bytes | None, stamp: int) -> None:
    for column, entry in zip(
        (columns.keys, columns.values, columns.timestamps), (key, value, stamp), strict=True
    ):
        assert isinstance(column, list)
        column.append(entry)
