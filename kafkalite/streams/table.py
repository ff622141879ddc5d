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
from kafkalite.streams.draft import Draft, NotBuilt, operator_of, serde_or_none
from kafkalite.streams.durations import Duration, positive
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

if TYPE_CHECKING:
    from kafkalite.streams.groups import Grouped
    from kafkalite.streams.stream import Stream


class Table(Fields["Table[K_co, dict[str, Any]]"], NotBuilt, Generic[K_co, V_co]):
    """The latest row per key, and per window if it was aggregated over windows."""

    not_built = frozenset({"join", "suppress"})
    hints = hints.TABLE

    def __init__(self, draft: Draft, node: p.Node) -> None:
        self._draft = draft
        self._node = node

    @overload
    def filter(self, predicate: OfValue[V_co, object], **options: Unpack[Named]) -> Self: ...
    @overload
    def filter(self, predicate: OfPair[K_co, V_co, object], **options: Unpack[WithKey]) -> Self: ...
    def filter(self, predicate: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """The rows for which `predicate` is true. Named: with a store to look into."""
        return self._rows("filter", p.TableFilter, predicate, options, negate=False)

    @overload
    def filter_not(self, predicate: OfValue[V_co, object], **options: Unpack[Named]) -> Self: ...
    @overload
    def filter_not(
        self, predicate: OfPair[K_co, V_co, object], **options: Unpack[WithKey]
    ) -> Self: ...
    def filter_not(self, predicate: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """The rows for which `predicate` is not true. Named: with a store to look into."""
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
        """A new value for each row. Named: with a store to look into."""
        return self._rows("map", p.TableMap, function, options)

    def to_stream(self, *, name: str | None = None) -> Stream[K_co, V_co]:
        """Every update, after the commit's cache; a deleted row is a null value."""
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
        aggregate, steps = self._windowed("final")
        idle_ms = None if idle is None else positive(idle, "final: idle")
        node: p.Node = self._draft.below("final", p.Final, aggregate, name, idle_ms=idle_ms)
        for step in steps:  # what was done to the table is done to its final rows
            kind = p.Filter if isinstance(step, p.TableFilter) else p.Map
            word = "filter" if kind is p.Filter else "map"
            fields: dict[str, Any] = (
                {"negate": step.negate} if isinstance(step, p.TableFilter) else {}
            )
            node = self._draft.below(
                word, kind, node, None, step.on_error, function=step.function, **fields
            )
            if kind is p.Map:  # a row that became None is none
                node = self._draft.below(
                    "filter", p.Filter, node, None, function=CallableFunction(is_row)
                )
        return self._draft.stream(node)

    def late(self, *, name: str | None = None) -> Stream:
        """The records that came too late for every window, as they came."""
        aggregate, _ = self._windowed("late")
        return self._draft.stream(self._draft.below("late", p.Late, aggregate, name))

    def _windowed(self, word: str) -> tuple[p.Aggregate, list[p.TableFilter | p.TableMap]]:
        """The windowed aggregate that this table comes from, and what was done to it since."""
        steps: list[p.TableFilter | p.TableMap] = []
        node = self._node
        while isinstance(node, p.TableFilter | p.TableMap):
            steps.append(node)
            node = node.parent
        if not isinstance(node, p.Aggregate) or node.window is None:
            raise TopologyError(
                f"{word} of {self._node.name!r}: only a table aggregated over windows has one; "
                "put .window(tumbling(…)) before the aggregate"
            )
        return node, steps[::-1]

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
