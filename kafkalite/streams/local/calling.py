"""User functions over batches: which columns they take, and what becomes of failures.     [P]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

from kafkalite.streams import plan as p
from kafkalite.streams.expressions.objects import compile_objects
from kafkalite.streams.expressions.tree import KEY, LEFT, RIGHT, TIMESTAMP, VALUE
from kafkalite.streams.functions import CallableFunction, ExpressionFunction, Function, Passes
from kafkalite.streams.local.arrows import OnArrow, on_arrow, on_sides
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.failures import Applied, Failures
from kafkalite.streams.local.runtime import Needs
from kafkalite.streams.record import Record

Results = tuple[Batch, Sequence[Any]]
TIMESTAMP_MAX: Final = (1 << 63) - 1


def records(batch: Batch) -> list[Record]:
    """The records of a batch as objects, with the places they were read from."""
    assert batch.keys is not None
    assert batch.values is not None
    places = batch.origin.places(range(len(batch)))
    headers = repeat(()) if batch.headers is None else batch.headers
    return [
        Record(key, value, timestamp, header)
        if place is None
        else Record(key, value, timestamp, header, place.topic, place.partition, place.offset)
        for key, value, timestamp, header, place in zip(
            batch.keys, batch.values, batch.timestamps, headers, places, strict=False
        )
    ]


def arguments(function: Function, batch: Batch) -> Sequence[Sequence[Any]]:
    """The columns that `function` is called with."""
    if isinstance(function, ExpressionFunction):
        return inputs(function, batch, batch.values)
    if function.passes is Passes.RECORD:
        return (records(batch),)
    assert batch.values is not None
    if function.passes is Passes.VALUE:
        return (batch.values,)
    assert batch.keys is not None
    return (batch.keys, batch.values)


def inputs(
    function: ExpressionFunction, batch: Batch, values: Sequence[Any] | None
) -> list[Sequence[Any]]:
    """The columns that an expression reads, `values` being that of the values."""
    columns = {VALUE: values, KEY: batch.keys, TIMESTAMP: batch.timestamps}
    found = [columns[each] for each in function.inputs]
    assert all(column is not None for column in found), f"{function}: a column is not there"
    return [column for column in found if column is not None]


def applied(function: Function) -> Applied:
    """The function over columns: the user's callable, or the expression's loop."""
    if isinstance(function, ExpressionFunction):
        return compile_objects(function.tree, function.shape)
    return function.call


def called(function: Function) -> Callable[..., Any]:
    """A callable for one record. An expression's loop over many takes a fraction of the time."""
    if isinstance(function, ExpressionFunction):
        return compile_objects(function.tree, function.shape).one
    return function.call


def caller(
    node: p.Node,
    function: Function,
    failures: Failures,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    by_arrow: Callable[[OnArrow, Batch], Sequence[Any] | None] | None = None,
    own: Callable[[Batch], Batch] | None = None,
) -> Callable[[Batch], Results]:
    """Calls `function` for each record: the records that did not fail, and their results.

    `by_arrow` gives the results of an expression over Arrow arrays, where it can. `wrap` goes
    around the user's function, so that what it checks counts as the function's failure. `own`
    gives the batch that the function may change.
    """
    call = applied(function) if wrap is None else wrap(called(function))
    arrow = on_arrow(function) if by_arrow is not None and wrap is None else None

    def run(batch: Batch) -> Results:
        given = arguments(function, batch if own is None else own(batch))
        results, failed = failures.call(node, call, batch, given)
        return failures.without(batch, results, failed) if failed else (batch, results)

    if arrow is None or by_arrow is None:
        return run

    def run_by_arrow(batch: Batch) -> Results:
        results = by_arrow(arrow, batch)
        return run(batch) if results is None else (batch, results)

    return run_by_arrow


class RowCaller(Protocol):
    """Calls a function for the rows of a table: see `row_caller`."""

    def __call__(
        self, batch: Batch, rows: Sequence[Any], *, are_olds: bool = False
    ) -> tuple[list[Any], list[int]]:
        """The results, and the indexes of records that the function failed on."""


def row_caller(
    node: p.Node,
    function: Function,
    failures: Failures,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    own: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> RowCaller:
    """Calls `function` for the rows of a table that are not None; None gives None, a failure too.

    The rows are a column beside the batch, its values or its olds. An old row that the function
    fails on was dealt with when it came. `wrap` goes around a callable of the user's; `own` gives
    rows that it may change.
    """
    call = applied(function)
    if wrap is not None and isinstance(function, CallableFunction):
        call = wrap(function.call)

    def run(
        batch: Batch, rows: Sequence[Any], *, are_olds: bool = False
    ) -> tuple[list[Any], list[int]]:
        there = [index for index, row in enumerate(rows) if row is not None]
        columns: list[Sequence[Any]]
        if isinstance(function, ExpressionFunction):
            columns = inputs(function, batch, rows)
        else:
            columns = [rows if own is None else own(rows)]
            if function.takes_key:
                assert batch.keys is not None
                columns.insert(0, batch.keys)
        if len(there) < len(rows):
            columns = [[column[index] for index in there] for column in columns]
        found, failed = failures.call(node, call, batch, columns, there, once_more=are_olds)
        results: list[Any] = [None] * len(rows)
        for index, result in zip(there, found, strict=True):
            results[index] = result
        return results, [there[at] for at in failed]

    return run


def sides(
    function: Function, batch: Batch, left: Sequence[Any], right: Sequence[Any]
) -> list[Sequence[Any]]:
    """The columns that the function of a join is called with."""
    if isinstance(function, ExpressionFunction):
        given = {LEFT: left, RIGHT: right, KEY: batch.keys, TIMESTAMP: batch.timestamps}
        return [column for each in function.inputs if (column := given[each]) is not None]
    if not function.takes_key:
        return [left, right]
    assert batch.keys is not None
    return [batch.keys, left, right]


class Joiner(Protocol):
    """Calls the function of a join: see `joiner`."""

    def __call__(self, batch: Batch, left: Sequence[Any], right: Sequence[Any]) -> Results:
        """The records that did not fail, and their results."""


def joiner(
    node: p.Node, function: Function, failures: Failures, *, takes_forms: bool = False
) -> Joiner:
    """Calls the function of a join for each pair of a left and a right value.

    `batch` has what the pairs have in common, the keys if the function takes them. With
    `takes_forms` the results may be a column that is no list: where the values of a side are one.
    """
    call = applied(function)
    arrow = on_sides(function) if takes_forms else None

    def run(batch: Batch, left: Sequence[Any], right: Sequence[Any]) -> Results:
        if arrow is not None and (form := arrow.joined(batch, left, right)) is not None:
            return batch, form
        columns = sides(function, batch, left, right)
        results, failed = failures.call(node, call, batch, columns)
        return failures.without(batch, results, failed) if failed else (batch, results)

    return run


def function_needs(function: Function) -> Needs:
    """What a function of the record needs of a batch."""
    fields = frozenset(path[0] for path in function.paths if path)
    reads_whole = not fields or () in function.paths
    return Needs(
        key=function.takes_key,
        value=function.takes_value,
        fields=None if reads_whole else fields,
        arrow=isinstance(function, ExpressionFunction) or function.field is not None,
    )


def check_timestamp(timestamp: object) -> None:
    """TypeError or ValueError unless a record can have it."""
    if type(timestamp) is not int:
        raise TypeError(f"timestamp {timestamp!r} is no int of epoch milliseconds")
    if not 0 <= timestamp <= TIMESTAMP_MAX:
        what = "negative" if timestamp < 0 else "beyond 64 bits"
        raise ValueError(f"timestamp {timestamp} is {what}")
