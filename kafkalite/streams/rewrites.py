"""Rewrites: from the plan a user built to one that an engine compiles.                    [P]

    1  repartition   GroupBy and ToTable behind a changed key get an internal topic
    2  serdes        every source, sink and store gets the serdes that the rules infer
    3  stores        nodes that keep state get theirs (stores.py)
    4  cut           Repartition becomes a sink and a source; what still hangs together
                     is a sub-topology

Each takes a plan and gives a new one; nodes are never changed.

Owns   the inference rules for serdes and the names of internal topics.
Fails  with TopologyError when two nodes would own one internal topic.
Source Kafka Streams' InternalStreamsBuilder and InternalTopologyBuilder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from kafkalite.errors import TopologyError
from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.primitives import bytes_, int64
from kafkalite.serde.serde import Serde
from kafkalite.serde.windowed import WindowedSerde, windowed
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Count, Reduce
from kafkalite.streams.changes import ChangeSerde
from kafkalite.streams.combining import is_combinable
from kafkalite.streams.foreign import AnswerSerde, AskedSerde, steps_of
from kafkalite.streams.naming import internal_name
from kafkalite.streams.sketches import ApproxDistinct
from kafkalite.streams.stores import Schema, Store, find_stores, sharers

REPARTITION_CONFIG: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
CHANGELOG_CONFIG: Final = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the application makes. `partitions` None: as many as its readers' inputs."""

    name: str
    partitions: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class SubTopology:
    """What runs as one task per partition: nodes, parents first, that share no internal topic."""

    id: int
    plan: p.Plan
    nodes: tuple[p.Node, ...]
    schemas: Mapping[p.Node, Schema]
    stores: tuple[Store, ...]
    repartition_sources: tuple[InternalTopic, ...]
    repartition_sinks: tuple[str, ...]

    @property
    def sources(self) -> tuple[p.Source, ...]:
        """The nodes that read topics."""
        return tuple(node for node in self.nodes if isinstance(node, p.Source))

    @property
    def sinks(self) -> tuple[p.Sink, ...]:
        """The nodes that write topics."""
        return tuple(node for node in self.nodes if isinstance(node, p.Sink))

    @property
    def source_topics(self) -> tuple[str | p.TopicPattern, ...]:
        """The topics it reads that are not its own, and patterns of such topics."""
        internal = {topic.name for topic in self.repartition_sources}
        named = [t for s in self.sources for t in (s.topics or (s.pattern,)) if t is not None]
        return tuple(t for t in named if t not in internal)

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """The topics it writes whose names are known before it runs, internal ones too."""
        return tuple(dict.fromkeys(s.topic for s in self.sinks if isinstance(s.topic, str)))

    @property
    def changelogs(self) -> tuple[InternalTopic, ...]:
        """The changelog topics of its stores."""
        return tuple(
            InternalTopic(store.changelog_topic, None, CHANGELOG_CONFIG) for store in self.stores
        )

    @property
    def internal_topics(self) -> tuple[InternalTopic, ...]:
        """Every topic that must be made before it runs."""
        return (*self.repartition_sources, *self.changelogs)

    @property
    def output_topics(self) -> dict[str, InternalTopic]:
        """The topics that its sinks ask to be made, by name."""
        made: dict[str, InternalTopic] = {}
        for sink in self.sinks:
            if sink.create is None or not isinstance(sink.topic, str):
                continue
            config = {name: v for name, v in sink.create.items() if name != "partitions"}
            partitions = sink.create.get("partitions")
            asked = InternalTopic(sink.topic, int(partitions) if partitions else None, config)
            if made.setdefault(sink.topic, asked) != asked:
                raise TopologyError(
                    f"{sink.name!r}: another sink makes topic {sink.topic!r} in another way"
                )
        return made

    @property
    def feeds_repartition(self) -> bool:
        """Whether another sub-topology reads what this one writes to an internal topic."""
        return bool(self.repartition_sinks)

    def source_of(self, topic: str) -> p.Source | None:
        """The node that reads `topic`: by its name, or else by a pattern. None when none does."""
        named = (node for node in self.sources if topic in node.topics)
        matched = (n for n in self.sources if n.pattern is not None and n.pattern.fullmatch(topic))
        return next(chain(named, matched), None)


def sub_topologies(plan: p.Plan) -> tuple[SubTopology, ...]:
    """Everything above: the plan as sub-topologies, in the order of their first sources."""
    plan = insert_repartitions(plan)
    plan, schemas = resolve_serdes(plan)
    stores = find_stores(plan, schemas)
    plan, schemas, made = cut_repartitions(plan, schemas)
    result = []
    running = (each for each in _components(plan) if not isinstance(each[0], p.GlobalSource))
    for number, nodes in enumerate(running):
        inside = set(nodes)
        topics = {t for n in nodes if isinstance(n, p.Source) for t in n.topics}
        written = {n.topic for n in nodes if isinstance(n, p.Sink)}
        result.append(
            SubTopology(
                id=number,
                plan=plan,
                nodes=nodes,
                schemas={node: schemas[node] for node in nodes},
                stores=tuple(store for store in stores(plan) if store.node in inside),
                repartition_sources=tuple(made[t] for t in made if t in topics),
                repartition_sinks=tuple(t for t in made if t in written),
            )
        )
    return tuple(result)


class _Rebuild:
    """Makes a new plan of an old one, node by node, parents first."""

    def __init__(self, plan: p.Plan) -> None:
        self.plan = plan
        self.nodes: list[p.Node] = []
        self.image: dict[p.Node, p.Node] = {}  # old node -> the new one that stands for it

    def add(self, node: p.Node) -> p.Node:
        self.nodes.append(node)
        return node

    def keep(self, node: p.Node, **changes: Any) -> p.Node:
        """Takes `node` over, below the images of its parents."""
        parents = tuple(self.image[parent] for parent in node.parents)
        self.image[node] = self.add(replace(node, parents=parents, **changes))
        return self.image[node]

    def result(self) -> p.Plan:
        return replace(self.plan, nodes=tuple(self.nodes))


def without_cache(plan: p.Plan) -> p.Plan:
    """The plan with tables that send every update on."""
    out = _Rebuild(plan)
    for node in plan.nodes:
        if isinstance(node, p.Aggregate | p.TableJoin):
            out.keep(node, cached=False)
        else:
            out.keep(node)
    return out.result()


def insert_repartitions(plan: p.Plan) -> p.Plan:
    """Puts a Repartition wherever equal keys must meet and may not; GroupBy is gone."""
    out = _Rebuild(plan)
    children = plan.children()
    changed: dict[p.Node, bool] = {}  # of the new nodes: did the key change since its topic?

    def note(node: p.Node) -> p.Node:
        changed[node] = not isinstance(node, p.Repartition) and (
            node.changes_key or any(changed[parent] for parent in node.parents)
        )
        return node

    def repartition(node: p.Node, parent: p.Node, **options: Any) -> p.Node:
        options = {"name": node.name, "made_at": node.made_at, **options}
        return note(out.add(p.Repartition(parents=(parent,), **options)))

    def sides(node: p.JoinOfStreams) -> tuple[p.Node, ...]:
        """The inputs of a join, each through a topic of its own where its key has changed."""
        found: dict[p.Node, p.Node] = {}  # a stream that is joined with itself goes through one
        for word, serde, above in zip(
            ("left", "right"), (node.left, node.right), node.parents, strict=True
        ):
            parent = out.image[above]
            if parent not in found:
                name = f"{node.name}-{word}"
                found[parent] = (
                    repartition(node, parent, name=name, key=node.key, value=serde)
                    if changed[parent]
                    else parent
                )
        return tuple(found[out.image[above]] for above in node.parents)

    for node in plan.nodes:
        parent = out.image[node.parents[0]] if node.parents else None
        if isinstance(node, p.GroupBy):
            assert parent is not None
            if node.function is not None:
                select = p.SelectKey(
                    name=f"{node.name}.key",
                    parents=(parent,),
                    on_error=node.on_error,
                    made_at=node.made_at,
                    function=node.function,
                )
                parent = note(out.add(select))
            if changed[parent] and children[node]:
                parent = repartition(node, parent, key=node.key, value=node.value)
            out.image[node] = parent
        elif isinstance(node, p.TableGroupBy):
            grouped = note(out.keep(node))
            out.image[node] = repartition(
                node, grouped, key=node.key, value=node.value, changes=True
            )
        elif parent is not None and changed[parent] and (serdes := _own_topic(node)) is not None:
            through = repartition(node, parent, **serdes)
            others = (out.image[each] for each in node.parents[1:])
            out.image[node] = note(out.add(replace(node, parents=(through, *others))))
        elif isinstance(node, p.JoinOfStreams):
            out.image[node] = note(out.add(replace(node, parents=sides(node))))
        elif isinstance(node, p.ForeignJoin):
            for step in steps_of(node, *(out.image[each] for each in node.parents)):
                out.image[node] = note(out.add(step))
        else:
            note(out.keep(node))
    return out.result()


def _own_topic(node: p.Node) -> dict[str, Serde | None] | None:
    """The serdes of the topic through which a stream with another key comes to `node`; None: it
    does not go by the key."""
    match node:
        case p.ToTable() | p.Expire() | p.Pattern():
            return {"key": node.key, "value": node.value}
        case p.StreamTableJoin():
            return {"key": node.key, "value": node.left}
        case p.Process() if node.tables:
            return {}
    return None


def _tables_of(node: p.Node) -> tuple[p.Node, ...]:
    """The tables into which an operator of a stream looks."""
    return node.parents[1:] if isinstance(node, p.StreamTableJoin | p.Process) else ()


def resolve_serdes(plan: p.Plan) -> tuple[p.Plan, dict[p.Node, Schema]]:
    """Gives every repartition, sink and store its serdes, and tells what each node puts out."""
    out = _Rebuild(plan)
    schemas: dict[p.Node, Schema] = {}
    children = plan.children()
    for node in plan.nodes:
        above = _meet([schemas[parent] for parent in _inputs(node, out.image)])
        if isinstance(node, p.Source):
            schemas[out.keep(node)] = Schema(node.key, node.value, not isinstance(node, p.Table))
        elif isinstance(node, p.Repartition | p.Sink | p.Aggregate | p.ToTable):
            internal = not isinstance(node, p.Sink)
            partner = _partner_key(children[node], out.image, schemas)
            key = _key_in_window(node.key, above.key) or above.key or partner
            key = key or plan.key or bytes_()
            value = node.value or _own_value(node) or _kept_value(node, above) or plan.value
            kept = out.keep(node, key=key, value=value or (msgpack() if internal else bytes_()))
            schemas[kept] = _schema_of(kept)
        elif isinstance(node, p.JoinOfStreams):
            left, right = (schemas[out.image[parent]] for parent in node.parents)
            key = node.key or left.key or right.key or plan.key or bytes_()
            values = {
                "left": node.left or left.value or plan.value or msgpack(),
                "right": node.right or right.value or plan.value or msgpack(),
            }
            schemas[out.keep(node, key=key, **values)] = Schema(key, None)
        elif isinstance(node, p.Reference | p.Match | p.ForeignJoin):
            schemas[out.keep(node)] = _schema_of_step(node, plan, out.image, schemas)
        elif isinstance(node, p.TableJoin):
            _check_keys(node, [schemas[out.image[parent]] for parent in node.parents])
            schemas[out.keep(node)] = Schema(above.key, node.value)
        else:
            schemas[out.keep(node)] = Schema(
                None if node.changes_key else above.key,
                None if _changes_value(node) else above.value,
                above.has_raw_value and not _changes_value(node),
            )
    return out.result(), schemas


def _inputs(node: p.Node, image: Mapping[p.Node, p.Node]) -> list[p.Node]:
    """The nodes whose output `node` passes on: late records are those the operator was given.

    A join has the keys of its table, a join of tables those of the left one.
    """
    parents = [image[parent] for parent in node.parents]
    if isinstance(node, p.StreamTableJoin):
        return parents[1:]
    if isinstance(node, p.TableJoin | p.Process):
        return parents[:1]
    return [parents[0].parent] if isinstance(node, p.Late) else parents


def _schema_of_step(
    node: p.Reference | p.Match | p.ForeignJoin,
    plan: p.Plan,
    image: Mapping[p.Node, p.Node],
    schemas: Mapping[p.Node, Schema],
) -> Schema:
    """What a step of a join by a foreign key puts out."""
    above = schemas[image[node.parents[0]]]
    assert above.key is not None
    if isinstance(node, p.ForeignJoin):
        return Schema(above.key, node.value)
    if isinstance(node, p.Reference):
        right = schemas[image[node.right]].key
        assert right is not None, f"{node.name!r}: a table knows its key's serde"
        return Schema(right, AskedSerde(above.key), has_raw_value=True)
    assert isinstance(above.value, AskedSerde)
    rows = schemas[image[node.parents[1]]].value or plan.value or msgpack()
    return Schema(above.value.key, AnswerSerde(rows), has_raw_value=True)


def _partner_key(
    children: Iterable[p.Node], image: Mapping[p.Node, p.Node], schemas: Mapping[p.Node, Schema]
) -> Serde | None:
    """The serde of the keys of a table that a stream is joined with, and that was made before: it
    writes equal keys alike."""
    tables = [child.parents[1] for child in children if isinstance(child, p.StreamTableJoin)]
    return next((schemas[image[table]].key for table in tables if table in image), None)


def _check_keys(node: p.TableJoin, sides: list[Schema]) -> None:
    left, right = (side.key for side in sides)
    if left != right:
        raise TopologyError(
            f"{node.name!r} joins tables whose keys have different serdes, {left!r} and {right!r}: "
            "equal keys would have other bytes; give both tables the same key="
        )


def _meet(above: list[Schema]) -> Schema:
    """The shape of several inputs together."""
    if not above:
        return Schema(None, None)
    first = above[0]
    same_value = all(schema.value == first.value for schema in above)
    return Schema(
        first.key if all(schema.key == first.key for schema in above) else None,
        first.value if same_value else None,
        same_value and all(schema.has_raw_value for schema in above),
    )


def _key_in_window(given: Serde | None, above: Serde | None) -> Serde | None:
    """A serde given for a windowed key is that of the key in the window."""
    if given is None or isinstance(given, WindowedSerde) or not isinstance(above, WindowedSerde):
        return given
    return WindowedSerde(given, above.size_ms)


def _own_value(node: p.Node) -> Serde | None:
    """The serde that a node's values have by their nature."""
    if not isinstance(node, p.Aggregate):
        return None
    counts = node.fields is None and isinstance(node.aggregates[0], Count | ApproxDistinct)
    return int64() if counts else None


def _kept_value(node: p.Node, above: Schema) -> Serde | None:
    """The serde upstream, where the values of `node` are those of its input."""
    if isinstance(node, p.Aggregate):
        reduces = node.fields is None and isinstance(node.aggregates[0], Reduce)
        return above.value if reduces else None
    return above.value


def _changes_value(node: p.Node) -> bool:
    if isinstance(node, p.TableGroupBy):
        return node.select is not None
    return node.changes_value


def _schema_of(node: p.Node) -> Schema:
    """What a node with resolved serdes puts out."""
    assert isinstance(node, p.Repartition | p.Sink | p.Aggregate | p.ToTable)
    assert node.key is not None
    if isinstance(node, p.Aggregate) and node.window is not None:
        return Schema(windowed(node.key, node.window.key_size_ms), node.value)
    return Schema(node.key, node.value, isinstance(node, p.Repartition))


def cut_repartitions(
    plan: p.Plan, schemas: Mapping[p.Node, Schema]
) -> tuple[p.Plan, dict[p.Node, Schema], dict[str, InternalTopic]]:
    """Each Repartition as a sink into its topic and a source from it."""
    out = _Rebuild(plan)
    now: dict[p.Node, Schema] = {}
    made: dict[str, InternalTopic] = {}
    children = plan.children()
    for node in plan.nodes:
        if not isinstance(node, p.Repartition):
            now[out.keep(node)] = schemas[node]
            continue
        topic = internal_name(plan.application_id, node.name, "repartition")
        if topic in made:
            raise TopologyError(
                f"two operators would own the repartition topic {topic!r}: "
                f"give one of the operators called {node.name!r} another name"
            )
        made[topic] = InternalTopic(topic, node.partitions, REPARTITION_CONFIG)
        assert node.key is not None
        assert node.value is not None
        value: Serde = ChangeSerde(node.value) if node.changes else node.value
        table = _combining(node, children)
        sink = p.Sink(
            name=f"{node.name}-sink",
            parents=(out.image[node.parent],),
            topic=topic,
            key=node.key,
            value=value,
            partitioner=node.partitioner,
            made_at=node.made_at,
            folds=table if table is not None and _folds_ahead(table, children) else None,
            keeps_null_keys=_leads_to_left_join(node, children),
        )
        source = p.Source(
            name=f"{node.name}-source", topics=(topic,), key=node.key, value=value, folds=table
        )
        now[out.add(sink)] = schemas[node]
        now[out.add(source)] = replace(schemas[node], value=value)
        out.image[node] = source
    return out.result(), now, made


def _leads_to_left_join(node: p.Node, children: Mapping[p.Node, Iterable[p.Node]]) -> bool:
    """Whether records of `node` may come to a join that takes records without a key. Kafka Streams
    drops none in a repartition topic then, at whatever distance."""
    seen, todo = {node}, [node]
    while todo:
        above = todo.pop()
        below = {child for child in children[above] if not _looks_up(child, above)}
        if any(child.takes_null_keys for child in below):
            return True
        todo += below - seen
        seen |= below
    return False


def _looks_up(node: p.Node, above: p.Node) -> bool:
    """Whether `node` gets no records of `above`, but looks into it."""
    return bool(_tables_of(node)) and above is not node.parents[0]


def _combining(
    node: p.Repartition, children: Mapping[p.Node, Iterable[p.Node]]
) -> p.Aggregate | None:
    """The table that alone reads a repartition topic, if it can take in partials."""
    if node.changes or node.partitioner is not None:
        return None
    below = list(children[node])
    table = below[0] if len(below) == 1 else None
    return table if isinstance(table, p.Aggregate) and is_combinable(table) else None


def _folds_ahead(table: p.Aggregate, children: Mapping[p.Node, Iterable[p.Node]]) -> bool:
    """Whether nobody below a table asks for every update, or for its late records."""
    return table.cached and not any(isinstance(child, p.Late) for child in children[table])


def topology_topic(application_id: str) -> str:
    """The internal topic that says which topology the application runs."""
    return f"{application_id}-topology"


def _components(plan: p.Plan) -> list[tuple[p.Node, ...]]:
    """The nodes that hang together, each group with parents first, in order of first sources."""
    group: dict[p.Node, int] = {}
    sharing = sharers(plan.nodes)
    for number, node in enumerate(plan.nodes):
        joined = {group[other] for other in (*node.parents, *sharing.get(node, ()))}
        group[node] = min(joined, default=number)
        for other, its in group.items():
            if its in joined:
                group[other] = group[node]
    parts: dict[int, list[p.Node]] = {}
    for node in plan.nodes:
        parts.setdefault(group[node], []).append(node)
    return [tuple(nodes) for _, nodes in sorted(parts.items())]
