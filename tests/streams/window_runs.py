"""What the tests of sessions and of sliding windows share: records, aggregates beside the plain
functions that define them, tables of updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from reference.windows import Fold, Row

from kafkalite.streams import (
    collect,
    collect_set,
    count,
    first,
    fold,
    last,
    max_,
    mean,
    min_,
    reduce_,
    sum_,
    top_k,
)

Run = Any  # the fixture `batch_run`
Values = list[Any]

keys = st.sampled_from(["a", "b", "ab", None])
numbers = st.one_of(st.none(), st.integers(-5, 5))
times = st.integers(0, 60)
records = st.lists(st.tuples(keys, numbers, times), max_size=30)
# Mostly ascending, as real topics are.
ascending = records.map(lambda rs: sorted(rs, key=lambda r: r[2]))
inputs = st.one_of(records, ascending)
cuts = st.lists(st.integers(0, 30), max_size=4)


def REDUCED(a: int, v: int) -> int:  # noqa: N802 - a constant
    """What a user reduces by: the order counts."""
    return (a * 3 + v) % 1_000


def some(values: Values) -> Values:
    return [value for value in values if value is not None]


PLAIN: dict[str, Callable[[Values], Any]] = {
    "n": len,
    "there": lambda vs: len(some(vs)),
    "total": lambda vs: sum(some(vs)),
    "mean": lambda vs: sum(some(vs)) / len(some(vs)) if some(vs) else None,
    "least": lambda vs: min(some(vs), default=None),
    "most": lambda vs: max(some(vs), default=None),
    "first": lambda vs: next(iter(some(vs)), None),
    "last": lambda vs: next(iter(some(vs)[::-1]), None),
    "all": some,
    "set": lambda vs: list(dict.fromkeys(some(vs))),
    "top": lambda vs: sorted(some(vs), reverse=True)[:2],
    "fold": lambda vs: "".join(f"{v}," for v in vs),
}
AGGREGATES: dict[str, Any] = {
    "n": count(),
    "there": count(lambda v: v),
    "total": sum_(),
    "mean": mean(),
    "least": min_(),
    "most": max_(),
    "first": first(),
    "last": last(),
    "all": collect(),
    "set": collect_set(),
    "top": top_k(2),
    "fold": fold("", lambda a, v: f"{a}{v},", merge=lambda a, b: a + b),
    "reduced": reduce_(REDUCED),
}
OF_USERS = ("fold", "reduced")  # aggregates with a function of the user's


def _add(state: tuple[Values, Any], value: Any) -> tuple[Values, Any]:
    values, reduced = state
    return [*values, value], _reduce(reduced, value)


def _merge(a: tuple[Values, Any], b: tuple[Values, Any]) -> tuple[Values, Any]:
    return [*a[0], *b[0]], _reduce(a[1], b[1])


def _reduce(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return a if b is None else b
    return REDUCED(a, b)


def _row(state: tuple[Values, Any]) -> dict[str, Any]:
    return {**{name: plain(state[0]) for name, plain in PLAIN.items()}, "reduced": state[1]}


# The values in the order in which they are merged, and what they are reduced to.
EVERY = Fold(lambda: ([], None), _add, _merge, _row)


def columns_of(given: Any) -> Any:
    """The aggregates, or the rows, without those that have a function of the user's."""
    if isinstance(given, Fold):
        return Fold(given.init, given.add, given.merge, lambda state: columns_of(_row(state)))
    return {name: each for name, each in given.items() if name not in OF_USERS}


def split(items: list[Any], at: list[int]) -> Iterator[list[Any]]:
    """The items in pieces."""
    bounds = sorted({0, len(items), *(cut for cut in at if cut < len(items))})
    for low, high in pairwise(bounds):
        yield items[low:high]


def as_table(rows: list[Row]) -> dict[Any, Any]:
    """The rows that are left, with their timestamps."""
    latest = {key: (value, timestamp) for key, value, timestamp in rows}
    return {key: found for key, found in latest.items() if found[0] is not None}
