"""A task: one sub-topology over one partition, as a machine.                              [P]

    restore, restore_metadata      state as the last commit left it
    enqueue, process, tick         records in, in order of their timestamps
    drain                          what has been made so far
    commit                         the rest of it, the changes of state, the offsets to go on from

What a commit returns belongs together: outputs and changelog are written, then the offsets with
the metadata, in one transaction where there is one. The metadata carries the operators' stream
times, so that a window that was closed stays closed.

Owns   the operators and stores of the task, its buffered records.
Never  reads a clock or a topic.
Fails  with ProcessingError; a task that failed is over, and whoever runs it makes a new one.
Source Kafka Streams' StreamTask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from zlib import crc32

from kafkalite.core.types import Columns, concat
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.compile import Runtime, SubTopology
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.inputs import Input, Reader
from kafkalite.streams.local.runtime import Stateful
from kafkalite.streams.local.state import StoreView

__all__ = ["Output", "Task", "TaskCommit", "TaskState"]

METADATA_VERSION: Final = "1"
METADATA_CHARS_MAX: Final = 4096  # Kafka's offset.metadata.max.bytes
JOINED_RECORDS: Final = 1_000  # outputs smaller than this leave together


class TaskState(Enum):
    """Where a task is in its life."""

    RESTORING = "takes in the changelogs and the metadata of the last commit"
    RUNNING = "takes in records"
    FAILED = "is over; its state is not what any commit says"


LEGAL: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.FAILED}),
    TaskState.RUNNING: frozenset({TaskState.FAILED}),
    TaskState.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """What leaves a task together. `offsets`: by topic, the next one to read."""

    outputs: list[Output]
    changelog: list[Output]
    offsets: dict[str, int]
    metadata: str


class Task:
    """One partition of a sub-topology.

    With `cached`, a table's updates go on once per key and commit; without, once per key and
    batch. `partition_counts` are of the topics that partitioners are asked for. `drops` counts the
    records that are left out.
    """

    def __init__(
        self,
        sub_topology: SubTopology,
        partition: int,
        registry: SchemaRegistry | None = None,
        *,
        cached: bool = True,
        partition_counts: Mapping[str, int] | None = None,
        drops: Drops | None = None,
    ) -> None:
        self.sub_topology = sub_topology
        self.partition = partition
        self.state = TaskState.RESTORING
        counts = {} if partition_counts is None else partition_counts
        self._runtime = Runtime(sub_topology, partition, registry, cached, counts, drops or Drops())
        self._runtime.compile()
        self._operators = {
            node.name: self._runtime.stateful[node]
            for node in sub_topology.nodes
            if node in self._runtime.stateful
        }
        self._readers = {node: Reader(node, self._runtime) for node in sub_topology.sources}
        self._inputs: dict[str, Input] = {}
        self._stream_times: dict[str, int] = {}

    def __str__(self) -> str:
        """As Kafka Streams writes it: `0_3`."""
        return f"{self.sub_topology.id}_{self.partition}"

    @property
    def metrics(self) -> Mapping[str, int]:
        """Counters: dropped-records-total, process-total and the like."""
        return self._runtime.metrics

    @property
    def changelog_topics(self) -> dict[str, str]:
        """The changelog topic of each store, by its name."""
        return {store.name: store.changelog_topic for store in self.sub_topology.stores}

    def store(self, name: str) -> StoreView:
        """A store to look into. KeyError when this task has none of that name."""
        return StoreView(self._runtime.stores[name])

    # Restoring

    def restore(self, store: str, batch: Columns) -> None:
        """Puts a batch of a store's changelog back, in the order of the log."""
        assert self.state is TaskState.RESTORING, f"task {self}: {self.state.name}"
        try:
            self._runtime.stores[store].restore(batch)
        except SerdeError as error:
            at = "" if error.index is None or batch.offsets is None else batch.offsets[error.index]
            raise ProcessingError(
                f"task {self}: store {store!r}: offset {at} of {self.changelog_topics[store]!r} "
                f"cannot be restored: {error}; rows of another shape need another name"
            ) from error

    def restore_metadata(self, metadata: str) -> None:
        """Takes over the metadata of an input's last commit; an empty one tells nothing.

        Inputs without new records keep metadata of an older commit. Stream time only grows, so the
        newest that any of them tells is the one.
        """
        assert self.state is TaskState.RESTORING, f"task {self}: {self.state.name}"
        if not metadata:
            return
        version, _, times = metadata.partition(":")
        try:
            if version != METADATA_VERSION:
                raise ValueError(f"version {version!r}, expected {METADATA_VERSION!r}")
            for name, time in (entry.split("=") for entry in times.split(",") if entry):
                self._stream_times[name] = max(self._stream_times.get(name, -1), int(time))
        except ValueError as error:
            raise ProcessingError(
                f"task {self}: the commit's metadata {metadata[:80]!r} cannot be read: {error}"
            ) from None

    # Records

    def enqueue(self, topic: str, batch: Columns) -> None:
        """Buffers a fetched batch of bytes with offsets."""
        self._start()
        if (found := self._inputs.get(topic)) is None:
            if (source := self.sub_topology.source_of(topic)) is None:
                raise ProcessingError(f"task {self} does not read topic {topic!r}")
            found = Input(topic, len(self._inputs), self._readers[source])
            self._inputs[topic] = found
        found.put(batch)

    def buffered(self, topic: str) -> int:
        """How many records of `topic` are enqueued and not yet processed."""
        return self._inputs[topic].buffered if topic in self._inputs else 0

    def process(self, records_max: int, now_ms: int) -> int:
        """Processes up to `records_max` records, those with lower timestamps first; how many."""
        self._start()
        self._runtime.now_ms = now_ms
        done = 0
        try:
            while done < records_max and (run := self._next_run()) is not None:
                chosen, before = run
                done += chosen.run(before, records_max - done)
        except Exception:
            self._become(TaskState.FAILED)
            raise
        self._runtime.metrics["process-total"] += done
        return done

    def tick(self, now_ms: int) -> None:
        """Lets operators look at the wall clock."""
        self._start()
        self._runtime.now_ms = now_ms
        self._each(lambda operator: operator.tick(now_ms))

    def _next_run(self) -> tuple[Input, int | None] | None:
        """The input with the earliest record, and the timestamp that ends its turn."""
        heads = [
            (timestamp, each.order, each)
            for each in self._inputs.values()
            if (timestamp := each.head_timestamp()) is not None
        ]
        if not heads:
            return None
        _, order, chosen = min(heads)
        others = [t + (order < other) for t, other, _ in heads if other != order]
        return chosen, min(others, default=None)

    # Results

    def drain(self) -> list[Output]:
        """What has been made since the last call, in order for each topic."""
        made = list(self._runtime.outputs)
        self._runtime.outputs.clear()
        outputs = join(made)
        self._runtime.metrics["records-out-total"] += sum(len(o.columns) for o in outputs)
        return outputs

    def commit(self) -> TaskCommit:
        """Everything that follows from the records processed so far and has not been drained."""
        self._start()
        self._each(lambda operator: operator.flush())
        changelog = self._changelog()
        offsets = {
            topic: each.next_offset
            for topic, each in self._inputs.items()
            if each.next_offset is not None
        }
        return TaskCommit(self.drain(), changelog, offsets, self._metadata())

    def _changelog(self) -> list[Output]:
        changes = []
        for store in self._runtime.stores.values():
            try:
                columns = store.changelog()
            except SerdeError as error:
                self._become(TaskState.FAILED)
                raise ProcessingError(
                    f"store {store.name!r}: a row cannot be kept: {error}; value= names a serde"
                ) from error
            if columns is not None:
                changelog = Output(store.changelog_topic, columns, None, store.name)
                changes.append(changelog)
        return changes

    def _metadata(self) -> str:
        times = {
            _short(name): time
            for name, operator in self._operators.items()
            if (time := operator.stream_time()) is not None
        }
        entries = ",".join(f"{name}={time}" for name, time in times.items())
        metadata = f"{METADATA_VERSION}:{entries}" if entries else ""
        assert len(metadata) <= METADATA_CHARS_MAX, f"task {self}: {len(metadata)} characters"
        return metadata

    # Life

    def _start(self) -> None:
        """Restoring is over; the first call does something."""
        if self.state is TaskState.RUNNING:
            return
        if self.state is TaskState.FAILED:
            raise ProcessingError(f"task {self} has failed: make a new one from its last commit")
        self._become(TaskState.RUNNING)
        for name, operator in self._operators.items():
            operator.resume(self._stream_times.get(_short(name), -1))

    def _become(self, state: TaskState) -> None:
        assert state in LEGAL[self.state], f"task {self}: {self.state.name} -> {state.name}"
        self.state = state

    def _each(self, call: Callable[[Stateful], None]) -> None:
        """Calls every operator that holds something back, those above first."""
        try:
            for operator in self._operators.values():
                call(operator)
                self._runtime.settle()
        except Exception:
            self._become(TaskState.FAILED)
            raise


def _short(name: str) -> str:
    """An operator in metadata, where 4096 characters must do for all."""
    return f"{crc32(name.encode()):08x}"


def join(outputs: list[Output]) -> list[Output]:
    """Small outputs of one sink to one topic as one; the order within a topic stays."""
    waiting: dict[str, list[Output]] = {}
    counts: dict[str, int] = {}
    joined: list[Output] = []
    for output in outputs:
        parts = waiting.setdefault(output.topic, [])
        count = counts.get(output.topic, 0)
        if parts and (count >= JOINED_RECORDS or not _are_alike(parts[0], output)):
            joined.append(_joined(parts))
            parts = waiting[output.topic] = []
            count = 0
        parts.append(output)
        counts[output.topic] = count + len(output.columns)
    return joined + [_joined(parts) for parts in waiting.values()]


def _are_alike(one: Output, other: Output) -> bool:
    return one.sink == other.sink and (one.partitions is None) == (other.partitions is None)


def _joined(parts: list[Output]) -> Output:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    partitions = None
    if first.partitions is not None:
        partitions = [partition for part in parts for partition in part.partitions or ()]
    return Output(first.topic, concat(part.columns for part in parts), partitions, first.sink)
