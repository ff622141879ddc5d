"""Joins with tables whose function is an expression, and what a function gets to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns
from kafkalite.errors import TopologyError
from kafkalite.serde.json_form import NATIVE as HAS_COLUMNS
from kafkalite.streams import (
    TopologyTestDriver,
    coalesce,
    col,
    json,
    left,
    lit,
    right,
    string,
    struct,
)
from kafkalite.streams import key as key_of
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.arrows import OnArrow
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.sharing import shared_streams

MADE = struct(id=key_of(), sum=left("n") + right("n"), has=right().is_not_null())


def builder() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=json())


def _gathered(entries: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """The entries as spans, as lists where there is no native code."""
    return Spans.gathered(entries) or entries


def values(driver: TopologyTestDriver) -> list[Any]:
    return [record.value for record in driver.read("out")]


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("kind", ["table", "global"])
def test_a_stream_with_a_table(kind: str, how: Any) -> None:
    app = builder()
    other: Any = app.table("rows") if kind == "table" else app.global_table("rows")
    app.stream("in").join(other, MADE, how=how).to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("rows", {"n": 2}, key="a")
    for key, n in (("a", 1), ("b", 3), ("a", None)):
        driver.pipe("in", {"n": n}, key=key)
    alone = [{"id": "b", "sum": None, "has": False}] if how == "left" else []
    assert values(driver) == [
        {"id": "a", "sum": 3, "has": True}, *alone, {"id": "a", "sum": None, "has": True},
    ]  # fmt: skip


@pytest.mark.parametrize("name", [None, "joined"])
def test_two_tables(name: Any) -> None:
    app = builder()
    made = app.table("in").join(app.table("rows"), MADE, how="outer", name=name)
    made.to_stream().to("out")
    app.stream("asks").join(made, right("sum")).to("answers")  # read through, where not named
    driver = TopologyTestDriver(app)
    driver.pipe("in", {"n": 1}, key="a")
    driver.pipe("rows", {"n": 2}, key="a")
    driver.pipe("asks", 0, key="a")
    driver.pipe("in", None, key="a")
    assert [value["sum"] for value in values(driver)] == [None, 3, None]
    assert [record.value for record in driver.read("answers")] == [3]


def test_a_foreign_key_and_the_join_are_expressions() -> None:
    app = builder()
    made = app.table("in").join(
        app.table("rows"), MADE, foreign_key=coalesce(col("to"), lit("rest")), how="left"
    )
    made.to_stream().to("out")
    app.stream("s").join(app.global_table("g"), right("n"), key=col("to")).to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("rows", {"n": 5}, key="rest")
    driver.pipe("in", {"n": 1, "to": None}, key="a")
    driver.pipe("in", {"n": 1, "to": "x"}, key="a")
    assert [value["sum"] for value in values(driver)] == [6, None]
    driver.pipe("g", {"n": 7}, key="x")
    driver.pipe("s", {"to": "x"}, key="b")
    assert values(driver) == [7]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_of_many_records_it_is_computed_by_columns(
    batch_run: Any, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    columns: list[int] = []
    joined = OnArrow.joined

    def noted(*given: Any) -> Any:
        form = joined(*given)
        columns.append(-1 if form is None else len(form))
        return form

    monkeypatch.setattr(OnArrow, "joined", noted)
    rows = [
        (f"k{n}", {"m": n, "x": None if n % 7 == 0 else n / 2, "more": {}}, 0) for n in range(9)
    ]
    records = [(f"k{n % 12}", {"n": n, "name": f"ü{n}"}, n) for n in range(3_000)]
    made = struct(n=left("n"), name=left("name"), x=right("x"), m=right("m") + left("n"))

    def plain(one: Any, row: Any) -> Any:
        row = row or {"m": None, "x": None}
        m = None if row["m"] is None else row["m"] + one["n"]
        return {**one, "x": row["x"], "m": m}

    found = []
    for function in (made, plain):
        app = builder()
        app.stream("in").join(app.table("rows"), function, how=how).to("out")
        run = batch_run(app)
        run.feed("rows", rows)
        given = run.encoded("in", records)
        run.enqueue(
            run.reader("in"),
            "in",
            Columns(_gathered(given.keys), _gathered(given.values), given.timestamps),
        )
        run.settle()
        found.append([(r.key, r.value, r.timestamp) for r in run.out["out"]])
    assert found[0] == found[1]
    assert (max(columns, default=0) > 2_000) is HAS_COLUMNS


def test_rows_of_another_shape_fall_back_to_objects(batch_run: Any) -> None:
    app = builder()
    app.stream("in").join(app.table("rows"), right("m") + left("n")).to("out")
    run = batch_run(app)
    run.feed("rows", [("a", {"m": 1}, 0), ("b", {"m": 0.5}, 0)])
    given = run.encoded("in", [("ab"[n % 2], {"n": n}, n) for n in range(1_500)])
    run.enqueue(
        run.reader("in"), "in", Columns(given.keys, _gathered(given.values), given.timestamps)
    )
    run.settle()
    assert [r.value for r in run.out["out"]] == [n + (0.5 if n % 2 else 1) for n in range(1_500)]


def test_only_streams_that_a_store_holds_too_are_copied() -> None:
    app = builder()
    table, stream = app.table("rows"), app.stream("in")
    stream.join(table, lambda one, row: one, name="alone").to("out")
    kept = app.stream("kept")
    kept.to_table(name="store")
    kept.join(table, lambda one, row: one, name="beside").to("out")
    (sub,) = compile_topology(app.plan())
    joins = shared_streams(sub.nodes, {store.node for store in sub.stores})
    assert {node.name for node in joins} == {"beside"}


@pytest.mark.parametrize("kind", ["stream", "table", "foreign", "global"])
def test_mistakes(kind: str) -> None:
    def build(given: Any) -> None:
        app = builder()
        stream, table, other = app.stream("s"), app.table("t"), app.table("u")
        match kind:
            case "stream":
                stream.join(table, given, name="j")
            case "table":
                table.join(other, given, name="j")
            case "foreign":
                table.join(other, given, foreign_key="x", name="j")
            case _:
                stream.join(app.global_table("g"), given, name="j")

    with pytest.raises(TopologyError, match="join 'j': .*there is no value"):
        build(col("n"))
    with pytest.raises(TopologyError, match=r"or an expression: left\('n'\) is a field"):
        build("n")
