"""Estimates: exact while there are few values, near enough beyond, mergeable, kept for restarts."""

from __future__ import annotations

import sys
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.errors import TopologyError
from kafkalite.streams import (
    approx_distinct,
    collect,
    hopping,
    json,
    msgpack,
    quantiles,
    session,
    string,
    tumbling,
)
from kafkalite.streams.aggregates import MISSING, Aggregate
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver
from kafkalite.streams.merging import merged
from kafkalite.streams.sketches import _canonical

values = st.one_of(st.none(), st.integers(-9, 9), st.sampled_from(["", "1", "ä", b"", b"1", 1.5]))
records = st.lists(st.tuples(st.sampled_from("ab"), values, st.integers(0, 40)), max_size=30)
cuts = st.lists(st.integers(0, 30), max_size=4)


def split(items: list[Any], at: list[int]) -> list[list[Any]]:
    bounds = sorted({0, len(items), *(cut for cut in at if cut < len(items))})
    return [items[low:high] for low, high in pairwise(bounds)]


def partial_of(aggregate: Aggregate[Any, Any], values: list[Any]) -> Any:
    partials = aggregate.partials()
    aggregate.add(partials, ["k"] * len(values), iter(values))
    return partials.get("k", MISSING)


def distinct(values: list[Any]) -> int:
    return len({(isinstance(v, bytes), v) for v in values if v is not None})


def ranked(values: list[Any], rank: float) -> float:
    """The least value that at least this part of all does not exceed."""
    ordered = sorted(values)
    return float(next(v for i, v in enumerate(ordered) if (i + 1) / len(ordered) >= rank))


@pytest.mark.parametrize("window", [None, tumbling(10), hopping(10, 5), session(3)])
@given(items=records, batches=cuts, restarts=cuts, cached=st.booleans())
@settings(max_examples=40, deadline=None)
def test_few_values_are_counted_exactly(
    batch_run: Any,
    window: Any,
    items: list[tuple[Any, Any, int]],
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key()
    groups = groups if window is None else groups.window(window)
    groups.aggregate(
        n=approx_distinct(lambda v: v),
        middle=quantiles(lambda v: v if isinstance(v, int) else None, [0.5]),
        exact=collect(),
    ).to_stream().to("out")
    run = batch_run(app, cached=cached)
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    for _, row, _ in run.rows("out"):
        if row is None:
            continue
        assert row["n"] == distinct(row["exact"])
        numbers = [v for v in row["exact"] if isinstance(v, int)]
        assert row["middle"] == ([ranked(numbers, 0.5)] if numbers else None)


def test_equal_values_count_once_and_others_apart() -> None:
    alike = [1, 1.0, True]
    apart = ["1", b"1", "", b"", 1.5, 2**70, -(2**70), str(2**70), [1], {"a": 1}, "\x00text ", 0.1]
    assert len({_canonical(v) for v in alike}) == 1
    assert len({_canonical(v) for v in [1, *apart]}) == 1 + len(apart)
    sketch = partial_of(approx_distinct(), [*alike, *apart, *apart, None])
    assert approx_distinct().result(sketch) == 1 + len(apart)


@pytest.mark.parametrize("parts", [1, 50])
def test_estimates_are_within_what_the_docs_say(parts: int) -> None:
    random, n = Random(5), 100_000
    users = [random.randrange(10**12) for _ in range(n)]
    aggregate, spread = approx_distinct(), quantiles(ranks=(0.01, 0.5, 0.99))
    pieces = [users[at::parts] for at in range(parts)]
    found = aggregate.result(merged(aggregate, [partial_of(aggregate, p) for p in pieces]))
    assert abs(found / n - 1) < 3 * 1.04 / 64
    near = spread.result(merged(spread, [partial_of(spread, p) for p in pieces]))
    users.sort()
    for value, rank in zip(near, (0.01, 0.5, 0.99), strict=True):
        assert abs(users.index(int(value)) / n - rank) < 0.03


def test_a_sketch_of_any_size_comes_back_from_its_bytes() -> None:
    for aggregate in (approx_distinct(), quantiles()):
        for n in (1, 10, 1_000, 100_000):
            sketch = partial_of(aggregate, list(range(n)))
            data = aggregate.dump(sketch)
            assert isinstance(data, bytes)
            assert len(data) < 8_300
            assert aggregate.result(aggregate.load(data)) == aggregate.result(sketch)
            copied, before = aggregate.copied(sketch), aggregate.result(sketch)
            aggregate.add({"k": copied}, ["k"] * n, iter(range(10**9, 10**9 + n)))
            assert aggregate.result(sketch) == before


def test_a_failing_value_leaves_the_others(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
    app.stream("in").group_by_key().aggregate(quantiles()).to_stream().to("out", value=json())
    run = batch_run(app)
    run.feed("in", [("a", 1, 0), ("a", "x", 0), ("a", 3, 0)])
    assert run.rows("out")[-1][1] == [1.0, 3.0, 3.0]
    assert run.total("dropped-records-total") == 1


def test_a_bare_estimate_is_an_int64_and_a_field_name_will_do() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    app.stream("in").group_by_key().aggregate(approx_distinct("user")).to_stream().to("out")
    driver = TopologyTestDriver(app)
    for user in ("ann", "bob", "ann"):
        driver.pipe("in", {"user": user}, key="k", timestamp=0)
    assert [r.value for r in driver.read("out")] == [1, 2, 2]
    assert "value int64()" in app.describe()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: approx_distinct(lg_k=3), "approx_distinct: lg_k: expected a number from 7 to 21"),
        (lambda: quantiles(k=1), "quantiles: k: expected a number from 8 to 65535, got 1"),
        (lambda: quantiles(ranks=[]), r"quantiles: ranks: expected numbers from 0 to 1, got \[\]"),
        (lambda: quantiles(ranks=[2]), r"ranks: expected numbers from 0 to 1, got \[2\]"),
        (lambda: quantiles("x", 0.5), "ranks: expected numbers from 0 to 1, got 0.5"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        make()


def test_groups_of_a_table_refuse_them_by_name() -> None:
    groups = StreamsBuilder("app", key=string(), value=json()).table("t").group_by("g")
    for aggregate in (approx_distinct("x"), quantiles("x")):
        with pytest.raises(TopologyError, match=rf"{aggregate.word} cannot take out the old row"):
            groups.aggregate(aggregate)


def test_without_the_library_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    for make in (approx_distinct, quantiles):
        with pytest.raises(TopologyError, match=r"datasketches, .*pip install 'kafkalite\[sketch"):
            make()
