"""Expressions wherever a function of the value stands."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.serde import avro, bytes_, int64, json, string
from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    coalesce,
    col,
    count,
    key,
    lit,
    max_,
    mean,
    struct,
    sum_,
    timestamp,
    tumbling,
    value,
    when,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.stream import Stream
from kafkalite.streams.table import Table

ORDERS = [
    {"id": 1, "user": "ann", "amount": 30.0, "note": None},
    {"id": 2, "user": "bob", "amount": None, "note": "x"},
    {"id": 3, "user": "ann", "amount": 10.0, "note": "y"},
]
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "user", "type": {"type": "record", "name": "User", "fields": [
            {"name": "name", "type": "string"}]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "either", "type": ["int", "string"]},
    ],
}  # fmt: skip


def run(
    build: Callable[[Stream], Stream], values: list[Any], **source: Any
) -> list[tuple[Any, Any]]:
    """Key and value of each record that a topology makes of values with keys k0, k1, …"""
    app = StreamsBuilder("app", key=string(), value=json())
    build(app.stream("in", **source)).to("out", key=json(), value=json())
    driver = TopologyTestDriver(app)
    for number, each in enumerate(values):
        driver.pipe("in", each, key=f"k{number}", timestamp=1_000 * number)
    return [(record.key, record.value) for record in driver.read("out")]


def values_of(build: Callable[[Stream], Stream], values: list[Any]) -> list[Any]:
    return [each for _, each in run(build, values)]


class TestStreams:
    def test_filter_keeps_what_is_true(self) -> None:
        assert values_of(lambda s: s.filter(col("amount") > 20), ORDERS) == ORDERS[:1]

    def test_filter_not_keeps_what_is_false_and_drops_null_as_well(self) -> None:
        assert values_of(lambda s: s.filter_not(col("amount") > 20), ORDERS) == ORDERS[2:]

    def test_a_null_value_has_null_fields(self) -> None:
        assert values_of(lambda s: s.filter(col("amount").is_null()), [None, *ORDERS]) == [
            None,
            ORDERS[1],
        ]

    def test_map_makes_a_value(self) -> None:
        assert values_of(lambda s: s.map(col("amount") * 2), ORDERS) == [60.0, None, 20.0]
        assert values_of(lambda s: s.map(struct("id", n=lit(1))), ORDERS[:1]) == [{"id": 1, "n": 1}]

    def test_flat_map_takes_a_list_apart(self) -> None:
        values = [{"words": "a b"}, {"words": "c"}]
        assert values_of(lambda s: s.flat_map(col("words").str.split(" ")), values) == list("abc")

    def test_keys_are_made_of_values_keys_and_timestamps(self) -> None:
        made = run(lambda s: s.select_key(key() + "-" + timestamp().cast("string")), ORDERS)
        assert [found for found, _ in made] == ["k0-0", "k1-1000", "k2-2000"]

    def test_an_expression_of_the_key_alone_needs_no_value(self) -> None:
        assert [k for k, _ in run(lambda s: s.filter(key() != "k1"), ORDERS)] == ["k0", "k2"]

    def test_branches_take_the_first_that_is_true(self) -> None:
        def build(stream: Stream) -> Stream:
            large, rest = stream.branch(col("amount") > 20, default=True)
            return large.map(lit("large")).merge(rest.map(lit("rest")))

        assert values_of(build, ORDERS) == ["large", "rest", "rest"]

    def test_select_assign_drop_and_rename(self) -> None:
        assert values_of(lambda s: s.select("id", gross=col("amount") * 2), ORDERS[:1]) == [
            {"id": 1, "gross": 60.0}
        ]
        assert values_of(lambda s: s.assign(id=col("id") + 1, old=col("id")), ORDERS[:1]) == [
            {**ORDERS[0], "id": 2, "old": 1}
        ]
        assert values_of(lambda s: s.drop("note", "user"), ORDERS[:1]) == [
            {"id": 1, "amount": 30.0}
        ]
        made = values_of(lambda s: s.rename(amount="net"), ORDERS[:1])
        assert list(made[0]) == ["id", "user", "net", "note"]
        for build in (
            lambda s: s.select("id"),
            lambda s: s.assign(n=lit(1)),
            lambda s: s.drop("note"),
            lambda s: s.rename(id="n"),
        ):
            assert values_of(build, [None]) == [None]

    def test_timestamps_fall_back_on_the_records_own(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in", timestamp=coalesce(col("at"), timestamp())).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", {"at": 5}, key="a", timestamp=1)
        driver.pipe("in", {"at": None}, key="a", timestamp=7)
        assert [record.timestamp for record in driver.read("out")] == [5, 7]

    def test_topics_and_partitions(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").to(col("kind") + "-events", partitioner=col("n"))
        driver = TopologyTestDriver(app)
        driver.pipe("in", {"kind": "a", "n": 3}, key="k")
        assert len(driver.read("a-events")) == 1
        assert 'topic: col("kind") + "-events"' in app.describe()


class TestAggregates:
    def test_take_expressions(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        table = (
            app.stream("in")
            .group_by(col("user").str.upper())
            .window(tumbling("1h"))
            .aggregate(
                n=count(col("note")),
                total=sum_(col("amount") * 2),
                again=mean(col("amount") * 2),
                last=max_(timestamp()),
            )
        )
        table.to_stream().select("n", "total", "again", "last", who=key()["key"]).to("out")
        driver = TopologyTestDriver(app)
        for number, each in enumerate(ORDERS):
            driver.pipe("in", each, key="k", timestamp=number)
        assert driver.read("out")[-1].value == {
            "n": 1, "total": 80.0, "again": 40.0, "last": 2, "who": "ANN",
        }  # fmt: skip

    def test_of_tables_take_out_old_rows(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        rows = app.table("in")
        rows.group_by(col("user"), value=col("amount") * 2).aggregate(sum_(value() + 1)).to_stream(
        ).to("out", value=json())  # fmt: skip
        driver = TopologyTestDriver(app)
        driver.pipe("in", {"user": "a", "amount": 5}, key="1")
        driver.pipe("in", {"user": "a", "amount": 7}, key="2")
        driver.pipe("in", {"user": "a", "amount": 1}, key="1")
        assert driver.read("out")[-1].value == 18

    def test_say_what_they_take(self) -> None:
        assert str(sum_(col("a") * 2)) == 'sum_(col("a") * 2)'
        assert str(sum_(col("a"))) == str(sum_("a")) == "sum_('a')"
        assert str(sum_(len)) == "sum_(f)"


class TestTables:
    def test_filter_and_map_rows(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        table = app.table("in").filter(col("n") > 1).assign(double=col("n") * 2)
        table.to_stream().to("out")
        app.table("in").filter_not(col("n") > 1).to_stream().to("not")
        driver = TopologyTestDriver(app)
        for n in (1, 2, None, 3):
            driver.pipe("in", {"n": n}, key="k")
        made = [{"n": 2, "double": 4}, {"n": 3, "double": 6}]
        assert [r.value for r in driver.read("out") if r.value is not None] == made
        assert [r.value for r in driver.read("not") if r.value is not None] == [{"n": 1}]

    def test_after_the_final_record_of_a_window(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        counts = app.stream("in").group_by_key().window(tumbling("1s")).count()
        counts.filter(value() > 1).map(value() * 10).final().to("out", value=int64())
        driver = TopologyTestDriver(app)
        for moment in (0, 1, 1_500, 5_000, 5_000):
            driver.pipe("in", {}, key="k", timestamp=moment)
        assert [record.value for record in driver.read("out")] == [20]


class TestFailures:
    @pytest.mark.parametrize(
        ("build", "value", "words"),
        [
            (lambda s: s.filter(col("amount") > 3), {"amount": "x"},
             "TypeError: col(\"amount\") > 3: str 'x' cannot be compared with int 3"),
            (lambda s: s.map(col("amonut")), {"amount": 1}, "the value has no field 'amonut'"),
            (lambda s: s.select(col("a")["b"]), {"a": {}}, "the value has no field 'b'"),
            (lambda s: s.drop("b"), {"a": 1}, "the value has no field 'b'"),
            (lambda s: s.rename(a="b"), {"a": 1, "b": 2}, "two fields of the same name"),
            (lambda s: s.filter(col("a")), {"a": 1}, 'col("a"): expected bool, got int 1'),
            (lambda s: s.flat_map(col("a")), {"a": 1}, "'int' object is not iterable"),
        ],
    )  # fmt: skip
    def test_name_the_record_the_operator_and_the_part(
        self, build: Callable[[Stream], Stream], value: Any, words: str
    ) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        stream = build(app.stream("in"))
        stream.to("out")
        driver = TopologyTestDriver(app)
        with pytest.raises(ProcessingError) as error:
            driver.pipe("in", value, key="k")
        assert str(error.value).startswith(
            f"{stream._node.name!r}: topic 'in', partition 0, offset 0: "
        )
        assert words in str(error.value)

    @pytest.mark.parametrize("policy", ["skip", "dlq"])
    def test_leave_the_other_records_of_a_batch(self, policy: Any, batch_run: Any) -> None:
        app = StreamsBuilder("app", key=string(), value=json(), dead_letter_topic="letters")
        app.stream("in").filter(col("n") + 1 > 1, on_error=policy).map(
            col("n").cast("int64"), on_error=policy
        ).to("out")
        run = batch_run(app)
        letters: list[Any] = []
        route = run.route

        def keep_letters(outputs: Any) -> bool:
            outputs = list(outputs)
            letters.extend(o for o in outputs if o.topic == "letters")
            return bool(route([o for o in outputs if o.topic != "letters"]))

        run.route = keep_letters
        given = [1, "x", None, 2.5, (1 << 63) - 1, 4]
        run.feed("in", [("k", {"n": n}, 0) for n in given])
        assert [row[1] for row in run.rows("out")] == [1, 2, 4]
        assert run.total("failed-records-total") == 2
        assert sum(len(o.columns) for o in letters) == (2 if policy == "dlq" else 0)

    def test_of_timestamps_name_the_record(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in", timestamp=col("at"), on_error="skip").to("out")
        driver = TopologyTestDriver(app)
        for at in (5, None, -1, "x", 7):
            driver.pipe("in", {"at": at}, key="k", timestamp=0)
        assert [record.timestamp for record in driver.read("out")] == [5, 7]

    def test_of_partitions_name_the_record(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").to("out", partitioner=col("n"))
        driver = TopologyTestDriver(app)
        with pytest.raises(ProcessingError, match='col\\("n"\\): expected an int64, got None'):
            driver.pipe("in", {"n": None}, key="k")


class TestSchemas:
    @pytest.fixture
    def orders(self) -> Stream:
        return StreamsBuilder("app", key=string()).stream("orders", value=avro(schema=SCHEMA))

    @pytest.mark.parametrize(
        ("build", "words"),
        [
            (lambda s: s.filter(col("amonut") > 3), "did you mean 'amount'?"),
            (lambda s: s.filter(col("id")), "filter of 'orders': col(\"id\"): expected bool"),
            (lambda s: s.map("amonut"), "the value has no field 'amonut'; did you mean 'amount'?"),
            (lambda s: s.select("id").filter(col("amount") > 1), "no field 'amount'; it has id"),
            (lambda s: s.rename(id="n").map(col("id")), "no field 'id'"),
            (lambda s: s.drop("id", "idd"), "no field 'idd'"),
            (lambda s: s.select_key(col("user")["nam"]), "did you mean 'name'?"),
            (lambda s: s.group_by("id").aggregate(n=sum_("amonut")), "aggregate of 'orders"),
            (lambda s: s.group_by("id").aggregate(n=sum_(col("tags") * 2)), "got list[string]"),
            (lambda s: s.group_by("id").count().filter(col("n") > 1), "with fields, got int64"),
            (lambda s: s.filter(key() > 5), "string cannot be compared with int64"),
            (lambda s: s.group_by("id").aggregate(n=count()).filter(col("m") > 1), "it has n"),
            (lambda s: s.flat_map(col("tags")).filter(value() > 1), "string cannot be compared"),
            (lambda s: s.to(col("user")), 'col("user"): expected string, got struct'),
            (lambda s: s.repartition(partitioner=key()), "key(): expected int64, got string"),
            (lambda s: s.to_table().group_by(timestamp()), "no timestamp() here"),
            (lambda s: s.to_table().group_by("id").aggregate(n=sum_(key())), "no key() here"),
            (lambda s: s.peek(col("id")), "it has no effect"),
            (lambda s: s.map_pairs(col("id")), "use .select_key and .map"),
            (lambda s: s.filter(col("id") > 1, with_key=True), "names key() and timestamp() its"),
            (lambda s: s.select(name=col("id")), 'col("id").alias("name")'),
            (lambda s: s.repartition(partitioner=timestamp()), "no timestamp() here"),
        ],
    )
    def test_refuse_what_cannot_be(self, orders: Stream, build: Any, words: str) -> None:
        with pytest.raises(TopologyError) as error:
            build(orders)
        assert words in str(error.value)

    def test_take_what_may_be(self, orders: Stream) -> None:
        orders.filter(col("either") == 5)
        orders.filter(col("at").dt.year() > 2000).select("id", who=col("user")["name"]).map(
            col("who").str.upper()
        )
        windows = orders.group_by(col("user")["name"]).window(tumbling("1h")).count()
        windows.to_stream().filter((key()["start"] > 1) & key()["key"].str.contains("a"))
        windows.late().filter(col("id") > 1)

    def test_timestamps_are_numbers(self) -> None:
        app = StreamsBuilder("app", key=string())
        with pytest.raises(TopologyError, match=r'col\("at"\): expected int64, got timestamp'):
            app.stream("orders", value=avro(schema=SCHEMA), timestamp=col("at"))
        app.stream("orders", value=avro(schema=SCHEMA), timestamp=col("at").cast("int64"))

    def test_the_line_of_the_users_file_is_that_of_the_operator(self, orders: Stream) -> None:
        with pytest.raises(TopologyError) as error:
            orders.filter(col("amonut") > 3)
        frames = traceback.extract_tb(error.value.__traceback__)
        assert any("orders.filter" in (frame.line or "") for frame in frames)


def test_the_same_source_twice_is_one_source() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    app.stream("in", timestamp=col("at")).to("a")
    app.stream("in", timestamp=col("at")).to("b")
    with pytest.raises(TopologyError, match="read by 'in' already"):
        app.stream("in", timestamp=col("at") + 1)


def test_a_topology_says_what_expressions_do() -> None:
    app = Streams("app", key=string(), value=json())
    stream = app.stream("in").filter(col("valid")).filter_not(col("amount") > 28)
    stream.branch(when(col("a").is_null()).then(True).otherwise(col("b")), default=True)
    text = app.describe()
    assert 'filter: in-filter (col("valid"))' in text
    assert 'filter_not: in-filter-filter_not (col("amount") > 28)' in text
    assert 'when(col("a").is_null()).then(True).otherwise(col("b")), default)' in text


def test_a_function_says_what_it_reads() -> None:
    app = StreamsBuilder("app", key=bytes_(), value=json())
    made: Table = app.stream("in").select("a", b=col("c")["d"] + col("e")).to_table()
    function = made._node.parent.function  # type: ignore[attr-defined]
    assert function.paths == {("a",), ("c", "d"), ("e",)}


def by_lambdas(stream: Stream) -> Table:
    def verdict(row: Any) -> bool:
        return row["n"] is not None and row["n"] > 0

    kept = stream.filter(verdict).map(lambda row: {**row, "m": row["n"] * 2})
    rows = kept.select_key(lambda row: row["g"]).group_by_key()
    return rows.aggregate(n=count(), total=sum_(lambda row: row["m"] + 1))


def by_expressions(stream: Stream) -> Table:
    rows = stream.filter(col("n") > 0).assign(m=col("n") * 2).select_key(col("g")).group_by_key()
    return rows.aggregate(n=count(), total=sum_(col("m") + 1))


row = st.fixed_dictionaries(
    {"g": st.sampled_from(["a", "b"])},
    optional={"n": st.none() | st.integers(-2, 5) | st.just("x") | st.just(2.5)},
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(row, min_size=1, max_size=6), max_size=4))
def test_expressions_and_lambdas_make_the_same_topology(
    batch_run: Any, batches: list[list[Any]]
) -> None:
    results = []
    for build in (by_lambdas, by_expressions):
        app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
        build(app.stream("in")).to_stream().to("out")
        run = batch_run(app)
        for number, batch in enumerate(batches):
            run.feed("in", [("k", each, number) for each in batch])
        results.append((run.rows("out"), run.total("failed-records-total")))
    assert results[0] == results[1]
