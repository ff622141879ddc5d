"""Stages: where Spark runs each sub-topology of a plan.                                    [P]

    level 0     inside the reader of the source: sub-topologies of users' topics without state
    level n     a task is a key of the n-th transformWithState; a level reads what those before made
    by the log  a repartition topic that leads back, as between the halves of a join by foreign key:
                the sink's transaction writes it, the next micro-batch reads it

Every other repartition topic is a shuffle between two levels and holds no records.

Global tables are no part of a level: every process has a copy, see `tables`.

Owns   the levels.
Fails  never.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from kafkalite.core.types import TopicPartition
from kafkalite.streams import plan as p
from kafkalite.streams.describe import detail, kind
from kafkalite.streams.local.assignor import TaskId, tasks_of
from kafkalite.streams.local.compile import SubTopology, compile_topology, flows_of
from kafkalite.streams.local.sizes import Limits
from kafkalite.streams.local.watermarks import Flow

IN_READER: Final = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """A plan as Spark runs it. `levels`: by the id of a sub-topology."""

    plan: p.Plan
    subs: tuple[SubTopology, ...]
    levels: Mapping[int, int]
    by_log: frozenset[str]

    @property
    def depth(self) -> int:
        """How many levels there are behind the reader."""
        return max(self.levels.values(), default=IN_READER)

    @property
    def looks_at_the_clock(self) -> bool:
        """Whether time alone may make results, without a record."""
        return any(
            isinstance(node, p.Process)
            or (isinstance(node, p.Final | p.FinalRows) and node.idle_ms is not None)
            for sub in self.subs
            for node in sub.nodes
        )

    @property
    def shuffled(self) -> dict[str, int]:
        """The repartition topics that hold no records, each with its reader's id."""
        return {
            topic.name: sub.id
            for sub in self.subs
            for topic in sub.repartition_sources
            if topic.name not in self.by_log
        }


def stages_of(plan: p.Plan) -> Stages:
    """The stages of `plan`."""
    subs = compile_topology(plan)
    readers = {topic.name: sub.id for sub in subs for topic in sub.repartition_sources}
    edges = {sub.id: [(topic, readers[topic]) for topic in sub.repartition_sinks] for sub in subs}
    by_log = frozenset(_leading_back(edges))
    return Stages(plan, subs, _levels(subs, edges, by_log), by_log)


Edges = Mapping[int, Sequence[tuple[str, int]]]  # by writer: topics and their readers


def _leading_back(edges: Edges) -> Iterator[str]:
    """The topics without which no way leads from a sub-topology to itself."""
    done: set[int] = set()
    under_way: list[int] = []

    def visit(sub: int) -> Iterator[str]:
        under_way.append(sub)
        for topic, reader in edges[sub]:
            if reader in under_way:
                yield topic
            elif reader not in done:
                yield from visit(reader)
        done.add(under_way.pop())

    for sub in edges:
        if sub not in done:
            yield from visit(sub)


def _levels(subs: Sequence[SubTopology], edges: Edges, by_log: frozenset[str]) -> Mapping[int, int]:
    """The longest way to each sub-topology from the source."""
    levels = {sub.id: IN_READER if _runs_in_reader(sub) else 1 for sub in subs}
    changed = True
    while changed:
        changed = False
        for writer, topics in edges.items():
            for topic, reader in topics:
                level = levels[writer] + 1
                if topic not in by_log and levels[reader] < level:
                    levels[reader], changed = level, True
    return levels


def _runs_in_reader(sub: SubTopology) -> bool:
    """Whether a new task for each micro-batch gives what one that lives on would give."""
    remembers = any(isinstance(node, p.Process) for node in sub.nodes)
    return not (sub.stores or sub.repartition_sources or remembers)


@dataclass(frozen=True)
class Layout:
    """Stages over the topics of a cluster: what a worker of Spark must know to run a task.

    `sources`: the topics that each sub-topology reads. `starting`: where a new query begins to
    read, of the partitions that do not begin as their source says. `tables`: the topics of global
    tables with their partition counts.
    """

    stages: Stages
    sources: Mapping[int, Sequence[str]]
    partitions_of: Mapping[str, int]
    limits: Limits = field(default_factory=dict)
    idle_ms: int = 5_000
    starting: Mapping[TopicPartition, int] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def table_partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions of global tables."""
        counts = sorted(self.tables.items())
        return tuple(TopicPartition(topic, n) for topic, count in counts for n in range(count))

    @cached_property
    def subs(self) -> Mapping[int, SubTopology]:
        """The sub-topologies by their ids."""
        return {sub.id: sub for sub in self.stages.subs}

    @cached_property
    def tasks(self) -> Mapping[TaskId, tuple[TopicPartition, ...]]:
        """All tasks, with the partitions that they read."""
        return tasks_of(self.sources, self.partitions_of)

    @cached_property
    def inputs(self) -> Mapping[TaskId, tuple[TopicPartition, ...]]:
        """All tasks, with the partitions that the source reads for them."""
        shuffled = self.stages.shuffled
        return {
            task: tuple(tp for tp in partitions if tp.topic not in shuffled)
            for task, partitions in self.tasks.items()
        }

    @cached_property
    def flows(self) -> Mapping[str, Flow]:
        """The writers of each repartition topic."""
        return flows_of(self.stages.subs, self.tasks)

    @cached_property
    def told_idle(self) -> bool:
        """Whether it changes results that an input has had nothing for long."""
        return any(flow.is_shared for flow in self.flows.values())

    @cached_property
    def meets_by_time(self) -> bool:
        """Whether a task takes records of several topics by their times."""
        return any(len({tp.topic for tp in partitions}) > 1 for partitions in self.inputs.values())

    def level(self, task: TaskId) -> int:
        """The level at which a task runs."""
        return self.stages.levels[task.sub_topology]

    def offset_reset(self, tp: TopicPartition) -> str:
        """Where its source begins: earliest or latest."""
        for sub in self.stages.subs:
            if (source := sub.source_of(tp.topic)) is not None:
                return source.offset_reset
        raise AssertionError(f"{tp} is read by no source")


# Descriptions


def describe_stages(stages: Stages, form: str = "text") -> str:
    """Where each sub-topology and operator runs, as text or as JSON."""
    if form == "json":
        return json.dumps(_document(stages), indent=2) + "\n"
    lines = [f"Topology: {stages.plan.application_id}, on Spark"]
    for sub in stages.subs:
        lines.append(f"  Sub-topology: {sub.id}, {place(stages, sub)}")
        for node in sub.nodes:
            what = detail(node)
            lines.append(f"    {kind(node)}: {node.name}" + (f" ({what})" if what else ""))
            if (way := way_of(stages, node)) is not None:
                lines.append(f"      {way}")
        lines += [f"    store: {store.name} (in Spark's state)" for store in sub.stores]
    for table in stages.plan.global_tables:
        lines.append(f"  Global table: {table.name} (topic {table.topics[0]}), {COPIES}")
    return "\n".join(lines) + "\n"


def place(stages: Stages, sub: SubTopology) -> str:
    """Where a sub-topology runs, in words."""
    level = stages.levels[sub.id]
    if level == IN_READER:
        return "in the reader of the source"
    return f"level {level}: a task is a key of transformWithState"


def way_of(stages: Stages, node: p.Node) -> str | None:
    """How records come to a source or leave a sink, where that is not simply a topic."""
    match node:
        case p.Source():
            topics: Sequence[object] = node.topics
        case p.Sink():
            topics = [node.topic]
        case _:
            return None
    shuffled = stages.shuffled
    if any(topic in shuffled for topic in topics if isinstance(topic, str)):
        return "a shuffle: this topic holds no records"
    if any(topic in stages.by_log for topic in topics):
        return "by the log: read in the next micro-batch, as it leads back"
    return "the sink's transaction writes it" if isinstance(node, p.Sink) else None


COPIES: Final = "a copy in each Python process"


def _document(stages: Stages) -> dict[str, Any]:
    return {
        "application_id": stages.plan.application_id,
        "engine": "spark",
        "levels": stages.depth,
        "sub_topologies": [
            {
                "id": sub.id,
                "level": stages.levels[sub.id],
                "runs": place(stages, sub),
                "nodes": [
                    {"name": n.name, "operator": kind(n), "way": way_of(stages, n)}
                    for n in sub.nodes
                ],
                "stores": [store.name for store in sub.stores],
            }
            for sub in stages.subs
        ],
        "global_tables": [
            {"name": table.name, "topic": table.topics[0], "runs": COPIES}
            for table in stages.plan.global_tables
        ],
    }
