"""Joins of a stream with another stream, a table or a global table.                        [P]

`join` looks at the right side and calls the method for its kind. Each kind has its own arguments:
a join of streams needs `within=`, a global table `key=`. Others are refused.

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KStream.join, JoinWindows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack, overload

from kafkalite.core.generics import K, K_co, R, V, V_co
from kafkalite.errors import TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, how_of, operator_of, serde_or_none
from kafkalite.streams.durations import Duration, milliseconds, not_negative, spell
from kafkalite.streams.expressions.check import Shape
from kafkalite.streams.functions import (
    Function,
    OfKeyAndSides,
    OfPair,
    OfSides,
    OfValue,
    UserFunction,
    function_of,
    join_function,
)
from kafkalite.streams.global_table import GlobalTable
from kafkalite.streams.options import JoinOptions, Named, StreamJoinOptions, check_options
from kafkalite.streams.table import Table

if TYPE_CHECKING:
    from kafkalite.streams.stream import Stream

Within = Duration | tuple[Duration, Duration]


class Joining(Generic[K_co, V_co]):
    """Mixed into Stream."""

    _draft: Draft
    _node: p.Node

    @overload
    def join(
        self,
        other: Stream[K_co, V],
        function: OfSides[V_co, V, R],
        *,
        within: Within,
        how: Literal["inner"] = "inner",
        grace: Duration = 0,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: Stream[K_co, V],
        function: OfSides[V_co, V | None, R],
        *,
        within: Within,
        how: Literal["left"],
        grace: Duration = 0,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: Stream[K_co, V],
        function: OfSides[V_co | None, V | None, R],
        *,
        within: Within,
        how: Literal["outer"],
        grace: Duration = 0,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: Stream[K_co, V],
        function: OfKeyAndSides[K_co, Any, Any, R],
        *,
        with_key: Literal[True],
        within: Within,
        how: p.How = "inner",
        grace: Duration = 0,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K_co, V],
        function: OfSides[V_co, V, R],
        *,
        how: Literal["inner"] = "inner",
        grace: Duration | None = None,
        **options: Unpack[JoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K_co, V],
        function: OfSides[V_co, V | None, R],
        *,
        how: Literal["left"],
        grace: Duration | None = None,
        **options: Unpack[JoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: Table[K_co, V],
        function: OfKeyAndSides[K_co, Any, Any, R],
        *,
        with_key: Literal[True],
        how: p.How = "inner",
        grace: Duration | None = None,
        **options: Unpack[JoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: GlobalTable[K, V],
        function: OfSides[V_co, V, R],
        *,
        key: OfValue[V_co, K | None] | None = None,
        how: Literal["inner"] = "inner",
        **options: Unpack[Named],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: GlobalTable[K, V],
        function: OfSides[V_co, V | None, R],
        *,
        key: OfValue[V_co, K | None] | None = None,
        how: Literal["left"],
        **options: Unpack[Named],
    ) -> Stream[K_co, R]: ...
    @overload
    def join(
        self,
        other: GlobalTable[K, V],
        function: OfKeyAndSides[K_co, V_co, Any, R],
        *,
        with_key: Literal[True],
        key: OfPair[K_co, V_co, K | None] | None = None,
        how: p.How = "inner",
        **options: Unpack[Named],
    ) -> Stream[K_co, R]: ...
    def join(self, other: Any, function: UserFunction, **options: Any) -> Stream:
        """Joins each record with those of `other` that have its key: `function(left, right)`.

        With another stream, `within` says how far timestamps may be apart: a duration, or two for
        how much earlier and how much later the right record may be. `how`: "inner", "left" also
        for records without a partner, "outer" for those of both sides. `with_key=True` passes
        `(key, left, right)`.

        With a global table, `key` is a function of the record's value that gives the key of the row
        to join with; `with_key=True` passes `(key, value)` to it. Without it the record's own key.
        """
        operator = operator_of("join", options.get("name"), self._node)
        if isinstance(other, Joining):
            return self._join_stream(other, function, operator, **options)
        if isinstance(other, Table):
            return self._join_table(other, function, operator, **options)
        if isinstance(other, GlobalTable):
            return self._join_global(other, function, operator, **options)
        raise TopologyError(
            f"{operator}: expected a stream or a table to join with, got {type(other).__name__}"
        )

    def _join_stream(
        self,
        other: Joining,
        function: UserFunction,
        operator: str,
        *,
        within: Within | None = None,
        how: p.How = "inner",
        grace: Duration = 0,
        with_key: bool = False,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream:
        before_ms, after_ms = window_of(within, operator)
        return self._join_streams(
            "join",
            p.StreamJoin,
            other,
            join_function(function, operator, with_key=with_key, shape=self._shape_with(other)),
            options,
            operator,
            how=how_of(how, ("inner", "left", "outer"), operator),
            before_ms=before_ms,
            after_ms=after_ms,
            grace_ms=not_negative(grace, f"{operator}: grace"),
        )

    def _join_table(
        self,
        other: Table,
        function: UserFunction,
        operator: str,
        *,
        how: p.How = "inner",
        grace: Duration | None = None,
        with_key: bool = False,
        **options: Unpack[JoinOptions],
    ) -> Stream:
        check_options(operator, options, JoinOptions)
        self._check_side(other, operator)
        grace_ms = grace_of(grace, other._node, operator)
        node = self._draft.below(
            "join",
            p.StreamTableJoin,
            self._node,
            options.get("name"),
            options.get("on_error"),
            others=(other._node,),
            function=join_function(
                function, operator, with_key=with_key, shape=self._shape_with(other)
            ),
            how=how_of(how, ("inner", "left"), operator),
            grace_ms=grace_ms,
            key=serde_or_none(options.get("key_serde"), "key_serde=", operator),
            left=serde_or_none(options.get("left_serde"), "left_serde=", operator),
        )
        return self._draft.stream(node)

    def _join_global(
        self,
        other: GlobalTable,
        function: UserFunction,
        operator: str,
        *,
        key: UserFunction | None = None,
        how: p.How = "inner",
        with_key: bool = False,
        **options: Unpack[Named],
    ) -> Stream:
        check_options(operator, options, Named)
        self._check_side(other, operator)
        shape = self._draft.shapes[self._node]
        select = None
        if key is not None:
            select = function_of(key, f"{operator}: key=", with_key=with_key, shape=shape)
        node = self._draft.below(
            "join",
            p.GlobalJoin,
            self._node,
            options.get("name"),
            options.get("on_error"),
            table=other._node.name,
            function=join_function(
                function, operator, with_key=with_key, shape=self._shape_with(other)
            ),
            how=how_of(how, ("inner", "left"), operator),
            select=select,
        )
        return self._draft.stream(node)

    @overload
    def join_as_of(
        self,
        other: Stream[K_co, V],
        function: OfSides[V_co, V, R],
        *,
        tolerance: Duration,
        how: Literal["inner"] = "inner",
        grace: Duration = 0,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join_as_of(
        self,
        other: Stream[K_co, V],
        function: OfSides[V_co, V | None, R],
        *,
        tolerance: Duration,
        how: Literal["left"],
        grace: Duration = 0,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream[K_co, R]: ...
    @overload
    def join_as_of(
        self,
        other: Stream[K_co, V],
        function: OfKeyAndSides[K_co, Any, Any, R],
        *,
        with_key: Literal[True],
        tolerance: Duration,
        how: p.How = "inner",
        grace: Duration = 0,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream[K_co, R]: ...
    def join_as_of(
        self,
        other: Any,
        function: UserFunction,
        *,
        tolerance: Duration,
        how: p.How = "inner",
        grace: Duration = 0,
        with_key: bool = False,
        **options: Unpack[StreamJoinOptions],
    ) -> Stream:
        """Joins each record with the latest of `other` that has its key, is no later and at most
        `tolerance` older. Records wait until stream time is `grace` later, for partners that come
        late. `how="left"`: also records without a partner.
        """
        operator = operator_of("join_as_of", options.get("name"), self._node)
        if not isinstance(other, Joining):
            kind = type(other).__name__
            raise TopologyError(f"{operator}: expected a stream to join with, got {kind}")
        return self._join_streams(
            "join_as_of",
            p.AsOfJoin,
            other,
            join_function(function, operator, with_key=with_key, shape=self._shape_with(other)),
            options,
            operator,
            how=how_of(how, ("inner", "left"), operator),
            tolerance_ms=not_negative(tolerance, f"{operator}: tolerance"),
            grace_ms=not_negative(grace, f"{operator}: grace"),
        )

    def _shape_with(self, other: Joining | Table | GlobalTable) -> Shape:
        """The shapes of both sides' values."""
        return self._draft.shape_of_sides(self._node, other._node)

    def _join_streams(
        self,
        word: str,
        kind: type[p.JoinOfStreams],
        other: Joining,
        function: Function,
        options: StreamJoinOptions,
        operator: str,
        **fields: Any,
    ) -> Stream:
        check_options(operator, options, StreamJoinOptions)
        self._check_side(other, operator)
        node = self._draft.below(
            word,
            kind,
            self._node,
            options.get("name"),
            options.get("on_error"),
            others=(other._node,),
            function=function,
            key=serde_or_none(options.get("key_serde"), "key_serde=", operator),
            left=serde_or_none(options.get("left_serde"), "left_serde=", operator),
            right=serde_or_none(options.get("right_serde"), "right_serde=", operator),
            **fields,
        )
        return self._draft.stream(node)

    def _check_side(self, other: Joining | Table | GlobalTable, operator: str) -> None:
        if other._draft is not self._draft:
            raise TopologyError(f"{operator}: {other._node.name!r} is of another application")


def grace_of(grace: Duration | None, table: p.Node, operator: str) -> int | None:
    """How long records wait for a versioned table; None for not at all."""
    if grace is None:
        return None
    grace_ms, history_ms = not_negative(grace, f"{operator}: grace"), p.history_of(table)
    if history_ms is None:
        raise TopologyError(
            f"{operator}: with grace= records find the row as of their time, which "
            f'{table.name!r} does not know: give it history=, as in app.table(topic, history="1h")'
        )
    if grace_ms > history_ms:
        raise TopologyError(
            f"{operator}: after a grace of {spell(grace_ms)} {table.name!r} has forgotten what was "
            f"there: its history is {spell(history_ms)}"
        )
    return grace_ms or None


def window_of(within: object, operator: str) -> tuple[int, int]:
    """How much earlier and how much later the right record may be, in milliseconds."""
    if within is None:
        raise TopologyError(
            f'{operator}: a join of streams needs within=, how far timestamps may be apart: "5m", '
            'or ("5m", "0s") for how much earlier and later the right record may be'
        )
    pair = within if isinstance(within, tuple) else (within, within)
    if len(pair) != 2:
        raise TopologyError(f"{operator}: within: expected one duration or two, got {within!r}")
    before, after = (milliseconds(each, f"{operator}: within") for each in pair)
    if before + after < 0:
        raise TopologyError(
            f"{operator}: within={within!r} is an empty window: it would begin {before} ms before "
            f"the left record and end {after} ms after it"
        )
    return before, after
