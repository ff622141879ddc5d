"""Sessions and sliding windows in native code: as by definition, and as their twins give them."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator
from random import Random
from typing import Any, ClassVar
from weakref import WeakSet

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference.windows import Fold, Row, Sessions, Sliding
from test_state_stores import Durably
from test_watermarks import Cluster
from window_runs import AGGREGATES, EVERY, Run, as_table, cuts, inputs, keys, split, times

from kafkalite.core.types import Columns, concat
from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    Windowed,
    count,
    first,
    fold,
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
from kafkalite.streams.local.calling import TIMESTAMP_MAX
from kafkalite.streams.local.spans import native
from kafkalite.streams.local.spans.native import SessionFold, SlidingFold, SpanTable
from kafkalite.streams.local.spans.packed import PackedAggregate
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
    app = StreamsBuilder("app", key=string(), value=msgpack(), max_future=TIMESTAMP_MAX)
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
    st.sampled_from([0.1, -0.0, 2.5, 1e300, math.nan, 2**53 + 1, 2**62, -(2**62)]),
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
    st.sampled_from([0, 0, 2**61 - 30, TIMESTAMP_MAX - 60]),
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
    begin: int,
) -> None:
    """Numbers of any size and kind, texts, rows that come and go: to the last bit, at any time."""
    items = [(key, value, begin + time) for key, value, time in items]
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
        found.append((repr(shown), repr(run.rows("final")), kept, repr(run.rows("late"))))
    assert found[0] == found[1]


@given(
    st.booleans(),
    WINDOWS,
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 90)), max_size=20),
        min_size=2,
        max_size=3,
    ),
    st.integers(0, 1 << 30),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_below_several_tasks_as_its_twin_gives_it(
    of_sessions: bool,
    window: tuple[int, int],
    inputs: list[list[tuple[str, int]]],
    seed: int,
    cached: bool,
    is_sorted: bool,
) -> None:
    """Records are judged by the time of the task that wrote them, whoever runs or moves. A fold
    that counts gives what a count does."""

    def run(aggregate: Any) -> tuple[Any, ...]:
        app = StreamsBuilder("app", key=string(), value=string())
        kind = (session if of_sessions else sliding)(*window)
        groups = app.stream("in").group_by(lambda v: v, name="k").window(kind)
        table = groups.aggregate(aggregate, name="n", value=msgpack(), cached=cached)
        table.to_stream().to("updates")
        table.final().to("final")
        table.late().to("late")
        cluster, random = Cluster(app, len(inputs), 1), Random(seed)
        for partition, records in enumerate(inputs):
            in_order = sorted(records, key=lambda each: each[1]) if is_sorted else records
            for begin in range(0, len(records), 4):
                words = [word.encode() for word, _ in in_order[begin : begin + 4]]
                stamps = [stamp for _, stamp in in_order[begin : begin + 4]]
                cluster.logs["in", partition].append(Columns(words, words, stamps))
        for _ in range(random.randrange(30)):
            turn = (cluster.turn, cluster.turn, cluster.turn, cluster.commit, cluster.restart)
            task_id, act = random.choice(cluster.ids), random.choice(turn)
            act(task_id, *([random.randrange(1, 6)] if act == cluster.turn else ()))
        cluster.finish()
        logs = [concat(cluster.logs[topic, 0]) for topic in ("updates", "final", "late")]
        updates, *others = [list(zip(c.keys, c.values, c.timestamps, strict=True)) for c in logs]
        shown = {key: row for key, *row in updates} if cached else updates
        return shown, sorted(others[0]), others[1], cluster.dropped

    assert native.NATIVE
    packed = run(count())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "NATIVE", False)
        assert packed == run(count())
    assert packed == run(fold(0, lambda n, _: n + 1, merge=int.__add__))


class Number:
    """What only Python can add and compare; `alive`: those that somebody holds."""

    alive: ClassVar[WeakSet[Number]] = WeakSet()

    def __init__(self, number: int) -> None:
        self.number = number
        self.alive.add(self)

    def __add__(self, other: Any) -> Number:
        if self.number > 10**6:
            raise ValueError("too large")
        return Number(self.number + (other.number if isinstance(other, Number) else other))

    __radd__ = __add__

    def __truediv__(self, count: int) -> float:
        return self.number / count

    def __lt__(self, other: Number) -> bool:
        return self.number < other.number

    def __gt__(self, other: Number) -> bool:
        return self.number > other.number


OBJECT_KINDS = bytes(range(2, 8))  # all but counts


@pytest.mark.parametrize("kind", [SessionFold, SlidingFold])
@pytest.mark.parametrize("fails", [False, True])
def test_what_native_code_holds_it_lets_go(kind: Any, fails: bool) -> None:
    """Rows that are merged, copied, closed, told of or half-way folded in are nobody's then."""
    table, random = SpanTable(OBJECT_KINDS, kind is SessionFold, 5, False), Random(7)
    table.listen(merges=True, tells=True)
    fold = kind(table, 5, 20, False)
    for start in range(0, 2_000, 50):
        stamps = [start + random.randrange(60) for _ in range(50)]
        column = [Number(random.randrange(9)) for _ in stamps]
        keys = [random.choice((b"a", b"b")) for _ in stamps]
        log = table.log() if start % 100 else None
        fold.fold(keys, stamps, None, start, [column] * len(OBJECT_KINDS), None, log)
        table.changes()
        if table.close(start - 20):
            table.closing_rows(0, 1)
        table.end_closing(start)
        if kind is SlidingFold:
            table.forget(fold.oldest(start - 20), start)
        assert len(Number.alive) < 5_000
    if fails:
        bad = [Number(10**7), Number(1), Number(2)]
        with pytest.raises(ValueError, match="too large"):
            fold.fold([b"a"] * 3, [9_000] * 3, None, 9_000, [bad] * 6, None, table.log())
        del bad
    held = fold if fails else table
    del table, fold, log, column
    gc.collect()
    assert bool(Number.alive)  # `held` has the table
    del held
    gc.collect()
    assert not Number.alive


def test_records_without_an_argument_leave_nothing_behind() -> None:
    """A session that never has a row waits for no end."""
    table = SpanTable(b"\x06", True, 0, True)  # first()
    fold = SessionFold(table, 5, 5, False)
    fold.fold([b"a", b"b"], [1, 2], None, -1, [[None, None]], None, None)
    assert (len(table), table.every_key(), table.is_due(10**6)) == (0, [], False)


def test_a_fold_of_neither_kind_says_so() -> None:
    base: Any = SessionFold.__base__
    fold = base(SpanTable(b"\x00", True, 0, False), 5, 5, False)
    with pytest.raises(TypeError, match="SpanFold has no windows: SessionFold, SlidingFold have"):
        fold.fold([b"a"], [1], None, -1, [None], None, None)


@pytest.mark.parametrize("length", [2**61 + 1, TIMESTAMP_MAX])
def test_windows_of_ages_are_not_packed(batch_run: Run, length: int) -> None:
    for kind in (session, sliding):
        run = batch_run(app_of(kind(length), count()), cached=True)
        assert not is_packed(run)
        run.feed("in", [("a", 1, 5), ("a", 1, 2**61)])
        run.commit()
        assert 2 in [value for _, value, _ in run.rows("updates")]


def test_who_is_idle_is_asked_before_windows_are_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    newest_end = PackedAggregate.newest_end

    def counted(self: PackedAggregate) -> int | None:
        asked.append(self)
        return newest_end(self)

    monkeypatch.setattr(PackedAggregate, "newest_end", counted)
    app = Streams("app", key=string(), value=string())
    groups = app.stream("in").group_by_key().window(session(5)).count(name="t")
    groups.final(idle="10s").to("final")
    driver = TopologyTestDriver(app)
    driver.pipe("in", "x", key="a", timestamp=1)
    for _ in range(9):
        driver.advance_wall_clock("1s")
    assert (driver.read("final"), asked) == ([], [])
    driver.advance_wall_clock("1s")
    assert (len(driver.read("final")), len(asked)) == (1, 1)


@pytest.mark.parametrize("is_native", [True, False])
def test_a_key_of_very_many_windows_comes_back(
    batch_run: Run, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    """Its windows are found by their starts, not one after the other."""
    monkeypatch.setattr(native, "NATIVE", is_native)
    windows, calls = 2_000, 0
    run = batch_run(app_of(session(1, 10**9), count()), cached=True)
    run.feed("in", [("a", 1, at * 3) for at in range(windows)])
    run.commit()

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(counted)
    try:
        run.restart()
        assert len(run.tasks[0].store("rows")) == windows
    finally:
        sys.setprofile(None)
    assert calls < 100 * windows


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
