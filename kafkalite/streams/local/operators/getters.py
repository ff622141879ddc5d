"""Rows of a table by their keys, for joins: from its store, or through the tables above.   [P]

A table without a store has the rows that its function makes of those of its parent, and a join of
tables those of both. `getter_of` gives a function for each kind of node that is a table.

    keys of a batch ─▶ map ─▶ filter ─▶ the store of the source

Rows are those that the stores have, which may be newer than what the table has sent on: its updates
may wait for the commit.

Owns   the dispatchers; a module with another kind of table registers with them.
Fails  through the error policy of a function that is read through. Where failures are skipped there
       is no row, as when the row came.
Source Kafka Streams' KTableValueGetter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from itertools import repeat
from typing import Any, NamedTuple

from kafkalite.core.columns import objects
from kafkalite.errors import UnsupportedOnBackend
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.calling import RowCaller, function_needs, row_caller
from kafkalite.streams.local.operators.versioned import VersionsGetter
from kafkalite.streams.local.runtime import Needs, Runtime
from kafkalite.streams.local.sharing import copies
from kafkalite.streams.local.state import NO_WINDOW, START, Bucket, SpanStore, StateStore


class Rows(NamedTuple):
    """A row for each record of a batch, None for none, and the timestamps of those there are."""

    values: Sequence[Any]
    stamps: Sequence[int]


Getter = Callable[[Batch], Rows]  # by `raw_keys`; functions that take the key get it of `keys`


@singledispatch
def getter_of(node: p.Node, runtime: Runtime, *, as_of: bool = False) -> Getter:
    """Gives rows of the table that `node` makes; of a versioned one with `as_of` those that there
    were at the timestamps of the batch."""
    raise UnsupportedOnBackend(f"{node.name!r}: rows of {type(node).__name__} cannot be looked up")


@singledispatch
def getter_needs(node: p.Node, runtime: Runtime) -> Needs:
    """What a getter needs of a batch besides the keys' bytes."""
    return Needs()


class StoreGetter:
    """Rows out of the store of a table. Operators are made those below first, so it is looked for
    when it is first needed. Where a run has changed rows, values are those at the batch's places in
    its order."""

    def __init__(self, node: p.Node, runtime: Runtime) -> None:
        owned = runtime.store_of(node)
        assert owned is not None, f"{node.name!r}: a table that is looked into has a store"
        self._name = owned.name
        self._runtime = runtime
        self._history = runtime.histories.get(node)
        self._store: StateStore | None = None

    def __call__(self, batch: Batch) -> Rows:
        """The rows of the batch's keys."""
        assert batch.raw_keys is not None
        keys: list[Any] = objects(batch.raw_keys)
        store = self._store
        if store is None:
            found = self._runtime.stores[self._name]
            assert isinstance(found, StateStore), f"{self._name}: a store by keys"
            store = self._store = found
        if isinstance(store, SpanStore):
            return _rows_of_spans(store, keys)
        if store.window is not None:
            return _windowed_rows(store, keys)
        rows = rows_of(store, store.bucket(NO_WINDOW, keys), keys)
        if self._history:
            orders = batch.origin.order(range(len(batch)))
            rows = rows._replace(values=self._history.rows(keys, orders, rows.values))
        return rows


def rows_of(store: StateStore, bucket: Bucket, keys: Sequence[bytes]) -> Rows:
    """The rows of `keys`, which have been read into `bucket`."""
    rows = store.layout.rows(bucket, keys)
    if not store.layout.deletes:
        there = bucket.stamps
        rows = [row if key in there else None for key, row in zip(keys, rows, strict=True)]
    return Rows(rows, list(map(bucket.stamps.get, keys, repeat(0))))


def _windowed_rows(store: StateStore, keys: Sequence[bytes]) -> Rows:
    """Window by window: behind each key stands the start of its window."""
    by_start: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        (start,) = START.unpack(key[-START.size :])
        by_start.setdefault(start, []).append(index)
    values: list[Any] = [None] * len(keys)
    stamps = [0] * len(keys)
    for start, indexes in by_start.items():
        if start not in store.buckets or start < store.shown_from:
            continue
        inner = [keys[index][: -START.size] for index in indexes]
        found = rows_of(store, store.bucket(start, inner), inner)
        for index, value, stamp in zip(indexes, found.values, found.stamps, strict=True):
            values[index], stamps[index] = value, stamp
    return Rows(values, stamps)


def _rows_of_spans(store: SpanStore, keys: Sequence[bytes]) -> Rows:
    """Of sessions and sliding windows: behind each key stand the bounds of its window."""
    spans = store.find(keys)
    there = [span for span in spans if span is not None]
    found = iter(store.layout.rows(store.rows, there))
    stamps = store.rows.stamps
    return Rows(
        [None if span is None else next(found) for span in spans],
        [0 if span is None else stamps[span] for span in spans],
    )


@getter_of.register
def _(node: p.Aggregate, runtime: Runtime, *, as_of: bool = False) -> Getter:
    return StoreGetter(node, runtime)


@getter_of.register(p.TableSource)
@getter_of.register(p.ToTable)
def _(node: p.TableSource | p.ToTable, runtime: Runtime, *, as_of: bool = False) -> Getter:
    if node.history_ms is None:
        return StoreGetter(node, runtime)
    versions = VersionsGetter(node, runtime, as_of=as_of)
    return lambda batch: Rows(*versions.rows(batch))


@getter_of.register
def _(node: p.TableFilter, runtime: Runtime, *, as_of: bool = False) -> Getter:
    if node.named:
        return StoreGetter(node, runtime)
    above = getter_of(node.parent, runtime, as_of=as_of)
    call = row_caller(node, node.function, runtime.failures, lambda f: lambda *x: bool(f(*x)))

    def get(batch: Batch) -> Rows:
        rows = above(batch)
        verdicts, failed = call(batch, rows.values, are_olds=True)
        passed = [
            row if verdict is not None and verdict is not node.negate else None
            for row, verdict in zip(rows.values, verdicts, strict=True)
        ]
        for index in failed:
            passed[index] = None
        return Rows(passed, rows.stamps)

    return get


@getter_of.register
def _(node: p.TableMap, runtime: Runtime, *, as_of: bool = False) -> Getter:
    if node.named:
        return StoreGetter(node, runtime)
    above = getter_of(node.parent, runtime, as_of=as_of)
    own = copies if runtime.must_copy(node, node.function) else None
    call: RowCaller = row_caller(node, node.function, runtime.failures, own=own)

    def get(batch: Batch) -> Rows:
        rows = above(batch)
        made, _ = call(batch, rows.values, are_olds=True)
        return Rows(made, rows.stamps)

    return get


@getter_needs.register(p.TableFilter)
@getter_needs.register(p.TableMap)
def _(node: p.TableFilter | p.TableMap, runtime: Runtime) -> Needs:
    if node.named:
        return Needs()
    return Needs(key=function_needs(node.function).key) | getter_needs(node.parent, runtime)
