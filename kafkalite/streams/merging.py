"""Partials of several sets of records as one: sessions that become one, cogroups.             [P]

    partials    n=2, total=4      n=1, total=2
    merged      n=3, total=6

Owns   the order in which partials are merged: from what the aggregate begins with, oldest first.
Never  catches what a user's merge raises.
Source Kafka Streams' Merger, as KStreamSessionWindowAggregate calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kafkalite.streams.aggregates import MISSING, Aggregate, Fold, Partials, Reduce

Extend = Callable[[Partials, Any, Any], None]  # partials, session, argument


def merges(aggregate: Aggregate) -> bool:
    """Whether partials of `aggregate` can be merged: a fold needs a function for it."""
    return not isinstance(aggregate, Fold) or aggregate.merger is not None


def merged(aggregate: Aggregate, partials: Iterable[Any]) -> Any:
    """One partial of several that are not used again, the oldest first; MISSING for none.

    A fold begins with its init, which its function merges the first one into.
    """
    found = aggregate.begin()
    for partial in partials:
        if partial is MISSING:
            continue
        found = partial if found is MISSING else aggregate.merge(found, partial)
        if found is None:
            found = MISSING
    return found


def extending(aggregate: Aggregate) -> Extend:
    """Adds one argument to a session, into which what there is of it is merged first."""
    if not isinstance(aggregate, Fold):
        add = aggregate.add
        return lambda partials, session, argument: add(partials, (session,), iter((argument,)))
    begin, merge, step = aggregate.begin, aggregate.merger, aggregate.step
    assert merge is not None, "a fold over sessions has a function that merges"
    begins = not isinstance(aggregate, Reduce)

    def extend(partials: Partials, session: Any, argument: Any) -> None:
        found = partials.get(session, MISSING)
        if begins and found is not MISSING and (found := merge(begin(), found)) is None:
            found = MISSING
        found = step(found, argument)
        if found is None:
            partials.pop(session, None)
        else:
            partials[session] = found

    return extend
