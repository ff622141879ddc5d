"""What all operators of sessions and sliding windows share: stream time, late records.       [P]

    stream time   the newest timestamp of the records that came to this operator; where several
                  tasks write the input it is told how far time has come, as windowed.py is
    closed        a window is closed once stream time is more than `held_ms` behind its end: its
                  final row goes out, by (window end, key bytes)
    told          a window whose bounds moved is deleted below under its old key

Owns   how far stream time has come.
Source Kafka Streams' KStreamSessionWindowAggregate, KStreamSlidingWindowAggregate,
       KTableSuppressProcessor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.calling import TIMESTAMP_MAX
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED
from kafkalite.streams.local.operators.rows import WAITING_MAX, Rows, Segment
from kafkalite.streams.local.operators.windowed import LATE, NEVER, port_of
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.windows import SpanWindow


class SpanOperator(ABC):
    """One row per key and window, whose bounds follow from the records of the key."""

    drops_null_values: bool  # records without a value do not count

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        assert isinstance(node.window, SpanWindow)
        self.runtime = runtime
        self.node = node
        self.window: SpanWindow = node.window
        self.held_ms = node.window.held_ms
        self.is_timed = runtime.is_told_time(node)
        self.rows = Rows(node, runtime)
        self.tells_each = self.rows.tells and not self.rows.is_cached
        self.forward_final = port_of(node, p.Port.FINAL, runtime)
        self.forward_late = port_of(node, p.Port.LATE, runtime)
        self.idle_ms = runtime.idle_ms(node)
        self.time = NEVER
        self._active_ms: int | None = None  # the wall clock at the last record

    def process(self, batch: Batch) -> None:
        """Takes the batch in, tells below, closes windows."""
        batch, whole = self.rows.taken(batch, values=self.drops_null_values)
        if not len(batch):
            return
        self._active_ms = self.runtime.now_ms
        time = self.fold(batch, whole)
        if self.waiting > WAITING_MAX:
            self.flush()
        if not self.is_timed:
            self.time = time
            self.close_windows(batch)
        self.note_shown(batch.timestamps)

    @abstractmethod
    def fold(self, batch: Batch, whole: Segment) -> int:
        """Folds records into their windows: the stream time behind the last one."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many changes are still to be sent on."""

    @abstractmethod
    def flush(self) -> None:
        """Tells below what changed since the last commit."""

    @abstractmethod
    def close_windows(self, batch: Batch | None = None) -> None:
        """Ends the windows that stream time has passed. `batch` holds the records that closed
        them; None: the wall clock did."""

    @abstractmethod
    def note_shown(self, timestamps: Sequence[int] = ()) -> None:
        """Records of `timestamps` have come: joins find no rows any more of much older windows."""

    @abstractmethod
    def newest_end(self) -> int | None:
        """The end of the last window that is open; None: there is none."""

    # Late records

    def report_late(self, batch: Batch, late: Sequence[int], missed: int = 0) -> None:
        """Those at `late` came too late; others came too late for `missed` windows."""
        if not late and not missed:
            return
        metrics, drops, name = self.runtime.metrics, self.runtime.drops, self.node.name
        metrics[DROPPED] += len(late) + missed
        drops.add(Reason.EXPIRED, name, missed)
        if late:
            metrics[LATE] += len(late)
            drops.add(Reason.LATE if self.forward_late is None else Reason.LATE_KEPT,
                      name, len(late))  # fmt: skip
            if self.forward_late is not None:
                self.forward_late(batch.take(late))

    # Between batches

    def tick(self, now_ms: int) -> None:
        """Closes every window when no record came for long enough, if that was asked for."""
        if self.idle_ms is None:
            return
        if self._active_ms is None:  # the windows were restored
            self._active_ms = now_ms
        is_idle = now_ms - self._active_ms >= self.idle_ms
        if is_idle and (newest := self.newest_end()) is not None:
            self.advance(min(newest + self.held_ms + 1, TIMESTAMP_MAX))

    def advance(self, stream_time: int) -> None:
        """Closes the windows that end before `stream_time`, all of whose records have come."""
        self.time = max(self.time, stream_time)
        self.close_windows()
        self.note_shown()

    def stream_time(self) -> int:
        """The stream time so far."""
        return self.time

    @abstractmethod
    def resume(self, stream_time: int) -> None:
        """Goes on after a restart: what was closed stays closed."""
