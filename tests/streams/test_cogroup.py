"""Several streams that make one table, against the plain reference."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.cogroup import TOGETHER, Cogroup, Groups
from reference.windows import TimeWindows
from test_suppress import places

from kafkalite.errors import TopologyError
from kafkalite.streams import (
    Windowed,
    collect,
    hopping,
    int64,
    json,
    msgpack,
    session,
    sliding,
    string,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver

Item = tuple[int, Any, Any, int]  # input, key, value, timestamp

items_of = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["a", "b", None]),
        st.one_of(st.none(), st.integers(0, 9)),
        st.integers(0, 40),
    ),
    max_size=25,
)
WINDOWS = [tumbling(10), hopping(10, 4, grace=3), session(4, grace=2), sliding(5, grace=3)]
cuts = st.lists(st.integers(0, 25), max_size=4)
windows = st.sampled_from([None, (10, 10, 0), (10, 10, 5), (10, 4, 3)])


def split(items: list[Any], at: list[int]) -> list[list[Any]]:
    bounds = sorted({0, len(items), *(cut for cut in at if cut < len(items))})
    return [items[low:high] for low, high in pairwise(bounds)]


def app_of() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=msgpack())


def left(row: list[Any], value: Any) -> list[Any]:
    return [*row, [0, value]]


def right(row: list[Any], value: Any) -> list[Any]:
    return [*row, [1, value]]


def cogrouped(app: StreamsBuilder, window: Any) -> Any:
    groups = app.stream("in0").group_by_key().cogroup(left)
    both: Any = groups.cogroup(app.stream("in1").group_by_key(), right)
    if window is not None:
        size, advance, grace = window
        both = both.window(
            tumbling(size, grace) if size == advance else hopping(size, advance, grace)
        )
    return both.aggregate([])


def reference(window: Any) -> Cogroup:
    return Cogroup(Groups(TOGETHER) if window is None else TimeWindows(*window, TOGETHER))


@given(items_of, windows, cuts, st.sampled_from(["memory", "rocks"]))
@settings(max_examples=120, deadline=None)
def test_record_by_record_with_restarts(
    batch_run: Any, items: list[Item], window: Any, restarts: list[int], kind: str
) -> None:
    app = app_of()
    cogrouped(app, window).to_stream().to("out")
    plain, wanted, dropped = reference(window), [], 0
    with places(kind) as place:
        run = batch_run(app, place=place)
        for life in split(items, restarts):
            for number, *record in life:
                run.feed(f"in{number}", [tuple(record)])
                wanted += plain.take(number, *record)
            run.commit()
            dropped += run.total("dropped-records-total")
            run.restart()
        assert run.rows("out") == wanted
    assert dropped == plain.dropped


@given(items_of, windows, cuts, cuts, st.booleans())
@settings(max_examples=120, deadline=None)
def test_in_batches_with_restarts(
    batch_run: Any,
    items: list[Item],
    window: Any,
    batches: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    app = app_of()
    cogrouped(app, window).to_stream().to("out")
    run, plain = batch_run(app, cached=cached), reference(window)
    wanted = []
    for life in split(items, restarts):
        for batch in split(life, batches):
            for number in (0, 1):
                chosen = [tuple(record) for at, *record in batch if at == number]
                run.feed(f"in{number}", chosen)
                for record in chosen:
                    wanted += plain.take(number, *record)
        run.commit()
        run.restart()
    found = {key: (row, time) for key, row, time in run.rows("out")}
    assert found == {key: (row, time) for key, row, time in wanted}


@given(items_of, st.sampled_from(WINDOWS))
@settings(max_examples=100, deadline=None)
def test_one_input_is_as_any_aggregate(batch_run: Any, items: list[Item], window: Any) -> None:
    app = app_of()
    groups = app.stream("in").group_by_key()
    alone = groups.cogroup(lambda row, v: [*row, v]).window(window)
    table = alone.aggregate(list, merge=lambda a, b: a + b)
    table.to_stream().to("out")
    table.final().to("final")
    other = groups.window(window).aggregate(collect(lambda v: [v]))
    other.to_stream().to("out2")
    other.final().to("final2")
    run = batch_run(app)
    for _, *record in items:
        run.feed("in", [tuple(record)])
    plain = [
        (key, None if row is None else [v for (v,) in row], time)
        for key, row, time in run.rows("out2")
    ]
    assert run.rows("out") == plain
    assert [row[::2] for row in run.rows("final")] == [row[::2] for row in run.rows("final2")]


def test_a_window_is_final_once_when_the_newest_record_of_all_inputs_has_passed_it() -> None:
    app = app_of()
    table = cogrouped(app, (10, 10, 0))
    table.final().to("final")
    table.late().to("late")
    driver = TopologyTestDriver(app)
    driver.pipe("in0", "x", key="a", timestamp=1)
    driver.pipe("in1", "y", key="b", timestamp=12)
    driver.pipe("in0", "z", key="a", timestamp=2)  # final above: late, though its input is not on
    assert [(r.key, r.value) for r in driver.read("final")] == [(Windowed("a", 0, 10), [[0, "x"]])]
    assert [(r.key, r.value, r.timestamp) for r in driver.read("late")] == [("a", "z", 2)]


def test_an_input_that_lags_finds_the_rows_of_others_where_nothing_is_final() -> None:
    app = app_of()
    cogrouped(app, (10, 10, 0)).to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in0", "x", key="a", timestamp=1)
    driver.pipe("in0", "x", key="b", timestamp=50_000)
    driver.pipe("in1", "y", key="a", timestamp=2)
    assert driver.read("out")[-1].value == [[0, "x"], [1, "y"]]
    driver.pipe("in0", "x", key="b", timestamp=70_020)
    driver.pipe("in1", "y", key="a", timestamp=3)  # the row is gone
    assert len(driver.read("out")) == 1
    assert driver.metrics()["late-records-total"] == 1


def test_groups_by_other_keys_meet_after_a_repartition() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    carts = app.stream("carts").group_by("user")
    orders = app.stream("orders").group_by("buyer")
    table = carts.cogroup(lambda n, cart: n + cart["items"]).cogroup(
        orders, lambda n, order: n - order["items"]
    )
    table.aggregate(0, value=int64(), name="open").to_stream().to("open")
    driver = TopologyTestDriver(app)
    driver.pipe("carts", {"user": "ann", "items": 3}, key="x", timestamp=0)
    driver.pipe("orders", {"buyer": "ann", "items": 2}, key="y", timestamp=1)
    assert [(r.key, r.value) for r in driver.read("open")] == [("ann", 3), ("ann", 1)]
    assert driver.store("open").get("ann") == 1
    assert "cogroup: open-inputs" in app.describe()


def test_one_stream_twice_is_taken_by_both_functions_in_order() -> None:
    app = app_of()
    groups = app.stream("in").group_by_key()
    groups.cogroup(left).cogroup(groups, right).aggregate([]).to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in", "x", key="a", timestamp=0)
    assert [r.value for r in driver.read("out")] == [[[0, "x"]], [[0, "x"], [1, "x"]]]


def test_a_failing_function_is_named_with_the_record(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
    groups = app.stream("in").group_by_key().cogroup(lambda n, v: n + v)
    groups.aggregate(0).to_stream().to("out")
    run = batch_run(app)
    run.feed("in", [("a", 1, 0), ("a", "x", 0), ("a", 3, 0)])
    assert run.rows("out")[-1][1] == 4


def test_what_cannot_be_is_refused() -> None:
    app, other = app_of(), app_of()
    groups = app.stream("in").group_by_key()
    together = groups.cogroup(left)
    cases: list[tuple[Any, str]] = [
        (lambda: together.cogroup(app.stream("x"), left), "expected groups of a stream, got Stre"),
        (lambda: together.cogroup(other.stream("x").group_by_key(), left), "another application"),
        (lambda: app.table("t").group_by(str).cogroup(left), "groups of a table cannot be one"),
        (lambda: groups.window(tumbling(1)).cogroup(left), r"window\(…\) must follow the last"),
        (lambda: together.window(tumbling(1)).cogroup(groups, left), "must follow the last"),
        (lambda: together.window(tumbling(1)).window(tumbling(2)), "there is one already"),
        (lambda: groups.cogroup(lambda a: a), "cogroup of 'in-group_by_key': add"),
        (lambda: together.window(session(1)).aggregate([]), "makes them one: aggregate.init, merg"),
        (lambda: together.aggregate([], nonsense=1), "nonsense"),
    ]
    for build, says in cases:
        with pytest.raises((TopologyError, TypeError), match=says):
            build()


def test_it_is_described_with_its_stores() -> None:
    app = app_of()
    cogrouped(app, (10, 10, 0)).to_stream().to("out")
    text = app.describe()
    assert "cogroup: in0-group_by_key-cogroup" in text
    assert "cogroup() over tumbling(10ms)" in text
    assert text.count("store: ") == 2
