"""Sliding windows: against the loop that defines them, one by one and in batches, restarted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.windows import Fold, Row, Sliding
from window_runs import AGGREGATES, EVERY, Run, as_table, columns_of, cuts, inputs, split

from kafkalite.core.protocol.records import decode, encode
from kafkalite.errors import TopologyError
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    Windowed,
    fold,
    json,
    mean,
    msgpack,
    sliding,
    string,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.spans import native

WINDOWS = st.sampled_from([(5, 0), (5, 7), (1, 0), (20, 3), (3, 100), (40, 10)])


def app_of(difference: int, grace: int, **options: Any) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(sliding(difference, grace))
    table = groups.aggregate(**AGGREGATES, **options, name="rows")
    table.to_stream().to("updates")
    table.final().to("final")
    table.late().to("late")
    return app


@given(WINDOWS, inputs)
@settings(max_examples=200, deadline=None)
def test_record_by_record(batch_run: Run, window: tuple[int, int], items: list[Row]) -> None:
    run, plain = batch_run(app_of(*window)), Sliding(*window, EVERY)
    for item in items:
        run.feed("in", [item])
        plain.add(*item)
    assert run.rows("updates") == plain.updates
    assert run.rows("final") == plain.final
    assert run.rows("late") == plain.late
    assert run.total("dropped-records-total") == plain.dropped


@given(WINDOWS, inputs, cuts, cuts, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_in_batches_with_restarts(
    batch_run: Run,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    restarts: list[int],
    cached: bool,
    of_users: bool,
) -> None:
    """Without the functions of users, records are folded by columns where updates merge."""
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(sliding(*window))
    table = groups.aggregate(**(AGGREGATES if of_users else columns_of(AGGREGATES)), name="rows")
    table.to_stream().to("updates")
    table.final().to("final")
    table.late().to("late")
    run = batch_run(app, cached=cached)
    plain = Sliding(*window, EVERY if of_users else columns_of(EVERY))
    dropped = 0
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        dropped += run.total("dropped-records-total")
        run.restart()
    for item in items:
        plain.add(*item)
    assert run.rows("final") == plain.final
    assert run.rows("late") == plain.late
    assert dropped == plain.dropped
    assert as_table(run.rows("updates")) == as_table(plain.updates)
    (task,) = run.tasks
    there = {
        Windowed(key, start, start + window[0]): plain.fold.row(aggregate)
        for key, windows in plain.windows.items()
        for start, (_, aggregate) in windows.items()
    }
    held = dict(task.store("rows").all())
    assert held == {key: row for key, row in there.items() if key in held}
    limit = plain.time - window[1]
    assert all(key in held for key in there if key.end >= limit), "open windows are there"
    assert all(key.start >= plain.oldest() for key in held), "others leave"


@given(WINDOWS, inputs, cuts, st.booleans())
@settings(max_examples=200, deadline=None)
def test_rows_that_come_and_go(
    batch_run: Run, window: tuple[int, int], items: list[Row], batches: list[int], cached: bool
) -> None:
    def add(a: int, v: int) -> int | None:
        return None if v == 0 else a + v

    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(sliding(*window))
    groups.aggregate(fold(1, add)).to_stream().to("updates")
    plain = Sliding(*window, Fold(lambda: 1, add, lambda a, b: a))
    run, each = batch_run(app, cached=cached), batch_run(app)
    for batch in split(items, batches):
        run.feed("in", batch)
    run.commit()
    for item in items:
        each.feed("in", [item])
        plain.add(*item)
    assert each.rows("updates") == plain.updates
    assert as_table(run.rows("updates")) == as_table(plain.updates)


@given(inputs, cuts)
@settings(max_examples=100, deadline=None)
def test_every_update_of_a_batch(batch_run: Run, items: list[Row], batches: list[int]) -> None:
    run, plain = batch_run(app_of(5, 7, cached=False), cached=True), Sliding(5, 7, EVERY)
    for batch in split(items, batches):
        run.feed("in", batch)
    for item in items:
        plain.add(*item)
    assert run.rows("updates") == plain.updates


@given(WINDOWS, inputs, cuts, cuts, st.booleans())
@settings(max_examples=100, deadline=None)
def test_groups_of_sliding_windows_take_out_what_was(
    batch_run: Run,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.stream("in").group_by_key().window(sliding(window[0], 1_000)).count(name="rows")
    sums = table.group_by(lambda w, n: w.key, with_key=True).reduce(
        lambda a, n: a + n, subtract=lambda a, n: a - n
    )
    sums.to_stream().to("out")
    run, plain = batch_run(app, cached=cached), Sliding(window[0], 1_000, EVERY)
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    for item in items:
        plain.add(*item)
    wanted = {
        key: sum(len(aggregate[0]) for _, aggregate in windows.values())
        for key, windows in plain.windows.items()
    }
    assert {key: value for key, value, _ in run.rows("out")} == wanted


def test_a_window_that_closes_is_final_once() -> None:
    """An update at the last moment finds the window open, and its final row is not out: D3."""
    app = Streams("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(sliding(5))
    groups.count().final().to("out")
    driver = TopologyTestDriver(app)
    for key, timestamp in (("a", 10), ("b", 10), ("a", 10), ("b", 11)):
        driver.pipe("in", 1, key=key, timestamp=timestamp)
    assert [(r.key, r.value) for r in driver.read("out")] == [
        (Windowed("a", 5, 10), 2),
        (Windowed("b", 5, 10), 1),
    ]


def test_the_changelog_forgets_windows(batch_run: Run) -> None:
    run = batch_run(app_of(5, 0), cached=True)
    for at in range(100):
        run.feed("in", [(f"k{at % 3}", at, at * 2)])
        run.commit()
    (task,) = run.tasks
    left: dict[bytes, bytes | None] = {}
    for columns in run.changelog["app-rows-changelog"]:
        left.update(zip(columns.keys, columns.values, strict=True))
    rows = [key for key, value in left.items() if value is not None and key != b"note"]
    assert len(rows) == len(dict(task.store("rows").all())) <= 12


def test_a_failure_that_is_skipped_leaves_windows_as_they_were() -> None:
    app = Streams("app", key=string(), value=msgpack(), on_error="skip")
    totals = fold(0, lambda a, v: a + v)
    groups = app.stream("in").group_by_key().window(sliding(5, 100))
    groups.aggregate(totals, name="t").to_stream().to("out")
    driver = TopologyTestDriver(app)
    for value, timestamp in ((1, 10), ("x", 12), (2, 13)):
        driver.pipe("in", value, key="a", timestamp=timestamp)
    wanted = {Windowed("a", 5, 10): 1, Windowed("a", 8, 13): 3, Windowed("a", 11, 16): 2}
    assert dict(driver.store("t").all()) == wanted
    assert list(driver.store("t").fetch("a", 6, 11)) == list(wanted.items())[1:]
    assert driver.metrics()["dropped-records-total"] == 1


def test_a_column_of_arguments_is_read_once(
    batch_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each record, where arguments are numbers of an Arrow array."""
    app = StreamsBuilder("app", key=string(), value=json())
    groups = app.stream("in").group_by_key().window(sliding(5, 5))
    groups.aggregate(mean=mean("n")).to_stream().to("out")
    monkeypatch.setattr(native, "NATIVE", False)
    run, looked = batch_run(app, cached=True), []
    get = ArrowForm.__getitem__
    monkeypatch.setattr(ArrowForm, "__getitem__", lambda s, at: looked.append(at) or get(s, at))
    columns = run.encoded("in", [("a", {"n": at / 2}, at) for at in range(1_500)])
    run.enqueue(run.tasks[0], "in", decode(encode(columns), as_forms=True))
    run.settle()
    run.commit()
    rows = {key.start: row for key, row, _ in run.rows("out")}
    assert rows[1] == {"mean": 1.75}
    assert len(looked) < 10


def test_idle_closes_sliding_windows() -> None:
    app = Streams("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(sliding("5s", "5s"))
    groups.aggregate(mean=mean("n")).final(idle="30s").to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in", {"n": 1}, key="a", timestamp=10_000)
    driver.pipe("in", {"n": 2}, key="a", timestamp=12_000)
    assert driver.read("out") == []
    driver.advance_wall_clock("31s")
    assert [(r.key, r.value) for r in driver.read("out")] == [
        (Windowed("a", 5_000, 10_000), {"mean": 1.0}),
        (Windowed("a", 7_000, 12_000), {"mean": 1.5}),
        (Windowed("a", 10_001, 15_001), {"mean": 2.0}),
    ]


def test_bounds_that_make_no_window() -> None:
    with pytest.raises(TopologyError, match="sliding: difference"):
        sliding(0)
    with pytest.raises(TopologyError, match="sliding: grace"):
        sliding("5s", "-1s")
