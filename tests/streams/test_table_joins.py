"""Joins with tables: the rules one by one, then random records against the plain reference."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.tables import PlainLookups, PlainTableJoin

from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import Streams, TopologyTestDriver, count, int64, msgpack, string, tumbling
from kafkalite.streams.api import StreamsBuilder

Event = tuple[str, Any, Any, int]  # topic, key, value, timestamp


def app_of() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=msgpack())


def rows(driver: TopologyTestDriver, topic: str = "out") -> list[tuple[Any, Any, int]]:
    return [(r.key, r.value, r.timestamp) for r in driver.read(topic)]


def piped(app: StreamsBuilder, *events: Event) -> TopologyTestDriver:
    driver = TopologyTestDriver(app)
    for topic, key, value, timestamp in events:
        driver.pipe(topic, value, key=key, timestamp=timestamp, headers=[(topic, b"")])
    return driver


# A stream and a table


def test_a_record_finds_the_row_as_it_is_when_the_record_comes() -> None:
    app = app_of()
    app.stream("s").join(app.table("t"), lambda s, t: [s, t]).to("out")
    driver = piped(
        app,
        ("s", "a", 0, 9),
        ("t", "a", 1, 50),
        ("s", "a", 2, 5),
        ("t", "a", 3, 1),
        ("s", "a", 4, 6),
    )
    records = driver.read("out")
    assert [(r.value, r.timestamp, r.headers) for r in records] == [
        ([2, 1], 5, (("s", b""),)),
        ([4, 3], 6, (("s", b""),)),
    ]


def test_nulls_are_dropped_and_a_left_join_takes_null_keys() -> None:
    for how, results, dropped in (
        ("inner", [], 3),
        ("left", [(None, [1, None], 0), ("b", [3, None], 2)], 2),
    ):
        app = app_of()
        app.stream("s").join(app.table("t"), lambda s, t: [s, t], how=how).to("out")  # type: ignore[call-overload]
        driver = piped(
            app, ("s", None, 1, 0), ("s", "a", None, 1), ("s", "b", 3, 2), ("s", None, None, 3)
        )
        assert rows(driver) == results
        assert driver.metrics()["dropped-records-total"] == dropped


def test_tables_without_a_store_are_read_through() -> None:
    app = app_of()
    table = app.table("t").map(lambda k, v: v * 2 if k == "a" else v, with_key=True)
    table = table.filter(lambda v: v > 2)
    app.stream("s").join(table, lambda k, s, t: [k, s, t], with_key=True).to("out")
    assert "t-map-changelog" not in app.describe()
    driver = piped(app, ("t", "a", 1, 0), ("s", "a", 1, 0), ("t", "a", 2, 0), ("s", "a", 2, 0))
    assert rows(driver) == [("a", ["a", 2, 4], 0)]


@pytest.mark.parametrize("cached", [False, True])
def test_in_batches_too_a_record_finds_nothing_of_later_ones(batch_run: Any, cached: bool) -> None:
    app = app_of()
    stream = app.stream("s")
    latest = stream.filter(lambda v: v != 3)
    stream.join(latest.to_table(), lambda s, t: [s, t], how="left").to("latest")
    stream.flat_map(lambda v: [v, -v]).join(stream.group_by_key().count(), lambda s, n: [s, n]).to(
        "counted"
    )
    run = batch_run(app, cached=cached)
    run.feed("s", [("a", value, 0) for value in (1, 2, 3, 4)])
    assert [value for _, value, _ in run.rows("latest")] == [[1, 1], [2, 2], [3, 2], [4, 4]]
    counted = [[sign * v, v - 1] for v in (2, 3, 4) for sign in (1, -1)]
    assert [value for _, value, _ in run.rows("counted")] == counted


@pytest.mark.parametrize("way", ["merge", "cogroup", "cogroup of two", "join of streams"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_record_finds_what_it_led_to_through_a_place_where_records_wait_for_others(
    batch_run: Any, way: str, cached: bool
) -> None:
    app = app_of()
    stream, other = app.stream("s"), app.stream("o")
    grouped = stream.group_by_key().cogroup(lambda _, v: v)
    tables: dict[str, Any] = {
        "merge": lambda: stream.merge(other).to_table(),
        "cogroup": lambda: grouped.aggregate(None),
        "cogroup of two": lambda: grouped.cogroup(other.group_by_key(), max).aggregate(None),
        "join of streams": lambda: stream.join(stream, lambda a, b: b, within=5).to_table(),
    }
    stream.join(tables[way](), lambda s, t: [s, t], how="left").to("out")
    run = batch_run(app, cached=cached)
    run.feed("s", [("a", 1, 0), ("a", 2, 1), ("b", 3, 2), ("a", 4, 3)])
    assert [value for _, value, _ in run.rows("out")] == [[1, 1], [2, 2], [3, 3], [4, 4]]


def test_two_tables_of_which_one_waits_for_others_are_joined_in_order() -> None:
    app = app_of()
    stream = app.stream("s")
    counts = stream.group_by_key().cogroup(lambda n, v: n + 1).aggregate(0)
    counts.join(stream.to_table(), lambda n, v: [n, v], how="left").to_stream().to("out")
    assert rows(piped(app, ("s", "a", 5, 0))) == [("a", [1, None], 0), ("a", [1, 5], 0)]


def test_a_side_that_looks_into_a_table_on_its_way_hears_of_a_record_in_its_turn() -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    stream, table = app.stream("in"), app.table("t")
    looked = stream.join(table, lambda value, row: value).group_by_key().count(name="left")
    alone = stream.group_by_key().count(name="right")
    looked.join(alone, lambda left, right: [left, right], how="outer").to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("t", 0, key="a", timestamp=0)
    driver.pipe("in", 0, key="a", timestamp=1)
    assert [record.value for record in driver.read("out")] == [[1, None], [1, 1]]


def test_a_stream_with_another_key_comes_through_a_topic_with_the_tables_key() -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    table = app.table("t", key=int64())
    app.stream("s").select_key(lambda v: v).join(table, lambda s, t: [s, t]).to("out")
    described = app.describe()
    assert "app-s-select_key-join-repartition; key int64()" in described
    assert rows(piped(app, ("t", 7, "x", 0), ("s", "a", 7, 0))) == [(7, [7, "x"], 0)]


def test_a_null_key_goes_through_a_topic_to_a_left_join_alone() -> None:
    for how, results in (("inner", []), ("left", [(None, [1, None], 0)])):
        app = app_of()
        stream = app.stream("s").select_key(lambda v: None)
        stream.join(app.table("t"), lambda s, t: [s, t], how=how).to("out")  # type: ignore[call-overload]
        assert rows(piped(app, ("s", "a", 1, 0))) == results


def test_a_failing_function_goes_to_the_policy_with_its_record() -> None:
    app = app_of()
    app.stream("s").join(app.table("t"), lambda s, t: s["no"], name="j").to("out")
    with pytest.raises(ProcessingError, match="'j': topic 's', partition 0, offset 1"):
        piped(app, ("s", "a", {}, 0), ("t", "a", 1, 0), ("s", "a", {}, 0))
    app = app_of()
    app.stream("s").join(app.table("t"), lambda s, t: 1 // s, on_error="skip").to("out")
    driver = piped(app, ("t", "a", 1, 0), ("s", "a", 0, 0), ("s", "a", 1, 1))
    assert rows(driver) == [("a", 1, 1)]
    assert driver.metrics()["dropped-records-total"] == 1


def test_a_function_that_changes_a_row_in_place_does_not_change_the_store() -> None:
    def enriched(order: Any, user: Any) -> Any:
        user["orders"] = user.get("orders", 0) + 1
        return user

    app = app_of()
    users = app.table("t", name="users")
    app.stream("s").join(users, enriched).to("out")
    users.join(users.filter(bool), enriched).to_stream().to("users-out")
    driver = piped(app, ("t", "a", {}, 0), ("s", "a", 1, 1), ("s", "a", 2, 2))
    assert [value for _, value, _ in rows(driver)] == [{"orders": 1}] * 2
    assert driver.store("users").get("a") == {}


# Two tables


@pytest.mark.parametrize(
    ("how", "results"),
    [
        ("inner", [("a", [1, 2], 9), ("a", None, 9)]),
        ("left", [("a", [1, None], 5), ("a", [1, 2], 9), ("a", None, 9)]),
        (
            "outer",
            [("a", [1, None], 5), ("a", [1, 2], 9), ("a", [None, 2], 9), ("a", None, 8)],
        ),
    ],
)
def test_two_tables_are_one(how: Any, results: list[Any]) -> None:
    for name in (None, "joined"):
        app = app_of()
        joined = app.table("t").join(app.table("u"), lambda t, u: [t, u], how=how, name=name)
        joined.to_stream().to("out")
        driver = piped(
            app,
            *[("t", "a", None, 0), ("t", "a", 1, 5), ("u", "a", 2, 9), ("t", "a", None, 7)],
            ("u", "a", None, 8),
        )
        assert rows(driver) == results
        if name is not None:
            assert driver.store(name).get("a") is None


def test_a_join_of_joins_and_a_group_of_its_rows() -> None:
    app = app_of()
    joined = app.table("t").join(app.table("u"), lambda t, u: t + u)
    both = joined.join(app.table("w"), lambda x, w: x * w)
    both.group_by(lambda v: "all").aggregate(n=count()).to_stream().to("out")
    app.stream("s").join(joined.map(lambda v: -v), lambda s, v: [s, v]).to("looked")
    driver = piped(
        app,
        ("t", "a", 1, 0),
        ("u", "a", 2, 0),
        ("w", "a", 3, 0),
        ("t", "a", 2, 1),
        ("s", "a", 0, 0),
    )
    assert [value["n"] for _, value, _ in rows(driver)] == [1, 1]
    assert rows(driver, "looked") == [("a", [0, -4], 0)]
    driver.pipe("u", None, key="a", timestamp=2)
    assert [value["n"] for _, value, _ in rows(driver)] == [0]


def test_what_merges_until_the_commit_is_taken_out_as_it_was_sent(batch_run: Any) -> None:
    app = app_of()
    left = app.stream("t").group_by_key().count()
    right = app.stream("u").group_by_key().count()
    joined = left.join(right, lambda t, u: t * 10 + u, how="inner")
    joined.group_by(lambda v: "all").aggregate(n=count()).to_stream().to("out")
    run = batch_run(app, cached=True)
    for _ in range(2):
        for topic in "tu":
            run.feed(topic, [("a", 0, 0), ("b", 0, 0)])
        run.commit()
    assert run.rows("out")[-1][1] == {"n": 2}


def test_windowed_tables_meet_window_by_window() -> None:
    app = app_of()
    left = app.stream("t").group_by_key().window(tumbling(10)).count()
    right = app.stream("u").group_by_key().window(tumbling(10)).count()
    left.join(right, lambda t, u: [t, u]).to_stream().to("out")
    driver = piped(app, ("t", "a", 0, 1), ("u", "a", 0, 12), ("t", "a", 0, 13), ("u", "a", 0, 15))
    assert [(k.start, v, ts) for k, v, ts in rows(driver)] == [(10, [1, 1], 13), (10, [1, 2], 15)]


def test_tables_with_other_keys_are_refused() -> None:
    app = Streams("app")
    app.table("t", key=string()).join(app.table("u", key=int64()), max, name="j")
    with pytest.raises(TopologyError, match=r"'j' joins tables .* string\(\) and int64\(\)"):
        app.describe()


def test_a_join_says_what_it_does() -> None:
    app = app_of()
    app.stream("s").join(app.table("t"), max).to("out")
    app.table("u").join(app.table("w"), max, how="outer", cached=False, name="j")
    described = app.describe()
    assert "stream_table_join: s-join (inner: max)" in described
    assert "table_join: j (outer: max)" in described
    assert "store: j (changelog: app-j-changelog" in described


# Random records

keys = st.sampled_from(["a", "b", None])
numbers = st.one_of(st.none(), st.integers(0, 5))
times = st.integers(0, 20)
events = st.lists(st.tuples(st.sampled_from("tu"), keys, numbers, times), max_size=30)
cuts = st.lists(st.integers(0, 30), max_size=4)


def feed(run: Any, items: list[Event], batches: list[int], restarts: list[int]) -> int:
    """Feeds `items` in batches, each of one topic; what was dropped in all lives."""
    dropped = 0
    for life in pieces(items, restarts):
        for piece in pieces(life, batches):
            for topic, some in groupby(piece, key=lambda event: event[0]):
                run.feed(topic, [event[1:] for event in some])
        run.commit()
        dropped += run.total("dropped-records-total")
        run.restart()
    return dropped


def pieces(items: list[Any], at: list[int]) -> list[list[Any]]:
    bounds = [0, *sorted({cut for cut in at if 0 < cut < len(items)}), len(items)]
    return [items[low:high] for low, high in pairwise(bounds)]


@given(events, cuts, cuts, st.sampled_from(["inner", "left"]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_lookups_in_batches_with_restarts(
    batch_run: Any,
    items: list[Event],
    batches: list[int],
    restarts: list[int],
    how: Any,
    cached: bool,
) -> None:
    app = app_of()
    app.stream("t").join(app.table("u"), lambda s, t: [s, t], how=how).to("out")
    run, plain = batch_run(app, cached=cached), PlainLookups(how)
    dropped = feed(run, items, batches, restarts)
    for topic, key, value, stamp in items:
        (plain.stream if topic == "t" else plain.table)(key, value, stamp)
    assert run.rows("out") == plain.results
    assert dropped == plain.dropped


@given(events, cuts, cuts, st.sampled_from(["inner", "left", "outer"]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_tables_in_batches_with_restarts(
    batch_run: Any,
    items: list[Event],
    batches: list[int],
    restarts: list[int],
    how: Any,
    named: bool,
) -> None:
    runs = [batch_run(two_tables(how, named), cached=cached) for cached in (False, True)]
    plain = PlainTableJoin(how)
    for topic, *item in items:
        plain.add("tu".index(topic), *item)
    for run in runs:
        assert feed(run, items, batches, restarts) == plain.dropped
    assert runs[0].rows("out") == plain.results
    assert latest(runs[1].rows("out")) == latest(plain.results)


def two_tables(how: Any, named: bool) -> StreamsBuilder:
    app = app_of()
    joined = app.table("t").join(
        app.table("u"), lambda t, u: [t, u], how=how, name="j" if named else None
    )
    joined.to_stream().to("out")
    return app


def latest(results: list[tuple[Any, Any, int]]) -> dict[Any, tuple[Any, int]]:
    return {key: (value, stamp) for key, value, stamp in results}
