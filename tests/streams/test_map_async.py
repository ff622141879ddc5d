"""map_async in a task: calls that end in any order, commits that wait for them, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.map_async import leaving

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import (
    Record,
    Streams,
    TopologyTestDriver,
    col,
    collect,
    int64,
    json,
    string,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.call_limits import CallLimits
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.calls import AsyncCallee, Call, Done
from kafkalite.streams.local.compile import compile_topology, flows_of
from kafkalite.streams.local.task import Task


async def shout(value: str) -> str:
    return f"{value}!"


@dataclass
class Held:
    """Calls that end when the test says so."""

    callee: AsyncCallee
    running: dict[int, Call] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    is_cancelled: bool = False

    def submit(self, calls: Sequence[Call]) -> None:
        self.running |= {call.number: call for call in calls}

    def completed(self) -> Sequence[Done]:
        done, self.done = self.done, []
        return done

    @property
    def has_completed(self) -> bool:
        return bool(self.done)

    def cancel(self) -> None:
        self.is_cancelled = True

    def end(self, number: int, error: Exception | None = None) -> None:
        """A call ends: as the function would, at once."""
        call = self.running.pop(number)
        if error is not None:
            self.done.append(Done(number, error=error))
            return
        made = self.callee.call(*call.arguments)
        assert asyncio.iscoroutine(made)
        try:
            made.send(None)
        except StopIteration as end:
            self.done.append(Done(number, end.value))
        except Exception as raised:
            self.done.append(Done(number, error=raised))

    def end_all(self) -> None:
        for number in list(self.running):
            self.end(number)


class One:
    """One task and the calls of its map_asyncs, in the order of their nodes from below."""

    def __init__(self, app: StreamsBuilder, **options: Any) -> None:
        (self.sub,) = compile_topology(app.plan())
        self.options = options
        self.changelogs: dict[str, list[Columns]] = {}
        self.out: list[tuple[Any, Any, int]] = []  # committed
        self.next = 0  # offset that is committed
        self.fed = 0
        self.make()

    def make(self) -> None:
        self.calls: list[Held] = []
        self.task = Task(self.sub, 0, calls=self.open, **self.options)
        for store, topic in self.task.changelog_topics.items():
            for columns in self.changelogs.get(topic, []):
                self.task.restore(store, columns)
        self.uncommitted: list[tuple[Any, Any, int]] = []

    def open(self, callee: AsyncCallee) -> Held:
        self.calls.append(Held(callee))
        return self.calls[-1]

    def feed(self, records: Sequence[tuple[str, str]], first: int | None = None) -> None:
        first = self.fed if first is None else first
        self.fed = first + len(records)
        keys, values = ([r[i].encode() for r in records] for i in (0, 1))
        times = list(range(first, self.fed))
        self.task.enqueue("in", Columns(keys, values, times, range(first, self.fed)))
        self.process()

    def process(self) -> int:
        done = self.task.process(1_000, 0)
        self.drain()
        return done

    def drain(self) -> None:
        for output in self.task.drain():
            self.take(output)

    def take(self, output: Any) -> None:
        columns = output.columns
        rows = zip(columns.keys, columns.values, columns.timestamps, strict=True)
        self.uncommitted += [(k and k.decode(), v and v.decode(), t) for k, v, t in rows]

    def commit(self) -> None:
        """Ends all calls, and what they lead to, then commits."""
        while not self.task.prepare():
            for calls in self.calls:
                calls.end_all()
        commit = self.task.commit()
        for output in commit.outputs:
            self.take(output)
        for change in commit.changelog:
            self.changelogs.setdefault(change.topic, []).append(change.columns)
        self.next = commit.offsets.get("in", self.next)
        self.out += self.uncommitted
        self.uncommitted = []

    def kill(self) -> None:
        """What is not committed is gone; another task goes on from the last commit."""
        self.task.close()
        assert all(calls.is_cancelled for calls in self.calls)
        self.make()
        self.fed = self.next


def passing(**options: Any) -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=string(), dead_letter_topic="dead")
    app.stream("in").map_async(shout, **options).to("out")
    return app


KEYS = st.sampled_from("abc")


class TestOrder:
    @given(st.data(), st.lists(KEYS, max_size=12), st.booleans())
    def test_records_leave_as_the_reference_says(
        self, data: st.DataObject, keys: list[str], ordered: bool
    ) -> None:
        run = One(passing(ordered=ordered, concurrency=6))
        records = [(key, str(i)) for i, key in enumerate(keys)]
        cuts = data.draw(st.lists(st.integers(0, len(keys)), max_size=3).map(sorted))
        for start, end in zip([0, *cuts], [*cuts, len(keys)], strict=True):
            if start < end:
                run.feed(records[start:end])
        ended = []
        (calls,) = run.calls
        while calls.running:
            number = data.draw(st.sampled_from(sorted(calls.running)))
            calls.end(number)
            ended.append(number)
            if data.draw(st.booleans()):
                run.process()
        run.process()
        expected = [(keys[i], f"{i}!", i) for i in leaving(keys, ended, ordered=ordered)]
        assert run.uncommitted == expected
        assert len(expected) == len(keys)
        run.commit()
        assert run.next == len(keys)

    def test_arms_that_meet_below_keep_the_order_of_each_call_round(self) -> None:
        app = StreamsBuilder("app", key=string(), value=string())
        called = app.stream("in").map_async(shout)
        left, right = called.branch(lambda v: int(v[:-1]) % 2 == 0, default=True)
        left.merge(right.map(lambda v: f"-{v}")).to("out")
        run = One(app)
        run.feed([("k", str(i)) for i in range(4)])
        run.calls[0].end_all()
        run.process()
        assert [v for _, v, _ in run.uncommitted] == ["0!", "-1!", "2!", "-3!"]

    def test_an_arm_without_calls_does_not_wait(self) -> None:
        app = StreamsBuilder("app", key=string(), value=string())
        stream = app.stream("in")
        stream.merge(stream.map_async(shout)).to("out")
        run = One(app)
        run.feed([("k", "a"), ("k", "b")])
        assert [v for _, v, _ in run.uncommitted] == ["a", "b"]
        run.calls[0].end_all()
        run.process()
        assert [v for _, v, _ in run.uncommitted] == ["a", "b", "a!", "b!"]

    def test_keys_that_cannot_be_hashed_keep_their_order_together(self) -> None:
        app = StreamsBuilder("app", key=string(), value=string())
        keyed = app.stream("in").select_key(lambda v: [v])
        keyed.map_async(shout, ordered=False).select_key(lambda v: v).to("out")
        run = One(app)
        run.feed([("k", "a"), ("k", "b")])
        run.calls[0].end(1)
        run.process()
        assert not run.uncommitted
        run.calls[0].end(0)
        run.process()
        assert [v for _, v, _ in run.uncommitted] == ["a!", "b!"]


class TestPressure:
    @pytest.mark.parametrize("ordered", [True, False])
    def test_the_task_reads_no_more_than_twice_the_calls_that_may_run(self, ordered: bool) -> None:
        run = One(passing(concurrency=5, ordered=ordered))
        run.feed([(f"k{i}", str(i)) for i in range(30)])
        assert len(run.calls[0].running) == 10
        assert run.task.is_full
        assert run.task.buffered("in") == 20
        assert run.process() == 0
        run.calls[0].end(0)
        assert run.task.has_results
        assert run.process() == 1
        assert len(run.calls[0].running) == 10

    def test_nothing_is_read_between_the_wish_to_commit_and_the_commit(self) -> None:
        run = One(passing())
        run.feed([("k", "a")])
        assert not run.task.prepare()
        run.feed([("k", "b")])
        assert list(run.calls[0].running) == [0]
        run.calls[0].end(0)
        assert run.task.prepare()
        commit = run.task.commit()
        assert commit.offsets == {"in": 1}
        assert [v for o in commit.outputs for v in o.columns.values] == [b"a!"]
        assert run.process() == 1

    def test_a_commit_ahead_of_a_call_is_a_defect(self) -> None:
        run = One(passing())
        run.feed([("k", "a")])
        with pytest.raises(AssertionError, match="1 calls are not over"):
            run.task.commit()

    def test_a_task_with_calls_is_not_idle(self) -> None:
        run = One(passing())
        run.feed([("k", "a")])
        run.task.note_idle({"in": True})
        assert not run.task.is_idle
        run.calls[0].end(0)
        run.process()
        assert run.task.is_idle


class TestFailures:
    def failing(self, **options: Any) -> One:
        run = One(passing(**options))
        run.feed([("k", "a"), ("k", "b"), ("k", "c")])
        (calls,) = run.calls
        calls.end(1, ValueError("no b"))
        calls.end(2)
        return run

    def test_an_error_names_the_record_once_those_before_it_are_through(self) -> None:
        run = self.failing()
        run.process()
        run.calls[0].end(0)
        with pytest.raises(ProcessingError) as caught:
            run.process()
        assert "'in-map_async': topic 'in', partition 0, offset 1: ValueError: no b" in str(
            caught.value
        )
        assert "test_map_async.py" in str(caught.value)

    @pytest.mark.parametrize("policy", ["skip", "dlq"])
    def test_records_that_fail_are_left_out(self, policy: Any) -> None:
        run = self.failing(on_error=policy)
        run.calls[0].end(0)
        run.task.process(10, 0)
        by_topic = {output.topic: output.columns for output in run.task.drain()}
        assert by_topic["out"].values == [b"a!", b"c!"]
        assert run.task.metrics["dropped-records-total"] == 1
        if policy == "dlq":
            (headers,) = by_topic["dead"].headers or ()
            story = {name.rpartition(".")[2]: value for name, value in headers}
            assert (story["topic"], story["offset"], story["exception"]) == (
                b"in", b"1", b"ValueError",
            )  # fmt: skip

    def test_an_exit_is_no_failure_of_a_record(self) -> None:
        run = One(passing(on_error="skip"))
        run.feed([("k", "a")])
        run.calls[0].done.append(Done(0, error=SystemExit(3)))
        with pytest.raises(SystemExit):
            run.process()


def stateful(*, ordered: bool, cached: bool) -> StreamsBuilder:
    """State above, between and below two functions."""

    async def first(pair: list[Any]) -> list[Any]:
        return [*pair, "1"]

    async def second(value: str) -> str:
        return f"{value}2"

    app = StreamsBuilder("app", key=string(), value=string())
    counted = app.stream("in").group_by_key().aggregate(all=collect(), name="above", cached=cached)
    once = counted.to_stream().map(lambda row: [len(row["all"]), row["all"][-1]])
    called = once.map_async(first, ordered=ordered, concurrency=2)
    table = called.map(lambda v: "".join(map(str, v))).to_table(name="between")
    below = table.to_stream().map_async(second, ordered=ordered, concurrency=3)
    last = below.group_by_key().aggregate(all=collect(), name="below", cached=cached)
    last.to_stream().map(lambda row: ",".join(row["all"])).to("out")
    return app


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 1_000)),
        st.tuples(st.sampled_from(["process", "commit", "kill"]), st.just(0)),
    ),
    max_size=25,
)


class TestRestarts:
    @given(st.lists(KEYS, min_size=1, max_size=12), STEPS, st.booleans(), st.booleans())
    def test_state_outputs_and_offsets_belong_together(
        self, keys: list[str], steps: list[tuple[str, int]], ordered: bool, cached: bool
    ) -> None:
        records = [(key, chr(65 + i)) for i, key in enumerate(keys)]
        run = One(stateful(ordered=ordered, cached=cached), cached=cached)
        for word, number in steps:
            match word:
                case "feed":
                    run.feed(records[run.fed : run.fed + number] or [])
                case "end":
                    if running := [(c, n) for c in run.calls for n in sorted(c.running)]:
                        calls, at = running[number % len(running)]
                        calls.end(at)
                case "process":
                    run.process()
                case "commit":
                    run.commit()
                case "kill":
                    run.kill()
        run.feed(records[run.fed :])
        while run.next < len(records):
            run.commit()
            run.process()
        run.commit()
        self.check(run, records, exact=not cached)

    def check(self, run: One, records: list[tuple[str, str]], *, exact: bool) -> None:
        """Without a cache every update is there once; with one the last row of each key is."""
        state: dict[str, list[str]] = {}
        expected: dict[str, list[str]] = {}
        for index, (key, value) in enumerate(records):
            count = sum(k == key for k, _ in records[: index + 1])
            state.setdefault(key, []).append(f"{count}{value}12")
            expected.setdefault(key, []).append(",".join(state[key]))
        found: dict[str, list[str]] = {}
        for key, value, _ in run.out:
            found.setdefault(key, []).append(value)
        if exact:
            assert found == expected
            return
        for key, rows in expected.items():  # updates merge, and each row grows
            last = found[key][-1].split(",")
            assert last[-1] == rows[-1].split(",")[-1]
            assert [row for row in rows[-1].split(",") if row in last] == last


class TestTime:
    def test_stream_time_does_not_overtake_records_that_wait(self) -> None:
        """Of several writers time is told; a window below must not close ahead of its records."""
        app = StreamsBuilder("app", key=string(), value=string())
        grouped = app.stream("in").repartition(1, name="r").map_async(shout).group_by_key()
        grouped.window(tumbling(10)).count(name="n").final().to("out", value=int64())
        upper, lower = compile_topology(app.plan())
        ids = [TaskId(upper.id, 0), TaskId(upper.id, 1), TaskId(lower.id, 0)]
        flows, topic = flows_of([upper, lower], ids), "app-r-repartition"
        counts = {topic: 1}
        held: list[Held] = []

        def open_calls(callee: AsyncCallee) -> Held:
            held.append(Held(callee))
            return held[-1]

        reader = Task(lower, 0, partition_counts=counts, flows=flows, calls=open_calls)
        offset = 0

        def write(partition: int, *times: int) -> None:
            nonlocal offset
            writer = Task(upper, partition, partition_counts=counts, flows=flows)
            keys: list[bytes | None] = [b"k"] * len(times)
            writer.enqueue("in", Columns(keys, keys, list(times), range(len(times))))
            writer.process(10, 0)
            for output in writer.drain():
                count = len(output.columns)
                offsets = range(offset, offset + count)
                c = output.columns
                reader.enqueue(topic, Columns(c.keys, c.values, c.timestamps, offsets, c.headers))
                offset += count
            reader.process(100, 0)

        write(0, 1, 2)
        write(1, 3, 100)
        write(0, 100)
        assert not reader.drain(), "the records of the window wait for their calls"
        held[0].end_all()
        reader.process(100, 0)
        (out,) = reader.drain()
        assert [int.from_bytes(v or b"", "big") for v in out.columns.values] == [3]


class TestDriver:
    def test_pipe_waits_for_results_in_the_order_of_records(self) -> None:
        async def slow_first(value: str) -> str:
            await asyncio.sleep(0.02 if value == "a" else 0)
            return value.upper()

        app = Streams("app", key=string(), value=string())
        words = app.stream("in").flat_map(str.split)
        words.map_async(slow_first, ordered=False).to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", "a b c", key="k")
        assert [record.value for record in driver.read("out")] == ["A", "B", "C"]

    def test_keys_and_records_are_passed_as_elsewhere(self) -> None:
        async def pair(key: str, value: str) -> str:
            return key + value

        async def place(record: Record[str, str]) -> str:
            return f"{record.topic}@{record.offset}"

        app = Streams("app", key=string(), value=string())
        app.stream("in").map_async(pair, with_key=True).to("pairs")
        app.stream("other").map_async(place, with_record=True).to("places")
        app.stream("third").map_async(lambda v: shout(v)).to("loud")
        driver = TopologyTestDriver(app)
        for topic in ("in", "other", "third"):
            driver.pipe(topic, "v", key="k")
        assert driver.read("pairs")[0].value == "kv"
        assert driver.read("places")[0].value == "other@0"
        assert driver.read("loud")[0].value == "v!"

    def test_pauses_between_tries_take_no_time(self) -> None:
        tries: list[str] = []

        async def third_time(value: str) -> str:
            tries.append(value)
            if len(tries) < 3:
                raise ConnectionError("not yet")
            return value

        app = Streams("app", key=string(), value=string())
        app.stream("in").map_async(third_time, retries=2, backoff="20s", timeout="10s").to("out")
        driver = TopologyTestDriver(app)
        driver.pipe("in", "v", key="k")
        assert driver.read("out")[0].value == "v"
        assert len(tries) == 3

    def test_a_row_of_a_store_is_not_changed_by_the_function(self) -> None:
        async def clear(row: dict[str, Any]) -> int:
            row.clear()
            return 0

        app = Streams("app", key=string())
        app.table("in", value=json(), name="rows").to_stream().map_async(clear).to(
            "out", value=json()
        )
        driver = TopologyTestDriver(app)
        driver.pipe("in", {"a": 1}, key="k")
        assert driver.store("rows").get("k") == {"a": 1}

    def test_cached_updates_go_through_calls_at_a_commit(self) -> None:
        driver = TopologyTestDriver(stateful(ordered=True, cached=True), cached=True)
        for value in "AB":
            driver.pipe("in", value, key="k")
        driver.commit()
        assert [record.value for record in driver.read("out")] == ["2B12"]


class TestBuilding:
    @pytest.mark.parametrize(
        ("function", "options", "words"),
        [
            (str.upper, {}, "upper is not async; .map calls plain functions"),
            ("field", {}, "expected an async function, got str"),
            (col("a"), {}, "expected an async function, got an expression"),
            (3, {}, "expected an async function, got int"),
            (shout, {"with_key": True}, "cannot be called with key and value"),
            (shout, {"concurrency": 0}, "concurrency: expected 1 to 10,000, got 0"),
            (shout, {"concurrency": True}, "concurrency: expected 1 to 10,000, got True"),
            (shout, {"timeout": None}, "timeout: expected a timedelta"),
            (shout, {"timeout": 0}, "timeout: expected at least 1 ms"),
            (shout, {"retries": 101}, "retries: expected 0 to 100, got 101"),
            (shout, {"backoff": "-1s"}, "backoff: expected 0 or more"),
            (shout, {"ordered": "key"}, "ordered is True or False"),
            (shout, {"timeout": "1m", "retries": 3}, "a call could take 240700ms"),
            (shout, {"on_error": "dlq"}, "needs a dead_letter_topic="),
        ],
    )
    def test_what_cannot_be_is_refused(self, function: Any, options: Any, words: str) -> None:
        app = Streams("app", key=string(), value=string())
        with pytest.raises(TopologyError) as caught:
            app.stream("in").map_async(function, name="look", **options)
        assert "map_async 'look'" in str(caught.value)
        assert words in str(caught.value)

    def test_unknown_options_and_async_generators_are_refused(self) -> None:
        async def several(value: str) -> Any:
            yield value

        app = Streams("app", key=string(), value=string())
        with pytest.raises(TypeError, match="unexpected keyword argument 'paralell'"):
            app.stream("in").map_async(shout, paralell=3)  # type: ignore[call-overload]
        with pytest.raises(TopologyError, match="several yields several values"):
            app.stream("in").map_async(several)

    def test_a_plain_map_points_here(self) -> None:
        with pytest.raises(TopologyError, match="shout is async; .*map_async awaits"):
            Streams("app").stream("in").map(shout)

    def test_the_description_says_how_calls_run(self) -> None:
        app = Streams("app", key=string(), value=string())
        app.stream("in").map_async(shout, retries=2, timeout="5s", ordered=False).to("out")
        assert (
            "map_async: in-map_async "
            "(shout; 100 at once, 5s each, 2 retries after 100ms, ordered by key)"
        ) in app.describe()


def test_pauses_double_up_to_a_bound() -> None:
    limits = CallLimits(1, 1_000, 100, 100)
    assert [limits.pause_ms(tries) for tries in (1, 2, 3, 7, 8, 100)] == [
        100, 200, 400, 6_400, 10_000, 10_000,
    ]  # fmt: skip
    assert CallLimits(1, 1_000, 3, 30_000).pause_ms(2) == 30_000
    assert CallLimits(1, 1_000, 2, 100).longest_ms == 3_300
