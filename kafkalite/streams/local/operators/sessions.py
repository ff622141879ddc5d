"""Aggregates over sessions: windows of records that are at most a gap apart.                [P]

    gap 5     records 1 3 ........ 20            [1, 3]         [20, 20]
              and then 7                         [1, 7]
              and then 13, if 7 .. 13 .. 20      [1, 7] [13, 20]

A record looks for the open sessions within the gap of its own timestamp. None: it begins one. One:
it extends that. Several become one: their partials are merged, the older first, and the record is
added last.

Facts  The session that a record leads to decides whether it is late: closed is one whose end is
       less than stream time - gap - grace. Null keys are dropped, null values are records. A row's
       timestamp is its session's end; rows have no headers. Where every update goes on, each
       session that a record touches is deleted first, even if its bounds stay the same, but for
       one of a single timestamp that the record has, too. A session that is closed takes nothing.
Source Kafka Streams' KStreamSessionWindowAggregate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import MISSING, Fold
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.operators.grouping import is_ascending
from kafkalite.streams.local.operators.keys import has_none
from kafkalite.streams.local.operators.rows import Segment
from kafkalite.streams.local.operators.spans import SpanAggregate, Updates
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state import Span
from kafkalite.streams.merging import extending, merged

Known = tuple[tuple[int, int], Any]  # the bounds of a session, and its row


class SessionAggregate(SpanAggregate):
    """One row per key and session."""

    drops_null_values = False

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        super().__init__(node, runtime)
        self.gap_ms = self.window.length_ms
        # A fold merges the session into its init with each record; functions may delete rows.
        self._calls_users = any(isinstance(part, Fold) for part in node.aggregates)
        self._extends = [extending(each) for each in node.aggregates]
        self._scratch = Span(b"", 0, 0)

    def take_in(self, batch: Batch, whole: Segment, times: Sequence[int]) -> None:
        """Folds records into their sessions."""
        whole = replace(whole, headers=None)
        if not self.tells_each and self._may_fold(whole):
            self._take_in_columns(batch, whole, times)
        elif self.tells_each or self.rows.skips or self.rows.needs.old:
            self._take_in_each(batch, whole, times)
        else:
            self._take_in_folds(batch, whole, times)

    def _may_fold(self, whole: Segment) -> bool:
        """Whether sessions follow from keys and timestamps alone, and no failure is skipped."""
        if self._calls_users or self.rows.skips:
            return False
        (column,) = whole.arguments[:1]
        return not self.rows.layout.deletes or column is None or not has_none(column)

    def _found(self, key: bytes, timestamp: int, limit: int) -> list[Span]:
        """The sessions within the gap of a record that end at `limit` or later."""
        first, last = timestamp - self.gap_ms, timestamp + self.gap_ms
        its = self.store.spans.get(key, ())
        return [s for s in its if s.end >= first and s.start <= last and s.end >= limit]

    def _limit(self, time: int) -> int:
        """Sessions that end before it are closed."""
        return (self.time if self.is_timed else time) - self.held_ms

    # By columns

    def _take_in_columns(self, batch: Batch, whole: Segment, times: Sequence[int]) -> None:
        """Gives each record its session, then folds columns; where sessions merge, in between."""
        gap, held, is_timed = self.gap_ms, self.held_ms, self.is_timed
        get, keys, timestamps = self.store.spans.get, whole.keys, whole.timestamps
        spans: list[Span] = []
        late: list[int] = []
        first = 0  # the records from here on are not folded yet
        for index, (key, timestamp, time) in enumerate(zip(keys, timestamps, times, strict=True)):
            limit = time - held
            its = get(key)
            if its is not None and _goes_on(its[-1], timestamp, gap, limit, is_timed):
                span = its[-1]
                if timestamp > span.end:
                    span.end = timestamp
                spans.append(span)
                continue
            found = self._found(key, timestamp, self._limit(time)) if its is not None else []
            end = max(timestamp, found[-1].end) if found else timestamp
            if end < limit:
                late.append(index)
                self._fold(batch, whole.slice(first, index), spans)
                spans, first = [], index + 1
                continue
            if not found:
                span = Span(key, timestamp, timestamp)
                self.open(span)
            else:
                if len(found) > 1:
                    self._fold(batch, whole.slice(first, index), spans)
                    spans, first = [], index
                    self._merge(found, time)
                span = found[0]
                span.start, span.end = min(timestamp, span.start), end
            spans.append(span)
        self._fold(batch, whole.slice(first, len(timestamps)), spans)
        self.report_late(batch, late)

    def _fold(self, batch: Batch, segment: Segment, spans: list[Span]) -> None:
        """Folds records in, each into its session."""
        if spans:
            segment = replace(segment, keys=spans)
            ascending = is_ascending(segment.timestamps)
            self.rows.add(self.bucket, segment, batch, ascending=ascending)

    def _merge(self, found: Sequence[Span], time: int) -> None:
        """Makes one session of several, the first of them."""
        first, bucket = found[0], self.bucket
        old = self.old_of(first)
        for aggregate, partials in zip(self.node.aggregates, bucket.partials, strict=True):
            part = merged(aggregate, [partials.get(span, MISSING) for span in found])
            if part is not MISSING:
                partials[first] = part
        stamp = max(bucket.stamps[span] for span in found)
        for span in found[1:]:
            self.drop(span, time, self.old_of(span))
        bucket.stamps[first] = stamp
        self.change(first, old)

    # By functions of users, whose rows may go

    def _take_in_folds(self, batch: Batch, whole: Segment, times: Sequence[int]) -> None:
        """Record by record: most of them go into the last session of their key as it stands, or
        begin one behind it."""
        gap, held, is_timed, bucket = self.gap_ms, self.held_ms, self.is_timed, self.bucket
        get, stamps, change = self.store.spans.get, bucket.stamps, self.change
        rows = bucket.partials[0] if self.rows.layout.deletes else stamps
        parts = list(zip(self._extends, bucket.partials, whole.arguments, strict=True))
        updates, late = Updates(), list[int]()
        for index, (key, timestamp, time) in enumerate(
            zip(whole.keys, whole.timestamps, times, strict=True)
        ):
            its, limit = get(key), time - held
            is_new = its is None or timestamp > its[-1].end + gap
            if is_new and timestamp >= limit:
                span = Span(key, timestamp, timestamp)
            elif its is not None and _goes_on(its[-1], timestamp, gap, limit, is_timed):
                span = its[-1]
                span.end = max(span.end, timestamp)
            else:
                if not self._take(batch, whole, index, time, updates):
                    late.append(index)
                continue
            stamps[span] = span.end
            try:
                for extend, partials, column in parts:
                    extend(partials, span, None if column is None else column[index])
            except Exception as error:
                self.rows.failures.at(self.node, error, batch, index)
                raise AssertionError("a failure that is not skipped ends the task") from error
            if span in rows:
                if is_new:
                    self.open(span)
                change(span)
            elif is_new:
                bucket.forget(span)
            else:
                self.drop(span, time, None)
        bucket.newest = max(bucket.newest, max(whole.timestamps))
        self.report_late(batch, late)

    # One by one

    def _take_in_each(self, batch: Batch, whole: Segment, times: Sequence[int]) -> None:
        """Record by record, each as Kafka Streams does."""
        updates = Updates()
        late: list[int] = []
        for index, time in enumerate(times):
            if not self._take(batch, whole, index, time, updates):
                late.append(index)
        self.tell_each(updates, batch)
        self.report_late(batch, late)

    def _take(self, batch: Batch, whole: Segment, index: int, time: int, updates: Updates) -> bool:
        """Takes one record in; False: it came too late."""
        key, timestamp = whole.keys[index], whole.timestamps[index]
        found = self._found(key, timestamp, self._limit(time))
        end = max(timestamp, found[-1].end) if found else timestamp
        if end < time - self.held_ms:
            return False
        olds = [(span.bounds, self.old_of(span)) for span in found]
        span = self._add(batch, whole, index, found, time)
        if span is not None and self.tells_each:
            self._tell(updates, span, olds, index)
        return True

    def _add(
        self, batch: Batch, whole: Segment, index: int, found: list[Span], time: int
    ) -> Span | None:
        """Makes one session of a record and those that were found; None where a function failed,
        and nothing has changed."""
        key, timestamp = whole.keys[index], whole.timestamps[index]
        scratch, bucket = self._scratch, self.bucket
        try:
            for aggregate, partials, column in zip(
                self.node.aggregates, bucket.partials, whole.arguments, strict=True
            ):
                if found:
                    its = [partials.get(span, MISSING) for span in found]
                    if self.rows.skips:
                        its = [x if x is MISSING else aggregate.copied(x) for x in its]
                    if (part := merged(aggregate, its)) is not MISSING:
                        partials[scratch] = part
                argument = None if column is None else column[index]
                aggregate.add(partials, (scratch,), iter((argument,)))
        except Exception as error:
            bucket.forget(scratch)
            self.rows.failures.at(self.node, error, batch, index)
            return None
        span = found[0] if found else Span(key, timestamp, timestamp)
        old = self.old_of(span) if found else None
        start, end = min(span.start, timestamp), max([timestamp, *(each.end for each in found)])
        for other in found[1:]:
            self.drop(other, time, self.old_of(other))
        span.start, span.end = start, end
        self._settle(span, old, time, is_new=not found)
        return span

    def _settle(self, span: Span, old: Any, time: int, *, is_new: bool) -> None:
        """Gives a session the row that was made, if there is one."""
        bucket = self.bucket
        for partials in bucket.partials:
            part = partials.pop(self._scratch, MISSING)
            if part is MISSING:
                partials.pop(span, None)
            else:
                partials[span] = part
        bucket.stamps[span] = span.end
        bucket.newest = max(bucket.newest, span.end)
        if self.store.has(bucket, span):
            if is_new:
                self.open(span)
            self.change(span, old)
        elif is_new:
            bucket.forget(span)
        else:
            self.drop(span, time, old)

    def _tell(self, updates: Updates, span: Span, olds: list[Known], index: int) -> None:
        """What those below hear of a record: the sessions that were, then the one that is."""
        is_point = len(olds) == 1 and olds[0][0] == span.bounds == (span.end, span.end)
        for bounds, old in () if is_point else olds:
            updates.add(span.key, bounds, None, old, bounds[1], index)
        row = None if span.is_gone else self.row(span)
        old = olds[0][1] if is_point else None
        updates.add(span.key, span.bounds, row, old, span.end, index)

    def end(self, span: Span) -> None:
        """A closed session takes nothing any more."""
        self.store.remove(span, self.time)

    def forget_closed(self) -> None:
        """There is nothing: sessions leave when they are closed."""


def _goes_on(span: Span, timestamp: int, gap: int, limit: int, is_timed: bool) -> bool:
    """Whether its key's last session takes a record, which begins no earlier."""
    return (
        span.start <= timestamp <= span.end + gap
        and timestamp >= limit
        and (is_timed or span.end >= limit)
    )
