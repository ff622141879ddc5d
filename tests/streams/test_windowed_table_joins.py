"""Joins of windowed tables: how long a row is found, and the same in batches with restarts."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.streams import (
    TopologyTestDriver,
    hopping,
    msgpack,
    session,
    sliding,
    string,
    tumbling,
    unlimited,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.state.directory import StateDirectory

WINDOWS = {
    "tumbling": (tumbling(10, 5), tumbling(10)),
    "hopping": (hopping(10, 4, 2), hopping(10, 5, 7)),
    "session": (session(4, 2), session(3, 5)),
    "sliding": (sliding(6, 3), sliding(6, 5)),
    "unlimited": (unlimited(5), unlimited(5)),
}


def joined(kind: str, how: Any = "outer", **options: Any) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    left, right = (
        app.stream(topic).group_by_key().window(window).count(cached=False)
        for topic, window in zip("tu", WINDOWS[kind], strict=True)
    )
    both = left.join(right, lambda one, other: [one, other], how=how, **options)
    both.to_stream().to("out")
    return app


def referring(kind: str) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    left = app.stream("t").group_by_key().window(WINDOWS[kind][0]).count()
    right = app.table("u")
    made = left.join(right, lambda n, row: [n, row], foreign_key=lambda n: "ab"[n % 2], how="left")
    made.to_stream().to("out")
    return app


def shown(driver: TopologyTestDriver) -> list[Any]:
    return [((r.key.start, r.key.end), r.value, r.timestamp) for r in driver.read("out")]


@pytest.mark.parametrize(
    ("kind", "last", "gone"),
    [
        # A window [0, 10) of the left closes at 15; its row is found up to the window that starts
        # at 10, the last one that starts less than size and grace later.
        ("tumbling", 19, 20),
        ("hopping", 11, 12),  # [0, 10) closes at 12, when one begins that is too new
        ("session", 6, 7),  # [1, 1] + 4 + 2: Kafka Streams hides it one ms before it closes
        ("sliding", 20, 21),  # [0, 6]: the newest window starts at 15, 2 * 6 + 3 later
    ],
)
def test_a_row_is_found_for_a_while_after_its_window_has_closed(
    kind: str, last: int, gone: int
) -> None:
    for time, is_there in ((last, True), (gone, False)):
        driver = TopologyTestDriver(joined(kind, "inner"))
        driver.pipe("t", 0, key="a", timestamp=1)
        driver.pipe("t", 0, key="b", timestamp=time)
        driver.pipe("u", 0, key="a", timestamp=1)
        assert len(shown(driver)) == is_there, time


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_meet_that_are_alike(kind: str) -> None:
    driver = TopologyTestDriver(joined(kind, "inner"))
    for topic in "tu":
        driver.pipe(topic, 0, key="a", timestamp=7)
        driver.pipe(topic, 0, key="b", timestamp=7)
    starts = {
        "tumbling": [0],
        "hopping": [0],  # those of the left begin at 0 and 4, those of the right at 0 and 5
        "session": [7],
        "sliding": [1],
        "unlimited": [5],
    }
    assert [(at, value) for (at, _), value, _ in shown(driver)] == [
        (at, [1, 1]) for _ in "ab" for at in starts[kind]
    ]


def test_windows_that_no_join_finds_any_more_leave_the_store(batch_run: Any) -> None:
    run = batch_run(joined("tumbling"))
    for time in range(0, 1000, 10):
        run.feed("t", [("a", 0, time)])
    run.commit()
    (task,) = run.tasks
    assert all(len(store.buckets) <= 2 for store in task._runtime.stores.values())


def test_closed_windows_stay_closed_after_a_restart_and_are_still_found(batch_run: Any) -> None:
    run = batch_run(joined("tumbling", "inner"))
    run.feed("t", [("a", 0, 1), ("b", 0, 16)])
    run.commit()
    run.restart()
    run.feed("t", [("a", 0, 2)])  # too late
    run.feed("u", [("a", 0, 3)])
    assert [(key.start, value) for key, value, _ in run.rows("out")] == [(0, [1, 1])]


def test_each_window_of_a_record_goes_all_the_way_before_the_next(batch_run: Any) -> None:
    """A table that is joined with itself: both sides hear of one window, then of the other."""
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.stream("in").group_by_key().window(sliding(10)).count(name="t")
    table.join(table, lambda left, right: left + right).to_stream().to("out")
    run = batch_run(app)
    run.feed("in", [("a", 0, 20), ("a", 0, 25)])
    assert [(key.start, value) for key, value, _ in run.rows("out")] == [
        (10, 2), (10, 2), (21, 2), (21, 2), (15, 4), (15, 4),
    ]  # fmt: skip


events = st.lists(
    st.tuples(st.sampled_from("tu"), st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 8)),
    max_size=40,
)
cuts = st.sets(st.integers(0, 40), max_size=4)


def ahead(items: list[Any]) -> list[Any]:
    """Timestamps that go on, some of them behind the others."""
    made, now = [], 0
    for topic, key, back, step in items:
        now += step
        made.append((topic, key, max(0, now - back)))
    return made


def expected(app: StreamsBuilder, items: list[Any]) -> list[Any]:
    driver = TopologyTestDriver(app)
    for topic, key, stamp in items:
        driver.pipe(topic, stamp, key=key, timestamp=stamp)
    return [(r.key, r.value, r.timestamp) for r in driver.read("out")]


def feed(run: Any, items: list[Any], batches: set[int], restarts: set[int]) -> None:
    numbered = list(enumerate(items))
    life = 0
    for _, piece in groupby(numbered, key=lambda each: sum(each[0] >= at for at in batches)):
        for (topic, lives), some in groupby(
            piece, key=lambda each: (each[1][0], sum(each[0] >= at for at in restarts))
        ):
            if lives != life:
                run.commit()
                run.restart()
                life = lives
            run.feed(topic, [(key, stamp, stamp) for _, (_, key, stamp) in some])
    run.commit()


@pytest.mark.parametrize("kind", WINDOWS)
@given(events, cuts, cuts, st.sampled_from(["inner", "left", "outer"]))
@settings(max_examples=30, deadline=None)
def test_batches_with_restarts_give_what_single_records_do(
    batch_run: Any, kind: str, items: list[Any], batches: set[int], restarts: set[int], how: str
) -> None:
    items = ahead(items)
    run = batch_run(joined(kind, how))
    feed(run, items, batches, restarts)
    assert run.rows("out") == expected(joined(kind, how), items)


@pytest.mark.parametrize("kind", ["tumbling", "session", "sliding"])
def test_windowed_rows_refer_to_rows_of_a_table(kind: str) -> None:
    driver = TopologyTestDriver(referring(kind))
    driver.pipe("t", 0, key="k", timestamp=1)
    driver.pipe("u", 5, key="b", timestamp=2)
    driver.pipe("t", 0, key="other", timestamp=60)
    driver.pipe("u", 6, key="b", timestamp=3)  # the first window is not found any more
    found = [(r.key.key, r.value, r.timestamp) for r in driver.read("out")]
    assert found == [
        ("k", [1, None], 1), ("k", [1, 5], 2), ("other", [1, 5], 60), ("other", [1, 6], 3),
    ]  # fmt: skip
    assert driver.metrics()["dropped-records-total"] == 1


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_closed_windows_are_found_on_disk(kind: str, tmp_path: Any, batch_run: Any) -> None:
    directory = StateDirectory(tmp_path, "app")
    run = batch_run(joined(kind, "inner"), place=lambda: directory.task("0_0"))
    run.feed("t", [("a", 0, 1), ("b", 0, 6 if kind == "session" else 16)])
    run.commit()
    for task in run.tasks:
        for store in task._runtime.stores.values():
            store.shrink(0)
    run.feed("u", [("a", 0, 1)])
    assert [value for _, value, _ in run.rows("out")] == [[1, 1]]
