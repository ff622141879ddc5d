"""Aggregates without windows: of a stream's records, and of a table's rows by group.        [P]

Batches wait (held.py) where rows are on disk and those below hear of them with the commit.

Facts  The groups of a table take out the old row, then add the new; taking out of a group that has
       no row does nothing; a group that becomes empty stays.
Fails  through the error policy, with the record on which it failed.
Source Kafka Streams' KStreamAggregate, KTableAggregate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from operator import gt
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.protocol.record_codec import Int64s
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import (
    Count,
    Subtractable,
)
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import called, function_needs
from kafkalite.streams.local.operators.folding import group
from kafkalite.streams.local.operators.held import Held, one_segment
from kafkalite.streams.local.operators.keys import null_needs, store_key_needs
from kafkalite.streams.local.operators.rows import Before, Rows, Segment
from kafkalite.streams.local.operators.updates import fold_updates
from kafkalite.streams.local.partials import PartialRows
from kafkalite.streams.local.runtime import Needs, Runtime, node_needs
from kafkalite.streams.local.state import NO_WINDOW, Bucket
from kafkalite.streams.stores import rows_read
from kafkalite.streams.windows import SlidingWindow

if TYPE_CHECKING:  # the native module may not be there
    from kafkalite.streams.local.operators.folding import Groups

LOOKED_AT: Final = 64  # timestamps that tell most batches that are out of order


@node_needs.register
def _(node: p.Aggregate, below: Needs, runtime: Runtime) -> Needs:
    needs = store_key_needs(node, runtime)
    if isinstance(node.window, SlidingWindow) or (node.window is None and not node.subtracts):
        needs |= null_needs(node, runtime)
    for part in node.aggregates:
        if part.argument is not None:
            needs |= function_needs(part.argument)
        elif not isinstance(part, Count):
            needs |= Needs(value=True)
    return needs | runtime.needs(node, p.Port.LATE) | Needs(value=node.subtracts)


class GroupAggregate:
    """An aggregate of a stream, one row per key."""

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        self.rows = Rows(node, runtime)
        self._held = Held()
        self._may_hold = self._is_seen_at_commits(node, runtime)
        self.rows.store.catch_up = self._catch_up

    def _is_seen_at_commits(self, node: p.Aggregate, runtime: Runtime) -> bool:
        """Whether those below hear of rows with the commit, and look at none before."""
        rows, children = self.rows, {n: runtime.children(n) for n in runtime.sub_topology.nodes}
        is_quiet = rows.is_cached or not rows.tells
        is_looked_into = rows.history is not None or rows_read(node, children)
        return is_quiet and not is_looked_into and not rows.skips

    def process(self, batch: Batch) -> None:
        """Folds the batch in, or lets it wait."""
        if isinstance(batch.values, PartialRows):
            self._catch_up()
            self._combine(batch)
            return
        batch, whole = self.rows.taken(batch, values=True)
        if not len(batch):
            return
        if self._may_hold and self.rows.has_cold_rows and self.rows.may_fold(whole):
            self._held.add(batch, whole)
            self.rows.store.coming = len(self._held)
            if self._held.is_full:
                self._catch_up()
                self.rows.after(batch)
            return
        self._catch_up()
        wants_each = self.rows.wants_each(batch)
        asks_each = wants_each or (self.rows.history is not None and len(batch) > 1)
        if asks_each and self._fold_updates(whole, batch, goes_on=wants_each):
            return
        for part, segment in self.rows.parts(batch, whole):
            self.rows.keep_olds(part)
            self._fold(segment, part)

    def _catch_up(self) -> None:
        """Folds in what waits: all of it at once, or batch by batch where native code cannot."""
        if not (parts := self._held.take()):
            return
        self.rows.store.coming = 0
        whole = one_segment(parts)
        groups = self._group(whole)
        if groups is not None and self.rows.fold_groups(groups, whole):
            self.rows.write_groups(groups, whole)
            return
        for batch, segment in parts:
            self._fold_rows(segment, batch)

    def _combine(self, batch: Batch) -> None:
        """As `process`, of rows that others have folded."""
        batch = self.rows.keys(batch)
        runs = [(0, len(batch))] if self.rows.history is None else self.rows.runs(batch)
        for start, end in runs:
            if part := batch.slice(start, end):
                self.rows.keep_olds(part)
                self.rows.combine(part)
                self.rows.after(part)

    def _fold(self, segment: Segment, batch: Batch) -> None:
        self._fold_rows(segment, batch)
        self.rows.after(batch, is_part=True)

    def _fold_rows(self, segment: Segment, batch: Batch) -> None:
        groups = self._group(segment)
        if groups is not None and self.rows.fold_groups(groups, segment):
            self.rows.write_groups(groups, segment)
        else:
            segment = segment.as_lists()
            bucket = self.rows.store.bucket(NO_WINDOW, segment.keys)
            self.rows.add(bucket, segment, batch, ascending=is_ascending(batch.timestamps))

    def _fold_updates(self, whole: Segment, batch: Batch, *, goes_on: bool) -> bool:
        """By columns, in native code: tells a join of every row that is replaced, and below of
        every update if each `goes_on`; False where it cannot."""
        groups = self._group(whole)
        if groups is None:
            return False
        updates = fold_updates(self.rows, groups, whole, batch, are_told=goes_on)
        if updates is None:
            return False
        if self.rows.history is not None:
            assert updates.raw_keys is not None
            assert updates.olds is not None
            keys: Sequence[Any] = updates.raw_keys
            orders = updates.origin.order(range(len(updates)))
            self.rows.history.note(keys, orders, updates.olds)
        if goes_on:
            self.rows.forward(updates if self.rows.needs.old else replace(updates, olds=None))
        else:
            self.rows.after(batch)
        return True

    def _group(self, segment: Segment) -> Groups | None:
        """The records by key; None where native code cannot fold them."""
        if not self.rows.may_fold(segment):
            return None
        return group(None, segment.keys, segment.timestamps)

    def flush(self) -> None:
        """Tells below what changed since the last commit."""
        self._catch_up()
        self.rows.flush()

    def tick(self, now_ms: int) -> None:
        """The wall clock changes nothing."""

    def advance(self, stream_time: int) -> None:
        """Stream time changes nothing."""

    def stream_time(self) -> None:
        """It has none."""

    def resume(self, stream_time: int) -> None:
        """Nothing but the store survives."""


def is_ascending(timestamps: Sequence[int]) -> bool:
    """Whether no timestamp is smaller than the one before it."""
    if isinstance(timestamps, Int64s):
        return timestamps.is_ascending
    if any(map(gt, timestamps, islice(timestamps, 1, LOOKED_AT))):
        return False
    # Sorting a sorted list costs less than a comparison of each pair.
    return len(timestamps) <= LOOKED_AT or sorted(timestamps) == list(timestamps)


# Groups of a table


class TableAggregate(GroupAggregate):
    """An aggregate of a table's rows by group: takes old rows out, adds new ones."""

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        super().__init__(node, runtime)
        functions = [part.argument for part in node.aggregates]
        self._calls = [_whole if each is None else called(each) for each in functions]

    def process(self, batch: Batch) -> None:
        """Folds the changes in, one by one, each (old, new)."""
        batch = self.rows.keys(batch)
        for start, end in self.rows.runs(batch):
            self._change_all(batch.slice(start, end))

    def _change_all(self, batch: Batch) -> None:
        assert batch.raw_keys is not None
        assert batch.values is not None
        keys: Sequence[Any] = batch.raw_keys  # a repartition topic has no null keys
        bucket = self.rows.store.bucket(NO_WINDOW, keys)
        for index, (key, (old, new)) in enumerate(zip(keys, batch.values, strict=True)):
            before = Before(self.rows.layout, bucket, [key]) if self.rows.skips else None
            try:
                self._change(bucket, key, old, new, batch.timestamps[index])
            except Exception as error:
                self.rows.failures.at(self.rows.node, error, batch, index)
                assert before is not None, "a failure that is not skipped ends the task"
                before.put_back()
                continue
            if batch.headers is not None or bucket.headers:
                bucket.mark([key], None if batch.headers is None else [batch.headers[index]])
        self.rows.after(batch)

    def _change(self, bucket: Bucket, key: bytes, old: Any, new: Any, timestamp: int) -> None:
        has_row = self.rows.store.has(bucket, key)
        if new is None and not has_row and not self.rows.layout.deletes:
            return
        self.rows.note(bucket, {key: timestamp})
        for aggregate, call, partials in zip(
            self.rows.node.aggregates, self._calls, bucket.partials, strict=True
        ):
            if old is not None and has_row:
                assert isinstance(aggregate, Subtractable), f"{aggregate}: refused when built"
                aggregate.subtract(partials, key, call(old))
            if new is not None:
                aggregate.add(partials, (key,), iter((call(new),)))
        stamp = bucket.stamps.get(key, timestamp) if has_row else timestamp
        bucket.stamps[key] = max(stamp, timestamp)
        bucket.newest = max(bucket.newest, timestamp)


def _whole(value: Any) -> Any:
    """What an aggregate without an argument takes."""
    return value


def grouping(node: p.Aggregate, runtime: Runtime) -> Push:
    """The operator of an aggregate without windows."""
    operator = (TableAggregate if node.subtracts else GroupAggregate)(node, runtime)
    runtime.stateful[node] = operator
    return operator.process
