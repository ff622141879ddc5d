"""What the rows of a table were in the course of a run.                                     [P]

The records of a stream and the updates of a table go through a task together, as many of each as a
stretch of time has. The table takes all of its updates first. A record that is joined with it finds
the row as it was at its own place in the order of both:

    updates     a:x at 1          a:y at 4
    records              a at 2               a at 5
    finds                x: the row that the update at 4 replaced; y: as the store has it

Owns   the rows that a run has replaced, until it is over.
Source Kafka Streams takes records one by one, so its joins see the store as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kafkalite.streams import plan as p


@dataclass(slots=True)
class _Changes:
    """Of one key: the places of its updates, ascending, and the rows that they replaced."""

    orders: list[int] = field(default_factory=list)
    olds: list[Any] = field(default_factory=list)


class History:
    """The rows of one table that the updates of a run have replaced."""

    def __init__(self) -> None:
        self._changes: dict[bytes, _Changes] = {}

    def note(self, keys: Sequence[bytes], orders: Sequence[int], olds: Sequence[Any]) -> None:
        """Updates came, with these places in the order of their run."""
        changes = self._changes
        for key, order, old in zip(keys, orders, olds, strict=True):
            of_key = changes.get(key) or changes.setdefault(key, _Changes())
            of_key.orders.append(order)
            of_key.olds.append(old)

    def rows(self, keys: Sequence[bytes], orders: Sequence[int], rows: Sequence[Any]) -> list[Any]:
        """The rows of `keys` at places in the order; `rows` are those that the store has."""
        found, changes = list(rows), self._changes
        for index, key in enumerate(keys):
            if (of_key := changes.get(key)) is not None:
                at = bisect_right(of_key.orders, orders[index])
                if at < len(of_key.olds):
                    found[index] = of_key.olds[at]
        return found

    def __bool__(self) -> bool:
        return bool(self._changes)

    def clear(self) -> None:
        """The run is over."""
        self._changes.clear()


def looked_into(node: p.Node) -> p.Node | None:
    """The table whose rows a join of a stream looks up, where it can tell what they were; None for
    other tables, and for other nodes."""
    if not isinstance(node, p.StreamTableJoin) or node.grace_ms is not None:
        return None
    table = node.parents[1]
    while isinstance(table, p.TableFilter | p.TableMap) and not table.named:
        table = table.parent
    if isinstance(table, p.TableSource | p.ToTable):
        return None if table.history_ms is not None else table
    return table if isinstance(table, p.TableFilter | p.TableMap) else None
