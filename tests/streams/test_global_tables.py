"""Global tables: the store, joins against a plain reference, and mistakes that are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.global_joins import PlainGlobalJoin

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.serde import SerdeContext
from kafkalite.streams import (
    Record,
    Streams,
    TopologyTestDriver,
    col,
    int64,
    json,
    string,
)
from kafkalite.streams import plan as p
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local import global_store
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.global_store import Extent, GlobalStore
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.state.rocks import RocksBackend
from kafkalite.streams.local.task import Task

HOURS = 3_600_000


def joined(how: str, select: Any = "to") -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=json())
    table = app.global_table("table")
    app.stream("in").join(table, lambda left, right: [left, right], key=select, how=how).to("out")
    return app


def a_store(backend: Any = None, **options: Any) -> GlobalStore:
    app = StreamsBuilder("app", key=string(), value=int64(), **options)
    app.global_table("table")
    plan = app.plan()
    (node,) = plan.global_tables
    return GlobalStore(node, plan, None, backend or MemoryBackend())


def batch(first: int, *rows: tuple[str | None, int | None]) -> Columns:
    keys = [None if key is None else key.encode() for key, _ in rows]
    values = [None if value is None else value.to_bytes(8, "big") for _, value in rows]
    return Columns(keys, values, [0] * len(rows), range(first, first + len(rows)))


def rows_of(store: GlobalStore, *keys: str) -> list[Any]:
    return store.rows(store.key_bytes(keys))


# Joins

names = st.sampled_from(["a", "b", "c", None])
values = st.one_of(st.none(), st.builds(lambda to, n: {"to": to, "n": n}, names, st.integers(0, 9)))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("table"), names, st.one_of(st.none(), st.integers(0, 9))),
        st.tuples(st.just("in"), names, values),
    ),
    max_size=30,
)


@pytest.mark.parametrize("how", ["inner", "left"])
@given(actions)
@settings(deadline=None, max_examples=100)
def test_the_driver_gives_what_the_rules_say(how: str, done: list[Any]) -> None:
    plain = PlainGlobalJoin(how, lambda k, v: v["to"], lambda left, right: [left, right])
    driver = TopologyTestDriver(joined(how))
    for at, (topic, key, value) in enumerate(done):
        driver.pipe(topic, value, key=key, timestamp=at)
        if topic == "table":
            plain.table(key, value)
        else:
            plain.stream(key, value, at)
    assert [(r.key, r.value, r.timestamp) for r in driver.read("out")] == plain.results
    assert driver.metrics()["dropped-records-total"] == plain.dropped
    assert dict(driver.store("table").all()) == plain.rows


@pytest.mark.parametrize("how", ["inner", "left"])
@given(st.lists(st.tuples(names, values), max_size=20), st.dictionaries(names, st.integers(0, 9)))
@settings(deadline=None, max_examples=60)
def test_a_batch_gives_the_same(how: str, records: list[Any], rows: dict[Any, int]) -> None:
    plain = PlainGlobalJoin(how, lambda k, v: v["to"], lambda left, right: [left, right])
    plan = joined(how).plan()
    (node,), (sub,) = plan.global_tables, compile_topology(plan)
    store = GlobalStore(node, plan, None, MemoryBackend())
    task = Task(sub, 0, global_stores={node.name: store})
    key_of = string().open(SerdeContext(None, True)).serialize
    value_of = json().open(SerdeContext(None, False)).serialize
    table = Columns(key_of("", list(rows)), value_of("", list(rows.values())), [0] * len(rows))
    store.take(0, Columns(table.keys, table.values, table.timestamps, range(len(rows))), 9, 0)
    for key, value in rows.items():
        plain.table(key, value)
    for at, (key, value) in enumerate(records):
        plain.stream(key, value, at)
    keys, given = [k for k, _ in records], [v for _, v in records]
    offsets = range(len(records))
    task.enqueue("in", Columns(key_of("", keys), value_of("", given), list(offsets), offsets))
    task.process(100, 0)
    made = [output.columns for output in task.commit().outputs]
    found = [row for c in made for row in zip(c.keys, c.values, c.timestamps, strict=True)]
    wanted = plain.results
    keys, given = [k for k, _, _ in wanted], [v for _, v, _ in wanted]
    expected = zip(key_of("", keys), value_of("", given), (t for _, _, t in wanted), strict=True)
    assert found == list(expected)


def test_without_a_key_the_records_own_key_is_looked_for_and_headers_stay() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    table = app.global_table("table", key=int64())
    stream = app.stream("in", key=int64())
    stream.join(table, lambda k, left, right: [k, left, right], with_key=True).to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("table", "row", key=7)
    driver.pipe("in", "left", key=7, timestamp=3, headers=[("h", b"1")])
    (record,) = driver.read("out")
    assert (record.key, record.value, record.timestamp) == (7, [7, "left", "row"], 3)
    assert record.headers == (("h", b"1"),)


def test_the_key_may_be_an_expression_or_a_function_of_key_and_value() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    table, stream = app.global_table("table"), app.stream("in")
    stream.join(table, lambda left, right: right, key=col("to").str.upper()).to("upper")
    stream.join(table, lambda k, left, right: right, key=lambda k, v: k + "A", with_key=True).to(
        "pair"
    )
    driver = TopologyTestDriver(app)
    for key, row in (("A", 1), ("xA", 2)):
        driver.pipe("table", row, key=key)
    driver.pipe("in", {"to": "a"}, key="x")
    assert [driver.read(topic)[0].value for topic in ("upper", "pair")] == [1, 2]


def test_what_the_topology_writes_into_the_topic_is_there_for_the_next_record() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    table, stream = app.global_table("table"), app.stream("in")
    stream.join(table, lambda left, right: right, how="left").to("out")
    stream.to("table")
    driver = TopologyTestDriver(app)
    for value in (1, 2):
        driver.pipe("in", value, key="a")
    assert [record.value for record in driver.read("out")] == [None, 1]


class LookUp:
    """Reads a global table, and a name that there is none of."""

    def init(self, context: Any) -> None:
        self.context, self.rows = context, context.store("table")
        with pytest.raises(TopologyError, match="store 'other' is not connected"):
            context.store("other")

    def process(self, record: Record) -> None:
        found = (self.rows.get(record.value), len(self.rows), list(self.rows.range("b")))
        self.context.forward(record.replace(value=found))


def test_a_processor_reads_a_global_table_by_its_name() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    app.global_table("rows", name="table")
    app.stream("in").process(LookUp).to("out")
    driver = TopologyTestDriver(app)
    for key, row in (("a", 1), ("b", 2)):
        driver.pipe("rows", row, key=key)
    driver.pipe("in", "a", key="x")
    driver.pipe("rows", 3, key="a")
    driver.pipe("in", "a", key="x")
    assert [r.value for r in driver.read("out")] == [[1, 2, [["b", 2]]], [3, 2, [["b", 2]]]]


def test_a_map_that_changes_its_value_in_place_does_not_change_the_row() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    table = app.global_table("table")
    rows = app.stream("in").join(table, lambda left, right: right)
    rows.map(lambda row: row.update(n=row["n"] + 1) or row).to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("table", {"n": 1}, key="a")
    for _ in range(2):
        driver.pipe("in", "x", key="a")
    assert [record.value for record in driver.read("out")] == [{"n": 2}, {"n": 2}]


def test_an_explanation_changes_no_global_table() -> None:
    driver = TopologyTestDriver(joined("inner"))
    driver.pipe("table", 1, key="a")
    driver.explain("table", 2, key="a")
    told = driver.explain("in", {"to": "a"}, key="x")
    assert [record.value for record in told.passed_on("in-join")] == [[{"to": "a"}, 1]]
    assert driver.store("table").get("a") == 1
    assert driver.read("out") == []


@pytest.mark.parametrize("broken", ["key", "join"])
def test_errors_of_functions_go_by_the_policy(broken: str) -> None:
    app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
    table = app.global_table("table")
    app.stream("in").join(
        table,
        lambda left, right: right + left if broken == "join" else right,
        key=(lambda v: v.upper()) if broken == "key" else (lambda v: "a"),
    ).to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("table", "row", key="a")
    for value in ("a", 3):
        driver.pipe("in", value, key="x")
    assert driver.metrics()["dropped-records-total"] == 1


def test_a_key_that_the_tables_serde_does_not_write_is_an_error_with_its_offset() -> None:
    driver = TopologyTestDriver(joined("inner", "n"))
    with pytest.raises(ProcessingError, match="'in-join': topic 'in', partition 0, offset 0"):
        driver.pipe("in", {"n": 3}, key="x")


def test_a_join_needs_no_state_and_a_table_no_task() -> None:
    plan = joined("inner").plan()
    (sub,) = compile_topology(plan)
    assert sub.stores == ()
    assert not any(isinstance(node, p.GlobalSource) for node in sub.nodes)
    described = joined("left").describe()
    assert "global_join: in-join (left join with global table table by 'to': <lambda>)" in described
    assert "  Global table: table (topics: table; key string(), value json())" in described
    assert "t2 -.-> n0_1" in joined("left").describe("mermaid")
    assert '"topic": "table"' in joined("left").describe("json")


# Mistakes

Mistake = Callable[[StreamsBuilder], object]
MISTAKES: list[tuple[Mistake, str]] = [
    (lambda a: a.global_table("t", on_error="dlq"), "a letter for each worker and each start"),
    (lambda a: a.global_table(""), r"global_table\(''\): topic"),
    (lambda a: a.global_table("t", key=string), r"key= expected a serde.*did you mean string\(\)"),
    (lambda a: (a.stream("t"), a.global_table("t")), "'t' is read by 't' already, in another way"),
    (lambda a: a.global_table("t").map(len), "use it on the stream that joins the table"),  # type: ignore[attr-defined]
    (lambda a: a.stream("s").join(a.global_table("t"), len), "with the left and the right value"),
    (
        lambda a: a.stream("s").join(a.global_table("t"), max, how="outer"),  # type: ignore[call-overload]
        "how is one of .*, got 'outer'",
    ),
    (
        lambda a: a.stream("s").join(a.global_table("t"), max, key=3),  # type: ignore[call-overload]
        "join of 's': key=: expected a function, a field name or an expression, got int",
    ),
    (
        lambda a: a.stream("s").join(Streams("b").global_table("t"), max, key="x"),
        "'t' is of another application",
    ),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_mistakes_are_named(make: Mistake, words: str) -> None:
    app = StreamsBuilder("app", key=string(), value=json(), dead_letter_topic="dead")
    with pytest.raises((TopologyError, AttributeError), match=words):
        make(app)


# The store


@pytest.fixture(params=["memory", "rocks"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """A backend that is opened again: in memory it is a new one."""
    opened: list[Any] = []

    def again() -> Any:
        for backend in opened:
            backend.close()
        opened[:] = [MemoryBackend() if request.param == "memory" else RocksBackend(tmp_path / "t")]
        return opened[0]

    return again


def test_the_latest_of_a_key_counts_whatever_partition_it_is_in(reopen: Any) -> None:
    store = a_store(reopen())
    store.begin("id", {0: Extent(0, 3), 1: Extent(5, 6)}, 0)
    assert store.offsets == {0: 0, 1: 5}
    store.take(0, batch(0, ("a", 1), ("b", 2), ("a", 3)), 3, 0)
    assert rows_of(store, "a", "b", "c") == [3, 2, None]
    store.take(1, batch(5, ("a", 4), ("b", None)), 7, 0)
    assert rows_of(store, "a", "b") == [4, None]
    assert store.offsets == {0: 3, 1: 7}
    assert list(store.view().all()) == [("a", 4)]
    assert len(store.view()) == 1


def test_a_view_gives_rows_in_the_order_of_their_keys() -> None:
    store = a_store()
    store.take(0, batch(0, ("c", 3), ("a", 1), ("b", 2)), 3, 0)
    view = store.view()
    assert list(view.all()) == [("a", 1), ("b", 2), ("c", 3)]
    assert list(view.range("a", "b")) == [("a", 1), ("b", 2)]
    assert list(view.range(start="b")) == [("b", 2), ("c", 3)]
    assert (view.get("b"), view.get("x")) == (2, None)
    with pytest.raises(TopologyError, match="None is no key"):
        view.get(None)


def test_rows_on_disk_are_there_again_with_their_offsets(tmp_path: Path) -> None:
    store = a_store(backend := RocksBackend(tmp_path / "t"))
    assert store.begin("id", {0: Extent(0, 2)}, 0) is None
    store.take(0, batch(0, ("a", 1), ("b", 2)), 2, 0)
    backend.close()
    again = a_store(backend := RocksBackend(tmp_path / "t"))
    assert again.begin("id", {0: Extent(0, 4)}, HOURS) is None
    assert again.offsets == {0: 2}
    assert rows_of(again, "a", "b") == [1, 2]
    backend.close()


@pytest.mark.parametrize(
    ("extents", "hours", "words"),
    [
        ({0: Extent(3, 9)}, 0, "at offset 2 of partition 0, before its beginning"),
        ({0: Extent(0, 1)}, 0, "at offset 2 of partition 0, behind its end"),
        ({}, 0, "at offset 2 of partition 0, behind its end"),
        ({0: Extent(0, 9)}, 25, "it is older than deletions stay in the topic"),
    ],
)
def test_rows_that_cannot_be_gone_on_with_are_thrown_away(
    tmp_path: Path, extents: dict[int, Extent], hours: int, words: str
) -> None:
    store = a_store(backend := RocksBackend(tmp_path / "t"))
    store.begin("id", {0: Extent(0, 2)}, 0)
    store.take(0, batch(0, ("a", 1), ("b", 2)), 2, 0)
    assert words in str(store.begin("id", extents, hours * HOURS))
    assert rows_of(store, "a") == [None]
    assert store.offsets == {number: extent.beginning for number, extent in extents.items()}
    backend.close()


def test_a_topic_that_was_made_anew_is_refused_by_name(tmp_path: Path) -> None:
    store = a_store(backend := RocksBackend(tmp_path / "t"))
    store.begin("one", {0: Extent(0, 2)}, 0)
    with pytest.raises(
        TopologyError, match=r"global table 'table' of topic 'table': .* created again"
    ):
        store.begin("two", {0: Extent(0, 2)}, 0)
    backend.close()


def test_a_table_in_use_keeps_its_rows_where_records_are_gone() -> None:
    store = a_store()
    store.begin("id", {0: Extent(0, 2)}, 0)
    store.take(0, batch(0, ("a", 1), ("b", 2)), 2, 0)
    assert store.go_on({0: Extent(0, 2), 1: Extent(4, 4)}) is None
    assert store.go_on({0: Extent(8, 9)}) == (
        "records are gone before they were read: table-0 from offset 2"
    )
    assert (store.offsets, rows_of(store, "a")) == ({0: 8, 1: 4}, [1])


def test_records_that_cannot_be_read_go_by_the_policy() -> None:
    good, bad = (1).to_bytes(8, "big"), b"123"
    columns = Columns([b"a", b"b", None, b"a"], [good, good, good, bad], [0] * 4, range(10, 14))
    with pytest.raises(ProcessingError, match="'table': topic 'table', partition 2, offset 13"):
        a_store().take(2, columns, 14, 0)
    for options in ({"on_error": "skip"}, {"on_error": "dlq", "dead_letter_topic": "dead"}):
        store = a_store(None, **options)
        store.take(2, columns, 14, 0)
        assert rows_of(store, "a", "b") == [1, 1]
        assert store.metrics["dropped-records-total"] == 2


def test_objects_that_were_looked_at_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_store, "OBJECTS_MAX", 2)
    store = a_store()
    store.take(0, batch(0, *((str(n), n) for n in range(9))), 9, 0)
    for n in range(9):
        assert rows_of(store, str(n)) == [n]
        assert len(store._objects) <= 3
