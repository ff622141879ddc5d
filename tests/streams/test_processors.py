"""Processors in the driver: what they forward, their stores and timers, and what goes wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import (
    Processor,
    Record,
    Streams,
    TopologyTestDriver,
    int64,
    json,
    store,
    string,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.timers import Heap, Timer

N = store("n", key=string(), value=int64())
DAY = 86_400_000
Calls = list[tuple[str, int]]


def processor(**methods: Callable[..., Any]) -> Callable[[], Any]:
    """A class of these methods; `self.context` and `self.n` are there."""

    def init(self: Any, context: Any) -> None:
        self.context = context
        if N.name in context._stores:
            self.n = context.store(N)
        if more := methods.get("init"):
            more(self)

    ignored = {"process": lambda self, record: None}
    return type("Made", (), {**ignored, **methods, "init": init})


def built(make: Callable[[], Any], word: str = "process", **options: Any) -> Streams:
    app = Streams("app", key=string(), value=int64(), dead_letter_topic="letters")
    stream = getattr(app.stream("in"), word)(make, [N], name="p", **options)
    stream.to("out", key=string(), value=int64())
    return app


def read(driver: TopologyTestDriver) -> list[tuple[Any, Any, int]]:
    return [(r.key, r.value, r.timestamp) for r in driver.read("out")]


def line_of(function: Callable[..., Any], further: int = 0) -> str:
    return f"{__file__}:{inspect.getsourcelines(function)[1] + further}"


class TestForward:
    def test_key_value_timestamp_and_headers_are_those_of_the_record(self) -> None:
        def process(self: Any, record: Record) -> None:
            self.context.forward(record)
            self.context.forward(record.replace(key="b", headers=()))
            self.context.forward(Record("c", None, 7))

        with TopologyTestDriver(built(processor(process=process))) as driver:
            driver.pipe("in", 1, key="a", timestamp=5, headers=[("h", b"1")])
            assert driver.read("out") == [
                Record("a", 1, 5, (("h", b"1"),)),
                Record("b", 1, 5),
                Record("c", None, 7),
            ]

    def test_a_timer_forwards_without_headers_and_init_may_forward_too(self) -> None:
        def init(self: Any) -> None:
            self.context.schedule(10, "stream_time", self.ring)
            self.context.forward(Record("init", 0, 0))

        def ring(self: Any, time: int) -> None:
            self.context.forward(Record("ring", 1, time))

        with TopologyTestDriver(built(processor(init=init, ring=ring))) as driver:
            driver.pipe("in", 1, key="a", timestamp=5, headers=[("h", b"1")])
            assert driver.read("out") == [Record("init", 0, 0), Record("ring", 1, 5)]

    def test_process_counts_as_changing_the_key_and_process_values_does_not(self) -> None:
        for word, tasks in (("process", 2), ("process_values", 1)):
            app = Streams("app", key=string(), value=int64())
            getattr(app.stream("in"), word)(processor()).group_by_key().count()
            assert len(compile_topology(app.plan())) == tasks

    def test_keys_that_stay_reach_stores_as_the_bytes_that_came(self) -> None:
        def process(self: Any, record: Record) -> None:
            self.context.forward(record)

        def ring(self: Any, time: int) -> None:
            self.context.forward(Record("a", 1, time))

        def init(self: Any) -> None:
            self.context.schedule(10, "stream_time", self.ring)

        app = Streams("app", key=string(), value=int64())
        stream = app.stream("in").process_values(processor(init=init, process=process, ring=ring))
        stream.group_by_key().count(name="counts")
        with TopologyTestDriver(app) as driver:
            driver.pipe("in", 1, key="a", timestamp=0)
            driver.pipe("in", 1, key="b", timestamp=20)
            assert list(driver.store("counts").all()) == [("a", 3), ("b", 1)]

    def test_process_values_refuses_another_key(self) -> None:
        def process(self: Any, record: Record) -> None:
            self.context.forward(record.replace(key=record.key.upper()))

        with TopologyTestDriver(built(processor(process=process), "process_values")) as driver:
            driver.pipe("in", 1, key="A", timestamp=0)
            with pytest.raises(ProcessingError, match="a record of 'a' cannot be forwarded under"):
                driver.pipe("in", 1, key="a", timestamp=0)

    @pytest.mark.parametrize(
        ("made", "told"),
        [
            (("a", 1, 0), "forward: expected a Record, got tuple"),
            (Record("a", 1, -1), "timestamp -1 is negative"),
            (Record("a", 1, 1.5), "timestamp 1.5 is no int"),  # type: ignore[arg-type]
        ],
    )
    def test_what_cannot_be_forwarded(self, made: Any, told: str) -> None:
        def process(self: Any, record: Record) -> None:
            self.context.forward(made)

        with (
            TopologyTestDriver(built(processor(process=process))) as driver,
            pytest.raises(ProcessingError, match=told),
        ):
            driver.pipe("in", 1, key="a", timestamp=0)

    def test_a_value_that_changes_later_was_forwarded_as_it_was(self, batch_run: Any) -> None:
        def process(self: Any, record: Record) -> None:
            self.seen = [*getattr(self, "seen", ()), record.value]
            self.context.forward(record.replace(value=self.seen))
            self.seen.append("changed")

        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").process(processor(process=process)).to("out")
        run = batch_run(app)
        run.feed("in", [("a", 1, 0), ("a", 2, 0)])
        assert [value for _, value, _ in run.rows("out")] == [[1], [1, "changed", 2]]


class TestTimers:
    def test_wall_clock_timers_are_called_once_for_each_look_on_their_grid(self) -> None:
        calls: Calls = []

        def init(self: Any) -> None:
            self.context.schedule("10s", "wall_clock", lambda time: calls.append(("wall", time)))

        with TopologyTestDriver(built(processor(init=init)), wall_clock=500) as driver:
            for seconds in (5, 5, 25, 4, 1, 5):
                driver.advance_wall_clock(f"{seconds}s")
        assert calls == [("wall", 10_500), ("wall", 35_500), ("wall", 40_500)]

    def test_stream_time_is_that_of_all_records_that_the_task_reads(self) -> None:
        calls: Calls = []

        def init(self: Any) -> None:
            assert self.context.stream_time == -1
            self.context.schedule(10, "stream_time", lambda time: calls.append(("ring", time)))

        def process(self: Any, record: Record) -> None:
            calls.append(("process", self.context.stream_time))

        app = Streams("app", key=string(), value=int64())
        app.stream("in").filter(lambda v: v).process(processor(init=init, process=process))
        with TopologyTestDriver(app) as driver:
            for value, time in ((0, 3), (1, 2), (0, 12), (1, 30), (1, 29)):
                driver.pipe("in", value, key="a", timestamp=time)
        assert calls == [
            ("ring", 3), ("process", 3), ("ring", 12), ("process", 30), ("ring", 30),
            ("process", 30),
        ]  # fmt: skip

    def test_a_cancelled_timer_is_called_no_more_not_even_after_a_restart(
        self, batch_run: Any
    ) -> None:
        calls: Calls = []

        def init(self: Any) -> None:
            self.timer = self.context.schedule(10, "stream_time", self.ring)

        def ring(self: Any, time: int) -> None:
            calls.append(("ring", time))
            if time > 10:
                self.timer.cancel()

        run = batch_run(built(processor(init=init, ring=ring)))
        for time in (0, 10, 20, 30):
            run.feed("in", [("a", 1, time)])
            run.commit()
            run.restart()
        assert [time for _, time in calls] == [0, 10, 20]

    def test_a_wall_clock_timer_goes_on_over_restarts(self, batch_run: Any) -> None:
        calls: Calls = []

        def init(self: Any) -> None:
            self.context.schedule("1d", "wall_clock", lambda time: calls.append(("day", time)))

        run = batch_run(built(processor(init=init)))
        hour = DAY // 24
        for at in range(0, 50 * hour, 7 * hour):
            run.tasks[0].tick(at)
            run.commit()
            run.restart()
        assert calls == [("day", 28 * hour), ("day", 49 * hour)]

    def test_of_timers_set_later_methods_come_back(self, batch_run: Any) -> None:
        calls: Calls = []

        def process(self: Any, record: Record) -> None:
            if self.n.get("set") is None:
                self.n.put("set", 1)
                self.context.schedule(10, "stream_time", self.ring)
                self.context.schedule(10, "stream_time", lambda time: calls.append(("", time)))

        def ring(self: Any, time: int) -> None:
            calls.append(("ring", time))

        run = batch_run(built(processor(process=process, ring=ring)))
        for time in (5, 15):
            run.feed("in", [("a", 1, time)])
            run.commit()
            run.restart()
        assert calls == [("ring", 5), ("", 5), ("ring", 15)]

    def test_one_that_init_sets_again_is_not_doubled(self, batch_run: Any) -> None:
        calls: Calls = []

        def init(self: Any) -> None:
            if self.n.get("set"):
                self.context.schedule(10, "stream_time", self.ring)

        def process(self: Any, record: Record) -> None:
            if self.n.get("set") is None:
                self.n.put("set", 1)
                self.context.schedule(10, "stream_time", self.ring)

        def ring(self: Any, time: int) -> None:
            calls.append(("ring", time))

        run = batch_run(built(processor(init=init, process=process, ring=ring)))
        for time in (5, 6, 15, 25):
            run.feed("in", [("a", 1, time)])
            run.commit()
            run.restart()
        assert [time for _, time in calls] == [5, 15, 25]

    def test_timers_due_together_leave_the_heap_as_a_java_queue(self) -> None:
        heap = Heap()
        timers = [Timer(None, "stream_time", 1, print, due, 0) for due in (0, 0, 0, 5, 0)]  # type: ignore[arg-type]
        for timer in timers:
            heap.push(timer)
        assert [timers.index(heap.pop()) for _ in timers] == [0, 4, 1, 2, 3]

    def test_cancelled_timers_do_not_gather(self) -> None:
        def process(self: Any, record: Record) -> None:
            self.context.schedule("1d", "wall_clock", print).cancel()

        app = built(processor(process=process))
        task = Task(compile_topology(app.plan())[0], 0)
        task.enqueue("in", Columns([b"a"] * 999, [bytes(8)] * 999, [0] * 999, range(999)))
        task.process(999, 0)
        processors: Any = task._runtime.processors
        assert len(processors.timers._heaps["wall_clock"].timers) < 50

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            (("1s", "event_time", print), "the clock is one of .*, got 'event_time'"),
            ((0, "stream_time", print), "schedule: interval: expected at least 1 ms"),
            ((1, "stream_time", "f"), "expected a function of a timestamp, got str"),
        ],
    )
    def test_what_cannot_be_set(self, given: Any, told: str) -> None:
        with pytest.raises(ProcessingError, match=f"'p': init: .*{told}"):
            TopologyTestDriver(built(processor(init=lambda self: self.context.schedule(*given))))


class TestStores:
    def test_get_put_delete_range_all_and_the_view(self) -> None:
        found: list[Any] = []

        def process(self: Any, record: Record) -> None:
            n = self.n
            for index, key in enumerate(["b", "", "a", "ab"]):
                n.put(key, index)
            n.put("b", None)
            found.extend([n.get("a"), n.get("x"), n.delete(""), n.delete(""), len(n)])
            n.put("c", 9)
            found.extend([list(n.range("a", "ab")), list(n.range(end="a")), list(n.all())])
            found.append(list(n.range(reverse=True)))

        with TopologyTestDriver(built(processor(process=process))) as driver:
            driver.pipe("in", 1, key="k", timestamp=0)
            rows = [("a", 2), ("ab", 3), ("c", 9)]
            assert found == [2, None, 1, None, 2, rows[:2], rows[:1], rows, rows[::-1]]
            view = driver.store("n")
            assert (view.get("ab"), list(view.all()), len(view)) == (3, rows, 3)
            assert not hasattr(view, "put")

    def test_of_a_store_with_retention(self) -> None:
        kept = store("kept", key=string(), value=int64(), retention=10)

        def process(record: Record) -> None:
            rows.put(record.key, record.value, record.timestamp)

        rows: Any = None

        class Keeper:
            def init(self, context: Any) -> None:
                nonlocal rows
                rows = context.store("kept")

            def process(self, record: Record) -> None:
                process(record)

        app = Streams("app", key=string(), value=int64())
        app.stream("in").process(Keeper, [kept])
        with TopologyTestDriver(app) as driver:
            for key, value, time in [("a", 1, 3), ("aa", 2, 4), ("a", 3, 12), ("a", 4, 2)]:
                driver.pipe("in", value, key=key, timestamp=time)
            view = driver.store("kept")
            assert list(view.fetch("a", 0, 99)) == [(3, 1), (12, 3)]
            assert driver.metrics()["dropped-records-total"] == 1
            driver.pipe("in", None, key="a", timestamp=12)
            driver.pipe("in", 5, key="a", timestamp=13)
            assert list(view.all()) == [(("a", 13), 5), (("aa", 4), 2)]
            assert (view.get("a", 13), view.get("a", 12), len(view)) == (5, None, 2)
            assert list(view.fetch("a", 14, 2**62)) == []
            driver.pipe("in", 6, key="b", timestamp=10**12)
            assert list(rows.all()) == [(("b", 10**12), 6)]

    def test_a_store_is_kept_in_its_topic_by_plain_keys(self, batch_run: Any) -> None:
        def process(self: Any, record: Record) -> None:
            self.n.put(record.key, record.value)

        run = batch_run(built(processor(process=process)))
        run.feed("in", [("a", 1, 7)])
        run.commit()
        (columns,) = run.changelog["app-n-changelog"]
        assert columns.keys[0] == b"a"
        assert columns.timestamps[0] == 7

    def test_a_store_must_be_connected(self) -> None:
        with pytest.raises(ProcessingError, match="store 'm' is not connected to 'p': .* has 'n'"):
            TopologyTestDriver(built(processor(init=lambda self: self.context.store("m"))))

    def test_processors_of_two_topics_share_a_store_in_one_sub_topology(self) -> None:
        def put(self: Any, record: Record) -> None:
            self.n.put(record.key, record.value)

        def get(self: Any, record: Record) -> None:
            self.context.forward(record.replace(value=self.n.get(record.key)))

        app = Streams("app", key=string(), value=int64())
        app.stream("rates").process(processor(process=put), [N])
        app.stream("in").process_values(processor(process=get), ["n"]).to("out")
        (sub,) = compile_topology(app.plan())
        assert [store.name for store in sub.stores] == ["n"]
        with TopologyTestDriver(app) as driver:
            driver.pipe("in", 0, key="a", timestamp=0)
            driver.pipe("rates", 5, key="a", timestamp=1)
            driver.pipe("in", 0, key="a", timestamp=2)
            assert read(driver) == [("a", None, 0), ("a", 5, 2)]


class TestErrors:
    def test_of_process_with_the_place_and_the_users_line(self) -> None:
        def process(self: Any, record: Record) -> None:
            self.n.put(record.key, record.value // 0)

        with (
            TopologyTestDriver(built(processor(process=process))) as driver,
            pytest.raises(ProcessingError) as caught,
        ):
            driver.pipe("in", 1, key="a", timestamp=0)
        told = str(caught.value)
        assert told.startswith("'p': topic 'in', partition 0, offset 0: ZeroDivisionError")
        assert f"({line_of(process, 1)})" in told

    def test_of_a_timer(self) -> None:
        def ring(time: int) -> None:
            raise LookupError("nothing")

        def init(self: Any) -> None:
            self.context.schedule(10, "stream_time", ring)

        make = processor(init=init)
        with TopologyTestDriver(built(make)) as driver:
            with pytest.raises(ProcessingError) as caught:
                driver.pipe("in", 1, key="a", timestamp=3)
            told = str(caught.value)
            assert "'p': a timer of stream_time at 3: LookupError: nothing" in told
            assert f"({line_of(ring, 1)})" in told
        with TopologyTestDriver(built(make, on_error="dlq")) as driver:
            driver.pipe("in", 1, key="a", timestamp=3)
            assert driver.metrics()["failed-records-total"] == 1
            assert driver.read("letters") == []

    def test_of_init_and_close(self) -> None:
        def fail(self: Any, *given: Any) -> None:
            raise LookupError("nothing")

        with pytest.raises(ProcessingError, match=rf"'p': init: LookupError.*{line_of(fail, 1)}"):
            TopologyTestDriver(built(processor(init=fail), on_error="skip"))
        driver = TopologyTestDriver(built(processor(close=fail)))
        with pytest.raises(ProcessingError, match=rf"'p': close: LookupError.*{line_of(fail, 1)}"):
            driver.close()

    def test_what_is_skipped_leaves_what_it_did(self) -> None:
        def process(self: Any, record: Record) -> None:
            self.n.put(record.key, record.value)
            self.context.forward(record)
            if not record.value:
                raise ValueError

        app = built(processor(process=process), on_error="dlq")
        with TopologyTestDriver(app) as driver:
            for value in (1, 0, 2):
                driver.pipe("in", value, key="a", timestamp=value)
            assert [value for _, value, _ in read(driver)] == [1, 0, 2]
            (letter,) = driver.read("letters")
            assert dict(letter.headers)["__streams.errors.operator"] == b"p"

    def test_of_an_operator_below_are_its_own_even_if_caught(self) -> None:
        def catching(self: Any, record: Record) -> None:
            self.n.get("a")
            try:
                self.context.forward(record)
            except Exception:
                self.n.put("caught", 1)

        def failing(self: Any, record: Record) -> None:
            raise LookupError("below")

        app = Streams("app", key=string(), value=int64())
        stream = app.stream("in").process(processor(process=catching), [N], on_error="skip")
        stream.process(processor(process=failing), [N], name="low")
        with (
            TopologyTestDriver(app) as driver,
            pytest.raises(ProcessingError, match="'low': .*LookupError: below"),
        ):
            driver.pipe("in", 1, key="a", timestamp=0)

    def test_nothing_is_forwarded_in_close(self) -> None:
        def close(self: Any) -> None:
            self.context.forward(Record("a", 1, 0))

        driver = TopologyTestDriver(built(processor(close=close)))
        with pytest.raises(ProcessingError, match="nothing can be forwarded when the task"):
            driver.close()

    def test_every_processor_is_closed_once(self) -> None:
        closed: list[Any] = []
        driver = TopologyTestDriver(built(processor(close=lambda self: closed.append(self))))
        driver.close()
        driver.close()
        assert len(closed) == 1


class NoMethod:
    pass


class Takes:
    def __init__(self, n: int) -> None: ...

    def process(self, record: Record) -> None: ...


class Async:
    async def process(self, record: Record) -> None: ...


class Bare(Processor[str, int, str, int]):
    pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((3,), "expected a processor's class or a function that makes a processor, got int"),
        ((Takes(3),), r"got Takes object: .* so pass Takes or lambda: Takes\("),
        ((NoMethod,), r"NoMethod has no method process\(record\)"),
        ((Bare,), r"Bare has no method process\(record\)"),
        ((Takes,), "called with nothing"),
        ((Async,), "process is async"),
        ((processor(), "n"), "stores= expected a list of stores, got 'n'"),
        ((processor(), ["n"]), "there is no store and no table 'n' above; there are none yet"),
        ((processor(), [3]), r"stores= expected store\(…\), a table or a name of one, got 3"),
        ((processor(), [N, store("n")]), "store 'n' is described in another way already"),
    ],
)
def test_what_cannot_be_built(given: Any, told: str) -> None:
    app = Streams("app", key=string(), value=int64())
    with pytest.raises(TopologyError, match=f"^process of 'in': .*{told}"):
        app.stream("in").process(*given)


def test_what_cannot_be_a_store() -> None:
    for call, told in [
        (lambda: store("a b"), "store: expected at most"),
        (lambda: store("a", key=string), "store 'a': key= expected a serde"),  # type: ignore[call-overload]
        (lambda: store("a", retention=0), "store 'a': retention: expected at least 1 ms"),
    ]:
        with pytest.raises(TopologyError, match=told):
            call()


def test_a_store_is_called_as_no_other() -> None:
    app = Streams("app", key=string(), value=int64())
    app.stream("in").process(processor(), [N])
    app.stream("other").group_by_key().count(name="n")
    with pytest.raises(TopologyError, match="two operators would own the changelog topic"):
        compile_topology(app.plan())


def test_factories_and_words_of_other_libraries() -> None:
    app = Streams("app", key=string(), value=int64())
    app.stream("in").process(lambda: Takes(3), [N], name="p").to("out", key=string())
    text = app.describe()
    assert "process: p (<lambda>; stores: n)" in text
    assert "store: n (changelog: app-n-changelog; key string(), value int64())" in text
    with pytest.raises(AttributeError, match=r"use .process\(Processor, stores"):
        app.stream("in").transform(Takes)


def test_the_driver_goes_on_after_a_timer_failed() -> None:
    def init(self: Any) -> None:
        self.context.schedule("1s", "wall_clock", self.ring)

    def ring(self: Any, time: int) -> None:
        if time < 1_500:
            raise LookupError
        self.context.forward(Record("ring", 1, time))

    with TopologyTestDriver(built(processor(init=init, ring=ring))) as driver:
        with pytest.raises(ProcessingError):
            driver.advance_wall_clock("1s")
        driver.advance_wall_clock("1s")
        assert read(driver) == [("ring", 1, 2_000)]
