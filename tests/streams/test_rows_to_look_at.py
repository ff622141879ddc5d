"""Whoever looks into a store may change what it gets: the rows stay as they are."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.core.types import Windowed
from kafkalite.streams import (
    Record,
    Streams,
    TopologyTestDriver,
    collect,
    json,
    session,
    string,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder


def of_table(app: StreamsBuilder) -> None:
    app.table("in").filter(lambda row: True, name="st")


def of_versions(app: StreamsBuilder) -> None:
    app.stream("in").to_table(name="st", history=100)


def of_global_table(app: StreamsBuilder) -> None:
    app.stream("s").join(app.global_table("in", name="st"), lambda v, row: row).to("out")


def of_lists(app: StreamsBuilder) -> None:
    app.stream("in").group_by_key().aggregate(collect(), name="st")


def of_windows(app: StreamsBuilder) -> None:
    windows = app.stream("in").group_by_key().window(tumbling("1s"))
    windows.aggregate(collect(), name="st")


def of_sessions(app: StreamsBuilder) -> None:
    windows = app.stream("in").group_by_key().window(session("1s"))
    windows.aggregate(collect(), name="st")


KINDS = {
    of_table: "k",
    of_versions: "k",
    of_global_table: "k",
    of_lists: "k",
    of_windows: Windowed("k", 0, 1_000),
    of_sessions: Windowed("k", 5, 5),
}


def spoil(row: Any) -> None:
    """Changes a row in place, and what is in it."""
    for each in row if isinstance(row, list) else [row]:
        each["tags"].append("mine")
        each["n"] = 99
    row.clear()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_change_to_what_was_looked_at_changes_no_row(kind: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    kind(app)
    driver = TopologyTestDriver(app)
    driver.pipe("in", {"n": 1, "tags": []}, key="k", timestamp=5)
    store, key = driver.store("st"), KINDS[kind]
    before = repr(store.get(key))
    assert "1" in before
    spoil(store.get(key))
    for _, row in store.all():
        spoil(row)
    assert repr(store.get(key)) == before


class Spoils:
    """Changes the row of a table that it looks up."""

    def init(self, context: Any) -> None:
        self.context, self.rows = context, context.store("st")

    def process(self, record: Record) -> None:
        row = self.rows.get("k")
        row["n"] += 1
        self.context.forward(record.replace(value=row["n"]))


@pytest.mark.parametrize("is_global", [False, True])
def test_a_processor_changes_no_row_that_it_looks_at(is_global: bool) -> None:
    app = Streams("app", key=string(), value=json())
    table = (app.global_table if is_global else app.table)("in", name="st")
    records = app.stream("s").process(Spoils, stores=[] if is_global else [table])
    records.to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in", {"n": 1}, key="k")
    driver.pipe("s", 1, key="k")
    driver.pipe("s", 1, key="k")
    assert [record.value for record in driver.read("out")] == [2, 2]
