"""What the operators of one task share: metrics, outputs, stores, errors, who is downstream. [P]

Compiling goes from the sinks up: when an operator is made, everything below it is there to push to
(`forward`), and it is known which columns are needed below (`needs`), of each of its ports. Two
dispatchers take a node of the plan: `node_needs` says what it asks of its input, `compile_node`
makes its operator. Where a node has several parents, either gives a tuple, one for each input.

Owns   the dispatchers; the modules of operators register with them.
Never  runs anything: operators do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NamedTuple, Protocol

from kafkalite.errors import SerdeError, UnsupportedOnBackend
from kafkalite.serde.json import JsonSerde
from kafkalite.serde.msgpack import MsgpackSerde
from kafkalite.serde.primitives import BytesSerde, Float64Serde, Int64Serde, StringSerde
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.serde.serde import Codec, Serde, SerdeContext
from kafkalite.serde.windowed import WindowedSerde
from kafkalite.streams import plan as p
from kafkalite.streams.foreign import AnswerSerde, AskedSerde
from kafkalite.streams.functions import Function
from kafkalite.streams.local.batch import Batch, Output, Push
from kafkalite.streams.local.batch import Place as RecordPlace
from kafkalite.streams.local.calls import AsyncCallee, Calls, OpenCalls
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.failures import UNKNOWN, Failures
from kafkalite.streams.local.global_store import GlobalStore
from kafkalite.streams.local.looking_back import History, looked_into
from kafkalite.streams.local.order import (
    Gathered,
    Gathering,
    Meeting,
    Merging,
    Ordering,
    outputs_in_order,
)
from kafkalite.streams.local.sharing import shared_inputs, shared_streams, takes_apart
from kafkalite.streams.local.sizes import Limits
from kafkalite.streams.local.state import TaskStore
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.state.memory import InMemory
from kafkalite.streams.rewrites import SubTopology
from kafkalite.streams.stores import Schema, Store

# Serdes that write equal bytes for a value whatever the topic.
PORTABLE = (BytesSerde, StringSerde, Int64Serde, Float64Serde, JsonSerde, MsgpackSerde)


Trace = Callable[[p.Node, p.Port, Batch], None]
LOOKS = (p.StreamTableJoin, p.TableJoin, p.Process)  # nodes that look into tables above them
Above = dict[p.Node, frozenset[p.Node]]  # nodes, each with those above it, itself among them


@dataclass(frozen=True, slots=True)
class Needs:
    """What somebody below looks at. `old`: of a table, the rows that updates replace.

    `fields`: where values are looked at, their fields that are; None: values as a whole. `arrow`:
    an Arrow array of the values will do, nobody wants objects.
    """

    key: bool = False
    raw_key: bool = False
    value: bool = False
    raw_value: bool = False
    old: bool = False
    fields: frozenset[str] | None = None
    arrow: bool = False

    def __or__(self, other: Needs) -> Needs:
        """What either needs."""
        fields, arrow = None, self.arrow and other.arrow
        if not (self.value and other.value):
            one = self if self.value else other
            fields, arrow = one.fields, one.arrow
        elif self.fields is not None and other.fields is not None:
            fields = self.fields | other.fields
        return Needs(
            self.key or other.key,
            self.raw_key or other.raw_key,
            self.value or other.value,
            self.raw_value or other.raw_value,
            self.old or other.old,
            fields,
            arrow,
        )


class Edge(NamedTuple):
    """The way into a node from one of its parents."""

    node: p.Node
    number: int  # of the parent


class Stateful(Protocol):
    """An operator that holds something back: until a commit, or until time passes."""

    def flush(self) -> None:
        """Pushes the updates that wait for the commit."""

    def tick(self, now_ms: int) -> None:
        """Looks at the wall clock."""

    def advance(self, stream_time: int) -> None:
        """All inputs have come so far in stream time, where operators do not go by records."""

    def stream_time(self) -> int | None:
        """Must survive a restart besides the store's rows; None where time changes nothing."""

    def resume(self, stream_time: int) -> None:
        """Goes on from where `stream_time()` said, after the store was restored."""


class TaskProcessors(Protocol):
    """The processors of a task, and their timers."""

    @property
    def keeper(self) -> TaskStore | None:
        """The store that keeps what `dump` gives; None where nothing does."""

    @property
    def stream_time(self) -> int:
        """The newest timestamp that the task has read."""

    def begin(self, now_ms: int, stream_time: int, dumped: Sequence[Any]) -> None:
        """Goes on from what `stream_time` and `dump` gave, after stores were restored."""

    def run(self, batch: Batch, push: Push) -> None:
        """Pushes the records of a run; calls the timers that they make due behind them."""

    def advance(self, stream_time: int) -> None:
        """All inputs have come so far in stream time, where timers do not go by records."""

    def tick(self, now_ms: int) -> None:
        """Looks at the wall clock."""

    def dump(self) -> list[Any]:
        """Must survive a restart besides rows and the stream time, as msgpack can write it."""

    def close(self) -> None:
        """The task is over."""


@dataclass(eq=False)
class Runtime:
    """One task's surroundings, as its operators see them."""

    sub_topology: SubTopology
    partition: int
    registry: SchemaRegistry | None
    is_cached: bool  # updates of tables wait for the commit
    partition_counts: Mapping[str, int]
    drops: Drops = field(default_factory=Drops)
    limits: Limits = field(default_factory=dict)
    metrics: Counter[str] = field(default_factory=Counter)
    outputs: list[Output] = field(default_factory=list)
    stores: dict[str, TaskStore] = field(default_factory=dict)
    stateful: dict[p.Node, Stateful] = field(default_factory=dict)
    processors: TaskProcessors | None = None
    now_ms: int = 0
    is_timed: bool = False  # operators are told the stream time, and do not go by their records
    shared_topics: frozenset[str] = frozenset()  # repartition topics with several writers
    place: Place = field(default_factory=InMemory)  # of the stores
    passed: Counter[str] | None = None  # records that each node passed on; None: nobody asks
    trace: Trace | None = None  # hears what each operator passes on, as objects
    global_stores: Mapping[str, GlobalStore] = field(default_factory=dict)  # by the table's name
    calls: OpenCalls | None = None  # where async functions run
    histories: dict[p.Node, History] = field(default_factory=dict)  # of tables, within a run
    unordered: list[Output] = field(default_factory=list)  # of this run, for shared topics
    hashes: dict[p.Node, Any] = field(default_factory=dict)  # of left rows: foreign_joins.py
    _singly: frozenset[p.Node] = frozenset()  # their records go all the way one after the other
    _merges: list[Merging | Meeting | Gathering] = field(default_factory=list)  # those above first
    _inputs: dict[p.Node, tuple[Push, ...]] = field(default_factory=dict)  # for each parent
    _asked: dict[p.Node, tuple[Needs, ...]] = field(default_factory=dict)  # of each parent
    _needs: dict[tuple[p.Node, p.Port], Needs] = field(default_factory=dict)
    _edges: dict[p.Node, list[Edge]] = field(default_factory=dict)
    _codecs: dict[tuple[Serde, bool, frozenset[str] | None, bool, bool], Codec] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.failures = Failures(
            self.sub_topology.plan,
            self.partition,
            self.metrics,
            self.outputs,
            self.drops,
            self.limits,
            self.value_of,
        )

    def compile(self) -> None:
        """Makes the operators, those below first."""
        nodes = self.sub_topology.nodes
        self._edges = {node: [] for node in nodes}
        for node in nodes:
            for number, parent in enumerate(node.parents):
                self._edges[parent].append(Edge(node, number))
        children = {node: self.children(node) for node in nodes}
        shares_stores = any(store.others for store in self.sub_topology.stores)
        self.goes_one_by_one = shares_stores or waits_above(nodes, is_cached=self.is_cached)
        self.ordering = Ordering(
            nodes, children, is_cached=self.is_cached, is_needed=not self.goes_one_by_one
        )
        owners = {store.node for store in self.sub_topology.stores}
        self._shared = shared_inputs(nodes, owners)
        self._shared_streams = shared_streams(nodes, owners)
        self._singly = above_both_sides(nodes, is_cached=self.is_cached)
        for node in reversed(nodes):
            for port in p.Port:
                below = Needs() if self.trace is None else Needs(key=True, value=True)
                for child, number in self.edges(node, port):
                    below |= self.asked(child, number)
                self._needs[node, port] = below
            count = max(1, len(node.parents))
            needs = node_needs(node, self.needs(node), self)
            self._asked[node] = needs if isinstance(needs, tuple) else (needs,) * count
            inputs = compile_node(node, self)
            self._inputs[node] = inputs if isinstance(inputs, tuple) else (inputs,) * count

    def run(self, source: p.Node, batch: Batch) -> None:
        """Sends a batch of `source` through all operators below it."""
        is_single = len(batch) < 2 or not (self.goes_one_by_one or source in self._singly)
        if not is_single:
            one_by_one(lambda each: self.run(source, each))(batch)
        elif self.processors is None:
            self._run(source, batch)
        else:
            self.processors.run(batch, lambda part: self._run(source, part))

    def _run(self, source: p.Node, batch: Batch) -> None:
        self._inputs[source][0](self.ordering.of_run(source, batch))
        if self._merges or self.unordered:
            self.settle()

    def run_ahead(self, source: p.Node, batch: Batch, ranks: Sequence[int]) -> None:
        """Sends a batch of `source` through the operators below it, up to where inputs meet. The
        same for the other inputs of the stretch, then `settle`, is all of its run."""
        self._inputs[source][0](self.ordering.of_stretch(source, batch, ranks))

    def settle(self) -> None:
        """Ends a run: what waits where arms meet goes on, in order."""
        for merge in self._merges:
            merge.settle()
        for history in self.histories.values():
            history.clear()
        if self.unordered:
            by_topic: dict[str, list[Output]] = {}
            for output in self.unordered:
                by_topic.setdefault(output.topic, []).append(output)
            self.unordered.clear()
            for outputs in by_topic.values():
                self.outputs += outputs_in_order(outputs)

    def merging(self, node: p.Merge) -> Push:
        """The operator of a Merge. Where no stream forks, records cannot lose their order."""
        if not self.ordering.meets:
            return self.forward(node)
        merging = Merging(self.forward_several(node))
        self._merges.insert(0, merging)  # nodes are compiled those below first
        return merging.collect

    def held(self, push: Push) -> Push:
        """Pushes the records of a run in their order, once it is over above."""
        if not self.ordering.meets:
            return push
        merging = Merging(push)
        self._merges.insert(0, merging)  # as in `merging`
        return merging.collect

    def history(self, node: p.Node) -> History | None:
        """What the rows of the table that a join looks into were; None: they are as they are when
        it looks."""
        table = looked_into(node)
        if table is None or not self.ordering.meets:
            return None
        return self.histories.setdefault(table, History())

    def meeting(self, inputs: Sequence[Push]) -> tuple[Push, ...]:
        """The inputs of a node with several parents, into which records come in order."""
        if not self.ordering.meets or len(inputs) == 1:
            return tuple(inputs)
        meeting = Meeting(inputs)
        self._merges.insert(0, meeting)  # as in `merging`
        return tuple(meeting.collect(number) for number in range(len(inputs)))

    def gathering(self, take: Gathered, count: int) -> tuple[Push, ...]:
        """The `count` inputs of a node that takes what comes into all of them at once, in order."""
        if self.ordering.meets:
            gathering = Gathering(take)
            self._merges.insert(0, gathering)  # as in `merging`
            return tuple(gathering.collect(number) for number in range(count))
        return tuple(
            lambda batch, n=number: take(bytes([n]) * len(batch), batch) for number in range(count)
        )

    def push_to(self, node: p.Node, edge: Edge) -> Push:
        """Pushes from `node` over one of the edges below it."""
        push = self._inputs[edge.node][edge.number]
        if node not in self.ordering.forks or isinstance(node, p.Branch):
            return push
        return self.ordering.in_arm(node, self._arm(node, edge), push)

    def _arm(self, node: p.Node, edge: Edge) -> int:
        """The number of an edge among those below `node`: late records go out before updates,
        final ones after them."""
        ports = list(p.Port)
        arms = sorted(self._edges[node], key=lambda each: ports.index(each.node.reads))
        return arms.index(edge)

    def needs(self, node: p.Node, port: p.Port = p.Port.RECORDS) -> Needs:
        """The demand on an output of `node`."""
        return self._needs[node, port]

    def asked(self, node: p.Node, number: int = 0) -> Needs:
        """What `node` needs of one of its parents, a source of its topics."""
        return self._asked[node][number]

    def edges(self, node: p.Node, port: p.Port = p.Port.RECORDS) -> list[Edge]:
        """Where an output of `node` leads."""
        return [edge for edge in self._edges[node] if edge.node.reads is port]

    def children(self, node: p.Node, *kinds: type[p.Node]) -> list[p.Node]:
        """The nodes below `node`; of some kinds if any are given."""
        below = [edge.node for edge in self._edges[node]]
        return [child for child in below if isinstance(child, kinds)] if kinds else below

    def finals(self, window: p.Aggregate | p.Node) -> list[p.Final | p.FinalRows]:
        """The nodes that want the final rows of windows."""
        todo, found = self.children(window), list[p.Final | p.FinalRows]()
        while todo:
            node = todo.pop()
            if isinstance(node, p.Final | p.FinalRows):
                found.append(node)
            elif isinstance(node, p.Table):
                todo += self.children(node)
        return found

    def idle_ms(self, window: p.Aggregate) -> int | None:
        """The wall time without records after which windows close; None: they wait for records."""
        idles = (final.idle_ms for final in self.finals(window))
        return min((idle for idle in idles if idle is not None), default=None)

    def is_told_time(self, node: p.Aggregate) -> bool:
        """Whether an aggregate gets the stream time, instead of taking it from its records."""
        return self.is_timed or isinstance(node.parent, p.Cogroup)

    def forward(self, node: p.Node, port: p.Port = p.Port.RECORDS) -> Push:
        """Pushes what leaves `node` by `port` to all that read it."""
        pushes = [self.push_to(node, edge) for edge in self.edges(node, port)]
        push = self.ordering.counted(node, fan_out(pushes))
        if self.passed is not None:
            push = _counted(push, self.passed, node.name)
        return push if self.trace is None else _traced(push, self.trace, node, port)

    def forward_several(self, node: p.Node, port: p.Port = p.Port.RECORDS) -> Push:
        """As `forward`, of a node that makes several records of one."""
        push = self.forward(node, port)
        # Without a cache each record goes all the way before the next, as in Kafka Streams; so it
        # does where processors share a store, or a join finds what another way has left.
        goes_on = self.is_cached and not self.goes_one_by_one and node not in self._singly
        edges = self.edges(node, port)
        goes_on = goes_on or (len(edges) == 1 and isinstance(edges[0].node, p.Sink))
        return push if goes_on else one_by_one(push)

    def forward_updates(self, node: p.Aggregate) -> Push:
        """As `forward`, of a table: over windows a record may lead to several updates. Each goes
        all the way before the next where a join below looks at what another way has left."""
        push = self.forward(node)
        looks_below = self.goes_one_by_one or node in self._singly
        return one_by_one(push) if looks_below and node.window is not None else push

    def gets_shared(self, node: p.Node) -> bool:
        """Whether a store may hold the values that come to `node`."""
        return node in self._shared

    def gets_shared_stream(self, node: p.StreamTableJoin) -> bool:
        """Whether a store may hold the stream's values, as one holds the table's rows."""
        return node in self._shared_streams

    def open_calls(self, callee: AsyncCallee) -> Calls:
        """Where the calls of an operator run."""
        assert self.calls is not None, "nobody runs the calls of async functions here"
        return self.calls(callee)

    def must_copy(self, node: p.Node, function: Function) -> bool:
        """Whether `function` of `node` could change what a store holds."""
        return node in self._shared and not takes_apart(function)

    def schema(self, node: p.Node) -> Schema:
        """The serdes of the output of `node`."""
        return self.sub_topology.schemas[node]

    def store_of(self, node: p.Node, word: str = "") -> Store | None:
        """The store that `node` owns, if it does; of several the one that is called `word`."""
        stores = self.sub_topology.stores
        return next((s for s in stores if s.node is node and s.word == word), None)

    def codec(
        self,
        serde: Serde,
        *,
        is_key: bool,
        fields: frozenset[str] | None = None,
        forms: bool = False,
        arrow: bool = False,
    ) -> Codec:
        """The serde, opened once per task; with `fields`, it may leave out others it reads.

        With `forms` it may read columns that are no lists; with `arrow` nobody wants their objects.
        """
        context = SerdeContext(self.registry, is_key, fields=fields, forms=forms, arrow=arrow)
        opened = (serde, is_key, fields, forms, arrow)
        if opened not in self._codecs:
            self._codecs[opened] = serde.open(context)
        return self._codecs[opened]

    def value_of(self, node: p.Node, place: RecordPlace) -> object:
        """The whole value that came to `node`, where it is the one that was read.

        Of that one perhaps only some fields are in the batch. Else UNKNOWN.
        """
        source = self.sub_topology.source_of(place.topic)
        if source is None or not self.input_schema(node).has_raw_value:
            return UNKNOWN
        codec = self.codec(source.value, is_key=False)
        try:
            return codec.deserialize(place.topic, [place.columns.values[place.at]])[0]
        except SerdeError:
            return UNKNOWN

    def input_schema(self, node: p.Node) -> Schema:
        """The shape of the input of `node`; nothing for several inputs."""
        if len(node.parents) > 1 and not isinstance(node, p.Process):
            return Schema(None, None)
        return self.schema(node.parents[0] if node.parents else node)


def above_both_sides(nodes: Sequence[p.Node], *, is_cached: bool) -> frozenset[p.Node]:
    """The nodes above both sides of a join that looks up rows: what a record finds there depends
    on which records before it went down the other way. Where the join's updates merge until the
    commit, the last ones count, and those find the rows as they stay."""
    sides = lookups(nodes, is_cached=is_cached)
    return frozenset[p.Node]().union(*(left.keys() & right.keys() for left, right in sides))


def waits_above(nodes: Sequence[p.Node], *, is_cached: bool) -> bool:
    """Whether a record may wait on its way to such a join, where its ways meet already above it:
    then the other way would be ahead, and records go all the way one after the other instead."""
    for left, right in lookups(nodes, is_cached=is_cached):
        both = left.keys() & right.keys()
        for node, above in (left | right).items():
            looks_at_once = isinstance(node, LOOKS) and looked_into(node) is None
            waits = len(node.parents) > 1 and not looks_at_once
            if waits and node not in both and above & both:
                return True
    return False


def lookups(nodes: Sequence[p.Node], *, is_cached: bool) -> Iterator[tuple[Above, Above]]:
    """The joins that look up rows as they are: the nodes above either side, each with those above
    itself. Those that are told what rows were need no such care."""
    above: dict[p.Node, frozenset[p.Node]] = {}
    for node in nodes:
        above[node] = frozenset({node}).union(*(above[parent] for parent in node.parents))
        merges = isinstance(node, p.TableJoin) and node.cached and is_cached
        looks = isinstance(node, LOOKS) and looked_into(node) is None
        if looks and len(node.parents) > 1 and not merges:
            left, *rights = (above[parent] for parent in node.parents)
            right = frozenset[p.Node]().union(*rights)
            yield {each: above[each] for each in left}, {each: above[each] for each in right}


def _counted(push: Push, passed: Counter[str], name: str) -> Push:
    def push_counted(batch: Batch) -> None:
        passed[name] += len(batch)
        push(batch)

    return push_counted


def _traced(push: Push, trace: Trace, node: p.Node, port: p.Port) -> Push:
    def push_traced(batch: Batch) -> None:
        trace(node, port, batch)
        push(batch)

    return push_traced


def fan_out(pushes: Sequence[Push]) -> Push:
    """One push for several, in order; empty batches go nowhere."""
    if not pushes:
        return nowhere
    if len(pushes) == 1:
        return pushes[0]

    def push(batch: Batch) -> None:
        for each in pushes:
            each(batch)

    return push


def one_by_one(push: Push) -> Push:
    """Pushes batches of one."""

    def push_each(batch: Batch) -> None:
        for index in range(len(batch)):
            push(batch.slice(index, index + 1))

    return push_each


def nowhere(batch: Batch) -> None:
    """The end of a stream."""


def is_portable(serde: Serde) -> bool:
    """Whether bytes that `serde` wrote for one topic do for another."""
    if isinstance(serde, WindowedSerde):
        return is_portable(serde.inner)
    if isinstance(serde, AskedSerde | AnswerSerde):  # made for their one topic
        return True
    return isinstance(serde, PORTABLE)


@singledispatch
def node_needs(node: p.Node, below: Needs, runtime: Runtime) -> Needs | tuple[Needs, ...]:
    """What `node` needs of its inputs, when `below` is needed of its records."""
    return below


@singledispatch
def compile_node(node: p.Node, runtime: Runtime) -> Push | tuple[Push, ...]:
    """The inputs of the operator of `node`. UnsupportedOnBackend when this engine has none."""
    raise UnsupportedOnBackend(f"{node.name!r}: {type(node).__name__} cannot be run here")
