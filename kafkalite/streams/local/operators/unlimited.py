"""Aggregates over one window without an end: the records of a key from a time on.            [P]

Facts  Records before the start are left out and not counted. A null key is dropped, a null value is
       a record. The window never closes, so no record is late and no row is final.
Source Kafka Streams' UnlimitedWindows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.operators.grouping import is_ascending
from kafkalite.streams.local.operators.rows import Segment
from kafkalite.streams.local.operators.sliding import SlidingAggregate, Step
from kafkalite.streams.local.operators.spans import Updates
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state import Span
from kafkalite.streams.windows import END_OF_TIME, UnlimitedWindow


class UnlimitedAggregate(SlidingAggregate):
    """One row per key."""

    drops_null_values = False

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        super().__init__(node, runtime)
        assert isinstance(node.window, UnlimitedWindow)
        self.start_ms = node.window.start_ms

    def take_in(self, batch: Batch, whole: Segment, times: Sequence[int]) -> None:
        """Folds records in, by columns where updates merge and rows stay."""
        its = [i for i, timestamp in enumerate(whole.timestamps) if timestamp >= self.start_ms]
        if self.tells_each or self.rows.skips or self.rows.layout.deletes:
            updates = Updates()
            for index in its:
                self.take(self._into(whole.keys[index]), batch, whole, index, updates)
            self.tell_each(updates, batch)
        elif its:
            self._fold_columns(batch, whole, its)

    def _fold_columns(self, batch: Batch, whole: Segment, its: list[int]) -> None:
        if len(its) < len(batch):
            headers = whole.headers
            whole = Segment(
                [whole.keys[i] for i in its],
                [whole.timestamps[i] for i in its],
                [None if c is None else [c[i] for i in its] for c in whole.arguments],
                None if headers is None else [headers[i] for i in its],
                its,
            )
        there = self.store.spans
        for key in dict.fromkeys(whole.keys):
            if key not in there:
                self.open(self._window(key))
        segment = replace(whole, keys=[there[key][0] for key in whole.keys])
        ascending = is_ascending(segment.timestamps)
        self.rows.add(self.bucket, segment, batch, ascending=ascending)

    def _into(self, key: bytes) -> Step:
        """A record goes into the window of its key."""
        step = Step()
        if found := self.store.spans.get(key):
            step.hold(found[0], self.start_ms)
        else:
            step.make(self._window(key), self.start_ms)
        return step

    def _window(self, key: bytes) -> Span:
        return Span(key, self.start_ms, END_OF_TIME)

    def open(self, span: Span) -> None:
        """A new window, which never closes."""
        self.store.insert(span)

    def resume(self, stream_time: int) -> None:
        """No window has closed."""
        self.time = max(self.time, stream_time)

    def forget_closed(self) -> None:
        """There is nothing."""
