"""Stores: which nodes keep state, in how many parts, and under which names.                [P]

A node says with `parts_of` what it keeps. Most keep nothing or one part; a join of streams keeps
both sides. A part is called after its node, with its own word behind it where there are several,
and so is its changelog topic.

    orders-join            node
    orders-join-left       store        app-orders-join-left-changelog      its changelog

Owns   the names of stores; what a node tells of itself is registered here, kind by kind.
Fails  with TopologyError when two nodes would own one changelog topic.
Source Kafka Streams' InternalTopologyBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

from kafkalite.errors import TopologyError
from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.primitives import bytes_, int64
from kafkalite.serde.serde import Serde
from kafkalite.streams import plan as p
from kafkalite.streams.naming import internal_name
from kafkalite.streams.processors import StoreSpec


@dataclass(frozen=True, slots=True)
class Schema:
    """What is known of a node's output: its serdes, None after an operator that changed it.

    Where the key's serde is known, the key's bytes are at hand as well; the value's bytes are only
    where `has_raw_value`.
    """

    key: Serde | None
    value: Serde | None
    has_raw_value: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a node's state. The serdes are None where the application's are taken.

    `word`: what tells it from the node's other parts; "" for the part that has the node's name.
    """

    key: Serde | None
    value: Serde | None
    word: str = ""
    spec: StoreSpec | None = None  # of a store that users name, and may connect to several nodes


@dataclass(frozen=True, slots=True)
class Store:
    """State of one node, or a part of it, kept in a changelog topic.

    `others`: the further nodes that a store of the user's is connected to.
    """

    name: str
    changelog_topic: str
    node: p.Node
    key: Serde
    value: Serde
    word: str = ""
    spec: StoreSpec | None = None
    others: tuple[p.Node, ...] = ()

    @property
    def nodes(self) -> tuple[p.Node, ...]:
        """All that work with it."""
        return (self.node, *self.others)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A node in its plan: the nodes below each node, and each node's output."""

    children: Mapping[p.Node, Iterable[p.Node]]
    schemas: Mapping[p.Node, Schema]


@singledispatch
def parts_of(node: p.Node, around: Surroundings) -> tuple[Part, ...]:
    """The parts of the state that `node` keeps."""
    return ()


@parts_of.register
def _(node: p.Aggregate, around: Surroundings) -> tuple[Part, ...]:
    return (Part(node.key, around.schemas[node].value),)


@parts_of.register
def _(node: p.JoinOfStreams, around: Surroundings) -> tuple[Part, ...]:
    return (Part(node.key, node.left, "left"), Part(node.key, node.right, "right"))


@parts_of.register
def _(node: p.Pattern, around: Surroundings) -> tuple[Part, ...]:
    return (Part(around.schemas[node].key, msgpack()),)


@parts_of.register
def _(node: p.Process, around: Surroundings) -> tuple[Part, ...]:
    return tuple(Part(spec.key, spec.value, spec=spec) for spec in node.stores)


@parts_of.register(p.TableSource)
@parts_of.register(p.ToTable)
def _(node: p.TableSource | p.ToTable, around: Surroundings) -> tuple[Part, ...]:
    children = around.children
    is_needed = node.named or node.history_ms is not None
    is_needed = is_needed or _olds_required(node, children) or rows_read(node, children)
    return _whole(node, around) if is_needed else ()


@parts_of.register(p.TableFilter)
@parts_of.register(p.TableMap)
def _(node: p.TableFilter | p.TableMap, around: Surroundings) -> tuple[Part, ...]:
    return _whole(node, around) if node.named else ()


@parts_of.register
def _(node: p.Suppress, around: Surroundings) -> tuple[Part, ...]:
    schema = around.schemas[node]
    return (Part(schema.key, node.value or schema.value),)


@parts_of.register
def _(node: p.Cogroup, around: Surroundings) -> tuple[Part, ...]:
    return () if node.window is None else (Part(bytes_(), int64()),)


@parts_of.register
def _(node: p.FinalRows, around: Surroundings) -> tuple[Part, ...]:
    return _whole(node, around)


@parts_of.register
def _(node: p.StreamTableJoin, around: Surroundings) -> tuple[Part, ...]:
    if node.grace_ms is None:
        return ()
    stream = around.schemas[node.parents[0]]
    return (Part(around.schemas[node].key, node.left or stream.value),)


@parts_of.register
def _(node: p.TableJoin, around: Surroundings) -> tuple[Part, ...]:
    is_needed = node.named or _olds_used(node, around.children)
    return _whole(node, around) if is_needed else ()


@parts_of.register
def _(node: p.ForeignJoin, around: Surroundings) -> tuple[Part, ...]:
    children = around.children
    is_needed = node.named or _olds_used(node, children) or rows_read(node, children)
    return _whole(node, around) if is_needed else ()


@parts_of.register
def _(node: p.Expire, around: Surroundings) -> tuple[Part, ...]:
    return (Part(bytes_(), bytes_()),)


@parts_of.register
def _(node: p.Match, around: Surroundings) -> tuple[Part, ...]:
    return (Part(bytes_(), bytes_()),)


def _whole(node: p.Node, around: Surroundings) -> tuple[Part, ...]:
    """The rows that a node puts out, as its one part."""
    schema = around.schemas[node]
    return (Part(schema.key, schema.value),)


def _olds_required(node: p.Node, children: Mapping[p.Node, Iterable[p.Node]]) -> bool:
    """Whether something below cannot work without the row that an update replaces."""
    return any(
        isinstance(child, p.TableGroupBy | p.Suppress | p.Reference)
        or (isinstance(child, p.TableJoin) and _side_reads_olds(child, node))
        or (_reads_through(child) and _olds_required(child, children))
        for child in children[node]
    )


def _olds_used(node: p.Node, children: Mapping[p.Node, Iterable[p.Node]]) -> bool:
    """The same, or works better with it: a filter deletes no row then that did not pass."""
    return _olds_required(node, children) or any(
        isinstance(child, p.TableFilter | p.TableMap)
        and not child.named
        and (isinstance(child, p.TableFilter) or _olds_used(child, children))
        for child in children[node]
    )


def rows_read(node: p.Node, children: Mapping[p.Node, Iterable[p.Node]]) -> bool:
    """Whether something below looks up rows of `node`, a table."""
    return any(
        isinstance(child, p.TableJoin)
        or (isinstance(child, p.StreamTableJoin | p.Match) and child.parents[1] is node)
        or (isinstance(child, p.Process) and node in child.tables)
        or (isinstance(child, p.ForeignJoin) and child.parents[0] is node)
        or (_reads_through(child) and rows_read(child, children))
        for child in children[node]
    )


def _reads_through(node: p.Node) -> bool:
    """Whether `node` has no rows of its own, but makes them of those above."""
    is_view = isinstance(node, p.TableFilter | p.TableMap) and not node.named
    return is_view or isinstance(node, p.Suppress)


def _side_reads_olds(join: p.TableJoin, side: p.Node) -> bool:
    return any(
        reads and parent is side
        for parent, reads in zip(join.parents, join.reads_olds, strict=True)
    )


def find_stores(plan: p.Plan, schemas: Mapping[p.Node, Schema]) -> Callable[[p.Plan], list[Store]]:
    """The stores of a plan. The answer is by the names of nodes, to be asked of a later plan."""
    around = Surroundings(plan.children(), schemas)
    parts = {node.name: found for node in plan.nodes if (found := parts_of(node, around))}

    def stores(later: p.Plan) -> list[Store]:
        made: dict[str, Store] = {}
        for node in later.nodes:
            for part in parts.get(node.name, ()):
                store = _store(later, node, part)
                there = made.get(store.changelog_topic)
                if there is not None and part.spec is not None and there.spec == part.spec:
                    store = replace(there, others=(*there.others, node))
                elif there is not None:
                    raise TopologyError(
                        f"two operators would own the changelog topic {store.changelog_topic!r}: "
                        f"give one of the operators called {node.name!r} another name"
                    )
                made[store.changelog_topic] = store
        return list(made.values())

    return stores


def _store(plan: p.Plan, node: p.Node, part: Part) -> Store:
    name = f"{node.name}-{part.word}" if part.word else node.name
    if part.spec is not None:
        name = part.spec.name
    topic = internal_name(plan.application_id, name, "changelog")
    key, value = part.key or plan.key or bytes_(), part.value or plan.value or msgpack()
    return Store(name, topic, node, key, value, part.word, part.spec)


def sharers(nodes: Iterable[p.Node]) -> dict[p.Node, set[p.Node]]:
    """Of each node that works with stores of earlier nodes, these."""
    first: dict[str, p.Node] = {}
    found: dict[p.Node, set[p.Node]] = {}
    for node in nodes:
        for spec in node.stores if isinstance(node, p.Process) else ():
            if (earlier := first.setdefault(spec.name, node)) is not node:
                found.setdefault(node, set()).add(earlier)
    return found
