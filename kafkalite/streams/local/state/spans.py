"""Rows of windows that differ from key to key, as objects: sessions and sliding windows.   [P]

    spans       key  [1, 5] [40, 48]     the windows of each key, ascending
    bucket      partials, timestamps, headers of each window, in dicts by its Span

A window is a Span, an object that stays the same while its bounds move. So a store has one bucket,
as a store without windows, whose keys are Spans in the place of bytes. Bounds are always objects.
The rest of a row may be kept as bytes alone: after a restart, and on disk once memory is scarce.

Owns   bounds, rows, what the changelog has not seen yet.
Source Kafka Streams' SessionStore, WindowStore.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from kafkalite.core.types import Columns, Headers
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.serde.serde import Codec
from kafkalite.serde.windowed import SESSION, TIME
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY
from kafkalite.streams.local.state.store import Layout, Picks, headers_of
from kafkalite.streams.local.state.window_keys import Bounds, Known, WindowKeyStore
from kafkalite.streams.windows import SpanWindow

START_OF = attrgetter("start")


@dataclass(slots=True, eq=False)
class Span:
    """A window of a key, both ends included.

    `logged`, `told`: the bounds under which the changelog and those below know it, if they do.
    """

    key: bytes
    start: int
    end: int
    logged: Bounds | None = None
    told: Bounds | None = None
    is_cold: bool = False  # its row is kept as bytes alone
    is_gone: bool = False
    is_closed: bool = False

    @property
    def bounds(self) -> Bounds:
        """First and last timestamp."""
        return self.start, self.end


class SpanStore(WindowKeyStore):
    """One store of one task."""

    def __init__(
        self,
        name: str,
        changelog_topic: str,
        layout: Layout,
        spans: SpanWindow,
        key_codec: Codec,
        value_codec: Codec,
        backend: Backend | None = None,
    ) -> None:
        self.spans: dict[bytes, list[Span]] = {}
        self._cold = 0  # windows whose rows are kept as bytes alone
        self._gone: dict[bytes, int] = {}  # changelog keys that are to be deleted
        super().__init__(name, changelog_topic, layout, spans, key_codec, value_codec, backend)
        self.rows = self.bucket(NO_WINDOW)

    # Windows

    def _read_place(self, place: bytes) -> Span:
        """The window of a row's key."""
        try:
            if self._length is None:
                end, start = SESSION.unpack_from(place, len(place) - SESSION.size)
                return Span(place[: -SESSION.size], start, end)
            (start,) = TIME.unpack_from(place, len(place) - TIME.size)
            return Span(place[: -TIME.size], start, start + self._length)
        except Exception:
            raise SerdeError(f"ValueError: no window in the key {place!r:.80}") from None

    def find(self, places: Sequence[bytes]) -> list[Span | None]:
        """The windows of rows' keys, with their rows; None where joins find none."""
        asked = list(map(self._read_place, places))
        self.warm(span.key for span in asked)
        return [self._shown(span) for span in asked]

    def _shown(self, asked: Span) -> Span | None:
        is_hidden = (asked.end if self._length is None else asked.start) < self.shown_from
        return None if is_hidden else self._find(asked)

    def _find(self, asked: Span) -> Span | None:
        """The window of a key with these bounds; None: there is none."""
        its = self.spans.get(asked.key, ())
        at = _place_of(its, asked.start)
        while at < len(its) and its[at].start == asked.start:
            if its[at].end == asked.end:
                return its[at]
            at += 1
        return None

    def every(self) -> Iterator[Span]:
        """All windows."""
        return chain.from_iterable(self.spans.values())

    def insert(self, span: Span) -> None:
        """Takes a window in."""
        its = self.spans.setdefault(span.key, [])
        at = len(its) if not its or its[-1].start < span.start else _place_of(its, span.start)
        its.insert(at, span)

    def remove(self, span: Span, stamp: int) -> None:
        """Removes a window, at `stamp` for the changelog if that knows it."""
        its = self.spans[span.key]
        its.remove(span)
        if not its:
            del self.spans[span.key]
        span.is_gone = True
        if span.logged is not None:
            logged = self.place(span.key, *span.logged)
            self._gone[logged] = stamp
            if span.is_cold and not self.kept.is_durable:
                self.kept.take(NO_WINDOW, [logged])  # no longer there
        self._cold -= span.is_cold
        self.rows.forget(span)
        self.rows.unlogged.pop(span, None)
        self.rows.changed.pop(span, None)

    def warm(self, keys: Iterable[bytes]) -> None:
        """Reads the rows of all windows of `keys` that are kept as bytes alone."""
        if self._cold:
            its = (self.spans.get(key, ()) for key in dict.fromkeys(keys))
            self.warm_spans(chain.from_iterable(its))

    def warm_spans(self, spans: Iterable[Span]) -> None:
        """Reads the rows of windows that are kept as bytes alone."""
        if not self._cold:
            return
        wanted = {self.place(s.key, *s.bounds): s for s in spans if s.is_cold}
        found = self.kept.take(NO_WINDOW, list(wanted))
        if not found.keys:
            return
        its = [wanted[key] for key in found.keys]
        try:
            stored = self._value_codec.deserialize(self.changelog_topic, found.values)
            self.layout.load(self.rows, its, stored)
        except (SerdeError, LookupError, TypeError, ValueError) as error:
            raise ProcessingError(
                f"store {self.name!r}: a row of {self.changelog_topic!r} cannot be read: {error!r}"
                "; rows of another shape need another name"
            ) from error
        self.rows.stamps.update(zip(its, found.stamps, strict=True))
        for span, headers in zip(its, found.headers or (), strict=False):
            if headers:
                self.rows.headers[span] = headers
        for span in its:
            span.is_cold = False
        self._cold -= len(its)
        self._measure(found.keys, found.values)

    # Restoring

    def _unsettle(self, places: Sequence[bytes]) -> None:
        for place in places if self.spans else ():
            if place != NOTE_KEY:
                self._let_go(self._read_place(place))

    def _let_go(self, told: Span) -> None:
        if (span := self._find(told)) is None:
            return
        its = self.spans[told.key]
        its.remove(span)
        self.rows.forget(span)
        self._cold -= span.is_cold
        if not its:
            del self.spans[told.key]

    def _settle(self, places: Sequence[bytes]) -> None:
        for place in places:
            span = self._read_place(place)
            if self._find(span) is None:
                span.logged = span.told = span.bounds
                span.is_cold = True
                self._cold += 1
                self.insert(span)
        bucket = self.bucket(NO_WINDOW)
        bucket.newest = max(bucket.newest, self.newest)

    # The changelog

    def changelog(self) -> Columns | None:
        """What changed since the last call; None for nothing."""
        rows, spans = self.rows, list(self.rows.unlogged)
        gone, self._gone = self._gone, {}
        rows.unlogged = {}
        for span in spans:
            if span.logged is not None and span.logged != span.bounds:
                gone[self.place(span.key, *span.logged)] = rows.stamps[span]
            span.logged = span.bounds
        places = self.record_keys([(rows, spans)])
        for place in places:
            gone.pop(place, None)  # there is a row again
        keys, stamps = list(gone), list(gone.values())
        values: list[bytes | None] = [None] * len(keys)
        self._log_note(keys, values, stamps)
        headers: list[Headers] = [()] * len(keys)
        keys += places
        values += self._value_codec.serialize(self.changelog_topic, self.layout.dump(rows, spans))
        stamps += [rows.stamps[span] for span in spans]
        headers += headers_of([(rows, spans)]) or [()] * len(spans)
        if not keys:
            return None
        columns = Columns(keys, values, stamps, None, headers if any(headers) else None)
        if self.kept.is_durable:
            self.kept.write(columns, None)
        self._measure(keys, values)
        return columns

    # Memory

    def shrink(self, bytes_max: int) -> None:
        """Lets go of rows that are on disk as they are here until the rest fits. Rows that the
        changelog or somebody below has yet to hear of stay, and so do all bounds."""
        assert self.kept.is_durable, f"store {self.name!r} is nowhere but in memory"
        excess = (self.object_bytes - bytes_max) // self._row_bytes
        rows = self.rows
        clean = (s for s in rows.stamps if s not in rows.unlogged and s not in rows.changed)
        for span in list(islice(clean, max(0, excess))):
            rows.forget(span)
            span.is_cold = True
            self._cold += 1

    # For users

    def record_keys(self, picks: Picks) -> list[bytes]:
        """The keys of windows in topics."""
        return [self.place(s.key, s.start, s.end) for _, spans in picks for s in spans]

    def key_objects(self, picks: Picks) -> Sequence[Any]:
        """The keys as users see them."""
        spans = [span for _, its in picks for span in its]
        return self.windowed_keys([span.key for span in spans], [span.bounds for span in spans])

    def keys_there(self) -> Iterable[bytes]:
        """The keys that have windows."""
        return self.spans

    def windows_of(self, keys: Iterable[bytes]) -> list[Known]:
        """The windows of some keys."""
        its = chain.from_iterable(self.spans.get(key, ()) for key in keys)
        return [Known(span.key, span.start, span.end, span) for span in its]

    def rows_of(self, windows: Sequence[Span]) -> Sequence[Any]:
        """The rows of some windows."""
        self.warm_spans(windows)
        return self.layout.rows(self.rows, windows)


def _place_of(spans: Sequence[Span], start: int) -> int:
    return bisect_left(spans, start, key=START_OF)
