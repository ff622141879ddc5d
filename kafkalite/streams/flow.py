"""Streams, groups and tables under construction: the operators as methods.                [P]

Every method adds a node to the draft and returns what can be built upon it. Functions take the
value; `with_key=True` passes key and value, `with_record=True` one `Record`; a field name stands
for a function that takes the field out of the value. `name=` names the operator, else its place
does. `on_error=` says what becomes of records on which the operator fails: "fail", "skip", "dlq".

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KStream, KGroupedStream, KTable, KGroupedTable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serde
from kafkalite.streams import hints
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Aggregate, Count, reduce_
from kafkalite.streams.draft import Draft, NotBuilt, refuse_history, serde_or_none
from kafkalite.streams.durations import Duration, positive
from kafkalite.streams.expressions.check import Shape
from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.expressions.tree import INPUTS, KEY, VALUE
from kafkalite.streams.fields import Fields
from kafkalite.streams.functions import (
    CallableFunction,
    Function,
    check_arguments,
    fitted,
    function_of,
    partitioner_of,
    predicate_of,
    refuse_expression,
    topic_of,
)
from kafkalite.streams.options import (
    AggregateOptions,
    Options,
    TableOptions,
    check_aggregate,
    check_options,
    is_row,
    of_pairs,
    topic_settings,
)
from kafkalite.streams.record import Record
from kafkalite.streams.windows import TimeWindow

UserFunction = Callable[..., Any] | str | Expression


class Stream(Fields, NotBuilt):
    """Records one after the other. `to` and `for_each` are its ends."""

    not_built = frozenset({"map_async", "process", "process_values", "join", "join_as_of"})
    hints = hints.STREAM

    def __init__(self, draft: Draft, node: p.Node) -> None:
        self._draft = draft
        self._node = node

    # The value changes, the key stays

    def filter(self, predicate: UserFunction, **options: Unpack[Options]) -> Stream:
        """The records for which `predicate` is true."""
        return self._filter("filter", predicate, options, negate=False)

    def filter_not(self, predicate: UserFunction, **options: Unpack[Options]) -> Stream:
        """The records for which `predicate` is not true."""
        return self._filter("filter_not", predicate, options, negate=True)

    def map(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """A new value for each; the key stays."""
        return self._each("map", p.Map, function, options)

    def flat_map(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Any number of values for each, from an iterable; the key stays."""
        return self._each("flat_map", p.FlatMap, function, options)

    def peek(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Calls `function` with each record and passes it on."""
        return self._each("peek", p.Peek, function, options)

    def for_each(self, function: UserFunction, **options: Unpack[Options]) -> None:
        """Calls `function` with each record; the end of the stream."""
        self._each("for_each", p.Peek, function, options)

    # The key changes

    def select_key(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """A new key for each; the value stays."""
        return self._each("select_key", p.SelectKey, function, options)

    def map_pairs(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """`function(key, value)` gives the new `(key, value)`."""
        return self._each("map_pairs", p.MapPairs, function, of_pairs(options))

    def flat_map_pairs(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """`function(key, value)` gives an iterable of `(key, value)`."""
        return self._each("flat_map_pairs", p.MapPairs, function, of_pairs(options), flat=True)

    def map_batch(
        self,
        function: Callable[[Any], Any],
        *,
        name: str | None = None,
        on_error: p.OnError | None = None,
    ) -> Stream:
        """`function` gets `Columns` and returns `Columns`: once per batch, not per record.

        The key counts as changed. When it fails, it fails for the whole batch.
        """
        operator = self._operator("map_batch", name)
        check_arguments(function, 1, operator, "columns")
        return self._then("map_batch", p.MapBatch, name, on_error, function=function)

    # Several streams

    def branch(
        self, *predicates: UserFunction, default: bool = False, **options: Unpack[Options]
    ) -> tuple[Stream, ...]:
        """A stream for each predicate, of the records for which it is the first that is true.

        With `default`, one more of those for which none is.
        """
        operator = self._operator("branch", options.get("name"))
        if not predicates:
            raise TopologyError(f"{operator}: expected at least one predicate")
        functions = tuple(self._predicate(f, operator, options) for f in predicates)
        branch = self._then(
            "branch",
            p.Branch,
            options.get("name"),
            options.get("on_error"),
            predicates=functions,
            default=default,
        )._node
        arms = (
            p.BranchArm(name=f"{branch.name}.{index}", parents=(branch,), index=index)
            for index in range(len(functions) + default)
        )
        return tuple(Stream(self._draft, self._draft.add(arm)) for arm in arms)

    def merge(self, *others: Stream, name: str | None = None) -> Stream:
        """The records of all these streams, interleaved."""
        operator = self._operator("merge", name)
        for other in others:
            if not isinstance(other, Stream):
                raise TopologyError(f"{operator}: expected streams, got {type(other).__name__}")
            if other._draft is not self._draft:
                raise TopologyError(f"{operator}: {other._node.name!r} is of another application")
        parents = (self._node, *(other._node for other in others))
        if len(set(parents)) < len(parents):
            raise TopologyError(f"{operator}: a stream cannot be merged with itself")
        called = self._draft.name("merge", p.Merge, self._node, name)
        node = p.Merge(name=called, parents=parents)
        return Stream(self._draft, self._draft.add(node))

    def repartition(
        self,
        partitions: int | None = None,
        partitioner: p.Partitioner | Expression | None = None,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
    ) -> Stream:
        """Through an internal topic. Without `partitions`: as many as its input has.

        `partitioner(key, value, partitions)` gives the partition, or an expression a number whose
        remainder does. Null keys are left out.
        """
        operator = self._operator("repartition", name)
        if partitions is not None and (type(partitions) is not int or partitions < 1):
            raise TopologyError(f"{operator}: partitions: expected 1 or more, got {partitions!r}")
        return self._then(
            "repartition",
            p.Repartition,
            name,
            None,
            partitions=partitions,
            partitioner=partitioner_of(partitioner, operator, self._shape),
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
        )

    def to(
        self,
        topic: str | Callable[[Record], str] | Expression,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        partitioner: p.Partitioner | Expression | None = None,
        create: Mapping[str, Any] | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
    ) -> None:
        """Writes into `topic`, or the topic that an expression or a function of the `Record` names.

        `partitioner(key, value, partitions)` gives the partition, or an expression a number whose
        remainder does; else the key's hash does. `create`: a topic that does not exist is made
        with these settings and `partitions` (as many as the inputs have), and keeps its records
        (`retention.ms=-1`) unless they say otherwise.
        """
        operator = self._operator("to", name)
        self._then(
            "to",
            p.Sink,
            name,
            on_error,
            topic=topic_of(topic, operator, self._shape),
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
            partitioner=partitioner_of(partitioner, operator, self._shape),
            create=None if create is None else topic_settings(create, topic, operator),
        )

    # Tables

    def to_table(
        self,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        history: Duration | None = None,
    ) -> Table:
        """The latest value per key; a null value deletes. Named: with a store to look into."""
        operator = self._operator("to_table", name)
        refuse_history(history, operator)
        node = self._then(
            "to_table",
            p.ToTable,
            name,
            None,
            named=name is not None,
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
        )._node
        return Table(self._draft, node)

    def group_by(
        self,
        function: UserFunction,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        **options: Unpack[Options],
    ) -> Grouped:
        """Groups by a new key; equal ones meet through an internal topic. None: left out."""
        operator = self._operator("group_by", options.get("name"))
        node = self._each(
            "group_by",
            p.GroupBy,
            function,
            options,
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
        )._node
        return Grouped(self._draft, node)

    def group_by_key(
        self, *, key: Serde | None = None, value: Serde | None = None, name: str | None = None
    ) -> Grouped:
        """Groups by the key, through an internal topic only where an operator changed it."""
        operator = self._operator("group_by_key", name)
        node = self._then(
            "group_by_key",
            p.GroupBy,
            name,
            None,
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
        )._node
        return Grouped(self._draft, node)

    # How a node is added

    def _each(
        self, word: str, kind: type[p.Node], function: UserFunction, options: Options, **fields: Any
    ) -> Stream:
        """A node with one user function."""
        name = options.get("name")
        operator = self._operator(word, name)
        refuse_expression(function, word, operator)
        checked = self._function(function, operator, options)
        return self._then(word, kind, name, options.get("on_error"), function=checked, **fields)

    def _filter(
        self, word: str, predicate: UserFunction, options: Options, *, negate: bool
    ) -> Stream:
        name = options.get("name")
        checked = self._predicate(predicate, self._operator(word, name), options, null_is=negate)
        return self._then(
            word, p.Filter, name, options.get("on_error"), function=checked, negate=negate
        )

    def _formula(
        self, word: str, made: Expression, name: str | None, on_error: p.OnError | None
    ) -> Stream:
        return self._each(word, p.Map, made, {"name": name, "on_error": on_error})

    def _function(self, given: UserFunction, operator: str, options: Options) -> Function:
        check_options(operator, options, Options)
        return function_of(
            given,
            operator,
            with_key=options.get("with_key", False),
            with_record=options.get("with_record", False),
            shape=self._shape,
        )

    def _predicate(
        self, given: UserFunction, operator: str, options: Options, *, null_is: bool = False
    ) -> Function:
        return predicate_of(self._function(given, operator, options), operator, null_is=null_is)

    @property
    def _shape(self) -> Shape:
        return self._draft.shapes[self._node]

    def _then(
        self,
        word: str,
        kind: type[p.Node],
        name: str | None,
        on_error: p.OnError | None,
        **fields: Any,
    ) -> Stream:
        policy = self._draft.policy(on_error, self._operator(word, name))
        called = self._draft.name(word, kind, self._node, name)
        node = kind(name=called, parents=(self._node,), on_error=policy, **fields)
        return Stream(self._draft, self._draft.add(node))

    def _operator(self, word: str, name: str | None) -> str:
        """How an error calls an operator that has no node yet."""
        return f"{word} {name!r}" if name else f"{word} of {self._node.name!r}"


class Grouped(NotBuilt):
    """Records, or changes of a table, by group: waits to be aggregated."""

    not_built = frozenset({"cogroup"})
    hints = hints.GROUPED

    def __init__(
        self,
        draft: Draft,
        node: p.Node,
        window: TimeWindow | None = None,
        *,
        subtracts: bool = False,
    ) -> None:
        self._draft = draft
        self._node = node
        self._window = window
        self._subtracts = subtracts

    def window(self, window: TimeWindow) -> Grouped:
        """One row per key and window: `tumbling(…)` or `hopping(…)`."""
        operator = f"window of {self._node.name!r}"
        if not isinstance(window, TimeWindow):
            raise TopologyError(f"{operator}: expected a window, got {type(window).__name__}")
        if self._window is not None:
            raise TopologyError(f"{operator}: there is one already, {self._window}")
        if self._subtracts:
            raise TopologyError(f"{operator}: the groups of a table have no windows")
        return Grouped(self._draft, self._node, window)

    def aggregate(
        self,
        aggregate: Aggregate | None = None,
        /,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
        cached: bool = True,
        **aggregates: Aggregate,
    ) -> Table:
        """A table of dicts, one field per named aggregate; of one unnamed: of its bare values.

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

    def count(self, **options: Unpack[AggregateOptions]) -> Table:
        """How many records, null values too where there are windows; `int64()` unless told."""
        return self._table("count", (Count(),), None, None, options)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        subtract: Callable[[Any, Any], Any] | None = None,
        *,
        on_error: p.OnError | None = None,
        **options: Unpack[AggregateOptions],
    ) -> Table:
        """`function(aggregate, value)` over the values; the first is the aggregate as it is."""
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
        operator = f"{word} {name!r}" if name else f"{word} of {self._node.name!r}"
        check_options(operator, options, AggregateOptions)
        if not isinstance(cached, bool):
            raise TopologyError(f"{operator}: cached is True or False, got {cached!r}")
        for label, part in zip(fields or ("the aggregate",), parts, strict=True):
            check_aggregate(f"{operator}: {label}", part, of_table=self._subtracts)
        parts = tuple(self._fitted(f"{operator}: {part.word}", part) for part in parts)
        node = p.Aggregate(
            name=self._draft.name(word, p.Aggregate, self._node, name),
            parents=(self._node,),
            on_error=self._draft.policy(on_error, operator),
            aggregates=parts,
            fields=fields,
            window=self._window,
            subtracts=self._subtracts,
            cached=cached,
            key=serde_or_none(options.get("key"), "key=", operator),
            value=serde_or_none(options.get("value"), "value=", operator),
        )
        return Table(self._draft, self._draft.add(node))

    def _fitted(self, label: str, part: Aggregate) -> Aggregate:
        """The aggregate, once its argument is known to fit the records."""
        if part.argument is None:
            return part
        reads = (VALUE,) if self._subtracts else INPUTS
        shape = self._draft.shapes[self._node]
        return replace(part, argument=fitted(part.argument, label, shape, reads))


class Table(Fields, NotBuilt):
    """The latest row per key, and per window if it was aggregated over windows."""

    not_built = frozenset({"join", "suppress"})
    hints = hints.TABLE

    def __init__(self, draft: Draft, node: p.Node) -> None:
        self._draft = draft
        self._node = node

    def filter(self, predicate: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """The rows for which `predicate` is true. Named: with a store to look into."""
        return self._rows("filter", p.TableFilter, predicate, options, negate=False)

    def filter_not(self, predicate: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """The rows for which `predicate` is not true. Named: with a store to look into."""
        return self._rows("filter_not", p.TableFilter, predicate, options, negate=True)

    def map(self, function: UserFunction, **options: Unpack[TableOptions]) -> Table:
        """A new value for each row. Named: with a store to look into."""
        return self._rows("map", p.TableMap, function, options)

    def to_stream(self, *, name: str | None = None) -> Stream:
        """Every update, after the commit's cache; a deleted row is a null value."""
        return Stream(self._draft, self._below("to_stream", p.ToStream, self._node, name))

    def group_by(
        self,
        function: UserFunction,
        value: UserFunction | None = None,
        *,
        key: Serde | None = None,
        value_serde: Serde | None = None,
        **options: Unpack[TableOptions],
    ) -> Grouped:
        """Groups the rows by a function of them, `value` being what is aggregated of each.

        A change takes the old row out of its group and adds the new one. None: left out.
        """
        operator = f"group_by of {self._node.name!r}"
        check_options(operator, options, TableOptions)
        with_key = options.get("with_key", False)
        node = self._below(
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
        return Grouped(self._draft, node, subtracts=True)

    def final(self, *, idle: Duration | None = None, name: str | None = None) -> Stream:
        """One record per window, once stream time has passed its end and grace.

        `idle`: windows also close when no record came for that long in wall time.
        """
        aggregate, steps = self._windowed("final")
        idle_ms = None if idle is None else positive(idle, "final: idle")
        node = self._below("final", p.Final, aggregate, name, idle_ms=idle_ms)
        for step in steps:  # what was done to the table is done to its final rows
            kind = p.Filter if isinstance(step, p.TableFilter) else p.Map
            word = "filter" if kind is p.Filter else "map"
            fields = {"negate": step.negate} if isinstance(step, p.TableFilter) else {}
            node = self._below(
                word, kind, node, None, step.on_error, function=step.function, **fields
            )
            if kind is p.Map:  # a row that became None is none
                node = self._below(
                    "filter", p.Filter, node, None, function=CallableFunction(is_row)
                )
        return Stream(self._draft, node)

    def late(self, *, name: str | None = None) -> Stream:
        """The records that came too late for every window, as they came."""
        aggregate, _ = self._windowed("late")
        return Stream(self._draft, self._below("late", p.Late, aggregate, name))

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
        operator = f"{word} {name!r}" if name else f"{word} of {self._node.name!r}"
        check_options(operator, options, TableOptions)
        checked = self._function(function, operator, with_key=options.get("with_key", False))
        if kind is p.TableFilter:
            checked = predicate_of(checked, operator, null_is=fields["negate"])
        node = self._below(
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

    def _below(
        self,
        word: str,
        kind: type[p.Node],
        parent: p.Node,
        name: str | None,
        on_error: p.OnError | None = None,
        **fields: Any,
    ) -> p.Node:
        policy = self._draft.policy(on_error, f"{word} of {parent.name!r}")
        called = self._draft.name(word, kind, parent, name)
        return self._draft.add(kind(name=called, parents=(parent,), on_error=policy, **fields))
