"""Streams under construction: their operators as methods.                                  [P]

Every method adds a node to the draft and returns what can be built upon it. Functions take the
value; `with_key=True` passes key and value, `with_record=True` one `Record`; a field name stands
for a function that takes the field out of the value. A value is shared by all that is below an
operator: functions return a new one and do not change it in place. `name=` names the operator, else
its place does. `on_error=` says what becomes of records on which the operator fails: "fail",
"skip", "dlq".

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KStream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, Unpack, overload

from kafkalite.core.generics import K, K_co, V, V_co
from kafkalite.core.types import Columns, Windowed
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serializer
from kafkalite.streams import hints
from kafkalite.streams import plan as p
from kafkalite.streams.asynchronous import Asynchronous
from kafkalite.streams.draft import Draft, NotBuilt, history_ms, operator_of, serde_or_none
from kafkalite.streams.durations import Duration, positive
from kafkalite.streams.expressions.check import Shape
from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.fields import Fields
from kafkalite.streams.functions import (
    Function,
    OfPair,
    OfRecord,
    OfValue,
    UserFunction,
    check_arguments,
    function_of,
    partitioner_of,
    predicate_of,
    refuse_expression,
    topic_of,
)
from kafkalite.streams.joining import Joining
from kafkalite.streams.matching import Matching
from kafkalite.streams.options import (
    Grouping,
    Named,
    Options,
    SinkOptions,
    WithKey,
    WithRecord,
    check_options,
    of_pairs,
    topic_settings,
)
from kafkalite.streams.processing import Processing
from kafkalite.streams.record import Record

if TYPE_CHECKING:
    from kafkalite.streams.groups import Grouped
    from kafkalite.streams.table import Table


TopicName: TypeAlias = str | Callable[[Record[K, V]], str] | Expression


class Stream(
    Asynchronous[K_co, V_co],
    Joining[K_co, V_co],
    Processing[K_co, V_co],
    Matching[K_co, V_co],
    Fields["Stream[K_co, dict[str, Any]]"],
    NotBuilt,
    Generic[K_co, V_co],
):
    """A stream of records. `to` and `for_each` end it.

    `Stream[str, Order]` has texts as keys and orders as values, for a type checker. It checks
    functions; of a field's name or an expression it takes the result as Any. Any record may have
    a null value, as in Kafka Streams: `Order | None` would be a burden where there is none.
    """

    hints = hints.STREAM

    def __init__(self, draft: Draft, node: p.Node) -> None:
        self._draft = draft
        self._node = node

    # The value changes, the key stays

    @overload
    def filter(self, predicate: OfValue[V_co, object], **options: Unpack[Named]) -> Self: ...
    @overload
    def filter(self, predicate: OfPair[K_co, V_co, object], **options: Unpack[WithKey]) -> Self: ...
    @overload
    def filter(
        self, predicate: OfRecord[K_co, V_co, object], **options: Unpack[WithRecord]
    ) -> Self: ...
    def filter(self, predicate: UserFunction, **options: Unpack[Options]) -> Stream:
        """Keeps the records for which `predicate` is true."""
        return self._filter("filter", predicate, options, negate=False)

    @overload
    def filter_not(self, predicate: OfValue[V_co, object], **options: Unpack[Named]) -> Self: ...
    @overload
    def filter_not(
        self, predicate: OfPair[K_co, V_co, object], **options: Unpack[WithKey]
    ) -> Self: ...
    @overload
    def filter_not(
        self, predicate: OfRecord[K_co, V_co, object], **options: Unpack[WithRecord]
    ) -> Self: ...
    def filter_not(self, predicate: UserFunction, **options: Unpack[Options]) -> Stream:
        """Keeps the records for which `predicate` is not true."""
        return self._filter("filter_not", predicate, options, negate=True)

    @overload
    def map(self, function: OfValue[V_co, V], **options: Unpack[Named]) -> Stream[K_co, V]: ...
    @overload
    def map(
        self, function: OfPair[K_co, V_co, V], **options: Unpack[WithKey]
    ) -> Stream[K_co, V]: ...
    @overload
    def map(
        self, function: OfRecord[K_co, V_co, V], **options: Unpack[WithRecord]
    ) -> Stream[K_co, V]: ...
    def map(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Maps each value to a new one; the key stays."""
        return self._each("map", p.Map, function, options)

    @overload
    def flat_map(
        self, function: OfValue[V_co, Iterable[V]], **options: Unpack[Named]
    ) -> Stream[K_co, V]: ...
    @overload
    def flat_map(
        self, function: OfPair[K_co, V_co, Iterable[V]], **options: Unpack[WithKey]
    ) -> Stream[K_co, V]: ...
    @overload
    def flat_map(
        self, function: OfRecord[K_co, V_co, Iterable[V]], **options: Unpack[WithRecord]
    ) -> Stream[K_co, V]: ...
    def flat_map(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Maps each value to an iterable of values; the key stays."""
        return self._each("flat_map", p.FlatMap, function, options)

    @overload
    def peek(self, function: Callable[[V_co], object], **options: Unpack[Named]) -> Self: ...
    @overload
    def peek(self, function: OfPair[K_co, V_co, object], **options: Unpack[WithKey]) -> Self: ...
    @overload
    def peek(
        self, function: OfRecord[K_co, V_co, object], **options: Unpack[WithRecord]
    ) -> Self: ...
    def peek(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Calls `function` with each record, and passes the record on unchanged."""
        return self._each("peek", p.Peek, function, options)

    @overload
    def for_each(self, function: Callable[[V_co], object], **options: Unpack[Named]) -> None: ...
    @overload
    def for_each(
        self, function: OfPair[K_co, V_co, object], **options: Unpack[WithKey]
    ) -> None: ...
    @overload
    def for_each(
        self, function: OfRecord[K_co, V_co, object], **options: Unpack[WithRecord]
    ) -> None: ...
    def for_each(self, function: UserFunction, **options: Unpack[Options]) -> None:
        """Calls `function` with each record, and ends the stream."""
        self._each("for_each", p.Peek, function, options)

    # The key changes

    @overload
    def select_key(
        self, function: OfValue[V_co, K], **options: Unpack[Named]
    ) -> Stream[K, V_co]: ...
    @overload
    def select_key(
        self, function: OfPair[K_co, V_co, K], **options: Unpack[WithKey]
    ) -> Stream[K, V_co]: ...
    @overload
    def select_key(
        self, function: OfRecord[K_co, V_co, K], **options: Unpack[WithRecord]
    ) -> Stream[K, V_co]: ...
    def select_key(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Gives each record a new key; the value stays."""
        return self._each("select_key", p.SelectKey, function, options)

    @overload
    def map_pairs(
        self, function: OfPair[K_co, V_co, tuple[K, V]], **options: Unpack[Named]
    ) -> Stream[K, V]: ...
    @overload
    def map_pairs(
        self, function: OfRecord[K_co, V_co, tuple[K, V]], **options: Unpack[WithRecord]
    ) -> Stream[K, V]: ...
    def map_pairs(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Maps each record by `function(key, value)` to a new `(key, value)`."""
        return self._each("map_pairs", p.MapPairs, function, of_pairs(options))

    @overload
    def flat_map_pairs(
        self, function: OfPair[K_co, V_co, Iterable[tuple[K, V]]], **options: Unpack[Named]
    ) -> Stream[K, V]: ...
    @overload
    def flat_map_pairs(
        self, function: OfRecord[K_co, V_co, Iterable[tuple[K, V]]], **options: Unpack[WithRecord]
    ) -> Stream[K, V]: ...
    def flat_map_pairs(self, function: UserFunction, **options: Unpack[Options]) -> Stream:
        """Maps each record by `function(key, value)` to an iterable of `(key, value)`."""
        return self._each("flat_map_pairs", p.MapPairs, function, of_pairs(options), flat=True)

    def map_batch(
        self,
        function: Callable[[Columns[K_co, V_co]], Columns[K, V]],
        *,
        name: str | None = None,
        on_error: p.OnError | None = None,
    ) -> Stream[K, V]:
        """Maps whole batches: `function` takes and returns `Columns`.

        The key counts as changed. When it fails, it fails for the whole batch.
        """
        operator = self._operator("map_batch", name)
        check_arguments(function, 1, operator, "columns")
        return self._then("map_batch", p.MapBatch, name, on_error, function=function)

    # Several streams

    @overload
    def branch(
        self, *predicates: OfValue[V_co, object], default: bool = False, **options: Unpack[Named]
    ) -> tuple[Self, ...]: ...
    @overload
    def branch(
        self,
        *predicates: OfPair[K_co, V_co, object],
        default: bool = False,
        **options: Unpack[WithKey],
    ) -> tuple[Self, ...]: ...
    @overload
    def branch(
        self,
        *predicates: OfRecord[K_co, V_co, object],
        default: bool = False,
        **options: Unpack[WithRecord],
    ) -> tuple[Self, ...]: ...
    def branch(
        self, *predicates: UserFunction, default: bool = False, **options: Unpack[Options]
    ) -> tuple[Stream, ...]:
        """Splits the stream: each record goes to the stream of the first predicate that is true.

        With `default`, a last stream gets the records for which no predicate is true.
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

    def merge(self, *others: Stream[K_co, V_co], name: str | None = None) -> Stream[K_co, V_co]:
        """Merges the records of all these streams into one."""
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
        partitioner: Callable[[K_co, V_co, int], int] | Expression | None = None,
        *,
        key: Serializer[K_co] | None = None,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
    ) -> Stream[K_co, V_co]:
        """Sends records through an internal topic, with as many partitions as the input by default.

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

    @overload
    def to(
        self,
        topic: TopicName[K_co, V_co],
        *,
        key: Serializer[K_co] | None = None,
        **options: Unpack[SinkOptions[K_co, V_co]],
    ) -> None: ...
    @overload
    def to(
        self: Stream[Windowed[K], V_co],
        topic: TopicName[Windowed[K], V_co],
        *,
        key: Serializer[K],
        **options: Unpack[SinkOptions[Windowed[K], V_co]],
    ) -> None: ...
    def to(
        self,
        topic: TopicName,
        *,
        key: Serializer | None = None,
        value: Serializer | None = None,
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
        key: Serializer[K_co] | None = None,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
        history: Duration | None = None,
        retention: Duration | None = None,
    ) -> Table[K_co, V_co]:
        """A table of the latest value per key; a null value deletes. Named, it has a store.

        With a `retention` rows leave whose last update is longer ago than that in stream time.
        """
        operator = self._operator("to_table", name)
        if retention is not None:
            if history is not None:
                raise TopologyError(f"{operator}: history and retention exclude each other")
            expire = self._then(
                "retention",
                p.Expire,
                None,
                None,
                retention_ms=positive(retention, f"{operator}: retention"),
                key=serde_or_none(key, "key=", operator),
                value=serde_or_none(value, "value=", operator),
            )
            return expire.to_table(key=key, value=value, name=name)
        node = self._then(
            "to_table",
            p.ToTable,
            name,
            None,
            named=name is not None,
            history_ms=history_ms(history, operator),
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
        )._node
        return self._draft.table(node)

    @overload
    def group_by(
        self, function: OfValue[V_co, K | None], **options: Unpack[Grouping[K, V_co]]
    ) -> Grouped[K, V_co]: ...
    @overload
    def group_by(
        self,
        function: OfPair[K_co, V_co, K | None],
        *,
        with_key: Literal[True],
        **options: Unpack[Grouping[K, V_co]],
    ) -> Grouped[K, V_co]: ...
    @overload
    def group_by(
        self,
        function: OfRecord[K_co, V_co, K | None],
        *,
        with_record: Literal[True],
        **options: Unpack[Grouping[K, V_co]],
    ) -> Grouped[K, V_co]: ...
    def group_by(
        self,
        function: UserFunction,
        *,
        key: Serializer | None = None,
        value: Serializer | None = None,
        **options: Unpack[Options],
    ) -> Grouped:
        """Groups by a new key, through an internal topic. Records with the key None are dropped."""
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
        self,
        *,
        key: Serializer[K_co] | None = None,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
    ) -> Grouped[K_co, V_co]:
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
