"""The plan: a topology as immutable data, a graph of nodes by their references to parents. [P]

The builder in api.py makes a plan; rewrites.py turns it into one that an engine compiles. A node
says what is to be done and holds user functions and serdes; it knows nothing of how it is run.

    Source ── Filter ── GroupBy ── Aggregate ── Final ── Sink
                                       └─────── Late ─── Sink

A stream is the output of a node; a table too, and the nodes that make one say so with `Table`.
A node may have several outputs, its ports: a node below says which one it `reads`. A node with
several parents has one input for each.

Owns   the vocabulary that every engine compiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from kafkalite.serde.serde import Serde
from kafkalite.streams.aggregates import Aggregate as Aggregator
from kafkalite.streams.call_limits import CallLimits
from kafkalite.streams.functions import CallableFunction, Function
from kafkalite.streams.nodes import Node as Node
from kafkalite.streams.nodes import OnError as OnError
from kafkalite.streams.nodes import Port as Port
from kafkalite.streams.nodes import Table as Table
from kafkalite.streams.patterns import Pattern as Pattern
from kafkalite.streams.patterns import PatternStep as PatternStep
from kafkalite.streams.patterns import Unfinished as Unfinished
from kafkalite.streams.processors import StoreSpec
from kafkalite.streams.windows import Window

Partitioner = Callable[[Any, Any, int], int]  # key, value, number of partitions -> partition
TopicPattern = re.Pattern[str]
How = Literal["inner", "left", "outer"]


# Streams


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Source(Node):
    """Topics as a stream. `pattern` instead of `topics`: whatever matches."""

    topics: tuple[str, ...] = ()
    pattern: TopicPattern | None = None
    key: Serde
    value: Serde
    timestamp: Function | None = None
    offset_reset: Literal["earliest", "latest"] = "earliest"
    max_future_ms: int | None = None  # None: as the application says
    folds: Aggregate | None = None  # the table below, whose partials may stand in the topic


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filter(Node):
    """Keeps the records for which the function is true; with `negate` the others."""

    function: Function
    negate: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Map(Node):
    """Replaces the value."""

    changes_value: ClassVar[bool] = True

    function: Function


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlatMap(Node):
    """Any number of values for one; they keep key, timestamp and headers."""

    changes_value: ClassVar[bool] = True

    function: Function


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SelectKey(Node):
    """Replaces the key."""

    changes_key: ClassVar[bool] = True

    function: Function


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MapPairs(Node):
    """Replaces key and value; with `flat` by any number of pairs."""

    changes_key: ClassVar[bool] = True
    changes_value: ClassVar[bool] = True

    function: Function
    flat: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MapBatch(Node):
    """Columns to columns; nothing is known of the result's keys and values."""

    changes_key: ClassVar[bool] = True
    changes_value: ClassVar[bool] = True

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Peek(Node):
    """Calls a function for its effect. Nothing hangs below it when it came from `for_each`."""

    function: Function


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Branch(Node):
    """Sends each record to the first arm whose predicate is true; the rest to a `default` one."""

    predicates: tuple[Function, ...]
    default: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BranchArm(Node):
    """One output of a Branch."""

    index: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Merge(Node):
    """The records of all parents."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Repartition(Node):
    """Through an internal topic, so that equal keys meet in one partition. None keys are left out.

    The serdes are None where they follow from upstream. `changes`: the values are (old, new) of a
    table's row.
    """

    partitions: int | None = None
    partitioner: Partitioner | None = None
    key: Serde | None = None
    value: Serde | None = None
    changes: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupBy(Node):
    """Equal keys to one partition: by a function, or by the key as it is when there is none.

    A rewrite makes it a Repartition where the key has changed, and nothing where it has not.
    """

    function: Function | None = None
    key: Serde | None = None
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sink(Node):
    """Into a topic, or into the topic that a function of the record names.

    `create`: the settings with which the worker makes a topic that does not exist, `partitions`
    among them; None: it makes none.
    """

    topic: str | Callable[[Any], str]
    key: Serde | None = None
    value: Serde | None = None
    partitioner: Partitioner | None = None
    create: Mapping[str, str] | None = None
    folds: Aggregate | None = None  # the only reader, for which records may be folded
    keeps_null_keys: bool = False  # of a repartition topic


# Aggregates and tables


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aggregate(Node, Table):
    """A table with one row per key, and window if there is one. Owns a store.

    `fields` names the aggregates of a row; None: the one aggregate is the row. `subtracts`: the
    input are changes of a table, whose old rows are taken out again. `cached`: a row's updates
    merge until the commit.
    """

    pushes_often: ClassVar[bool] = True

    aggregates: tuple[Aggregator, ...]
    fields: tuple[str, ...] | None = None
    window: Window | None = None
    subtracts: bool = False
    cached: bool = True
    key: Serde | None = None
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cogroup(Node):
    """Streams that one aggregate folds. Values become pairs (number of the input, value).

    Over windows it owns a store, of the inputs' times. `keeps_nulls`: null values count.
    """

    changes_value: ClassVar[bool] = True

    window: Window | None = None
    keeps_nulls: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Final(Node):
    """One record per window of the parent once it is closed.

    `idle_ms`: windows also close when no record came for that long in wall time.
    """

    reads: ClassVar[Port] = Port.FINAL

    idle_ms: int | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FinalRows(Node):
    """As Final, below a table made of windowed ones. In its store a row waits until `lag_ms` after
    the end of its window, in the time of the rows that come here."""

    lag_ms: int
    idle_ms: int | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Late(Node):
    """The records that the parent, a windowed aggregate, dropped as late."""

    reads: ClassVar[Port] = Port.LATE


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TableSource(Source, Table):
    """One topic as a table. Owns a store when it is `named` or a table below needs old rows.

    `history_ms`: the store has versions, that far back.
    """

    named: bool = False
    history_ms: int | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ToTable(Node, Table):
    """A stream as a table: the latest value per key. Owns a store as TableSource does."""

    named: bool = False
    history_ms: int | None = None
    key: Serde | None = None
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Expire(Node):
    """Updates on their way to a table, and deletions of rows whose last update is longer ago than
    `retention_ms` in stream time. Owns a store of their timestamps.

    `key`, `value`: the serdes of the internal topic, where the key has changed.
    """

    pushes_often: ClassVar[bool] = True

    retention_ms: int
    key: Serde | None = None
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TableFilter(Node, Table):
    """The rows that pass. Owns a store when it is `named`."""

    function: Function
    negate: bool = False
    named: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TableMap(Node, Table):
    """Replaces each row's value. Owns a store when it is `named`."""

    changes_value: ClassVar[bool] = True

    function: Function
    named: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Suppress(Node, Table):
    """A key's latest row, `limit_ms` after its first update that is held, the oldest earlier where
    more than `max_records` are held. Owns a store."""

    limit_ms: int
    max_records: int | None = None
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TableGroupBy(Node):
    """Every change of a row as a change of its group: the old row's group and the new row's."""

    changes_key: ClassVar[bool] = True
    pushes_often: ClassVar[bool] = True

    function: Function
    select: Function | None = None  # what is aggregated; None: the row
    key: Serde | None = None
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ToStream(Node):
    """The updates of a table as a stream."""


# Calls that are awaited


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MapAsync(Node):
    """Replaces the value by the result of an async function.

    With `ordered` records leave in the order in which they came, else only those of a key do.
    """

    changes_value: ClassVar[bool] = True
    begins_runs: ClassVar[bool] = True

    function: CallableFunction
    limits: CallLimits
    ordered: bool = True


# Joins


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinOfStreams(Node):
    """A join of two streams by their keys. Owns a store for each side.

    The serdes are None where they follow from upstream.
    """

    changes_value: ClassVar[bool] = True
    gathers: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    function: Function
    how: How
    grace_ms: int
    key: Serde | None = None
    left: Serde | None = None
    right: Serde | None = None

    @property
    def takes_null_keys(self) -> bool:
        """A record of an outer side is joined with None."""
        return self.how != "inner"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamTableJoin(Node):
    """Each record of a stream, the first parent, with the row that a table has of its key.

    With `grace_ms` records wait that long in stream time, in a store, and find the row that a
    versioned table had at their time. The serdes are those of the stream's repartition topic and
    of the store.
    """

    changes_value: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    function: Function
    how: How
    grace_ms: int | None = None
    key: Serde | None = None
    left: Serde | None = None

    @property
    def takes_null_keys(self) -> bool:
        """A record of a left join is joined with None."""
        return self.how != "inner"


def history_of(node: Node) -> int | None:
    """How far back in ms a table knows its rows; None where it knows the latest ones alone."""
    while isinstance(node, TableFilter | TableMap) and not node.named:
        node = node.parent
    return node.history_ms if isinstance(node, TableSource | ToTable) else None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TableJoin(Node, Table):
    """The rows of two tables with equal keys, as one table.

    Owns a store when it is `named` or somebody below needs old rows. `cached`: as of Aggregate.
    """

    changes_value: ClassVar[bool] = True
    pushes_often: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    function: Function
    how: How
    named: bool = False
    cached: bool = True
    value: Serde | None = None

    @property
    def reads_olds(self) -> tuple[bool, bool]:
        """Left, right: whether the join must know if that side had a row before."""
        return self.how != "inner", self.how == "outer"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamJoin(JoinOfStreams):
    """All pairs of records whose timestamps are close.

    A right record may be up to `before_ms` earlier and `after_ms` later than the left one; one of
    them may be negative.
    """

    before_ms: int
    after_ms: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AsOfJoin(JoinOfStreams):
    """Each left record with the latest right one that is no later, and no older than a tolerance.

    Left records wait until stream time is `grace_ms` later.
    """

    tolerance_ms: int


# Processors


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Process(Node):
    """Records through an object of the user's. `make` gives one for each task.

    It forwards what it likes; its `stores` may belong to other processors, too. The first parent is
    the stream, the others are tables into which it looks.
    """

    changes_key: ClassVar[bool] = True
    changes_value: ClassVar[bool] = True
    pushes_often: ClassVar[bool] = True

    make: Callable[[], Any]
    stores: tuple[StoreSpec, ...] = ()

    @property
    def tables(self) -> tuple[Node, ...]:
        """The tables into which it looks."""
        return self.parents[1:]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProcessValues(Process):
    """The same, and the key stays."""

    changes_key: ClassVar[bool] = False


# Global tables


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GlobalSource(Source):
    """One topic as a table; every worker has a whole copy.

    It is in no sub-topology and has no children: an operator that looks into it has its name.
    """


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GlobalJoin(Node):
    """Each record with a row of a global table, the one of the key that `select` gives.

    `table` is the name of the GlobalSource. Without `select` it is the record's own key.
    """

    changes_value: ClassVar[bool] = True

    table: str
    function: Function
    how: How
    select: Function | None = None

    @property
    def takes_null_keys(self) -> bool:
        """A record of a left join is joined with None."""
        return self.how == "left"


# Joins by a foreign key: see foreign.py


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ForeignJoin(Node, Table):
    """Each row of a table, the first parent, with the row of another one that it refers to.

    A rewrite puts a Reference and a Match between, and their topics; the second parent is then
    what they answer. Owns a store when it is `named` or somebody below needs its rows.
    """

    changes_value: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    select: Function  # the foreign key
    function: Function
    how: How
    named: bool = False
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reference(Node):
    """What the rows of a table refer to. `right`: the other table, of the plan before serdes."""

    changes_key: ClassVar[bool] = True
    changes_value: ClassVar[bool] = True
    pushes_often: ClassVar[bool] = True

    select: Function
    how: How
    right: Node


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Match(Node):
    """Answers references, the first parent, with rows of the second. Owns a store of those."""

    changes_key: ClassVar[bool] = True
    changes_value: ClassVar[bool] = True
    pushes_often: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    how: How

    @property
    def takes_null_keys(self) -> bool:
        """A row of a left join that refers to nothing is joined with None."""
        return self.how == "left"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A topology. `nodes` stand in the order in which they were made: parents before children.

    `max_future_ms`: how far a record may be ahead of the wall clock; None: no source looks.
    """

    application_id: str
    nodes: tuple[Node, ...] = field(repr=False)
    key: Serde | None = None
    value: Serde | None = None
    on_error: OnError = "fail"
    dead_letter_topic: str | None = None
    max_future_ms: int | None = None
    numbered_names: tuple[tuple[str, ...], ...] = ()  # only the order of making tells these apart

    @property
    def global_tables(self) -> tuple[GlobalSource, ...]:
        """The tables that every worker copies as a whole."""
        return tuple(node for node in self.nodes if isinstance(node, GlobalSource))

    def children(self) -> dict[Node, list[Node]]:
        """The nodes below each node, in the order in which they were made."""
        below: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for parent in node.parents:
                below[parent].append(node)
        return below
