"""Aggregates over sliding windows: one for each set of records that a window can hold.       [P]

    difference 10      record at 20:   [10, 20]                       its left window
                       record at 25:   [15, 25] and [21, 31]          its own, and the right window
                                                                      of the record before it

Each record has a left window, which it ends, and a right window, which begins behind it; the right
one is there once a record is in it. A record that comes late splits what is there: its right window
begins as a copy of the window that held the records behind it.

A window begins at 0 or later: all records before the difference share the window [0, difference].

Facts  A window takes records while its end is not less than stream time - grace. A record is late
       when its right window is closed; of another one, windows that are closed are missed. Null
       keys and null values are dropped, and do not advance stream time. A row's timestamp is the
       newest of its records, and its headers are those of the record that changed it last. Order of
       updates: windows that are there from the newest to the oldest, the right window of the record
       before, the left window, the right window. Below the difference: windows that are there from
       the oldest on, the right window, that of the record before, [0, difference].
       A closed window stays for another difference, because windows are made of it.
Source Kafka Streams' KStreamSlidingWindowAggregate.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import MISSING
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.operators.rows import Segment, snapshot
from kafkalite.streams.local.operators.spans import SpanAggregate, Updates
from kafkalite.streams.local.operators.windowed import NEVER
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state import Span
from kafkalite.streams.local.state.spans import START_OF


class Step:
    """What one record does to the windows of its key."""

    __slots__ = ("behind", "copies", "held", "made", "missed", "told")

    def __init__(self) -> None:
        self.held: list[Span] = []  # windows that are there and take the record
        self.made: list[Span] = []  # new windows that take it
        self.behind: Span | None = None  # a new window that begins behind it
        self.copies: list[tuple[Span, Span]] = []  # of a window as it was, to a new one
        self.told: list[Span] = []  # windows in the order of their updates
        self.missed = 0  # windows that are closed

    def hold(self, span: Span, limit: int) -> None:
        """The record goes into a window that is there, unless that is closed."""
        if span.end < limit:
            self.missed += 1
        else:
            self.held.append(span)
            self.told.append(span)

    def make(self, span: Span, limit: int) -> bool:
        """The record goes into a new window; False: that is closed."""
        if span.end < limit:
            self.missed += 1
            return False
        self.made.append(span)
        self.told.append(span)
        return True


class SlidingAggregate(SpanAggregate):
    """One row per key and sliding window."""

    drops_null_values = True

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        super().__init__(node, runtime)
        self.length_ms = self.window.length_ms
        self.grace_ms = self.window.grace_ms
        self._closed: deque[Span] = deque()  # windows that are closed, by their ends
        self._newest_start = NEVER
        self._parts = list(zip(node.aggregates, self.bucket.partials, strict=True))

    def take_in(self, batch: Batch, whole: Segment, times: Sequence[int]) -> None:
        """Folds records in, one by one."""
        length, grace = self.length_ms, self.grace_ms
        updates = Updates()
        late: list[int] = []
        missed = 0
        for index, (key, timestamp, time) in enumerate(
            zip(whole.keys, whole.timestamps, times, strict=True)
        ):
            limit = time - grace
            if timestamp + length < limit:
                late.append(index)
                continue
            its = self.store.spans.get(key, [])
            step = (self._early if timestamp < length else self._step)(key, its, timestamp, limit)
            missed += step.missed
            self.take(step, batch, whole, index, updates)
        self.tell_each(updates, batch)
        self.report_late(batch, late, missed)

    # Which windows

    def _step(self, key: bytes, its: Sequence[Span], timestamp: int, limit: int) -> Step:
        """What a record does that has a left window of its own."""
        step, stamps, length = Step(), self.bucket.stamps, self.length_ms
        at = bisect_right(its, timestamp + 1, key=START_OF) - 1
        has_right = at >= 0 and its[at].start == timestamp + 1
        at -= has_right
        before: Span | None = None  # the newest window that ends before the record
        right: Span | None = None  # the newest that holds it, and may go on behind it
        has_left = False
        previous = -1  # the timestamp of the record before this one
        oldest = max(timestamp - 2 * length, self._oldest(limit))
        while at >= 0 and (span := its[at]).start >= oldest:
            at -= 1
            if span.end < timestamp:
                before, previous = span, stamps[span]
                break
            step.hold(span, limit)
            if span.end > timestamp:
                right = right or span
                continue
            has_left, previous = True, stamps[span]
            if previous >= timestamp:  # a record of this time has made all windows
                return step
        if previous >= 0 and previous + 1 + length >= timestamp and not _has(its, previous + 1):
            step.make(self._new(key, previous + 1), limit)
        if not has_left:
            self._left(step, key, before, timestamp, limit)
        if right is not None and not has_right and stamps[right] > timestamp:
            self._right(step, key, right, timestamp)
        return step

    def _left(
        self, step: Step, key: bytes, before: Span | None, timestamp: int, limit: int
    ) -> None:
        """The record's left window, with the records of the one before it."""
        start = timestamp - self.length_ms
        if step.made and step.made[-1].start == start:  # the right one of the record before
            step.told.append(step.made[-1])
            return
        left = self._new(key, start)
        if not step.make(left, limit):
            return
        if before is not None and self.bucket.stamps[before] >= start:
            step.copies.append((before, left))

    def _right(self, step: Step, key: bytes, source: Span, timestamp: int) -> None:
        """The record's right window: what is behind it in `source`, which now holds it, too."""
        right = self._new(key, timestamp + 1)
        step.copies.append((source, right))
        step.behind = right
        step.told.append(right)

    def _early(self, key: bytes, its: Sequence[Span], timestamp: int, limit: int) -> Step:
        """What a record does whose left window would begin before 0."""
        step, stamps = Step(), self.bucket.stamps
        first: Span | None = None  # [0, difference]
        right: Span | None = None
        has_right = False
        previous = -1
        for span in its:
            if span.start > timestamp:
                has_right = span.start == timestamp + 1
                break
            if span.start == 0:
                first = span
                previous = stamps[span] if stamps[span] < timestamp else -1
            else:
                right = span
                step.hold(span, limit)
        right = right or first
        if right is not None and not has_right and stamps[right] > timestamp:
            self._right(step, key, right, timestamp)
        if previous >= 0 and not _has(its, previous + 1):
            step.make(self._new(key, previous + 1), limit)
        if first is None:
            step.make(self._new(key, 0), limit)
        else:
            step.hold(first, limit)
        return step

    def _oldest(self, limit: int) -> int:
        """The start of the oldest windows that are looked at.

        Older ones can change no window that is open, only how many closed ones a record misses.
        Kafka Streams' store forgets them, too, and at the edge one more, which is needed.
        """
        length = self.length_ms
        kept = self._newest_start - 2 * length - self.grace_ms + 1
        return min(kept, limit - 2 * length - 1)

    def _new(self, key: bytes, start: int) -> Span:
        return Span(key, start, start + self.length_ms)

    # What happens to them

    def take(self, step: Step, batch: Batch, whole: Segment, index: int, updates: Updates) -> None:
        """Takes a step with the record at `index`."""
        olds = self._run(step, batch, whole, index)
        if olds is None:
            return
        if self.tells_each:
            self._tell(step, olds, updates, index)
        self._settle(step, olds)

    def _run(self, step: Step, batch: Batch, whole: Segment, index: int) -> Sequence[Any] | None:
        """Takes a step: the old rows of what it tells of. None: a function failed, and nothing has
        changed."""
        told, rows = step.told, self.rows
        olds: Sequence[Any] = ()
        if rows.needs.old:
            held = set(step.held)
            known = rows.layout.rows(self.bucket, told)
            olds = [row if span in held else None for span, row in zip(told, known, strict=True)]
        if not self._fold(step, batch, whole, index):
            return None
        stamps, timestamp = self.bucket.stamps, whole.timestamps[index]
        for source, made in step.copies:
            stamps[made] = stamps[source]
        for span in step.made:
            stamps[span] = timestamp
        for span in step.held:
            if stamps[span] < timestamp:
                stamps[span] = timestamp
        headers = whole.headers[index] if whole.headers is not None else ()
        if headers or self.bucket.headers:
            self.bucket.mark(told, [headers] * len(told) if headers else None)
        return olds

    def _fold(self, step: Step, batch: Batch, whole: Segment, index: int) -> bool:
        """Adds the record to its windows; False where a function failed, and nothing changed."""
        bucket, parts = self.bucket, self._parts
        taking = step.held + step.made
        before = [snapshot(part, found, step.held) for part, found in parts if self.rows.skips]
        try:
            for (aggregate, partials), column in zip(parts, whole.arguments, strict=True):
                for source, made in step.copies:
                    if (part := partials.get(source, MISSING)) is not MISSING:
                        partials[made] = aggregate.copied(part)
                argument = None if column is None else column[index]
                aggregate.add(partials, taking, iter([argument] * len(taking)))
        except Exception as error:
            for span in [*step.made, *(made for _, made in step.copies)]:
                bucket.forget(span)
            self.rows.failures.at(self.node, error, batch, index)
            for (_, partials), was in zip(parts, before, strict=True):
                for span in step.held:
                    if span in was:
                        partials[span] = was[span]
                    else:
                        partials.pop(span, None)
            return False
        return True

    def _settle(self, step: Step, olds: Sequence[Any]) -> None:
        """Takes new windows in, lets those go that have no row any more."""
        bucket = self.bucket
        if not olds and not self.rows.layout.deletes:  # every window has a row
            for span in step.made:
                self.open(span)
            if step.behind is not None:
                self.open(step.behind)
            told = dict.fromkeys(step.told)
            bucket.unlogged.update(told)
            if self.rows.tells and self.rows.is_cached:
                bucket.changed.update(told)
                self.rows.waiting += len(told)
            return
        has, held = self.store.has, set(step.held)
        for at, span in enumerate(dict.fromkeys(step.told)):
            old = olds[at] if olds else None
            if has(bucket, span):
                if span not in held:
                    self.open(span)
                self.change(span, old)
            elif span in held:
                self.drop(span, self.time, old)
            else:
                bucket.forget(span)

    def _tell(self, step: Step, olds: Sequence[Any], updates: Updates, index: int) -> None:
        """Adds the updates that a record sends on."""
        bucket = self.bucket
        for at, (span, row) in enumerate(
            zip(step.told, self.rows.layout.rows(bucket, step.told), strict=True)
        ):
            old = olds[at] if olds else None
            updates.add(span.key, span.bounds, row, old, bucket.stamps[span], index)
            updates.headers[-1] = bucket.headers.get(span, ())

    # Closing

    def note_shown(self, timestamps: Sequence[int] = ()) -> None:
        """As of others; the start of the newest window decides."""
        self.shown.note(self.time, timestamps, self._newest_start)

    def resume(self, stream_time: int) -> None:
        """As of others; the newest window tells how far back they are looked at."""
        starts = (span.start for span in self.store.every())
        self._newest_start = max(starts, default=NEVER)
        super().resume(stream_time)

    def open(self, span: Span) -> None:
        """A new window: it will close."""
        self._newest_start = max(self._newest_start, span.start)
        super().open(span)

    def end(self, span: Span) -> None:
        """Its row is out, but windows may still be made of it."""
        self._closed.append(span)

    def forget_closed(self) -> None:
        """Removes windows from which no other window can be made any more."""
        oldest, closed = self._oldest(self.time - self.grace_ms), self._closed
        while closed and closed[0].start < oldest:
            if not (span := closed.popleft()).is_gone:
                self.store.remove(span, self.time)


def _has(spans: Sequence[Span], start: int) -> bool:
    """Whether a window of those begins at `start`."""
    at = bisect_left(spans, start, key=START_OF)
    return at < len(spans) and spans[at].start == start
