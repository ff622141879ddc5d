"""Aggregates whose partials can be folded apart and combined later: before a repartition.    [P]

    one task       a: 3 1        partial of a: n=2, total=4 ──┐
    another task   a: 2          partial of a: n=1, total=2 ──┴── n=3, total=6

A sum of floats depends on the order of its records. Where several tasks write a topic that order
is nobody's promise, and only there anything is folded ahead.

Owns   the choice of aggregates, and how two partials become one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Aggregate, Count, Max, Mean, Min, Partials, Sum

Combine = Callable[[Partials, Iterable[Any], Iterable[Any]], None]  # keys and their parts


def is_combinable(node: p.Aggregate) -> bool:
    """Whether the table can take in partials that others have folded.

    Windows must not overlap, so that a record is in one of them; no row may ever be deleted.
    """
    deletes = node.fields is None and node.aggregates[0].may_be_none
    return (
        (node.window is None or node.window.is_tumbling)
        and not node.subtracts
        and not deletes
        and all(type(aggregate) in COMBINED for aggregate in node.aggregates)
    )


def shape_of(node: p.Aggregate) -> str:
    """Equal for tables that may read each other's partials, as long as arguments stay."""
    names = node.fields or ("",)
    words = (f"{n}={part.word}" for n, part in zip(names, node.aggregates, strict=True))
    window = "" if node.window is None else f" by {node.window.key_size_ms} ms"
    return f"{node.name}: {', '.join(words)}{window}"


def _add(partials: Partials, keys: Iterable[Any], parts: Iterable[Any]) -> None:
    get = partials.get
    for key, part in zip(keys, parts, strict=True):
        if part is not None:
            partials[key] = get(key, 0) + part


def _add_pairs(partials: Partials, keys: Iterable[Any], parts: Iterable[Any]) -> None:
    get = partials.get
    for key, part in zip(keys, parts, strict=True):
        if part is not None:
            total, n = get(key, (0, 0))
            partials[key] = (total + part[0], n + part[1])


def _keep_least(partials: Partials, keys: Iterable[Any], parts: Iterable[Any]) -> None:
    get = partials.get
    for key, part in zip(keys, parts, strict=True):
        if part is not None and ((best := get(key)) is None or part < best):
            partials[key] = part


def _keep_greatest(partials: Partials, keys: Iterable[Any], parts: Iterable[Any]) -> None:
    get = partials.get
    for key, part in zip(keys, parts, strict=True):
        if part is not None and ((best := get(key)) is None or part > best):
            partials[key] = part


COMBINED: Final[dict[type[Aggregate], Combine]] = {
    Count: _add,
    Sum: _add,
    Mean: _add_pairs,
    Min: _keep_least,
    Max: _keep_greatest,
}
