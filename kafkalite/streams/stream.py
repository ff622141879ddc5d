"""Streams under construction: their operators as methods.                                  [P]

Every method adds a node to the draft and returns what can be built upon it. Functions take the
value; `with_key=True` passes key and value, `with_record=True` one `Record`; a field name stands
for a function that takes the field out of the value. `name=` names the operator, else its place
does. `on_error=` says what becomes of records on which the operator fails: "fail", "skip", "dlq".

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KStream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serde
from kafkalite.streams import hints
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, NotBuilt, operator_of, refuse_history, serde_or_none
from kafkalite.streams.durations import Duration
from kafkalite.streams.expressions.check import Shape
from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.fields import Fields
from kafkalite.streams.functions import (
    Function,
    UserFunction,
    check_arguments,
    function_of,
    partitioner_of,
    predicate_of,
    refuse_expression,
    topic_of,
)
from kafkalite.streams.options import Options, check_options, of_pairs, topic_settings
from kafkalite.streams.record import Record

if TYPE_CHECKING:
    from kafkalite.streams.groups import Grouped
    from kafkalite.streams.table import Table


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
        return self._draft.table(node)

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
        return self._draft.grouped(node)

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
        return self._draft.grouped(node)

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
        node = self._draft.below(word, kind, self._node, name, on_error, **fields)
        return Stream(self._draft, node)

    def _operator(self, word: str, name: str | None) -> str:
        return operator_of(word, name, self._node)
