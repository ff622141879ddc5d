"""From a plan to what a worker runs: sub-topologies, and the operators of one task.       [P]

`compile_topology` rewrites a plan and checks that this engine can run every node of it, before
anything runs. The operators themselves are made per task, by the compilers that each module of
operators registers for its nodes.

Fails  with UnsupportedOnBackend for a node this engine cannot run, with TopologyError for a plan
       that makes no sense.
"""

from __future__ import annotations

from typing import Final

from kafkalite.errors import TopologyError, UnsupportedOnBackend
from kafkalite.streams import plan as p
from kafkalite.streams.local.operators import sinks, stateless, tables, windowed
from kafkalite.streams.local.runtime import Runtime, compile_node
from kafkalite.streams.rewrites import InternalTopic, Store, SubTopology, sub_topologies

__all__ = [
    "OPERATORS",
    "InternalTopic",
    "Runtime",
    "Store",
    "SubTopology",
    "compile_topology",
]

OPERATORS: Final = (stateless, sinks, tables, windowed)  # imported for what they register
WINDOWED_MAX: Final = 140  # aggregates of a sub-topology whose stream times fit a commit's metadata


def compile_topology(plan: p.Plan) -> tuple[SubTopology, ...]:
    """The sub-topologies of `plan`, each to be run as one task per partition."""
    result = sub_topologies(plan)
    for sub in result:
        for node in sub.nodes:
            if compile_node.dispatch(type(node)) is compile_node.dispatch(object):
                raise UnsupportedOnBackend(f"{node.name!r}: {type(node).__name__} cannot run here")
        windows = [n for n in sub.nodes if isinstance(n, p.Aggregate) and n.window is not None]
        if len(windows) > WINDOWED_MAX:
            raise TopologyError(
                f"sub-topology {sub.id} has {len(windows)} windowed aggregates, at most "
                f"{WINDOWED_MAX} are possible: put a repartition() between them"
            )
    return result
