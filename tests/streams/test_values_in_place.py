"""A function that changes its value in place does not change the row that a store holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.streams import (
    TopologyTestDriver,
    col,
    collect,
    count,
    json,
    last,
    string,
    sum_,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.sharing import shared_inputs


def spoil(value: dict[str, Any]) -> dict[str, Any]:
    """As no function should."""
    value["n"] = -1
    value["list"].append("spoilt")
    return value


def spoil_pair(key: Any, value: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return key, spoil(value)


def spoil_columns(columns: Columns) -> Columns:
    return Columns(columns.keys, [spoil(value) for value in columns.values], columns.timestamps)


SPOILERS: dict[str, Callable[[Any], Any]] = {
    "map": lambda stream: stream.map(spoil),
    "flat_map": lambda stream: stream.flat_map(lambda value: [spoil(value)]),
    "map_pairs": lambda stream: stream.map_pairs(spoil_pair),
    "flat_map_pairs": lambda stream: stream.flat_map_pairs(lambda k, v: [spoil_pair(k, v)]),
    "map_batch": lambda stream: stream.map_batch(spoil_columns),
    "map of a record": lambda stream: stream.map(lambda r: spoil(r.value), with_record=True),
    "map behind a filter": lambda stream: stream.filter(lambda v: True).map(spoil),
    "map in an arm": lambda stream: stream.branch(lambda v: True)[0].map(spoil),
}


def builder() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=json())


def value(n: int) -> dict[str, Any]:
    return {"n": n, "list": [n]}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_below_a_table(spoiler: str) -> None:
    app = builder()
    table = app.table("in", name="rows")
    SPOILERS[spoiler](table.to_stream()).to("spoilt")
    table.group_by(lambda v: "all", lambda v: v["n"]).aggregate(sum_()).to_stream().to("sums")
    driver = TopologyTestDriver(app)
    for n in (5, 7):
        driver.pipe("in", value(n), key="a", timestamp=n)
    assert driver.store("rows").get("a") == value(7)
    assert [record.value for record in driver.read("sums")] == [5, 7]
    assert [record.value["n"] for record in driver.read("spoilt")] == [-1, -1]


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_beside_a_table(spoiler: str) -> None:
    app = builder()
    stream = app.stream("in")
    SPOILERS[spoiler](stream).to("spoilt")
    stream.to_table(name="rows")
    driver = TopologyTestDriver(app)
    driver.pipe("in", value(5), key="a", timestamp=5)
    assert driver.store("rows").get("a") == value(5)


@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize("aggregate", [last(), last("list"), collect()])
def test_beside_an_aggregate(spoiler: str, aggregate: Any) -> None:
    app = builder()
    stream = app.stream("in")
    SPOILERS[spoiler](stream).to("spoilt")
    stream.group_by_key().aggregate(kept=aggregate, name="kept")
    driver = TopologyTestDriver(app)
    driver.pipe("in", value(5), key="a", timestamp=5)
    expected = {"last()": value(5), "last('list')": [5], "collect()": [value(5)]}
    assert driver.store("kept").get("a") == {"kept": expected[str(aggregate)]}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_below_an_aggregate_and_within_what_is_made_of_its_rows(spoiler: str) -> None:
    app = builder()
    table = app.stream("in").group_by_key().aggregate(kept=last("list"), name="kept")
    made = table.to_stream().map(lambda row: {"n": 0, "list": row["kept"]})
    SPOILERS[spoiler](made).to("spoilt")
    driver = TopologyTestDriver(app)
    driver.pipe("in", value(5), key="a", timestamp=5)
    assert driver.store("kept").get("a") == {"kept": [5]}


def test_a_map_of_a_table_does_not_change_the_row_above() -> None:
    app = builder()
    table = app.table("in", name="rows")
    table.map(spoil, name="spoilt").group_by(lambda v: "all").count().to_stream().to("counts")
    driver = TopologyTestDriver(app)
    for n in (5, 7):
        driver.pipe("in", value(n), key="a", timestamp=n)
    assert driver.store("rows").get("a") == value(7)
    assert driver.store("spoilt").get("a") == {"n": -1, "list": [7, "spoilt"]}


def test_a_join_does_not_change_the_row_of_a_global_table() -> None:
    def spoilt(one: Any, row: Any) -> Any:
        one["n"] += 1
        row["list"].append(one["n"])
        return row

    app = builder()
    stream, users = app.stream("in"), app.global_table("users")
    stream.to_table(name="kept")
    stream.join(users, spoilt).to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("users", value(1), key="a")
    for n in (5, 7):
        driver.pipe("in", value(n), key="a")
    assert [record.value["list"] for record in driver.read("out")] == [[1, 6], [1, 8]]
    assert driver.store("kept").get("a") == value(7)


def test_nothing_is_copied_where_no_store_holds_the_values() -> None:
    app = builder()
    stream = app.stream("in")
    stream.map(spoil, name="before").group_by_key().aggregate(
        n=count(), total=sum_(col("n")), name="counts"
    ).to_stream().map(dict, name="after").to("out")
    (sub,) = compile_topology(app.plan())
    shared = shared_inputs(sub.nodes, {store.node for store in sub.stores})
    assert {node.name for node in shared}.isdisjoint({"before", "after"})
