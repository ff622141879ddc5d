"""Tables with `retention=`: which rows leave, when, and what those below hear of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.tables import PlainRetention

from kafkalite.errors import TopologyError
from kafkalite.streams import TopologyTestDriver, count, msgpack, string
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.state.directory import StateDirectory

Event = tuple[Any, Any, int]  # key, value, timestamp


def builder() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=msgpack())


def kept(retention: Any = 10, **options: Any) -> StreamsBuilder:
    app = builder()
    app.table("in", retention=retention, name="rows", **options).to_stream().to("out")
    return app


def piped(app: StreamsBuilder, *events: Event) -> TopologyTestDriver:
    driver = TopologyTestDriver(app)
    for key, value, timestamp in events:
        driver.pipe("in", value, key=key, timestamp=timestamp, headers=[("h", b"")])
    return driver


def test_rows_that_nobody_updates_leave_with_a_deletion() -> None:
    driver = piped(kept(), ("a", 1, 0), ("b", 2, 1), ("a", 3, 10), ("c", 4, 12))
    records = driver.read("out")
    assert [(r.key, r.value, r.timestamp) for r in records] == [
        ("a", 1, 0), ("b", 2, 1), ("a", 3, 10), ("b", None, 12), ("c", 4, 12),
    ]  # fmt: skip
    assert [len(r.headers) for r in records] == [1, 1, 1, 0, 1]
    assert list(driver.store("rows").all()) == [("a", 3), ("c", 4)]


def test_an_update_older_than_the_retention_is_dropped() -> None:
    driver = piped(kept("5ms"), ("a", 1, 20), ("a", 2, 14), ("b", 2, 15), ("b", None, 14))
    assert dict(driver.store("rows").all()) == {"a": 1, "b": 2}
    assert driver.metrics()["dropped-records-total"] == 2


def test_groups_and_joins_below_hear_of_it() -> None:
    app = builder()
    table = app.stream("in").select_key(lambda v: v).to_table(retention=10)
    table.group_by(lambda v: "all").aggregate(n=count()).to_stream().to("counts")
    app.stream("asks").join(table, lambda one, row: row, how="left").to("answers")
    driver = piped(app, ("k", "a", 0), ("k", "b", 5), ("k", "c", 11))
    driver.pipe("asks", 0, key="a", timestamp=11)
    assert [record.value["n"] for record in driver.read("counts")] == [1, 2, 1, 2]
    assert [record.value for record in driver.read("answers")] == [None]


def test_updates_that_a_processor_made_may_bring_deletions_with_them() -> None:
    """Their keys are objects already, which a table that is written on does not need."""

    class Same:
        def init(self, context: Any) -> None:
            self.forward = context.forward

        def process(self, record: Any) -> None:
            self.forward(record)

    app = builder()
    made = app.stream("in").process_values(Same)
    table = made.to_table(retention=5, name="rows")
    table.join(app.table("other"), lambda one, other: one, how="left").to_stream().to("out")
    driver = piped(app, ("a", 1, 0), ("b", 2, 9))
    found = [(r.key, r.value, r.timestamp) for r in driver.read("out")]
    assert found == [("a", 1, 0), ("a", None, 9), ("b", 2, 9)]


keys = st.sampled_from(["a", "b", "c", None])
numbers = st.one_of(st.none(), st.integers(0, 5))
events = st.lists(st.tuples(keys, numbers, st.integers(0, 60)), max_size=40)
cuts = st.sets(st.integers(0, 40), max_size=4)


def pieces(items: list[Any], at: set[int]) -> list[list[Any]]:
    bounds = [0, *sorted(cut for cut in at if 0 < cut < len(items)), len(items)]
    return [items[low:high] for low, high in pairwise(bounds)]


@pytest.mark.parametrize("cached", [False, True])
@given(events, cuts, cuts, st.sampled_from([1, 7, 30]))
@settings(max_examples=80, deadline=None)
def test_in_batches_with_restarts(
    batch_run: Any,
    cached: bool,
    items: list[Event],
    batches: set[int],
    restarts: set[int],
    retention: int,
) -> None:
    run, plain = batch_run(kept(retention), cached=cached), PlainRetention(retention)
    dropped = 0
    for life in pieces(items, restarts):
        for batch in pieces(life, batches):
            if batch:
                run.feed("in", batch)
        run.commit()
        dropped += run.total("dropped-records-total")
        run.restart()
    for item in items:
        plain.add(*item)
    assert run.rows("out") == plain.results
    assert dropped == plain.dropped


def test_rows_leave_the_changelogs_too(batch_run: Any) -> None:
    run = batch_run(kept())
    for at in range(0, 1_000, 20):
        run.feed("in", [(str(at), at, at), ("often", at, at)])
        run.commit()
    latest: dict[Any, Any] = {}
    for topic, some in run.changelog.items():
        for columns in some:
            rows = zip(columns.keys, columns.values, strict=True)
            latest.update({(topic, key): value for key, value in rows})
    there = [key for (_, key), value in latest.items() if value is not None]
    assert len(there) <= 8  # two rows, their times and entries, notes


def test_rows_leave_that_are_on_disk(tmp_path: Path, batch_run: Any) -> None:
    directory = StateDirectory(tmp_path, "app")
    run = batch_run(kept(), place=lambda: directory.task("0_0"))
    run.feed("in", [("a", 1, 0), ("b", 2, 9)])
    run.commit()
    (task,) = run.tasks
    task.checkpoint(dict.fromkeys(task.changelog_topics.values(), 1))
    task.shrink(0)
    run.feed("in", [("c", 3, 11)])
    assert run.rows("out")[-2:] == [("a", None, 11), ("c", 3, 11)]
    assert list(task.store("rows").all()) == [("b", 2), ("c", 3)]


Mistake = Callable[[StreamsBuilder], object]
MISTAKES: list[tuple[Mistake, str]] = [
    (lambda app: app.table("in", retention=0), "retention"),
    (lambda app: app.table("in", retention="1h", history="1h"), "exclude each other"),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_mistakes(make: Mistake, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        make(builder())


def test_it_says_what_it_does() -> None:
    text = kept("7d").describe()
    assert "(7d)" in text
    assert "app-in-retention-changelog" in text
