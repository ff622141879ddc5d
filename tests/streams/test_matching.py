"""Patterns: against the reference, and what a user sees of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.matching import Step, in_time, matches
from test_state_stores import Durably

from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import (
    Record,
    Streams,
    TopologyTestDriver,
    col,
    int64,
    json,
    repeated,
    string,
    timestamp,
    value,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.fingerprint import compare, fingerprint
from kafkalite.streams.local.compile import compile_topology

CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "a": lambda v: v in (1, 2),
    "b": lambda v: v in (2, 3),
    "c": lambda v: v == 4,
}
EXPRESSIONS: dict[str, Any] = {
    "a": value().is_in([1, 2]),
    "b": value().is_in([2, 3]),
    "c": value() == 4,
}
records = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 6), st.integers(0, 40)), max_size=30
)
ascending = records.map(lambda rs: sorted(rs, key=lambda r: r[2]))
cuts = st.lists(st.tuples(st.integers(1, 29), st.booleans()), max_size=4)


@st.composite
def patterns(draw: Any) -> list[Step]:
    """Two to four conditions, some of them repeated, the inner ones perhaps left out."""
    words = draw(st.sampled_from(["ab", "abc", "aab", "bc", "abac"]))
    steps = []
    for index, word in enumerate(words):
        met = CONDITIONS[word]
        if draw(st.integers(0, 2)):
            steps.append(Step(lambda v, _, met=met: met(v)))
            continue
        least = draw(st.integers(0 if 0 < index < len(words) - 1 else 1, 2))
        most = draw(st.integers(max(1, least), 3))
        steps.append(Step(lambda v, _, met=met: met(v), least, most, repeats=True))
    named = zip(words, steps, strict=True)
    return [replace(step, name=f"{word}{i}") for i, (word, step) in enumerate(named)]


@pytest.mark.parametrize("kind", ["memory", "disk"])
@given(
    rows=st.one_of(records, ascending),
    at=cuts,
    steps=patterns(),
    without=st.booleans(),
    within=st.sampled_from([0, 3, 10, 100]),
    grace=st.sampled_from([0, 0, 5, 15]),
    forms=st.sampled_from(["functions", "expressions", "with_matched"]),
)
@settings(max_examples=150, deadline=None)
def test_matches_are_those_of_the_reference(
    batch_run: Any,
    kind: str,
    rows: Any,
    at: Any,
    steps: list[Step],
    without: bool,
    within: int,
    grace: int,
    forms: str,
) -> None:
    if forms == "with_matched":  # the second condition wants a value that is not yet there
        second = steps[1].condition
        steps[1] = replace(
            steps[1], condition=lambda v, so_far: second(v, so_far) and v not in flat(so_far)
        )
    app = StreamsBuilder("app", key=string(), value=int64())
    options: dict[str, Any] = {"not_between": lambda v: v == 5} if without else {}
    if forms == "with_matched":
        options = {"not_between": lambda v, _: v == 5} if without else {}
        options["with_matched"] = True
    made_of = {step.name: built(step, forms) for step in steps}
    matched = app.stream("in").match(within=within, grace=grace, **options, **made_of)
    matched.map(lambda v: list(v.values())).to("out", value=json())
    matched.unfinished().map(lambda v: list(v.values())).to("over", value=json())
    matched.late().to("late")
    made = batch_run if kind == "memory" else type("DurableRun", (Durably, batch_run), {})
    run = made(app, cached=True)
    first = dropped = 0
    for end, restarts in [*sorted(at), (len(rows), False)]:
        if rows[first:end]:
            run.feed("in", rows[first:end])
            first = end
        run.commit()
        if restarts:
            dropped += run.total("dropped-records-total")
            run.restart()
    dropped += run.total("dropped-records-total")
    kept, late = in_time(rows, grace)
    until = max((row[2] for row in rows), default=0) - grace
    expected, unfinished = [], []
    for key in ("x", "y"):
        own = [row for row in kept if row[0] == key]
        found, over = matches(own, steps, lambda v, _: without and v == 5, within, until)
        expected += found
        unfinished += over
    assert sorted(run.rows("out"), key=str) == sorted(expected, key=str)
    assert [row[2] for row in run.rows("out")] == sorted(row[2] for row in expected)
    assert sorted(run.rows("over"), key=str) == sorted(unfinished, key=str)
    assert [row[2] for row in run.rows("over")] == sorted(row[2] for row in unfinished)
    assert dropped == len(late)
    assert run.rows("late") == late


def built(step: Step, forms: str) -> Any:
    """The condition of a step as a user writes it."""
    word = step.name[0]
    condition: Any = EXPRESSIONS[word] if forms == "expressions" else CONDITIONS[word]
    if forms == "with_matched":
        condition = lambda v, so_far: step.condition(v, list(so_far.values()))  # noqa: E731
    if not step.repeats:
        return condition
    return repeated(condition, at_least=step.least, at_most=step.most)


def flat(so_far: list[Any]) -> list[Any]:
    """All values that matched."""
    return [v for entry in so_far for v in (entry if isinstance(entry, list) else [entry])]


def payments(**options: Any) -> Streams:
    app = Streams("fraud", key=string(), value=json())
    app.stream("payments").match(
        small=col("amount") < 2,
        large=col("amount") > 500,
        not_between=col("kind") == "login",
        within="10m",
        name="probe",
        **options,
    ).to("alerts")
    return app


def pay(driver: TopologyTestDriver, amount: int, minute: int, **more: Any) -> None:
    value = {"amount": amount, "kind": "payment"} | more
    driver.pipe("payments", value, key="card", timestamp=minute * 60_000, headers=[("n", b"1")])


class TestMatch:
    def test_a_then_b_without_c_within_a_time(self) -> None:
        with TopologyTestDriver(payments()) as driver:
            pay(driver, 1, 0)
            pay(driver, 50, 3)
            pay(driver, 900, 10)
            (alert,) = driver.read("alerts")
            assert alert == Record(
                "card",
                {"small": {"amount": 1, "kind": "payment"},
                 "large": {"amount": 900, "kind": "payment"}},
                600_000,
                (("n", b"1"),),
            )  # fmt: skip
            pay(driver, 900, 11)  # its beginning was used
            pay(driver, 1, 12)
            pay(driver, 50, 13, kind="login")
            pay(driver, 900, 14)
            pay(driver, 1, 20)
            pay(driver, 900, 31)
            assert driver.read("alerts") == []

    def test_null_keys_and_late_records_are_dropped_and_counted(self) -> None:
        with TopologyTestDriver(payments(grace="1m")) as driver:
            driver.pipe("payments", {"amount": 1}, timestamp=0)
            pay(driver, 1, 5)
            pay(driver, 1, 3)
            assert driver.metrics()["dropped-records-total"] == 2

    def test_with_a_grace_records_count_in_the_order_of_time(self) -> None:
        with TopologyTestDriver(payments(grace="5m")) as driver:
            pay(driver, 900, 4)
            pay(driver, 1, 2)
            assert driver.read("alerts") == []
            pay(driver, 50, 9)
            (alert,) = driver.read("alerts")
            assert (alert.value["small"]["amount"], alert.timestamp) == (1, 240_000)

    def test_what_is_over_leaves_the_store_and_its_changelog(self, batch_run: Any) -> None:
        run = batch_run(payments())
        for minute in (0, 1, 2):
            run.feed("payments", [(f"card{minute}", {"amount": 1}, minute * 60_000)])
            run.commit()
        run.feed("payments", [("other", {"amount": 5}, 3_600_000)])
        run.commit()
        rows: dict[bytes, Any] = {}
        for columns in run.changelog["fraud-probe-changelog"]:
            rows.update(zip(columns.keys, columns.values, strict=True))
        assert [key for key, row in rows.items() if row is not None] == [b"note"]

    def test_a_changed_key_goes_through_a_topic_and_an_unchanged_one_does_not(self) -> None:
        app = Streams("app", key=string(), value=json())
        app.stream("in").match(a="x", b="y", within=5).group_by_key().count()
        assert len(compile_topology(app.plan())) == 1
        app = Streams("app", key=string(), value=json())
        app.stream("in").select_key("k").match(a="x", b="y", within=5, key=string())
        upper, lower = compile_topology(app.plan())
        assert upper.repartition_sinks == (lower.repartition_sources[0].name,)

    def test_a_record_on_which_a_condition_fails_is_left_out(self) -> None:
        with TopologyTestDriver(payments(on_error="skip")) as driver:
            pay(driver, 1, 0)
            driver.pipe("payments", {"amount": "x"}, key="card", timestamp=60_000)
            pay(driver, 900, 2)
            assert len(driver.read("alerts")) == 1
            assert driver.metrics()["failed-records-total"] == 1
        app = Streams("app", key=string(), value=json())
        app.stream("in").match(a=lambda v: v["x"], b=lambda v: v["y"], within=5, name="ab")
        with (
            TopologyTestDriver(app) as driver,
            pytest.raises(ProcessingError, match="'ab': topic 'in'.* offset 0: .*no field|KeyErr"),
        ):
            driver.pipe("in", {}, key="k", timestamp=0)

    def test_conditions_may_look_at_key_and_time(self) -> None:
        app = Streams("app", key=string(), value=int64())
        app.stream("in").match(a=timestamp() > 5, b=value() == 2, within=50).to("out", value=json())
        with TopologyTestDriver(app) as driver:
            for time in (1, 2, 6, 7):
                driver.pipe("in", 2, key="k", timestamp=time)
            assert [r.value for r in driver.read("out")] == [{"a": 2, "b": 2}]

    def test_repeated_conditions_give_lists_and_functions_see_what_matched(self) -> None:
        app = Streams("app", key=string(), value=int64())
        app.stream("prices").match(
            top=lambda price, so_far: price > 100,
            falling=repeated(
                lambda price, so_far: price < (so_far.get("falling") or [so_far["top"]])[-1],
                at_least=2,
            ),
            up=lambda price, so_far: price > so_far["falling"][-1],
            within="1h",
            with_matched=True,
        ).to("valleys", value=json())
        with TopologyTestDriver(app) as driver:
            for minute, price in enumerate([101, 99, 102, 98, 97, 103, 96]):
                driver.pipe("prices", price, key="k", timestamp=minute * 60_000)
            (valley,) = driver.read("valleys")
            # 102 is above the one falling price before it, and no second one: it changes nothing.
            assert valley.value == {"top": 101, "falling": [99, 98, 97], "up": 103}
        assert "falling=repeated(<lambda>, 2 to 1000)" in app.describe()

    def test_one_condition_may_do_if_it_repeats(self) -> None:
        app = Streams("app", key=string(), value=string())
        failed = repeated(value() == "failed", at_least=3)
        app.stream("logins").match(failures=failed, within="1m").to("locked", value=json())
        with TopologyTestDriver(app) as driver:
            for second, word in enumerate(["failed", "failed", "ok", "failed", "failed"]):
                driver.pipe("logins", word, key="k", timestamp=second * 1_000)
            (locked,) = driver.read("locked")
            assert (locked.value, locked.timestamp) == ({"failures": ["failed"] * 3}, 3_000)

    def test_unfinished_and_late_streams(self) -> None:
        app = Streams("app", key=string(), value=string())
        paid = app.stream("orders").match(
            ordered=value() == "ordered", paid=value() == "paid", within="10m", name="paid"
        )
        paid.unfinished().to("unpaid", value=json())
        paid.late().to("late")
        with TopologyTestDriver(app) as driver:
            driver.pipe("orders", "ordered", key="a", timestamp=0)
            driver.pipe("orders", "ordered", key="b", timestamp=1)
            driver.pipe("orders", "paid", key="b", timestamp=600_001, headers=[("n", b"1")])
            assert driver.read("unpaid") == [Record("a", {"ordered": "ordered"}, 600_000)]
            driver.pipe("orders", "paid", key="a", timestamp=5)
            assert driver.read("late") == [Record("a", "paid", 5)]
            assert driver.metrics()["dropped-records-total"] == 1

    def test_describe_and_fingerprint(self) -> None:
        text = payments(grace="1m").describe()
        assert "pattern: probe (small=" in text
        assert ', not_between=col("kind") == "login", within=10m, grace=1m)' in text
        before, now = (
            fingerprint(app.plan(), compile_topology(app.plan()))
            for app in (payments(), payments(other=col("amount") == 3))
        )
        (refusal, *_) = compare(before, now).refusals
        assert refusal.startswith("store 'probe': its rows were small=")

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"a": len}, r"expected at least two conditions, got \['a'\]"),
            ({"a": len, "b": 3}, "expected a function, a field name or an expression, got int"),
            ({"a": len, "b": len, "within": -1}, "within: expected 0 or more"),
            ({"a": len, "b": len, "grace": "x"}, "grace: expected a timedelta"),
            ({"a": len, "b": max, "not_between": 3}, "expected a function, a field name or an"),
            ({"a": repeated(len)}, r"expected at least two conditions, got \['a'\]"),
            ({"a": repeated(len, at_least=0), "b": len}, "a: the first and the last condition"),
            ({"a": len, "b": repeated(len, at_least=0)}, "b: the first and the last condition"),
            ({"a": len, "b": repeated(3)}, "expected a function, a field name or an"),
            ({"a": str, "b": len, "with_matched": True}, r"len\(.*the value and what matched so"),
        ],
    )
    def test_what_cannot_be_built(self, options: dict[str, Any], told: str) -> None:
        app = Streams("app", key=string(), value=int64())
        with pytest.raises(TopologyError, match=f"^match of 'in': {told}"):
            app.stream("in").match(**{"within": "1m"} | options)

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (
                {"at_least": -1},
                "expected 0 <= at_least <= at_most and at_most > 0, got -1 and 1000",
            ),
            ({"at_least": 3, "at_most": 2}, "expected 0 <= at_least <= at_most"),
            ({"at_least": 0, "at_most": 0}, "expected 0 <= at_least <= at_most"),
            ({"at_least": "1"}, "at_least: expected an int, got '1'"),
        ],
    )
    def test_what_repeated_refuses(self, options: dict[str, Any], told: str) -> None:
        with pytest.raises(TopologyError, match=f"^repeated: {told}"):
            repeated(len, **options)

    def test_only_a_match_has_late_and_unfinished_records(self) -> None:
        stream = Streams("app", key=string(), value=int64()).stream("in")
        with pytest.raises(TopologyError, match="^late of 'in': this is no match: call it on"):
            stream.late()
        with pytest.raises(TopologyError, match="^unfinished of 'in': this is no match"):
            stream.unfinished()
