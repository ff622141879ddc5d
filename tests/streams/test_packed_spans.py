"""Sessions and sliding windows in native code: as by definition, and as their twins give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference.windows import Fold, Row, Sessions, Sliding
from test_state_stores import Durably
from window_runs import AGGREGATES, EVERY, Run, as_table, cuts, inputs, keys, split, times

from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    Windowed,
    count,
    first,
    last,
    max_,
    mean,
    min_,
    msgpack,
    session,
    sliding,
    string,
    sum_,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.spans import native
from kafkalite.streams.local.spans.store import PackedStore

pytestmark = pytest.mark.skipif(not native.NATIVE, reason="the native modules were not built")

KNOWN = ("n", "there", "total", "mean", "least", "most", "first", "last")
PACKED = {name: AGGREGATES[name] for name in KNOWN}
WINDOWS = st.sampled_from([(5, 0), (5, 7), (1, 0), (20, 3), (3, 100), (40, 10)])


def _row(state: Any) -> dict[str, Any]:
    row = EVERY.row(state)
    return {name: row[name] for name in KNOWN}


ROWS = Fold(EVERY.init, EVERY.add, EVERY.merge, _row)


@pytest.fixture(scope="session")
def durable_run(batch_run: Run) -> Any:
    return type("DurableRun", (Durably, batch_run), {})


def app_of(window: Any, aggregate: Any = None, **options: Any) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key().window(window)
    if aggregate is None:
        table = groups.aggregate(**PACKED, **options, name="rows")
    else:
        table = groups.aggregate(aggregate, **options, name="rows")
    table.to_stream().to("updates")
    table.final().to("final")
    table.late().to("late")
    return app


def is_packed(run: Any) -> bool:
    return isinstance(run.tasks[0]._runtime.stores["rows"], PackedStore)


def of(of_sessions: bool, window: tuple[int, int]) -> tuple[Any, Any]:
    if of_sessions:
        return session(*window), Sessions(*window, ROWS)
    return sliding(*window), Sliding(*window, ROWS)


@given(st.booleans(), WINDOWS, inputs, cuts, st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_update(
    batch_run: Run,
    of_sessions: bool,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    at_once: bool,
) -> None:
    """Record by record; in batches where updates do not merge, final rows come behind updates."""
    kind, plain = of(of_sessions, window)
    run = batch_run(app_of(kind, cached=False), cached=True)
    assert is_packed(run)
    for batch in split(items, batches) if at_once else ([item] for item in items):
        run.feed("in", batch)
    for item in items:
        plain.add(*item)
    assert run.rows("updates") == plain.updates
    assert run.rows("final") == plain.final
    assert run.rows("late") == plain.late
    assert run.total("dropped-records-total") == plain.dropped


@given(st.booleans(), WINDOWS, inputs, cuts, cuts, cuts, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_merged_updates_with_restarts(
    batch_run: Run,
    durable_run: Any,
    of_sessions: bool,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    commits: list[int],
    restarts: list[int],
    cached: bool,
    on_disk: bool,
) -> None:
    """Rows that are let go after each commit, or come back from the changelog, are what they
    were."""
    kind, plain = of(of_sessions, window)
    run = (durable_run if on_disk else batch_run)(app_of(kind), cached=cached)
    dropped = 0
    for life in split(items, restarts):
        for until_commit in split(life, commits):
            for batch in split(until_commit, batches):
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
    if of_sessions:
        assert dict(run.tasks[0].store("rows").all()) == plain.table()


VALUES = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([0.1, -0.0, 2.5, 1e300, 2**53 + 1, 2**62, -(2**62)]),
    st.booleans(),
)
odd = st.lists(st.tuples(keys, VALUES, times), max_size=30)
texts = st.lists(st.tuples(keys, st.sampled_from([None, "", "a", "b", "\x00"]), times), max_size=20)
LONE: dict[str, Any] = {
    "count": count(),
    "count of": count(lambda v: v),
    "sum": sum_(),
    "mean": mean(),
    "least": min_(),
    "most": max_(),
    "first": first(),
    "last": last(),
}


def both(
    monkeypatch: pytest.MonkeyPatch, make: Any, aggregate: Any, kind: Any, **options: Any
) -> Iterator[Any]:
    """A run in native code, then one of the twin."""
    run = make(app_of(kind, aggregate), **options)
    assert is_packed(run)
    yield run
    with monkeypatch.context() as patch:
        patch.setattr(native, "NATIVE", False)
        twin = make(app_of(kind, aggregate), **options)
    assert not is_packed(twin)
    yield twin


@given(
    st.booleans(),
    WINDOWS,
    st.one_of(odd, texts),
    cuts,
    st.sampled_from(sorted(LONE)),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_one_aggregate_as_its_twin_gives_it(
    batch_run: Run,
    of_sessions: bool,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    word: str,
    cached: bool,
) -> None:
    """Numbers of any size and kind, texts, rows that come and go: to the last bit."""
    values = [value for _, value, _ in items if value is not None]
    if word in ("sum", "mean"):
        assume(not any(isinstance(value, str) for value in values))
        large = [value for value in values if isinstance(value, int) and abs(value) > 2**60]
        assume(len(large) < 3)  # a row has up to 64 bits
    kind = (session if of_sessions else sliding)(*window)
    found = []
    for run in both(pytest.MonkeyPatch(), batch_run, LONE[word], kind, cached=cached):
        for batch in split(items, batches) if cached else ([item] for item in items):
            run.feed("in", batch)
        run.commit()
        rows = run.rows("updates")
        shown = {key: repr(value) for key, value in as_table(rows).items()} if cached else rows
        changelog = run.changelog.get("app-rows-changelog", [])
        kept = {k: v for c in changelog for k, v in zip(c.keys, c.values, strict=True)}
        found.append((repr(shown), repr(run.rows("final")), kept, run.rows("late")))
    assert found[0] == found[1]


def test_headers_are_those_of_the_record_that_changed_a_window_last() -> None:
    app = Streams("app", key=string(), value=msgpack())
    table = app.stream("in").group_by_key().window(sliding(5, 100)).count(name="t")
    table.to_stream().to("out")
    driver = TopologyTestDriver(app)
    for timestamp, headers in ((10, [("a", b"1")]), (12, []), (11, [("b", b"2")])):
        driver.pipe("in", 1, key="k", timestamp=timestamp, headers=headers)
    told = [(r.key.start, r.value, [name for name, _ in r.headers]) for r in driver.read("out")]
    assert told == [
        (5, 1, ["a"]),
        (11, 1, []),
        (7, 2, []),
        (11, 2, ["b"]),
        (7, 3, ["b"]),
        (6, 2, ["b"]),
        (12, 1, ["b"]),
    ]


def test_a_failure_names_its_record() -> None:
    app = Streams("app", key=string(), value=msgpack())
    app.stream("in").group_by_key().window(session(5)).aggregate(total=sum_()).to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in", 1, key="a", timestamp=1)
    with pytest.raises(Exception, match="offset 1.*TypeError.*unsupported operand"):
        driver.pipe("in", "x", key="a", timestamp=2)


def test_a_view_finds_windows() -> None:
    app = Streams("app", key=string(), value=string())
    app.stream("in").group_by_key().window(sliding(5, 100)).count(name="visits")
    driver = TopologyTestDriver(app)
    for key, timestamp in (("a", 10), ("a", 12), ("b", 14)):
        driver.pipe("in", "x", key=key, timestamp=timestamp)
    store = driver.store("visits")
    its = [(Windowed("a", 5, 10), 1), (Windowed("a", 7, 12), 2), (Windowed("a", 11, 16), 1)]
    assert list(store.all()) == [*its, (Windowed("b", 9, 14), 1)]
    assert len(store) == 4
    assert list(store.fetch("a", 6, 11)) == its[1:]
    assert store.get(Windowed("a", 7, 12)) == 2
    assert store.get(Windowed("a", 8, 13)) is None


def test_many_keys_come_and_go(batch_run: Run) -> None:
    """Numbers of windows and of keys are used again; no session is lost."""
    run = batch_run(app_of(session(5), count()), cached=True)
    for at in range(60):
        run.feed("in", [(f"k{(at * 700 + i) % 5_000}", 1, at * 10 + i % 3) for i in range(700)])
        run.commit()
    run.feed("in", [("end", 1, 10_000)])
    assert sum(value for _, value, _ in run.rows("final")) == 60 * 700
    assert len(run.tasks[0].store("rows")) == 1
