"""Watermarks in repartition topics: the same windows, whoever writes them, and in which turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.cli.consume import _records
from kafkalite.core.protocol.partitioner import partition_column
from kafkalite.core.protocol.record_codec import NATIVE, Int64s
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.errors import SerdeError
from kafkalite.streams import string, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.compile import compile_topology, flows_of
from kafkalite.streams.local.stamping import RETELL_MS, Stamper
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.watermarks import (
    MARKER_KEY,
    NEVER,
    Clock,
    Flow,
    Marker,
    without_markers,
)
from kafkalite.streams.plan import Plan

SIZE, GRACE = 10, 5
TOPIC = "app-k-repartition"
A, B = TaskId(0, 0), TaskId(0, 1)


def columns(*timestamps: int, key: bytes = b"k") -> Columns:
    return Columns([key] * len(timestamps), [b""] * len(timestamps), timestamps)


class TestMarker:
    @given(
        st.integers(0, 1 << 30), st.integers(0, 1 << 30), st.integers(-1, 1 << 62), st.booleans()
    )
    def test_reads_as_it_was_written(
        self, sub: int, partition: int, time: int, is_idle: bool
    ) -> None:
        marker = Marker(TaskId(sub, partition), time, is_idle)
        assert Marker.decode(marker.encode()) == marker

    @pytest.mark.parametrize("value", [None, b"", b"\x02" + bytes(17), bytes(19)])
    def test_of_another_version_is_refused(self, value: bytes | None) -> None:
        with pytest.raises(SerdeError, match="watermark: "):
            Marker.decode(value)

    def test_markers_are_told_from_records(self) -> None:
        marker = Marker(A, 7)
        mixed = Columns(
            [MARKER_KEY, b"a", MARKER_KEY, MARKER_KEY, b"b"],
            [marker.encode(), b"1", marker.encode(), marker.encode(), b"2"],
            [7, 1, 7, 7, 2],
            range(5),
        )
        records, markers = without_markers(mixed)
        assert (records.keys, records.offsets) == ([b"a", b"b"], [1, 4])
        assert markers == [(0, marker), (1, marker), (1, marker)]
        assert without_markers(records) == (records, [])

    def test_consume_leaves_them_out_of_repartition_topics_alone(self) -> None:
        marker = Marker(A, 7)
        mixed = Columns([MARKER_KEY, b"a"], [marker.encode(), b"1"], [7, 1], range(2))
        assert list(_records(TopicPartition(TOPIC, 0), mixed).keys) == [b"a"]
        assert _records(TopicPartition("others", 0), mixed) == mixed


class TestClock:
    def test_nothing_is_reached_while_a_writer_is_unknown(self) -> None:
        clock = Clock((A, B))
        clock.meet(Marker(A, 50))
        clock.pass_records([60])
        assert clock.reached == NEVER
        clock.meet(Marker(B, 20))
        assert clock.reached == 20

    def test_an_idle_writer_holds_nobody_back(self) -> None:
        clock = Clock((A, B))
        clock.meet(Marker(A, 0))
        clock.pass_records([60])
        clock.meet(Marker(B, 20, is_idle=True))
        assert clock.reached == 60
        clock.meet(Marker(A, 90, is_idle=True))
        assert clock.is_idle
        assert clock.reached == 60, "the newest record of this partition"
        clock.meet(Marker(B, 20))
        assert clock.reached == 20

    def test_times_never_fall(self) -> None:
        clock = Clock((A,))
        clock.meet(Marker(A, 50))
        clock.meet(Marker(A, 10))
        assert clock.judged([5, 70, 60], []) == [50, 70, 70]
        again = Clock((A,))
        again.load(clock.dump())
        again.load(Clock((A,), A, {A: 3}).dump())
        assert again.times == {A: 50}


class TestStamper:
    def test_one_writer_alone_marks_nothing_but_its_rest(self) -> None:
        stamper = Stamper(A, Flow((A,), 0), 2)
        (sent,) = stamper.stamp(columns(5, 3), None)
        assert sent == (None, columns(5, 3), 0)
        assert stamper.catch_up() == []
        assert [p for p, _, _ in stamper.rest(0)] == [0, 1]

    def test_rest_is_told_once_and_again_later(self) -> None:
        stamper = Stamper(A, Flow((A, B), 0), 2)
        assert len(stamper.rest(0)) == 2
        assert stamper.rest(RETELL_MS - 1) == []
        assert len(stamper.rest(RETELL_MS)) == 2
        pieces = stamper.stamp(columns(5), [1])
        told = [Marker.decode(piece.values[0]).is_idle for _, piece, _ in pieces]
        assert (told, [p for p, _, _ in pieces]) == ([False] * 3, [0, 1, 1])

    def test_other_partitions_are_told_of_the_time_at_a_commit(self) -> None:
        stamper = Stamper(A, Flow((A, B), 0), 3)
        stamper.stamp(columns(5), [1])
        assert [(p, Marker.decode(c.values[0]).time) for p, c, _ in stamper.catch_up()] == [
            (0, 5),
            (2, 5),
        ]
        assert stamper.catch_up() == []

    def test_no_piece_is_as_large_as_half_a_batch_and_each_has_a_head(self) -> None:
        stamper = Stamper(A, Flow((A, B), 0), 2)
        large = Columns([b"k"] * 500, [bytes(2_000)] * 500, range(500))
        pieces = stamper.stamp(large, None)
        assert len(pieces) > 4
        for _, piece, markers in pieces:
            assert markers == 1
            assert piece.keys[0] == MARKER_KEY
            assert sum(map(len, piece.values)) < 200_000
        assert sum(len(piece) - 1 for _, piece, _ in pieces) == 500

    def test_headers_stay_with_their_records(self) -> None:
        stamper = Stamper(A, Flow((A, B), 0), 2)
        with_headers = Columns([b"k"] * 3, [b""] * 3, [9, 1, 2], None, [(("h", b"1"),), (), ()])
        ((_, piece, markers),) = stamper.stamp(with_headers, [0, 0, 0])
        assert piece.headers is not None
        heads = [k == MARKER_KEY for k in piece.keys]
        assert markers == sum(heads)
        assert heads == [True, False, False, False]
        assert list(piece.headers) == [(), (("h", b"1"),), (), ()]

    @given(
        st.lists(
            st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), min_size=1, max_size=8),
            max_size=6,
        ),
        st.integers(0, 10),
        st.booleans(),
    )
    def test_readers_know_of_every_record_that_is_too_late(
        self, batches: list[list[tuple[int, int]]], grace_ms: int, as_forms: bool
    ) -> None:
        stamper = Stamper(A, Flow((A, B), grace_ms), 3)
        clocks = [Clock((A, B)) for _ in range(3)]
        newest = NEVER
        for batch in batches:
            expected: dict[int, list[bool]] = defaultdict(list)
            for timestamp, partition in batch:
                newest = max(newest, timestamp)
                expected[partition].append(timestamp + grace_ms < newest)
            found: dict[int, list[bool]] = defaultdict(list)
            partitions = [partition for _, partition in batch]
            made = columns(*(t for t, _ in batch))
            if as_forms and NATIVE:
                made = replace(made, timestamps=Int64s(made.timestamps))
            for partition, piece, count in stamper.stamp(made, partitions):
                assert partition is not None
                records, markers = without_markers(piece)
                assert len(markers) == count
                judged = clocks[partition].judged(records.timestamps, markers)
                found[partition] += [
                    t + grace_ms < time for t, time in zip(records.timestamps, judged, strict=True)
                ]
                for _, marker in markers:
                    clocks[partition].meet(marker)
                clocks[partition].pass_records(records.timestamps)
            assert found == expected


def windows_app() -> StreamsBuilder:
    app = StreamsBuilder("app", key=string(), value=string())
    groups = app.stream("in").group_by(lambda v: v, name="k")
    table = groups.window(tumbling(SIZE, grace=GRACE)).count(name="n")
    table.final().to("final")
    table.late().to("late")
    return app


class Cluster:
    """All tasks of a topology and the logs between them; whoever runs is chosen at random."""

    def __init__(self, app: StreamsBuilder | Plan, inputs: int, partitions: int) -> None:
        plan = app.plan() if isinstance(app, StreamsBuilder) else app
        self.subs = {sub.id: sub for sub in compile_topology(plan)}
        self.counts = {"in": inputs, TOPIC: partitions}
        self.ids = [
            TaskId(sub.id, partition)
            for sub in self.subs.values()
            for partition in range(self.counts[sub.sources[0].topics[0]])
        ]
        self.flows = flows_of(self.subs.values(), self.ids)
        self.logs: dict[tuple[str, int], list[Columns]] = defaultdict(list)
        self.changelogs: dict[TaskId, list[Columns]] = defaultdict(list)
        self.positions: Counter[TaskId] = Counter()  # of the next batch to read
        self.committed: Counter[TaskId] = Counter()  # offset
        self.tasks = {task_id: self.make(task_id) for task_id in self.ids}
        self.dropped = 0
        self.is_over = False

    def make(self, task_id: TaskId) -> Task:
        sub = self.subs[task_id.sub_topology]
        task = Task(sub, task_id.partition, partition_counts=self.counts, flows=self.flows)
        for changes in self.changelogs[task_id]:
            task.restore("n", changes)
        return task

    def source(self, task_id: TaskId) -> tuple[str, int]:
        return self.subs[task_id.sub_topology].sources[0].topics[0], task_id.partition

    def turn(self, task_id: TaskId, records_max: int) -> bool:
        """Reads one batch and processes some records of what was read."""
        task, (topic, partition) = self.tasks[task_id], self.source(task_id)
        log = self.logs[topic, partition]
        if (position := self.positions[task_id]) < len(log):
            first = sum(map(len, log[:position]))
            batch = log[position]
            skipped = max(0, self.committed[task_id] - first)
            read = Columns(
                batch.keys, batch.values, batch.timestamps, range(first, first + len(batch))
            )
            task.enqueue(topic, read.slice(min(skipped, len(read)), len(read)))
            self.positions[task_id] += 1
        is_at_end = self.positions[task_id] == len(log)
        task.note_idle({topic: is_at_end and self.is_over})
        done = task.process(records_max, 0)
        sent = self.route(task.drain())
        return bool(done) or sent or not is_at_end

    def route(self, outputs: Sequence[Output]) -> bool:
        for output in outputs:
            if output.topic != TOPIC:
                self.logs[output.topic, 0].append(output.columns)
            else:
                self.logs[TOPIC, output.partition or 0].append(output.columns)
        return bool(outputs)

    def commit(self, task_id: TaskId) -> None:
        task, (topic, _) = self.tasks[task_id], self.source(task_id)
        commit = task.commit()
        self.route(commit.outputs)
        self.changelogs[task_id] += [change.columns for change in commit.changelog]
        self.committed[task_id] = commit.offsets.get(topic, self.committed[task_id])

    def restart(self, task_id: TaskId) -> None:
        """As when a task moves: a commit, then another worker goes on from it."""
        self.commit(task_id)
        self.dropped += self.tasks[task_id].metrics["late-records-total"]
        self.tasks[task_id] = self.make(task_id)
        log = self.logs[self.source(task_id)]
        before = position = 0
        while position < len(log) and before + len(log[position]) <= self.committed[task_id]:
            before += len(log[position])
            position += 1
        self.positions[task_id] = position

    def finish(self) -> None:
        """Runs until nothing is left, and the inputs are known to be at their end."""
        self.is_over = True
        for _ in range(2):  # what a commit makes is processed, too
            while sum(self.turn(task_id, 1_000) for task_id in self.ids):
                pass
            for task_id in self.ids:
                self.commit(task_id)
        for task in self.tasks.values():
            self.dropped += task.metrics["late-records-total"]


Partition = list[tuple[str, int]]  # its records: word, timestamp


def expected_windows(inputs: list[Partition], partitions: int) -> tuple[dict[Any, int], int]:
    """The final windows, and how many records are late, each by the order of its own partition."""
    windows: Counter[tuple[str, int]] = Counter()
    late = 0
    for records in inputs:
        newest = NEVER
        for word, timestamp in records:
            newest = max(newest, timestamp)
            start = timestamp // SIZE * SIZE
            if start + SIZE + GRACE <= newest:
                late += 1
            else:
                windows[word, start] += 1
    words = {word for records in inputs for word, _ in records}
    place = {word: partition_column([word.encode()], partitions)[0] for word in words}
    last: dict[int, int] = defaultdict(lambda: NEVER)
    for records in inputs:
        for word, timestamp in records:
            last[place[word]] = max(last[place[word]], timestamp)
    closed = {
        (word, start): n
        for (word, start), n in windows.items()
        if start + SIZE + GRACE <= last[place[word]]
    }
    return closed, late


def final_windows(cluster: Cluster) -> dict[Any, int]:
    rows = concat(cluster.logs["final", 0])
    found = {
        (key[:-8].decode(), int.from_bytes(key[-8:], "big")): int.from_bytes(value, "big")
        for key, value in zip(rows.keys, rows.values, strict=True)
    }
    assert len(found) == len(rows), "a window came out twice"
    return found


inputs_of_tasks = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 90)), max_size=25),
    min_size=1,
    max_size=4,
)


class TestTasks:
    @given(inputs_of_tasks, st.integers(1, 3), st.integers(0, 1 << 30), st.booleans())
    def test_windows_are_the_same_in_whatever_turn_tasks_run(
        self, inputs: list[Partition], partitions: int, seed: int, is_sorted: bool
    ) -> None:
        if len(inputs) == 1 and partitions > 1:
            partitions = 1  # one writer alone: each partition has a time of its own
        if is_sorted:
            inputs = [sorted(records, key=lambda record: record[1]) for records in inputs]
        cluster, random = Cluster(windows_app(), len(inputs), partitions), Random(seed)
        for partition, records in enumerate(inputs):
            for first in range(0, len(records), 4):
                part = records[first : first + 4]
                words = [word.encode() for word, _ in part]
                batch = Columns(words, words, [timestamp for _, timestamp in part])
                cluster.logs["in", partition].append(batch)
        for _ in range(random.randrange(30)):
            task_id = random.choice(cluster.ids)
            move = random.random()
            if move < 0.7:
                cluster.turn(task_id, random.randrange(1, 6))
            elif move < 0.9:
                cluster.commit(task_id)
            else:
                cluster.restart(task_id)
        cluster.finish()
        windows, late = expected_windows(inputs, partitions)
        assert final_windows(cluster) == windows
        assert cluster.dropped == late
        assert len(concat(cluster.logs["late", 0])) == late
