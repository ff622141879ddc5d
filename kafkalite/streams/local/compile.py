"""From a plan to what a worker runs: sub-topologies, and the operators of one task.       [P]

`compile_topology` rewrites a plan and checks that this engine can run every node of it, before
anything runs. The operators themselves are made per task, by the compilers that each module of
operators registers for its nodes.

Fails  with UnsupportedOnBackend for a node this engine cannot run, with TopologyError for a plan
       that makes no sense.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kafkalite.errors import UnsupportedOnBackend
from kafkalite.streams import plan as p
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.operators import (
    aggregates,
    as_of,
    asynchronous,
    expiry,
    foreign_joins,
    global_joins,
    patterns,
    processors,
    sinks,
    stateless,
    stream_joins,
    table_joins,
    tables,
)
from kafkalite.streams.local.runtime import Runtime, compile_node
from kafkalite.streams.local.watermarks import Flow
from kafkalite.streams.rewrites import InternalTopic, SubTopology, sub_topologies
from kafkalite.streams.stores import Store

__all__ = [
    "OPERATORS",
    "InternalTopic",
    "Runtime",
    "Store",
    "SubTopology",
    "compile_topology",
    "flows_of",
]

# Imported for what they register.
OPERATORS: Final = (
    stateless, asynchronous, sinks, tables, aggregates, stream_joins, as_of, processors,
    global_joins, table_joins, foreign_joins, patterns, expiry,
)  # fmt: skip


def compile_topology(plan: p.Plan) -> tuple[SubTopology, ...]:
    """The sub-topologies of `plan`, each to be run as one task per partition."""
    result = sub_topologies(plan)
    for sub in result:
        for node in sub.nodes:
            if compile_node.dispatch(type(node)) is compile_node.dispatch(object):
                raise UnsupportedOnBackend(f"{node.name!r}: {type(node).__name__} cannot run here")
    return result


def flows_of(sub_topologies: Iterable[SubTopology], tasks: Collection[TaskId]) -> dict[str, Flow]:
    """The writers of each repartition topic, and how late its readers take records."""
    subs = tuple(sub_topologies)
    writers = {
        topic: tuple(task for task in sorted(tasks) if task.sub_topology == sub.id)
        for sub in subs
        for topic in sub.repartition_sinks
    }
    graces: dict[str, int | None] = {
        topic.name: _least_grace(sub) for sub in subs for topic in sub.repartition_sources
    }
    return {topic: Flow(tasks, graces.get(topic)) for topic, tasks in writers.items()}


def _least_grace(sub: SubTopology) -> int | None:
    """The least grace in ms among the windows of a sub-topology; None where it has none.

    A join finds all partners of a record that is no later than its window and grace.
    """
    windows = [node.window for node in sub.nodes if isinstance(node, p.Aggregate)]
    graces = [window.grace_ms for window in windows if window is not None]
    graces += [node.grace_ms for node in sub.nodes if isinstance(node, p.Pattern)]
    graces += [node.retention_ms for node in sub.nodes if isinstance(node, p.Expire)]
    joins = [node for node in sub.nodes if isinstance(node, p.StreamJoin)]
    graces += [node.grace_ms for node in sub.nodes if isinstance(node, p.AsOfJoin)]
    graces += [max(0, min(node.before_ms, node.after_ms) + node.grace_ms) for node in joins]
    return min(graces, default=None)
