"""How alike outputs are, when updates of tables merge until the commit.

exact      the same records in the same order
thinned    fewer updates of each key, of which the last is the same
state      the last update of each key has the same value
groups     the same, but for groups that are empty
loose      nothing is known: what is made of the updates depends on how many there are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reference import aggregate_steps as a
from reference import join_steps as j
from reference import steps as s

Alike = Literal["exact", "thinned", "state", "groups", "loose"]
ORDER = ("exact", "thinned", "state", "groups", "loose")


@dataclass(frozen=True)
class Sameness:
    """Of what a step puts out, and of the rows that others find there."""

    updates: Alike
    rows_are_exact: bool = True


EXACT, LOOSE = Sameness("exact"), Sameness("loose", False)


def sameness(steps: Sequence[s.Step]) -> list[Sameness]:
    """Of each step."""
    found: list[Sameness] = []
    has_caches = any(isinstance(each, CACHED) for each in steps)
    for step, joins_itself in zip(steps, joining_themselves(steps), strict=True):
        if joins_itself:
            found.append(LOOSE)
        elif isinstance(step, s.Late | s.Final):
            found.append(_of_windows(step, steps, found))
        else:
            found.append(_of(step, [found[place] for place in step.parents], has_caches))
    return found


def joining_themselves(steps: Sequence[s.Step]) -> list[bool]:
    """Whether a step joins tables that come from one topic. What it sends depends on how far the
    store of the other side is: a row that is gone on both leaves its result behind, as in Kafka
    Streams, unless updates merge."""
    above: list[set[int]] = []
    found = []
    for place, step in enumerate(steps):
        above.append({place}.union(*(above[parent] for parent in step.parents)))
        sides = [above[parent] for parent in step.parents]
        found.append(isinstance(step, j.JoinedTables) and bool(sides[0] & sides[1]))
    return found


CACHED = (a.Aggregated, a.Regrouped, a.Cogrouped, j.JoinedTables)


def _of(step: s.Step, above: list[Sameness], has_caches: bool) -> Sameness:
    is_exact = all(each.updates == "exact" for each in above)
    worst = max((each.updates for each in above), key=ORDER.index, default="exact")
    match step:
        case j.LookedUp() | s.LookedInto():
            return EXACT if above[0].updates == "exact" and above[1].rows_are_exact else LOOSE
        case s.Processed() if step.processor == "counts" and has_caches:
            return LOOSE  # its timers go by all records of the task
        case a.Aggregated() | a.Cogrouped():
            if not is_exact:
                return LOOSE
            return Sameness("state" if step.kind == "spans" else "thinned")
        case a.Regrouped():
            if worst in ("groups", "loose"):
                return LOOSE
            return Sameness("thinned") if is_exact else Sameness("groups", False)
        case j.JoinedTables() | j.JoinedByField():
            if worst in ("groups", "loose") or step.kind != "table":
                return LOOSE  # rows of windows are found for a while only
            if is_exact and isinstance(step, j.JoinedByField):
                return EXACT
            reads_through = isinstance(step, j.JoinedTables) and not step.named
            rows_are_exact = is_exact or (reads_through and all(a.rows_are_exact for a in above))
            return Sameness("state", rows_are_exact)  # with timestamps of rows that came later
        case s.OfRows():
            (given,) = above
            exact_rows = given.rows_are_exact and not (step.named and not is_exact)
            is_thinned = step.word != "map" and given.updates == "thinned"
            return Sameness("state" if is_thinned else given.updates, exact_rows)
        case s.AsTable() if step.kind == "table" and step.retention is None:
            return EXACT if is_exact else Sameness(worst, False)
        case s.Updates() | s.Write():
            return above[0]
        case s.Stateless() if step.word == "map" and worst in ("thinned", "state"):
            return Sameness(worst, False)
        case s.Repartitioned() if worst in ("thinned", "state"):
            return Sameness(worst, False)
        case _:
            return EXACT if is_exact else LOOSE


def _of_windows(step: s.Step, steps: Sequence[s.Step], found: list[Sameness]) -> Sameness:
    """Late records, and final rows without anything but maps above, follow the records above the
    table, not its updates."""
    above = steps[step.parents[0]]
    between = (s.OfRows, s.Suppressed) if isinstance(step, s.Late) else (s.OfRows,)
    while isinstance(above, between):
        if isinstance(step, s.Final) and isinstance(above, s.OfRows) and above.word != "map":
            return LOOSE
        above = steps[above.parents[0]]
    is_table = isinstance(above, a.Aggregated | a.Cogrouped)
    is_exact = all(found[place].updates == "exact" for place in above.parents)
    return EXACT if is_table and is_exact else LOOSE
