"""Operators against the plain loops that define them, on random records in random batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.streams import (
    Windowed,
    collect,
    collect_set,
    count,
    first,
    fold,
    hopping,
    int64,
    json,
    last,
    max_,
    mean,
    min_,
    msgpack,
    reduce_,
    string,
    sum_,
    top_k,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.windows import TimeWindow

Row = tuple[Any, Any, int]

keys = st.sampled_from(["a", "b", "c", None])
numbers = st.one_of(st.none(), st.integers(-5, 5))
times = st.integers(0, 60)
records = st.lists(st.tuples(keys, numbers, times), max_size=30)
# Mostly ascending, as real topics are; the slicing fast path takes these.
ascending = records.map(lambda rs: sorted(rs, key=lambda r: r[2]))
inputs = st.one_of(records, ascending)
cuts = st.lists(st.integers(0, 30), max_size=4)
windows = st.sampled_from(
    [
        tumbling(10),
        tumbling(7, grace=5),
        hopping(10, 5),
        hopping(10, 3, grace=4),
        hopping(9, 9),
        hopping(12, 4, grace=100),
    ]
)

AGGREGATES: dict[str, tuple[Any, Callable[[list[Any]], Any]]] = {
    "n": (count(), len),
    "there": (count(lambda v: v), lambda vs: len(some(vs))),
    "total": (sum_(), lambda vs: sum(some(vs))),
    "mean": (mean(), lambda vs: sum(some(vs)) / len(some(vs)) if some(vs) else None),
    "least": (min_(), lambda vs: min(some(vs), default=None)),
    "most": (max_(), lambda vs: max(some(vs), default=None)),
    "first": (first(), lambda vs: next(iter(some(vs)), None)),
    "last": (last(), lambda vs: next(iter(some(vs)[::-1]), None)),
    "all": (collect(), lambda vs: some(vs)),
    "set": (collect_set(), lambda vs: list(dict.fromkeys(some(vs)))),
    "top": (top_k(2), lambda vs: sorted(some(vs), reverse=True)[:2]),
    "fold": (fold("", lambda a, v: f"{a}{v},"), lambda vs: "".join(f"{v}," for v in vs)),
    "reduced": (
        reduce_(lambda a, v: a * 3 + v),
        lambda vs: reduced(some(vs)),
    ),
}


def some(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def reduced(values: list[int]) -> int | None:
    result = None
    for value in values:
        result = value if result is None else result * 3 + value
    return result


def row_of(values: list[Any]) -> dict[str, Any]:
    return {name: plain(values) for name, (_, plain) in AGGREGATES.items()}


def split(items: list[Any], at: list[int]) -> Iterator[list[Any]]:
    bounds = sorted({0, len(items), *(cut for cut in at if cut < len(items))})
    for low, high in pairwise(bounds):
        yield items[low:high]


class PlainWindows:
    """Tumbling and hopping windows record by record, from the rules alone."""

    def __init__(self, window: TimeWindow) -> None:
        self.window = window
        self.time = -1
        self.values: dict[tuple[int, str], list[Any]] = {}
        self.stamps: dict[tuple[int, str], int] = {}
        self.updates: list[Row] = []
        self.final: list[Row] = []
        self.late: list[Row] = []
        self.dropped = 0

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        if key is None:
            self.dropped += 1
            return
        w = self.window
        self.time = max(self.time, timestamp)
        start = max(0, timestamp - w.size_ms + w.advance_ms) // w.advance_ms * w.advance_ms
        missed = True
        while start <= timestamp:
            if start + w.size_ms + w.grace_ms > self.time:
                missed = False
                place = (start, key)
                self.values.setdefault(place, []).append(value)
                self.stamps[place] = max(self.stamps.get(place, -1), timestamp)
                self.updates.append(self.row(place))
            else:
                self.dropped += 1
            start += w.advance_ms
        if missed:
            self.late.append((key, value, timestamp))
        for place in sorted(self.values):
            if place[0] + w.size_ms + w.grace_ms <= self.time:
                self.final.append(self.row(place))
                del self.values[place]

    def row(self, place: tuple[int, str]) -> Row:
        start, key = place
        windowed = Windowed(key, start, start + self.window.size_ms)
        return windowed, row_of(self.values[place]), self.stamps[place]


def windowed_app(window: TimeWindow) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = (
        app.stream("in")
        .group_by_key()
        .window(window)
        .aggregate(**{name: aggregate for name, (aggregate, _) in AGGREGATES.items()})
    )
    table.to_stream().to("updates")
    table.final().to("final")
    table.late().to("late")
    return app


def newest_by_key(rows: list[Row]) -> dict[Any, Any]:
    return {key: (value, timestamp) for key, value, timestamp in rows}


@pytest.mark.slow
@given(windows, inputs)
@settings(max_examples=150, deadline=None)
def test_windows_record_by_record(batch_run: Any, window: TimeWindow, items: list[Row]) -> None:
    run, plain = batch_run(windowed_app(window)), PlainWindows(window)
    for item in items:
        run.feed("in", [item])
        plain.add(*item)
    assert run.rows("updates") == plain.updates
    assert run.rows("final") == plain.final
    assert run.rows("late") == plain.late
    assert run.total("dropped-records-total") == plain.dropped


@pytest.mark.slow
@given(windows, inputs, cuts, cuts, st.booleans())
@settings(max_examples=300, deadline=None)
def test_windows_in_batches_with_restarts(
    batch_run: Any,
    window: TimeWindow,
    items: list[Row],
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    run, plain = batch_run(windowed_app(window), cached=cached), PlainWindows(window)
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
    assert newest_by_key(run.rows("updates")) == newest_by_key(plain.updates)


class PlainRows:
    """An aggregate without windows, record by record."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}
        self.stamps: dict[str, int] = {}
        self.updates: list[Row] = []

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        if key is None or value is None:
            return
        self.values.setdefault(key, []).append(value)
        self.stamps[key] = max(self.stamps.get(key, -1), timestamp)
        self.updates.append((key, row_of(self.values[key]), self.stamps[key]))


@pytest.mark.slow
@given(inputs, cuts, cuts, st.booleans())
@settings(max_examples=150, deadline=None)
def test_aggregates_in_batches_with_restarts(
    batch_run: Any, items: list[Row], batches: list[int], restarts: list[int], cached: bool
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.stream("in").group_by_key()
    aggregates = {name: aggregate for name, (aggregate, _) in AGGREGATES.items()}
    table.aggregate(**aggregates).to_stream().to("updates")
    run, plain = batch_run(app, cached=cached), PlainRows()
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    for item in items:
        plain.add(*item)
    assert newest_by_key(run.rows("updates")) == newest_by_key(plain.updates)


# One bare aggregate: its row comes and goes with its value


def add_or_delete(total: int, value: int) -> int | None:
    return None if value == 0 else total + value


class PlainFold:
    """A fold that may delete, record by record: the timestamp starts anew."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, int]] = {}
        self.updates: list[Row] = []

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        if key is None or value is None:
            return
        total, stamp = self.rows.get(key, (0, timestamp))
        stamp = max(stamp, timestamp)
        result = add_or_delete(total, value)
        if result is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = (result, stamp)
        self.updates.append((key, result, stamp))


@pytest.mark.slow
@given(inputs, cuts, cuts, st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_fold_that_deletes(
    batch_run: Any, items: list[Row], batches: list[int], restarts: list[int], cached: bool
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    folded = app.stream("in").group_by_key().aggregate(fold(0, add_or_delete))
    folded.to_stream().to("updates")
    run, plain = batch_run(app, cached=cached), PlainFold()
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    for item in items:
        plain.add(*item)
    # A row that came and went between two commits may leave no trace, but no wrong one.
    found, wanted = newest_by_key(run.rows("updates")), newest_by_key(plain.updates)
    assert found == wanted


@given(inputs, cuts, st.sampled_from([min_, max_, first, last, mean]))
@settings(max_examples=150, deadline=None)
def test_one_bare_aggregate_is_the_same_in_batches(
    batch_run: Any, items: list[Row], batches: list[int], aggregate: Any
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    windowed = app.stream("in").group_by_key().window(tumbling(20, grace=10))
    table = windowed.aggregate(aggregate())
    table.to_stream().to("updates")
    table.final().to("final")
    one_by_one, batched = batch_run(app), batch_run(app)
    for item in items:
        one_by_one.feed("in", [item])
    for batch in split(items, batches):
        batched.feed("in", batch)
    assert batched.rows("final") == one_by_one.rows("final")
    by_batch, by_record = (newest_by_key(r.rows("updates")) for r in (batched, one_by_one))
    assert by_batch == by_record


# Stateless chains


@given(inputs, cuts)
@settings(max_examples=100, deadline=None)
def test_stateless_operators_are_the_plain_loop(
    batch_run: Any, items: list[Row], batches: list[int]
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    some_, none = app.stream("in").branch(lambda v: v is not None, default=True)
    some_.filter(lambda v: v % 2).flat_map(range).map(lambda v: v * 2).to("odd")
    some_.filter_not(lambda v: v % 2).select_key(str).to("even")
    none.map_pairs(lambda k, v: (v, k)).to("none")
    some_.flat_map_pairs(lambda k, v: [(k, v), (k, -v)]).map(lambda k, v: (k, v), with_key=True).to(
        "pairs"
    )
    some_.merge(none).to("merged")
    run = batch_run(app)
    for batch in split(items, batches):
        run.feed("in", batch)
    there = [(k, v, t) for k, v, t in items if v is not None]
    odd = [(k, i * 2, t) for k, v, t in there if v % 2 for i in range(v)]
    assert run.rows("odd") == odd
    assert run.rows("even") == [(str(v), v, t) for _, v, t in there if not v % 2]
    assert run.rows("none") == [(None, k, t) for k, v, t in items if v is None]
    assert run.rows("pairs") == [(k, (k, w), t) for k, v, t in there for w in (v, -v)]
    assert run.rows("merged") == items


# Tables and their groups

teams = st.one_of(
    st.none(),
    st.fixed_dictionaries({"team": st.sampled_from(["x", "y", None]), "n": st.integers(0, 9)}),
)
changes = st.lists(st.tuples(st.sampled_from("abc"), teams, times), max_size=25)


class PlainGroups:
    """Rows grouped by team: count, sum, and what a fold makes of them, change by change."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self.groups: dict[str, tuple[int, int, int]] = {}  # count, sum, newest timestamp
        self.updates: list[Row] = []

    def add(self, key: str, row: Any, timestamp: int) -> None:
        old, self.table[key] = self.table.get(key), row
        out_of, into = (r and r["team"] for r in (old, row))
        if out_of is not None and out_of == into:
            self.change(into, row["n"] - old["n"], 0, timestamp)
            return
        if out_of is not None:
            self.change(out_of, -old["n"], -1, timestamp)
        if into is not None:
            self.change(into, row["n"], 1, timestamp)

    def change(self, team: str, n: int, by: int, timestamp: int) -> None:
        counted, total, stamp = self.groups.get(team, (0, 0, timestamp))
        self.groups[team] = (counted + by, total + n, max(stamp, timestamp))
        counted, total, stamp = self.groups[team]
        self.updates.append((team, {"n": counted, "total": total}, stamp))


def grouped_app() -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=json())
    groups = app.table("in", value=msgpack()).group_by("team")
    groups.aggregate(n=count(), total=sum_("n")).to_stream().to("updates")
    return app


@given(changes)
@settings(max_examples=100, deadline=None)
def test_table_groups_change_by_change(batch_run: Any, items: list[Row]) -> None:
    run, plain = batch_run(grouped_app()), PlainGroups()
    for item in items:
        run.feed("in", [item])
        plain.add(*item)
    found = newest_by_key(run.rows("updates"))
    assert found == newest_by_key(plain.updates)


@pytest.mark.slow
@given(changes, cuts, cuts, st.booleans())
@settings(max_examples=150, deadline=None)
def test_table_groups_in_batches_with_restarts(
    batch_run: Any, items: list[Row], batches: list[int], restarts: list[int], cached: bool
) -> None:
    run, plain = batch_run(grouped_app(), cached=cached), PlainGroups()
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    for item in items:
        plain.add(*item)
    assert newest_by_key(run.rows("updates")) == newest_by_key(plain.updates)


@given(changes, cuts, st.booleans())
@settings(max_examples=100, deadline=None)
def test_filters_of_tables_agree_on_the_rows(
    batch_run: Any, items: list[Row], batches: list[int], cached: bool
) -> None:
    """Whatever is materialised, the table that a filter makes is the same."""
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.table("in")
    table.filter(lambda v: v["n"] > 4).to_stream().to("through")
    table.filter(lambda v: v["n"] > 4, name="kept").to_stream().to("stored")
    table.map(lambda v: v["n"]).filter_not(lambda n: n <= 4).to_stream().to("mapped", value=int64())
    run = batch_run(app, cached=cached)
    for batch in split(items, batches):
        run.feed("in", batch)
    run.commit()
    wanted = {k: v for k, v, _ in items if v is not None}
    wanted = {k: v for k, v in {k: v for k, v, _ in items}.items() if v and v["n"] > 4}
    for topic in ("through", "stored", "mapped"):
        latest = {k: v for k, v, _ in run.rows(topic)}
        found = {k: v for k, v in latest.items() if v is not None}
        assert found == (wanted if topic != "mapped" else {k: v["n"] for k, v in wanted.items()})
