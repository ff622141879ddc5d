"""Joins that look up rows: of a stream with a table, and of two tables.                   [P]

A record of a stream finds the row that its key has in the table. Updates of the table send nothing.

    orders      a:1        a:2                    orders-out    a:1+x   a:2+y
    customers        a:y                          (a was x before)

An update of either of two tables finds the row of the other one, and makes an update of the result:

                       other row      no other row
    inner              f(l, r), ts    nothing
    left, from left    f(l, r), ts    f(l, None); a deletion goes on if there was a row
    left, from right   f(l, r), ts    nothing
    outer              f(l, r), ts    as from the left

The timestamp of a stream's record stays; that of a join of tables is the newer of both rows'. An
update with another row is always sent on, a deletion too. On workers the updates of a join of
tables merge until the commit; of each key the last one goes on.

Facts  A stream's record without a value is dropped and counted; one without a key as well, unless
       how="left": it is joined with None.
       What a record finds must not be of a later one. Most tables can tell what their rows were in
       the course of a run (looking_back.py). With others a record that comes to both sides goes all
       the way before the next (runtime.above_both_sides).
       Old rows are those that were sent: a join of which somebody needs them has a store.
Fails  through the error policy, with the record. A skipped update of a join of tables is a deletion
       where the old row is known.
Source Kafka Streams' KStreamKTableJoinProcessor, KTableKTableInnerJoin, KTableKTableLeftJoin,
       KTableKTableRightJoin, KTableKTableOuterJoin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

from kafkalite.core.columns import has_nulls, objects
from kafkalite.streams import plan as p
from kafkalite.streams.expressions.tree import LEFT
from kafkalite.streams.local.arrows import fields_of, on_sides
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import applied, joiner, sides
from kafkalite.streams.local.operators.changed import with_values
from kafkalite.streams.local.operators.getters import (
    Getter,
    Rows,
    StoreGetter,
    getter_needs,
    getter_of,
)
from kafkalite.streams.local.operators.keys import (
    has_none,
    store_key_needs,
    store_keys,
    without_nulls,
)
from kafkalite.streams.local.operators.tables import LatestRows, as_update
from kafkalite.streams.local.operators.versioned import latest_only
from kafkalite.streams.local.operators.waiting import Waiting
from kafkalite.streams.local.operators.waiting_records import WaitingRecords
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.sharing import copies, takes_apart

Column = Sequence[Any]


def join_caller(
    node: p.TableJoin | p.ForeignJoin,
    runtime: Runtime,
    *,
    once_more: bool = False,
) -> Callable[[Batch, Column, Column], tuple[list[Any], list[int]]]:
    """Calls the function of a join with the left and the right value of each record: the results,
    and the indexes of those that it failed on. `once_more`: as of Failures.call."""
    function = node.function
    own, apply = runtime.must_copy(node, function), applied(function)
    own_rights = own and not isinstance(node, p.ForeignJoin)  # those were just read

    def call(batch: Batch, lefts: Column, rights: Column) -> tuple[list[Any], list[int]]:
        lefts, rights = copies(lefts) if own else lefts, copies(rights) if own_rights else rights
        columns = sides(function, batch, lefts, rights)
        return runtime.failures.call(node, apply, batch, columns, once_more=once_more)

    return call


# A stream and a table


@node_needs.register
def _(node: p.StreamTableJoin, below: Needs, runtime: Runtime) -> tuple[Needs, Needs]:
    needs = Needs(
        below.key or node.function.takes_key,
        below.raw_key,
        value=True,
        fields=fields_of(node.function, LEFT),
        arrow=below.arrow and on_sides(node.function) is not None,
    )
    needs |= store_key_needs(node, runtime) | getter_needs(node.parents[1], runtime)
    if node.grace_ms is not None:
        needs |= Needs(raw_key=True)
    return needs, Needs()


@compile_node.register
def _(node: p.StreamTableJoin, runtime: Runtime) -> tuple[Push, Push]:
    history = runtime.history(node)
    keys, process = store_keys(node, runtime), _lookup(node, runtime)
    is_inner = node.how == "inner"
    if node.grace_ms is not None:
        runtime.stateful[node] = waiting = WaitingRecords(node, runtime, process)
        return (lambda batch: waiting.process(keys(batch))), _ignore

    def run(batch: Batch) -> None:
        batch = without_nulls(keys(batch), node, runtime, keys=is_inner, values=True)
        if len(batch):
            process(batch)

    return run if history is None else runtime.held(run), _ignore


def _lookup(node: p.StreamTableJoin, runtime: Runtime) -> Push:
    """Joins records that have what they need, now."""
    is_one_of_one = node.grace_ms is None
    forward = runtime.forward(node) if is_one_of_one else runtime.forward_several(node)
    get = getter_of(node.parents[1], runtime, as_of=True)
    join = joiner(node, node.function, runtime.failures, takes_forms=runtime.needs(node).arrow)
    own_rows = not takes_apart(node.function)  # the table's store holds them
    own_values = own_rows and runtime.gets_shared_stream(node)
    is_inner = node.how == "inner"

    def process(batch: Batch) -> None:
        rows = _rows_by_key(get, batch)
        if is_inner and has_none(rows):
            mask = [row is not None for row in rows]
            batch, rows = batch.where(mask), list(compress(rows, mask))
        if not len(batch):
            return
        assert batch.values is not None
        values = copies(batch.values) if own_values else batch.values
        batch, results = join(batch, values, copies(rows) if own_rows else rows)
        if len(batch):
            forward(with_values(batch, results))

    return process


def _ignore(batch: Batch) -> None:
    """Updates of the table are in its store."""


def _rows_by_key(get: Getter, batch: Batch) -> Column:
    """The row of each record; a record without a key has none."""
    assert batch.raw_keys is not None
    if not has_nulls(batch.raw_keys):
        return get(batch).values
    mask = [key is not None for key in batch.raw_keys]
    if not any(mask):
        return [None] * len(batch)
    found = iter(get(batch.where(mask)).values)
    return [next(found) if has_key else None for has_key in mask]


# Two tables


class TableJoin:
    """The rows of two tables. `left` and `right` take their updates."""

    def __init__(self, node: p.TableJoin, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.getters = [getter_of(parent, runtime) for parent in node.parents]
        self.store = None if runtime.store_of(node) is None else LatestRows(node, runtime)
        self.call = join_caller(node, runtime)
        forward = runtime.forward(node)
        self.waiting = Waiting(forward) if runtime.is_cached and node.cached else None
        self.forward = forward if self.waiting is None else self.waiting.push

    def left(self, batch: Batch) -> None:
        """Updates of the left table."""
        batch = latest_only(batch, self.node, self.runtime)
        rows = self.getters[1](batch)
        mask = _found(batch, rows, or_own=self.node.how != "inner")
        self._update(batch, rows, mask, lambda own, others: (own, others), is_left=True)

    def right(self, batch: Batch) -> None:
        """Updates of the right table."""
        batch = latest_only(batch, self.node, self.runtime)
        rows = self.getters[0](batch)
        mask = _found(batch, rows, or_own=self.node.how == "outer")
        self._update(batch, rows, mask, lambda own, others: (others, own), is_left=False)

    def _update(
        self,
        batch: Batch,
        rows: Rows,
        mask: Sequence[bool],
        sides: Callable[[Column, Column], tuple[Column, Column]],
        *,
        is_left: bool,
    ) -> None:
        """The updates of the result for those of `mask`, given the rows of the other table."""
        batch = batch.where(mask)
        if not len(batch):
            return
        others, stamps = list(compress(rows.values, mask)), compress(rows.stamps, mask)
        assert batch.values is not None
        lefts, rights = sides(objects(batch.values), others)
        results, failed = joined_rows(self.node.how, self.call, batch, lefts, rights)
        timestamps = [
            own if other is None else max(own, stamp)
            for own, other, stamp in zip(batch.timestamps, others, stamps, strict=True)
        ]
        batch = with_timestamps(batch, timestamps)
        olds = None if self.store is None else self.store.put(batch, results)
        batch = as_update(batch, results, olds)
        if failed:
            left_out = {at for at in failed if olds is None or olds[at] is None}
            batch = batch.where([index not in left_out for index in range(len(batch))])
        if len(batch):
            self.forward(batch)

    def flush(self) -> None:
        """Sends on what waits for the commit."""
        if self.waiting is not None:
            self.waiting.flush()

    def tick(self, now_ms: int) -> None:
        """Nothing waits for the wall clock."""

    def advance(self, stream_time: int) -> None:
        """Nothing waits for stream time."""

    def stream_time(self) -> None:
        """Stream time changes nothing."""

    def resume(self, stream_time: int) -> None:
        """The rows are in the stores of the tables."""


def _found(batch: Batch, rows: Rows, *, or_own: bool) -> list[bool]:
    """Which updates make one of the result: those with another row. With `or_own` those too that
    have a row themselves, or had one."""
    if not or_own:
        return [row is not None for row in rows.values]
    assert batch.values is not None
    assert batch.olds is not None
    columns = zip(rows.values, batch.values, batch.olds, strict=True)
    return [any(row is not None for row in found) for found in columns]


def joined_rows(
    how: p.How,
    call: Callable[[Batch, Column, Column], tuple[list[Any], list[int]]],
    batch: Batch,
    lefts: Column,
    rights: Column,
) -> tuple[list[Any], list[int]]:
    """The row that two rows make, None for none, and where the function failed."""
    if how == "outer":
        pairs = zip(lefts, rights, strict=True)
        mask = [left is not None or right is not None for left, right in pairs]
    elif how == "left":
        mask = [left is not None for left in lefts]
    else:
        pairs = zip(lefts, rights, strict=True)
        mask = [left is not None and right is not None for left, right in pairs]
    if all(mask):
        return call(batch, lefts, rights)
    there = list(compress(range(len(mask)), mask))
    results: list[Any] = [None] * len(mask)
    if not there:
        return results, []
    found, failed = call(
        batch.take(there), [lefts[at] for at in there], [rights[at] for at in there]
    )
    for index, result in zip(there, found, strict=True):
        results[index] = result
    return results, [there[at] for at in failed]


def with_timestamps(batch: Batch, timestamps: Sequence[int]) -> Batch:
    """The batch with other timestamps, for an update of a table."""
    return Batch(
        timestamps,
        batch.origin,
        batch.keys,
        batch.raw_keys,
        batch.values,
        olds=batch.olds,
        headers=batch.headers,
        times=batch.times,
    )


@node_needs.register
def _(node: p.TableJoin, below: Needs, runtime: Runtime) -> tuple[Needs, Needs]:
    needs = Needs(below.key or node.function.takes_key, raw_key=True, value=True)
    left, right = (
        needs | getter_needs(other, runtime) | Needs(old=reads_olds)
        for other, reads_olds in zip(node.parents[::-1], node.reads_olds, strict=True)
    )
    return left, right


@compile_node.register
def _(node: p.TableJoin, runtime: Runtime) -> tuple[Push, Push]:
    operator = TableJoin(node, runtime)
    runtime.stateful[node] = operator
    return operator.left, operator.right


@getter_of.register
def _(node: p.TableJoin, runtime: Runtime, *, as_of: bool = False) -> Getter:
    if node.named:
        return StoreGetter(node, runtime)
    left, right = (getter_of(parent, runtime) for parent in node.parents)
    call = join_caller(node, runtime, once_more=True)

    def get(batch: Batch) -> Rows:
        lefts, rights = left(batch), right(batch)
        values, _ = joined_rows(node.how, call, batch, lefts.values, rights.values)
        return Rows(values, list(map(max, _stamps(lefts), _stamps(rights))))

    return get


def _stamps(rows: Rows) -> list[int]:
    """The timestamps of rows, older than any where there is none."""
    there = zip(rows.values, rows.stamps, strict=True)
    return [-1 if row is None else stamp for row, stamp in there]


@getter_needs.register
def _(node: p.TableJoin, runtime: Runtime) -> Needs:
    if node.named:
        return Needs()
    needs = Needs(key=node.function.takes_key)
    for parent in node.parents:
        needs |= getter_needs(parent, runtime)
    return needs
