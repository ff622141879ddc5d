"""The rows of an aggregate: segments of batches folded into the buckets of its store.       [P]

A batch is folded in by columns: arguments first (the user's functions see every record before any
state is touched), then each aggregate's dict: of all windows at once in native code (folding.py),
or segment by segment. Downstream operators get one update per changed row
and batch, or per commit if updates are cached. The update carries the row's latest value.

Facts  Null keys and null values are dropped and counted. A row's timestamp is the newest of its
       records. An aggregate that becomes None deletes the row, and the timestamp starts anew.
Fails  through the error policy, with the record on which it failed: a batch is folded by
       iterators whose length hint tells how far it came. Where failures are skipped, the rows of
       the batch are put back and its records are folded in one by one.
Source Kafka Streams' KStreamAggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalite.core.columns import objects
from kafkalite.core.types import Headers
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import (
    MISSING,
    Aggregate,
    Count,
    Fold,
    Partials,
)
from kafkalite.streams.functions import Function
from kafkalite.streams.local.arrows import on_arrow
from kafkalite.streams.local.batch import MADE, Batch, Made, Origin, Push, Taken
from kafkalite.streams.local.calling import applied, arguments
from kafkalite.streams.local.failures import Applied
from kafkalite.streams.local.operators.folding import argument, kinds_of, may_fold
from kafkalite.streams.local.operators.keys import has_none, open_store, store_keys, without_nulls
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state import NO_WINDOW, Bucket, Layout, headers_of, stamps_of

if TYPE_CHECKING:  # the native module may not be there
    from kafkalite.streams.local.operators.folding import Groups

Ends = Callable[[Batch], Iterator[int]]  # of the runs of a batch, each behind its last record

WAITING_MAX: Final = 200_000  # rows that wait for the commit; beyond it below is told at once


@dataclass(slots=True, eq=False)
class Segment:
    """The part of a batch that goes into one bucket. `arguments`: a column per aggregate."""

    keys: Sequence[Any]
    timestamps: Sequence[int]
    arguments: list[Sequence[Any] | None]
    headers: Sequence[Headers] | None
    indexes: Sequence[int]  # in the batch

    def as_lists(self) -> Segment:
        """The same in lists, for code that looks at each record several times."""
        return replace(
            self,
            keys=objects(self.keys),
            timestamps=objects(self.timestamps),
            arguments=[None if column is None else objects(column) for column in self.arguments],
        )

    def slice(self, first: int, end: int) -> Segment:
        """The records [first, end)."""
        if first == 0 and end == len(self.timestamps):
            return self
        part = slice(first, end)
        return Segment(
            self.keys[part],
            self.timestamps[part],
            [None if column is None else column[part] for column in self.arguments],
            None if self.headers is None else self.headers[part],
            self.indexes[part],
        )


class Pick(NamedTuple):
    """Some rows of one bucket, with those that they replace if below asks for them."""

    bucket: Bucket
    keys: Sequence[bytes]
    olds: list[Any] | None
    origin: Origin


class Rows:
    """Folds segments into the buckets of one aggregate's store, and tells below what changed."""

    def __init__(self, node: p.Aggregate, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.failures = runtime.failures
        self.skips = self.failures.policy(node) != "fail"
        self.functions = [_prepared(part.argument) for part in node.aggregates]
        self.by_arrow = [on_arrow(part.argument) for part in node.aggregates]
        self.is_cached = runtime.is_cached and node.cached
        self.layout = Layout(node.aggregates, node.fields)
        self.kinds = kinds_of(node.aggregates)
        self.store = open_store(node, self.layout, runtime)
        self.keys = store_keys(node, runtime)
        self.forward = runtime.forward_updates(node)
        self.tells = bool(runtime.edges(node))
        self.needs = runtime.needs(node) | runtime.needs(node, p.Port.FINAL)
        self.history = runtime.histories.get(node)
        self.waiting = 0  # rows that may have changed since below was told
        self._read: Iterator[Any] = iter(())  # the column that is being folded in

    # Arguments

    def taken(self, batch: Batch, *, values: bool) -> tuple[Batch, Segment]:
        """The records of a batch that count, with the keys of the store, and what is folded in.

        Those without a key are dropped, with `values` those without a value too.
        """
        batch = without_nulls(self.keys(batch), self.node, self.runtime, values=values)
        batch, arguments = self.arguments(batch)
        assert batch.raw_keys is not None
        return batch, Segment(
            batch.raw_keys, batch.timestamps, arguments, batch.headers, range(len(batch))
        )

    def wants_each(self, batch: Batch) -> bool:
        """Whether every one of several updates goes on."""
        return self.tells and not self.node.cached and len(batch) > 1

    def parts(
        self, batch: Batch, whole: Segment, ends: Ends | None = None
    ) -> Iterator[tuple[Batch, Segment]]:
        """The runs of a batch, and the segment of each."""
        for start, end in self.runs(batch, ends):
            part = whole.slice(start, end)
            yield batch.slice(start, end), replace(part, indexes=range(end - start))

    def runs(self, batch: Batch, ends: Ends | None = None) -> Iterator[tuple[int, int]]:
        """The records that may be folded at once: all, or cut where every update goes on, or where
        a join asks what rows were.

        No key comes twice in a run then; `ends` cuts more finely. Where the order among several
        arms depends on it, each record is a run.
        """
        wants_each = self.wants_each(batch)
        if not wants_each and self.history is None:
            yield 0, len(batch)
            return
        found: Iterable[int] = range(1, len(batch) + 1)
        if not wants_each or not self.runtime.ordering.forks:
            found = (ends or _distinct)(batch)
        start = 0
        for end in found:
            yield start, end
            start = end

    def arguments(self, batch: Batch) -> tuple[Batch, list[Sequence[Any] | None]]:
        """A column for each aggregate; records that a function failed on are left out."""
        columns: list[list[Any] | Sequence[Any] | None] = []
        shared: dict[object, Sequence[Any]] = {}  # of functions that data tells to be the same
        failed: set[int] = set()
        for (function, call, known), by_arrow, aggregate in zip(
            self.functions, self.by_arrow, self.node.aggregates, strict=True
        ):
            if function is None or call is None:
                columns.append(None if isinstance(aggregate, Count) else batch.values)
            elif known in shared:
                columns.append(shared[known])
            else:
                column: Sequence[Any] | None = None if by_arrow is None else by_arrow.column(batch)
                if column is None:
                    given = arguments(function, batch)
                    column, bad = self.failures.call(self.node, call, batch, given)
                    failed.update(bad)
                columns.append(column)
                if known is not None:
                    shared[known] = column
        if not failed:
            return batch, columns
        kept = [index for index in range(len(batch)) if index not in failed]
        return batch.take(kept), [c and [c[index] for index in kept] for c in columns]

    @property
    def has_cold_rows(self) -> bool:
        """Whether rows of a store on disk may be there alone."""
        store = self.store
        return store.kept.is_durable and any(each.is_cold for each in store.buckets.values())

    # Folding in

    def add(self, bucket: Bucket, segment: Segment, batch: Batch, *, ascending: bool) -> None:
        """Folds `segment` of `batch` in."""
        if not self.skips:
            try:
                self._fold(bucket, segment, ascending=ascending)
            except Exception as error:
                at = len(segment.keys) - length_hint(self._read) - 1
                self.failures.at(self.node, error, batch, segment.indexes[max(at, 0)])
                raise AssertionError("a failure that is not skipped ends the task") from error
            return
        before = Before(self.layout, bucket, segment.keys)
        try:
            self._fold(bucket, segment, ascending=ascending)
        except Exception as error:
            before.put_back()
            if len(segment.keys) == 1:
                self.failures.at(self.node, error, batch, segment.indexes[0])
                return
            for at in range(len(segment.keys)):
                self.add(bucket, segment.slice(at, at + 1), batch, ascending=True)

    def may_fold(self, segment: Segment) -> bool:
        """Whether native code may be able to fold the records of `segment`, at first sight."""
        return may_fold(self.kinds, segment.arguments)

    def fold_groups(self, groups: Groups, segment: Segment) -> bool:
        """Whether native code has folded `segment`; if not, nothing has changed."""
        assert self.kinds is not None
        columns = list(map(argument, segment.arguments))
        partials = [bucket.partials for bucket in self.buckets(groups)]
        return groups.fold(self.kinds, columns, partials, self.layout.deletes)

    def buckets(self, groups: Groups) -> list[Bucket]:
        """The bucket of each window, with the rows of its keys."""
        pairs = zip(groups.starts, groups.stamps, strict=True)
        return [self.store.bucket(start, stamps) for start, stamps in pairs]

    def write_groups(self, groups: Groups, segment: Segment, *, are_told: bool = False) -> None:
        """Puts the rows into the store that native code has made; `are_told`: of which below hears
        by other means."""
        headers = segment.headers
        for at, (start, stamps) in enumerate(zip(groups.starts, groups.stamps, strict=True)):
            bucket = self.store.buckets[start]
            if are_told:
                bucket.unlogged.update(stamps)
            else:
                self.note(bucket, stamps)
            if headers is not None:
                bucket.mark(stamps, [headers[i] for i in groups.last_records(at)])
            elif bucket.headers:
                bucket.mark(stamps, None)
            newest = groups.write(at, bucket.partials, bucket.stamps)
            bucket.newest = max(bucket.newest, newest)

    def _fold(self, bucket: Bucket, segment: Segment, *, ascending: bool) -> None:
        keys, timestamps = segment.keys, segment.timestamps
        latest = _latest(keys, timestamps, ascending=ascending)
        self.note(bucket, latest)
        if segment.headers is not None or bucket.headers:
            bucket.mark(keys, segment.headers)
        if self.layout.deletes:
            self._fold_deleting(bucket, segment, latest, ascending=ascending)
        else:
            _stamp(bucket, latest, timestamps[0] if ascending else min(timestamps))
            self._add_columns(bucket, segment)
        bucket.newest = max(bucket.newest, timestamps[-1] if ascending else max(timestamps))

    def _add_columns(self, bucket: Bucket, segment: Segment) -> None:
        for aggregate, partials, column in zip(
            self.node.aggregates, bucket.partials, segment.arguments, strict=True
        ):
            self._read = iter(segment.keys if column is None else column)
            aggregate.add(partials, segment.keys, self._read)

    def _fold_deleting(
        self, bucket: Bucket, segment: Segment, latest: dict[bytes, int], *, ascending: bool
    ) -> None:
        """One aggregate that may be None: rows come and go, and timestamps with them."""
        (aggregate,), (partials,), (column,) = (
            self.node.aggregates,
            bucket.partials,
            segment.arguments,
        )
        assert column is not None
        if isinstance(aggregate, Fold):
            self._read = iter(column)
            fold_rows(aggregate, partials, bucket.stamps, segment, self._read)
        elif has_none(column) and len(column) > 1:
            # One by one: a row may be there or not when the next record comes.
            self._read = iter(column)
            for key, timestamp in zip(segment.keys, segment.timestamps, strict=True):
                if key not in partials:
                    bucket.stamps.pop(key, None)
                _stamp(bucket, {key: timestamp}, timestamp)
                aggregate.add(partials, (key,), islice(self._read, 1))
                bucket.newest = max(bucket.newest, timestamp)
        else:
            for key in latest:
                if key not in partials:
                    bucket.stamps.pop(key, None)
            first = segment.timestamps[0] if ascending else min(segment.timestamps)
            _stamp(bucket, latest, first)
            self._add_columns(bucket, segment)

    def combine(self, batch: Batch) -> None:
        """Takes rows of partials in, that others have folded, each into its window.

        Row by row: where there are many, they are of many windows.
        """
        assert batch.raw_keys is not None
        assert batch.values is not None
        merges = [aggregate.merge for aggregate in self.node.aggregates]
        store, has_windows = self.store, self.store.window is not None
        rows = zip(batch.raw_keys, batch.timestamps, batch.values, strict=True)
        for index, (key, timestamp, row) in enumerate(rows):
            assert key is not None
            start = row[0] if has_windows else NO_WINDOW
            bucket = store.buckets.get(start)
            if bucket is None or bucket.is_cold:
                bucket = store.bucket(start, (key,))
            if self.tells:
                self.note(bucket, {key: timestamp})
            else:
                bucket.unlogged[key] = timestamp
            if batch.headers is not None or bucket.headers:
                bucket.mark((key,), batch.headers and batch.headers[index : index + 1])
            if timestamp > bucket.stamps.get(key, -1):
                bucket.stamps[key] = timestamp
                bucket.newest = max(bucket.newest, timestamp)
            for merge, partials, part in zip(merges, bucket.partials, row[2:], strict=True):
                if part is not None:
                    older = partials.get(key)
                    partials[key] = part if older is None else merge(older, part)

    # Telling below

    def keep_olds(self, batch: Batch) -> None:
        """Notes what the rows of the batch's keys are, for a join that asks; no key comes twice."""
        if self.history is not None:
            keys: list[Any] = objects(batch.raw_keys or [])
            bucket, has = self.store.bucket(NO_WINDOW, keys), self.store.has
            rows = zip(keys, self.layout.rows(bucket, keys), strict=True)
            olds = [row if has(bucket, key) else None for key, row in rows]
            self.history.note(keys, batch.origin.order(range(len(batch))), olds)

    def note(self, bucket: Bucket, keys: dict[bytes, int]) -> None:
        """Notes that `keys` are about to change; nobody else changes `keys` any more."""
        if bucket.unlogged:
            bucket.unlogged.update(keys)
        else:
            bucket.unlogged = keys
        if not self.tells:
            return
        self.waiting += len(keys)
        if not self.needs.old:
            bucket.changed.update(keys)
            return
        new = [key for key in keys if key not in bucket.changed]
        has = self.store.has
        for key, row in zip(new, self.layout.rows(bucket, new), strict=True):
            bucket.changed[key] = row if has(bucket, key) else None

    def changed(self, bucket: Bucket, origin: Origin = MADE) -> Pick | None:
        """The rows of `bucket` whose update was not sent on, as they are now; None for none."""
        keys = list(bucket.changed)
        if not keys:
            return None
        olds = list(bucket.changed.values())
        bucket.changed = {}
        if self.is_cached and not self.needs.old:
            keys.sort(key=bucket.stamps.__getitem__)  # so that stream time below grows by steps
        return Pick(bucket, keys, olds if self.needs.old else None, origin)

    def batch(self, picks: Sequence[Pick]) -> Batch:
        """Rows of some buckets as one batch."""
        rows = [(pick.bucket, pick.keys) for pick in picks]
        olds = [pick.olds for pick in picks if pick.olds is not None]
        return Batch(
            stamps_of(rows),
            picks[0].origin if len(picks) == 1 else MADE,
            self.store.key_objects(rows) if self.needs.key else None,
            self.store.record_keys(rows),
            self.layout.rows(*self.layout.gathered(rows)),
            None,
            list(chain.from_iterable(olds)) if olds else None,
            headers_of(rows),
        )

    def after(self, batch: Batch, *, is_part: bool = False) -> None:
        """Tells below at once, unless updates wait for the commit; `batch` may be one of `runs`."""
        if self.is_cached:
            if self.waiting > WAITING_MAX:
                self.flush()
        elif is_part and not self.node.cached and self.waiting == len(batch):
            self.flush(batch.origin)  # an update for each record
        elif len(batch) == 1:
            self.flush(Taken(batch.origin, _Zeros()))
        else:
            self.flush(Made(batch.origin, len(batch) - 1))

    def flush(self, origin: Origin = MADE) -> None:
        """Tells below of all buckets, in the order of their windows."""
        if self.waiting:
            self.waiting = 0
            buckets = self.store.buckets
            self.push(self.forward, (self.changed(buckets[s], origin) for s in sorted(buckets)))

    def push(self, forward: Push, picks: Iterable[Pick | None]) -> None:
        """Pushes rows, as one batch where no order among those of several ways counts."""
        there = [pick for pick in picks if pick is not None]
        if self.runtime.ordering.forks:
            for pick in there:
                forward(self.batch([pick]))
        elif there:
            forward(self.batch(there))


def _distinct(batch: Batch) -> Iterator[int]:
    """The ends of runs in which no key comes twice."""
    assert batch.raw_keys is not None
    seen = set[bytes | None]()
    for index, key in enumerate(batch.raw_keys):
        if key in seen:
            yield index
            seen.clear()
        seen.add(key)
    yield len(batch)


def _prepared(function: Function | None) -> tuple[Function | None, Applied | None, object]:
    """An argument: the function for it, and the type that data shows."""
    if function is None:
        return None, None, None
    return function, applied(function), function.known and (type(function), function.known)


class _Zeros(Sequence[int]):
    """As many zeros as are asked for, by themselves one: every update came from the batch's only
    record."""

    def __getitem__(self, index: Any) -> Any:
        return 0

    def __iter__(self) -> Iterator[int]:
        return iter((0,))

    def __len__(self) -> int:
        return 1


def snapshot(aggregate: Aggregate, partials: Partials, keys: Sequence[Any]) -> Partials:
    """The partials of `keys` as they are now, to put back after a failure."""
    return {key: aggregate.copied(partials[key]) for key in keys if key in partials}


class Before:
    """The rows of some keys as they were, to put them back."""

    def __init__(self, layout: Layout, bucket: Bucket, keys: Sequence[bytes]) -> None:
        self.bucket = bucket
        self.keys = list(dict.fromkeys(keys))
        self.partials = [
            snapshot(aggregate, partials, self.keys)
            for aggregate, partials in zip(layout.aggregates, bucket.partials, strict=True)
        ]
        self.others: list[dict[bytes, Any]] = [
            {key: found[key] for key in self.keys if key in found} for found in self._dicts()
        ]

    def _dicts(self) -> tuple[dict[bytes, Any], ...]:
        bucket = self.bucket
        return bucket.stamps, bucket.headers, bucket.changed, bucket.unlogged

    def put_back(self) -> None:
        """Undoes whatever happened to the keys since."""
        for found, was in zip(
            (*self.bucket.partials, *self._dicts()), (*self.partials, *self.others), strict=True
        ):
            for key in self.keys:
                if key in was:
                    found[key] = was[key]
                else:
                    found.pop(key, None)


def fold_rows(
    aggregate: Fold,
    partials: Partials,
    stamps: dict[bytes, int],
    segment: Segment,
    arguments: Iterator[Any],
) -> None:
    """A fold whose rows may be deleted: a row that comes back has the timestamp of its own."""
    get, step = partials.get, aggregate.step
    for key, timestamp, x in zip(segment.keys, segment.timestamps, arguments, strict=True):
        partial = get(key, MISSING)
        folded = step(partial, x)
        if partial is MISSING or timestamp > stamps[key]:
            stamps[key] = timestamp
        if folded is None:
            partials.pop(key, None)
        else:
            partials[key] = folded


def _latest(
    keys: Sequence[bytes], timestamps: Sequence[int], *, ascending: bool
) -> dict[bytes, int]:
    """The newest timestamp of each key."""
    if ascending:
        return dict(zip(keys, timestamps, strict=True))
    latest: dict[bytes, int] = {}
    get = latest.get
    for key, timestamp in zip(keys, timestamps, strict=True):
        if timestamp > get(key, -1):
            latest[key] = timestamp  # noqa: PERF403 - looks at what is there
    return latest


def _stamp(bucket: Bucket, latest: dict[bytes, int], oldest: int) -> None:
    """Lifts the rows' timestamps; a late record does not take them back."""
    stamps = bucket.stamps
    if oldest >= bucket.newest:
        stamps.update(latest)
        return
    get = stamps.get
    for key, timestamp in latest.items():
        if timestamp > get(key, -1):
            stamps[key] = timestamp
