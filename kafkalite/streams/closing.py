"""Which windows close the rows of a table.                                                   [P]

Owns   nothing: it looks at a plan.
"""

from __future__ import annotations

from kafkalite.streams import plan as p


def windows_above(table: p.Node) -> list[p.Aggregate]:
    """The windowed aggregates that make a table; none where it has other parts."""
    if isinstance(table, p.Aggregate):
        return [] if table.window is None else [table]
    if not isinstance(table, p.Table):
        return []
    found = [windows_above(parent) for parent in table.parents]
    return [each for some in found for each in some] if all(found) else []
