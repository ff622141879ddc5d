"""Patterns of the records of a key, by going back: from each record that may begin one, on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Row = tuple[Any, Any, int]  # key, value, timestamp
Condition = Callable[[Any], bool]


def in_time(rows: Sequence[Row], grace: int) -> tuple[list[Row], int]:
    """The rows that are not late, in the order of time, and how many are."""
    newest, kept, late = -1, [], 0
    for row in rows:
        newest = max(newest, row[2])
        if row[2] < newest - grace:
            late += 1
        else:
            kept.append(row)
    return sorted((r for r in kept if r[2] <= newest - grace), key=lambda r: r[2]), late


def matches(
    rows: Sequence[Row], steps: Sequence[Condition], without: Condition, within: int
) -> list[Row]:
    """The sequences among rows of one key; the next one begins behind the last."""
    found: list[Row] = []
    first = 0
    while first < len(rows):
        last = _whole(rows, first, steps, without, within)
        if last is None:
            first += 1
        else:
            key, _, time = rows[last[-1]]
            found.append((key, [rows[index][1] for index in last], time))
            first = last[-1] + 1
    return found


def _whole(
    rows: Sequence[Row], first: int, steps: Sequence[Condition], without: Condition, within: int
) -> list[int] | None:
    """The records of the sequence that begins with `first`, if it becomes whole."""
    if not steps[0](rows[first][1]):
        return None
    taken = [first]
    for index in range(first + 1, len(rows)):
        _, value, time = rows[index]
        if time - rows[first][2] > within:
            return None
        if steps[len(taken)](value):
            taken.append(index)
            if len(taken) == len(steps):
                return taken
        elif without(value):
            return None
    return None
