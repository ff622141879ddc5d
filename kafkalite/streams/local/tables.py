"""Tables: sources, filters, maps, and changes on their way to groups.                     [P]

Updates of a table carry the new row, None for a deleted one, and in `olds` the row it replaces
where somebody below needs it and somebody above keeps it. Updates count in the order in which they
arrive, whatever their timestamps. A user's function never sees None.

Facts  Null keys are dropped and counted by table sources. Every update goes on, equal ones and
       deletions of absent rows too. A filter that knows the old row gives a deletion only when
       that one passed; else for every row that does not pass.
Source Kafka Streams' KTableSource, KTableFilter, KTableMapValues, KTableRepartitionMap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Last
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import function_needs, row_caller
from kafkalite.streams.local.grouping import (
    open_store,
    store_key_needs,
    store_keys,
    without_nulls,
)
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state import NO_WINDOW, Layout


class LatestRows:
    """The store of a table: the latest row per key."""

    def __init__(self, node: p.Node, runtime: Runtime) -> None:
        self.store = open_store(node, Layout((Last(),)), runtime)
        self.keys = store_keys(node, runtime)

    def put(self, batch: Batch, values: Sequence[Any]) -> list[Any]:
        """Takes the updates over; the rows they replace."""
        bucket = self.store.bucket(NO_WINDOW)
        (rows,) = bucket.partials
        get = rows.get
        olds: list[Any] = []
        assert batch.raw_keys is not None
        for key, value in zip(batch.raw_keys, values, strict=True):
            olds.append(get(key))
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        latest = dict(zip(batch.raw_keys, batch.timestamps, strict=True))
        bucket.stamps.update(latest)  # type: ignore[arg-type]  # null keys are gone
        bucket.unlogged.update(latest)  # type: ignore[arg-type]
        if batch.headers is not None or bucket.headers:
            bucket.mark(batch.raw_keys, batch.headers)  # type: ignore[arg-type]
        return olds


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
    rows = None if runtime.store_of(node) is None else LatestRows(node, runtime)

    def run(batch: Batch) -> None:
        if rows is not None:
            batch = rows.keys(batch)
        batch = without_nulls(batch, runtime, values=False)
        if not len(batch):
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
    call = row_caller(node, node.function, runtime.failures)
    rows = LatestRows(node, runtime) if node.named else None

    def passing(batch: Batch, column: Sequence[Any]) -> tuple[list[Any], list[int]]:
        passes, failed = call(batch, column)
        return [
            row if row is not None and bool(passed) is not node.negate else None
            for row, passed in zip(column, passes, strict=True)
        ], failed

    def run(batch: Batch) -> None:
        if rows is not None:
            batch = rows.keys(batch)
        assert batch.values is not None
        values, failed = passing(batch, batch.values)
        olds = batch.olds
        if rows is None and olds is not None:
            olds, failed_too = passing(batch, olds)
            failed += failed_too
        batch = as_update(batch, values, olds)
        if failed:
            batch = batch.where([index not in failed for index in range(len(batch))])
        if rows is not None and len(batch):
            assert batch.values is not None
            batch = as_update(batch, batch.values, rows.put(batch, batch.values))
        if batch.olds is not None:
            assert batch.values is not None
            both = zip(batch.values, batch.olds, strict=True)
            batch = batch.where([new is not None or old is not None for new, old in both])
        if len(batch):
            forward(batch)

    return run


@node_needs.register
def _(node: p.TableMap, below: Needs, runtime: Runtime) -> Needs:
    old = below.old and not node.named
    needs = Needs(below.key, below.raw_key, old=old) | function_needs(node.function)
    return needs | (_row_needs(node, below, runtime) if node.named else Needs())


@compile_node.register
def _(node: p.TableMap, runtime: Runtime) -> Push:
    forward = runtime.forward(node)
    call = row_caller(node, node.function, runtime.failures)
    rows = LatestRows(node, runtime) if node.named else None
    needs_old = runtime.needs(node).old

    def run(batch: Batch) -> None:
        if rows is not None:
            batch = rows.keys(batch)
        assert batch.values is not None
        values, failed = call(batch, batch.values)
        olds: Sequence[Any] | None = None
        if rows is None and needs_old and batch.olds is not None:
            olds, failed_too = call(batch, batch.olds)
            failed += failed_too
        batch = as_update(batch, values, olds)
        if failed:
            batch = batch.where([index not in failed for index in range(len(batch))])
        if not len(batch):
            return
        if rows is not None:
            assert batch.values is not None
            batch = as_update(batch, batch.values, rows.put(batch, batch.values))
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

    def grouped(batch: Batch, rows: Sequence[Any], failed: set[int]) -> list[tuple[Any, Any]]:
        """Of each row its group and what is aggregated of it."""
        groups, bad = group(batch, rows)
        failed.update(bad)
        if select is not None:
            rows, bad = select(batch, rows)
            failed.update(bad)
        return list(zip(groups, rows, strict=True))

    def run(batch: Batch) -> None:
        assert batch.values is not None
        assert batch.olds is not None
        failed: set[int] = set()
        olds = grouped(batch, batch.olds, failed)
        news = grouped(batch, batch.values, failed)
        taken: list[int] = []
        keys: list[Any] = []
        changes: list[tuple[Any, Any]] = []
        for index, (old, new) in enumerate(zip(olds, news, strict=True)):
            if index in failed:
                continue
            for key, change in _changes(*old, *new):
                taken.append(index)
                keys.append(key)
                changes.append(change)
        if taken:
            batch = batch.take(taken)
            forward(Batch(batch.timestamps, batch.origin, keys, None, changes,
                          headers=batch.headers))  # fmt: skip

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
