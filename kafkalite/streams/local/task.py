"""A task: one sub-topology over one partition, as a machine.                              [P]

    restore                        state as the last commit left it
    enqueue, process, tick         records in, in order of their timestamps
    note_idle                      which inputs have had nothing for long
    drain                          what has been made so far
    commit                         the rest of it, the changes of state, the offsets to go on from

What a commit returns belongs together: outputs and changelog are written, then the offsets, in one
transaction where there is one. Stores with windows carry a note of the stream times, so that a
window that was closed stays closed.

Where several tasks write one of its repartition topics, stream time is what all of them have
reached (watermarks.py); else operators go by their records, as in Kafka Streams.

Owns   the operators and stores of the task, its buffered records.
Never  reads a clock or a topic.
Fails  with ProcessingError; a task that failed is over, and whoever runs it makes a new one.
Source Kafka Streams' StreamTask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Final

import msgpack

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.streams import plan as p
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.calls import OpenCalls
from kafkalite.streams.local.compile import Runtime, SubTopology
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.gathering import join
from kafkalite.streams.local.global_store import GlobalStore
from kafkalite.streams.local.inputs import Input, Reader
from kafkalite.streams.local.operators.asynchronous import InFlight
from kafkalite.streams.local.order import ranks_of
from kafkalite.streams.local.runtime import Stateful, Trace
from kafkalite.streams.local.sizes import Limits, RecordTooLarge, too_large
from kafkalite.streams.local.stamping import Piece, Stamper
from kafkalite.streams.local.state import TaskStore
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.state.kept import Kept
from kafkalite.streams.local.watermarks import (
    EXTERNAL,
    NEVER,
    Clock,
    Flow,
    reached_by_all,
)

__all__ = ["Output", "Task", "TaskCommit", "TaskState", "join"]

NOTE_VERSION: Final = 1


class TaskState(Enum):
    """Where a task is in its life."""

    RESTORING = "takes in the changelogs as of the last commit"
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


class Task:
    """One partition of a sub-topology.

    With `cached`, a row's updates go on once per commit; without, once per batch; every one of an
    aggregate that says so itself. `partition_counts` are of the topics that partitioners are asked
    for, and of repartition topics. `flows` tells who writes these, by topic; None: one task does,
    without watermarks.
    `drops` counts the records that are left out. `limits`: the bytes of a record, by topic.
    `calls` runs async functions. `trace` hears what each operator passes on.
    `global_stores`: the worker's copies of global tables, by name. With `counts_passed` it counts
    the records that each operator passes on.
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
        limits: Limits | None = None,
        flows: Mapping[str, Flow] | None = None,
        place: Place | None = None,
        trace: Trace | None = None,
        global_stores: Mapping[str, GlobalStore] | None = None,
        calls: OpenCalls | None = None,
        counts_passed: bool = False,
    ) -> None:
        self.sub_topology = sub_topology
        self.partition = partition
        self.state = TaskState.RESTORING
        counts = {} if partition_counts is None else partition_counts
        self._runtime = Runtime(
            sub_topology,
            partition,
            registry,
            cached,
            counts,
            drops or Drops(),
            {} if limits is None else limits,
        )
        self._flows = {} if flows is None else flows
        read = [self._flows.get(topic.name) for topic in sub_topology.repartition_sources]
        self._runtime.is_timed = any(flow is not None and flow.is_shared for flow in read)
        self._runtime.shared_topics = frozenset(
            topic for topic, flow in self._flows.items() if flow.is_shared
        )
        self._runtime.place = place or self._runtime.place
        self._runtime.trace = trace
        self._runtime.global_stores = global_stores or {}
        self._runtime.calls = calls
        self._runtime.passed = Counter() if counts_passed else None
        self._runtime.compile()
        self._operators = {
            node: self._runtime.stateful[node]
            for node in sub_topology.nodes
            if node in self._runtime.stateful
        }
        self._calls = InFlight(sub_topology.nodes, self._runtime)
        self.has_calls = bool(self._calls)  # of async functions
        self._is_held = False  # a commit waits for calls
        me = TaskId(sub_topology.id, partition)
        self._stampers = {
            topic: Stamper(me, self._flows[topic], counts[topic])
            for topic in sub_topology.repartition_sinks
            if topic in self._flows
        }
        self._readers = {node: Reader(node, self._runtime) for node in sub_topology.sources}
        self._inputs: dict[str, Input] = {}  # in the order of the topology
        self._clocks: dict[str, list[Any]] = {}  # as restored, of inputs that have not come yet
        self._reached = NEVER
        self._is_begun = False  # processors are there

    def __str__(self) -> str:
        """As Kafka Streams writes it: `0_3`."""
        return f"{self.sub_topology.id}_{self.partition}"

    @property
    def metrics(self) -> Mapping[str, int]:
        """Counters: dropped-records-total, process-total and the like."""
        return self._runtime.metrics

    @property
    def passed(self) -> Mapping[str, int]:
        """How many records each node has passed on to those below it, by its name; nothing if the
        task does not count them."""
        return self._runtime.passed or {}

    @property
    def changelog_topics(self) -> dict[str, str]:
        """The changelog topic of each store, by its name."""
        return {store.name: store.changelog_topic for store in self.sub_topology.stores}

    def store(self, name: str) -> Any:
        """A store to look into. KeyError when this task has none of that name."""
        found = self._runtime.stores[name]
        if self.state is not TaskState.RUNNING:  # later it was done at the start
            found.settle()
        try:
            return found.view()
        except ProcessingError:  # a record that waited for somebody to look cannot be folded in
            self.state = TaskState.FAILED  # as it may be already
            raise

    def kept(self, name: str) -> Kept:
        """The rows of a store as bytes, for a restore."""
        return self._runtime.stores[name].kept

    # Restoring

    def restore(self, store: str, batch: Columns) -> None:
        """Puts a batch of a store's changelog back, in the order of the log."""
        assert self.state is TaskState.RESTORING, f"task {self}: {self.state.name}"
        try:
            self._runtime.stores[store].restore(batch)
        except SerdeError as error:
            at = "" if error.index is None or batch.offsets is None else batch.offsets[error.index]
            place = f"{self.changelog_topics[store]}-{self.partition} offset {at}"
            raise ProcessingError(
                f"task {self}: store {store!r}: {place} cannot be restored: {error.words}; "
                "rows of another shape need another name"
            ) from error

    # Records

    def enqueue(self, topic: str, batch: Columns) -> None:
        """Buffers a fetched batch of bytes with offsets."""
        self._start()
        self._input(topic).put(batch)

    def note_idle(self, idle: Mapping[str, bool]) -> None:
        """Whether each topic that the task reads has had nothing for long: all of them, though the
        writers of a repartition topic say so themselves. Idle inputs hold nobody's time back; a
        task whose inputs are all idle says so to its readers."""
        self._start()
        for topic, is_idle in idle.items():
            self._input(topic).is_idle = is_idle
        self._advance()

    def _input(self, topic: str) -> Input:
        """The input from `topic`, made when it is first asked for."""
        if (found := self._inputs.get(topic)) is not None:
            return found
        if (source := self.sub_topology.source_of(topic)) is None:
            raise ProcessingError(f"task {self} does not read topic {topic!r}")
        is_timed = self._runtime.is_timed
        clock = None
        if topic in self._flows:
            clock = Clock(self._flows[topic].writers)
        elif is_timed:
            clock = Clock((EXTERNAL,), EXTERNAL)
        if clock is not None and topic in self._clocks:
            clock.load(self._clocks[topic])
        found = self._inputs[topic] = Input(
            topic,
            (self.sub_topology.sources.index(source), topic),
            self._readers[source],
            clock,
            is_internal=topic in self._flows,
            is_timed=is_timed,
        )
        in_order = sorted(self._inputs.values(), key=lambda each: each.order)
        self._inputs = {each.topic: each for each in in_order}
        return found

    def position(self, topic: str) -> int | None:
        """The offset behind the last record of `topic` that was processed; None: none was."""
        return self._inputs[topic].next_offset if topic in self._inputs else None

    def buffered(self, topic: str) -> int:
        """How many records of `topic` are enqueued and not yet processed."""
        return self._inputs[topic].buffered if topic in self._inputs else 0

    def process(self, records_max: int, now_ms: int) -> int:
        """Processes up to `records_max` records, those with lower timestamps first; how many.

        Fewer while calls of async functions have no room for more; results of calls go on first.
        """
        self._begin(now_ms)
        is_timed, done = self._runtime.is_timed, 0
        try:
            while done < records_max and (some := self._run(records_max - done)):
                done += some
                if is_timed:
                    self._advance()
            if is_timed:
                self._advance()  # past markers behind the last record
        except Exception:
            self._become(TaskState.FAILED)
            raise
        self._runtime.metrics["process-total"] += done
        return done

    def tick(self, now_ms: int) -> None:
        """Lets operators look at the wall clock."""
        self._begin(now_ms)
        self._each(lambda _, operator: operator.tick(now_ms))
        if (processors := self._runtime.processors) is not None:
            self._guarded(lambda: processors.tick(now_ms))

    def _advance(self) -> None:
        """Tells operators how far stream time has come, where they do not go by their records."""
        if not self._runtime.is_timed:
            return
        inputs = self._inputs.values()
        reached = reached_by_all((e.clock, e.is_at_rest) for e in inputs if e.clock is not None)
        if reached > self._reached or self.has_calls:
            self._reached = max(reached, self._reached)
            self._each(self._advance_one)
            if (processors := self._runtime.processors) is not None:
                self._guarded(lambda: processors.advance(self._reached))

    def _advance_one(self, node: p.Node, operator: Stateful) -> None:
        operator.advance(self._calls.time_for(node, self._reached))

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, and nothing to be expected soon."""
        return not self.in_flight and all(each.is_at_rest for each in self._inputs.values())

    def _run(self, records_max: int) -> int:
        """Processes the records that come next, as many as can go together; how many."""
        if self.has_calls:
            self._calls.collect()
            if (records_max := min(records_max, self._calls.room)) <= 0 or self._is_held:
                return 0
        if self._runtime.ordering.gathers:
            heads = [e for e in self._inputs.values() if e.head_timestamp() is not None]
            if len(heads) > 1:
                stretch = ranks_of([each.upcoming(records_max) for each in heads], records_max)
                for each, ranks in zip(heads, stretch, strict=True):
                    each.run_ahead(ranks)
                self._runtime.settle()
                return sum(map(len, stretch))
        if (run := self._next_run()) is None:
            return 0
        chosen, before = run
        return chosen.run(before, records_max)

    def _next_run(self) -> tuple[Input, int | None] | None:
        """The input with the earliest record, and the timestamp that ends its turn."""
        if len(self._inputs) == 1:
            (only,) = self._inputs.values()
            return None if only.head_timestamp() is None else (only, None)
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
        outputs: list[Output] = []
        if made := self._runtime.outputs:
            outputs = join(list(made))
            made.clear()
            for output in outputs:
                self._runtime.metrics["records-out-total"] += len(output.columns)
        if self._stampers:
            outputs = [piece for output in outputs for piece in self._stamped(output)]
            if self._inputs and self.is_idle:
                now_ms = self._runtime.now_ms
                outputs += self._markers(lambda stamper: stamper.rest(now_ms))
        return outputs

    def _stamped(self, output: Output) -> Iterator[Output]:
        """An output to a repartition topic, with watermarks."""
        if (stamper := self._stampers.get(output.topic)) is None:
            yield output
            return
        for partition, columns, markers in stamper.stamp(output.columns, output.partitions):
            yield Output(output.topic, columns, None, output.sink, (), partition, markers)

    def _markers(self, tell: Callable[[Stamper], list[Piece]]) -> list[Output]:
        """What the stampers tell besides records."""
        return [
            Output(topic, columns, None, "", (), partition, markers)
            for topic, stamper in self._stampers.items()
            for partition, columns, markers in tell(stamper)
        ]

    @property
    def in_flight(self) -> int:
        """Records that wait for calls of async functions."""
        return self._calls.count

    @property
    def has_results(self) -> bool:
        """Whether calls of async functions are done, and `process` has something to do."""
        return self._calls.has_results

    @property
    def is_full(self) -> bool:
        """Whether records that it was given wait for room."""
        return self.has_calls and any(each.buffered for each in self._inputs.values())

    def _collect(self) -> None:
        """Sends on what calls have brought."""
        try:
            self._calls.collect()
        except Exception:
            self._become(TaskState.FAILED)
            raise
        self._advance()

    def prepare(self) -> bool:
        """Whether a commit may follow: no call runs whose record would be in it.

        Until the commit no more records are processed. What waits for the commit is sent on now:
        it may lead to calls.
        """
        self._start()
        self._is_held = True
        while True:  # as often at most as async functions follow one another
            self._collect()
            if self.in_flight:
                return False
            self._each(lambda _, operator: operator.flush())
            if not self.in_flight:
                return True

    def commit(self) -> TaskCommit:
        """Everything that follows from the records processed so far and has not been drained.

        After `prepare`, where there are async functions.
        """
        self._start()
        if self.has_calls:
            is_ready = self.prepare()
            assert is_ready, f"task {self}: {self.in_flight} calls are not over"
            self._is_held = False
        self._each(lambda _, operator: operator.flush())
        self._note_times()
        changelog = self._changelog()
        offsets = {
            topic: each.next_offset
            for topic, each in self._inputs.items()
            if each.next_offset is not None
        }
        outputs = self.drain()
        outputs += self._markers(Stamper.catch_up)
        return TaskCommit(outputs, changelog, offsets)

    def checkpoint(self, offsets: Mapping[str, int]) -> None:
        """What `commit` returned is committed: state on disk may be as new now.

        `offsets` are behind what was written to each changelog topic, as far as that is known.
        """
        for store in self._runtime.stores.values():
            store.checkpoint(offsets.get(store.changelog_topic), self._runtime.now_ms)
        self._runtime.place.note(self._runtime.now_ms)

    def _changelog(self) -> list[Output]:
        changes = []
        for store in self._runtime.stores.values():
            try:
                columns = store.changelog()
            except SerdeError as error:
                self._become(TaskState.FAILED)
                raise ProcessingError(
                    f"store {store.name!r}: a row cannot be kept: {error.words}; "
                    "value= names a serde"
                ) from error
            if columns is not None:
                columns = self._fitting(store.name, columns)
                changelog = Output(store.changelog_topic, columns, None, store.name)
                changes.append(changelog)
        return changes

    def _fitting(self, store: str, columns: Columns) -> Columns:
        """The changelog with deletions in the place of rows that the topic does not take."""
        topic = self.changelog_topics[store]
        limit = self._runtime.limits.get(topic)
        if limit is None or not (large := too_large(columns, limit)):
            return columns
        node = next(s.node for s in self.sub_topology.stores if s.name == store)
        values = list(columns.values)
        read = ", ".join(f"{t!r} up to offset {i.next_offset}" for t, i in self._inputs.items())
        for index, size in large:
            what = f"the row of key {columns.keys[index]!r}, with {read} of partition "
            error = RecordTooLarge(topic, size, limit)
            try:
                self._runtime.failures.handle(node, error, None, f"{what}{self.partition} read")
            except ProcessingError:
                self._become(TaskState.FAILED)
                raise
            values[index] = None
        return replace(columns, values=values)

    def _note_times(self) -> None:
        """Leaves the stream times in the stores of the operators that go by them."""
        live = {t: each.clock.dump() for t, each in self._inputs.items() if each.clock}
        clocks = self._clocks | live
        for node, operator in self._operators.items():
            time = operator.stream_time()
            if time is not None and (time != NEVER or clocks):
                store = self._store_of(node)
                assert store is not None, f"{node.name}: stream time without a store"
                store.note = msgpack.packb([NOTE_VERSION, time, clocks])
        processors = self._runtime.processors
        if processors is not None and self._is_begun and (keeper := processors.keeper) is not None:
            noted = [NOTE_VERSION, processors.stream_time, clocks, processors.dump()]
            keeper.note = msgpack.packb(noted)

    def _store_of(self, node: p.Node) -> TaskStore | None:
        """The store that keeps the note of an operator: the first that its node owns."""
        stores = self.sub_topology.stores
        first = next((store for store in stores if store.node is node), None)
        return None if first is None else self._runtime.stores[first.name]

    def _noted(self, store: TaskStore | None) -> tuple[int, list[Any]]:
        """The stream time that the note of a store tells, and what of processors stands there; its
        clocks are kept."""
        if store is None or (note := store.note) is None:
            return NEVER, []
        try:
            version, time, clocks, *processors = msgpack.unpackb(note)
            if version != NOTE_VERSION:
                raise ValueError(f"version {version!r}, expected {NOTE_VERSION!r}")
            self._clocks |= clocks
            return int(time), processors[0] if processors else []
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProcessingError(
                f"task {self}: store {store.name!r}: its note of times cannot be read: {error}"
            ) from None

    # Memory

    @property
    def object_bytes(self) -> int:
        """About how many bytes the rows take that are objects."""
        return sum(store.object_bytes for store in self._runtime.stores.values())

    def shrink(self, bytes_max: int) -> None:
        """Lets rows go that can be read from disk again, until about `bytes_max` are left."""
        total = max(self.object_bytes, 1)
        for store in self._runtime.stores.values():
            store.shrink(bytes_max * store.object_bytes // total)

    # Life

    def close(self) -> None:
        """Leaves state on disk as the last checkpoint made it; the task is of no use afterwards."""
        for operator in self._calls:
            operator.close()
        try:
            if (processors := self._runtime.processors) is not None:
                processors.close()
        finally:
            self._runtime.place.close()

    def _start(self) -> None:
        """Restoring is over; the first call does something."""
        if self.state is TaskState.RUNNING:
            return
        if self.state is TaskState.FAILED:
            raise ProcessingError(f"task {self} has failed: make a new one from its last commit")
        self._become(TaskState.RUNNING)
        for store in self._runtime.stores.values():
            store.settle()
        for node, operator in self._operators.items():
            operator.resume(self._noted(self._store_of(node))[0])

    def _begin(self, now_ms: int) -> None:
        """The wall clock is known; the first call makes the processors."""
        self._start()
        self._runtime.now_ms = now_ms
        if self._is_begun or (processors := self._runtime.processors) is None:
            return
        self._is_begun = True
        self._guarded(lambda: processors.begin(now_ms, *self._noted(processors.keeper)))

    def _become(self, state: TaskState) -> None:
        assert state in LEGAL[self.state], f"task {self}: {self.state.name} -> {state.name}"
        self.state = state

    def _each(self, call: Callable[[p.Node, Stateful], None]) -> None:
        """Calls every operator that holds something back, those above first."""
        for each in self._operators.items():
            self._guarded(partial(call, *each))

    def _guarded(self, call: Callable[[], None]) -> None:
        """A call that may push records; the task is over if it fails."""
        try:
            call()
            self._runtime.settle()
        except Exception:
            self._become(TaskState.FAILED)
            raise
