"""Patterns of the records of a key, by going back: from each record that may begin one, on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, Any, int]  # key, value, timestamp
Condition = Callable[[Any, list[Any]], bool]  # of the value, and the values matched so far


@dataclass
class Step:
    """A condition, and how many records it is for; a plain one is for one."""

    condition: Condition
    least: int = 1
    most: int = 1
    repeats: bool = False
    name: str = ""


def in_time(rows: Sequence[Row], grace: int) -> tuple[list[Row], list[Row]]:
    """The rows that are not late, in the order of time, and those that are."""
    newest = -1
    kept: list[Row] = []
    late: list[Row] = []
    for row in rows:
        newest = max(newest, row[2])
        if row[2] < newest - grace:
            late.append(row)
        else:
            kept.append(row)
    return sorted((r for r in kept if r[2] <= newest - grace), key=lambda r: r[2]), late


def matches(
    rows: Sequence[Row],
    steps: Sequence[Step],
    without: Condition,
    within: int,
    until: int = -1,
) -> tuple[list[Row], list[Row]]:
    """The sequences among rows of one key, and those that were not completed in time, which all
    keys' records have brought to `until`.

    A sequence is a value for each step, a list where the step repeats. The next one begins behind
    the last. Unfinished ones have the time at which they were over.
    """
    found: list[Row] = []
    unfinished: list[Row] = []
    first = 0
    while first < len(rows):
        # The one that becomes whole first wins, of several the one that began first.
        ends = [end for start in range(first, len(rows))
                if (end := _followed(rows, start, steps, without, within, until))]  # fmt: skip
        whole = min((end for end in ends if end[0] == "whole"), key=lambda e: e[1], default=None)
        last = len(rows) if whole is None else whole[1]
        unfinished += [
            (rows[0][0], taken, time)
            for kind, at, taken, time in ends
            if kind == "over" and at <= last
        ]
        if whole is None:
            break
        found.append((rows[last][0], whole[2], rows[last][2]))
        first = last + 1
    return found, unfinished


def _followed(
    rows: Sequence[Row],
    first: int,
    steps: Sequence[Step],
    without: Condition,
    within: int,
    until: int,
) -> tuple[str, int, list[Any], int] | None:
    """How a sequence that begins with `first` ends: whole or over; None if neither."""
    begin = rows[first][2]
    if not steps[0].condition(rows[first][1], []):
        return None
    taken = [[rows[first][1]]]

    def shown() -> list[Any]:
        return [t if s.repeats else t[0] for t, s in zip(taken, steps, strict=False)]

    def whole() -> bool:
        return len(taken) == len(steps) and len(taken[-1]) >= steps[-1].least

    for index in range(first + 1, len(rows)):
        _, value, time = rows[index]
        if time - begin > within:
            return "over", index, shown(), begin + within
        so_far = shown()
        # Where may it go? Farther steps first, the one it is in last.
        places = []
        if len(taken[-1]) >= steps[len(taken) - 1].least:
            for step in range(len(taken), len(steps)):
                places.insert(0, step)
                if steps[step].least > 0:
                    break
        if len(taken[-1]) < steps[len(taken) - 1].most:
            places.append(len(taken) - 1)
        place = next((s for s in places if steps[s].condition(value, so_far)), None)
        if place is not None:
            while len(taken) <= place:
                taken.append([])
            taken[place].append(value)
            if whole():
                return "whole", index, shown(), time
        elif without(value, so_far):
            return None
    return ("over", len(rows), shown(), begin + within) if begin + within < until else None
