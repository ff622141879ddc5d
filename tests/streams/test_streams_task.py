"""The task as a machine: order of inputs, offsets, outputs, commit and restore; the stores."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb

from kafkalite.core.protocol.record_codec import NATIVE
from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.serde import SerdeContext
from kafkalite.streams import (
    avro,
    bytes_,
    collect_set,
    count,
    json,
    max_,
    mean,
    msgpack,
    string,
    sum_,
    top_k,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.changes import ChangeSerde
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.inputs import first_not_before
from kafkalite.streams.local.operators.rows import WAITING_MAX
from kafkalite.streams.local.state.store import NOTE_KEY
from kafkalite.streams.local.task import Output, Task, TaskState, join

GOLDEN = Path(__file__).parent / "golden"


def columns(
    *records: tuple[bytes | None, bytes | None, int], first: int = 0, headers: Any = None
) -> Columns:
    keys, values, timestamps = map(list, zip(*records, strict=True))
    return Columns(keys, values, timestamps, range(first, first + len(records)), headers)


def task_of(app: StreamsBuilder, **options: Any) -> Task:
    (sub,) = compile_topology(app.plan())
    return Task(sub, 0, **options)


def merged() -> Task:
    app = StreamsBuilder("app")
    app.stream("a").merge(app.stream("b")).to("out")
    return task_of(app)


def values_of(outputs: list[Output]) -> list[Any]:
    return [value for output in outputs for value in output.columns.values]


def rows_of(changelog: Columns) -> dict[bytes, bytes | None]:
    rows = dict(zip(changelog.keys, changelog.values, strict=True))
    rows.pop(NOTE_KEY, None)
    return rows


def windowed_count(**options: Any) -> Task:
    app = StreamsBuilder("app", key=string())
    table = app.stream("in").group_by_key().window(tumbling(10)).count(name="n")
    table.final().to("final")
    table.to_stream().to("updates")
    return task_of(app, **options)


class TestSmallBatches:
    def test_a_batch_of_one_record_takes_few_calls(self) -> None:
        """The fixed cost of a batch, counted in calls of Python functions: it was 94."""
        app = StreamsBuilder("app", key=bytes_(), value=bytes_())
        app.stream("in").filter(lambda value: value != b"").map(bytes.upper).to("out")
        task = task_of(app, limits={"out": 1_000_000})
        calls: list[str] = []

        def one(offset: int) -> list[Output]:
            task.enqueue("in", Columns([b"k"], [b"v"], [1], range(offset, offset + 1)))
            task.process(100, 0)
            return task.drain()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                calls.append(frame.f_code.co_qualname)

        one(0)
        gc.disable()  # a collection would call what Hypothesis hangs on it
        sys.setprofile(note)
        try:
            made = one(1)
        finally:
            sys.setprofile(None)
            gc.enable()
        assert made[0].columns.values == [b"V"]
        assert len(calls) <= (75 if NATIVE else 80), calls


class TestOrder:
    def test_the_input_with_the_earliest_record_goes_first(self) -> None:
        task = merged()
        task.enqueue("a", columns((None, b"a1", 1), (None, b"a5", 5), (None, b"a6", 6)))
        task.enqueue("b", columns((None, b"b2", 2), (None, b"b3", 3), (None, b"b9", 9)))
        assert task.process(100, 0) == 6
        assert values_of(task.drain()) == [b"a1", b"b2", b"b3", b"a5", b"a6", b"b9"]

    def test_of_equal_timestamps_the_input_that_came_first_goes_first(self) -> None:
        task = merged()
        task.enqueue("a", columns((None, b"a", 5)))
        task.enqueue("b", columns((None, b"b1", 1), (None, b"b5", 5)))
        task.process(100, 0)
        assert values_of(task.drain()) == [b"b1", b"a", b"b5"]

    @given(
        st.lists(st.integers(0, 9), max_size=8),
        st.lists(st.integers(0, 9), max_size=8),
        st.integers(1, 20),
    )
    def test_runs_are_the_order_record_by_record(
        self, a: list[int], b: list[int], records_max: int
    ) -> None:
        def run(most: int) -> list[Any]:
            task = merged()
            for topic, times in (("a", a), ("b", b)):
                if times:
                    records = ((None, f"{topic}{i}".encode(), t) for i, t in enumerate(times))
                    task.enqueue(topic, columns(*records))
            while task.process(most, 0):
                pass
            return values_of(task.drain())

        assert run(records_max) == run(1)

    def test_a_short_run_does_not_look_at_a_long_head(self) -> None:
        looked_at = 0

        class Watched(list[int]):
            def __getitem__(self, index: Any) -> Any:
                nonlocal looked_at
                found = super().__getitem__(index)
                looked_at += len(found) if isinstance(index, slice) else 1
                return found

        times = Watched(range(100_000))
        assert first_not_before(times, 70, 60, len(times)) == 70
        assert looked_at < 40
        assert first_not_before(times, 1 << 40, 60, len(times)) == len(times)

    def test_at_most_so_many_records_are_processed(self) -> None:
        task = merged()
        task.enqueue("a", columns((None, b"1", 1), (None, b"2", 2), (None, b"3", 3)))
        assert task.buffered("a") == 3
        assert (task.process(2, 0), task.buffered("a")) == (2, 1)
        assert (task.process(2, 0), task.buffered("a")) == (1, 0)
        assert task.process(2, 0) == 0
        assert task.buffered("b") == 0

    def test_a_topic_of_another_task_is_refused(self) -> None:
        with pytest.raises(ProcessingError, match="task 0_0 does not read topic 'c'"):
            merged().enqueue("c", columns((None, b"", 0)))


class TestRestoring:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (None, (1).to_bytes(8, "big")),
            (b"short", (1).to_bytes(8, "big")),
            (b"a" + bytes(8), b"no int64"[:5]),
        ],
    )
    def test_a_record_that_is_no_row_is_named(self, key: bytes | None, value: bytes) -> None:
        task = windowed_count()
        good = Columns([b"a" + bytes(8)], [(1).to_bytes(8, "big")], [3], [40])
        task.restore("n", good)
        with pytest.raises(ProcessingError, match="'n': app-n-changelog-0 offset 42 cannot"):
            task.restore("n", Columns([*good.keys, key], [*good.values, value], [3, 3], [41, 42]))

    def test_rows_of_another_shape_are_named(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").group_by_key().aggregate(n=count(), total=sum_(), name="n")
        task = task_of(app)
        row = Columns(
            [b"a"], [json().open(SerdeContext(None)).serialize("t", [{"n": 3}])[0]], [3], [7]
        )
        with pytest.raises(ProcessingError, match="offset 7 .* KeyError: 'total'"):
            task.restore("n", row)


class TestCommit:
    def test_offsets_are_those_to_read_next(self) -> None:
        task = merged()
        assert task.commit().offsets == {}
        task.enqueue("a", columns((None, b"1", 1), (None, b"2", 2), first=10))
        task.enqueue("b", columns((None, b"3", 9), first=70))
        task.process(1, 0)
        assert task.commit().offsets == {"a": 11}
        task.process(10, 0)
        assert task.commit().offsets == {"a": 12, "b": 71}

    def test_offsets_of_a_compacted_log_have_gaps(self) -> None:
        task = merged()
        task.enqueue("a", Columns([None] * 3, [b""] * 3, [0, 1, 2], [4, 9, 20]))
        task.process(1, 0)
        assert task.commit().offsets == {"a": 9}
        task.process(2, 0)
        assert task.commit().offsets == {"a": 21}

    def test_updates_wait_for_it_and_leave_once_per_key(self) -> None:
        task = windowed_count()
        task.enqueue("in", columns((b"a", b"", 1), (b"b", b"", 0), (b"a", b"", 2)))
        task.process(10, 0)
        assert task.drain() == []
        commit = task.commit()
        (output,) = commit.outputs
        assert list(output.columns.timestamps) == [0, 2]  # in order of time
        (changes,) = commit.changelog
        assert changes.topic == "app-n-changelog"
        assert rows_of(changes.columns) == {
            b"a" + bytes(8): (2).to_bytes(8, "big"),
            b"b" + bytes(8): (1).to_bytes(8, "big"),
        }
        assert task.commit().changelog == []

    def test_too_many_waiting_updates_leave_early(self) -> None:
        app = StreamsBuilder("app")
        app.stream("in").group_by_key().count().to_stream().to("out")
        task = task_of(app)
        keys = [str(i).encode() for i in range(WAITING_MAX + 1)]
        task.enqueue("in", Columns(keys, keys, [0] * len(keys), range(len(keys))))
        task.process(len(keys), 0)
        assert sum(len(output.columns) for output in task.drain()) == len(keys)

    def test_a_window_that_came_and_went_leaves_no_trace_in_the_changelog(self) -> None:
        task = windowed_count()
        task.enqueue("in", columns((b"a", b"", 1), (b"b", b"", 50)))
        task.process(10, 0)
        (changes,) = task.commit().changelog
        assert len(rows_of(changes.columns)) == 1

    def test_a_closed_window_is_removed_from_the_changelog(self) -> None:
        task = windowed_count()
        task.enqueue("in", columns((b"a", b"", 1)))
        task.process(10, 0)
        task.commit()
        task.enqueue("in", columns((b"b", b"", 50), first=1))
        task.process(10, 0)
        (changes,) = task.commit().changelog
        records = zip(changes.columns.keys, changes.columns.values, strict=True)
        assert dict(records)[b"a" + bytes(8)] is None

    def test_a_deleted_row_is_removed_from_the_changelog(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.table("in", name="t")
        task = task_of(app)
        task.enqueue("in", columns((b"a", b"1", 0), (b"a", None, 1), (b"b", b"2", 2)))
        task.process(10, 0)
        (changes,) = task.commit().changelog
        assert list(zip(changes.columns.keys, changes.columns.values, strict=True)) == [
            (b"a", None),
            (b"b", b"2"),
        ]

    def test_a_deleted_row_leaves_nothing_in_memory(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.table("in", name="t")
        app.stream("other").group_by_key().reduce(lambda a, v: None, name="r")
        for topic, store, sub in zip(
            ("in", "other"), "tr", compile_topology(app.plan()), strict=True
        ):
            task = Task(sub, 0)
            headers = [(("h", b"1"),)] * 2
            second = b"2" if topic == "other" else None
            task.enqueue(topic, columns((b"a", b"1", 0), (b"a", second, 1), headers=headers))
            task.process(10, 0)
            task.commit()
            (bucket,) = task._runtime.stores[store].buckets.values()
            assert (bucket.stamps, bucket.headers, bucket.unlogged) == ({}, {}, {})
            assert not any(bucket.partials)


class TestRestore:
    def test_stream_time_is_left_in_the_store(self) -> None:
        task = windowed_count()
        assert task.commit().changelog == []
        task.enqueue("in", columns((b"a", b"", 5), (b"a", b"", 55)))
        task.process(10, 0)
        (changes,) = task.commit().changelog
        assert list(changes.columns.keys).count(NOTE_KEY) == 1
        again = windowed_count()
        again.restore("n", changes.columns.where([key == NOTE_KEY for key in changes.columns.keys]))
        again.enqueue("in", columns((b"a", b"", 10)))
        again.process(10, 0)
        assert again.metrics["dropped-records-total"] == 1

    def test_without_a_note_the_changelog_tells_how_far_time_came(self) -> None:
        task = windowed_count()
        task.enqueue("in", columns((b"a", b"", 55)))
        task.process(10, 0)
        again = windowed_count()
        rows = task.commit().changelog[0].columns
        again.restore("n", rows.where([key != NOTE_KEY for key in rows.keys]))
        again.enqueue("in", columns((b"a", b"", 10)))
        again.process(10, 0)
        assert again.metrics["dropped-records-total"] == 1

    def test_a_note_that_has_not_changed_is_not_written_again(self) -> None:
        task = windowed_count()
        task.enqueue("in", columns((b"a", b"", 5)))
        task.process(10, 0)
        task.commit()
        assert task.commit().changelog == []

    def test_windows_that_time_has_passed_are_not_restored(self) -> None:
        task, ahead = windowed_count(), windowed_count()
        task.enqueue("in", columns((b"a", b"", 5)))
        ahead.enqueue("in", columns((b"a", b"", 500)))
        rows = []
        for each in (task, ahead):
            each.process(10, 0)
            rows.append(each.commit().changelog[0].columns)
        again = windowed_count()
        again.restore("n", rows[0])
        again.restore("n", rows[1].where([key == NOTE_KEY for key in rows[1].keys]))
        (changes,) = again.commit().changelog
        assert changes.columns.values[0] is None
        assert values_of(again.drain()) == []

    def test_headers_of_open_windows_survive(self) -> None:
        task = windowed_count()
        headers = [(("h", b"1"),), ()]
        task.enqueue("in", columns((b"a", b"", 1), (b"b", b"", 2), headers=headers))
        task.process(10, 0)
        commit = task.commit()
        again = windowed_count()
        again.restore("n", commit.changelog[0].columns)
        again.enqueue("in", columns((b"z", b"", 10), first=2))
        again.process(10, 0)
        (final,) = (output for output in again.drain() if output.topic == "final")
        assert final.columns.headers == [(("h", b"1"),), ()]

    @pytest.mark.parametrize("note", [b"noise", b"", packb([2, 1, {}]), packb([1, "x", {}])])
    def test_a_foreign_note_is_named(self, note: bytes) -> None:
        task = windowed_count()
        task.restore("n", Columns([NOTE_KEY], [note], [0], range(1)))
        with pytest.raises(ProcessingError, match="store 'n': its note of times cannot be read"):
            task.enqueue("in", columns((b"a", b"", 10)))

    def test_comes_before_the_first_record(self) -> None:
        task = windowed_count()
        assert task.state is TaskState.RESTORING
        task.enqueue("in", columns((b"a", b"", 5)))
        assert task.state is TaskState.RUNNING
        with pytest.raises(AssertionError, match="task 0_0: RUNNING"):
            task.restore("n", columns((b"a" + bytes(8), None, 0)))

    @pytest.mark.parametrize("value", [None, json(), msgpack(), avro(name="Row")])
    def test_rows_are_kept_by_the_stores_serde(self, value: Any, batch_run: Any) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        groups = app.stream("in").group_by_key()
        groups.aggregate(n=count(), total=sum_("x"), most=max_("x"), value=value, name="t")
        run = batch_run(app)
        run.feed("in", [("a", {"x": 1}, 0), ("b", {"x": 5}, 1), ("a", {"x": 3}, 2)])
        run.commit()
        run.restart()
        run.feed("in", [("a", {"x": 2}, 3)])
        assert run.tasks[0].store("t").get("a") == {"n": 3, "total": 6, "most": 3}
        assert run.tasks[0].store("t").get("b") == {"n": 1, "total": 5, "most": 5}

    def test_rows_that_do_not_tell_their_partials_are_kept_as_those(self, batch_run: Any) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        groups = app.stream("in").group_by_key()
        groups.aggregate(mean(), name="mean")
        groups.aggregate(mean=mean(), set=collect_set(), top=top_k(2), name="several")
        run = batch_run(app)
        run.feed("in", [("a", 1, 0), ("a", 3, 1)])
        run.commit()
        run.restart()
        run.feed("in", [("a", 5, 2), ("a", 3, 2)])
        assert run.tasks[0].store("mean").get("a") == 3.0
        row = {"mean": 3.0, "set": [1, 3, 5], "top": [5, 3]}
        assert run.tasks[0].store("several").get("a") == row


class TestJoiningOutputs:
    def output(self, topic: str, count_: int, sink: str = "s", partitions: Any = None) -> Output:
        return Output(
            topic, Columns([b""] * count_, [b""] * count_, [0] * count_), partitions, sink
        )

    def test_small_ones_of_a_topic_leave_together(self) -> None:
        outputs = [self.output(topic, 1) for topic in "ababab"]
        assert [(o.topic, len(o.columns)) for o in join(outputs)] == [("a", 3), ("b", 3)]

    def test_large_ones_stay(self) -> None:
        outputs = [self.output("a", 2_000), self.output("a", 2_000)]
        assert [len(o.columns) for o in join(outputs)] == [2_000, 2_000]

    def test_sinks_are_kept_apart_in_order(self) -> None:
        outputs = [self.output("a", 1, sink) for sink in "xxyx"]
        assert [(o.sink, len(o.columns)) for o in join(outputs)] == [("x", 2), ("y", 1), ("x", 1)]

    def test_partitions_are_joined_too(self) -> None:
        outputs = [self.output("a", 1, partitions=[n]) for n in (3, 1)]
        outputs.append(self.output("a", 1))
        assert [o.partitions for o in join(outputs)] == [[3, 1], None]


class TestChanges:
    changes = st.tuples(*[st.one_of(st.none(), st.binary(max_size=4))] * 2)

    @given(st.lists(changes))
    def test_are_read_as_they_were_written(self, column: list[Any]) -> None:
        codec = ChangeSerde(bytes_()).open(SerdeContext())
        assert codec.deserialize("t", codec.serialize("t", column)) == column

    @pytest.mark.parametrize("data", [b"\x07", b"\x00\x00\x00\x09x\x02", b"\x02"])
    def test_noise_is_named(self, data: bytes) -> None:
        codec = ChangeSerde(bytes_()).open(SerdeContext())
        with pytest.raises(SerdeError, match="'t' holds . bytes that are no change") as raised:
            codec.deserialize("t", [None, data])
        assert raised.value.index == 1


class TestDescription:
    def app(self) -> StreamsBuilder:
        app = StreamsBuilder("delays", key=string(), value=json())
        flights = app.stream("flights")
        late, others = flights.branch("delayed", default=True)
        table = (
            late.group_by("origin")
            .window(tumbling("1h", grace="10m"))
            .aggregate(flights=count(), mean_delay=mean("delay"), name="delays")
        )
        table.final(idle="30s").to("delays-by-origin")
        table.late().to("too-late")
        others.filter_not(len).to(lambda record: "x" if record.key else "y")
        airports = app.table("airports", name="airports")
        airports.filter("open").group_by("country").count(name="by-country")
        return app

    @pytest.mark.parametrize(
        ("form", "ending"), [("text", "txt"), ("mermaid", "mmd"), ("json", "json")]
    )
    def test_is_the_golden_one(self, form: Any, ending: str) -> None:
        assert self.app().describe(form) == (GOLDEN / f"delays.{ending}").read_text()
