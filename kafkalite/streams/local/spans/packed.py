"""Sessions and sliding windows in native code: the operator around a table.                  [P]

A batch goes through native code once, record by record, as in Kafka Streams. Where every update
goes on, a log has them all; else the table notes what has changed, and those below hear of it with
the commit.

Owns   when windows close, and what those below know of them.
Source Kafka Streams' KStreamSessionWindowAggregate, KStreamSlidingWindowAggregate,
       KTableSuppressProcessor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kafkalite.core.columns import greatest_so_far
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import MADE, Batch, Made, Origin, Taken
from kafkalite.streams.local.operators.folding import argument
from kafkalite.streams.local.operators.rows import Segment
from kafkalite.streams.local.operators.windowed import NEVER
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.spans.native import SessionFold, SlidingFold, SpanLog
from kafkalite.streams.local.spans.operator import SpanOperator
from kafkalite.streams.local.spans.store import PackedStore


class PackedAggregate(SpanOperator):
    """One row per key and window."""

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        super().__init__(node, runtime)
        assert isinstance(self.rows.store, PackedStore)
        self.store = self.rows.store
        self.table = self.store.table
        self.table.listen(merges=self.rows.is_cached, tells=self.rows.tells)
        self.is_of_sessions = self.store.is_of_sessions
        self.drops_null_values = not self.is_of_sessions
        length = self.window.length_ms
        kind = SessionFold if self.is_of_sessions else SlidingFold
        self._records = kind(self.table, length, self.held_ms, self.is_timed)

    # Records

    def fold(self, batch: Batch, whole: Segment) -> int:
        """Folds records into their windows: the stream time behind the last one."""
        self.store.warm(whole.keys)
        times = None
        if self.is_timed:  # updates of a table have no times
            times = [self.time] * len(batch) if batch.times is None else batch.times
        log = self.table.log() if self.tells_each else None
        headers = None if self.is_of_sessions else whole.headers
        columns = list(map(argument, whole.arguments))
        fold = self._records
        try:
            fold.fold(whole.keys, whole.timestamps, times, self.time, columns, headers, log)
        except Exception as error:
            self.rows.failures.at(self.node, error, batch, fold.at)
            raise AssertionError("a failure that is not skipped ends the task") from error
        if log is not None:
            self._tell(log, Taken(batch.origin, log.records()))
        self.report_late(batch, fold.late, fold.missed)
        return fold.newest

    # Telling below

    @property
    def waiting(self) -> int:
        """How many changes are still to be sent on."""
        return self.table.waiting

    def flush(self) -> None:
        """Tells below what changed since the last commit."""
        if self.table.waiting:
            self._tell(self.table.gone(), MADE)
            self._tell(self.table.changes(), MADE)

    def _tell(self, log: SpanLog, origin: Origin) -> None:
        if len(log):
            self.rows.forward(self._batch(log, origin))

    def _batch(self, log: SpanLog, origin: Origin) -> Batch:
        """Rows as a batch."""
        return Batch(
            log.stamps(),
            origin,
            self.store.log_keys(log) if self.rows.needs.key else None,
            log.places(),
            self.store.rows(log),
            None,
            None,
            log.headers,
        )

    # Closing

    def close_windows(self, batch: Batch | None = None) -> None:
        """Ends the windows that stream time has passed."""
        limit = self.time - self.held_ms
        if self.table.is_due(limit) and (count := self.table.close(limit)):
            self._tell(self.table.gone(), MADE)
            times = () if batch is None else greatest_so_far(batch.timestamps, NEVER)
            # Where updates and final rows may meet below, each window's go together.
            step = 1 if self.runtime.ordering.forks else count
            for first in range(0, count, step):
                origin: Origin = MADE
                if batch is not None:
                    end = self.table.closing_end(first + step - 1)
                    closer = bisect_left(times, end + self.held_ms + 1)
                    # Stream time may have passed the window before, when it was restored.
                    origin = Made(batch.origin, min(closer, len(batch) - 1))
                self._tell_closing(first, first + step, origin)
            self.table.end_closing(self.time)
        self._forget()

    def _tell_closing(self, first: int, stop: int, origin: Origin) -> None:
        """Unsent updates of some windows that close, then their final rows."""
        if self.rows.tells and self.rows.is_cached:
            self._tell(self.table.closing_changes(first, stop), origin)
        if self.forward_final is not None:
            self.store.warm_windows(self.table.closing()[first:stop])
            self.forward_final(self._batch(self.table.closing_rows(first, stop), origin))

    def _forget(self) -> None:
        """Closed windows leave when no other can be made of them any more."""
        if isinstance(self._records, SlidingFold):
            self.table.forget(self._records.oldest(self.time - self.held_ms), self.time)
        self.store.sweep()

    def note_shown(self, timestamps: Sequence[int] = ()) -> None:
        """Nothing: no join looks into windows that are packed."""

    def newest_end(self) -> int | None:
        """The end of the last window that is open; None: there is none."""
        return self.table.newest_end()

    # Between batches

    def resume(self, stream_time: int) -> None:
        """Goes on after a restart: what was closed stays closed."""
        self.time = max(self.time, stream_time)
        self.table.resume(self.time - self.held_ms)
        self.table.end_closing(self.time)
        self._forget()
