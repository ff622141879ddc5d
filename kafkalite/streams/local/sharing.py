"""Values that a store holds and a user's function gets, too: the function gets a copy.      [P]

A value is one object on its way through a sub-topology, and may be a part of what operators make
of it. If a store holds that object, a function that changes it in place would change the row, too,
and nobody would see it: the row's changelog, and the old row that goes to groups, would be wrong.

    table ──┬── map(f)          f gets copies: the table's store holds the rows
            └── filter(f)       looks at the rows themselves, and hands them on

Only functions that make values get copies: `map`, `flat_map`, `map_pairs`, `flat_map_pairs`,
`map_batch`, `map_async`, joins, processors. Where no store holds what they get, and for
expressions, nothing is copied.

Owns   the rule of who gets copies. Copied are dicts, lists and sets, and what is in them; a row of
       Avro cannot be changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Count, Mean, Sum
from kafkalite.streams.functions import CallableFunction, Function

MAKERS: Final = (
    p.Map, p.FlatMap, p.MapPairs, p.MapBatch, p.TableMap, p.Process,
    p.StreamTableJoin, p.TableJoin, p.ForeignJoin, p.GlobalJoin,
    p.MapAsync,
)  # fmt: skip
NUMBERS: Final = (Count, Sum, Mean)  # aggregates that hold none of their values

CHANGEABLE: Final = frozenset({dict, list, set})
BOTH: Final = (False, True)

Place = tuple[p.Node, bool]  # the values that come into a node, or with True those that leave it


def shared_inputs(nodes: Iterable[p.Node], owners: Collection[p.Node]) -> frozenset[p.Node]:
    """The nodes that make values, and whose input a store may hold; `owners` of a store."""
    listed = list(nodes)
    held, edges = _ways(listed, owners)
    makers = (node for node in listed if isinstance(node, MAKERS))
    return frozenset(node for node in makers if not held.isdisjoint(_elsewhere(node, edges)))


def shared_streams(nodes: Iterable[p.Node], owners: Collection[p.Node]) -> frozenset[p.Node]:
    """The joins with tables whose stream's values a store may hold, too."""
    listed = list(nodes)
    held, edges = _ways(listed, owners)
    joins = (node for node in listed if isinstance(node, p.StreamTableJoin))
    return frozenset(
        node for node in joins
        if not held.isdisjoint(_reached((node.parents[0], True), edges, {(node, False)}))
    )  # fmt: skip


def _ways(
    listed: Collection[p.Node], owners: Collection[p.Node]
) -> tuple[set[Place], dict[Place, set[Place]]]:
    """The places whose values a store holds, and from each place to those beside it."""
    held = {(owner, leaves) for owner in owners for leaves in BOTH if _holds(owner)}
    held |= {(node, True) for node in listed if isinstance(node, p.GlobalJoin)}  # rows of the table
    edges: dict[Place, set[Place]] = {(node, leaves): set() for node in listed for leaves in BOTH}
    for node in listed:
        if node.parents and _holds(node):  # what leaves a node may contain what came
            edges[node, True].add((node, False))
            edges[node, False].add((node, True))
        for parent in node.parents:
            edges[parent, True].add((node, False))
            edges[node, False].add((parent, True))
    return held, edges


def _holds(node: p.Node) -> bool:
    """Whether a node may hand on what it got, or keep it if it keeps anything."""
    return not isinstance(node, p.Aggregate) or not all(
        isinstance(part, NUMBERS) for part in node.aggregates
    )


def _elsewhere(node: p.Node, edges: Mapping[Place, Iterable[Place]]) -> set[Place]:
    """All that the values which come into `node` come to by other ways than through it."""
    return _reached((node, False), edges, {(node, True)}) - {(node, False)}


def _reached(start: Place, edges: Mapping[Place, Iterable[Place]], apart: set[Place]) -> set[Place]:
    """All places that ways lead to, but for those `apart`."""
    found, todo = {start}, [start]
    while todo:
        new = set(edges[todo.pop()]) - found - apart
        found |= new
        todo += new
    return found


def takes_apart(function: Function) -> bool:
    """Whether data tells that `function` only looks: an expression, or the name of a field."""
    return not isinstance(function, CallableFunction) or function.field is not None


def copies(values: Sequence[Any]) -> list[Any]:
    """Values that may be changed."""
    return list(map(copied, values))


def copied(value: Any) -> Any:
    """A value that may be changed."""
    kind = type(value)
    if kind is dict:
        made = value.copy()
        for key, entry in value.items():
            if type(entry) in CHANGEABLE:
                made[key] = copied(entry)
        return made
    if kind is list:
        return [copied(entry) for entry in value]
    return set(value) if kind is set else value
