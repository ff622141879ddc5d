"""Processors that look into tables: they find what a join with the table would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_state_stores import Durably

from kafkalite.core.types import Windowed
from kafkalite.errors import TopologyError
from kafkalite.streams import (
    Record,
    Stream,
    Streams,
    Table,
    TopologyTestDriver,
    collect,
    count,
    int64,
    json,
    session,
    sliding,
    string,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology

Build = Callable[[StreamsBuilder], tuple[Stream, Table]]
records = st.lists(
    st.tuples(
        st.sampled_from(["prices", "rates"]),
        st.sampled_from(["x", "y"]),
        st.one_of(st.none(), st.integers(0, 9)),
        st.integers(0, 30),
    ),
    max_size=25,
)


def looking(name: str) -> Callable[[], Any]:
    """A processor that forwards each value with the row of its key."""

    class Look:
        def init(self, context: Any) -> None:
            self.context, self.rows = context, context.store(name)

        def process(self, record: Record) -> None:
            if record.key is not None and record.value is not None:
                row = self.rows.get(record.key)
                if row is not None:
                    self.context.forward(record.replace(value=[record.value, row]))

    return Look


def of_two_topics(app: StreamsBuilder) -> tuple[Stream, Table]:
    return app.stream("prices"), app.table("rates", name="t")


def of_one_topic(app: StreamsBuilder) -> tuple[Stream, Table]:
    prices = app.stream("prices")
    return prices, prices.group_by_key().aggregate(collect(lambda v: v), name="t")


def with_changed_keys(app: StreamsBuilder) -> tuple[Stream, Table]:
    moved = app.stream("prices").select_key(lambda v: "x" if v and v % 2 else "y")
    return moved, app.table("rates").filter(lambda v: v > 2, name="t")


@pytest.mark.parametrize("build", [of_two_topics, of_one_topic, with_changed_keys])
@pytest.mark.parametrize("kind", ["memory", "disk"])
@given(rows=records, at=st.lists(st.tuples(st.integers(1, 24), st.booleans()), max_size=4))
@settings(max_examples=40, deadline=None)
def test_rows_are_those_that_a_join_finds(
    batch_run: Any, kind: str, build: Build, rows: Any, at: Any
) -> None:
    made = batch_run if kind == "memory" else type("DurableRun", (Durably, batch_run), {})

    def outputs(connect: Callable[[Stream, Table], Stream]) -> list[Any]:
        app = StreamsBuilder("app", key=string(), value=int64())
        connect(*build(app)).to("out", value=json())
        run, first = made(app, cached=True), 0
        for end, restarts in [*sorted(at), (len(rows), False)]:
            cut = rows[first:end]
            read = {topic for sub in run.subs for topic in sub.source_topics}
            run.feed_all(
                {
                    topic: [row[1:] for row in cut if row[0] == topic]
                    for topic in ("prices", "rates")
                    if topic in read
                }
            )
            first = max(first, end)
            run.commit()
            if restarts:
                run.restart()
        return list(run.rows("out"))

    joined = outputs(lambda stream, table: stream.join(table, lambda a, b: [a, b]))
    looked = outputs(lambda stream, table: stream.process_values(looking("t"), stores=["t"]))
    assert looked == joined


class TestTables:
    def test_a_table_is_connected_by_itself_or_by_its_name(self) -> None:
        for by_name in (False, True):
            app = Streams("app", key=string(), value=int64())
            rates = app.table("rates", name="euros")
            stores: list[Any] = ["euros" if by_name else rates]
            app.stream("prices").process(looking("euros"), stores=stores).to("out", value=json())
            assert "stores: euros" in app.describe()
            with TopologyTestDriver(app) as driver:
                driver.pipe("rates", 3, key="x", timestamp=9)
                driver.pipe("prices", 5, key="x", timestamp=1)
                assert driver.read("out") == [Record("x", [5, 3], 1)]

    def test_windows_ranges_and_rows_that_the_processor_changes(self) -> None:
        got: list[Any] = []

        class Look:
            def init(self, context: Any) -> None:
                self.minutes, self.all = context.store("minutes"), context.store("all")

            def process(self, record: Record) -> None:
                got.append(list(self.minutes.fetch("x", 0, 60_000)))
                got.append(
                    (len(self.all), [k for k, _ in self.all.range("y")], list(self.all.all()))
                )
                self.all.get("x").append("mine")

        app = Streams("app", key=string(), value=int64())
        grouped = app.stream("in").group_by_key()
        minutes = grouped.window(tumbling("1m", grace="1m")).aggregate(count(), name="minutes")
        every = grouped.aggregate(collect(lambda v: v), name="all")
        app.stream("ticks").process(Look, stores=[minutes, every])
        with TopologyTestDriver(app) as driver:
            for key, time in (("x", 0), ("x", 1), ("y", 2), ("x", 60_000)):
                driver.pipe("in", 7, key=key, timestamp=time)
            driver.pipe("ticks", 1, key="x", timestamp=3)
            assert driver.store("all").get("x") == [7, 7, 7]
        first, second = Windowed("x", 0, 60_000), Windowed("x", 60_000, 120_000)
        assert got == [[(first, 2), (second, 1)], (2, ["y"], [("x", [7, 7, 7]), ("y", [7])])]

    @pytest.mark.parametrize("window", [session("1m"), sliding("1m")])
    def test_moving_windows(self, window: Any) -> None:
        got: list[Any] = []

        class Look:
            def init(self, context: Any) -> None:
                self.rows = context.store("visits")

            def process(self, record: Record) -> None:
                got.append(list(self.rows.all()))

        app = Streams("app", key=string(), value=int64())
        visits = app.stream("in").group_by_key().window(window).count(name="visits")
        app.stream("ticks").process(Look, stores=[visits])
        with TopologyTestDriver(app) as driver:
            driver.pipe("in", 7, key="x", timestamp=60_000)
            driver.pipe("ticks", 1, key="x", timestamp=60_001)
            assert got == [list(driver.store("visits").all())]
            assert len(got[0]) == 1

    def test_a_changed_key_goes_to_its_rows_through_a_topic(self) -> None:
        app = StreamsBuilder("app", key=string(), value=int64())
        table = app.table("rates", name="t")
        app.stream("prices").select_key(str).process(looking("t"), stores=[table], name="look")
        upper, lower = sorted(
            compile_topology(app.plan()), key=lambda sub: len(sub.repartition_sinks), reverse=True
        )
        assert upper.repartition_sinks == ("app-look-repartition",)
        assert {node.name for node in lower.nodes} >= {"t", "look"}

    @pytest.mark.parametrize(
        ("stores", "told"),
        [
            (lambda table: [table.filter(len)], "has no store: give it a name="),
            (lambda table: ["rats"], r"no table 'rats' above; did you mean 'rates'\?"),
            (lambda table: [table.to_stream()], r"expected store\(…\), a table or a name of one"),
        ],
    )
    def test_what_cannot_be_built(self, stores: Callable[[Table], Any], told: str) -> None:
        app = Streams("app", key=string(), value=int64())
        table = app.table("rates")
        with pytest.raises(TopologyError, match=f"^process of 'in': .*{told}"):
            app.stream("in").process(looking("t"), stores=stores(table))
