"""Tables under construction: their operators as methods.                                   [P]

As in `stream`, every method adds a node to the draft; functions take the value of a row, or with
`with_key=True` key and value.

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KTable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, overload

from kafkalite.core.generics import K, K_co, V, V_co
from kafkalite.core.types import Windowed
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serializer
from kafkalite.streams import hints
from kafkalite.streams import plan as p
from kafkalite.streams.closing import windows_above
from kafkalite.streams.cogrouping import untagged
from kafkalite.streams.draft import Draft, NotBuilt, operator_of, serde_or_none
from kafkalite.streams.durations import Duration, not_negative, positive
from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.expressions.tree import KEY, VALUE
from kafkalite.streams.fields import Fields
from kafkalite.streams.functions import (
    CallableFunction,
    Function,
    OfPair,
    OfValue,
    UserFunction,
    function_of,
    predicate_of,
)
from kafkalite.streams.options import (
    Named,
    Regrouping,
    TableOptions,
    WithKey,
    check_options,
    is_row,
)
from kafkalite.streams.table_joining import TableJoining
from kafkalite.streams.windows import UnlimitedWindow

if TYPE_CHECKING:
    from kafkalite.streams.groups import Grouped
    from kafkalite.streams.stream import Stream


class Table(
    Fields["Table[K_co, dict[str, Any]]"], TableJoining[K_co, V_co], NotBuilt, Generic[K_co, V_co]
):
    """The latest row per key, and per window if it was aggregated over windows."""

    hints = hints.TABLE

    def __init__(self, draft: Draft, node: p.Node) -> None:
        self._draft = draft
        self._node = node

    @overload
    def filter(self, predicate: OfValue[V_co, object], **options: Unpack[Named]) -> Self: ...
    @overload
    def filter(self, predicate: OfPair[K_co, V_co, object], **options: Unpack[WithKey]) -> Self: ...
    def filter(self, predicate: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """Keeps the rows for which `predicate` is true. A named table has a store."""
        return self._rows("filter", p.TableFilter, predicate, options, negate=False)

    @overload
    def filter_not(self, predicate: OfValue[V_co, object], **options: Unpack[Named]) -> Self: ...
    @overload
    def filter_not(
        self, predicate: OfPair[K_co, V_co, object], **options: Unpack[WithKey]
    ) -> Self: ...
    def filter_not(self, predicate: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """Keeps the rows for which `predicate` is not true. A named table has a store."""
        return self._rows("filter_not", p.TableFilter, predicate, options, negate=True)

    @overload
    def map(
        self, function: OfValue[V_co, V | None], **options: Unpack[Named]
    ) -> Table[K_co, V]: ...
    @overload
    def map(
        self, function: OfPair[K_co, V_co, V | None], **options: Unpack[WithKey]
    ) -> Table[K_co, V]: ...
    def map(self, function: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """Maps each row to a new value. A named table has a store."""
        return self._rows("map", p.TableMap, function, options)

    def to_stream(self, *, name: str | None = None) -> Stream[K_co, V_co]:
        """A stream of the updates, merged until the commit; a deletion has a null value."""
        return self._draft.stream(self._draft.below("to_stream", p.ToStream, self._node, name))

    @overload
    def group_by(
        self,
        function: OfValue[V_co, K | None],
        value: None = None,
        **options: Unpack[Regrouping[K, V_co]],
    ) -> Grouped[K, V_co]: ...
    @overload
    def group_by(
        self,
        function: OfValue[V_co, K | None],
        value: OfValue[V_co, V],
        **options: Unpack[Regrouping[K, V]],
    ) -> Grouped[K, V]: ...
    @overload
    def group_by(
        self,
        function: OfPair[K_co, V_co, K | None],
        value: None = None,
        *,
        with_key: Literal[True],
        **options: Unpack[Regrouping[K, V_co]],
    ) -> Grouped[K, V_co]: ...
    @overload
    def group_by(
        self,
        function: OfPair[K_co, V_co, K | None],
        value: OfPair[K_co, V_co, V],
        *,
        with_key: Literal[True],
        **options: Unpack[Regrouping[K, V]],
    ) -> Grouped[K, V]: ...
    def group_by(
        self,
        function: UserFunction,
        value: UserFunction | None = None,
        *,
        key: Serializer | None = None,
        value_serde: Serializer | None = None,
        **options: Unpack[TableOptions],
    ) -> Grouped:
        """Groups the rows by a function of them, `value` being what is aggregated of each.

        A change takes the old row out of its group and adds the new one. None: left out.
        """
        operator = f"group_by of {self._node.name!r}"
        check_options(operator, options, TableOptions)
        with_key = options.get("with_key", False)
        node = self._draft.below(
            "group_by",
            p.TableGroupBy,
            self._node,
            options.get("name"),
            options.get("on_error"),
            function=self._function(function, operator, with_key=with_key),
            select=None if value is None else self._function(value, operator, with_key=with_key),
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value_serde, "value_serde=", operator),
        )
        return self._draft.grouped(node, subtracts=True)

    def final(
        self: Table[Windowed[K], V_co], *, idle: Duration | None = None, name: str | None = None
    ) -> Stream[Windowed[K], V_co]:
        """One record per window, once stream time has passed its end and grace.

        `idle`: windows also close when no record came for that long in wall time.
        """
        operator = operator_of("final", name, self._node)
        idle_ms = None if idle is None else positive(idle, f"{operator}: idle")
        windows = windows_above(self._node)
        if not windows:
            raise TopologyError(_no_window(operator))
        if any(isinstance(each.window, UnlimitedWindow) for each in windows):
            raise TopologyError(f"{operator}: an unlimited window never closes; use .to_stream()")
        maps = self._maps()
        if maps is not None:
            return self._draft.stream(self._final_of(maps, windows[0], name, idle_ms))
        lags = [each.window.lag_ms for each in windows if each.window]
        rows = self._draft.below(
            "final", p.FinalRows, self._node, name, lag_ms=max(lags), idle_ms=idle_ms
        )
        return self._draft.stream(rows)

    def _final_of(
        self, maps: list[p.TableMap], window: p.Aggregate, name: str | None, idle_ms: int | None
    ) -> p.Node:
        """The final rows of an aggregate, and the maps of its table done to them alone."""
        node: p.Node = self._draft.below("final", p.Final, window, name, idle_ms=idle_ms)
        for step in maps:
            node = self._draft.below(
                "map", p.Map, node, None, step.on_error, function=step.function
            )
            node = self._draft.below(  # a row that became None is none
                "filter", p.Filter, node, None, function=CallableFunction(is_row)
            )
        return node

    def _maps(self) -> list[p.TableMap] | None:
        """The maps between a windowed aggregate and this table; None if there is anything else.

        Maps pass an update on for each that comes. Below a filter, time is that of its updates.
        """
        maps: list[p.TableMap] = []
        node = self._node
        while isinstance(node, p.TableMap):
            maps.append(node)
            node = node.parent
        return maps[::-1] if isinstance(node, p.Aggregate) else None

    def suppress(
        self,
        limit: Duration,
        max_records: int | None = None,
        *,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
    ) -> Self:
        """The same table with fewer updates: a key's latest, `limit` after its first that waits.

        Times are those of the updates. With more than `max_records` keys the oldest go on early.
        `value`: the serde of the rows that wait.
        """
        operator = operator_of("suppress", name, self._node)
        if max_records is not None and (type(max_records) is not int or max_records < 1):
            raise TopologyError(f"{operator}: max_records: expected 1 or more, got {max_records!r}")
        node = self._draft.below(
            "suppress",
            p.Suppress,
            self._node,
            name,
            limit_ms=not_negative(limit, f"{operator}: limit"),
            max_records=max_records,
            value=serde_or_none(value, "value=", operator),
        )
        return type(self)(self._draft, node)

    def late(self, *, name: str | None = None) -> Stream:
        """A stream of the records that came too late for all their windows, unchanged."""
        node = self._node
        while isinstance(node, p.TableFilter | p.TableMap | p.Suppress):
            node = node.parent
        if not isinstance(node, p.Aggregate) or node.window is None:
            raise TopologyError(_no_window(operator_of("late", name, self._node)))
        late: p.Node = self._draft.below("late", p.Late, node, name)
        if isinstance(node.parent, p.Cogroup):
            function = CallableFunction(untagged)
            late = self._draft.below("map", p.Map, late, None, function=function)
        return self._draft.stream(late)

    def _rows(
        self,
        word: str,
        kind: type[p.Node],
        function: UserFunction,
        options: TableOptions,
        **fields: Any,
    ) -> Table:
        name = options.get("name")
        operator = operator_of(word, name, self._node)
        check_options(operator, options, TableOptions)
        checked = self._function(function, operator, with_key=options.get("with_key", False))
        if kind is p.TableFilter:
            checked = predicate_of(checked, operator, null_is=fields["negate"])
        node = self._draft.below(
            word,
            kind,
            self._node,
            name,
            options.get("on_error"),
            function=checked,
            named=name is not None,
            **fields,
        )
        return Table(self._draft, node)

    def _formula(
        self, word: str, made: Expression, name: str | None, on_error: p.OnError | None
    ) -> Table:
        return self._rows(word, p.TableMap, made, {"name": name, "on_error": on_error})

    def _function(self, given: UserFunction, operator: str, *, with_key: bool) -> Function:
        """A function of a row; the row that it replaced has no timestamp any more."""
        shape = self._draft.shapes[self._node]
        return function_of(given, operator, with_key=with_key, shape=shape, reads=(VALUE, KEY))


def _no_window(operator: str) -> str:
    return (
        f"{operator}: only a table aggregated over windows has one; "
        "put .window(tumbling(…)) before the aggregate"
    )
