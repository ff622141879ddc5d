"""Joins of two streams: the rules one by one, then random streams against the plain reference."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.joins import LEFT, RIGHT, Input, PlainAsOf, PlainJoin, as_a_task_takes_them
from test_state_stores import Durably

from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.serde.json_form import NATIVE as HAS_COLUMNS
from kafkalite.streams import TopologyTestDriver, col, json, string, struct, tumbling
from kafkalite.streams import key as key_of
from kafkalite.streams import left as left_of
from kafkalite.streams import right as right_of
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.arrows import OnArrow
from kafkalite.streams.local.operators import stream_joins
from kafkalite.streams.local.state import segments

TOPICS = ("left", "right")
LAST = (1 << 63) - 1  # timestamp


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def joined_app(how: str, within: Any, grace: int = 0, *, changes: bool = False) -> StreamsBuilder:
    """A join of two topics; with `changes` of values that are not those of their topics."""
    app = StreamsBuilder("app", key=string(), value=json())
    left, right = (app.stream(topic) for topic in TOPICS)
    if changes:
        left, right = left.map(lambda v: v), right.map(lambda v: v)
    left.join(right, pair, within=within, how=how, grace=grace, name="j").to("out")  # type: ignore[call-overload]
    return app


def rows(driver: TopologyTestDriver) -> list[tuple[Any, Any, int]]:
    return [(r.key, r.value, r.timestamp) for r in driver.read("out")]


# Random streams

keys = st.sampled_from(["a", "b", None])
values = st.one_of(st.none(), st.integers(0, 9))
records = st.lists(st.tuples(keys, values, st.integers(0, 60)), max_size=25)
ascending = records.map(lambda rs: sorted(rs, key=lambda r: r[2]))
inputs = st.one_of(records, ascending)
bounds = st.sampled_from([(5, 5), (0, 10), (10, 0), (-3, 8), (8, -3), (0, 0), (30, 2), (1, 1)])
graces = st.sampled_from([0, 0, 1, 7, 100])
hows = st.sampled_from(["inner", "left", "outer"])
cuts = st.lists(st.integers(1, 25), max_size=4)


def expected(plain: PlainJoin | PlainAsOf, left: list[Input], right: list[Input]) -> None:
    for side, (key, value, stamp) in as_a_task_takes_them(left, right):
        plain.add(side, key, value, stamp)


@pytest.mark.slow
@given(hows, bounds, graces, st.lists(st.tuples(st.booleans(), keys, values, st.integers(0, 60))))
@settings(max_examples=300, deadline=None)
def test_record_by_record(how: str, within: Any, grace: int, items: list[Any]) -> None:
    driver = TopologyTestDriver(joined_app(how, within, grace))
    plain = PlainJoin(how, *within, grace)
    for is_right, key, value, stamp in items:
        driver.pipe(TOPICS[is_right], value, key=key, timestamp=stamp)
        plain.add(int(is_right), key, value, stamp)
    assert rows(driver) == plain.results
    assert driver.metrics()["dropped-records-total"] == plain.dropped


def play(run: Any, lives: list[tuple[list[Input], list[Input]]], plain: PlainJoin) -> None:
    """Each life is a fetch of both inputs and ends with a restart; half way there is a commit."""
    dropped = 0
    for left, right in lives:
        for parts in ((left[:10], right[:10]), (left[10:], right[10:])):
            run.feed_all(dict(zip(TOPICS, parts, strict=True)))
            expected(plain, *parts)
            run.commit()
        dropped += run.total("dropped-records-total")
        run.restart()
    assert run.rows("out") == plain.results
    assert dropped == plain.dropped


def split(items: list[Any], at: list[int]) -> list[list[Any]]:
    ends = sorted({min(cut, len(items)) for cut in at} | {len(items)})
    return [items[low:high] for low, high in zip([0, *ends], ends, strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize("is_durable", [False, True])
@given(hows, bounds, graces, inputs, inputs, cuts, cuts, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_in_batches_with_restarts(
    batch_run: Any,
    is_durable: bool,
    how: str,
    within: Any,
    grace: int,
    left: list[Input],
    right: list[Input],
    left_cuts: list[int],
    right_cuts: list[int],
    cached: bool,
    changes: bool,
) -> None:
    kind = type("DurableRun", (Durably, batch_run), {}) if is_durable else batch_run
    run = kind(joined_app(how, within, grace, changes=changes), cached=cached)
    lives = zip_longest(split(left, left_cuts), split(right, right_cuts), fillvalue=[])
    play(run, list(lives), PlainJoin(how, *within, grace))


def test_updates_of_counts_are_joined_with_themselves() -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    counts = app.stream("in").group_by_key().window(tumbling(9)).count().to_stream()
    keyed = counts.select_key(lambda k, v: k.key, with_key=True)
    keyed.join(keyed, pair, within=5).to("out")
    plain = app.stream("in2").group_by_key().count().to_stream()
    plain.join(plain, pair, within=5).to("out2")
    driver = TopologyTestDriver(app)
    for topic in ("in", "in2"):
        driver.pipe(topic, 7, key="a", timestamp=0)
    assert [r.value for name in ("out", "out2") for r in driver.read(name)] == [[1, 1]] * 2


# The rules, one by one


def run(app: StreamsBuilder, *records: tuple[int, Any, Any, int]) -> list[tuple[Any, Any, int]]:
    driver = TopologyTestDriver(app)
    for side, key, value, stamp in records:
        driver.pipe(TOPICS[side], value, key=key, timestamp=stamp)
    return rows(driver)


class TestTheWindow:
    def test_both_ends_count(self) -> None:
        out = run(
            joined_app("inner", (5, 3), grace=100),
            *((RIGHT, "a", stamp, stamp) for stamp in (14, 15, 20, 23, 24)),
            (LEFT, "a", "l", 20),
        )
        assert [(value[1], stamp) for _, value, stamp in out] == [(15, 20), (20, 20), (23, 23)]

    def test_a_negative_bound_shifts_it(self) -> None:
        out = run(
            joined_app("inner", (-5, 10)),
            *((RIGHT, "a", stamp, stamp) for stamp in (20, 24, 25, 30, 31)),
            (LEFT, "a", "l", 20),
        )
        assert [value[1] for _, value, _ in out] == [30]  # 25 is 5 behind 30, and no more visible

    def test_matches_come_oldest_first_then_in_order_of_arrival(self) -> None:
        out = run(
            joined_app("inner", 10),
            (RIGHT, "a", 1, 7),
            (RIGHT, "a", 2, 3),
            (RIGHT, "a", 3, 7),
            (LEFT, "a", "l", 8),
        )
        assert [value[1] for _, value, _ in out] == [2, 1, 3]

    def test_no_record_is_too_late_to_be_joined(self) -> None:
        app = joined_app("inner", 5)
        out = run(app, (LEFT, "a", "l", 3), (RIGHT, "b", 0, 1_000), (RIGHT, "a", "r", 1))
        assert out == [("a", ["l", "r"], 3)]

    def test_rows_up_to_window_and_grace_behind_the_newest_of_their_side_are_gone(self) -> None:
        app = joined_app("inner", 5, grace=2)
        old = [(LEFT, "a", "old", 8), (LEFT, "a", "kept", 9), (LEFT, "b", 0, 20)]
        assert [v for _, v, _ in run(app, *old, (RIGHT, "a", "r", 9))] == [["kept", "r"]]

    @pytest.mark.parametrize("is_native", [True, False])
    @pytest.mark.parametrize(("within", "grace"), [(10, 3), (10**18, 3 * 10**18), (LAST, LAST)])
    def test_it_ends_where_time_does(
        self, monkeypatch: pytest.MonkeyPatch, is_native: bool, within: int, grace: int
    ) -> None:
        monkeypatch.setattr(stream_joins, "NATIVE", is_native and stream_joins.NATIVE)
        app = StreamsBuilder("app", key=string(), value=json(), max_future=LAST)
        left, right = (app.stream(topic) for topic in TOPICS)
        left.join(right, pair, within=within, how="outer", grace=grace).to("out")
        out = run(
            app,
            *((side, "a", stamp, stamp) for stamp in (1, LAST) for side in (LEFT, RIGHT)),
        )
        far = [("a", [LAST, 1], LAST), ("a", [1, LAST], LAST)] if within == LAST else []
        assert sorted(out, key=str) == sorted(
            [("a", [1, 1], 1), ("a", [LAST, LAST], LAST), *far], key=str
        )


class TestNulls:
    def test_inner_drops_null_keys_and_null_values(self) -> None:
        driver = TopologyTestDriver(joined_app("inner", 5))
        driver.pipe("left", 1, key=None, timestamp=0)
        driver.pipe("left", None, key="a", timestamp=0)
        driver.pipe("right", 1, key="a", timestamp=0)
        assert rows(driver) == []
        assert driver.metrics()["dropped-records-total"] == 2

    @pytest.mark.parametrize(
        ("how", "out"),
        [("left", [(None, [1, None], 0)]), ("outer", [(None, [1, None], 0), (None, [None, 2], 0)])],
    )
    def test_a_null_key_gives_the_null_result_at_once(self, how: str, out: Any) -> None:
        app = joined_app(how, 5)
        assert run(app, (LEFT, None, 1, 0), (RIGHT, None, 2, 0), (LEFT, "a", None, 0)) == out

    def test_a_null_result_waits_until_no_partner_can_come(self) -> None:
        app = joined_app("left", 5, grace=2)
        waiting = [(LEFT, "a", "l", 10), (RIGHT, "b", 0, 1_000), (LEFT, "b", 0, 21)]
        assert run(app, *waiting) == []
        assert run(app, *waiting, (RIGHT, "a", "r", 10)) == [("a", ["l", "r"], 10)]
        assert run(app, *waiting, (LEFT, "c", 0, 22)) == [("a", ["l", None], 10)]

    def test_a_row_that_is_too_old_to_be_kept_gives_it_at_once_and_counts(self) -> None:
        driver = TopologyTestDriver(joined_app("left", 5))
        driver.pipe("left", 1, key="a", timestamp=100)
        driver.pipe("left", 2, key="a", timestamp=90)
        assert rows(driver) == [("a", [2, None], 90)]
        assert driver.metrics()["dropped-records-total"] == 1

    def test_its_headers_are_those_of_the_record_that_ended_the_wait(self) -> None:
        driver = TopologyTestDriver(joined_app("outer", 5))
        driver.pipe("left", 1, key="a", timestamp=0, headers=[("h", b"1")])
        driver.pipe("left", 1, key="b", timestamp=10, headers=[("h", b"2")])
        driver.pipe("right", 1, key="b", timestamp=10, headers=[("h", b"3")])
        assert [(r.key, r.headers[0][1]) for r in driver.read("out")] == [("a", b"2"), ("b", b"3")]


class TestSelfJoins:
    def app(self) -> StreamsBuilder:
        app = StreamsBuilder("app", key=string(), value=json())
        stream = app.stream("in")
        stream.join(stream, pair, within=5, name="j").to("out")
        return app

    def test_a_record_meets_itself_once(self, pipe_all: Any) -> None:
        out = pipe_all(self.app(), [("a", 1, 0), ("a", 2, 3)])
        assert [value for _, value, _ in out] == [[1, 1], [2, 1], [1, 2], [2, 2]]

    @given(records)
    @settings(max_examples=50, deadline=None)
    def test_in_batches(self, batch_run: Any, pipe_all: Any, items: list[Input]) -> None:
        run = batch_run(self.app())
        run.feed("in", items)
        assert run.rows("out") == pipe_all(self.app(), items)

    def test_of_a_changed_key_go_through_one_topic(self, pipe_all: Any) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        stream = app.stream("in").select_key(lambda v: "k")
        stream.join(stream, pair, within=5, name="j").to("out")
        assert "app-j-left-repartition" in app.describe()
        assert "app-j-right-repartition" not in app.describe()
        out = pipe_all(app, [("a", 1, 0), ("b", 2, 3)])
        assert [value for _, value, _ in out] == [[1, 1], [2, 1], [1, 2], [2, 2]]


class ByteArrays:
    """A serde of small numbers that writes bytearrays."""

    def open(self, context: Any) -> ByteArrays:
        return self

    def serialize(self, topic: str, column: Any) -> Any:
        return [bytearray([value]) for value in column]

    def deserialize(self, topic: str, column: Any) -> Any:
        return [value[0] for value in column]


class TestTheTopology:
    def test_changed_keys_get_topics_that_are_called_after_the_join(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        left = app.stream("left").select_key("k")
        right = app.stream("right").select_key("k")
        left.join(right, pair, within="5m", how="left", grace="1m", name="paid").to("out")
        text = app.describe()
        assert "stream_join: paid (left: pair, within=(5m, 5m), grace=1m)" in text
        for word in ("left", "right"):
            assert f"topics: app-paid-{word}-repartition" in text
            assert f"store: paid-{word} (changelog: app-paid-{word}-changelog" in text

    def test_repartitioned_sides_are_joined(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        left = app.stream("left").select_key("k")
        right = app.stream("right").select_key("k")
        left.join(right, pair, within=5).to("out")
        one, two = {"k": "x", "n": 1}, {"k": "x", "n": 2}
        assert run(app, (LEFT, None, one, 0), (RIGHT, "b", two, 1)) == [("x", [one, two], 1)]

    def test_with_key_the_function_gets_the_key(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        left, right = app.stream("left"), app.stream("right")
        left.join(right, lambda k, a, b: [k, a, b], with_key=True, within=5, how="outer").to("out")
        out = run(app, (LEFT, "a", 1, 0), (RIGHT, "a", 2, 1), (LEFT, "b", 3, 1), (LEFT, "c", 4, 99))
        assert [value for _, value, _ in out] == [["a", 1, 2], ["b", 3, None]]

    def test_keys_that_are_read_by_another_serde_are_written_anew(self) -> None:
        app = StreamsBuilder("app", value=json())
        left, right = app.stream("left", key=json()), app.stream("right", key=string())
        left.join(right, pair, within=5, key_serde=string()).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("left", 1, key="a", timestamp=0)
        driver.pipe("right", 2, key="a", timestamp=0)
        assert rows(driver) == [("a", [1, 2], 0)]

    def test_a_serde_may_write_any_kind_of_bytes(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        left, right = (app.stream(topic).map(lambda v: v + 1) for topic in TOPICS)
        joined = left.join(right, pair, within=5, left_serde=ByteArrays(), right_serde=ByteArrays())
        joined.to("out")
        assert run(app, (LEFT, "a", 1, 0), (RIGHT, "a", 2, 1)) == [("a", [2, 3], 1)]

    def test_a_function_that_fails_names_the_record_that_came(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("left").join(app.stream("right"), lambda a, b: a / b, within=5).to("out")
        with pytest.raises(ProcessingError, match="'left-join': topic 'right', .*offset 0: ZeroD"):
            run(app, (LEFT, "a", 1, 0), (RIGHT, "a", 0, 0))

    def test_what_it_fails_on_is_skipped_where_the_policy_says_so(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
        app.stream("left").join(app.stream("right"), lambda a, b: a / b, within=5).to("out")
        out = run(app, (LEFT, "a", 1, 0), (RIGHT, "a", 0, 0), (RIGHT, "a", 1, 0))
        assert out == [("a", 1.0, 0)]

    def test_below_a_fork_the_order_is_that_of_single_records(self, batch_run: Any) -> None:
        def app() -> StreamsBuilder:
            app = StreamsBuilder("app", key=string(), value=json())
            left, right = app.stream("left"), app.stream("right")
            small, large = left.branch(lambda v: v < 5, default=True)
            joined = small.join(right, pair, within=10)
            joined.map(str).merge(joined.filter(lambda v: v[1] > 3).map(repr)).to("out")
            large.to("out")
            return app

        left = [("a", value, value) for value in (1, 7, 2, 9, 4)]
        right = [("a", value, value + 1) for value in (1, 5, 6)]
        whole, single = batch_run(app(), cached=True), TopologyTestDriver(app())
        whole.feed_all({"left": left, "right": right})
        for side, (key, value, stamp) in as_a_task_takes_them(left, right):
            single.pipe(TOPICS[side], value, key=key, timestamp=stamp)
        assert whole.rows("out") == rows(single)


class TestState:
    def test_rows_that_nobody_can_reach_leave_the_store_and_the_changelog(
        self, batch_run: Any
    ) -> None:
        run = batch_run(joined_app("inner", 10))
        for stamp in range(0, 2_000, 10):
            run.feed("left", [("a", stamp, stamp)])
            run.commit()
        changed: dict[bytes, Any] = {}
        for columns in run.changelog["app-j-left-changelog"]:
            changed.update(zip(columns.keys, columns.values, strict=True))
        assert sum(value is not None for value in changed.values()) < 6
        (store,) = (t._runtime.stores["j-left"] for t in run.tasks)
        assert len(store.segments) < 6

    def test_a_commit_writes_one_piece_for_many_rows(self, batch_run: Any) -> None:
        run = batch_run(joined_app("inner", "1h"))
        run.feed("left", [(f"k{n % 7}", n, n) for n in range(1_000)])
        run.commit()
        (columns,) = run.changelog["app-j-left-changelog"]
        assert len(columns) <= 7

    def test_a_piece_is_no_larger_than_a_record_may_be(
        self, batch_run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segments, "PIECE_BYTES", 200)
        run = batch_run(joined_app("inner", "1h"))
        run.feed("left", [("k", "x" * 50, n) for n in range(20)] + [("k", "y" * 500, 20)])
        run.commit()
        (columns,) = run.changelog["app-j-left-changelog"]
        assert sorted(len(value) > 200 for value in columns.values)[-2:] == [False, True]
        run.restart()
        run.feed("right", [("k", 1, 20)])
        assert [value[0][:1] for _, value, _ in run.rows("out")] == ["x"] * 20 + ["y"]

    def test_a_side_has_nothing_to_look_at(self) -> None:
        driver = TopologyTestDriver(joined_app("inner", 10))
        with pytest.raises(TopologyError, match="store 'j-left' has no rows for users"):
            driver.store("j-left")


# As of


def as_of_app(how: str, tolerance: int, grace: int = 0) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=json())
    left, right = (app.stream(topic) for topic in TOPICS)
    left.join_as_of(right, pair, tolerance=tolerance, how=how, grace=grace, name="j").to("out")  # type: ignore[call-overload]
    return app


@pytest.mark.slow
@pytest.mark.parametrize("is_durable", [False, True])
@given(
    st.sampled_from(["inner", "left"]), st.sampled_from([0, 3, 10, 40]), graces, inputs, inputs,
    cuts, cuts, st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_as_of_in_batches_with_restarts(
    batch_run: Any,
    is_durable: bool,
    how: str,
    tolerance: int,
    grace: int,
    left: list[Input],
    right: list[Input],
    left_cuts: list[int],
    right_cuts: list[int],
    cached: bool,
) -> None:
    kind = type("DurableRun", (Durably, batch_run), {}) if is_durable else batch_run
    run = kind(as_of_app(how, tolerance, grace), cached=cached)
    lives = zip_longest(split(left, left_cuts), split(right, right_cuts), fillvalue=[])
    play(run, list(lives), PlainAsOf(how, tolerance, grace))


class TestAsOf:
    def test_the_latest_right_value_that_is_no_later(self) -> None:
        out = run(
            as_of_app("inner", 10),
            (RIGHT, "a", 1, 0),
            (RIGHT, "a", 2, 5),
            (LEFT, "a", "l", 7),
            (LEFT, "a", "m", 15),
            (LEFT, "a", "n", 16),
        )
        assert out == [("a", ["l", 2], 7), ("a", ["m", 2], 15)]

    def test_left_records_wait_for_the_grace_with_their_headers(self) -> None:
        driver = TopologyTestDriver(as_of_app("left", 10, grace=5))
        driver.pipe("left", "l", key="a", timestamp=10, headers=[("h", b"1")])
        driver.pipe("right", "r", key="a", timestamp=9)
        assert rows(driver) == []
        driver.pipe("right", "s", key="b", timestamp=15, headers=[("h", b"2")])
        (record,) = driver.read("out")
        assert (record.value, record.timestamp, record.headers) == (["l", "r"], 10, (("h", b"1"),))

    def test_a_record_that_waits_finds_its_partner_however_far_time_steps(self) -> None:
        out = run(
            as_of_app("left", 10, grace=5),
            (RIGHT, "a", "r", 9),
            (LEFT, "a", "l", 10),
            (LEFT, "b", "m", 1_000),
        )
        assert out == [("a", ["l", "r"], 10)]

    def test_says_what_it_is(self) -> None:
        assert (
            "as_of_join: j (left: pair, tolerance=10ms, grace=5ms)"
            in as_of_app("left", 10, 5).describe()
        )

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda s: s.join_as_of(3, pair, tolerance=1), "expected a stream to join with"),
            (lambda s: s.join_as_of(s, pair, tolerance=-1), "join_as_of of 'in': tolerance"),
            (lambda s: s.join_as_of(s, pair, tolerance=1, how="outer"), "got 'outer'"),
        ],
    )
    def test_mistakes(self, build: Any, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            build(StreamsBuilder("app").stream("in"))


@pytest.mark.slow
@given(hows, bounds, graces, inputs, inputs)
@settings(max_examples=100, deadline=None)
def test_the_native_loop_and_its_twin_agree(
    batch_run: Any, how: str, within: Any, grace: int, left: list[Input], right: list[Input]
) -> None:
    runs = []
    for is_native in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream_joins, "NATIVE", is_native and stream_joins.NATIVE)
            run = batch_run(joined_app(how, within, grace))
            for at in (0, 12):
                run.feed_all({"left": left[at : at + 12], "right": right[at : at + 12]})
                run.commit()
            runs.append((run.rows("out"), run.total("dropped-records-total"), run.changelog))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("is_native", [True, False])
def test_very_many_pairs_leave_in_parts(batch_run: Any, monkeypatch: Any, is_native: bool) -> None:
    """A run of many records with one key: it would take memory for the product of both sides."""
    monkeypatch.setattr(stream_joins, "NATIVE", is_native and stream_joins.NATIVE)
    left = [("a", n, n // 10) for n in range(200)]
    right = [("a", -n, n // 10) for n in range(200)]
    whole, cut = (batch_run(joined_app("outer", 10)) for _ in range(2))
    whole.feed_all({"left": left, "right": right})
    sent = []
    monkeypatch.setattr(stream_joins, "PAIRS_MAX", 500)
    join = next(iter(cut.tasks[0]._runtime.stateful.values()))
    monkeypatch.setattr(join.results, "forward", lambda batch, f=join.results.forward: (
        sent.append(len(batch)), f(batch)))  # fmt: skip
    cut.feed_all({"left": left, "right": right})
    assert cut.rows("out") == whole.rows("out")
    assert len(sent) > 10
    assert max(sent) < 500 + 200


def test_a_stretch_of_both_inputs_is_one_run(batch_run: Any) -> None:
    """Records that alternate between the inputs would be runs of one record each."""
    run = batch_run(joined_app("inner", 10))
    runtime, settled = run.tasks[0]._runtime, []
    settle = runtime.settle
    runtime.settle = lambda: settled.append(settle())
    some = [("a", n, 2 * n) for n in range(500)]
    run.feed_all({"left": some, "right": [(key, n, at + 1) for key, n, at in some]})
    assert len(settled) <= 3


class TestExpressions:
    def app(self, function: Any, how: str = "left") -> StreamsBuilder:
        app = StreamsBuilder("app", key=string(), value=json())
        one, other = app.stream("left"), app.stream("right")
        one.join(other, function, within=5, how=how, name="j").to("out")  # type: ignore[call-overload]
        return app

    def test_an_expression_makes_a_value_of_both_sides(self) -> None:
        made = struct(id=key_of(), sum=left_of("n") + right_of("n"), has=right_of().is_not_null())
        out = run(
            self.app(made),
            (LEFT, "a", {"n": 1}, 0),
            (RIGHT, "a", {"n": 2, "more": 1}, 1),
            (LEFT, "b", {"n": 3}, 2),
            (LEFT, "c", {"n": 3}, 99),
        )
        assert [value for _, value, _ in out] == [
            {"id": "a", "sum": 3, "has": True},
            {"id": "b", "sum": None, "has": False},
        ]

    @pytest.mark.parametrize("how", ["inner", "left", "outer"])
    def test_of_many_records_it_is_computed_by_columns(
        self, batch_run: Any, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """With the results that a function has, also where a side is missing."""
        columns: list[int] = []
        joined = OnArrow.joined

        def noted(*given: Any) -> Any:
            form = joined(*given)
            columns.append(-1 if form is None else len(form))
            return form

        monkeypatch.setattr(OnArrow, "joined", noted)
        left = [
            (f"k{n % 700}", {"n": n, "name": f"ü{n}", "x": None if n % 9 == 0 else n / 3}, n // 100)
            for n in range(4_000)
        ]
        right = [(f"k{n % 900}", {"m": n, "more": "-" * 50}, n // 100) for n in range(4_000)]
        made = struct(n=left_of("n"), name=left_of("name"), x=left_of("x"), m=right_of("m") + 1)

        def plain(a: Any, b: Any) -> Any:
            side = a or dict.fromkeys(("n", "name", "x"))
            return {**{name: side[name] for name in ("n", "name", "x")}, "m": b and b["m"] + 1}

        found = []
        for function in (made, plain):
            run = batch_run(self.app(function, how))
            run.feed_all({"left": left, "right": right})
            run.feed_all({"left": [("z", left[0][1], 90)], "right": [("y", right[0][1], 90)]})
            found.append(run.out["out"])
        assert [(r.key, r.value, r.timestamp) for r in found[0]] == [
            (r.key, r.value, r.timestamp) for r in found[1]
        ]
        assert (max(columns, default=0) > 2_000) is HAS_COLUMNS

    def test_is_told_as_it_is_written(self) -> None:
        text = self.app(left_of("n") + right_of("m")).describe()
        assert '(left: left("n") + right("m"), within=' in text

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (col("n"), "join 'j': .*there is no value"),
            ("n", "join 'j': expected a function of the left and the right value"),
        ],
    )
    def test_mistakes(self, made: Any, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            self.app(made)

    def test_sides_are_those_of_a_join_alone(self) -> None:
        with pytest.raises(TopologyError, match=r"there is no left\(\) here"):
            StreamsBuilder("app").stream("in").map(left_of("n"))
