"""Random operations on the tree, beside a model of a few lines, for every implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from coordinations import BACKENDS, SHARED, Backend, Clients, backend_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkalite.core.cluster.coordination import (
    Check,
    Coordination,
    Create,
    Delete,
    Entry,
    Operation,
    Set,
)
from kafkalite.errors import CoordinationError, NodeExists, NoSuchNode, VersionMismatch

PATHS = ("/a", "/a/b", "/a/c", "/a/b/d", "/e", "/e/f")


class Node(NamedTuple):
    """A path's value, version, and the client that owns it; None for one that stays."""

    value: bytes
    version: int
    owner: int | None


class Transact(NamedTuple):
    client: int
    operations: list[Operation]


class Close(NamedTuple):
    client: int


def after(nodes: dict[str, Node], step: Transact) -> dict[str, Node] | type[CoordinationError]:
    """The tree after a transaction, or the error of its first operation that fails."""
    nodes = dict(nodes)
    for operation in step.operations:
        path = operation.path
        parent = path.rpartition("/")[0]
        if isinstance(operation, Create):
            if parent and parent not in nodes:
                return NoSuchNode
            if path in nodes:
                return NodeExists
            if parent and nodes[parent].owner is not None:
                return CoordinationError
            owner = step.client if operation.is_ephemeral else None
            nodes[path] = Node(operation.value, 0, owner)
            continue
        if path not in nodes:
            return NoSuchNode
        if operation.version not in (-1, nodes[path].version):
            return VersionMismatch
        if isinstance(operation, Set):
            before = nodes[path]
            nodes[path] = Node(operation.value, before.version + 1, before.owner)
        elif isinstance(operation, Delete):
            if any(other.startswith(f"{path}/") for other in nodes):
                return NodeExists
            del nodes[path]
    return nodes


async def whole(client: Coordination) -> dict[str, Entry]:
    """The tree as its children and values are read."""
    found: dict[str, Entry] = {}
    level = [f"/{name}" for name in await client.children("/")]
    while level:
        entries = await client.get_many(level)
        found |= {path: entry for path, entry in zip(level, entries, strict=True) if entry}
        below = await client.children_many(level)
        level = [
            f"{path}/{name}"
            for path, names in zip(level, below, strict=True)
            for name in names or ()
        ]
    return found


paths = st.sampled_from(PATHS)
values = st.binary(max_size=2)
versions = st.integers(-1, 2)
operations = st.one_of(
    st.builds(Create, paths, values, st.booleans()),
    st.builds(Create, paths, values, st.just(False)),
    st.builds(Set, paths, values, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)


def scripts(clients: int) -> st.SearchStrategy[list[Transact | Close]]:
    who = st.integers(0, clients - 1)
    transact = st.builds(Transact, who, st.lists(operations, min_size=1, max_size=4))
    step = transact if clients == 1 else st.one_of(transact, transact, st.builds(Close, who))
    return st.lists(step, max_size=15)


def tell(backend: Backend, script: Sequence[Transact | Close], count: int) -> None:
    """Takes each step in the tree and in the model, and compares answers and trees."""

    async def story(clients: Clients) -> None:
        opened = [await clients.open() for _ in range(count)]
        nodes: dict[str, Node] = {}
        for step in script:
            if isinstance(step, Close):
                await opened[step.client].close()
                opened[step.client] = await clients.open()
                nodes = {path: n for path, n in nodes.items() if n.owner != step.client}
            else:
                expected = after(nodes, step)
                if isinstance(expected, dict):
                    await opened[step.client].transact(step.operations)
                    nodes = expected
                else:
                    with pytest.raises(expected) as caught:
                        await opened[step.client].transact(step.operations)
                    assert type(caught.value) is expected
            model = {p: Entry(n.value, n.version, n.owner is not None) for p, n in nodes.items()}
            for client in opened:
                assert await whole(client) == model, step

    backend.run(story)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param, request)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param, request)


same_backend = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@same_backend
@given(script=scripts(1))
def test_a_tree_is_as_its_model(backend: Backend, script: list[Transact | Close]) -> None:
    tell(backend, script, 1)


@same_backend
@given(script=scripts(2))
def test_a_shared_tree_is_as_its_model(shared: Backend, script: list[Transact | Close]) -> None:
    tell(shared, script, 2)
