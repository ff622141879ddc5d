"""Session windows: against the loop that defines them, one by one and in batches, restarted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.windows import Fold, Row, Sessions
from window_runs import (
    AGGREGATES,
    EVERY,
    REDUCED,
    Run,
    as_table,
    columns_of,
    cuts,
    inputs,
    split,
)

from kafkalite.errors import TopologyError
from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    Windowed,
    fold,
    mean,
    msgpack,
    reduce_,
    session,
    string,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.spans import native

WINDOWS = st.sampled_from([(5, 0), (5, 7), (1, 0), (20, 3), (3, 100)])


def app_of(gap: int, grace: int, **options: Any) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(session(gap, grace))
    table = groups.aggregate(**AGGREGATES, **options, name="rows")
    table.to_stream().to("updates")
    table.final().to("final")
    table.late().to("late")
    return app


def one_by_one(app: StreamsBuilder, plain: Sessions, items: list[Row], make: Run) -> None:
    run = make(app)
    for item in items:
        run.feed("in", [item])
        plain.add(*item)
    assert run.rows("updates") == plain.updates
    assert run.rows("final") == plain.final
    assert run.rows("late") == plain.late
    assert run.total("dropped-records-total") == plain.dropped


@pytest.mark.slow
@given(WINDOWS, inputs)
@settings(max_examples=200, deadline=None)
def test_record_by_record(batch_run: Run, window: tuple[int, int], items: list[Row]) -> None:
    one_by_one(app_of(*window), Sessions(*window, EVERY), items, batch_run)


@pytest.mark.slow
@given(WINDOWS, inputs, cuts, cuts, st.booleans())
@settings(max_examples=300, deadline=None)
def test_in_batches_with_restarts(
    batch_run: Run,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    run, plain = batch_run(app_of(*window), cached=cached), Sessions(*window, EVERY)
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
    assert dict(task.store("rows").all()) == plain.table()


@given(WINDOWS, inputs, cuts, cuts)
@settings(max_examples=200, deadline=None)
def test_a_batch_by_columns_is_its_records(
    batch_run: Run,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    restarts: list[int],
) -> None:
    """Aggregates that no function of users is in are folded by columns where updates merge."""
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(session(*window))
    table = groups.aggregate(**columns_of(AGGREGATES), name="rows")
    table.to_stream().to("updates")
    table.final().to("final")
    run, plain = batch_run(app, cached=True), Sessions(*window, columns_of(EVERY))
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    for item in items:
        plain.add(*item)
    assert run.rows("final") == plain.final
    assert as_table(run.rows("updates")) == as_table(plain.updates)


@given(WINDOWS, inputs, cuts, st.booleans())
@settings(max_examples=200, deadline=None)
def test_rows_that_come_and_go(
    batch_run: Run, window: tuple[int, int], items: list[Row], batches: list[int], cached: bool
) -> None:
    """A fold that gives None deletes its session: what comes next begins another one."""

    def add(a: int, v: int | None) -> int | None:
        return None if v == 0 else a + (v or 7)

    def merge(a: int, b: int) -> int:
        return a * 2 + b

    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(session(*window))
    groups.aggregate(fold(1, add, merge=merge)).to_stream().to("updates")
    plain = Sessions(*window, Fold(lambda: 1, add, merge))
    run, each = batch_run(app, cached=cached), batch_run(app)
    for batch in split(items, batches):
        run.feed("in", batch)
    run.commit()
    for item in items:
        each.feed("in", [item])
        plain.add(*item)
    assert each.rows("updates") == plain.updates
    assert as_table(run.rows("updates")) == as_table(plain.updates)


@pytest.mark.parametrize("cached", [True, False])
def test_records_without_a_row_leave_nothing_behind(batch_run: Run, cached: bool) -> None:
    """As objects: a session that never has a row waits for no end."""
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.stream("in").group_by_key().window(session(5)).aggregate(reduce_(REDUCED), name="t")
    table.to_stream().to("updates")
    run = batch_run(app, cached=cached)
    run.feed("in", [("a", None, 1), ("a", None, 9), ("b", None, 9)])
    run.commit()
    (operator,) = run.tasks[0]._operators.values()
    assert operator._ends == []
    assert len(run.tasks[0].store("t")) == 0


@given(WINDOWS, inputs, cuts, st.sampled_from(["reduce", "mean"]))
@settings(max_examples=150, deadline=None)
def test_a_lone_aggregate_that_may_be_none(
    batch_run: Run, window: tuple[int, int], items: list[Row], batches: list[int], which: str
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(session(*window))
    aggregate: Any = mean() if which == "mean" else reduce_(REDUCED)
    table = groups.aggregate(aggregate)
    table.to_stream().to("updates")
    table.final().to("final")
    by_record, by_batch = batch_run(app), batch_run(app, cached=True)
    for item in items:
        by_record.feed("in", [item])
    for batch in split(items, batches):
        by_batch.feed("in", batch)
    by_batch.commit()
    assert by_batch.rows("final") == by_record.rows("final")
    assert as_table(by_batch.rows("updates")) == as_table(by_record.rows("updates"))


def test_a_session_keeps_its_timestamp_below_a_late_record(
    batch_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As objects: the first batch goes record by record for its null, the second by columns."""
    monkeypatch.setattr(native, "NATIVE", False)
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(session(5, 10))
    groups.aggregate(mean()).to_stream().to("updates")
    run = batch_run(app, cached=True)
    run.feed("in", [("a", None, 4), ("a", 1, 4)])
    run.feed("in", [("a", 1, 2)])
    run.commit()
    assert run.rows("updates") == [(Windowed("a", 2, 4), 1.0, 4)]


@given(inputs, cuts)
@settings(max_examples=100, deadline=None)
def test_every_update_of_a_batch(batch_run: Run, items: list[Row], batches: list[int]) -> None:
    app = app_of(5, 7, cached=False)
    run, plain = batch_run(app, cached=True), Sessions(5, 7, EVERY)
    for batch in split(items, batches):
        run.feed("in", batch)
    for item in items:
        plain.add(*item)
    assert run.rows("updates") == plain.updates


@given(WINDOWS, inputs, cuts, cuts, st.booleans())
@settings(max_examples=100, deadline=None)
def test_groups_of_sessions_take_out_what_was(
    batch_run: Run,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    """A table of sessions by group: the sums are those of the sessions that there are."""
    app = StreamsBuilder("app", key=string(), value=msgpack())
    sessions = app.stream("in").group_by_key().window(session(window[0], 1_000)).count(name="rows")
    sums = sessions.group_by(lambda w, n: w.key, with_key=True).reduce(
        lambda a, n: a + n, subtract=lambda a, n: a - n
    )
    sums.to_stream().to("out")
    run = batch_run(app, cached=cached)
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    wanted: dict[str, int] = {}
    for key, _, _ in items:
        if key is not None:
            wanted[key] = wanted.get(key, 0) + 1
    assert {key: value for key, value, _ in run.rows("out")} == wanted


def test_a_session_that_only_just_is_open_is_merged() -> None:
    """Kafka Streams does not see it any more, and overwrites it: D2. Closed is closed: D7."""
    app = StreamsBuilder("app", key=string(), value=string())
    table = app.stream("in").group_by_key().window(session(5)).count()
    table.to_stream().to("updates")
    table.final().to("final")
    driver = TopologyTestDriver(app)
    for timestamp in (10, 15):
        driver.pipe("in", "x", key="a" if timestamp == 10 else "b", timestamp=timestamp)
    driver.pipe("in", "x", key="a", timestamp=10)
    assert [(r.key, r.value) for r in driver.read("updates")][-1] == (Windowed("a", 10, 10), 2)
    assert driver.read("final") == []
    driver.pipe("in", "x", key="b", timestamp=16)
    assert [(r.key, r.value) for r in driver.read("final")] == [(Windowed("a", 10, 10), 2)]
    driver.pipe("in", "x", key="a", timestamp=12)
    assert [(r.key, r.value) for r in driver.read("updates")][-1] == (Windowed("a", 12, 12), 1)


def test_the_store_and_its_changelog_forget_closed_sessions(batch_run: Run) -> None:
    run = batch_run(app_of(5, 0), cached=True)
    for at in range(100):
        run.feed("in", [(f"k{at % 3}", at, at * 2)])
        run.commit()
    (task,) = run.tasks
    open_ones = dict(task.store("rows").all())
    assert {key.end for key in open_ones} == {194, 196, 198}
    left: dict[bytes, bytes | None] = {}
    for columns in run.changelog["app-rows-changelog"]:
        left.update(zip(columns.keys, columns.values, strict=True))
    rows = [key for key, value in left.items() if value is not None and key != b"note"]
    assert len(rows) == len(open_ones)


def test_a_view_finds_sessions() -> None:
    app = Streams("app", key=string(), value=string())
    app.stream("in").group_by_key().window(session(5, 100)).count(name="visits")
    driver = TopologyTestDriver(app)
    for key, timestamp in (("a", 1), ("a", 3), ("a", 20), ("b", 4)):
        driver.pipe("in", "x", key=key, timestamp=timestamp)
    store = driver.store("visits")
    one, two, other = Windowed("a", 1, 3), Windowed("a", 20, 20), Windowed("b", 4, 4)
    assert list(store.all()) == [(one, 2), (two, 1), (other, 1)]
    assert len(store) == 3
    assert list(store.fetch("a", 2, 10)) == [(one, 2)]
    assert list(store.fetch("a", 3, 20)) == [(one, 2), (two, 1)]
    assert list(store.fetch("c", 0, 100)) == []
    assert list(store.range("b")) == [(other, 1)]
    assert store.get(one) == 2
    assert store.get(Windowed("a", 1, 4)) is None
    with pytest.raises(TopologyError, match="expected a Windowed key, got 'a'"):
        store.get("a")


def test_a_failure_that_is_skipped_leaves_sessions_as_they_were() -> None:
    def merge(a: int, b: int) -> int:
        if b == 12:
            raise ValueError("unlucky")
        return a + b

    app = Streams("app", key=string(), value=msgpack(), on_error="skip")
    totals = fold(0, lambda a, v: a + v, merge=merge)
    table = app.stream("in").group_by_key().window(session(5, 100)).aggregate(totals, name="t")
    table.to_stream().to("out")
    driver = TopologyTestDriver(app)
    for value, timestamp in ((1, 1), (12, 10), (3, 5), ("x", 2), (5, 1)):
        driver.pipe("in", value, key="a", timestamp=timestamp)
    assert dict(driver.store("t").all()) == {Windowed("a", 1, 1): 6, Windowed("a", 10, 10): 12}
    assert driver.metrics()["dropped-records-total"] == 2


@pytest.mark.parametrize("given_", [fold(0, lambda a, v: a + v), "named"])
def test_a_fold_over_sessions_needs_a_merge(given_: Any) -> None:
    groups = StreamsBuilder("app").stream("in").group_by_key().window(session("5s"))
    with pytest.raises(TopologyError, match="fold without merge= cannot"):
        if given_ == "named":
            groups.aggregate(total=fold(0, lambda a, v: a + v))
        else:
            groups.aggregate(given_)


def test_bounds_that_make_no_session() -> None:
    with pytest.raises(TopologyError, match="session: gap"):
        session(0)
    with pytest.raises(TopologyError, match="session: grace"):
        session("5s", "-1s")


def test_idle_closes_sessions() -> None:
    app = Streams("app", key=string(), value=string())
    groups = app.stream("in").group_by_key().window(session("5s", "1s"))
    groups.count().final(idle="30s").to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in", "x", key="a", timestamp=1_000)
    driver.advance_wall_clock("29s")
    assert driver.read("out") == []
    driver.advance_wall_clock("2s")
    assert [(r.key, r.value, r.timestamp) for r in driver.read("out")] == [
        (Windowed("a", 1_000, 1_000), 1, 1_000)
    ]


@pytest.mark.parametrize("cached", [False, True])
def test_a_session_that_grows_after_a_commit_survives_a_restart(
    batch_run: Any, cached: bool
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    app.stream("in").group_by_key().window(session(25)).count().to_stream().to("out")
    run = batch_run(app, cached=cached)
    for time in (14, 27, 40):
        run.feed("in", [("a", 0, time)])
        run.commit()
        run.restart()
    assert [value for _, value, _ in run.rows("out") if value is not None] == [1, 2, 3]
