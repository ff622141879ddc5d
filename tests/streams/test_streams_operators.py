"""Each operator by itself, in the test driver; what the driver says when it is held wrongly."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import (
    Record,
    Windowed,
    avro,
    bytes_,
    count,
    fold,
    int64,
    json,
    msgpack,
    reduce_,
    string,
    sum_,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver
from kafkalite.streams.stream import Stream


def run(build: Any, *values: Any, key: Any = "k") -> list[Record]:
    """Values through `build(stream)`, with timestamps 0, 1, 2, …"""
    app = StreamsBuilder("app", key=string(), value=json())
    built = build(app.stream("in"))
    if isinstance(built, Stream):
        built.to("out")
    driver = TopologyTestDriver(app)
    for timestamp, value in enumerate(values):
        driver.pipe("in", value, key=key, timestamp=timestamp)
    return driver.read("out")


def values_of(records: list[Record]) -> list[Any]:
    return [record.value for record in records]


class TestValues:
    def test_filter_and_filter_not(self) -> None:
        assert values_of(run(lambda s: s.filter(lambda v: v > 1), 1, 2, 3)) == [2, 3]
        assert values_of(run(lambda s: s.filter_not(lambda v: v > 1), 1, 2, 3)) == [1]

    def test_map_keeps_key_timestamp_and_headers(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").map(lambda v: v + 1).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", 1, key="k", timestamp=7, headers=[("h", b"x")])
        assert driver.read("out") == [Record("k", 2, 7, (("h", b"x"),))]

    def test_flat_map_gives_any_number(self) -> None:
        found = run(lambda s: s.flat_map(lambda v: [v] * v), 0, 1, 2)
        assert [(r.value, r.timestamp) for r in found] == [(1, 1), (2, 2), (2, 2)]

    def test_flat_map_takes_generators(self) -> None:
        assert values_of(run(lambda s: s.flat_map(lambda v: (i for i in range(v))), 2)) == [0, 1]

    def test_a_field_name_stands_for_a_function(self) -> None:
        items = [{"n": 1, "ok": True}, {"n": 2, "ok": False}]
        assert values_of(run(lambda s: s.filter("ok").map("n"), *items)) == [1]

    def test_peek_sees_and_passes_on_and_for_each_ends(self) -> None:
        seen: list[Any] = []
        assert values_of(run(lambda s: s.peek(seen.append), 1, 2)) == [1, 2]
        assert seen == [1, 2]
        app = StreamsBuilder("app", value=json())
        app.stream("in").for_each(seen.append)
        TopologyTestDriver(app).pipe("in", 3)
        assert seen == [1, 2, 3]

    def test_with_key_passes_key_and_value(self) -> None:
        assert values_of(run(lambda s: s.map(lambda k, v: f"{k}{v}", with_key=True), 1)) == ["k1"]

    def test_with_record_passes_the_record_and_where_it_was_read(self) -> None:
        seen: list[Record] = []
        run(
            lambda s: s.filter(lambda v: v != 1).peek(seen.append, with_record=True),
            0,
            1,
            2,
        )
        assert seen == [
            Record("k", 0, 0, (), "in", 0, 0),
            Record("k", 2, 2, (), "in", 0, 2),
        ]
        assert seen[0].replace(value=5) == replace(seen[0], value=5)

    def test_an_update_of_a_table_knows_the_record_that_led_to_it(self) -> None:
        seen: list[Record] = []
        run(lambda s: s.group_by_key().count().to_stream().peek(seen.append, with_record=True), 0)
        assert seen == [Record("k", 1, 0, (), "in", 0, 0)]


class TestKeys:
    def test_select_key_keeps_the_value(self) -> None:
        found = run(lambda s: s.select_key(lambda v: f"key {v}"), 1)
        assert [(r.key, r.value) for r in found] == [("key 1", 1)]

    def test_map_pairs_changes_both(self) -> None:
        found = run(lambda s: s.map_pairs(lambda k, v: (str(v), k)), 1)
        assert [(r.key, r.value) for r in found] == [("1", "k")]

    def test_map_pairs_may_take_the_record(self) -> None:
        pair = lambda r: (str(r.timestamp), r.offset)  # noqa: E731
        found = run(lambda s: s.map_pairs(pair, with_record=True), "x", "y")
        assert [(r.key, r.value) for r in found] == [("0", 0), ("1", 1)]

    def test_flat_map_pairs(self) -> None:
        pairs = lambda k, v: [(k, i) for i in range(v)]  # noqa: E731
        found = run(lambda s: s.flat_map_pairs(pairs), 2, 0)
        assert [(r.key, r.value, r.timestamp) for r in found] == [("k", 0, 0), ("k", 1, 0)]


class TestMapBatch:
    def test_gets_and_returns_columns(self) -> None:
        def double(columns: Columns) -> Columns:
            return replace(columns, values=[value * 2 for value in columns.values])

        assert values_of(run(lambda s: s.map_batch(double), 1, 2)) == [2, 4]

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            ([1], "TypeError: expected Columns, got list"),
            (Columns(["a"], [1, 2], [0]), "ValueError: columns of different lengths: \\[1, 2\\]"),
        ],
    )
    def test_a_wrong_result_is_named(self, made: Any, message: str) -> None:
        with pytest.raises(ProcessingError, match=f"'in-map_batch': topic 'in'.*{message}"):
            run(lambda s: s.map_batch(lambda columns: made), 1)

    def test_may_return_more_or_fewer(self) -> None:
        none = Columns([], [], [])
        assert run(lambda s: s.map_batch(lambda c: none), 1) == []
        two = Columns(["a", "b"], [1, 2], [5, 6])
        found = run(lambda s: s.map_batch(lambda c: two), 1)
        assert [(r.key, r.value, r.timestamp) for r in found] == [("a", 1, 5), ("b", 2, 6)]


class TestSeveralStreams:
    def test_branch_sends_each_record_to_the_first_match(self) -> None:
        app = StreamsBuilder("app", value=json())
        arms = app.stream("in").branch(lambda v: v > 10, lambda v: v > 5, default=True)
        for number, arm in enumerate(arms):
            arm.to(f"out-{number}")
        driver = TopologyTestDriver(app)
        for value in (3, 7, 20, 11):
            driver.pipe("in", value)
        assert [values_of(driver.read(f"out-{n}")) for n in range(3)] == [[20, 11], [7], [3]]

    def test_empty_batches_go_nowhere(self) -> None:
        sizes: list[int] = []

        def note(columns: Columns) -> Columns:
            sizes.append(len(columns))
            return columns

        app = StreamsBuilder("app", value=json())
        first, rest = app.stream("in").branch(lambda v: v > 5, default=True)
        for stream in (first, rest, first.filter(lambda v: v > 7), rest.flat_map(range)):
            stream.map_batch(note)
        TopologyTestDriver(app).pipe("in", 6)
        assert sizes == [1]

    def test_branch_without_default_drops_the_rest(self) -> None:
        assert values_of(run(lambda s: s.branch(lambda v: v > 1)[0], 1, 2)) == [2]

    def test_merge_interleaves(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream("a").merge(app.stream("b"), app.stream("c")).to("out")
        driver = TopologyTestDriver(app)
        for topic, value in (("a", 1), ("c", 2), ("b", 3), ("a", 4)):
            driver.pipe(topic, value)
        assert values_of(driver.read("out")) == [1, 2, 3, 4]

    def test_streams_of_other_serdes_merge_as_objects(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        other = app.stream("b", key=int64(), value=string())
        other = other.select_key(lambda key, value: str(key), with_key=True)
        app.stream("a").merge(other).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("a", [1], key="x")
        driver.pipe("b", "text", key=5)
        assert [(r.key, r.value) for r in driver.read("out")] == [("x", [1]), ("5", "text")]

    def test_a_stream_feeds_several_operators(self) -> None:
        app = StreamsBuilder("app", value=json())
        stream = app.stream("in")
        stream.map(lambda v: -v).to("a")
        stream.filter(lambda v: v > 1).to("b")
        driver = TopologyTestDriver(app)
        driver.pipe("in", 1)
        driver.pipe("in", 2)
        assert values_of(driver.read("a")) == [-1, -2]
        assert values_of(driver.read("b")) == [2]


class TestSources:
    def test_several_topics(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream(["a", "b"]).map(lambda r: r.topic, with_record=True).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("b", 1)
        driver.pipe("a", 1)
        assert values_of(driver.read("out")) == ["b", "a"]

    def test_a_pattern(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream(re.compile("log-.*")).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("log-1", 1)
        with pytest.raises(TopologyError, match="does not read topic 'other'"):
            driver.pipe("other", 1)
        assert values_of(driver.read("out")) == [1]

    def test_the_timestamp_is_a_function_of_the_value(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream("in", timestamp="ts").to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", {"ts": 42}, timestamp=7)
        assert driver.read("out")[0].timestamp == 42

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"ts": "noon"}, "TypeError: timestamp 'noon' is no int of epoch milliseconds"),
            ({"ts": -1}, "ValueError: timestamp -1 is negative"),
            ({}, "the value has no field 'ts'"),
        ],
    )
    def test_a_timestamp_that_is_none_is_named(self, value: Any, message: str) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream("in", timestamp="ts").to("out")
        with pytest.raises(ProcessingError, match=f"'in': topic 'in', partition 0, .*{message}"):
            TopologyTestDriver(app).pipe("in", value)


class TestSinks:
    def test_topic_by_a_function_of_the_record(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").to(lambda r: f"out-{r.key}")
        driver = TopologyTestDriver(app)
        driver.pipe("in", 1, key="a")
        driver.pipe("in", 2, key="b")
        assert values_of(driver.read("out-a")) == [1]
        assert values_of(driver.read("out-b")) == [2]
        assert driver.read("out-c") == []

    def test_a_wrong_topic_is_named(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream("in").to(lambda r: None)
        with pytest.raises(ProcessingError, match="'in-to': topic 'in'.*got None"):
            TopologyTestDriver(app).pipe("in", 1)

    def test_partitioner_is_asked_and_held_to_its_range(self) -> None:
        asked: list[Any] = []

        def choose(key: Any, value: Any, partitions: int) -> int:
            asked.append((key, value, partitions))
            return value

        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").to("out", partitioner=choose)
        driver = TopologyTestDriver(app)
        driver.pipe("in", 0, key="a")
        assert asked == [("a", 0, 1)]
        with pytest.raises(ProcessingError, match="partition 1 is not one of 1"):
            driver.pipe("in", 1, key="a")

    def test_unchanged_bytes_are_written_as_they_came(self) -> None:
        app = StreamsBuilder("app", key=bytes_(), value=json())
        app.stream("in").filter("keep").to("out")
        driver = TopologyTestDriver(app)
        task = driver._tasks[0]
        spaced = b'{ "keep": true }'
        task.enqueue("in", Columns([b"k"], [spaced], [0], [0]))
        task.process(1, 0)
        assert task.drain()[0].columns.values == [spaced]

    def test_avro_is_written_anew_for_another_topic(self) -> None:
        app = StreamsBuilder("app", key=string(), value=avro())
        app.stream("in").to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", {"n": 1}, key="a")
        assert values_of(driver.read("out")) == [{"n": 1}]
        assert driver._registry.latest("out-value").subject == "out-value"

    def test_a_topic_that_is_written_and_read_goes_round(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").map(lambda v: v + 1).to("between")
        app.stream("between").map(lambda v: v * 10).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", 1, key="a")
        assert values_of(driver.read("out")) == [20]
        assert values_of(driver.read("between")) == [2]


class TestDriver:
    def test_reads_only_what_is_new(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream("in").to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", 1)
        assert values_of(driver.read("out")) == [1]
        assert driver.read("out") == []

    def test_names_topics_and_stores_it_does_not_have(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream("in").group_by_key().count(name="n").to_stream().to("out")
        driver = TopologyTestDriver(app)
        with pytest.raises(TopologyError, match="does not read topic 'im'; it reads \\['in'\\]"):
            driver.pipe("im", 1)
        with pytest.raises(TopologyError, match="write topic 'oud'; it writes \\['out'\\]"):
            driver.read("oud")
        with pytest.raises(TopologyError, match="no store is called 'm'; stores are \\['n'\\]"):
            driver.store("m")

    def test_without_a_timestamp_the_wall_clock_counts(self) -> None:
        app = StreamsBuilder("app", value=json())
        app.stream("in").to("out")
        driver = TopologyTestDriver(app, wall_clock=1_000)
        driver.pipe("in", 1)
        driver.advance_wall_clock("1m")
        driver.pipe("in", 2)
        assert [r.timestamp for r in driver.read("out")] == [1_000, 61_000]

    def test_store_shows_rows_in_the_order_of_the_keys(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").group_by_key().aggregate(n=count(), total=sum_(), name="sums")
        driver = TopologyTestDriver(app)
        for key, value in (("b", 1), ("a", 2), ("c", 3), ("a", 4)):
            driver.pipe("in", value, key=key)
        store = driver.store("sums")
        assert store.get("a") == {"n": 2, "total": 6}
        assert store.get("z") is None
        assert [key for key, _ in store.all()] == ["a", "b", "c"]
        assert [key for key, _ in store.range("b")] == ["b", "c"]
        assert [key for key, _ in store.range("a", "b")] == ["a", "b"]
        assert len(store) == 3
        with pytest.raises(TopologyError, match="'sums' has no windows"):
            store.fetch("a", 0, 1)

    def test_window_store_fetches_by_start(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").group_by_key().window(tumbling(10, grace=100)).count(name="n")
        driver = TopologyTestDriver(app)
        for timestamp in (1, 11, 12, 25):
            driver.pipe("in", 0, key="a", timestamp=timestamp)
        driver.pipe("in", 0, key="b", timestamp=11)
        store = driver.store("n")
        assert list(store.fetch("a", 0, 10)) == [
            (Windowed("a", 0, 10), 1),
            (Windowed("a", 10, 20), 2),
        ]
        assert store.get(Windowed("b", 10, 20)) == 1
        assert store.get(Windowed("b", 20, 30)) is None
        assert [key.start for key, _ in store.all()] == [0, 10, 20, 10]
        with pytest.raises(TopologyError, match="expected a Windowed key, got 'a'"):
            store.get("a")

    def test_closed_windows_leave_the_store(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").group_by_key().window(tumbling(10)).count(name="n")
        driver = TopologyTestDriver(app)
        for timestamp in (1, 11):
            driver.pipe("in", 0, key="a", timestamp=timestamp)
        assert [key.start for key, _ in driver.store("n").all()] == [10]

    def test_metrics_count_what_went_through(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").filter(lambda v: v > 1).to("out")
        driver = TopologyTestDriver(app)
        assert driver.metrics()["dropped-records-total"] == 0
        for value in (1, 2, 3):
            driver.pipe("in", value)
        metrics = driver.metrics()
        assert metrics["process-total"] == 3
        assert metrics["records-out-total"] == 2


# Folds that change their aggregate in place


def appended(rows: list[Any], value: Any) -> list[Any]:
    rows.append(value)
    return rows


def refusing_three(rows: list[Any], value: Any) -> list[Any]:
    rows.append(value)
    if value == 3:
        raise ValueError("three")
    return rows


def test_a_fold_in_place_is_taken_back_whole_when_it_fails(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack(), on_error="skip")
    folded = app.stream("in").group_by_key().aggregate(fold([0], refusing_three))
    folded.to_stream().to("out")
    run = batch_run(app)
    run.feed("in", [("a", value, value) for value in (1, 2, 3, 4)])
    run.commit()
    assert run.rows("out") == [("a", [0, 1, 2, 4], 4)]


@pytest.mark.parametrize("init", [[], list, ([],)])
def test_rows_of_a_fold_in_place_have_one_aggregate_each(batch_run: Any, init: Any) -> None:
    def grown(rows: Any, value: int) -> Any:
        (rows if isinstance(rows, list) else rows[0]).append(value)
        return rows

    app = StreamsBuilder("app", key=string(), value=msgpack())
    app.stream("in").group_by_key().aggregate(fold(init, grown)).to_stream().to("out")
    run = batch_run(app, cached=False)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        run.feed("in", [(key, value, value)])
    plain = [[1], [2], [1, 3]]
    wanted = [(rows,) for rows in plain] if isinstance(init, tuple) else plain
    assert [value for _, value, _ in run.rows("out")] == wanted


def test_what_a_table_below_keeps_of_a_fold_does_not_change_with_it(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    folded = app.stream("in").group_by_key().aggregate(fold([], appended))
    folded.group_by(lambda row: str(len(row))).aggregate(n=count()).to_stream().to("out")
    run = batch_run(app, cached=False)
    for value in (1, 2):
        run.feed("in", [("a", value, value)])
    latest = {key: row["n"] for key, row, _ in run.rows("out")}
    assert latest == {"1": 0, "2": 1}


def test_a_reduce_in_place_leaves_the_records_alone(batch_run: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    stream = app.stream("in")
    stream.to_table(name="rows").to_stream().to("rows")
    stream.group_by_key().aggregate(reduce_(lambda a, v: a.update(v) or a)).to_stream().to("out")
    run = batch_run(app)
    run.feed("in", [("a", {"x": 1}, 1), ("a", {"y": 2}, 2)])
    run.commit()
    assert [row for _, row, _ in run.rows("rows")] == [{"x": 1}, {"y": 2}]
    assert run.rows("out") == [("a", {"x": 1, "y": 2}, 2)]
