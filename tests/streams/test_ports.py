"""Ports: a node with several parents has an input for each, and reads the output it names."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kafkalite.core.types import Columns
from kafkalite.streams import plan as p
from kafkalite.streams import string
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.operators.changed import with_values
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.task import Task


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Told(p.Node):
    """Says of each record by which input it came."""


@compile_node.register
def _(node: Told, runtime: Runtime) -> Push | tuple[Push, ...]:
    forward = runtime.forward(node)

    def input_of(number: int) -> Push:
        def run(batch: Batch) -> None:
            assert batch.values is not None
            forward(with_values(batch, [f"{number}:{value.decode()}" for value in batch.values]))

        return run

    return tuple(input_of(number) for number, _ in enumerate(node.parents))


@node_needs.register
def _(node: Told, below: Needs, runtime: Runtime) -> Needs | tuple[Needs, ...]:
    return tuple(Needs(value=True, key=below.key, raw_key=below.raw_key) for _ in node.parents)


def outputs_of(plan: p.Plan) -> list[bytes]:
    (sub,) = compile_topology(plan)
    task = Task(sub, 0)
    task.enqueue("in", Columns([b"k", b"k"], [b"a", b"b"], [1, 2], range(2)))
    task.process(10, 0)
    return [value for output in task.drain() for value in output.columns.values]


@pytest.mark.parametrize("ways", [1, 2])
def test_a_node_hears_from_which_parent_a_record_came(ways: int) -> None:
    """Of two parents, or twice of one: a stream and itself."""
    app = StreamsBuilder("app")
    read = app.stream("in")
    (read if ways == 1 else read.peek(lambda _: None)).merge(read.peek(id)).to(
        "out", value=string()
    )
    plan = app.plan()
    (merge,) = (node for node in plan.nodes if isinstance(node, p.Merge))
    parents = (merge.parents[0],) * 2 if ways == 1 else merge.parents
    told = Told(name="told", parents=parents)
    nodes = [told if node is merge else node for node in plan.nodes]
    nodes = [replace(node, parents=(told,)) if node.parents == (merge,) else node for node in nodes]
    assert outputs_of(replace(plan, nodes=tuple(nodes))) == [b"0:a", b"0:b", b"1:a", b"1:b"]
