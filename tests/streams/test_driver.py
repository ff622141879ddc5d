"""The test driver itself: it closes, goes on after a failure, and explains a record."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.errors import ProcessingError
from kafkalite.streams import (
    Record,
    Streams,
    TopologyTestDriver,
    Windowed,
    count,
    json,
    string,
    sum_,
    tumbling,
)


def orders(**settings: Any) -> Streams:
    """Large orders grossed up; sums by user and minute through a repartition topic."""
    app = Streams("orders", key=string(), value=json(), **settings)
    stream = app.stream("orders")
    big = stream.filter(lambda order: order["amount"] > 3, name="big")
    big.map(lambda order: order["amount"] * 2, name="gross").to("gross")
    table = (
        stream.group_by("user", name="users")
        .window(tumbling("1m"))
        .aggregate(n=count(), total=sum_("amount"), name="sums")
    )
    table.final().to("totals")
    table.to_stream().to("sums")
    return app


def order(amount: Any, user: str = "ann") -> dict[str, Any]:
    return {"amount": amount, "user": user}


@pytest.mark.parametrize("cached", [False, True])
def test_it_goes_on_after_a_record_that_failed_as_if_that_had_not_come(cached: bool) -> None:
    def totals(with_failures: bool) -> list[Record]:
        with TopologyTestDriver(orders(), cached=cached) as driver:
            for at, amount in enumerate([5, 2, "much", 7, None, 1]):
                if isinstance(amount, int):
                    driver.pipe("orders", order(amount), key="1", timestamp=at)
                elif with_failures:
                    with pytest.raises(ProcessingError, match="'big': topic 'orders'"):
                        driver.pipe("orders", order(amount), key="1", timestamp=at)
            driver.pipe("orders", order(9), key="1", timestamp=60_000)
            driver.commit()
            return driver.read("totals") + driver.read("gross") + driver.read("sums")

    assert totals(with_failures=True) == totals(with_failures=False)
    window = Windowed("ann", 0, 60_000)
    assert totals(with_failures=True)[0] == Record(window, {"n": 4, "total": 15}, 5)


def test_a_failure_behind_a_repartition_topic_leaves_the_task_before_it_as_it_was() -> None:
    app = Streams("app", key=string(), value=json())
    stream = app.stream("in")
    stream.group_by_key().count(name="seen")
    stream.select_key(lambda v: "k").repartition().map(lambda v: 1 // v, name="divided").to("out")
    with TopologyTestDriver(app) as driver:
        driver.pipe("in", 1, key="a", timestamp=0)
        with pytest.raises(ProcessingError, match="'divided'"):
            driver.pipe("in", 0, key="a", timestamp=1)
        driver.pipe("in", 1, key="a", timestamp=2)
        assert driver.store("seen").get("a") == 3
        assert [record.timestamp for record in driver.read("out")] == [0, 2]
        assert driver.metrics()["process-total"] >= 5


def test_an_explanation_tells_what_each_operator_passed_on_and_changes_nothing() -> None:
    with TopologyTestDriver(orders()) as driver:
        driver.pipe("orders", order(5), key="1", timestamp=0)
        before = driver.read("gross"), driver.read("sums"), driver.metrics()
        small = driver.explain("orders", order(2), key="2", timestamp=60_000)
        assert small.passed_on("big") == small.passed_on("gross") == []
        assert [(s.operator, s.name) for s in small.steps] == [
            ("stream", "orders"),
            ("filter", "big"),
            ("select_key", "users.key"),
            ("to", "users-sink"),
            ("stream", "users-source"),
            ("aggregate", "sums"),
            ("to_stream", "sums-to_stream"),
            ("aggregate", "sums"),
            ("final", "sums-final"),
            ("to", "sums-to_stream-to"),
            ("to", "sums-final-to"),
        ]  # fmt: skip
        assert small.passed_on("sums-final") == [
            Record(Windowed("ann", 0, 60_000), {"n": 1, "total": 5}, 0)
        ]
        assert "filter big " in str(small)
        assert str(small).count("nothing") == 1
        large = driver.explain("orders", order(4), key="2", timestamp=1)
        assert large.passed_on("gross") == [Record("2", 8, 1)]
        assert (driver.read("gross"), driver.read("sums")) == ([], [])
        assert driver.metrics() == before[2]
        driver.pipe("orders", order(4), key="2", timestamp=1)
        assert driver.read("gross") == [Record("2", 8, 1)]


def test_an_explanation_ends_with_the_error() -> None:
    with TopologyTestDriver(orders()) as driver:
        explained = driver.explain("orders", order("much"), key="2", timestamp=1)
        assert isinstance(explained.error, ProcessingError)
        assert [step.name for step in explained.steps] == ["orders"]
        assert str(explained).splitlines()[-1].startswith("failed: 'big': topic 'orders'")
        driver.pipe("orders", order(4), key="2", timestamp=1)


def test_an_explanation_shows_the_dead_letter() -> None:
    app = orders(on_error="dlq", dead_letter_topic="dead")
    with TopologyTestDriver(app) as driver:
        explained = driver.explain("orders", order("much"), key="2", timestamp=1)
        assert ("dead letter", "dead") in {(s.operator, s.topic) for s in explained.steps}
        assert driver.read("dead") == []


def test_an_explanation_sees_updates_that_wait_for_the_commit() -> None:
    with TopologyTestDriver(orders(), cached=True) as driver:
        driver.pipe("orders", order(5), key="1", timestamp=0)
        explained = driver.explain("orders", order(4), key="1", timestamp=60_000)
        (final,) = explained.passed_on("sums-final")
        assert final.value == {"n": 1, "total": 5}
        assert driver.read("sums") == []
        driver.commit()
        assert [record.value["n"] for record in driver.read("sums")] == [1]


def test_every_update_goes_on_also_where_one_record_leads_to_several_at_once() -> None:
    app = Streams("app", key=string(), value=json())
    table = app.table("t")
    alone = app.stream("left").join(
        app.stream("right"), lambda left, _: left, within=0, how="left", name="pairs"
    )
    looked = alone.join(table, lambda value, _: value, how="left")
    groups = looked.group_by_key().cogroup(lambda n, _: n + 1)
    groups = groups.cogroup(table.to_stream().group_by_key(), lambda n, _: n + 1)
    groups.window(tumbling(10)).aggregate(0).to_stream().to("out")
    with TopologyTestDriver(app) as driver:
        for key, timestamp in (("a", 1), ("a", 1), ("b", 9)):  # the last shows that none comes
            driver.pipe("left", 0, key=key, timestamp=timestamp)
        found = driver.read("out")
    assert [record.value for record in found if record.key.key == "a"] == [1, 2]
