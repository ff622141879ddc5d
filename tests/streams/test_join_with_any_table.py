"""A stream joined with whatever makes a table finds its row of the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.streams import Streams, TopologyTestDriver, json, string, sum_

TABLES: dict[str, Callable[[Streams], Any]] = {
    "topic": lambda app: app.table("rows"),
    "stream": lambda app: app.stream("rows").to_table(),
    "filter": lambda app: app.table("rows").filter(lambda row: row["n"] > 0),
    "map": lambda app: app.table("rows").map(lambda row: row),
    "aggregate": lambda app: app.stream("rows").group_by_key().aggregate(n=sum_("n")),
    "cogroup": lambda app: (
        app.stream("rows").group_by_key().cogroup(lambda all_, row: {"n": all_["n"] + row["n"]})
        .aggregate(lambda: {"n": 0})
    ),
    "table join": lambda app: app.table("rows").join(
        app.table("others"), lambda row, other: row, how="left"
    ),
    "foreign-key join": lambda app: app.table("rows").join(
        app.table("others"), lambda row, other: row, foreign_key="other", how="left"
    ),
    "suppress": lambda app: app.table("rows").suppress(0),
    "history": lambda app: app.table("rows", history="1h"),
    "suppressed aggregate": lambda app: (
        app.stream("rows").group_by_key().aggregate(n=sum_("n")).suppress(0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_its_row(kind: str, how: Any) -> None:
    app = Streams("app", key=string(), value=json())
    table = TABLES[kind](app)
    app.stream("in").join(table, lambda v, row: [v, row and row["n"]], how=how).to("out")
    with TopologyTestDriver(app) as driver:
        driver.pipe("in", 1, key="a", timestamp=10)
        driver.pipe("rows", {"n": 7, "other": "x"}, key="a", timestamp=20)
        driver.pipe("in", 2, key="a", timestamp=30)
        expected = [[2, 7]] if how == "inner" else [[1, None], [2, 7]]
        assert [record.value for record in driver.read("out")] == expected
