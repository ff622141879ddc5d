"""Rows of windows that differ from key to key: sessions and sliding windows.               [P]

    spans       key  [1, 5] [40, 48]     the windows of each key, ascending
    bucket      partials, timestamps, headers of each window, in dicts by its Span

A window is a Span, an object that stays the same while its bounds move. So a store has one bucket,
as a store without windows, whose keys are Spans in the place of bytes. Bounds are always objects.
The rest of a row may be kept as bytes alone: after a restart, and on disk once memory is scarce.

    changelog record    key    the key's bytes, end, start of a session; key, start of a sliding
                               window: as SessionWindowedSerializer and TimeWindowedSerializer

A window whose bounds move is deleted under its old key and put under its new one, at most once a
commit. The note of the operator stands among the rows under NOTE_KEY, shorter than any key.

Owns   bounds, rows, what the changelog has not seen yet.
Never  decodes a key unless somebody looks at it.
Source Kafka Streams' SessionStore, SessionKeySchema, WindowStore.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from kafkalite.core.types import Columns, Headers, Windowed
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.serde.serde import Codec
from kafkalite.serde.windowed import SESSION, TIME
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY
from kafkalite.streams.local.state.store import (
    Layout,
    Picks,
    StateStore,
    StoreView,
    headers_of,
)
from kafkalite.streams.windows import SpanWindow

Bounds = tuple[int, int]
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


class SpanStore(StateStore):
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
        self._length = spans.key_size_ms
        self._cold = 0  # windows whose rows are kept as bytes alone
        self._gone: dict[bytes, int] = {}  # changelog keys that are to be deleted
        self._has_loaded = True  # whether rows were loaded that have no Span yet
        self._row_note: bytes | None = None
        super().__init__(name, changelog_topic, layout, None, key_codec, value_codec, backend)
        self.rows = self.bucket(NO_WINDOW)

    # Windows

    def place(self, key: bytes, start: int, end: int) -> bytes:
        """The key of a row in topics."""
        return key + (SESSION.pack(end, start) if self._length is None else TIME.pack(start))

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
        its = self.spans.get(asked.key)
        if is_hidden or its is None:
            return None
        at = _place_of(its, asked.start)
        return its[at] if at < len(its) and its[at].bounds == asked.bounds else None

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

    @property
    def note_key(self) -> bytes:
        """The key under which the changelog has the note."""
        return NOTE_KEY

    @property
    def note(self) -> bytes | None:
        """What the operator wants to find again after a restart besides rows."""
        if self._row_note is None:
            found = self.kept.take(NO_WINDOW, [NOTE_KEY])
            self._row_note = found.values[0] if found.keys else None
        return self._row_note

    @note.setter
    def note(self, note: bytes) -> None:
        if note != self.note:
            self._row_note, self._is_note_logged = note, False

    def restore(self, columns: Columns) -> None:
        """Takes rows back as the changelog tells; the later record of a key replaces the earlier.

        SerdeError, with the record's index, for one that is no row of this store; a few of each
        batch are looked at.
        """
        if not len(columns):
            return
        self._check_rows(columns)
        self.kept.load(columns)
        self._row_note, self._has_loaded = None, True
        for place in columns.keys if self.spans else ():
            if place != NOTE_KEY:
                self._unsettle(self._read_place(place))

    def _unsettle(self, told: Span) -> None:
        """Lets go of a window that the changelog tells of again."""
        its = self.spans.get(told.key, [])
        for span in [each for each in its if each.bounds == told.bounds]:
            its.remove(span)
            self.rows.forget(span)
            self._cold -= span.is_cold
        if not its:
            self.spans.pop(told.key, None)

    def settle(self) -> None:
        """What a restore has left gets Spans, whose rows are bytes until they are wanted."""
        self.kept.settle()
        if not self._has_loaded:
            return
        self._has_loaded = False
        for place in self.kept.keys_between(b"", None):
            if place != NOTE_KEY:
                self._settle(self._read_place(place))
        bucket = self.bucket(NO_WINDOW)
        bucket.newest = max(bucket.newest, self.newest)

    def _settle(self, span: Span) -> None:
        its = self.spans.get(span.key, [])
        if not any(each.bounds == span.bounds for each in its):
            span.logged = span.told = span.bounds
            span.is_cold = True
            self._cold += 1
            self.insert(span)

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
        headers: list[Headers] = [()] * len(keys)
        if not self._is_note_logged:
            self._is_note_logged = True
            keys.append(NOTE_KEY)
            values.append(self._row_note)
            stamps.append(max(0, self.newest))
            headers.append(())
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

    def view(self) -> SpanView:
        """The store as users look into it."""
        return SpanView(self)

    def record_keys(self, picks: Picks) -> list[bytes]:
        """The keys of windows in topics."""
        return [self.place(s.key, s.start, s.end) for _, spans in picks for s in spans]

    def key_objects(self, picks: Picks) -> Sequence[Any]:
        """The keys as users see them."""
        spans = [span for _, its in picks for span in its]
        return self.windowed_keys([span.key for span in spans], [span.bounds for span in spans])

    def windowed_keys(self, keys: Sequence[bytes], bounds: Sequence[Bounds]) -> Sequence[Any]:
        """The keys of windows as users see them."""
        pairs = zip(self.inner_keys(keys), bounds, strict=True)
        return [Windowed(key, start, end) for key, (start, end) in pairs]

    @property
    def is_of_sessions(self) -> bool:
        """Whether windows are as long as their records make them."""
        return self._length is None


class SpanView(StoreView):
    """A store of sessions or sliding windows to look into: decoded keys and rows, in order."""

    def __init__(self, store: SpanStore) -> None:
        self._spans = store
        super().__init__(store)

    def get(self, key: Any) -> Any:
        """The row of a `Windowed(key, start, end)`, None when there is none."""
        if not isinstance(key, Windowed):
            name = self._spans.name
            raise TopologyError(f"store {name!r}: expected a Windowed key, got {key!r}")
        data = self._spans.key_bytes(key.key)
        bounds = (key.start, key.end)
        found = [span for span in self._spans.spans.get(data, ()) if span.bounds == bounds]
        return next((row for _, row in self._shown(found)), None)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every (key, row)."""
        return self._shown(sorted(self._spans.every(), key=_order))

    def range(self, start: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs with keys from `start` to `end`, both included; None: no bound."""
        low = b"" if start is None else self._spans.key_bytes(start)
        high = None if end is None else self._spans.key_bytes(end)
        keys = sorted(k for k in self._spans.spans if k >= low and (high is None or k <= high))
        return self._shown([span for key in keys for span in self._spans.spans[key]])

    def fetch(self, key: Any, start: int, end: int) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs of a key's sessions that overlap [start, end], or of its sliding
        windows that start in it."""
        its = self._spans.spans.get(self._spans.key_bytes(key), ())
        is_of_sessions = self._spans.is_of_sessions
        return self._shown(
            [s for s in its if s.start <= end and (s.end if is_of_sessions else s.start) >= start]
        )

    def __len__(self) -> int:
        """How many rows there are."""
        return sum(map(len, self._spans.spans.values()))

    def _shown(self, spans: list[Span]) -> Iterator[tuple[Any, Any]]:
        self._spans.warm_spans(spans)
        rows = self._spans.rows
        keys = self._spans.key_objects([(rows, spans)])
        return iter(list(zip(keys, self._spans.layout.rows(rows, spans), strict=True)))


def _place_of(spans: list[Span], start: int) -> int:
    return bisect_left(spans, start, key=START_OF)


def _order(span: Span) -> tuple[bytes, int]:
    return span.key, span.start
