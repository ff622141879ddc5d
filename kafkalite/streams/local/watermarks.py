"""Watermarks: how far each upstream task of a repartition topic has come in event time.      [P]

Several tasks write a repartition topic, each at its own pace. A reader that took the newest record
for its stream time would call the records of the slower ones late. So every task writes markers
between its records: who writes here, and the newest timestamp that it has written to the topic.

    log       A:5 | 3 5 7 | B:2 | 1 2 4 | A:9 | 9 ...        A:5 is a marker of task A

A record is late by the order of its own task alone: each is judged by the newest timestamp that its
task had written before it, to any partition. Windows close when all tasks have passed them:

    reached   the least time of the tasks that are not idle, at most the newest record of this
              partition. Without any word of a task nothing closes. When all tasks are idle it is
              the newest record's time.

What a task sends after it was idle is judged by the time reached meanwhile. Times never fall: what
comes twice after a fault is ignored. A topic with one upstream task needs none of this, and its
readers go by its records, as in Kafka Streams.

    marker    key     MARKER_KEY
              value   version Int8 · sub-topology Int32 · partition Int32 · time Int64 · idle Int8

Owns   the form of markers, and the times of an input's upstream tasks.
Never  reads a wall clock: others say which inputs are idle.
Fails  with SerdeError for a marker of another version.
Source streaming watermarks as in the Dataflow model (VLDB 2015); Kafka Streams has none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafkalite.core.columns import greatest, greatest_so_far, joined
from kafkalite.core.types import Columns
from kafkalite.errors import SerdeError
from kafkalite.streams.local.assignor import TaskId

MARKER_KEY: Final = b"\x00kafkalite-watermark\x00"
MARKER_VALUE: Final = struct.Struct(">biiqb")
MARKER_VERSION: Final = 1
NEVER: Final = -1  # the time before the first record
EXTERNAL: Final = TaskId(-1, -1)  # stands for those who write a topic that is not ours


class Marker(NamedTuple):
    """Task `task` writes here, and has written nothing newer than `time` to the topic so far."""

    task: TaskId
    time: int
    is_idle: bool = False

    def encode(self) -> bytes:
        """The marker as a record's value."""
        return MARKER_VALUE.pack(MARKER_VERSION, *self.task, self.time, self.is_idle)

    @staticmethod
    def decode(value: bytes | None) -> Marker:
        """The marker in a record's value. SerdeError for anything else."""
        try:
            version, sub_topology, partition, time, is_idle = MARKER_VALUE.unpack(value or b"")
        except struct.error as error:
            raise SerdeError(f"watermark: {error}") from None
        if version != MARKER_VERSION:
            raise SerdeError(f"watermark: version {version}, expected {MARKER_VERSION}")
        return Marker(TaskId(sub_topology, partition), time, bool(is_idle))


@dataclass(frozen=True, slots=True)
class Flow:
    """One repartition topic: the tasks that write it, and the least grace among the windows of its
    readers, None where they have no windows."""

    writers: tuple[TaskId, ...]
    grace_ms: int | None = None

    @property
    def is_shared(self) -> bool:
        """Whether several tasks write the topic."""
        return len(self.writers) > 1


# Reading


Placed = tuple[int, Marker]  # the index of the first record behind the marker


def without_markers(columns: Columns) -> tuple[Columns, list[Placed]]:
    """The records of `columns`, and the markers that stood between them."""
    found: list[int] = []
    at = -1
    try:
        while True:
            at = columns.keys.index(MARKER_KEY, at + 1)
            found.append(at)
    except ValueError:
        if not found:
            return columns, []
    keep = bytearray(b"\x01") * len(columns)
    for at in found:
        keep[at] = 0
    placed = [(at - before, Marker.decode(columns.values[at])) for before, at in enumerate(found)]
    return columns.where(keep), placed


@dataclass(slots=True)
class Clock:
    """The times of the tasks that write one input, as far as its records are processed."""

    writers: Collection[TaskId]
    current: TaskId | None = None  # whose records come next
    times: dict[TaskId | None, int] = field(default_factory=dict)
    idle: set[TaskId] = field(default_factory=set)
    newest: int = NEVER  # of the records

    def judged(self, timestamps: Sequence[int], markers: Iterable[Placed]) -> Sequence[int]:
        """For each record that comes next, the time by which it is judged. Changes nothing."""
        times, current = dict(self.times), self.current
        judged: list[Sequence[int]] = []
        for first, stop, marker in _segments(markers, len(timestamps)):
            if marker is not None:
                current = marker.task
                times[current] = max(times.get(current, NEVER), marker.time)
            if first < stop:
                time = times.get(current, NEVER)
                own = greatest_so_far(timestamps[first:stop], time)
                times[current] = own[-1]
                judged.append(own)
        return joined(judged) if judged else []

    def meet(self, marker: Marker) -> None:
        """Goes past a marker."""
        task = self.current = marker.task
        self.times[task] = max(self.times.get(task, NEVER), marker.time)
        (self.idle.add if marker.is_idle else self.idle.discard)(task)

    def pass_records(self, timestamps: Sequence[int]) -> None:
        """Goes past records of the current task."""
        if timestamps:
            newest = greatest(timestamps)
            self.newest = max(self.newest, newest)
            self.times[self.current] = max(self.times.get(self.current, NEVER), newest)

    @property
    def is_idle(self) -> bool:
        """Whether every task that writes the input has said that it is idle."""
        return all(task in self.idle for task in self.writers)

    @property
    def reached(self) -> int:
        """The time that all tasks have passed which are not idle."""
        active = [self.times.get(t, NEVER) for t in self.writers if t not in self.idle]
        return min(self.newest, min(active, default=self.newest))

    def dump(self) -> list[Any]:
        """The clock as msgpack can write it."""
        tasks = [[*task, time, task in self.idle] for task, time in self.times.items() if task]
        return [self.newest, self.current, tasks]

    def load(self, dumped: Sequence[Any]) -> None:
        """Goes on from what `dump` gave; times never fall."""
        newest, current, tasks = dumped
        self.newest = max(self.newest, newest)
        self.current = None if current is None else TaskId(*current)
        for sub_topology, partition, time, is_idle in tasks:
            task = TaskId(sub_topology, partition)
            self.times[task] = max(self.times.get(task, NEVER), time)
            if is_idle:
                self.idle.add(task)


def reached_by_all(clocks: Iterable[tuple[Clock, bool]]) -> int:
    """The time that several inputs of a task have reached together. Those at rest, as the flag of
    each says, hold nobody back."""
    inputs = list(clocks)
    active = [clock.reached for clock, is_at_rest in inputs if not is_at_rest]
    return min(active) if active else max((clock.newest for clock, _ in inputs), default=NEVER)


def _segments(markers: Iterable[Placed], count: int) -> Iterable[tuple[int, int, Marker | None]]:
    """Stretches [first, stop) of `count` records, each with the marker that stands before it."""
    first, before = 0, None
    for start, marker in markers:
        yield first, start, before
        first, before = start, marker
    yield first, count, before
