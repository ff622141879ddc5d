"""Order: what a task reads of one stream leaves as if each record went all ways before the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.serde import msgpack, string
from kafkalite.streams import count, tumbling
from kafkalite.streams.api import StreamsBuilder

Row = tuple[str, int, int]  # key, value, timestamp


def triple(value: int) -> int:
    return 3 * value + 1


def is_even(value: int) -> bool:
    return value % 2 == 0


def mirrored(value: int) -> list[int]:
    return [value, -value] if value % 3 else []


def far(value: int) -> bool:
    return abs(value) > 4


@dataclass(eq=False)
class Step:
    """A node of the plain interpreter: rows of one row, and the steps that get each of them."""

    made: Callable[[Row], list[Row]]
    below: list[Step] = field(default_factory=list)

    def push(self, row: Row) -> None:
        for made in self.made(row):
            for step in self.below:
                step.push(made)


def on_values(function: Callable[[int], list[int]]) -> Callable[[Row], list[Row]]:
    return lambda row: [(row[0], value, row[2]) for value in function(row[1])]


def kept(predicate: Callable[[int], bool]) -> Callable[[Row], list[Row]]:
    return lambda row: [row] if predicate(row[1]) else []


class World:
    """One random topology, built twice: as a plan, and as plain steps."""

    def __init__(self) -> None:
        self.app = StreamsBuilder("app", key=string(), value=msgpack())
        self.source = Step(lambda row: [row])
        self.streams: list[tuple[Any, Step]] = [(self.app.stream("in"), self.source)]
        self.out: dict[str, list[Row]] = {}

    def add(self, kind: str, at: int, other: int) -> None:
        stream, above = self.streams[at % len(self.streams)]
        partner, beside = self.streams[other % len(self.streams)]
        if kind == "merge":
            if partner is not stream:
                self._made(stream.merge(partner), lambda row: [row], above, beside)
        elif kind == "map":
            self._made(stream.map(triple), on_values(lambda v: [triple(v)]), above)
        elif kind == "filter":
            self._made(stream.filter(is_even), kept(is_even), above)
        elif kind == "filter_not":
            self._made(stream.filter_not(is_even), kept(lambda v: not is_even(v)), above)
        elif kind == "flat_map":
            self._made(stream.flat_map(mirrored), on_values(mirrored), above)
        elif kind == "branch":
            one, two = stream.branch(far, default=True)
            self._made(one, kept(far), above)
            self._made(two, kept(lambda v: not far(v)), above)
        elif kind == "table":
            self._made(stream.to_table().to_stream(), lambda row: [row], above)
        else:
            stream.to(kind)
            above.below.append(Step(lambda row: self.out.setdefault(kind, []).append(row) or []))

    def _made(self, stream: Any, made: Callable[[Row], list[Row]], *above: Step) -> None:
        step = Step(made)
        self.streams.append((stream, step))
        for each in above:
            each.below.append(step)


KINDS = ["merge", "merge", "map", "filter", "filter_not", "flat_map", "branch", "table", "x", "y"]
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)), max_size=12
)
rows = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-9, 9), st.integers(0, 50)), max_size=20
)


def batches(items: list[Row], at: list[int]) -> Iterator[list[Row]]:
    bounds = sorted({0, len(items), *(cut for cut in at if cut < len(items))})
    for low, high in pairwise(bounds):
        yield items[low:high]


@pytest.mark.slow
@given(steps, rows, st.lists(st.integers(0, 20), max_size=3), st.booleans())
@settings(max_examples=400, deadline=None)
def test_random_topologies_with_diamonds_equal_plain_python(
    batch_run: Any,
    built: list[tuple[str, int, int]],
    items: list[Row],
    cuts: list[int],
    cached: bool,
) -> None:
    world = World()
    for step in [("branch", 0, 0), *built, ("merge", 1, 2), ("x", -1, 0)]:
        world.add(*step)
    run = batch_run(world.app, cached=cached)
    for batch in batches(items, cuts):
        run.feed("in", batch)
    for row in items:
        world.source.push(row)
    assert run.rows("x") == world.out.get("x", [])
    assert run.rows("y") == world.out.get("y", [])


@pytest.mark.parametrize("cached", [True, False])
def test_a_table_below_a_merge_keeps_the_newest_row(batch_run: Any, cached: bool) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    even, odd = app.stream("in").branch(is_even, default=True)
    even.merge(odd.map(lambda v: -v)).to_table().to_stream().to("out")
    run = batch_run(app, cached=cached)
    run.feed("in", [("a", value, value) for value in (1, 2, 3, 4)])
    assert [value for _, value, _ in run.rows("out")] == [-1, 2, -3, 4]


def test_ordered_records_are_not_late_below_a_branch_and_a_merge(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    even, odd = app.stream("in").branch(is_even, default=True)
    counts = even.merge(odd).group_by_key().window(tumbling(1_000)).aggregate(n=count())
    counts.final().to("final")
    counts.late().to("late")
    run = batch_run(app)
    run.feed("in", [("a", at, 10 * at) for at in range(2_000)])
    assert run.rows("late") == []
    assert [row["n"] for _, row, _ in run.rows("final")] == [100] * 19


def test_final_rows_meet_the_stream_where_their_windows_closed(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    stream = app.stream("in")
    counts = stream.group_by_key().window(tumbling(10)).aggregate(n=count())
    finals = counts.final().map(lambda row: -row["n"]).select_key(lambda k, v: "n", with_key=True)
    finals.to("out")
    stream.to("out")
    run = batch_run(app)
    run.feed("in", [("a", at, at) for at in (1, 2, 12, 13, 25)])
    assert [value for _, value, _ in run.rows("out")] == [1, 2, -2, 12, 13, -2, 25]


def test_sinks_of_one_topic_interleave_whatever_their_serdes_and_partitioners(
    batch_run: Any,
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    even, odd = app.stream("in").branch(is_even, default=True)
    even.to("out")
    odd.map(str).to("out", value=string())
    run = batch_run(app)
    run.feed("in", [("a", value, value) for value in (1, 2, 3, 4, 6)])
    assert [value for _, value, _ in run.rows("out")] == ["1", 2, "3", 4, 6]


def test_topics_that_functions_choose_interleave_too(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    even, odd = app.stream("in").branch(is_even, default=True)
    even.to(lambda record: "far" if far(record.value) else "near")
    odd.to("far")
    run = batch_run(app)
    run.feed("in", [("a", value, value) for value in (1, 2, 6, 7, 8)])
    assert [value for _, value, _ in run.rows("far")] == [1, 6, 7, 8]


def test_records_of_one_time_come_in_the_order_of_the_topology_whatever_came_first(
    batch_run: Any,
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    app.stream("one").merge(app.stream("two")).to("out")
    run = batch_run(app)
    run.feed_all({"two": [("a", 2, 0), ("a", 2, 1)], "one": [("a", 1, 0), ("a", 1, 1)]})
    assert [value for _, value, _ in run.rows("out")] == [1, 2, 1, 2]
