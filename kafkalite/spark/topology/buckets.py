"""Tasks over packets: one micro-batch of one task.                                         [P]

    rows for a task ──sorted, unpacked──> Task: enqueue, process, tick, commit ──packed──> rows

A row holds a packet of records and says where it goes: to a task of a later level, or to the sink.
Spark keeps no order in a shuffle, so each row has its number among the rows of its writer. Of a
topic that is read, packets come in the order of offsets. Of a repartition topic, those of each
writer stay in order, and the writers take turns by the times of their records.

The wall clock of a micro-batch is in each row, from the offsets that Spark has written down: a
micro-batch that is repeated gives the same again.

A task that left records out says so in one more row for the sink, so that a micro-batch has its
counts however often it is repeated.

Owns   the form of rows and the order in which a task takes them.
Never  reads a clock. Pauses between tries of async functions are the caller's.
Fails  with ProcessingError as a task does.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import msgpack

from kafkalite.clients.producer.batching import chunks
from kafkalite.core.columns import has_nulls
from kafkalite.core.protocol.partitioner import partition_column, split
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.spark.topology.packets import pack, unpack
from kafkalite.spark.topology.stages import IN_READER, Layout
from kafkalite.spark.topology.state import Blobs, Tasks
from kafkalite.spark.topology.tables import TableCopies
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.calls import OpenCalls
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.task import Task, TaskCommit

BY_KEY: Final = -1  # the partition of records whose keys choose theirs
TO_SINK: Final = "out "  # begins the key of rows for the sink; their writer follows
LEFT_OUT: Final = "left out"  # the topic, which none can be called, of a row of such counts
CLOCK: Final = ""  # the topic of the row with the time, idle inputs, and ends of global tables
PACKET_BYTES: Final = 4 << 20
RECORDS_MAX: Final = 10_000  # at a time, as the local engine


class Row(NamedTuple):
    """A row of Spark. `to` is a task, or TO_SINK and the writer; `number` counts the writer's."""

    to: str
    topic: str
    writer: str
    number: int
    partition: int
    now_ms: int
    packet: bytes


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes tasks in one process of Spark."""

    layout: Layout
    registry: SchemaRegistry
    calls: OpenCalls | None = None
    tables: TableCopies | None = None

    def task(self, task_id: TaskId, drops: Drops) -> Task:
        """A task without state."""
        layout = self.layout
        return Task(
            layout.subs[task_id.sub_topology],
            task_id.partition,
            self.registry,
            partition_counts=layout.partitions_of,
            drops=drops,
            limits=layout.limits,
            flows=layout.flows,
            calls=self.calls,
            global_stores=None if self.tables is None else self.tables.stores,
        )

    def bring_tables(self, ends: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Brings this process's global tables to the offsets of a micro-batch."""
        if ends and self.tables is not None:
            self.tables.bring_to(ends, now_ms)


def task_id_of(name: str) -> TaskId:
    """The task that a row's `to` names."""
    sub_topology, _, partition = name.partition("_")
    return TaskId(int(sub_topology), int(partition))


def clock_row(task: TaskId, turn: Turn) -> Row:
    """The row by which every task has its turn in every micro-batch."""
    tables = [[*tp, end] for tp, end in turn.tables.items()]
    packet = msgpack.packb([dict(turn.idle), tables])
    return Row(str(task), CLOCK, "", 0, BY_KEY, turn.now_ms, packet)


def _left_out(task: TaskId, now_ms: int, drops: Drops) -> Iterator[Row]:
    """The row by which a run counts what a task has left out in a micro-batch; none for nothing."""
    if found := drops.document():
        to, packet = f"{TO_SINK}{task}", json.dumps(found).encode()
        yield Row(to, LEFT_OUT, str(task), 0, BY_KEY, now_ms, packet)


def input_row(task: TaskId, topic: str, columns: Columns, now_ms: int) -> Row:
    """Records of a topic that the source reads for a task."""
    assert columns.offsets is not None, "what is read from a log has offsets"
    first = columns.offsets[0]
    return Row(str(task), topic, "", first, task.partition, now_ms, pack(columns))


class Writer:
    """Outputs of one task in one micro-batch, on their way into rows."""

    def __init__(self, layout: Layout, task: TaskId, now_ms: int) -> None:
        self._shuffled = layout.stages.shuffled
        self._counts = layout.partitions_of
        self._task, self._now_ms = task, now_ms
        self._number = 0

    def rows(self, outputs: Iterable[Output]) -> Iterator[Row]:
        """The rows of some outputs, which follow those of the call before."""
        for output in outputs:
            reader = self._shuffled.get(output.topic)
            pieces = self._by_partition(output) if reader is not None else _by_choice(output)
            for partition, columns in pieces:
                to = f"{TO_SINK}{self._task}" if reader is None else f"{reader}_{partition}"
                for part, _ in chunks(columns, PACKET_BYTES):
                    self._number += 1
                    yield Row(to, output.topic, str(self._task), self._number, partition,
                              self._now_ms, pack(part))  # fmt: skip

    def _by_partition(self, output: Output) -> Iterator[tuple[int, Columns]]:
        """The records of a repartition topic as its partitioner divides them."""
        if output.partition is not None:
            yield output.partition, output.columns
            return
        columns, count = output.columns, self._counts[output.topic]
        partitions = output.partitions
        if partitions is None:
            partitions = partition_column(columns.keys, count)
            if has_nulls(columns.keys):  # any partition will do
                own = self._task.partition % count
                partitions = [own if each < 0 else each for each in partitions]
        yield from _nonempty(split(columns, partitions, count))


def _by_choice(output: Output) -> Iterator[tuple[int, Columns]]:
    """The records of an output by the partitions that were chosen for them, if any were."""
    if output.partition is not None:
        yield output.partition, output.columns
    elif output.partitions is None:
        yield BY_KEY, output.columns
    else:
        count = max(output.partitions, default=0) + 1
        yield from _nonempty(split(output.columns, output.partitions, count))


def _nonempty(parts: Sequence[Columns]) -> Iterator[tuple[int, Columns]]:
    return ((partition, part) for partition, part in enumerate(parts) if len(part))


# A task's turn


@dataclass(frozen=True, slots=True)
class Turn:
    """What a task gets in one micro-batch: batches by topic, in order, which are idle, and how far
    global tables are read.
    """

    batches: Mapping[str, Sequence[Columns]]
    idle: Mapping[str, bool]
    now_ms: int
    tables: Mapping[TopicPartition, int] = field(default_factory=dict)


def turn_of(rows: Iterable[Row], task: Task, layout: Layout) -> Turn:
    """The rows of one task and micro-batch, in the order in which it takes them."""
    by_topic: dict[str, list[Row]] = {}
    idle: dict[str, bool] = {}
    now_ms = 0
    for row in rows:
        now_ms = row.now_ms
        if row.topic == CLOCK:
            idle |= msgpack.unpackb(row.packet)[0]
        else:
            by_topic.setdefault(row.topic, []).append(row)
    batches: dict[str, Sequence[Columns]] = {}
    for topic, of_topic in sorted(by_topic.items()):
        if topic in layout.stages.shuffled:
            batches[topic] = _numbered(_interleaved(of_topic), task.position(topic) or 0)
        else:
            of_topic.sort(key=attrgetter("number"))
            batches[topic] = [unpack(row.packet) for row in of_topic]
    return Turn(batches, idle, now_ms)


def _tables_of(rows: Iterable[Row]) -> dict[TopicPartition, int]:
    """How far global tables are read, by the rows of one task and micro-batch."""
    told = (msgpack.unpackb(row.packet)[1] for row in rows if row.topic == CLOCK)
    return {TopicPartition(topic, n): end for tables in told for topic, n, end in tables}


def _interleaved(rows: list[Row]) -> Iterator[Columns]:
    """Packets of a repartition topic: each writer's in order, the writers by time."""
    rows.sort(key=lambda row: (row.writer, row.number))
    merged = heapq.merge(
        *(list(_timed(of_writer)) for _, of_writer in groupby(rows, attrgetter("writer"))),
        key=lambda timed: timed[0],
    )
    return (columns for _, columns in merged)


def _timed(rows: Iterable[Row]) -> Iterator[tuple[int, Columns]]:
    """Packets of one writer, each with the newest time at which one of them began."""
    newest = 0
    for row in rows:
        columns = unpack(row.packet)
        newest = max(newest, columns.timestamps[0])
        yield newest, columns


def _numbered(batches: Iterable[Columns], start: int) -> list[Columns]:
    """Batches of a topic that holds no records, with offsets as if it did."""
    numbered: list[Columns] = []
    for columns in batches:
        end = start + len(columns)
        numbered.append(replace(columns, offsets=range(start, end)))
        start = end
    return numbered


def take_turn(task: Task, turn: Turn) -> TaskCommit:
    """One micro-batch of a task, to its commit."""
    begin(task, turn)
    for topic, batches in turn.batches.items():
        for columns in batches:
            task.enqueue(topic, columns)
    process_all(task, turn.now_ms)
    return finish(task, turn)


def begin(task: Task, turn: Turn) -> None:
    """What a task is told before its records come: inputs that have some are not idle."""
    before = {topic: is_idle and topic not in turn.batches for topic, is_idle in turn.idle.items()}
    task.note_idle(before)


def process_all(task: Task, now_ms: int) -> None:
    """Processes all that was enqueued."""
    while task.process(RECORDS_MAX, now_ms):
        pass


def finish(task: Task, turn: Turn) -> TaskCommit:
    """The end of a micro-batch: time passes, and all that waited for it goes out."""
    task.note_idle(turn.idle)
    task.tick(turn.now_ms)
    if task.has_calls:
        while not task.prepare():
            pass  # calls end while they are asked for
    return task.commit()


# Where a row comes by


def read_rows(
    maker: Maker,
    task_id: TaskId,
    batches: Iterable[tuple[str, Columns]],
    turn: Turn,
    drops: Drops,
) -> Iterator[Row]:
    """The rows that the reader makes of what it reads for a task, `batches` by topic.

    A task of level 0 runs here. Of several topics it takes the records by time, so all of the
    micro-batch are there before it begins. `turn` has no batches, but the topics that have some.
    """
    if maker.layout.level(task_id) != IN_READER:
        yield clock_row(task_id, turn)
        for topic, columns in batches:
            yield input_row(task_id, topic, columns, turn.now_ms)
        return
    writer = Writer(maker.layout, task_id, turn.now_ms)
    maker.bring_tables(turn.tables, turn.now_ms)
    task = maker.task(task_id, drops)
    before = Counter(drops.counts)
    try:
        begin(task, turn)
        one_by_one = len(turn.batches) == 1
        for topic, columns in batches:
            task.enqueue(topic, columns)
            if one_by_one:
                process_all(task, turn.now_ms)
                yield from writer.rows(task.drain())
        process_all(task, turn.now_ms)
        yield from writer.rows(finish(task, turn).outputs)
        yield from _left_out(task_id, turn.now_ms, drops.since(before))
    finally:
        task.close()


def level_rows(
    maker: Maker, tasks: Tasks, level: int, run: str, rows: Sequence[Row], blobs: Blobs,
    drops: Drops,
) -> Iterator[Row]:  # fmt: skip
    """What becomes of the rows of one key at a level: its task's turn, or they pass through."""
    to = rows[0].to
    if to.startswith(TO_SINK):
        yield from sorted(rows, key=attrgetter("number"))
        return
    task_id = task_id_of(to)
    if maker.layout.level(task_id) != level:
        yield from rows
        return
    maker.bring_tables(_tables_of(rows), rows[0].now_ms)
    before = Counter(drops.counts)
    task = tasks.take(run, to, blobs, lambda: maker.task(task_id, drops))
    try:
        turn = turn_of(rows, task, maker.layout)
        commit = take_turn(task, turn)
        made = list(Writer(maker.layout, task_id, turn.now_ms).rows(commit.outputs))
        changelog = commit.changelog
    except BaseException:
        task.close()
        raise
    tasks.commit(run, to, blobs, task, changelog)
    yield from made
    yield from _left_out(task_id, turn.now_ms, drops.since(before))
