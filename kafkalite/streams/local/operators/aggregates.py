"""Aggregates: which operator folds which groups, and which holds back the rows.               [P]

Owns   the choice alone.
"""

from __future__ import annotations

from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Push
from kafkalite.streams.local.operators.cogroup import Cogroup
from kafkalite.streams.local.operators.grouping import grouping
from kafkalite.streams.local.operators.keys import store_key_needs
from kafkalite.streams.local.operators.sessions import SessionAggregate
from kafkalite.streams.local.operators.sliding import SlidingAggregate
from kafkalite.streams.local.operators.suppress import FinalBuffer, LimitBuffer
from kafkalite.streams.local.operators.unlimited import UnlimitedAggregate
from kafkalite.streams.local.operators.windowed import WindowedAggregate
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.spans.native import is_packed
from kafkalite.streams.local.spans.operator import SpanOperator
from kafkalite.streams.local.spans.packed import PackedAggregate
from kafkalite.streams.stores import rows_read
from kafkalite.streams.windows import SessionWindow, SlidingWindow, UnlimitedWindow


@compile_node.register
def _(node: p.Aggregate, runtime: Runtime) -> Push:
    if node.window is None:
        return grouping(node, runtime)
    operator: WindowedAggregate | SpanOperator
    if is_packed(node, runtime):
        operator = PackedAggregate(node, runtime)
    elif isinstance(node.window, SessionWindow):
        operator = SessionAggregate(node, runtime)
    elif isinstance(node.window, SlidingWindow):
        operator = SlidingAggregate(node, runtime)
    elif isinstance(node.window, UnlimitedWindow):
        operator = UnlimitedAggregate(node, runtime)
    else:
        operator = WindowedAggregate(node, runtime)
    runtime.stateful[node] = operator
    return operator.process


@node_needs.register
def _(node: p.Suppress, below: Needs, runtime: Runtime) -> Needs:
    children = {each: runtime.children(each) for each in runtime.sub_topology.nodes}
    old = below.old or rows_read(node, children)  # which is there until the update leaves
    return Needs(value=True, old=old) | store_key_needs(node, runtime)


@compile_node.register
def _(node: p.Suppress, runtime: Runtime) -> Push:
    operator = LimitBuffer(node, runtime)
    runtime.stateful[node] = operator
    return operator.process


@node_needs.register
def _(node: p.FinalRows, below: Needs, runtime: Runtime) -> Needs:
    return Needs(key=True, value=True) | store_key_needs(node, runtime)


@compile_node.register
def _(node: p.FinalRows, runtime: Runtime) -> Push:
    operator = FinalBuffer(node, runtime)
    runtime.stateful[node] = operator
    return operator.process


@node_needs.register
def _(node: p.Cogroup, below: Needs, runtime: Runtime) -> Needs:
    return Needs(below.key, below.raw_key, value=True)


@compile_node.register
def _(node: p.Cogroup, runtime: Runtime) -> tuple[Push, ...]:
    operator = Cogroup(node, runtime)
    runtime.stateful[node] = operator
    return runtime.meeting([operator.input(number) for number in range(len(node.parents))])
