"""Joins of a table with another table.                                                      [P]

`join` looks at its arguments and calls the method for the kind of join.

    users.join(addresses, f)                            rows with equal keys
    orders.join(users, f, foreign_key="user")           each left row with the row that it names

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KTable.join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack, overload

from kafkalite.core.generics import K, K_co, R, V, V_co
from kafkalite.errors import TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, how_of, operator_of, serde_or_none
from kafkalite.streams.expressions.tree import KEY, VALUE
from kafkalite.streams.functions import (
    OfKeyAndSides,
    OfPair,
    OfSides,
    OfValue,
    UserFunction,
    function_of,
    join_function,
)
from kafkalite.streams.options import ForeignOptions, TableJoinOptions, check_options

if TYPE_CHECKING:
    from kafkalite.streams.table import Table


class TableJoining(Generic[K_co, V_co]):
    """Mixed into Table."""

    _draft: Draft
    _node: p.Node

    @overload
    def join(
        self,
        other: Table[K_co, V],
        function: OfSides[V_co, V, R],
        *,
        how: Literal["inner"] = "inner",
        **options: Unpack[TableJoinOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K_co, V],
        function: OfSides[V_co, V | None, R],
        *,
        how: Literal["left"],
        **options: Unpack[TableJoinOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K_co, V],
        function: OfSides[V_co | None, V | None, R],
        *,
        how: Literal["outer"],
        **options: Unpack[TableJoinOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K_co, V],
        function: OfKeyAndSides[K_co, Any, Any, R],
        *,
        with_key: Literal[True],
        how: p.How = "inner",
        **options: Unpack[TableJoinOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K, V],
        function: OfSides[V_co, V, R],
        *,
        foreign_key: OfValue[V_co, K | None],
        how: Literal["inner"] = "inner",
        **options: Unpack[ForeignOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K, V],
        function: OfSides[V_co, V | None, R],
        *,
        foreign_key: OfValue[V_co, K | None],
        how: Literal["left"],
        **options: Unpack[ForeignOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K, V],
        function: OfKeyAndSides[K_co, V_co, Any, R],
        *,
        foreign_key: OfPair[K_co, V_co, K | None],
        with_key: Literal[True],
        how: Literal["inner", "left"] = "inner",
        **options: Unpack[ForeignOptions[R]],
    ) -> Table[K_co, R]: ...
    def join(self, other: Any, function: UserFunction, **options: Any) -> Table:
        """A row `function(left, right)` for each key that both tables have.

        `how`: "left" also for keys of this table alone, "outer" for those of either; the row that
        is missing is None. `with_key=True` passes `(key, left, right)`. The updates of a row merge
        until the commit; with `cached=False` every one goes on. Named: with a store to look into.

        `foreign_key` is a function of this table's row that gives the key of the row to join with;
        `with_key=True` passes `(key, row)` to it. `how` is "inner" or "left" then.
        """
        operator = operator_of("join", options.get("name"), self._node)
        if not isinstance(other, TableJoining):
            kind = type(other).__name__
            raise TopologyError(f"{operator}: expected a table to join with, got {kind}")
        if other._draft is not self._draft:
            raise TopologyError(f"{operator}: {other._node.name!r} is of another application")
        if "foreign_key" in options:
            return self._join_foreign(other, function, operator, **options)
        return self._join_rows(other, function, operator, **options)

    def _join_foreign(
        self,
        other: TableJoining,
        function: UserFunction,
        operator: str,
        *,
        foreign_key: UserFunction,
        how: p.How = "inner",
        with_key: bool = False,
        **options: Unpack[ForeignOptions],
    ) -> Table:
        check_options(operator, options, ForeignOptions)
        node = self._draft.below(
            "join",
            p.ForeignJoin,
            self._node,
            options.get("name"),
            options.get("on_error"),
            others=(other._node,),
            select=function_of(
                foreign_key,
                f"{operator}: foreign_key=",
                with_key=with_key,
                shape=self._draft.shapes[self._node],
                reads=(VALUE, KEY),
            ),
            function=join_function(
                function,
                operator,
                with_key=with_key,
                shape=self._draft.shape_of_sides(self._node, other._node),
            ),
            how=how_of(how, ("inner", "left"), operator),
            named=options.get("name") is not None,
            value=serde_or_none(options.get("value"), "value=", operator),
        )
        return self._draft.table(node)

    def _join_rows(
        self,
        other: TableJoining,
        function: UserFunction,
        operator: str,
        *,
        how: p.How = "inner",
        with_key: bool = False,
        **options: Unpack[TableJoinOptions],
    ) -> Table:
        check_options(operator, options, TableJoinOptions)
        cached = options.get("cached", True)
        if not isinstance(cached, bool):
            raise TopologyError(f"{operator}: cached is True or False, got {cached!r}")
        node = self._draft.below(
            "join",
            p.TableJoin,
            self._node,
            options.get("name"),
            options.get("on_error"),
            others=(other._node,),
            function=join_function(
                function,
                operator,
                with_key=with_key,
                shape=self._draft.shape_of_sides(self._node, other._node),
            ),
            how=how_of(how, ("inner", "left", "outer"), operator),
            named=options.get("name") is not None,
            cached=cached,
            value=serde_or_none(options.get("value"), "value=", operator),
        )
        return self._draft.table(node)
