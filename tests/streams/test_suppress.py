"""Rows that are held back: `suppress`, and `final` below filters, against the plain reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from struct import pack
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.emit import FinalRows, Suppress, Update

from kafkalite.errors import TopologyError
from kafkalite.streams import (
    Windowed,
    count,
    hopping,
    int64,
    json,
    msgpack,
    session,
    sliding,
    string,
    sum_,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver
from kafkalite.streams.local.state.rocks import RocksBackend

Row = tuple[Any, Any, int]

keys = st.sampled_from(["a", "b", "ab", ""])
rows = st.one_of(st.none(), st.integers(-3, 6))
times = st.integers(0, 40)
updates = st.lists(st.tuples(keys, rows, times), max_size=25)
cuts = st.lists(st.integers(0, 25), max_size=4)
limits = st.sampled_from([0, 1, 5, 20])
mosts = st.sampled_from([None, 1, 2, 3])


def app_of() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=msgpack())


def split(items: list[Any], at: list[int]) -> Iterator[list[Any]]:
    bounds = sorted({0, len(items), *(cut for cut in at if cut < len(items))})
    for low, high in pairwise(bounds):
        yield items[low:high]


def expected(items: list[Row], limit: int, most: int | None) -> list[Update]:
    """The updates of a table that leave."""
    held, latest, gone = Suppress(limit, most), dict[str, Any](), list[Update]()
    for key, value, time in items:
        gone += held.take(Update(key, key.encode(), latest.get(key), value, time))
        latest[key] = value
    return gone


class RocksPlace:
    """A place in a directory that is gone after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[RocksBackend] = []

    def backend(self, store: str) -> RocksBackend:
        self.opened.append(RocksBackend(self.folder / store))
        return self.opened[-1]

    def note(self, now_ms: int) -> None: ...

    def close(self) -> None:
        for each in self.opened:
            each.close()


@contextmanager
def places(kind: str) -> Iterator[Callable[[], Any] | None]:
    """What gives each task a place for its stores, an empty one."""
    with ExitStack() as stack:

        def rocks() -> RocksPlace:
            place = RocksPlace(Path(stack.enter_context(TemporaryDirectory())))
            stack.callback(place.close)
            return place

        yield rocks if kind == "rocks" else None


def test_a_row_leaves_its_limit_after_its_first_update_as_the_last_left_it() -> None:
    app = app_of()
    app.table("in").suppress(10).to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in", 1, key="a", timestamp=0, headers=[("h", b"1")])
    driver.pipe("in", 2, key="a", timestamp=7, headers=[("h", b"2")])
    driver.pipe("in", 1, key="b", timestamp=9)
    assert driver.read("out") == []
    driver.pipe("in", 2, key="b", timestamp=10)
    (record,) = driver.read("out")
    assert (record.key, record.value, record.timestamp) == ("a", 2, 7)
    assert record.headers == (("h", b"2"),)


def test_deletions_go_on_and_no_limit_lets_all_pass() -> None:
    app = app_of()
    app.table("in").suppress(0).to_stream().to("out")
    driver = TopologyTestDriver(app)
    for key, value, time in [("a", 1, 9), ("a", None, 3), ("b", None, 1)]:
        driver.pipe("in", value, key=key, timestamp=time)
    assert [(r.key, r.value, r.timestamp) for r in driver.read("out")] == [
        ("a", 1, 9), ("a", None, 3), ("b", None, 1),
    ]  # fmt: skip


def test_a_full_buffer_sends_its_oldest_rows_on() -> None:
    app = app_of()
    app.table("in").suppress("1h", max_records=2).to_stream().to("out")
    driver = TopologyTestDriver(app)
    for key, time in [("b", 5), ("a", 5), ("c", 1), ("d", 9)]:
        driver.pipe("in", time, key=key, timestamp=time)
    assert [r.key for r in driver.read("out")] == ["c", "a"]


@given(updates, limits, mosts, cuts, cuts, st.sampled_from(["memory", "rocks"]))
@settings(max_examples=120, deadline=None)
def test_tables_in_batches_with_restarts(
    batch_run: Any,
    items: list[Row],
    limit: int,
    most: int | None,
    batches: list[int],
    restarts: list[int],
    kind: str,
) -> None:
    app = app_of()
    app.table("in").suppress(limit, most).to_stream().to("out")
    with places(kind) as place:
        run = batch_run(app, place=place)
        for life in split(items, restarts):
            for batch in split(life, batches):
                run.feed("in", batch)
            run.commit()
            run.restart()
        assert run.rows("out") == [update.row for update in expected(items, limit, most)]


@given(updates, limits, mosts, cuts, cuts, st.booleans())
@settings(max_examples=120, deadline=None)
def test_groups_below_know_the_rows_that_they_have(
    batch_run: Any,
    items: list[Row],
    limit: int,
    most: int | None,
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    app = app_of()
    held = app.table("in").map(lambda v: v + 1).suppress(limit, most).filter(lambda v: v > 0)
    groups = held.group_by(lambda v: "odd" if v % 2 else "even")
    groups.aggregate(n=count(), total=sum_()).to_stream().to("out", value=json())
    run = batch_run(app, cached=cached)
    for life in split(items, restarts):
        for batch in split(life, batches):
            run.feed("in", batch)
        run.commit()
        run.restart()
    table = {u.key: u.new + 1 for u in expected(items, limit, most) if u.new is not None}
    for update in expected(items, limit, most):
        if update.new is None:
            table.pop(update.key, None)
        else:
            table[update.key] = update.new + 1
    found = {key: row for key, row, _ in run.rows("out")}
    for name, rest in (("odd", 1), ("even", 0)):
        there = [row for row in table.values() if row > 0 and row % 2 == rest]
        row = found.get(name, {"n": 0, "total": 0})
        assert row == {"n": len(there), "total": sum(there)}


def test_a_filter_below_deletes_only_what_left() -> None:
    app = app_of()
    app.table("in", name="t").suppress(10).filter(lambda v: v > 1).to_stream().to("out")
    driver = TopologyTestDriver(app)
    for value, time in [(1, 0), (5, 1), (1, 2), (1, 20), (5, 21), (5, 40), (0, 41), (0, 99)]:
        driver.pipe("in", value, key="a", timestamp=time)
    # 1 left at 20, 5 at 31 as it was then, and with 99 the deletion of that.
    assert [(r.value, r.timestamp) for r in driver.read("out")] == [(5, 40), (None, 99)]


class PlainCounts:
    """Counts in tumbling windows of 10 with a grace of 5, and what is left of them by a filter."""

    def __init__(self) -> None:
        self.time = -1
        self.counts: dict[tuple[int, str], int] = {}
        self.stamps: dict[tuple[int, str], int] = {}

    def add(self, key: str, value: Any, time: int) -> Iterator[Update]:
        self.time = max(self.time, time)
        start = time // 10 * 10
        if start + 15 <= self.time:
            return
        at = (start, key)
        old = self.counts.get(at)
        self.counts[at] = (old or 0) + 1
        self.stamps[at] = max(self.stamps.get(at, -1), time)
        both = [row if row is not None and row % 3 else None for row in (old, self.counts[at])]
        if both != [None, None]:
            data = key.encode() + pack(">q", start)
            window = Windowed(key, start, start + 10)
            yield Update(window, data, *both, self.stamps[at])


def final_app() -> StreamsBuilder:
    app = app_of()
    table = app.stream("in").group_by_key().window(tumbling(10, grace=5)).count()
    table.filter(lambda n: n % 3 != 0).final().to("out", value=int64())
    return app


@given(updates, cuts)
@settings(max_examples=120, deadline=None)
def test_final_below_a_filter_goes_by_the_rows_that_pass(
    batch_run: Any, items: list[Row], restarts: list[int]
) -> None:
    run, counts, final = batch_run(final_app()), PlainCounts(), FinalRows(5)
    wanted = []
    for life in split(items, restarts):
        for item in life:
            run.feed("in", [item])
            for update in counts.add(*item):
                wanted += [each.row for each in final.take(update)]
        run.commit()
        run.restart()
    assert run.rows("out") == wanted


@given(updates, cuts, cuts, st.booleans(), st.sampled_from(["memory", "rocks"]))
@settings(max_examples=100, deadline=None)
def test_final_below_a_filter_sends_each_window_once(
    batch_run: Any,
    items: list[Row],
    batches: list[int],
    restarts: list[int],
    cached: bool,
    kind: str,
) -> None:
    counts, newest = PlainCounts(), dict[Any, Row]()
    for item in items:
        for update in counts.add(*item):
            newest[update.key] = update.row
    with places(kind) as place:
        run = batch_run(final_app(), cached=cached, place=place)
        for life in split(items, restarts):
            for batch in split(life, batches):
                run.feed("in", batch)
            run.commit()
            run.restart()
        run.feed("in", [("z", 1, 1_000)])  # passes, and closes all
        run.commit()
    wanted = sorted(row for row in newest.values() if row[1] is not None)
    assert sorted(run.rows("out")) == wanted


@given(
    updates,
    st.sampled_from(
        [tumbling(5), hopping(10, 4, grace=3), session(4, grace=2), sliding(5, grace=2)]
    ),
    cuts,
)
@settings(max_examples=120, deadline=None)
def test_final_below_a_filter_that_all_pass_is_final(
    batch_run: Any, items: list[Row], window: Any, restarts: list[int]
) -> None:
    app = app_of()
    table = app.stream("in").group_by_key().window(window).count()
    table.final().to("plain", value=int64())
    table.filter(lambda n: True).final().to("filtered", value=int64())
    run = batch_run(app)
    for life in split(items, restarts):
        for item in life:
            run.feed("in", [item])
        run.commit()
        run.restart()
    assert run.rows("filtered") == run.rows("plain")


def test_final_below_a_filter_closes_when_the_input_is_idle() -> None:
    app = app_of()
    table = app.stream("in").group_by_key().window(tumbling(10)).count()
    table.filter(lambda n: n > 1).final(idle="30s").to("out", value=int64())
    driver = TopologyTestDriver(app)
    for time in (1, 2):
        driver.pipe("in", 0, key="a", timestamp=time)
    driver.advance_wall_clock("29s")
    assert driver.read("out") == []
    driver.advance_wall_clock("1s")
    (record,) = driver.read("out")
    assert (record.key, record.value, record.timestamp) == (Windowed("a", 0, 10), 2, 2)
    driver.pipe("in", 0, key="a", timestamp=3)
    assert driver.metrics()["late-records-total"] == 1


def test_final_and_late_below_suppress() -> None:
    app = app_of()
    table = app.stream("in").group_by_key().window(tumbling(10)).count().suppress(3)
    table.final().to("out")
    table.late().to("late")
    driver = TopologyTestDriver(app)
    for time in (1, 5, 12, 16, 3):
        driver.pipe("in", 0, key="a", timestamp=time)
    assert [(r.key.start, r.value) for r in driver.read("out")] == [(0, 2)]
    assert [r.timestamp for r in driver.read("late")] == [3]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"limit": -1}, "suppress of 'in': limit"),
        ({"limit": "soon"}, "suppress of 'in': limit"),
        ({"limit": 1, "max_records": 0}, "suppress of 'in': max_records: expected 1 or more, got"),
        ({"limit": 1, "max_records": True}, "max_records: expected 1 or more, got True"),
        ({"limit": 1, "value": string}, "value= expected a serde"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        app_of().table("in").suppress(**given)


def test_final_needs_windows_all_the_way_up() -> None:
    app = app_of()
    counts = app.stream("in").group_by_key().window(tumbling(10)).count()
    for table in (app.table("t").suppress(1), counts.to_stream().to_table().filter(bool)):
        with pytest.raises(TopologyError, match=r"final of .*put \.window\(tumbling\(…\)\) before"):
            table.final()  # type: ignore[misc]


def test_a_join_finds_the_row_that_was_sent_last() -> None:
    app = app_of()
    table = app.table("rows").suppress(10)
    app.stream("in").join(table, lambda v, row: (v, row), how="left").to("out")
    driver = TopologyTestDriver(app)
    found = []
    for row, time in [(1, 0), (2, 10), (3, 11), (4, 30)]:
        driver.pipe("rows", row, key="a", timestamp=time)
        driver.pipe("in", time, key="a", timestamp=time)
        found += [tuple(r.value) for r in driver.read("out")]
    assert found == [(0, None), (10, 2), (11, 2), (30, 4)]


def test_a_join_finds_the_row_that_the_last_of_several_has_sent() -> None:
    app = app_of()
    table = app.stream("rows").group_by_key().reduce(max).suppress(5).suppress(20)
    app.stream("in").join(table, lambda v, row: [v, row]).to("out")
    driver = TopologyTestDriver(app)
    for key, row, time in [("a", 1, 0), ("b", 2, 30), ("b", 3, 40), ("a", 4, 50), ("b", 5, 60)]:
        driver.pipe("rows", row, key=key, timestamp=time)
    driver.pipe("in", 0, key="a", timestamp=60)
    assert [tuple(r.value) for r in driver.read("out")] == [(0, 1)]


def test_it_is_described_and_owns_a_store() -> None:
    app = app_of()
    app.table("in").suppress("10s", max_records=5, name="calm").to_stream().to("out")
    text = app.describe()
    assert "suppress: calm (10s, at most 5 rows)" in text
    assert "store: calm (changelog: app-calm-changelog;" in text
