"""Groups under construction: windows, and the aggregates that make a table of them.        [P]

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KGroupedStream, TimeWindowedKStream, KGroupedTable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from kafkalite.core.generics import K_co, R, V, V_co
from kafkalite.core.types import Windowed
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serde, Serializer
from kafkalite.streams import hints
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Aggregate, Count, reduce_
from kafkalite.streams.cogrouping import Add, cogroup_fold
from kafkalite.streams.draft import Draft, NotBuilt, operator_of, serde_or_none
from kafkalite.streams.expressions.tree import INPUTS, VALUE
from kafkalite.streams.functions import check_arguments, fitted
from kafkalite.streams.options import AggregateOptions, check_aggregate, check_options
from kafkalite.streams.windows import SessionWindow, SlidingWindow, SpanWindow, TimeWindow, Window

if TYPE_CHECKING:
    from kafkalite.streams.table import Table


class Grouped(NotBuilt, Generic[K_co, V_co]):
    """Records, or changes of a table, in groups. An aggregate makes a table of them."""

    hints = hints.GROUPED

    def __init__(
        self,
        draft: Draft,
        node: p.Node,
        window: Window | None = None,
        *,
        subtracts: bool = False,
    ) -> None:
        self._draft = draft
        self._node = node
        self._window = window
        self._subtracts = subtracts

    def cogroup(self, add: Callable[[R, V_co], R | None]) -> Cogrouped[K_co, R]:
        """One table of several streams. `add(aggregate, value)` adds the values of this one.

        The others follow: `.cogroup(groups, add)`, then `.window(…)` if any, `.aggregate(init)`.
        """
        return Cogrouped(self._draft).cogroup(self, add)

    def window(self, window: Window) -> Grouped[Windowed[K_co], V_co]:
        """One row per key and window: `tumbling(…)`, `hopping(…)`, `session(…)`, `sliding(…)`,
        `unlimited()`."""
        operator = f"window of {self._node.name!r}"
        if not isinstance(window, TimeWindow | SpanWindow):
            raise TopologyError(f"{operator}: expected a window, got {type(window).__name__}")
        if self._window is not None:
            raise TopologyError(f"{operator}: there is one already, {self._window}")
        if self._subtracts:
            raise TopologyError(f"{operator}: the groups of a table have no windows")
        return Grouped(self._draft, self._node, window)

    @overload
    def aggregate(
        self,
        aggregate: Aggregate[V_co, R],
        /,
        *,
        on_error: p.OnError | None = None,
        **options: Unpack[AggregateOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def aggregate(
        self,
        aggregate: None = None,
        /,
        *,
        key: Serde | None = None,
        value: Serializer[dict[str, Any]] | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
        cached: bool = True,
        **aggregates: Aggregate[V_co, Any],
    ) -> Table[K_co, dict[str, Any]]: ...
    def aggregate(
        self,
        aggregate: Aggregate | None = None,
        /,
        *,
        key: Serde | None = None,
        value: Serializer | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
        cached: bool = True,
        **aggregates: Aggregate,
    ) -> Table:
        """A table of dicts with a field for each named aggregate, or of one aggregate's values.

        The updates of a row merge until the commit; with `cached=False` every one goes on.
        """
        operator = f"aggregate of {self._node.name!r}"
        options = AggregateOptions(key=key, value=value, name=name, cached=cached)
        for word, given in options.items():
            if isinstance(given, Aggregate):
                raise TopologyError(f"{operator}: no field can be called {word!r}")
        if (aggregate is None) == (not aggregates):
            raise TopologyError(f"{operator}: expected one unnamed aggregate or several named ones")
        parts = (aggregate,) if aggregate is not None else tuple(aggregates.values())
        return self._table("aggregate", parts, tuple(aggregates) or None, on_error, options)

    def count(self, **options: Unpack[AggregateOptions[int]]) -> Table[K_co, int]:
        """Counts records, with windows those with null values, too. The serde is `int64()`."""
        return self._table("count", (Count(),), None, None, options)

    def reduce(
        self,
        function: Callable[[V_co, V_co], V_co],
        subtract: Callable[[V_co, V_co], V_co | None] | None = None,
        *,
        on_error: p.OnError | None = None,
        **options: Unpack[AggregateOptions[V_co]],
    ) -> Table[K_co, V_co]:
        """Reduces values by `function(aggregate, value)`, beginning with the first value."""
        parts = (reduce_(function, subtract),)
        return self._table("reduce", parts, None, on_error, options)

    def _table(
        self,
        word: str,
        parts: tuple[Aggregate, ...],
        fields: tuple[str, ...] | None,
        on_error: p.OnError | None,
        options: AggregateOptions,
    ) -> Table:
        name, cached = options.get("name"), options.get("cached", True)
        operator = operator_of(word, name, self._node)
        check_options(operator, options, AggregateOptions)
        if not isinstance(cached, bool):
            raise TopologyError(f"{operator}: cached is True or False, got {cached!r}")
        for label, part in zip(fields or ("the aggregate",), parts, strict=True):
            check_aggregate(
                f"{operator}: {label}",
                part,
                of_table=self._subtracts,
                of_sessions=isinstance(self._window, SessionWindow),
            )
        parts = tuple(self._fitted(f"{operator}: {part.word}", part) for part in parts)
        node = self._draft.below(
            word,
            p.Aggregate,
            self._node,
            name,
            on_error,
            aggregates=parts,
            fields=fields,
            window=self._window,
            subtracts=self._subtracts,
            cached=cached,
            key=serde_or_none(options.get("key"), "key=", operator),
            value=serde_or_none(options.get("value"), "value=", operator),
        )
        return self._draft.table(node)

    def _fitted(self, label: str, part: Aggregate) -> Aggregate:
        """The aggregate, once its argument is known to fit the records."""
        if part.argument is None:
            return part
        reads = (VALUE,) if self._subtracts else INPUTS
        shape = self._draft.shapes[self._node]
        return replace(part, argument=fitted(part.argument, label, shape, reads))


class Cogrouped(Generic[K_co, R]):
    """Groups of several streams, each with its function. `aggregate` makes a table of them."""

    def __init__(
        self,
        draft: Draft,
        nodes: tuple[p.Node, ...] = (),
        adders: tuple[Add, ...] = (),
        window: Window | None = None,
    ) -> None:
        self._draft = draft
        self._nodes = nodes
        self._adders = adders
        self._window = window

    def cogroup(
        self, other: Grouped[K_co, V], add: Callable[[R, V], R | None]
    ) -> Cogrouped[K_co, R]:
        """Adds the groups of another stream; `add(aggregate, value)` adds its values."""
        if not isinstance(other, Grouped):
            raise TopologyError(f"cogroup: expected groups of a stream, got {type(other).__name__}")
        operator = f"cogroup of {other._node.name!r}"
        if other._draft is not self._draft:
            raise TopologyError(f"{operator}: the groups are of another application")
        if other._subtracts:
            raise TopologyError(f"{operator}: the groups of a table cannot be one of several")
        if other._window is not None or self._window is not None:
            raise TopologyError(f"{operator}: .window(…) must follow the last .cogroup(…)")
        check_arguments(add, 2, f"{operator}: add", "aggregate and value")
        return Cogrouped(self._draft, (*self._nodes, other._node), (*self._adders, add))

    def window(self, window: Window) -> Cogrouped[Windowed[K_co], R]:
        """Makes one row per key and window, as with the groups of one stream."""
        over = Grouped(self._draft, self._nodes[0], self._window).window(window)._window
        return Cogrouped(self._draft, self._nodes, self._adders, over)

    @overload
    def aggregate(
        self,
        init: Callable[[], R],
        merge: Callable[[R, R], R] | None = None,
        *,
        on_error: p.OnError | None = None,
        **options: Unpack[AggregateOptions[R]],
    ) -> Table[K_co, R]: ...
    @overload
    def aggregate(
        self,
        init: R,
        merge: Callable[[R, R], R] | None = None,
        *,
        on_error: p.OnError | None = None,
        **options: Unpack[AggregateOptions[R]],
    ) -> Table[K_co, R]: ...
    def aggregate(
        self,
        init: Any,
        merge: Callable[[Any, Any], Any] | None = None,
        *,
        on_error: p.OnError | None = None,
        **options: Unpack[AggregateOptions],
    ) -> Table:
        """A table of what the streams' functions make of `init`: a value, or what makes one.

        None deletes the row. Sessions need `merge(older, newer)`.
        """
        window, first = self._window, self._nodes[0]
        if isinstance(window, SessionWindow) and merge is None:
            raise TopologyError(
                f"aggregate of {first.name!r}: a record between two sessions makes them one: "
                "aggregate(init, merge=lambda older, newer: …)"
            )
        together = cogroup_fold(init, self._adders, merge)
        name = options.get("name")
        cogroup = self._draft.add(
            p.Cogroup(
                name=self._draft.name("cogroup", p.Cogroup, first, name and f"{name}-inputs"),
                parents=self._nodes,
                window=window,
                keeps_nulls=window is not None and not isinstance(window, SlidingWindow),
            )
        )
        groups = Grouped[K_co, Any](self._draft, cogroup, window)
        return groups._table("aggregate", (together,), None, on_error, options)
