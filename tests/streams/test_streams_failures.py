"""What becomes of records on which a function or a serde fails."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.core.types import Columns, concat
from kafkalite.errors import ProcessingError
from kafkalite.streams import (
    collect,
    count,
    first,
    fold,
    json,
    min_,
    msgpack,
    string,
    sum_,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.state.store import NOTE_KEY
from kafkalite.streams.local.task import Task, TaskState


def task_of(build: Any, **options: Any) -> Task:
    app = StreamsBuilder("app", key=string(), value=json(), **options)
    build(app.stream("in"))
    (sub,) = compile_topology(app.plan())
    return Task(sub, 3, cached=False)


def enqueue(task: Task, *values: bytes | None, first: int = 100) -> None:
    count_ = len(values)
    task.enqueue(
        "in",
        Columns(
            [b"a", b"b"] * (count_ // 2) + [b"a"] * (count_ % 2),
            list(values),
            list(range(count_)),
            range(first, first + count_),
        ),
    )


def reciprocal(value: Any) -> float:
    return 1 / value


def stop(value: Any) -> Any:
    if value == 0:
        raise StopIteration
    return value


ZERO_SECOND = (b"1", b"0", b"2", b"4")


class Neither:
    """As an array of numpy's: neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def truth(value: Any) -> Any:
    return value or Neither()


SKIP = {"on_error": "skip"}
EVERY_OPERATOR = {
    "filter": lambda s: s.filter(reciprocal).to("out"),
    "neither true nor false": lambda s: s.filter(truth).to("out"),
    "neither false nor true": lambda s: s.filter_not(lambda v: not v and Neither()).to("out"),
    "map": lambda s: s.map(reciprocal).to("out"),
    "flat_map": lambda s: s.flat_map(lambda v: [1 / v]).to("out"),
    "flat_map lazily": lambda s: s.flat_map(lambda v: (1 / v for _ in "1")).to("out"),
    "peek": lambda s: s.peek(reciprocal).to("out"),
    "select_key": lambda s: s.select_key(lambda v: str(1 / v)).to("out"),
    "map_pairs": lambda s: s.map_pairs(lambda k, v: (k, 1 / v)).to("out"),
    "no pair": lambda s: s.map_pairs(lambda k, v: (k, v) if v else None).to("out"),
    "flat_map_pairs": lambda s: s.flat_map_pairs(lambda k, v: [(k, 1 / v)]).to("out"),
    "branch": lambda s: s.branch(reciprocal)[0].to("out"),
    "branch that is neither": lambda s: s.branch(truth)[0].to("out"),
    "to": lambda s: s.map(lambda v: v or object()).to("out"),
    "topic": lambda s: s.to(lambda r: "out" if r.value else None),
    "stop": lambda s: s.map(stop).to("out"),
    "sum_": lambda s: s.map(lambda v: v or "0").group_by_key().aggregate(sum_()),
    "argument": lambda s: s.group_by_key().aggregate(n=sum_(reciprocal)),
    "fold": lambda s: s.group_by_key().aggregate(fold(0, lambda a, v: a + 1 / v)),
    "windowed": lambda s: (
        s.group_by_key().window(tumbling(9)).aggregate(n=count(), f=fold(0, lambda a, v: a + 1 / v))
    ),
    "table": lambda s: s.to_table().map(reciprocal).to_stream().to("out"),
    "table filter that is neither": lambda s: s.to_table().filter(truth).to_stream().to("out"),
    "table filter": lambda s: s.to_table().filter(reciprocal, name="f").to_stream().to("out"),
}


@pytest.mark.parametrize("build", EVERY_OPERATOR.values(), ids=EVERY_OPERATOR)
class TestEveryOperator:
    def test_fail_names_the_record_and_ends_the_task(self, build: Any) -> None:
        task = task_of(build)
        enqueue(task, *ZERO_SECOND)
        with pytest.raises(ProcessingError, match="topic 'in', partition 3, offset 101: "):
            task.process(10, 0)
        assert task.state is TaskState.FAILED
        with pytest.raises(ProcessingError, match="task 0_3 has failed: make a new one"):
            task.commit()

    def test_skip_leaves_the_record_out(self, build: Any) -> None:
        task = task_of(build, on_error="skip")
        enqueue(task, *ZERO_SECOND)
        assert task.process(10, 0) == 4
        commit = task.commit()
        assert task.metrics["dropped-records-total"] == 1
        assert commit.offsets == {"in": 104}
        if commit.changelog and not commit.outputs:
            keys = [key for output in commit.changelog for key in output.columns.keys]
            assert len([key for key in keys if key != NOTE_KEY]) == 2
        else:
            assert sum(len(output.columns) for output in commit.outputs) == 3


class TestMessages:
    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda s: s.map(reciprocal), "'in-map': .* ZeroDivisionError: division by zero"),
            (lambda s: s.map("n"), "'in-map': .* TypeError: 'int' object is not subscriptable"),
            (lambda s: s.map(lambda v: {}).map("n"), "the value has no field 'n'"),
            (
                lambda s: s.map(lambda v: {}).group_by_key().aggregate(sum_("n")),
                "the value has no field 'n'",
            ),
            (lambda s: s.map(stop), "RuntimeError: the function raised StopIteration"),
        ],
    )
    def test_say_what_went_wrong(self, build: Any, message: str) -> None:
        task = task_of(build)
        enqueue(task, b"0")
        with pytest.raises(ProcessingError, match=message) as raised:
            task.process(10, 0)
        assert raised.value.__cause__ is not None

    def test_the_place_survives_filters_and_flat_maps(self) -> None:
        task = task_of(
            lambda s: s.filter(bool).flat_map(lambda v: [1, v]).map(lambda v: 1 / (v - 3))
        )
        enqueue(task, b"1", b"0", b"2", b"0", b"3")
        with pytest.raises(ProcessingError, match="offset 104: ZeroDivisionError"):
            task.process(10, 0)

    def test_bytes_that_are_no_value_are_named_when_they_are_reached(self) -> None:
        seen: list[Any] = []
        task = task_of(lambda s: s.for_each(seen.append))
        enqueue(task, b"1", b"{", b"2")
        with pytest.raises(
            ProcessingError, match="'in': topic 'in', partition 3, offset 101: json"
        ):
            task.process(10, 0)

    def test_the_place_is_right_where_records_are_folded_one_by_one(self) -> None:
        task = task_of(lambda s: s.group_by_key().aggregate(min_("n")))
        values = (b'{"n":3}', b'{"n":null}', b'{"n":2}', b'{"n":7}', b'{"n":"x"}', b'{"n":8}')
        enqueue(task, *values)
        with pytest.raises(ProcessingError, match="offset 104: TypeError"):
            task.process(10, 0)

    def test_values_are_never_compared_to_find_those_that_are_none(self) -> None:
        class Touchy:
            def __eq__(self, other: object) -> bool:
                raise ValueError("the truth of it is not known")

            __hash__ = None

        task = task_of(lambda s: s.map(lambda v: Touchy()).group_by_key().aggregate(first()))
        enqueue(task, b"1", b"2", b"3")
        assert task.process(10, 0) == 3

    def test_columns_that_nobody_looks_at_are_not_read(self) -> None:
        task = task_of(lambda s: s.to("out"))
        enqueue(task, b"{ not json")
        assert task.process(10, 0) == 1

    def test_an_update_that_many_records_led_to_is_named_by_its_key(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        counts = app.stream("in").group_by_key().count()
        counts.to_stream().map(lambda n: n / 0, name="ratio").to("out")
        (sub,) = compile_topology(app.plan())
        task = Task(sub, 0)
        enqueue(task, b"1", b"2")
        task.process(10, 0)
        with pytest.raises(ProcessingError, match="'ratio': an update of key b'a': ZeroDivision"):
            task.commit()

    def test_a_row_that_cannot_be_kept_names_the_store(self) -> None:
        app = StreamsBuilder("app", key=string(), value=msgpack())
        app.stream("in").group_by_key().aggregate(fold(set, lambda a, v: a | {v}), name="sets")
        with pytest.raises(ProcessingError, match="store 'sets': a row cannot be kept.*set"):
            TopologyTestDriver(app).pipe("in", 1, key="a")


class TestPolicies:
    def test_an_operator_overrides_the_application(self) -> None:
        task = task_of(lambda s: s.map(reciprocal, on_error="fail"), on_error="skip")
        enqueue(task, b"0")
        with pytest.raises(ProcessingError):
            task.process(10, 0)
        task = task_of(lambda s: s.map(reciprocal, on_error="skip").to("out"))
        enqueue(task, *ZERO_SECOND)
        assert task.process(10, 0) == 4

    def test_skipped_sources_are_counted_when_they_are_passed(self) -> None:
        task = task_of(lambda s: s.for_each(id), on_error="skip")
        enqueue(task, b"1", b"{", b"2", b"{", b"3")
        task.process(1, 0)
        assert task.commit().offsets == {"in": 102}
        assert task.metrics["dropped-records-total"] == 1
        task.process(10, 0)
        assert task.metrics["dropped-records-total"] == 2
        assert task.commit().offsets == {"in": 105}
        assert task.buffered("in") == 0

    def test_a_batch_that_cannot_be_read_at_all_is_passed(self) -> None:
        task = task_of(lambda s: s.for_each(id), on_error="skip")
        enqueue(task, b"{", b"{")
        assert task.buffered("in") == 2
        assert task.process(10, 0) == 0
        assert task.buffered("in") == 0
        assert task.commit().offsets == {"in": 102}

    def test_a_skipped_record_changes_no_aggregate_of_its_row(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
        groups = app.stream("in").group_by_key()
        table = groups.aggregate(n=count(), all=collect(), total=sum_(), name="t")
        table.to_stream().to("out")
        driver = TopologyTestDriver(app)
        for value in (1, "x", 2):
            driver.pipe("in", value, key="a")
        assert driver.store("t").get("a") == {"n": 2, "all": [1, 2], "total": 3}
        assert [r.value["n"] for r in driver.read("out")] == [1, 2]

    def test_a_row_that_is_in_no_group_leaves_none_behind(self) -> None:
        """As if the row on which the function failed had been no row."""
        app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
        table = app.table("in")
        by_parity = table.filter_not(lambda v: 12 / v == 1).map(lambda v: 12 // v)
        groups = by_parity.group_by(lambda v: str(2 % v))
        groups.aggregate(n=count(), all=collect(), name="t")
        driver = TopologyTestDriver(app)
        # 0 fails in the filter, "x" too, 12 does not pass; 13 // gives 0, which fails as a group
        rows = {"a": [3, 0, 4], "b": [13, "x", 12, 6], "c": [2, 13, 3], "d": [0, 0, 2, "x"]}
        for key, values in rows.items():
            for value in values:
                driver.pipe("in", value, key=key)
        store = dict(driver.store("t").all())
        assert sorted(x for row in store.values() for x in row["all"]) == [2, 3, 4]
        assert sum(row["n"] for row in store.values()) == 3
        assert driver.metrics()["dropped-records-total"] == 7

    def test_a_record_that_a_sink_cannot_write_fails_once(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").map(lambda v: v or object()).to(
            "out", partitioner=lambda k, v, n: int(v), on_error="skip"
        )
        (sub,) = compile_topology(app.plan())
        task = Task(sub, 3, partition_counts={"out": 3})
        enqueue(task, b"1", b"0", b'"x"', b"2", b"7")
        task.process(10, 0)
        (output,) = task.drain()
        assert (output.columns.values, output.partitions) == ([b"1", b"2"], [1, 2])
        assert task.metrics["failed-records-total"] == 3

    @pytest.mark.parametrize("timestamp", [-1, 1 << 63, 1.5, None])
    def test_a_timestamp_that_no_record_can_have(self, timestamp: Any) -> None:
        for build in (
            lambda app: app.stream("in", timestamp=lambda v: timestamp).for_each(id),
            lambda app: app.stream("in").map_batch(
                lambda c: Columns(c.keys, c.values, [timestamp] * len(c))
            ),
        ):
            app = StreamsBuilder("app", key=string(), value=json())
            build(app)
            (sub,) = compile_topology(app.plan())
            task = Task(sub, 3)
            enqueue(task, b"1")
            with pytest.raises(ProcessingError, match="offset 100: .*Error"):
                task.process(10, 0)

    def test_a_dead_letter_has_the_bytes_and_the_story(self) -> None:
        task = task_of(
            lambda s: s.filter(lambda v: v != 5).map(reciprocal).to("out"),
            on_error="dlq",
            dead_letter_topic="dead",
        )
        enqueue(task, b"5", b"0", b"{")
        task.process(10, 0)
        outputs = task.drain()
        assert {output.topic for output in outputs} == {"dead"}
        columns = concat(output.columns for output in outputs)
        assert columns.values == [b"0", b"{"]
        assert columns.keys == [b"b", b"a"]
        assert columns.timestamps == [1, 2]
        assert columns.headers is not None
        headers = dict(columns.headers[0])
        assert headers["__streams.errors.exception"] == b"ZeroDivisionError"
        assert headers["__streams.errors.topic"] == b"in"
        assert headers["__streams.errors.partition"] == b"3"
        assert headers["__streams.errors.offset"] == b"101"
        assert b"in reciprocal" in headers["__streams.errors.stacktrace"]
        assert task.metrics["dead-letter-records-total"] == 2

    def test_the_driver_reads_dead_letters_as_bytes(self) -> None:
        app = StreamsBuilder(
            "app", key=string(), value=json(), on_error="dlq", dead_letter_topic="dead"
        )
        app.stream("in").map(reciprocal).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", 0, key="a", headers=[("h", b"x")])
        (letter,) = driver.read("dead")
        assert (letter.key, letter.value, letter.headers[0]) == (b"a", b"0", ("h", b"x"))

    def test_functions_run_once_per_record_even_when_one_fails(self) -> None:
        seen: list[Any] = []

        def note(value: Any) -> float:
            seen.append(value)
            return 1 / value

        task = task_of(lambda s: s.map(note).to("out"), on_error="skip")
        enqueue(task, *ZERO_SECOND)
        task.process(10, 0)
        assert seen == [1, 0, 2, 4]


class Odd:
    """A key that says neither whether it is true nor what it equals, as arrays do."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")

    def __eq__(self, other: object) -> bool:
        raise ValueError("so is equality")

    __hash__ = None  # type: ignore[assignment]


def test_a_key_without_a_truth_value_goes_the_way_of_errors() -> None:
    def build(stream: Any) -> None:
        stream.group_by(lambda v: Odd() if v else "a", name="g").count()

    app = StreamsBuilder("app", key=string(), value=json(), on_error="skip")
    build(app.stream("in"))
    reader, _ = (Task(sub, 3) for sub in compile_topology(app.plan()))
    enqueue(reader, b"1", b"0", b"2")
    reader.process(10, 0)
    (output,) = reader.commit().outputs
    assert list(output.columns.keys) == [b"a"]
    assert reader.metrics["dropped-records-total"] == 2
