"""Aggregates: which operator folds which groups.                                             [P]

Owns   the choice alone.
"""

from __future__ import annotations

from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Push
from kafkalite.streams.local.operators.grouping import grouping
from kafkalite.streams.local.operators.sessions import SessionAggregate
from kafkalite.streams.local.operators.windowed import WindowedAggregate
from kafkalite.streams.local.runtime import Runtime, compile_node
from kafkalite.streams.windows import SessionWindow


@compile_node.register
def _(node: p.Aggregate, runtime: Runtime) -> Push:
    if node.window is None:
        return grouping(node, runtime)
    operator: WindowedAggregate | SessionAggregate
    if isinstance(node.window, SessionWindow):
        operator = SessionAggregate(node, runtime)
    else:
        operator = WindowedAggregate(node, runtime)
    runtime.stateful[node] = operator
    return operator.process
