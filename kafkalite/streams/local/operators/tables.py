"""Tables: sources, filters, maps, and changes on their way to groups.                     [P]

Updates of a table carry the new row, None for a deleted one, and in `olds` the row it replaces
where somebody below needs it and somebody above keeps it. Updates count in the order in which they
arrive, whatever their timestamps. A user's function never sees None.

Facts  Null keys are dropped and counted by table sources. Every update goes on, equal ones and
       deletions of absent rows too. A filter that knows the old row gives a deletion only when
       that one passed; else for every row that does not pass. A row on which a skipped function
       failed is in no group.
Source Kafka Streams' KTableSource, KTableFilter, KTableMapValues, KTableRepartitionMap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kafkalite.core.columns import objects
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Last
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import RowCaller, function_needs, row_caller
from kafkalite.streams.local.operators.keys import (
    open_store,
    store_key_needs,
    store_keys,
    without_nulls,
)
from kafkalite.streams.local.operators.versioned import VersionedRows
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.sharing import copies
from kafkalite.streams.local.state import NO_WINDOW, Layout


class LatestRows:
    """The store of a table: the latest row per key."""

    def __init__(self, node: p.Node, runtime: Runtime) -> None:
        self.store = open_store(node, Layout((Last(),)), runtime)
        self.keys = store_keys(node, runtime)
        self.history = runtime.histories.get(node)

    def put(self, batch: Batch, values: Sequence[Any]) -> list[Any]:
        """Takes the updates over; the rows they replace."""
        assert batch.raw_keys is not None
        keys: list[Any] = objects(batch.raw_keys)  # null keys are gone
        bucket = self.store.bucket(NO_WINDOW, keys)
        (rows,) = bucket.partials
        get = rows.get
        olds: list[Any] = []
        for key, value in zip(keys, values, strict=True):
            olds.append(get(key))
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        if self.history is not None:
            self.history.note(keys, batch.origin.order(range(len(batch))), olds)
        latest = dict(zip(keys, batch.timestamps, strict=True))
        bucket.stamps.update(latest)
        bucket.unlogged.update(latest)
        if batch.headers is not None or bucket.headers:
            bucket.mark(keys, batch.headers)
        return olds

    def through(self, call: RowCaller, batch: Batch) -> Batch:
        """The updates with what `call` makes of their rows, and the rows kept here that go."""
        batch = _through(call, self.keys(batch), with_olds=False)
        assert batch.values is not None
        return as_update(batch, batch.values, self.put(batch, batch.values))


def _through(call: RowCaller, batch: Batch, *, with_olds: bool) -> Batch:
    """The updates with what `call` makes of their rows, and of the old ones where those are known.

    A record that the function fails on is left out. Where the old row is known it becomes a
    deletion: the next update replaces the row of this one, of which nothing has come.
    """
    assert batch.values is not None
    values, failed = call(batch, batch.values)
    olds: Sequence[Any] | None = None
    if with_olds and batch.olds is not None:
        olds, _ = call(batch, batch.olds, are_olds=True)
        failed = [index for index in failed if olds[index] is None]
    batch = as_update(batch, values, olds)
    if failed:
        left_out = set(failed)
        batch = batch.where([index not in left_out for index in range(len(batch))])
    return batch


def _row_needs(node: p.Node, below: Needs, runtime: Runtime) -> Needs:
    """Of a table with a store of its own."""
    return Needs(below.key, below.raw_key, value=True) | store_key_needs(node, runtime)


@node_needs.register(p.TableSource)
@node_needs.register(p.ToTable)
def _(node: p.TableSource | p.ToTable, below: Needs, runtime: Runtime) -> Needs:
    return _row_needs(node, below, runtime) | Needs(raw_key=isinstance(node, p.TableSource))


@compile_node.register(p.TableSource)
@compile_node.register(p.ToTable)
def _(node: p.TableSource | p.ToTable, runtime: Runtime) -> Push:
    forward = runtime.forward(node)
    rows: LatestRows | None = None
    versions = None if node.history_ms is None else VersionedRows(node, runtime)
    keys = store_keys(node, runtime)
    has_store = runtime.store_of(node) is not None
    if has_store and versions is None:
        rows = LatestRows(node, runtime)

    def run(batch: Batch) -> None:
        if has_store:
            batch = keys(batch)
        batch = without_nulls(batch, node, runtime, values=False)
        if not len(batch):
            return
        if versions is not None:
            batch = versions.put(batch)
            if len(batch):
                forward(batch)
            return
        assert batch.values is not None
        olds = None if rows is None else rows.put(batch, batch.values)
        forward(as_update(batch, batch.values, olds))

    return run


@node_needs.register
def _(node: p.TableFilter, below: Needs, runtime: Runtime) -> Needs:
    needs = Needs(below.key, below.raw_key, old=not node.named) | function_needs(node.function)
    return needs | (_row_needs(node, below, runtime) if node.named else Needs())


@compile_node.register
def _(node: p.TableFilter, runtime: Runtime) -> Push:
    forward = runtime.forward(node)
    call = row_caller(node, node.function, runtime.failures, _verdict)
    store = LatestRows(node, runtime) if node.named else None
    tells_olds = _tells_olds(node)

    def passing(
        batch: Batch, rows: Sequence[Any], *, are_olds: bool = False
    ) -> tuple[list[Any], list[int]]:
        passes, failed = call(batch, rows, are_olds=are_olds)
        passed = [
            row if row is not None and passes_it is not node.negate else None
            for row, passes_it in zip(rows, passes, strict=True)
        ]
        for index in failed:
            passed[index] = None
        return passed, failed

    def run(batch: Batch) -> None:
        if store is None:
            batch = _through(passing, batch, with_olds=True)
        else:
            batch = store.through(passing, batch)
        if batch.olds is not None and tells_olds:
            assert batch.values is not None
            both = zip(batch.values, batch.olds, strict=True)
            batch = batch.where([new is not None or old is not None for new, old in both])
        if len(batch):
            forward(batch)

    return run


def _tells_olds(node: p.TableFilter | p.TableMap) -> bool:
    """Whether updates say which row they replace: one of a versioned table may be no latest one,
    and replaces none. A named filter or map below has the latest rows again."""
    above = node.parent
    if isinstance(above, p.TableFilter | p.TableMap) and not node.named:
        return _tells_olds(above)
    return p.history_of(above) is None


def _verdict(function: Callable[..., Any]) -> Callable[..., bool]:
    return lambda *given: bool(function(*given))


@node_needs.register
def _(node: p.TableMap, below: Needs, runtime: Runtime) -> Needs:
    old = below.old and not node.named
    needs = Needs(below.key, below.raw_key, old=old) | function_needs(node.function)
    return needs | (_row_needs(node, below, runtime) if node.named else Needs())


@compile_node.register
def _(node: p.TableMap, runtime: Runtime) -> Push:
    forward = runtime.forward(node)
    own = copies if runtime.must_copy(node, node.function) else None
    call = row_caller(node, node.function, runtime.failures, own=own)
    store = LatestRows(node, runtime) if node.named else None
    needs_old = runtime.needs(node).old

    def run(batch: Batch) -> None:
        if store is None:
            batch = _through(call, batch, with_olds=needs_old)
        else:
            batch = store.through(call, batch)
        if len(batch):
            forward(batch)

    return run


def as_update(batch: Batch, values: Sequence[Any], olds: Sequence[Any] | None) -> Batch:
    """The batch with other rows; a table's rows have no bytes."""
    return Batch(
        batch.timestamps,
        batch.origin,
        batch.keys,
        batch.raw_keys,
        values,
        None,
        olds,
        batch.headers,
        batch.times,
        batch.latest,
    )


@node_needs.register
def _(node: p.ToStream, below: Needs, runtime: Runtime) -> Needs:
    return Needs(below.key, below.raw_key, value=below.value)


@compile_node.register
def _(node: p.ToStream, runtime: Runtime) -> Push:
    forward = runtime.forward(node)

    def run(batch: Batch) -> None:
        assert batch.values is not None
        forward(as_update(batch, batch.values, None))

    return run


@node_needs.register
def _(node: p.TableGroupBy, below: Needs, runtime: Runtime) -> Needs:
    needs = function_needs(node.function)
    if node.select is not None:
        needs |= function_needs(node.select)
    return needs | Needs(old=True)


@compile_node.register
def _(node: p.TableGroupBy, runtime: Runtime) -> Push:
    forward = runtime.forward(node)
    group = row_caller(node, node.function, runtime.failures)
    select = None if node.select is None else row_caller(node, node.select, runtime.failures)

    def grouped(
        batch: Batch, rows: Sequence[Any], *, are_olds: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Each row's group and its aggregated value; None for a row that fails."""
        groups, _ = group(batch, rows, are_olds=are_olds)
        if select is not None:
            pairs = zip(groups, rows, strict=True)
            rows = [None if of is None else row for of, row in pairs]
            rows, _ = select(batch, rows, are_olds=are_olds)
        return zip(groups, rows, strict=True)

    def run(batch: Batch) -> None:
        batch = batch.latest_ones()
        assert batch.values is not None
        assert batch.olds is not None
        news = grouped(batch, batch.values)
        olds = grouped(batch, batch.olds, are_olds=True)
        taken: list[int] = []
        keys: list[Any] = []
        changes: list[tuple[Any, Any]] = []
        for index, (old, new) in enumerate(zip(olds, news, strict=True)):
            for key, change in _changes(*old, *new):
                taken.append(index)
                keys.append(key)
                changes.append(change)
        if taken:
            batch = batch.take(taken)
            forward(Batch(batch.timestamps, batch.origin, keys, None, changes,
                          headers=batch.headers, times=batch.times))  # fmt: skip

    return run


def _changes(
    old_group: Any, old: Any, new_group: Any, new: Any
) -> list[tuple[Any, tuple[Any, Any]]]:
    """What a change of a row is to the groups: out of the old one first. None is no group."""
    leaves = old_group is not None and old is not None
    enters = new_group is not None and new is not None
    if leaves and enters and old_group == new_group:
        return [(new_group, (old, new))]
    changes: list[tuple[Any, tuple[Any, Any]]] = []
    if leaves:
        changes.append((old_group, (old, None)))
    if enters:
        changes.append((new_group, (None, new)))
    return changes
