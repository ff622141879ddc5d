"""Joins by a foreign key against a plain reference, and what stale answers must not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.foreign_joins import PlainForeignJoin

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.serde import SerdeContext
from kafkalite.streams import Streams, TopologyTestDriver, count, int64, json, string, windowed
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.fingerprint import Fingerprint, compare, fingerprint
from kafkalite.streams.foreign import Answer, AnswerSerde, Asked, AskedSerde, What, hash_of
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.operators import foreign_joins
from kafkalite.streams.local.state.directory import StateDirectory
from kafkalite.streams.local.task import Task

RESPONSE = "app-left-join-response-repartition"
ONE = {RESPONSE: 1}
HOW = pytest.mark.parametrize("how", ["inner", "left"])


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def joined(how: str, kind: str = "table", **options: Any) -> StreamsBuilder:
    """Orders with customers; each table read, read through a map, or named."""
    app = StreamsBuilder("app", key=string(), value=json())
    left, right = app.table("left"), app.table("right")
    if kind == "map":
        left, right = left.map(lambda row: row), right.map(lambda row: row)
    elif kind == "named":
        left = left.filter(lambda row: True, name="kept")
    table = left.join(right, pair, foreign_key="to", how=how, **options)
    table.to_stream().to("out")
    return app


keys = st.sampled_from(["a", "b", "ab", "", None])
lefts = st.one_of(st.none(), st.builds(lambda to, n: {"to": to, "n": n}, keys, st.integers(0, 2)))
records = st.lists(
    st.one_of(
        st.tuples(st.just("left"), keys, lefts, st.integers(0, 9)),
        st.tuples(
            st.just("right"), keys, st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 9)
        ),
    ),
    max_size=30,
)


def plain_of(how: str, done: list[Any]) -> PlainForeignJoin:
    plain = PlainForeignJoin(how, lambda row: row["to"], pair)
    for topic, key, value, timestamp in done:
        getattr(plain, topic)(key, value, timestamp)
    return plain


def latest(rows: list[tuple[Any, Any, int]]) -> dict[Any, Any]:
    found = {key: value for key, value, _ in rows}
    return {key: value for key, value in found.items() if value is not None}


@HOW
@pytest.mark.parametrize("kind", ["table", "map", "named"])
@given(records)
@settings(deadline=None, max_examples=60)
def test_the_driver_gives_what_the_rules_say(how: str, kind: str, done: list[Any]) -> None:
    driver = TopologyTestDriver(joined(how, kind))
    for topic, key, value, timestamp in done:
        driver.pipe(topic, value, key=key, timestamp=timestamp)
    plain = plain_of(how, done)
    assert [(r.key, r.value, r.timestamp) for r in driver.read("out")] == plain.results
    assert driver.metrics()["dropped-records-total"] == plain.dropped


@HOW
@pytest.mark.parametrize("cached", [False, True])
@given(records, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
@settings(deadline=None, max_examples=60)
def test_batches_and_restarts_end_with_the_same_rows(
    how: str,
    cached: bool,
    batch_run: Any,
    done: list[Any],
    cuts: set[int],
    restarts: set[int],
) -> None:
    run = batch_run(joined(how, name="result"), cached=cached)
    waiting: dict[str, list[Any]] = {"left": [], "right": []}

    def feed() -> None:
        for topic, batch in waiting.items():
            if batch:
                run.feed(topic, batch)
                batch.clear()

    for at, (topic, *record) in enumerate(done):
        waiting[topic].append(tuple(record))
        if at in cuts:
            feed()
        if at in restarts:
            feed()
            run.commit()
            run.restart()
    feed()
    run.commit()
    plain = plain_of(how, done)
    assert latest(run.rows("out")) == plain.table()
    task = next(task for task in run.tasks if "result" in task.changelog_topics)
    assert dict(task.store("result").all()) == plain.table()


@HOW
def test_the_store_of_references_is_as_large_as_the_left_table(how: str, batch_run: Any) -> None:
    run = batch_run(joined(how))
    for to in ("a", "b", "c", None, "d"):
        run.feed("left", [("k", {"to": to}, 0), ("l", {"to": "x"}, 0), ("m", {"to": "y"}, 0)])
    run.feed("left", [("m", None, 0)])
    task = next(task for task in run.tasks if "left-join-match" in task.changelog_topics)
    store = task._runtime.stores["left-join-match"]
    assert len(store) == 2


def test_rows_of_references_survive_in_rocksdb(tmp_path: Path) -> None:
    subs = compile_topology(joined("inner").plan())
    (sub,) = [sub for sub in subs if any("subscription" in t.name for t in sub.repartition_sources)]
    topic = sub.repartition_sources[0].name
    asked = AskedSerde(string()).open(SerdeContext(None, False))
    value = asked.serialize(topic, [Asked(What.ANSWER, b"h" * 16, 0, b"l1")])[0]
    directory = StateDirectory(tmp_path, "app")
    place = directory.task("1_0")
    task = Task(sub, 0, partition_counts=ONE, place=place)
    task.enqueue(topic, Columns([b"r"], [value], [5], [0]))
    task.process(10, 0)
    task.commit()
    task.checkpoint(dict.fromkeys(task.changelog_topics.values(), 1))
    place.close()
    again = Task(sub, 0, partition_counts=ONE, place=directory.task("1_0"))
    again.enqueue("right", Columns([b"r"], [b"7"], [9], [0]))
    again.process(10, 0)
    (output,) = again.commit().outputs
    answers = AnswerSerde(json()).open(SerdeContext(None, False))
    assert answers.deserialize("", output.columns.values) == [Answer(b"h" * 16, 7, 0)]
    assert (list(output.columns.keys), list(output.columns.timestamps)) == ([b"l1"], [9])


@pytest.mark.parametrize("cached", [False, True])
def test_a_batch_asks_and_is_answered_at_once(cached: bool, monkeypatch: Any) -> None:
    """Also where every update goes on; the hash of a row is computed once."""
    hashed: list[bytes | None] = []

    def noted(row: bytes | None) -> bytes | None:
        hashed.append(row)
        return hash_of(row)

    monkeypatch.setattr(foreign_joins, "hash_of", noted)
    subs = compile_topology(joined("left").plan())
    counts = {topic.name: 1 for sub in subs for topic in sub.repartition_sources}
    left, right = (Task(sub, 0, cached=cached, partition_counts=counts) for sub in subs)
    rows = [b'{"to":"a","n":%d}' % n for n in range(50)]
    left.enqueue("left", Columns([b"%d" % n for n in range(50)], rows, [5] * 50, range(50)))
    for task, reader in ((left, right), (right, left)):
        task.process(100, 0)
        (output,) = task.drain()
        columns = output.columns
        reader.enqueue(
            output.topic, Columns(columns.keys, columns.values, columns.timestamps, range(50))
        )
    left.process(100, 0)
    outputs = left.drain()
    assert sum(len(output.columns) for output in outputs) == 50
    assert hashed == rows


def test_the_rows_whose_hashes_are_known_are_bounded_by_bytes(
    batch_run: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(foreign_joins, "KNOWN_BYTES_MAX", 5_000)
    run = batch_run(joined("left"))
    for at in range(40):
        run.feed("left", [(str(at), {"to": "a", "n": "x" * 1_000}, 0)])
    (task,) = [task for task in run.tasks if task._runtime.hashes]
    (hashes,) = task._runtime.hashes.values()
    assert 0 < len(hashes._known) < 10


def test_an_answer_to_a_row_that_has_changed_since_is_left_out() -> None:
    app = joined("inner")
    subs = compile_topology(app.plan())
    (left,) = [sub for sub in subs if any("left" in source.topics for source in sub.sources)]
    task = Task(left, 0, partition_counts=ONE)
    task.enqueue("left", Columns([b"k"], [b'{"to":"a"}'], [1], [0]))
    task.process(10, 0)
    (output,) = task.commit().outputs
    asked = AskedSerde(string()).open(SerdeContext(None, False))
    (first,) = asked.deserialize("", output.columns.values)
    assert (first.what, first.key, first.task) == (What.ANSWER_IF_THERE, b"k", 0)
    task.enqueue("left", Columns([b"k"], [b'{"to":"b"}'], [2], [1]))
    task.process(10, 0)
    (output,) = task.commit().outputs
    forget, second = asked.deserialize("", output.columns.values)
    assert (forget.what, second.what) == (What.FORGET, What.ANSWER)
    answers = AnswerSerde(json()).open(SerdeContext(None, False))
    values = answers.serialize("", [Answer(first.hash, "old", 0), Answer(second.hash, "new", 0)])
    task.enqueue(RESPONSE, Columns([b"k", b"k"], values, [3, 4], [0, 1]))
    task.process(10, 0)
    (output,) = task.commit().outputs
    assert list(output.columns.values) == [b'[{"to":"b"},"new"]']


def test_headers_are_those_of_the_record_that_led_to_the_result() -> None:
    driver = TopologyTestDriver(joined("inner"))
    driver.pipe("right", 1, key="a", timestamp=1, headers=[("r", b"")])
    driver.pipe("left", {"to": "a"}, key="k", timestamp=0, headers=[("l", b"")])
    driver.pipe("right", 2, key="a", timestamp=0, headers=[("s", b"")])
    assert [(r.timestamp, r.headers) for r in driver.read("out")] == [
        (1, (("l", b""),)),
        (0, (("s", b""),)),
    ]


def test_keys_may_have_other_serdes_and_functions_take_the_key() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    left = app.table("left", key=int64())
    right = app.table("right", key=int64(), value=string())
    table = left.join(
        right,
        lambda k, row, name: [k, row, name],
        foreign_key=lambda k, row: k + row,
        with_key=True,
    )
    table.filter(lambda row: row[2] != "no").to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("left", 10, key=1, timestamp=0)
    driver.pipe("right", "yes", key=11, timestamp=0)
    driver.pipe("right", "no", key=11, timestamp=1)
    assert [(r.key, r.value) for r in driver.read("out")] == [(1, [1, 10, "yes"]), (1, None)]


def test_a_table_may_refer_to_itself_and_to_an_aggregate() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    people = app.table("people")
    bosses = people.join(people, lambda one, boss: [one["name"], boss["name"]], foreign_key="boss")
    bosses.to_stream().to("bosses")
    teams = app.stream("hires").group_by_key().count()
    people.join(teams, lambda one, n: n, foreign_key="team", how="left").to_stream().to("teams")
    driver = TopologyTestDriver(app)
    driver.pipe("people", {"name": "Ann", "boss": "a", "team": "x"}, key="a")
    driver.pipe("people", {"name": "Bob", "boss": "a", "team": "y"}, key="b")
    driver.pipe("people", {"name": "Eve", "boss": None, "team": "x"}, key="a")
    driver.pipe("hires", 1, key="y")
    assert [(r.key, r.value) for r in driver.read("bosses")] == [
        ("a", ["Ann", "Ann"]),
        ("b", ["Bob", "Ann"]),
        ("b", ["Bob", "Eve"]),
        ("a", None),
    ]
    assert [(r.key, r.value) for r in driver.read("teams")] == [
        ("a", None), ("b", None), ("a", None), ("b", 1),
    ]  # fmt: skip


def test_updates_of_versioned_tables_that_are_not_the_newest_are_left_out() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    left, right = (app.table(topic, history=100) for topic in ("left", "right"))
    left.join(right, pair, foreign_key="to").to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("left", {"to": "a"}, key="k", timestamp=5)
    driver.pipe("right", 1, key="a", timestamp=7)
    driver.pipe("left", {"to": "b"}, key="k", timestamp=4)
    driver.pipe("right", 2, key="a", timestamp=6)
    driver.pipe("right", 3, key="b", timestamp=8)
    assert [(r.key, r.value) for r in driver.read("out")] == [("k", [{"to": "a"}, 1])]
    assert driver.metrics()["dropped-records-total"] == 2


def test_the_result_is_a_table_that_can_be_grouped_and_joined_again() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    orders = app.table("left").join(app.table("right"), pair, foreign_key="to")
    orders.group_by(lambda row: row[1]).aggregate(n=count()).to_stream().to("grouped")
    orders.join(app.table("third"), pair, foreign_key=lambda row: row[1]).to_stream().to("again")
    driver = TopologyTestDriver(app)
    driver.pipe("right", "x", key="a")
    driver.pipe("third", 3, key="x")
    driver.pipe("left", {"to": "a"}, key="k")
    driver.pipe("right", "y", key="a")
    assert [(r.key, r.value) for r in driver.read("grouped")] == [
        ("x", {"n": 1}), ("x", {"n": 0}), ("y", {"n": 1}),
    ]  # fmt: skip
    assert [(r.key, r.value) for r in driver.read("again")] == [
        ("k", [[{"to": "a"}, "x"], 3]), ("k", None),
    ]  # fmt: skip


@pytest.mark.parametrize("broken", ["foreign_key", "join", "serde"])
def test_errors_of_functions_go_by_the_policy(broken: str) -> None:
    app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
    left, right = app.table("left"), app.table("right")
    left.join(
        right,
        lambda row, other: row["n"] + other,
        foreign_key=(lambda row: row["n"] and row["to"]) if broken != "serde" else "to",
        name="j",
    ).to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("right", 1, key="a")
    driver.pipe("left", {"to": "a", "n": 1}, key="k")
    bad = {"foreign_key": {}, "join": {"to": "a", "n": "x"}, "serde": {"to": 3, "n": 1}}
    driver.pipe("left", bad[broken], key="k")
    assert [r.value for r in driver.read("out")] == [2, None]
    assert driver.store("j").get("k") is None
    assert driver.metrics()["failed-records-total"] == 1
    assert driver.metrics()["dropped-records-total"] == 1, "a record that failed counts once"
    driver.pipe("left", {"to": "a", "n": 2}, key="k")
    assert [r.value for r in driver.read("out")] == [3]


def test_a_failure_names_the_operator_and_the_record() -> None:
    driver = TopologyTestDriver(joined("inner"))
    with pytest.raises(ProcessingError, match="'left-join-reference': topic 'left', .* no field"):
        driver.pipe("left", {}, key="k")


Mistake = Callable[[StreamsBuilder], object]
MISTAKES: list[tuple[Mistake, str]] = [
    (
        lambda a: a.table("l").join(a.table("r"), pair, foreign_key=3),
        "foreign_key=: expected a func",
    ),
    (
        lambda a: a.table("l").join(a.table("r"), pair, foreign_key="x", how="outer"),
        "how is one of",
    ),
    (lambda a: a.table("l").join(a.table("r"), len, foreign_key="x"), "left and the right value"),
    (
        lambda a: a.table("l").join(Streams("b").table("r"), pair, foreign_key="x"),
        "'r' is of another application",
    ),
    (
        lambda a: a.table("l").join(a.table("r"), pair, foreign_key="x", cached=False),
        "unexpected keyword argument 'cached'",
    ),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_mistakes_are_named(make: Mistake, words: str) -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    with pytest.raises((TopologyError, TypeError), match=words):
        make(app)


def test_a_description_shows_the_steps_and_their_topics() -> None:
    text = joined("left").describe()
    assert "reference: left-join-reference ('to')" in text
    assert (
        "topic: app-left-join-subscription-repartition; key string(), value asked(string())" in text
    )
    assert "topic: app-left-join-response-repartition; key string(), value answer(json())" in text
    assert "foreign_join: left-join (left: pair)" in text


def test_state_does_not_survive_another_foreign_key_but_another_function() -> None:
    def printed(key: str, function: Any) -> Fingerprint:
        app = StreamsBuilder("app", key=string(), value=json())
        app.table("left").join(app.table("right"), function, foreign_key=key).to_stream().to("out")
        return fingerprint(app.plan(), compile_topology(app.plan()))

    same = compare(printed("to", pair), printed("to", max))
    assert (same.refusals, same.notes) == ((), ())
    (refusal,) = compare(printed("to", pair), printed("of", pair)).refusals
    assert "left-join-subscription': its key was 'to' and is 'of' now" in refusal


def test_what_is_no_asked_or_answer_is_refused() -> None:
    for serde in (AskedSerde(string()), AnswerSerde(windowed(string()))):
        with pytest.raises(SerdeError, match="no join by a foreign key wrote"):
            serde.open(SerdeContext(None, False)).deserialize("t", [b"x"])
