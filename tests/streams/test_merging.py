"""Partials that are merged: the same result as of all records, in their order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from kafkalite.streams.aggregates import MISSING, Aggregate
from kafkalite.streams.merging import merged, merges

AGGREGATES: dict[str, Aggregate] = {
    "count": count(),
    "sum_": sum_(),
    "mean": mean(),
    "min_": min_(),
    "max_": max_(),
    "first": first(),
    "last": last(),
    "collect": collect(),
    "collect_set": collect_set(),
    "top_k": top_k(2),
    "reduce_": reduce_(lambda a, v: a + v),
}
# Equal numbers of two types are told apart by their types: which of them stays counts.
VALUES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 3).map(float)), max_size=4)


def partial_of(aggregate: Aggregate, values: list[Any]) -> Any:
    partials = aggregate.partials()
    aggregate.add(partials, ["k"] * len(values), iter(values))
    return partials.get("k", MISSING)


@pytest.mark.parametrize("name", AGGREGATES)
@given(parts=st.lists(VALUES, max_size=4))
def test_what_is_merged_is_the_aggregate_of_all(name: str, parts: list[list[Any]]) -> None:
    aggregate = AGGREGATES[name]
    whole = partial_of(aggregate, [value for part in parts for value in part])
    found = merged(aggregate, [partial_of(aggregate, part) for part in parts])
    assert repr(aggregate.result(found)) == repr(aggregate.result(whole))


def test_a_fold_begins_with_its_init_and_none_begins_anew() -> None:
    words = fold("-", lambda a, v: a + v, merge=lambda a, b: None if b == "drop" else a + b)
    assert merged(words, ["a", "b"]) == "-ab"
    assert merged(words, ["a", "drop", "b"]) == "b"
    assert merged(words, ["drop"]) is MISSING


def test_only_a_fold_may_lack_a_merge() -> None:
    assert all(map(merges, AGGREGATES.values()))
    assert not merges(fold(0, lambda a, v: a + v))
    assert merges(fold(0, lambda a, v: a + v, merge=lambda a, b: a + b))
