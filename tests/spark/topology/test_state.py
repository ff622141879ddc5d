"""State between micro-batches: repeated, moved and restored tasks make what one task makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import Columns
from kafkalite.errors import CorruptBatchError
from kafkalite.spark.topology import state
from kafkalite.spark.topology.state import Head, Tasks, decode_rows, encode_rows, folded, seed
from kafkalite.streams import Streams, int64, string, tumbling
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task
from kafkalite.testing.blobs import MemoryBlobs

TOPICS = ("left", "right")
RUN = "run"


def app() -> Streams:
    """A window that waits for its end, a join of streams, and a table."""
    app = Streams("test", key=string(), value=string())
    left, right = app.stream("left"), app.stream("right")
    left.join(right, str.__add__, within="10ms", grace="5ms", name="pairs").to("joined")
    windows = left.group_by_key().window(tumbling("20ms", grace="5ms"))
    windows.count(name="windows").final().to("windows", value=int64())
    right.group_by_key().count(name="totals").to_stream().to("totals", value=int64())
    return app


def make() -> Task:
    (sub,) = compile_topology(app().plan())
    return Task(sub, 0)


def tokens() -> Callable[[], bytes]:
    numbers = count()
    return lambda: b"%d" % next(numbers)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ROWS_MIN", 8)
    monkeypatch.setattr(state, "BLOB_BYTES", 200)


class Batch:
    """Records of one micro-batch, by topic."""

    def __init__(self, first: int, found: Sequence[tuple[int, bytes, int]]) -> None:
        self.columns = {}
        for number, topic in enumerate(TOPICS):
            mine = [(i, *row) for i, row in enumerate(found, first) if row[0] == number]
            self.columns[topic] = Columns(
                [key for _, _, key, _ in mine],
                [b"v%d" % i for i, *_ in mine],
                [time for *_, time in mine],
                [i for i, *_ in mine],
            )

    def run(self, task: Task) -> tuple[list[Output], list[Output]]:
        """Outputs and changelog."""
        for topic, columns in self.columns.items():
            if len(columns):
                task.enqueue(topic, columns)
        while task.process(1_000, 0):
            pass
        done = task.commit()
        return done.outputs, done.changelog


def plain(outputs: Sequence[Output]) -> Iterator[tuple[Any, ...]]:
    for output in sorted(outputs, key=lambda each: each.topic):
        columns = output.columns
        for row in zip(columns.keys, columns.values, columns.timestamps, strict=True):
            yield output.topic, *row


records = st.tuples(st.integers(0, 1), st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 120))
batches = st.lists(
    st.tuples(st.lists(records, max_size=12), st.integers(0, 1), st.sampled_from(["", "", "lost"])),
    max_size=8,
)  # records, the worker process that runs them, whether Spark loses the attempt


@given(batches)
def test_batches_that_are_repeated_and_moved_make_what_one_task_makes(
    drawn: list[tuple[list[Any], int, str]],
) -> None:
    alone, token = make(), tokens()
    blobs, workers = MemoryBlobs(), [Tasks(token), Tasks(token)]
    first = 0
    for found, worker, fate in drawn:
        batch = Batch(first, found)
        first += len(found)
        expected = list(plain(batch.run(alone)[0]))
        attempts = [worker, worker] if fate == "lost" else [worker]
        for attempt, number in enumerate(attempts):
            mine = blobs.copied()
            task = workers[number].take(RUN, "0_0", mine, make)
            outputs, changelog = batch.run(task)
            workers[number].commit(RUN, "0_0", mine, task, changelog)
            assert list(plain(outputs)) == expected, f"attempt {attempt}"
        blobs = mine
    head = blobs.head()
    if head is not None:
        found_head = Head.decode(head)
        total = sum(len(columns) for _, columns in decode_rows(blobs.blobs))
        assert total == found_head.rows + found_head.changes
        assert not found_head.is_heavy


class TestTasks:
    def test_a_kept_task_goes_on_while_the_token_is_its_own(self) -> None:
        made: list[Task] = []

        def made_task() -> Task:
            made.append(make())
            return made[-1]

        tasks, blobs = Tasks(tokens()), MemoryBlobs()
        for first in range(3):
            task = tasks.take(RUN, "0_0", blobs, made_task)
            tasks.commit(RUN, "0_0", blobs, task, Batch(first, [(0, b"a", first)]).run(task)[1])
        assert len(made) == 1
        before = blobs.copied()
        task = tasks.take(RUN, "0_0", before, made_task)
        tasks.commit(RUN, "0_0", before, task, [])  # of an attempt that Spark loses
        assert tasks.take(RUN, "0_0", blobs, made_task) is not task
        assert len(made) == 2

    def test_another_run_of_the_query_makes_its_own_tasks(self) -> None:
        tasks, blobs = Tasks(tokens()), MemoryBlobs()
        task = tasks.take(RUN, "0_0", blobs, make)
        tasks.commit(RUN, "0_0", blobs, task, [])
        assert tasks.take("another", "0_0", blobs, make) is not task

    def test_no_more_tasks_are_kept_than_allowed(self) -> None:
        tasks = Tasks(tokens(), tasks_max=2)
        states = {name: MemoryBlobs() for name in ("a", "b", "c")}
        first = {name: tasks.take(RUN, name, blobs, make) for name, blobs in states.items()}
        for name, task in first.items():
            tasks.commit(RUN, name, states[name], task, [])
        assert len(tasks) == 2
        assert tasks.take(RUN, "c", states["c"], make) is first["c"]
        assert tasks.take(RUN, "a", states["a"], make) is not first["a"]

    def test_a_task_that_failed_is_not_kept(self) -> None:
        tasks, blobs = Tasks(tokens()), MemoryBlobs()
        task = tasks.take(RUN, "0_0", blobs, make)
        tasks.commit(RUN, "0_0", blobs, task, [])
        assert tasks.take(RUN, "0_0", blobs, make) is task
        assert len(tasks) == 0


class TestBlobs:
    def test_rows_of_changelogs_begin_a_task(self) -> None:
        donor, receiver, blobs = make(), Tasks(tokens()), MemoryBlobs()
        changelog = Batch(0, [(0, b"a", 1), (0, b"a", 2), (1, b"a", 3)]).run(donor)[1]
        for output in changelog:  # part by part
            seed(blobs, [(output.sink, output.columns)], b"seed")
        task = receiver.take(RUN, "0_0", blobs, make)
        later = Batch(3, [(0, b"a", 60), (1, b"a", 61)])
        assert list(plain(later.run(task)[0])) == list(plain(later.run(donor)[0]))

    def test_a_fold_keeps_the_last_row_of_each_key(self) -> None:
        deltas = [
            ("s", Columns([b"a", b"b"], [b"1", b"2"], [1, 2])),
            ("t", Columns([b"a"], [b"3"], [3])),
            ("s", Columns([b"a", b"c", b"b"], [b"4", b"5", None], [4, 5, 6])),
            ("t", Columns([b"a"], [None], [7])),
        ]
        found = folded(decode_rows(encode_rows(deltas)))
        assert {name: list(c.keys) for name, c in found.items()} == {"s": [b"a", b"c"]}
        assert list(found["s"].values) == [b"4", b"5"]

    def test_blobs_are_of_bounded_size(self) -> None:
        rows = Columns([b"%d" % i for i in range(500)], [b"v"] * 500, [0] * 500)
        blobs = encode_rows([("s", rows), ("t", rows)])
        assert len(blobs) > 10
        assert max(map(len, blobs)) < 2 * state.BLOB_BYTES
        assert sum(len(columns) for _, columns in decode_rows(blobs)) == 1_000

    @pytest.mark.parametrize(
        "junk", [b"", b"\x01", b"\x93\x02\x00\x00", b"\x94\x09\xc4\x00\x01\x01"]
    )
    def test_what_is_no_state_is_refused(self, junk: bytes) -> None:
        with pytest.raises(CorruptBatchError):
            Head.decode(junk)
        with pytest.raises(CorruptBatchError):
            list(decode_rows([junk or b"\xc1"]))
