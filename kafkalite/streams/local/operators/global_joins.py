"""Streams with global tables: each record with the row of a key that it names.             [P]

The table is in this worker as a whole, so nothing is repartitioned: the join is an operator without
state. A change of the table makes no records.

Facts  A null value is dropped and counted. A null mapped key is dropped and counted by an inner
       join; a left one joins with no row. Timestamp, key and headers are the record's.
Source Kafka Streams' KStreamKTableJoinProcessor, for global tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import applied, caller, function_needs, sides
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import convert
from kafkalite.streams.local.global_store import GlobalStore
from kafkalite.streams.local.operators.changed import with_values
from kafkalite.streams.local.operators.keys import drop_nulls, has_none
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.sharing import copies, takes_apart


@node_needs.register
def _(node: p.GlobalJoin, below: Needs, runtime: Runtime) -> Needs:
    select = Needs(key=True) if node.select is None else function_needs(node.select)
    return Needs(below.key or node.function.takes_key, below.raw_key, value=True) | select


@compile_node.register
def _(node: p.GlobalJoin, runtime: Runtime) -> Push:
    forward = runtime.forward(node)
    store = runtime.global_stores[node.table]
    keys_of = _keys(node, runtime)
    call = applied(node.function)
    own_values = runtime.must_copy(node, node.function)
    own_rows = not takes_apart(node.function)  # the table's store holds them

    def run(batch: Batch) -> None:
        if has_none(batch.nulls()):
            batch = drop_nulls(batch, batch.nulls(), Reason.NULL_VALUE, node, runtime)
        batch, rows = _rows(*keys_of(batch), store, node, runtime)
        assert batch.values is not None
        values = copies(batch.values) if own_values else batch.values
        columns = sides(node.function, batch, values, copies(rows) if own_rows else rows)
        results, failed = runtime.failures.call(node, call, batch, columns)
        if failed:
            batch, results = runtime.failures.without(batch, results, failed)
        if len(batch):
            forward(with_values(batch, results))

    return run


def _keys(node: p.GlobalJoin, runtime: Runtime) -> Callable[[Batch], tuple[Batch, Sequence[Any]]]:
    """The keys to look for; records on which the user's function fails are left out."""
    if node.select is not None:
        return caller(node, node.select, runtime.failures)

    def own(batch: Batch) -> tuple[Batch, Sequence[Any]]:
        assert batch.keys is not None
        return batch, batch.keys

    return own


def _rows(
    batch: Batch, keys: Sequence[Any], store: GlobalStore, node: p.GlobalJoin, runtime: Runtime
) -> tuple[Batch, Sequence[Any]]:
    """The row of each key; records that the join drops are left out."""
    failures = runtime.failures
    found, bad = convert(
        lambda _, column: store.key_bytes(column),
        store.topic,
        keys,
        lambda index, error: failures.at(node, error, batch, index),
    )
    if bad:
        batch, found = failures.without(batch, list(found), bad)
    if node.how == "left":
        return batch, store.rows(found)
    keep = [key is not None for key in found]
    if not all(keep):
        batch = drop_nulls(batch, found, Reason.NULL_KEY, node, runtime)
        found = [key for key in found if key is not None]
    rows = store.rows(found)
    joined = [row is not None for row in rows]
    return batch.where(joined), [row for row in rows if row is not None]
