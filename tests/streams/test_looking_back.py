"""Inputs of a task that go through together: joins with tables find rows as they were."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.protocol.record_codec import Int64s
from kafkalite.streams import TopologyTestDriver, count, fold, json, max_, string
from kafkalite.streams import plan as p
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local import ranks
from kafkalite.streams.local.looking_back import History

Input = tuple[Any, Any, int]  # key, value, timestamp


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def new() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=json())


def with_a_table(app: StreamsBuilder) -> None:
    users = app.table("b")
    app.stream("a").join(users, pair, how="left").to("out")


def with_a_table_that_is_read_through(app: StreamsBuilder) -> None:
    users = app.table("b").filter(lambda v: v != 3).map(lambda v: v * 10)
    app.stream("a").join(users, pair, how="left").to("out")


def with_a_filter_that_has_a_store(app: StreamsBuilder) -> None:
    users = app.table("b").filter(lambda v: v != 3, name="kept")
    app.stream("a").join(users, pair).to("out")
    users.to_stream().to("users")


def with_its_own_table(app: StreamsBuilder) -> None:
    stream = app.stream("a")
    stream.join(stream.map(lambda v: [v]).to_table(name="own"), pair, how="left").to("out")


def with_its_own_count(app: StreamsBuilder) -> None:
    stream = app.stream("a")
    counts = stream.group_by_key().count(name="counts")
    stream.join(counts, pair, how="left").to("out")


def with_every_update_of_its_own_numbers(app: StreamsBuilder) -> None:
    stream = app.stream("a").merge(app.stream("b"))
    numbers = stream.group_by_key().aggregate(n=count(), most=max_(), cached=False)
    numbers.to_stream().to("numbers")
    stream.join(numbers.map(lambda v: v["most"]), pair).to("out")


def with_the_count_of_another(app: StreamsBuilder) -> None:
    counts = app.stream("b").group_by_key().count(name="counts")
    app.stream("a").join(app.stream("c"), pair, within=8, how="left").join(
        counts, pair, how="left"
    ).to("out")


def with_its_own_list(app: StreamsBuilder) -> None:
    stream = app.stream("a")
    folded = fold(list, lambda known, v: [*known, v])
    lists = stream.group_by_key().aggregate(state=folded, name="lists")
    stream.join(lists, pair, how="left").to("out")


def with_a_table_made_before(app: StreamsBuilder) -> None:
    stream = app.stream("a")
    table = stream.merge(app.stream("b")).to_table(name="own")
    stream.join(table, pair, how="left").to("out")


def of_streams_and_then_with_a_table(app: StreamsBuilder) -> None:
    joined = app.stream("a").join(app.stream("b"), pair, within=8)
    joined.join(app.table("c"), pair, how="left").to("out")


def of_streams_whose_topics_are_several(app: StreamsBuilder) -> None:
    one = app.stream(["a", "c"])
    one.group_by_key().count(cached=False).to_stream().to("counts")
    one.join(app.stream("b"), pair, within=8, how="outer").to("out")


def with_the_table_of_a_join(app: StreamsBuilder) -> None:
    stream = app.stream("a")
    table = stream.join(app.stream("b"), pair, within=8).to_table(name="pairs")
    stream.join(table, pair, how="left").join(app.table("c"), pair, how="left").to("out")


SHAPES = [
    with_a_table,
    with_a_table_that_is_read_through,
    with_a_filter_that_has_a_store,
    with_its_own_table,
    with_its_own_count,
    with_every_update_of_its_own_numbers,
    with_the_count_of_another,
    with_its_own_list,
    with_a_table_made_before,
    of_streams_and_then_with_a_table,
    of_streams_whose_topics_are_several,
    with_the_table_of_a_join,
]
records = st.lists(
    st.tuples(st.sampled_from("xy"), st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 25)),
    max_size=12,
)


def one_by_one(build: Callable[[StreamsBuilder], None], fetches: list[Any]) -> dict[str, Any]:
    """Each record all the way before the next, in the order in which a task takes them."""
    app = new()
    build(app)
    driver = TopologyTestDriver(app)
    for fetch in fetches:
        heads = {topic: list(batch) for topic, batch in fetch.items()}
        while any(heads.values()):
            topic = min((t for t in heads if heads[t]), key=lambda t: heads[t][0][2])
            key, value, stamp = heads[topic].pop(0)
            driver.pipe(topic, value, key=key, timestamp=stamp)
    topics = {node.topic for node in app.plan().nodes if isinstance(node, p.Sink)}
    return {str(t): [(r.key, r.value, r.timestamp) for r in driver.read(str(t))] for t in topics}


@pytest.mark.slow
@pytest.mark.parametrize("build", SHAPES)
@given(st.lists(st.tuples(records, records, records), min_size=1, max_size=3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_found_is_what_single_records_find(
    batch_run: Any, build: Any, fetches: list[Any], cached: bool
) -> None:
    app = new()
    build(app)
    run = batch_run(app, cached=cached)
    (task,) = (task for task in run.tasks if task.sub_topology.source_of("a"))
    for topic in filter(task.sub_topology.source_of, "abc"):
        task._input(topic)
    by_topic = [{t: batch["abc".index(t)] for t in task._inputs} for batch in fetches]
    for fetch in by_topic:
        run.feed_all(fetch)
    for topic, expected in one_by_one(build, by_topic).items():
        assert run.rows(topic) == expected


@pytest.mark.parametrize("build", [shape for shape in SHAPES if shape is not with_its_own_list])
def test_inputs_that_alternate_are_few_runs(batch_run: Any, build: Any) -> None:
    app = new()
    build(app)
    run = batch_run(app, cached=True)
    settled, settle = [], run.tasks[0]._runtime.settle
    run.tasks[0]._runtime.settle = lambda: settled.append(settle())
    fetch = {
        topic: [("x", n, 3 * n + place) for n in range(300)]
        for place, topic in enumerate("abc")
        if run.tasks[0].sub_topology.source_of(topic)
    }
    run.feed_all(fetch)
    assert len(settled) <= 6


def test_a_row_is_the_one_that_the_next_update_replaced() -> None:
    history = History()
    assert not history
    history.note([b"a", b"b", b"a"], [1, 2, 5], [None, "b0", "a1"])
    found = history.rows([b"a", b"a", b"a", b"a", b"b", b"c"], [0, 1, 4, 5, 1, 9], list("222BBC"))
    assert found == [None, "a1", "a1", "B", "b0", "C"]
    history.clear()
    assert not history


numbers = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 1 << 40)))


@pytest.mark.skipif(ranks._native is None, reason="the native module was not built")
class TestRanks:
    @given(numbers)
    def test_places_are_those_of_a_stable_sort(self, some: list[int]) -> None:
        expected = sorted(range(len(some)), key=some.__getitem__)
        assert list(ranks.places_in_order(Int64s(some))) == expected
        assert list(ranks.places_in_order(some)) == expected

    @given(st.lists(st.integers(0, 5), max_size=4), st.randoms(), st.integers(0, 20))
    def test_ranks_of_each_part(self, counts: list[int], random: Any, limit: int) -> None:
        ends = [sum(counts[:n]) for n in range(len(counts) + 1)]
        picks: list[int] = []
        left = [list(range(*part)) for part in pairwise(ends)]
        while any(left):
            picks.append(random.choice([part for part in left if part]).pop(0))
        native = ranks.ranks(Int64s(picks[:limit]), counts)
        pure = ranks.ranks(picks[:limit], counts)
        assert list(map(list, native)) == list(map(list, pure))

    def test_numbers_are_shifted_as_far_as_they_fit(self) -> None:
        assert list(ranks.shifted(Int64s([0, 3]), 40)) == [0, 3 << 40]
        assert ranks.shifted(Int64s([0, 3]), 64) == [0, 3 << 64]
        assert ranks.bytes_at(b"abc", Int64s([2, 0])) == ranks.bytes_at(b"abc", [2, 0]) == b"ca"
        with pytest.raises(IndexError):
            ranks.bytes_at(b"abc", Int64s([3]))


def test_updates_of_a_table_find_its_rows_as_they_were(batch_run: Any) -> None:
    app = new()
    table = app.table("a")
    table.to_stream().join(table, pair).to("out")
    run = batch_run(app, cached=True)
    run.feed("a", [("k", 1, 0), ("k", 2, 1), ("other", 3, 2)])
    assert [value for _, value, _ in run.rows("out")] == [[1, 1], [2, 2], [3, 3]]
