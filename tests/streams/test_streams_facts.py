"""What Kafka Streams does, rule by rule, on one record at a time."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.errors import ProcessingError
from kafkalite.streams import (
    Windowed,
    bytes_,
    count,
    fold,
    hopping,
    json,
    max_,
    string,
    sum_,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver

Row = tuple[Any, Any, int]


def app_of(value: Any = None) -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=value or json())


def window(key: str, start: int, size: int = 10) -> Windowed:
    return Windowed(key, start, start + size)


def rows(driver: TopologyTestDriver, topic: str = "out") -> list[Row]:
    return [(r.key, r.value, r.timestamp) for r in driver.read(topic)]


def counted(app: StreamsBuilder, w: Any) -> TopologyTestDriver:
    app.stream("in").group_by_key().window(w).count().to_stream().to("out")
    return TopologyTestDriver(app)


def feed(driver: TopologyTestDriver, *records: tuple[Any, Any, int], topic: str = "in") -> None:
    for key, value, timestamp in records:
        driver.pipe(topic, value, key=key, timestamp=timestamp)


class TestStreamTimeAndLateness:
    def test_null_key_does_not_advance_stream_time_and_is_dropped(self) -> None:
        driver = counted(app_of(), tumbling(10))
        feed(driver, ("a", 1, 0), (None, 1, 100), ("a", 1, 1))
        assert rows(driver) == [(window("a", 0), 1, 0), (window("a", 0), 2, 1)]
        assert driver.metrics()["dropped-records-total"] == 1

    def test_null_value_is_counted_and_advances_stream_time(self) -> None:
        driver = counted(app_of(), tumbling(10))
        feed(driver, ("a", None, 20), ("a", 1, 5))
        assert rows(driver) == [(window("a", 20), 1, 20)]
        assert driver.metrics()["dropped-records-total"] == 1

    def test_grace_0_is_late_as_soon_as_the_end_is_reached(self) -> None:
        driver = counted(app_of(), tumbling(10))
        feed(driver, ("a", 1, 9), ("b", 1, 10), ("a", 1, 9))
        assert rows(driver) == [(window("a", 0), 1, 9), (window("b", 10), 1, 10)]
        assert driver.metrics()["dropped-records-total"] == 1

    def test_grace_keeps_a_window_open_while_end_plus_grace_is_above_stream_time(self) -> None:
        driver = counted(app_of(), tumbling(10, grace=5))
        feed(driver, ("b", 1, 14), ("a", 1, 9), ("b", 1, 15), ("a", 1, 9))
        assert rows(driver) == [
            (window("b", 10), 1, 14),
            (window("a", 0), 1, 9),
            (window("b", 10), 2, 15),
        ]

    def test_hopping_record_is_late_for_one_window_and_in_time_for_the_next(self) -> None:
        driver = counted(app_of(), hopping(10, 5))
        feed(driver, ("b", 1, 12), ("a", 1, 7))  # [0, 10) is over, [5, 15) is not
        assert rows(driver)[-1] == (window("a", 5), 1, 7)
        assert driver.metrics()["dropped-records-total"] == 1

    def test_hopping_starts_are_multiples_of_the_advance_never_below_0(self) -> None:
        driver = counted(app_of(), hopping(10, 4))
        feed(driver, ("a", 1, 3), ("a", 1, 9), ("a", 1, 10))
        assert [key.start for key, _, _ in rows(driver)] == [0, 0, 4, 8, 4, 8]

    def test_the_wall_clock_closes_nothing(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().window(tumbling(10)).count().final().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0))
        driver.advance_wall_clock("10d")
        assert rows(driver) == []


class TestWindowAggregates:
    def test_a_late_record_does_not_take_the_timestamp_back(self) -> None:
        driver = counted(app_of(), tumbling(10))
        feed(driver, ("a", 1, 7), ("a", 1, 3))
        assert rows(driver) == [(window("a", 0), 1, 7), (window("a", 0), 2, 7)]

    def test_windows_of_one_hopping_record_are_updated_by_ascending_start(self) -> None:
        driver = counted(app_of(), hopping(10, 2))
        feed(driver, ("a", 1, 13))
        assert [key.start for key, _, _ in rows(driver)] == [4, 6, 8, 10, 12]

    def test_fold_sees_null_values_in_windows(self) -> None:
        app = app_of()
        table = app.stream("in").group_by_key().window(tumbling(10))
        table.aggregate(fold([], lambda a, v: [*a, v])).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("a", None, 1))
        assert rows(driver)[-1] == (window("a", 0), [1, None], 1)

    def test_headers_are_those_of_the_record_that_triggered_the_result(self) -> None:
        driver = counted(app_of(), tumbling(10))
        driver.pipe("in", 1, key="a", timestamp=0, headers=[("h", b"1")])
        driver.pipe("in", 1, key="a", timestamp=1)
        assert [r.headers for r in driver.read("out")] == [(("h", b"1"),), ()]


class TestAggregatesWithoutWindows:
    def test_null_keys_and_null_values_are_dropped_and_counted(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().count().to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", None, 0), (None, 1, 0), ("a", 1, 0))
        assert rows(driver) == [("a", 1, 0)]
        assert driver.metrics()["dropped-records-total"] == 2

    def test_result_timestamp_is_the_newest(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().aggregate(sum_()).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 5, 9), ("a", 1, 2))
        assert rows(driver) == [("a", 5, 9), ("a", 6, 9)]

    def test_an_aggregate_that_is_null_deletes_and_the_timestamp_starts_anew(self) -> None:
        app = app_of()
        add = fold(0, lambda a, v: None if v == "x" else a + v)
        app.stream("in").group_by_key().aggregate(add).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 50), ("a", "x", 40), ("a", 2, 10), ("a", 3, 5))
        assert rows(driver) == [("a", 1, 50), ("a", None, 50), ("a", 2, 10), ("a", 5, 10)]

    def test_reduce_takes_the_first_value_as_it_is(self) -> None:
        calls: list[Any] = []

        def add(aggregate: Any, value: Any) -> Any:
            calls.append((aggregate, value))
            return aggregate + value

        app = app_of()
        app.stream("in").group_by_key().reduce(add).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("a", 2, 1))
        assert rows(driver) == [("a", 1, 0), ("a", 3, 1)]
        assert calls == [(1, 2)]


class TestFinalResults:
    def test_order_is_window_end_then_serialized_key(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().window(tumbling(10, grace=10)).count().final().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("b", 1, 11), ("c", 1, 5), ("a", 1, 12), ("b", 1, 1), ("z", 1, 40))
        assert rows(driver) == [
            (window("b", 0), 1, 1),
            (window("c", 0), 1, 5),
            (window("a", 10), 1, 12),
            (window("b", 10), 1, 11),
        ]

    def test_emitted_when_stream_time_reaches_end_plus_grace(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().window(tumbling(10, grace=5)).count().final().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 3), ("b", 1, 14))
        assert rows(driver) == []
        feed(driver, ("b", 1, 15))
        assert rows(driver) == [(window("a", 0), 1, 3)]

    def test_timestamp_and_headers_of_the_last_update(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().window(tumbling(10)).count().final().to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", 1, key="a", timestamp=7, headers=[("h", b"1")])
        driver.pipe("in", 1, key="a", timestamp=3, headers=[("h", b"2")])
        driver.pipe("in", 1, key="b", timestamp=10, headers=[("h", b"3")])
        (record,) = driver.read("out")
        assert (record.timestamp, record.headers) == (7, (("h", b"2"),))

    def test_deleted_windows_are_swallowed(self) -> None:
        app = app_of()
        add = fold(0, lambda a, v: None if v == "x" else a + v)
        app.stream("in").group_by_key().window(tumbling(10)).aggregate(add).final().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("b", 2, 0), ("a", "x", 1), ("c", 1, 20))
        assert rows(driver) == [(window("b", 0), 2, 0)]

    def test_windows_that_stream_time_steps_over_all_come_out(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().window(tumbling(10)).count().final().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("a", 1, 1_000_000), ("a", 1, 9_000_000))
        assert [key.start for key, _, _ in rows(driver)] == [0, 1_000_000]

    def test_map_and_filter_of_the_table_apply_to_final_rows(self) -> None:
        app = app_of()
        table = app.stream("in").group_by_key().window(tumbling(10)).count()
        table.filter(lambda n: n > 1).map(lambda n: n * 10).final().to("out", value=json())
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("b", 1, 1), ("a", 1, 2), ("c", 1, 20))
        assert rows(driver) == []  # time is that of the rows that pass
        feed(driver, ("c", 1, 20))
        assert rows(driver) == [(window("a", 0), 20, 2)]

    def test_idle_input_closes_windows_in_wall_time(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().window(tumbling(10)).count().final(idle="30s").to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 3))
        driver.advance_wall_clock("29s")
        assert rows(driver) == []
        driver.advance_wall_clock("1s")
        assert rows(driver) == [(window("a", 0), 1, 3)]
        feed(driver, ("a", 1, 4))  # late now
        assert driver.metrics()["dropped-records-total"] == 1


class TestLate:
    def test_records_that_missed_every_window_as_they_came(self) -> None:
        app = app_of()
        counts = app.stream("in").group_by_key().window(hopping(10, 5)).count()
        counts.late().to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", {"n": 1}, key="a", timestamp=20)
        driver.pipe("in", {"n": 2}, key="a", timestamp=12)  # [5, 15) and [10, 20) are over
        driver.pipe("in", {"n": 3}, key="b", timestamp=17)  # in [15, 25)
        driver.pipe("in", {"n": 4}, key="b", timestamp=3, headers=[("h", b"x")])
        found = driver.read("out")
        assert [(r.key, r.value, r.timestamp) for r in found] == [
            ("a", {"n": 2}, 12),
            ("b", {"n": 4}, 3),
        ]
        assert [r.headers for r in found] == [(), (("h", b"x"),)]

    def test_each_window_missed_is_counted(self) -> None:
        app = app_of()
        app.stream("in").group_by_key().window(hopping(10, 5)).count().to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 30), ("a", 1, 17))
        assert driver.metrics()["dropped-records-total"] == 2
        assert driver.metrics()["late-records-total"] == 1


class TestTables:
    def table(self, **options: Any) -> tuple[StreamsBuilder, Any]:
        app = app_of()
        return app, app.table("in", **options)

    def test_updates_count_in_order_of_arrival(self) -> None:
        app, table = self.table(name="t")
        table.to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 50), ("a", 2, 10))
        assert rows(driver) == [("a", 1, 50), ("a", 2, 10)]
        assert driver.store("t").get("a") == 2

    @pytest.mark.parametrize("name", [None, "t"])
    def test_every_update_goes_on_and_null_keys_are_counted(self, name: str | None) -> None:
        app, table = self.table(name=name)
        table.to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("a", 1, 1), ("b", None, 2), (None, 1, 3))
        assert rows(driver) == [("a", 1, 0), ("a", 1, 1), ("b", None, 2)]
        assert driver.metrics()["dropped-records-total"] == 1

    def test_filter_without_old_rows_deletes_whatever_does_not_pass(self) -> None:
        app, table = self.table()
        table.filter(lambda v: v > 1).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("a", 2, 1), ("a", 0, 2), ("a", 0, 3))
        assert [value for _, value, _ in rows(driver)] == [None, 2, None, None]

    @pytest.mark.parametrize(("source", "filtered"), [("t", None), (None, "f"), ("t", "f")])
    def test_filter_with_old_rows_deletes_only_what_was_there(
        self, source: str | None, filtered: str | None
    ) -> None:
        app, table = self.table(name=source)
        table.filter(lambda v: v > 1, name=filtered).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 0), ("a", 2, 1), ("a", 0, 2), ("a", 0, 3), ("a", None, 4))
        assert [value for _, value, _ in rows(driver)] == [2, None]

    def test_filter_of_an_aggregate_knows_the_old_row(self) -> None:
        app = app_of()
        counts = app.stream("in").group_by_key().count()
        counts.filter(lambda n: n % 2 == 0).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, *(("a", 1, i) for i in range(4)))
        assert [value for _, value, _ in rows(driver)] == [2, None, 4]

    def test_functions_never_see_deleted_rows(self) -> None:
        app, table = self.table(name="t")
        table.filter(lambda v: v["n"] >= 0).map(lambda v: v["n"]).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", {"n": 1}, 0), ("a", None, 1))
        assert [value for _, value, _ in rows(driver)] == [1, None]

    def test_to_table_drops_null_keys_and_forwards_deletions_of_absent_rows(self) -> None:
        app = app_of()
        app.stream("in").to_table().to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", None, 0), (None, 1, 1), ("a", 1, 2))
        assert rows(driver) == [("a", None, 0), ("a", 1, 2)]
        assert driver.metrics()["dropped-records-total"] == 1


class TestTableGroups:
    def driver(self, **options: Any) -> TopologyTestDriver:
        app = app_of()
        groups = app.table("in").group_by("team", value=lambda v: v["n"])
        if options.get("sum"):
            groups.aggregate(sum_()).to_stream().to("out")
        else:
            groups.count().to_stream().to("out")
        return TopologyTestDriver(app)

    def test_the_old_row_leaves_its_group_before_the_new_one_enters_its(self) -> None:
        driver = self.driver()
        feed(driver, ("a", {"team": "x", "n": 1}, 5), ("a", {"team": "y", "n": 1}, 3))
        assert rows(driver) == [("x", 1, 5), ("x", 0, 5), ("y", 1, 3)]

    def test_a_change_within_a_group_is_one_record(self) -> None:
        driver = self.driver(sum=True)
        feed(driver, ("a", {"team": "x", "n": 4}, 5), ("a", {"team": "x", "n": 7}, 6))
        assert rows(driver) == [("x", 4, 5), ("x", 7, 6)]

    def test_timestamp_is_the_newest_of_group_and_record(self) -> None:
        driver = self.driver()
        feed(driver, ("a", {"team": "x", "n": 1}, 50), ("b", {"team": "x", "n": 1}, 10))
        assert rows(driver) == [("x", 1, 50), ("x", 2, 50)]

    def test_a_null_group_leaves_the_row_out_uncounted(self) -> None:
        driver = self.driver()
        feed(driver, ("a", {"team": None, "n": 1}, 0), ("a", {"team": "x", "n": 1}, 1))
        assert rows(driver) == [("x", 1, 1)]
        assert driver.metrics()["dropped-records-total"] == 0

    def test_a_group_that_becomes_empty_keeps_its_row(self) -> None:
        driver = self.driver()
        feed(driver, ("a", {"team": "x", "n": 1}, 0), ("a", None, 1))
        assert rows(driver) == [("x", 1, 0), ("x", 0, 1)]

    def test_nothing_is_taken_out_of_a_group_without_a_row(self) -> None:
        taken: list[Any] = []

        def take(aggregate: Any, value: Any) -> Any:
            taken.append(value)
            return None

        app = app_of()
        groups = app.table("in").group_by("team", value=lambda v: v["n"])
        total = fold(0, lambda a, v: a + v, subtract=take)
        groups.aggregate(total).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(
            driver,
            ("a", {"team": "x", "n": 1}, 0),
            ("b", {"team": "x", "n": 2}, 1),
            ("a", None, 2),  # the group is deleted
            ("b", None, 3),  # nothing to take out of
        )
        assert taken == [1]
        assert rows(driver)[:3] == [("x", 1, 0), ("x", 3, 1), ("x", None, 2)]

    def test_headers_are_those_of_the_update_for_both_groups(self) -> None:
        driver = self.driver()
        driver.pipe("in", {"team": "x", "n": 1}, key="a", timestamp=0)
        driver.pipe("in", {"team": "y", "n": 1}, key="a", timestamp=1, headers=[("h", b"1")])
        assert [r.headers for r in driver.read("out")] == [(), (("h", b"1"),), (("h", b"1"),)]


class TestNullsAndKeys:
    def test_group_by_drops_null_groups_silently(self) -> None:
        app = app_of()
        app.stream("in").group_by("g").count().to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", {"g": None}, 0), ("a", {"g": "x"}, 1))
        assert rows(driver) == [("x", 1, 1)]
        assert driver.metrics()["dropped-records-total"] == 0

    def test_stateless_operators_pass_nulls_and_keep_timestamps(self) -> None:
        app = app_of()
        stream = app.stream("in").map(lambda v: v).filter(lambda v: True)
        stream.flat_map(lambda v: [v, v]).select_key(lambda v: None).to("out")
        driver = TopologyTestDriver(app)
        feed(driver, (None, None, 7))
        assert rows(driver) == [(None, None, 7), (None, None, 7)]

    def test_repartition_drops_null_keys_silently(self) -> None:
        app = app_of()
        app.stream("in").repartition().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, (None, 1, 0), ("a", 1, 1))
        assert rows(driver) == [("a", 1, 1)]
        assert driver.metrics()["dropped-records-total"] == 0

    def test_keys_are_equal_when_their_bytes_are(self) -> None:
        app = StreamsBuilder("app", key=json(), value=bytes_())
        app.stream("in").group_by_key().count().to_stream().to("out")
        driver = TopologyTestDriver(app)
        for key in (1, True, 1.0, {"k": 1}):
            driver.pipe("in", b"", key=key, timestamp=0)
        assert [r.value for r in driver.read("out")] == [1, 1, 1, 1]

    def test_none_is_left_out_of_aggregates_but_not_of_count(self) -> None:
        app = app_of()
        parts = {"n": count(), "with_x": count("x"), "total": sum_("x"), "most": max_("x")}
        app.stream("in").group_by_key().aggregate(**parts).to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", {"x": None}, 0), ("a", {"x": 3}, 1))
        assert [value for _, value, _ in rows(driver)] == [
            {"n": 1, "with_x": 0, "total": 0, "most": None},
            {"n": 2, "with_x": 1, "total": 3, "most": 3},
        ]

    def test_negative_timestamps_stop_the_application(self) -> None:
        app = app_of()
        app.stream("in").to("out")
        with pytest.raises(ProcessingError, match="offset 0: ValueError: timestamp -5 is negative"):
            feed(TopologyTestDriver(app), ("a", 1, -5))


class TestOneRecordThatBecomesSeveral:
    """Each goes all the way before the next."""

    def test_every_one_updates_the_table(self) -> None:
        app = app_of()
        app.stream("in").flat_map(str.split).group_by_key().count().to_stream().to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("k", "a b c", 1))
        assert rows(driver) == [("k", 1, 1), ("k", 2, 1), ("k", 3, 1)]

    def test_what_parts_and_meets_again_stays_in_order(self) -> None:
        app = app_of()
        words = app.stream("in").flat_map_pairs(lambda k, v: [(word, v) for word in v.split()])
        words.map(len).merge(words.map(str.upper)).to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("k", "a b", 1))
        assert [(key, value) for key, value, _ in rows(driver)] == [
            ("a", 3), ("a", "A B"), ("b", 3), ("b", "A B"),
        ]  # fmt: skip

    def test_windows_that_close_together(self) -> None:
        app = app_of()
        final = app.stream("in").group_by_key().window(tumbling(10)).count().final()
        final.map(lambda n: -n).merge(final).to("out")
        driver = TopologyTestDriver(app)
        feed(driver, ("a", 1, 1), ("b", 1, 2), ("c", 1, 10))
        assert [(key.key, value) for key, value, _ in rows(driver)] == [
            ("a", -1), ("a", 1), ("b", -1), ("b", 1),
        ]  # fmt: skip


def test_a_final_row_that_a_map_deletes_is_none() -> None:
    app = app_of()
    table = app.stream("in").group_by_key().window(tumbling(10)).count()
    table.map(lambda n: None if n == 1 else n).map(lambda n: n + 1).final().to("out")
    driver = TopologyTestDriver(app)
    feed(driver, ("a", 1, 1), ("b", 1, 2), ("b", 1, 3), ("c", 1, 10))
    assert rows(driver) == [(window("b", 0), 3, 3)]
