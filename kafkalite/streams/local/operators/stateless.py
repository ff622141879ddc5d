"""Operators without state: columns to columns, and the user's function once per record.    [P]

Each takes a batch, and pushes what it makes of it to what is below. Batches that have become
empty are not pushed.

Source Kafka Streams' KStreamFilter, KStreamMap, KStreamBranch, …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kafkalite.core.types import Columns
from kafkalite.streams import plan as p
from kafkalite.streams.functions import CallableFunction, Function
from kafkalite.streams.local.arrows import OnArrow
from kafkalite.streams.local.batch import Batch, Made, Push
from kafkalite.streams.local.calling import caller, check_timestamp, function_needs
from kafkalite.streams.local.operators.changed import (
    with_keys,
    with_pairs,
    with_values,
    without_values,
)
from kafkalite.streams.local.order import is_of_several
from kafkalite.streams.local.runtime import (
    Needs,
    Runtime,
    compile_node,
    node_needs,
)
from kafkalite.streams.local.sharing import copies

# What each needs of its input


@node_needs.register(p.Filter)
@node_needs.register(p.Peek)
def _(node: p.Filter | p.Peek, below: Needs, runtime: Runtime) -> Needs:
    return below | function_needs(node.function)


@node_needs.register(p.Map)
@node_needs.register(p.FlatMap)
def _(node: p.Map | p.FlatMap, below: Needs, runtime: Runtime) -> Needs:
    return Needs(below.key, below.raw_key) | function_needs(node.function)


@node_needs.register
def _(node: p.SelectKey, below: Needs, runtime: Runtime) -> Needs:
    values = replace(below, key=False, raw_key=False, old=False)
    return values | function_needs(node.function)


@node_needs.register
def _(node: p.MapPairs, below: Needs, runtime: Runtime) -> Needs:
    return function_needs(node.function)


@node_needs.register
def _(node: p.MapBatch, below: Needs, runtime: Runtime) -> Needs:
    return Needs(key=True, value=True)


@node_needs.register
def _(node: p.Branch, below: Needs, runtime: Runtime) -> Needs:
    for predicate in node.predicates:
        below |= function_needs(predicate)
    return below


# What each does


@compile_node.register
def _(node: p.Source, runtime: Runtime) -> Push:
    push = runtime.forward(node)
    return runtime.held(push) if runtime.ordering.gathers and is_of_several(node) else push


@compile_node.register(p.BranchArm)
@compile_node.register(p.Late)
@compile_node.register(p.Final)
def _(node: p.Node, runtime: Runtime) -> Push:
    return runtime.forward(node)


@compile_node.register
def _(node: p.Merge, runtime: Runtime) -> Push:
    return runtime.merging(node)


def per_record(
    node: p.Node,
    runtime: Runtime,
    function: Function,
    made: Callable[[Batch, Sequence[Any]], Batch],
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    *,
    by_arrow: Callable[[OnArrow, Batch], Sequence[Any] | None] | None = None,
    several: bool = False,
    makes_values: bool = False,
) -> Push:
    """Calls `function` for each record; `made` is the batch that goes on, given the results.

    `by_arrow` gives the results of an expression over Arrow arrays. `several`: a record may become
    more than one. One that `makes_values` may do so by changing those it gets.
    """
    forward = runtime.forward_several(node) if several else runtime.forward(node)
    own = _owned if makes_values and runtime.must_copy(node, function) else None
    call = caller(node, function, runtime.failures, wrap, by_arrow, own)

    def run(batch: Batch) -> None:
        batch = made(*call(batch))
        if len(batch):
            forward(batch)

    return run


@compile_node.register
def _(node: p.Filter, runtime: Runtime) -> Push:
    def kept(batch: Batch, passes: Sequence[Any]) -> Batch:
        return runtime.failures.where(node, batch, passes, negate=node.negate)

    return per_record(node, runtime, node.function, kept, by_arrow=OnArrow.mask)


@compile_node.register
def _(node: p.Map, runtime: Runtime) -> Push:
    by_arrow = OnArrow.column if runtime.needs(node).arrow else None
    return per_record(
        node, runtime, node.function, with_values, by_arrow=by_arrow, makes_values=True
    )


@compile_node.register
def _(node: p.FlatMap, runtime: Runtime) -> Push:
    def flattened(batch: Batch, lists: Sequence[Any]) -> Batch:
        return with_values(without_values(batch).take(_repeated(lists)), _flat(lists))

    return per_record(
        node, runtime, node.function, flattened, _listed, several=True, makes_values=True
    )


@compile_node.register
def _(node: p.SelectKey, runtime: Runtime) -> Push:
    return per_record(node, runtime, node.function, with_keys, by_arrow=OnArrow.column)


@compile_node.register
def _(node: p.MapPairs, runtime: Runtime) -> Push:
    def flattened(batch: Batch, lists: Sequence[Any]) -> Batch:
        return with_pairs(batch.take(_repeated(lists)), _flat(lists))

    made, wrap = (flattened, _pairs) if node.flat else (with_pairs, _pair)
    return per_record(
        node, runtime, node.function, made, wrap, several=node.flat, makes_values=True
    )


@compile_node.register
def _(node: p.Peek, runtime: Runtime) -> Push:
    return per_record(node, runtime, node.function, lambda batch, _: batch)


@compile_node.register
def _(node: p.MapBatch, runtime: Runtime) -> Push:
    forward = runtime.forward_several(node)
    is_shared = runtime.must_copy(node, CallableFunction(node.function))

    def run(batch: Batch) -> None:
        assert batch.keys is not None
        assert batch.values is not None
        values = copies(batch.values) if is_shared else batch.values
        columns = Columns(batch.keys, values, batch.timestamps, None, batch.headers)
        try:
            made = _checked(node.function(columns))
        except Exception as error:
            for index in range(len(batch)):
                runtime.failures.at(node, error, batch, index)
            return
        origin = batch.origin if len(made) == len(batch) else Made(batch.origin, len(batch) - 1)
        if len(made):
            forward(
                Batch(made.timestamps, origin, made.keys, None, made.values, headers=made.headers)
            )

    return run


@compile_node.register
def _(node: p.Branch, runtime: Runtime) -> Push:
    calls = [
        caller(node, function, runtime.failures, by_arrow=OnArrow.mask)
        for function in node.predicates
    ]
    arms: dict[int, Push] = {
        edge.node.index: runtime.push_to(node, edge)
        for edge in runtime.edges(node)
        if isinstance(edge.node, p.BranchArm)
    }

    def run(batch: Batch) -> None:
        batch = runtime.ordering.of_branch(node, batch)
        for index, call in enumerate(calls):
            batch, matches = call(batch)
            matched, batch = runtime.failures.split(node, batch, matches)
            if len(matched):
                arms[index](matched)
            if not len(batch):
                return
        if node.default:
            arms[len(calls)](batch)

    return run


def _owned(batch: Batch) -> Batch:
    """The batch with values that may be changed."""
    return batch if batch.values is None else replace(batch, values=copies(batch.values))


def _repeated(lists: Sequence[Sequence[Any]]) -> list[int]:
    """The index of each list, as often as it is long."""
    return [index for index, found in enumerate(lists) for _ in found]


def _flat(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [entry for found in lists for entry in found]


# What goes around a user's function, so that a wrong result counts as its failure


def _listed(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *given: list(function(*given))


def _pair(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    def call(*given: Any) -> tuple[Any, Any]:
        key, value = function(*given)
        return key, value

    return call


def _pairs(function: Callable[..., Any]) -> Callable[..., list[tuple[Any, Any]]]:
    return lambda *given: [(key, value) for key, value in function(*given)]


def _checked(made: object) -> Columns:
    """What map_batch returned, if it is columns of one length."""
    if not isinstance(made, Columns):
        raise TypeError(f"expected Columns, got {type(made).__name__}")
    columns = (made.keys, made.values, made.timestamps, made.headers)
    lengths = {len(column) for column in columns if column is not None}
    if len(lengths) != 1:
        raise ValueError(f"columns of different lengths: {sorted(lengths)}")
    for timestamp in (min(made.timestamps, default=0), max(made.timestamps, default=0)):
        check_timestamp(timestamp)
    return made
