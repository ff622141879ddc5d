"""Sessions and sliding windows as objects: telling below, closing, final rows.               [P]

Records go in one of two ways. A batch whose updates wait for the commit is folded by columns as far
as it can be. Else records go one by one, each with all its updates, as in Kafka Streams; so does a
batch on which a function may fail without an end to the task.

Owns   when windows close, and what those below know of them.
Source Kafka Streams' KStreamSessionWindowAggregate, KStreamSlidingWindowAggregate,
       KTableSuppressProcessor.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import attrgetter
from typing import Any

from kafkalite.core.columns import greatest_so_far
from kafkalite.core.types import Headers
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import MADE, Batch, Made, Origin, Taken
from kafkalite.streams.local.operators.rows import Segment
from kafkalite.streams.local.operators.shown import Shown
from kafkalite.streams.local.operators.windowed import NEVER
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.spans.operator import SpanOperator
from kafkalite.streams.local.state import Span, SpanStore

END_OF = attrgetter("end")


@dataclass(slots=True)
class Updates:
    """Rows on their way to those below, side by side. `records`: the record that each is from."""

    keys: list[bytes] = field(default_factory=list)
    bounds: list[tuple[int, int]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    olds: list[Any] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    records: list[int] = field(default_factory=list)

    def add(
        self, key: bytes, bounds: tuple[int, int], value: Any, old: Any, stamp: int, record: int
    ) -> None:
        """One row, without headers."""
        self.keys.append(key)
        self.bounds.append(bounds)
        self.values.append(value)
        self.olds.append(old)
        self.stamps.append(stamp)
        self.headers.append(())
        self.records.append(record)


class SpanAggregate(SpanOperator):
    """One row per key and window, as objects."""

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        super().__init__(node, runtime)
        assert isinstance(self.rows.store, SpanStore)
        self.store = self.rows.store
        self.shown = Shown(node, self.store, runtime)
        self.bucket = self.store.rows
        self._ends: list[tuple[int, int, Span]] = []  # a heap; a window may end later by now
        self._opened = 0  # windows so far, so that no two entries of the heap are alike
        self._gone = Updates()  # windows of which those below have yet to hear that they are gone

    def fold(self, batch: Batch, whole: Segment) -> int:
        """Folds records into their windows: the stream time behind the last one."""
        whole = whole.as_lists()
        self.store.warm(whole.keys)
        times = self._times(batch)
        self.take_in(batch, whole, times)
        return times[-1]

    @property
    def waiting(self) -> int:
        """How many changes those below have yet to hear of."""
        return self.rows.waiting

    @abstractmethod
    def take_in(self, batch: Batch, whole: Segment, times: Sequence[int]) -> None:
        """Folds records into their windows; `times` judge them."""

    def _times(self, batch: Batch) -> Sequence[int]:
        """The stream time by which each record is judged."""
        if not self.is_timed:
            return list(accumulate(batch.timestamps, max, initial=self.time))[1:]
        if batch.times is None:  # updates of a table
            return [self.time] * len(batch)
        return [max(time, self.time) for time in batch.times]

    def note_shown(self, timestamps: Sequence[int] = ()) -> None:
        """Records of `timestamps` have come: joins find no rows any more of much older windows."""
        self.shown.note(self.time, timestamps)

    # Windows

    def open(self, span: Span) -> None:
        """A new window: it will close."""
        self.store.insert(span)
        self._opened += 1
        heappush(self._ends, (span.end, self._opened, span))

    def change(self, span: Span, old: Any = None) -> None:
        """A window's row has changed; `old` is what it was, if somebody below needs it."""
        self.bucket.unlogged[span] = None
        if self.rows.tells and self.rows.is_cached and span not in self.bucket.changed:
            self.bucket.changed[span] = old
            self.rows.waiting += 1

    def old_of(self, span: Span) -> Any:
        """The row that those below know of a window, if they need it."""
        if not self.rows.needs.old:
            return None
        changed = self.bucket.changed
        return changed[span] if span in changed else self.row(span)

    def row(self, span: Span) -> Any:
        """The row of a window."""
        return self.rows.layout.rows(self.bucket, [span])[0]

    def drop(self, span: Span, time: int, old: Any) -> None:
        """Removes a window, and may tell operators below; `old` is as in `change`."""
        if self.rows.is_cached and span.told is not None:
            stamp = min(self.bucket.stamps[span], span.told[1])
            self._gone.add(span.key, span.told, None, old, stamp, 0)
            self.rows.waiting += 1
        self.store.remove(span, time)

    # Telling below

    def flush(self) -> None:
        """Tells below what changed since the last commit."""
        self.rows.waiting = 0
        self._tell_gone()
        spans = list(self.bucket.changed)
        if spans:
            spans.sort(key=self.bucket.stamps.__getitem__)  # stream time below grows step by step
            self.rows.forward(self.batch(self._changes(spans), MADE))

    def _tell_gone(self) -> None:
        if self._gone.keys:
            gone, self._gone = self._gone, Updates()
            self.rows.forward(self.batch(gone, MADE))

    def _changes(self, spans: Sequence[Span]) -> Updates:
        """What those below have yet to hear of windows."""
        updates, bucket = Updates(), self.bucket
        for span, row in zip(spans, self.rows.layout.rows(bucket, spans), strict=True):
            old, stamp = bucket.changed.pop(span), bucket.stamps[span]
            if span.told is not None and span.told != span.bounds:
                updates.add(span.key, span.told, None, old, min(stamp, span.told[1]), 0)
                old = None
            updates.add(span.key, span.bounds, row, old, stamp, 0)
            updates.headers[-1] = bucket.headers.get(span, ())
            span.told = span.bounds
        return updates

    def batch(self, updates: Updates, origin: Origin) -> Batch:
        """Rows as a batch."""
        store, pairs = self.store, zip(updates.keys, updates.bounds, strict=True)
        keys = None
        if self.rows.needs.key:
            keys = store.windowed_keys(updates.keys, updates.bounds)
        return Batch(
            updates.stamps,
            origin,
            keys,
            [store.place(key, *bounds) for key, bounds in pairs],
            updates.values,
            None,
            updates.olds if self.rows.needs.old else None,
            updates.headers if any(updates.headers) else None,
        )

    def tell_each(self, updates: Updates, batch: Batch) -> None:
        """Tells below of updates, each of which one record of `batch` led to."""
        if updates.keys:
            self.rows.forward(self.batch(updates, Taken(batch.origin, updates.records)))

    # Closing

    def close_windows(self, batch: Batch | None = None) -> None:
        """Ends the windows that stream time has passed."""
        limit = self.time - self.held_ms
        if not self._ends or self._ends[0][0] >= limit:
            self.forget_closed()
            return
        place = self.store.place
        closed = [(s.end, place(s.key, s.start, s.end), s) for s in self._past(limit)]
        closed.sort()
        spans = [span for _, _, span in closed]
        self._tell_gone()
        times = () if batch is None else greatest_so_far(batch.timestamps, NEVER)
        # Where updates and final rows may meet below, each window's go together.
        for some in [[each] for each in spans] if self.runtime.ordering.forks else [spans]:
            origin: Origin = MADE
            if batch is not None and some:
                closer = bisect_left(times, some[-1].end + self.held_ms + 1)
                # Stream time may have passed the window before this batch, when it was restored.
                origin = Made(batch.origin, min(closer, len(batch) - 1))
            changed = [span for span in some if span in self.bucket.changed]
            if changed:
                self.rows.forward(self.batch(self._changes(changed), origin))
            if self.forward_final is not None and some:
                self.forward_final(self.batch(self._finals(some), origin))
        for span in spans:
            span.is_closed = True
            self.end(span)
        self.forget_closed()

    def _past(self, limit: int) -> Iterable[Span]:
        """The windows that end before `limit`, out of the heap."""
        ends = self._ends
        while ends and ends[0][0] < limit:
            _, number, span = heappop(ends)
            if span.is_gone:
                continue
            if span.end >= limit:
                heappush(ends, (span.end, number, span))
            else:
                yield span

    def _finals(self, spans: Sequence[Span]) -> Updates:
        """The rows of windows that close."""
        self.store.warm_spans(spans)
        updates, bucket = Updates(), self.bucket
        for span, row in zip(spans, self.rows.layout.rows(bucket, spans), strict=True):
            updates.add(span.key, span.bounds, row, None, bucket.stamps[span], 0)
            updates.headers[-1] = bucket.headers.get(span, ())
        return updates

    @abstractmethod
    def end(self, span: Span) -> None:
        """A window is closed, its final row is out."""

    @abstractmethod
    def forget_closed(self) -> None:
        """Removes what no record can need any more."""

    # Between batches

    def newest_end(self) -> int | None:
        """The end of the last window that is open; None: there is none."""
        return max((span.end for _, _, span in self._ends), default=None)

    def resume(self, stream_time: int) -> None:
        """Goes on after a restart: what was closed stays closed."""
        self.time = max(self.time, stream_time)
        limit = self.time - self.held_ms
        for span in sorted(self.store.every(), key=END_OF):
            if span.end < limit:
                span.is_closed = True
                self.end(span)
                continue
            self._opened += 1
            self._ends.append((span.end, self._opened, span))
        self.note_shown([self._ends[-1][0]] if self._ends else ())
        heapify(self._ends)
        self.forget_closed()
