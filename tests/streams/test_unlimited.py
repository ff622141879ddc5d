"""One window without an end: a row per key from a time on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.windows import END, Row, Unlimited
from window_runs import AGGREGATES, EVERY, Run, as_table, cuts, inputs, split

from kafkalite.errors import TopologyError
from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    Windowed,
    fold,
    msgpack,
    string,
    unlimited,
)
from kafkalite.streams.api import StreamsBuilder


def app_of(start: int, **options: Any) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(unlimited(start))
    groups.aggregate(**AGGREGATES, **options, name="rows").to_stream().to("updates")
    return app


@given(st.sampled_from([0, 20]), inputs, cuts, st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_update(
    batch_run: Run, start: int, items: list[Row], batches: list[int], cached: bool
) -> None:
    run, plain = batch_run(app_of(start, cached=False), cached=cached), Unlimited(start, EVERY)
    for batch in split(items, batches):
        run.feed("in", batch)
    for item in items:
        plain.add(*item)
    assert run.rows("updates") == plain.updates
    assert run.total("dropped-records-total") == plain.dropped


@given(st.sampled_from([0, 20]), inputs, cuts, cuts, st.booleans())
@settings(max_examples=100, deadline=None)
def test_in_batches_with_restarts(
    batch_run: Run,
    start: int,
    items: list[Row],
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    run, plain = batch_run(app_of(start), cached=cached), Unlimited(start, EVERY)
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    for item in items:
        plain.add(*item)
    assert as_table(run.rows("updates")) == as_table(plain.updates)


def test_a_row_that_is_deleted_begins_anew() -> None:
    app = Streams("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(unlimited(5))
    totals = fold(0, lambda a, v: None if v == 0 else a + v)
    groups.aggregate(totals, name="t").to_stream().to("out")
    driver = TopologyTestDriver(app)
    for value, timestamp in ((1, 9), (9, 4), (0, 7), (3, 6)):
        driver.pipe("in", value, key="a", timestamp=timestamp)
    key = Windowed("a", 5, END)
    found = [(r.key, r.value, r.timestamp) for r in driver.read("out")]
    assert found == [(key, 1, 9), (key, None, 9), (key, 3, 6)]
    assert driver.store("t").get(key) == 3
    assert driver.metrics()["dropped-records-total"] == 0


def test_it_never_closes() -> None:
    groups = StreamsBuilder("app").stream("in").group_by_key()
    with pytest.raises(TopologyError, match=r"never closes; use .to_stream\(\)"):
        groups.window(unlimited()).count().final()
    assert [str(unlimited()), str(unlimited(7))] == ["unlimited()", "unlimited(7)"]


@pytest.mark.parametrize("start", [-1, "1h", True, 2**63])
def test_a_start_that_is_none(start: Any) -> None:
    with pytest.raises(TopologyError, match="unlimited: start"):
        unlimited(start)
