"""The rows of a segment: what a side of a join keeps of some span of time.                   [P]

    put        a row, which may wait for a partner
    matches    the rows of a key in a span of time
    meet       those wait no more
    expire     the rows that wait no more because their time is over
    take_news  what the changelog has not seen yet, as pieces

A piece has the events of keys with one hash, the page: rows that the changelog knows and that have
met a partner, then new rows. A row that met its partner before the changelog saw it is a plain one.

Owns   the rows; the form of pieces; the choice of native code, made once at import.
Fails  with SerdeError for a piece that is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgpack

from kafkalite.errors import SerdeError

__all__ = [
    "INTERFACE",
    "MET",
    "NATIVE",
    "PAGES",
    "PLAIN",
    "WAITS",
    "Expired",
    "Piece",
    "PureSegmentRows",
    "Row",
    "SegmentRows",
    "decode_piece",
]

INTERFACE: Final = 1  # what the native module and this one agree on
PIECE_VERSION: Final = 1
PAGES: Final = 64  # of a segment, so that few rows are read for a key
ROW_BYTES: Final = 200  # about what a row takes here besides key and value
PLAIN, WAITS, MET = range(3)  # kinds of events: a row, a row that waits, rows that wait no more

Row = tuple[int, bytes]  # timestamp, value
Expired = tuple[int, bytes, bytes]  # timestamp, key, value
Piece = tuple[int, bytes, int]  # page, what the changelog gets, newest timestamp
Event = tuple[bytes, int, bytes | None, int]  # key, timestamp, value, kind


@dataclass(slots=True, eq=False)
class _Row:
    key: bytes
    stamp: int
    value: bytes
    number: int
    waits: bool
    is_logged: bool

    def __lt__(self, other: _Row) -> bool:
        return (self.stamp, self.key, self.number) < (other.stamp, other.key, other.number)


class PureSegmentRows:
    """Rows by key, in the order of their arrival."""

    def __init__(self) -> None:
        self._rows: dict[bytes, list[_Row]] = {}
        self._heap: list[_Row] = []  # rows that wait, and some that did
        self._news: list[_Row] = []
        self._mets: list[_Row] = []
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes_held(self) -> int:
        """About the memory of all of it."""
        return self._bytes

    @property
    def has_news(self) -> bool:
        """Whether there is something that the changelog has not seen."""
        return bool(self._news or self._mets)

    @property
    def next_wait(self) -> int | None:
        """The least timestamp of rows that wait; None: none does."""
        while self._heap:
            if self._heap[0].waits:
                return self._heap[0].stamp
            heappop(self._heap)
        return None

    def put(
        self, key: bytes, stamp: int, value: bytes, waits: bool = False, is_logged: bool = False
    ) -> None:
        """Adds a row."""
        row = _Row(key, stamp, value, self._count, waits, is_logged)
        self._rows.setdefault(key, []).append(row)
        self._count += 1
        self._bytes += ROW_BYTES + len(key) + len(value)
        if not is_logged:
            self._news.append(row)
        if waits:
            heappush(self._heap, row)

    def matches(self, key: bytes, low: int, high: int) -> list[Row]:
        """The rows of a key in a span of time, as they arrived."""
        rows = self._rows.get(key, ())
        return [(row.stamp, row.value) for row in rows if low <= row.stamp <= high]

    def meet(self, key: bytes, low: int, high: int, is_logged: bool = False) -> None:
        """The rows of a key in a span of time wait no more."""
        for row in self._rows.get(key, ()):
            if row.waits and low <= row.stamp <= high:
                row.waits = False
                if row.is_logged and not is_logged:
                    self._mets.append(row)

    def expire(self, limit: int) -> list[Expired]:
        """The rows that waited, up to this time: by timestamp, key and arrival."""
        found: list[Expired] = []
        while (first := self.next_wait) is not None and first <= limit:
            row = heappop(self._heap)
            row.waits = False
            if row.is_logged:
                self._mets.append(row)
            found.append((row.stamp, row.key, row.value))
        return found

    def take_news(self, bytes_max: int) -> list[Piece]:
        """What the changelog has not seen: pages, pieces and their newest timestamps."""
        pages: list[list[Event]] = [[] for _ in range(PAGES)]
        for row in self._mets:
            pages[crc32(row.key) % PAGES].append((row.key, row.stamp, None, MET))
        for row in self._news:
            kind = WAITS if row.waits else PLAIN
            pages[crc32(row.key) % PAGES].append((row.key, row.stamp, row.value, kind))
            row.is_logged = True
        self._news, self._mets = [], []
        return [
            (page, piece, newest)
            for page, events in enumerate(pages)
            if events
            for piece, newest in _packed(events, bytes_max)
        ]


def _packed(events: list[Event], bytes_max: int) -> Iterator[tuple[bytes, int]]:
    """Events as pieces, none larger than it may be unless it is of one event."""
    columns = list(zip(*events, strict=True))
    piece: bytes = msgpack.packb([PIECE_VERSION, *columns])
    if len(piece) <= bytes_max or len(events) == 1:
        yield piece, max(columns[1])
        return
    half = len(events) // 2
    yield from _packed(events[:half], bytes_max)
    yield from _packed(events[half:], bytes_max)


def decode_piece(piece: bytes) -> list[Event]:
    """The events of a value of the changelog. SerdeError for anything else."""
    try:
        version, *columns = msgpack.unpackb(piece, use_list=False)
        if version != PIECE_VERSION or len(columns) != len(Event.__args__):  # type: ignore[attr-defined]
            raise ValueError(f"version {version!r}, expected {PIECE_VERSION}")
        return list(zip(*columns, strict=True))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise SerdeError(f"no rows of a join: {error}") from None


NATIVE = False
if TYPE_CHECKING:
    from kafkalite.streams.local.state._segment_rows import SegmentRows
else:
    SegmentRows = PureSegmentRows
    try:
        from kafkalite.streams.local.state import _segment_rows

        if _segment_rows.INTERFACE == INTERFACE:
            NATIVE, SegmentRows = True, _segment_rows.SegmentRows
    except ImportError:
        pass
