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
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Count, First, Last, Max, Mean, Min, Sum

MAKE_NEW: Final = frozenset({Count, First, Last, Max, Mean, Min, Sum})  # and change no row in place


class History:
    """The rows of one table that the updates of a run have replaced."""

    def __init__(self) -> None:
        self._orders: defaultdict[bytes, list[int]] = defaultdict(list)  # ascending for each key
        self._olds: defaultdict[bytes, list[Any]] = defaultdict(list)

    def note(self, keys: Sequence[bytes], orders: Sequence[int], olds: Sequence[Any]) -> None:
        """Updates came, with these places in the order of their run."""
        known_orders, known_olds = self._orders, self._olds
        for key, order, old in zip(keys, orders, olds, strict=True):
            known_orders[key].append(order)
            known_olds[key].append(old)

    def rows(self, keys: Sequence[bytes], orders: Sequence[int], rows: Sequence[Any]) -> list[Any]:
        """The rows of `keys` at places in the order; `rows` are those that the store has."""
        found, known = list(rows), self._orders
        for index, (key, order) in enumerate(zip(keys, orders, strict=True)):
            if (changes := known.get(key)) is not None:
                at = bisect_right(changes, order)
                if at < len(changes):
                    found[index] = self._olds[key][at]
        return found

    def __bool__(self) -> bool:
        return bool(self._orders)

    def clear(self) -> None:
        """The run is over."""
        self._orders.clear()
        self._olds.clear()


def _is_above(table: p.Node, node: p.Node) -> bool:
    return node is table or any(_is_above(table, parent) for parent in node.parents)


def looked_into(node: p.Node) -> p.Node | None:
    """The table whose rows a join of a stream looks up, where it can tell what they were; None for
    other tables, and for other nodes. One from whose updates the stream is made cannot: its rows
    change before the ways part, where records of a run have no order yet."""
    if not isinstance(node, p.StreamTableJoin) or node.grace_ms is not None:
        return None
    stream, table = node.parents
    while isinstance(table, p.TableFilter | p.TableMap) and not table.named:
        table = table.parent
    if _is_above(table, stream):
        return None
    if isinstance(table, p.TableSource | p.ToTable):
        return None if table.history_ms is not None else table
    if isinstance(table, p.Aggregate):
        is_plain = table.window is None and not table.subtracts
        is_plain = is_plain and not isinstance(table.parent, p.Cogroup)
        return table if is_plain and {*map(type, table.aggregates)} <= MAKE_NEW else None
    return table if isinstance(table, p.TableFilter | p.TableMap) else None
