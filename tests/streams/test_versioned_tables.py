"""Versioned tables: what a stream finds as of its records' times, at once or after a grace."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.tables import PlainVersions

from kafkalite.errors import TopologyError
from kafkalite.streams import TopologyTestDriver, count, msgpack, string, tumbling
from kafkalite.streams.api import StreamsBuilder

Event = tuple[str, Any, Any, int]  # topic, key, value, timestamp


def app_of(how: Any, history: int, grace: int) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.table("u", history=history, name="versions")
    app.stream("t").join(table, lambda s, t: [s, t], how=how, grace=grace).to("out")
    table.to_stream().to("updates")
    return app


def piped(app: StreamsBuilder, *events: Event) -> TopologyTestDriver:
    driver = TopologyTestDriver(app)
    for topic, key, value, timestamp in events:
        driver.pipe(topic, value, key=key, timestamp=timestamp)
    return driver


def test_a_record_finds_the_row_of_its_time() -> None:
    driver = piped(
        app_of("left", 50, 0),
        *[("u", "a", 1, 10), ("u", "a", 2, 30), ("u", "a", None, 20)],
        *[("t", "a", at, at) for at in (9, 10, 20, 30, 99)],
    )
    found = [record.value[1] for record in driver.read("out")]
    assert found == [None, 1, None, 2, 2]
    store = driver.store("versions")
    assert (store.get("a"), store.get("a", 15), list(store.all())) == (2, 1, [("a", 2)])


def test_what_is_older_than_the_history_is_dropped_and_forgotten() -> None:
    driver = piped(
        app_of("left", 20, 0),
        *[("u", "a", 1, 10), ("u", "a", 2, 30), ("u", "b", 3, 49), ("t", "a", 0, 29)],
        *[("u", "b", 4, 51), ("u", "b", 5, 30), ("t", "a", 1, 29), ("t", "a", 2, 30)],
    )
    assert [record.value for record in driver.read("out")] == [[0, 1], [1, None], [2, 2]]
    assert [record.value for record in driver.read("updates")] == [1, 2, 3, 4]
    assert driver.metrics()["dropped-records-total"] == 1


def test_state_is_bounded_by_the_history(batch_run: Any) -> None:
    run = batch_run(app_of("inner", 10, 0))
    run.feed("u", [("a", number, number) for number in range(1_000)])
    run.feed("u", [("b", None, 1_000), ("c", 1, 2_000)])
    (store,) = run.tasks[0]._runtime.stores.values()
    assert len(store) == 2  # the latest ones of a and c


def test_records_wait_for_the_grace_and_leave_in_order() -> None:
    driver = piped(
        app_of("left", 50, 10),
        *[("t", "b", 1, 20), ("t", "a", 2, 20), ("t", None, 3, 20), ("t", "a", 4, 9)],
        *[("u", "a", "x", 5), ("t", "z", 5, 30)],
    )
    found = [(r.key, r.value, r.timestamp) for r in driver.read("out")]
    assert found == [
        ("a", [4, None], 9), (None, [3, None], 20), ("a", [2, "x"], 20), ("b", [1, None], 20),
    ]  # fmt: skip


def test_each_record_that_waited_goes_all_its_way_before_the_next() -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.table("u", history=50)
    waited = app.stream("t").join(table, lambda s, t: s, how="left", grace=10)
    waited.group_by_key().window(tumbling(100)).count().to_stream().to("out")
    driver = piped(app, ("t", "a", 1, 20), ("t", "a", 2, 21), ("t", "b", 3, 40))
    assert [(r.key.key, r.value) for r in driver.read("out")] == [("a", 1), ("a", 2)]


def test_groups_and_tables_take_the_latest_updates_alone() -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.stream("u").to_table(history="1m")
    table.group_by(lambda v: "all").aggregate(n=count()).to_stream().to("groups")
    table.join(app.table("w"), lambda a, b: [a, b]).to_stream().to("joined")
    table.filter(lambda v: v > 1).to_stream().to("filtered")
    driver = piped(app, ("w", "a", 0, 0), ("u", "a", 2, 20), ("u", "a", 1, 10), ("u", "a", 1, 30))
    assert [r.value["n"] for r in driver.read("groups")] == [1, 1]
    assert [r.value for r in driver.read("joined")] == [[2, 0], [1, 0]]
    assert [r.value for r in driver.read("filtered")] == [2, None, None]
    assert driver.metrics()["dropped-records-total"] == 1


@pytest.mark.parametrize("named", ["map", "both"])
def test_below_a_named_map_a_filter_deletes_only_rows_that_were_there(named: str) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.table("u", history=50).map(lambda v: v, name="kept")
    large = table.filter(lambda v: v > 3, name="large" if named == "both" else None)
    large.filter(lambda v: v != 9).to_stream().to("out")
    driver = piped(app, ("u", "a", 1, 5), ("u", "b", 9, 5), ("u", "b", 7, 6), ("u", "b", 1, 7))
    is_kept = [("b", 7), ("b", None)]
    found = [(record.key, record.value) for record in driver.read("out")]
    assert found == (is_kept if named == "both" else [("a", None), ("b", None), *is_kept])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a: a.stream("s").join(a.table("t"), max, grace=1), "'t' does not know: give it h"),
        (
            lambda a: a.stream("s").join(a.table("t", history=5), max, grace=6),
            "after a grace of 6ms 't' has forgotten .* history is 5ms",
        ),
        (lambda a: a.table("t", history=0), "history: expected at least 1 ms"),
    ],
)
def test_mistakes_are_named(build: Callable[[StreamsBuilder], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        build(StreamsBuilder("app"))


def test_describe_tells_history_and_grace() -> None:
    described = app_of("inner", 60_000, 1_000).describe()
    assert "history 1m" in described
    assert "grace 1s" in described


keys = st.sampled_from(["a", "b", None])
events = st.lists(
    st.tuples(st.sampled_from("tu"), keys, st.one_of(st.none(), st.integers(0, 5)),
              st.integers(0, 30)),
    max_size=30,
)  # fmt: skip
cuts = st.lists(st.integers(0, 30), max_size=4)


def pieces(items: list[Any], at: list[int]) -> list[list[Any]]:
    bounds = [0, *sorted({cut for cut in at if 0 < cut < len(items)}), len(items)]
    return [items[low:high] for low, high in pairwise(bounds)]


@given(
    events, cuts, cuts, st.sampled_from(["inner", "left"]), st.sampled_from([3, 10, 100]),
    st.sampled_from([0, 1, 3]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_versions_in_batches_with_restarts(
    batch_run: Any,
    items: list[Event],
    batches: list[int],
    restarts: list[int],
    how: Any,
    history: int,
    grace: int,
) -> None:
    run, plain = batch_run(app_of(how, history, grace)), PlainVersions(how, history, grace)
    dropped = 0
    for life in pieces(items, restarts):
        for piece in pieces(life, batches):
            for topic, some in groupby(piece, key=lambda event: event[0]):
                run.feed(topic, [event[1:] for event in some])
        run.commit()
        dropped += run.total("dropped-records-total")
        run.restart()
    for topic, key, value, stamp in items:
        (plain.stream if topic == "t" else plain.table)(key, value, stamp)
    assert run.rows("out") == plain.results
    assert run.rows("updates") == plain.updates
    assert dropped == plain.dropped
