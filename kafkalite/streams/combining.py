"""Aggregates whose partials can be folded apart and combined later: before a repartition.    [P]

    one task       a: 3 1        partial of a: n=2, total=4 ──┐
    another task   a: 2          partial of a: n=1, total=2 ──┴── n=3, total=6

A sum of floats depends on the order of its records. Where several tasks write a topic that order
is nobody's promise, and only there anything is folded ahead.

Owns   the choice of aggregates. How two partials become one they say themselves (`merge`).
"""

from __future__ import annotations

from typing import Final

from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Count, Max, Mean, Min, Sum

COMBINABLE: Final = frozenset({Count, Sum, Mean, Min, Max})


def is_combinable(node: p.Aggregate) -> bool:
    """Whether the table can take in partials that others have folded.

    Windows must not overlap, so that a record is in one of them; no row may ever be deleted.
    """
    deletes = node.fields is None and node.aggregates[0].may_be_none
    return (
        (node.window is None or node.window.is_tumbling)
        and not node.subtracts
        and not deletes
        and all(type(aggregate) in COMBINABLE for aggregate in node.aggregates)
    )


def shape_of(node: p.Aggregate) -> str:
    """Equal for tables that may read each other's partials, as long as arguments stay."""
    names = node.fields or ("",)
    words = (f"{n}={part.word}" for n, part in zip(names, node.aggregates, strict=True))
    window = "" if node.window is None else f" by {node.window.key_size_ms} ms"
    return f"{node.name}: {', '.join(words)}{window}"
