"""Aggregates over tumbling and hopping windows: stream time, lateness, closing, final rows. [P]

    stream time   the newest timestamp of the records with a key that came to this operator
    late          a window takes no record once stream time has reached its end + grace; the
                  record's own timestamp counts first
    closed        its final rows go out by (window end, key bytes), and the window leaves the store;
                  where joins look into the table, once they find it no more (shown.py)

Where several tasks write the input (watermarks.py), the operator is told how far stream time has
come, and each record comes with the time by which it is judged.

Native code groups a batch by window and key where it knows the aggregates (folding.py), and
follows each row through the batch where every update goes on (updates.py). Its twin
cuts the batch into windows by columns: with ascending timestamps by bisection into slices, else by
grouping the indexes. It judges record by record only when one of them may be late.

Facts  A null key is dropped and does not advance stream time; a null value is a record. A late
       record counts once for each window that it misses. Windows of one record are updated by
       ascending start. The wall clock closes nothing, but for `final(idle=)`.
Source Kafka Streams' KStreamWindowAggregate, KTableSuppressProcessor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, compress, islice, repeat
from operator import not_, sub
from typing import TYPE_CHECKING, Final

from kafkalite.core.columns import greatest, greatest_so_far
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import MADE, Batch, Made, Origin, Push
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED
from kafkalite.streams.local.operators.folding import group
from kafkalite.streams.local.operators.grouping import is_ascending
from kafkalite.streams.local.operators.rows import Pick, Rows, Segment
from kafkalite.streams.local.operators.shown import Shown
from kafkalite.streams.local.operators.updates import fold_updates
from kafkalite.streams.local.partials import PartialRows
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.windows import TimeWindow

if TYPE_CHECKING:  # the native module may not be there
    from kafkalite.streams.local.operators.folding import Groups

LATE: Final = "late-records-total"
NEVER: Final = -1  # the stream time before the first record


class WindowedAggregate:
    """One row per key and window."""

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        assert isinstance(node.window, TimeWindow)
        self.runtime = runtime
        self.window: TimeWindow = node.window
        self.is_timed = runtime.is_told_time(node)
        self.rows = Rows(node, runtime)
        self.store = self.rows.store
        self.shown = Shown(node, self.store, runtime)
        self.forward_final = port_of(node, p.Port.FINAL, runtime)
        self.forward_late = port_of(node, p.Port.LATE, runtime)
        self.idle_ms = runtime.idle_ms(node)
        self.time = NEVER
        self._earliest: int | None = None  # the first start among the windows that are open
        self._closed: list[int] = []  # starts of windows that are closed and still shown
        self._active_ms: int | None = None  # the wall clock at the last record

    def process(self, batch: Batch) -> None:
        """Folds the batch in, tells below, closes windows."""
        if isinstance(batch.values, PartialRows):
            self._combine(batch)
            return
        batch, whole = self.rows.taken(batch, values=False)
        if not len(batch):
            return
        self._active_ms = self.runtime.now_ms
        if not (self.rows.wants_each(batch) and self._fold_updates(whole, batch)):
            for part, segment in self.rows.parts(batch, whole, self._ends):
                self._fold(segment, part)
        self._hide_windows(batch.timestamps)

    def _combine(self, batch: Batch) -> None:
        """As `process`, of rows that others have folded, each for a window that is open or not."""
        batch = self.rows.keys(batch)
        if not len(batch):
            return
        assert batch.values is not None
        self._active_ms = self.runtime.now_ms
        times = batch.times
        if times is None:
            times = greatest_so_far(batch.timestamps, self.time)
        held_open, before = self.window.close_time(0), self.time
        late = [
            row[0] + held_open <= max(time, before)
            for row, time in zip(batch.values, times, strict=True)
        ]
        if any(late):
            self._drop_rows(sum(row[1] for row in compress(batch.values, late)))
        there = batch.where(list(map(not_, late)))
        self.rows.combine(there)
        if len(there):
            assert there.values is not None
            self._note_starts([min(row[0] for row in there.values)])
        self.rows.after(batch)
        if not self.is_timed:
            self.time = max(self.time, greatest(batch.timestamps))
            self._close_windows(batch)
        self._hide_windows(batch.timestamps)

    def _drop_rows(self, records: int) -> None:
        """So many records came too late for their windows, as rows."""
        self.runtime.metrics[DROPPED] += records
        self.runtime.metrics[LATE] += records
        self.runtime.drops.add(Reason.LATE, self.rows.node.name, records)

    def _ends(self, batch: Batch) -> Iterator[int]:
        """The ends of runs that may be folded at once though every update goes on: no key twice,
        all in one window and none of them late, and no window closes before the next run.

        The caller folds a run before it asks for the next end.
        """
        window, is_timed = self.window, self.is_timed
        timestamps = batch.timestamps
        assert batch.raw_keys is not None
        judged: Iterable[int] = timestamps
        if is_timed:
            judged = repeat(self.time, len(batch)) if batch.times is None else batch.times
        seen = set[bytes | None]()
        number = newest = limit = NEVER
        records = zip(batch.raw_keys, timestamps, judged, strict=True)
        for index, (key, timestamp, time) in enumerate(records):
            newest = max(newest, time)
            is_apart = key in seen or newest >= limit or timestamp // window.size_ms != number
            if index and is_apart:
                yield index
            if is_apart or not index:
                seen.clear()
                number = timestamp // window.size_ms
                first = number * window.size_ms
                if not is_timed and self._earliest is not None:
                    first = min(first, self._earliest)
                newest, limit = max(self.time, time), window.close_time(first)
                if not window.is_tumbling:
                    limit = NEVER  # a record has updates in several windows
            seen.add(key)
        yield len(batch)

    def _fold(self, whole: Segment, batch: Batch) -> None:
        starts = self._fold_groups(whole, batch)
        if starts is None:
            starts = self._fold_segments(whole, batch)
        self._note_starts(starts)
        self.rows.after(batch, is_part=True)
        if not self.is_timed:
            self._close_windows(batch)

    def _note_starts(self, starts: Sequence[int]) -> None:
        if starts:
            self._earliest = starts[0] if self._earliest is None else min(starts[0], self._earliest)

    def advance(self, stream_time: int) -> None:
        """Closes the windows that end before `stream_time`, all of whose records have come."""
        self.time = max(self.time, stream_time)
        self._close_windows()
        self._hide_windows()

    # Folding a batch into windows: their starts, ascending

    def _fold_groups(self, whole: Segment, batch: Batch) -> Sequence[int] | None:
        """By columns, in native code; None where that cannot be done, and nothing has happened."""
        groups = self._group(whole, batch)
        if groups is None or not self.rows.fold_groups(groups, whole):
            return None
        self._judged(groups, batch)
        self.rows.write_groups(groups, whole)
        return groups.starts

    def _fold_updates(self, whole: Segment, batch: Batch) -> bool:
        """The same, and tells below of every update; False where that cannot be done."""
        groups = self._group(whole, batch)
        if groups is None or (updates := fold_updates(self.rows, groups, whole, batch)) is None:
            return False
        self._judged(groups, batch)
        self._note_starts(groups.starts)
        if len(updates):
            self.rows.forward(updates)
        if not self.is_timed:
            self._close_windows(batch)
        return True

    def _group(self, whole: Segment, batch: Batch) -> Groups | None:
        """The records by window and key; None where native code cannot fold them."""
        if not self.rows.may_fold(whole):
            return None
        times = batch.times
        if times is None and self.is_timed:  # updates of a table
            times = [self.time] * len(batch)
        return group(self.window, whole.keys, whole.timestamps, times, self.time)

    def _judged(self, groups: Groups, batch: Batch) -> None:
        """Takes over how far time has come, and which records were late."""
        if not self.is_timed:
            self.time = max(self.time, groups.newest)
        self._report_late(batch, groups.late, groups.missed)

    def _fold_segments(self, whole: Segment, batch: Batch) -> Sequence[int]:
        """Window by window, each aggregate by itself: the twin."""
        whole, ascending = whole.as_lists(), is_ascending(batch.timestamps)
        times, are_on_time = self._times(batch, ascending=ascending)
        starts: list[int] = []
        segments = self._cut(whole, batch, times, are_on_time=are_on_time, ascending=ascending)
        for start, segment in segments:
            starts.append(start)
            bucket = self.store.bucket(start, segment.keys)
            self.rows.add(bucket, segment, batch, ascending=ascending)
        return starts

    def _cut(
        self,
        whole: Segment,
        batch: Batch,
        times: Iterable[int],
        *,
        are_on_time: bool,
        ascending: bool,
    ) -> Iterator[tuple[int, Segment]]:
        """The segments of the batch by window, ascending; `times` judge the records."""
        timestamps = whole.timestamps
        window = self.window
        if are_on_time and ascending:
            return _slices(window, whole)
        if are_on_time and window.is_tumbling:
            return _groups(whole, _by_start(window, timestamps))
        judge = _judge_tumbling if window.is_tumbling else _judge
        groups, late, missed = judge(window, timestamps, times)
        self._report_late(batch, late, missed)
        return _groups(whole, groups)

    def _report_late(self, batch: Batch, late: Sequence[int], missed: int) -> None:
        """Records were late for `missed` windows, those at `late` for all of theirs."""
        if not missed:
            return
        self.runtime.metrics[DROPPED] += missed
        self._count_drops(batch.timestamps, late, missed)
        if late:
            self.runtime.metrics[LATE] += len(late)
            if self.forward_late is not None:
                self.forward_late(batch.take(late))

    def _count_drops(self, timestamps: Sequence[int], late: Sequence[int], missed: int) -> None:
        """Records that were late for all their windows, and times that others were for some."""
        drops, name = self.runtime.drops, self.rows.node.name
        reason = Reason.LATE if self.forward_late is None else Reason.LATE_KEPT
        drops.add(reason, name, len(late))
        missed -= sum(len(self.window.starts(timestamps[index])) for index in late)
        drops.add(Reason.EXPIRED, name, missed)

    def _times(self, batch: Batch, *, ascending: bool) -> tuple[Iterable[int], bool]:
        """The stream time by which each record is judged, and whether surely none is late.

        Stream time goes on to the newest record where operators go by their records.
        """
        timestamps, window, before = batch.timestamps, self.window, self.time
        oldest = timestamps[0] if ascending else min(timestamps)
        first_close = window.close_time(window.first_start(oldest))
        if not self.is_timed:
            newest = timestamps[-1] if ascending else max(timestamps)
            self.time = max(before, newest)
            times = islice(accumulate(timestamps, max, initial=before), 1, None)
            # In ascending order no record makes a later one late.
            return times, first_close > (before if ascending else self.time)
        if batch.times is None:  # updates of a table
            return repeat(before, len(batch)), first_close > before
        if first_close <= before:
            return map(max, batch.times, repeat(before)), False
        in_grace = max(map(sub, batch.times, timestamps)) <= window.grace_ms
        return batch.times, in_grace or first_close > max(batch.times)

    # Closing

    def _close_windows(self, batch: Batch | None = None) -> None:
        """Ends the windows that stream time has passed: final rows out, rows away.

        `batch` holds the records that closed them; None: the wall clock did.
        """
        window = self.window
        if self._earliest is None or window.close_time(self._earliest) > self.time:
            return
        closed = sorted(s for s in self._open_windows() if window.close_time(s) <= self.time)
        times = () if batch is None else _ascending(batch.timestamps)
        updates: list[tuple[Pick | None, Pick | None]] = []
        for start in closed:
            origin, at = MADE, self.time
            if batch is not None:
                closer = bisect_left(times, window.close_time(start))
                # Stream time may have passed the window before this batch, when it was restored.
                closer = min(closer, len(batch) - 1)
                origin, at = (
                    Made(batch.origin, closer),
                    max(times[closer], window.close_time(start)),
                )
            changed = self.rows.changed(self.store.buckets[start], origin)
            updates.append((changed, self._final(start, origin)))
            if self.shown.is_needed:
                self._closed.append(start)
            else:
                self.store.close(start, at)
        self._earliest = min(self._open_windows(), default=None)
        # Where updates and final rows may meet below, each window's go together.
        for some in [[pair] for pair in updates] if self.runtime.ordering.forks else [updates]:
            self.rows.push(self.rows.forward, (changed for changed, _ in some))
            if self.forward_final is not None:
                self.rows.push(self.forward_final, (final for _, final in some))

    def _open_windows(self) -> Iterable[int]:
        """The starts of the windows that take records: all closed ones start before them."""
        if not self._closed:
            return self.store.buckets
        last = self._closed[-1]
        return (start for start in self.store.buckets if start > last)

    def _hide_windows(self, timestamps: Sequence[int] = ()) -> None:
        """Lets go of closed windows that joins find no more, once records of `timestamps` came."""
        if not self.shown.is_needed:
            return
        self.shown.note(self.time, timestamps)
        hidden = bisect_left(self._closed, self.store.shown_from)
        for start in self._closed[:hidden]:
            self.store.close(start, self.time)
        del self._closed[:hidden]

    def _final(self, start: int, origin: Origin) -> Pick | None:
        """The rows of a window that closes, if anybody wants them."""
        if self.forward_final is None:
            return None
        bucket = self.store.whole(start)
        keys = sorted(bucket.stamps)
        if self.rows.layout.deletes:
            keys = [key for key in keys if self.store.has(bucket, key)]
        return Pick(bucket, keys, None, origin) if keys else None

    # Between batches

    def flush(self) -> None:
        """Tells below what changed since the last commit."""
        self.rows.flush()

    def tick(self, now_ms: int) -> None:
        """Closes every window when no record came for long enough, if that was asked for."""
        if self.idle_ms is None or self._earliest is None:
            return
        if self._active_ms is None:  # the windows were restored
            self._active_ms = now_ms
        if now_ms - self._active_ms >= self.idle_ms:
            self.time = max(self.time, self.window.close_time(max(self.store.buckets)))
            self._close_windows()
            self._hide_windows()

    def stream_time(self) -> int:
        """The stream time so far."""
        return self.time

    def resume(self, stream_time: int) -> None:
        """Goes on after a restart: what was closed stays closed."""
        self.time = max(self.time, stream_time)
        if not self.is_timed:
            self.time = max(self.time, self.store.newest)
        starts = sorted(self.store.buckets)
        closed = [start for start in starts if self.window.close_time(start) <= self.time]
        if self.shown.is_needed:
            self._closed = closed
            self._hide_windows(starts[-1:])
        else:
            for start in closed:
                self.store.close(start, self.time)
        self._earliest = min(self._open_windows(), default=None)


def port_of(node: p.Node, port: p.Port, runtime: Runtime) -> Push | None:
    """Pushes by `port`; None where nobody reads it."""
    return runtime.forward_several(node, port) if runtime.edges(node, port) else None


def _ascending(timestamps: Sequence[int]) -> Sequence[int]:
    """The newest timestamp up to each record."""
    return timestamps if is_ascending(timestamps) else list(accumulate(timestamps, max))


def _slices(window: TimeWindow, whole: Segment) -> Iterator[tuple[int, Segment]]:
    """Segments of ascending timestamps: each window is a slice."""
    timestamps = whole.timestamps
    count = len(timestamps)
    if window.is_tumbling:
        first = 0
        while first < count:
            start = timestamps[first] // window.size_ms * window.size_ms
            end = bisect_left(timestamps, start + window.size_ms, first)
            yield start, whole.slice(first, end)
            first = end
        return
    start = window.first_start(timestamps[0])
    while start <= timestamps[-1]:
        first = bisect_left(timestamps, start)
        end = bisect_left(timestamps, start + window.size_ms, first)
        if first < end:
            yield start, whole.slice(first, end)
            start += window.advance_ms
        else:  # a gap: on to the first window behind it
            start = window.first_start(timestamps[first])


def _by_start(window: TimeWindow, timestamps: Sequence[int]) -> dict[int, list[int]]:
    """The indexes of records by tumbling window."""
    size = window.size_ms
    groups: dict[int, list[int]] = {}
    for index, timestamp in enumerate(timestamps):
        start = timestamp - timestamp % size
        if start in groups:
            groups[start].append(index)
        else:
            groups[start] = [index]
    return groups


def _judge_tumbling(
    window: TimeWindow, timestamps: Sequence[int], times: Iterable[int]
) -> tuple[dict[int, list[int]], list[int], int]:
    """As `_judge`, where every record has one window."""
    size, held_open_ms = window.size_ms, window.size_ms + window.grace_ms
    groups: dict[int, list[int]] = {}
    late: list[int] = []
    for index, (timestamp, time) in enumerate(zip(timestamps, times, strict=True)):
        start = timestamp - timestamp % size
        if start + held_open_ms <= time:
            late.append(index)
        elif start in groups:
            groups[start].append(index)
        else:
            groups[start] = [index]
    return groups, late, len(late)


def _judge(
    window: TimeWindow, timestamps: Sequence[int], times: Iterable[int]
) -> tuple[dict[int, list[int]], list[int], int]:
    """Record by record, each by its stream time.

    The indexes of records by window; those that are in none because all of theirs are closed; how
    many closed windows were missed in all.
    """
    held_open_ms = window.size_ms + window.grace_ms
    groups: dict[int, list[int]] = {}
    late: list[int] = []
    missed = 0
    for index, (timestamp, time) in enumerate(zip(timestamps, times, strict=True)):
        is_in_none = True
        for start in window.starts(timestamp):
            if start + held_open_ms > time:
                groups.setdefault(start, []).append(index)
                is_in_none = False
            else:
                missed += 1
        if is_in_none:
            late.append(index)
    return groups, late, missed


def _groups(whole: Segment, groups: dict[int, list[int]]) -> Iterator[tuple[int, Segment]]:
    """Segments by the indexes of their records."""
    for start in sorted(groups):
        indexes = groups[start]
        if len(indexes) == len(whole.timestamps):
            yield start, whole
            continue
        yield (
            start,
            Segment(
                [whole.keys[i] for i in indexes],
                [whole.timestamps[i] for i in indexes],
                [None if c is None else [c[i] for i in indexes] for c in whole.arguments],
                None if whole.headers is None else [whole.headers[i] for i in indexes],
                indexes,
            ),
        )
