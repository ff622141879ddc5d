"""The test driver: a topology in one process, without broker, clock or cache.             [IO]

    with TopologyTestDriver(app) as driver:
        driver.pipe("clicks", {"user": "ann"}, key="1", timestamp=0)
        assert driver.read("counts") == [Record(…)]
        print(driver.explain("clicks", {"user": "bob"}, key="2", timestamp=1))

One partition of everything. A record is processed to its end before `pipe` returns: what it leads
to in repartition topics, and in other topics that the topology reads, is processed as well.
Every record is committed, so that stores are written as a worker would write them, and every
update of a table goes on; `cached=True` shows how updates merge between commits. The wall clock
stands still, at 1970 if nobody says else, so no record counts as one from the future. Async
functions run in a thread of their own: `pipe` waits for them, and results come in the order of the
records. Pauses between their tries take no time.

Owns   one task per sub-topology, what the changelogs keep of their state, the outputs that were
       not read, the wall clock.
Fails  as a worker would; on_error="fail" raises ProcessingError from `pipe`. The driver goes on:
       the record, and what was still to follow from it, is left out where it failed.
Source Kafka Streams' TopologyTestDriver.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from kafkalite.core.types import Columns, Headers
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.serde.registry import MemoryRegistry, SchemaRegistry
from kafkalite.serde.serde import Serde, SerdeContext
from kafkalite.streams import plan as p
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.durations import Duration, not_negative
from kafkalite.streams.explaining import Explanation, Steps
from kafkalite.streams.local.batch import Batch, Output
from kafkalite.streams.local.call_loop import run_to_the_end
from kafkalite.streams.local.calling import TIMESTAMP_MAX
from kafkalite.streams.local.calls import WaitedCalls
from kafkalite.streams.local.compile import SubTopology, compile_topology
from kafkalite.streams.local.global_store import GlobalStore
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.task import Task, TaskState
from kafkalite.streams.record import Record
from kafkalite.streams.rewrites import without_cache

PARTITION = 0
PAIRS = ([str, bytes], [str, type(None)])  # what a header is made of


class _OnePartition(Mapping[str, int]):
    """Every topic has one partition here."""

    def __getitem__(self, topic: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Changelog:
    """The rows that a changelog keeps: the last one of each key."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[bytes | None, int, Headers]] = {}

    def append(self, columns: Columns) -> None:
        """Takes in what a commit wrote; a null value deletes."""
        headers = columns.headers or [()] * len(columns)
        for key, *row in zip(
            columns.keys, columns.values, columns.timestamps, headers, strict=True
        ):
            assert key is not None
            if row[0] is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = (row[0], row[1], row[2])

    def columns(self) -> Columns:
        """All rows."""
        values, stamps, headers = zip(*self._rows.values(), strict=True) if self._rows else [()] * 3
        return Columns(list(self._rows), list(values), list(stamps), None, list(headers))

    def copied(self) -> _Changelog:
        """The same, to go on alone."""
        log = _Changelog()
        log._rows = dict(self._rows)
        return log


class TopologyTestDriver:
    """Runs the topology of `app` record by record. `wall_clock`: epoch ms at the start.

    `registry` is where Avro schemas live; without one, in memory. With `cached`, updates of
    aggregates merge as a worker's do: until `commit`, or until the wall clock advances.
    """

    def __init__(
        self,
        app: StreamsBuilder,
        wall_clock: int = 0,
        *,
        registry: SchemaRegistry | None = None,
        cached: bool = False,
    ) -> None:
        if not isinstance(app, StreamsBuilder):
            raise TopologyError(f"expected a Streams object, got {type(app).__name__}")
        self.now_ms = wall_clock
        plan = replace(app.plan(), max_future_ms=None)
        self._plan = plan if cached else without_cache(plan)
        self._registry = registry or MemoryRegistry()
        self._is_cached = cached
        self._subs = compile_topology(self._plan)
        self._changelogs: dict[str, _Changelog] = {}
        self._uncommitted: list[tuple[str, Columns]] = []  # what was piped since the last commit
        self._counted: Counter[str] = Counter()  # by tasks that failed
        self._steps: Steps | None = None
        self._is_twin = False  # made to explain a record
        self._globals = {
            node.name: GlobalStore(node, self._plan, self._registry, MemoryBackend())
            for node in self._plan.global_tables
        }
        self._tasks = [self._make_task(sub) for sub in self._subs]
        self._sinks = {sink.name: sink for task in self._tasks for sink in task.sub_topology.sinks}
        self._offsets: Counter[str] = Counter()
        self._outputs: dict[str, deque[Record]] = {}
        for task in self._tasks:
            task.tick(self.now_ms)

    def pipe(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None:
        """Writes a record into a topic of the topology, and processes all that follows from it.

        Key and value are objects, written by the topic's serdes. Without a timestamp the record
        has the wall clock's.
        """
        source = self._source(topic)
        (key_bytes,) = self._codec(source.key, is_key=True).serialize(topic, [key])
        (value_bytes,) = self._codec(source.value, is_key=False).serialize(topic, [value])
        stamp = self.now_ms if timestamp is None else timestamp
        if type(stamp) is not int or stamp > TIMESTAMP_MAX:
            raise TopologyError(f"timestamp: expected epoch milliseconds, got {stamp!r}")
        found = _headers(headers)
        columns = Columns([key_bytes], [value_bytes], [stamp], None, [found] if found else None)
        self._feed(topic, columns)
        try:
            self._run(commits=not self._is_cached)
        except BaseException:
            self._recover()
            raise
        if self._is_cached:
            self._uncommitted.append((topic, columns))

    def explain(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Explanation:
        """What each operator would pass on if the record were piped now. Nothing changes here.

        Print it, or ask `passed_on(name)`. A record on which an operator fails ends with the error.
        """
        twin = copy(self)
        twin._offsets, twin._outputs = Counter(self._offsets), {}
        twin._changelogs = {name: log.copied() for name, log in self._changelogs.items()}
        twin._uncommitted, twin._counted = list(self._uncommitted), Counter(self._counted)
        twin._globals = {name: store.copied() for name, store in self._globals.items()}
        twin._is_twin, twin._tasks = True, []
        twin._renew(self._subs)
        twin._steps = steps = Steps([node for sub in self._subs for node in sub.nodes])
        try:
            twin.pipe(topic, value, key, timestamp, headers)
        except ProcessingError as error:
            return steps.explanation(error)
        finally:
            twin.close()
        return steps.explanation()

    def read(self, topic: str) -> list[Record]:
        """The records that were written into `topic` since the last call, oldest first."""
        if topic not in self._outputs and not self._may_write(topic):
            known = sorted({t for t in self._written() if isinstance(t, str)})
            raise TopologyError(f"the topology does not write topic {topic!r}; it writes {known}")
        return list(self._outputs.pop(topic, ()))

    def advance_wall_clock(self, duration: Duration) -> None:
        """Advances the wall clock, and runs everything that becomes due."""
        self.now_ms += not_negative(duration, "advance_wall_clock")
        try:
            for task in self._tasks:
                task.tick(self.now_ms)
        except BaseException:
            self._recover()
            raise
        self.commit()

    def commit(self) -> None:
        """Commits: sends the updates that wait for it."""
        self._run(commits=True)
        self._uncommitted.clear()

    def close(self) -> None:
        """Ends the tasks; `with` does."""
        for task in self._tasks:
            task.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def store(self, name: str) -> Any:
        """A readable store, by the name of its operator."""
        for task in self._tasks:
            if name in task.changelog_topics:
                return task.store(name)
        if name in self._globals:
            return self._globals[name].view()
        known = sorted(name for task in self._tasks for name in task.changelog_topics)
        known += sorted(self._globals)
        raise TopologyError(f"no store is called {name!r}; stores are {known}")

    def metrics(self) -> dict[str, int]:
        """Counters over all tasks, such as `dropped-records-total`; one that is missing is 0."""
        total: Counter[str] = Counter({"dropped-records-total": 0})
        total.update(self._counted)
        for task in self._tasks:
            total.update(task.metrics)
        for store in self._globals.values():
            total.update(store.metrics)
        return total

    # Tasks

    def _make_task(self, sub: SubTopology) -> Task:
        counts = _OnePartition()
        return Task(
            sub,
            PARTITION,
            self._registry,
            cached=self._is_cached,
            partition_counts=counts,
            trace=self._trace if self._is_twin else None,
            global_stores=self._globals,
            calls=lambda callee: WaitedCalls(callee, run_to_the_end),
        )

    def _renew(self, subs: Iterable[SubTopology]) -> None:
        """Makes the tasks of `subs` again, as of their last commit, and runs what came since."""
        kept = {task.sub_topology: task for task in self._tasks}
        for sub in subs:
            if (old := kept.get(sub)) is not None:
                self._counted.update(old.metrics)
                old.close()
            kept[sub] = task = self._make_task(sub)
            for store, changelog in task.changelog_topics.items():
                if (log := self._changelogs.get(changelog)) is not None:
                    task.restore(store, log.columns())
            task.tick(self.now_ms)
        self._tasks = [kept[sub] for sub in self._subs]
        if self._uncommitted:
            outputs, self._outputs = self._outputs, {}  # they were made before
            for topic, columns in self._uncommitted:
                self._feed(topic, columns, anew=False)
                self._run(commits=False)
            self._outputs = outputs

    def _recover(self) -> None:
        """Goes on after a failure, without the record that led to it."""
        if self._uncommitted:  # what they led to in other tasks is not in any changelog
            self._renew(self._subs)
        else:
            self._renew([t.sub_topology for t in self._tasks if t.state is TaskState.FAILED])

    def _commit(self, task: Task) -> list[Output]:
        commit = task.commit()
        for output in commit.changelog:
            self._changelogs.setdefault(output.topic, _Changelog()).append(output.columns)
        return commit.outputs

    def _trace(self, node: p.Node, port: p.Port, batch: Batch) -> None:
        """Notes what an operator passes on, while somebody wants an explanation."""
        if self._steps is not None:
            keys = batch.raw_keys if batch.keys is None else batch.keys
            values = batch.raw_values if batch.values is None else batch.values
            assert keys is not None
            assert values is not None
            headers = batch.headers or [()] * len(batch)
            self._steps.note(node, port, list(map(Record, keys, values, batch.timestamps, headers)))

    # Running

    def _run(self, *, commits: bool) -> None:
        """Processes until nothing is left: a record in one task, then what it leads to."""
        while True:
            ran = next((t for t in self._tasks if t.process(1, self.now_ms)), None)
            routed = [self._route(task, commits=commits) for task in self._tasks]
            if ran is None and not any(routed):
                return

    def _route(self, task: Task, *, commits: bool) -> bool:
        """Whether something went to another task."""
        routed = False
        for output in self._commit(task) if commits else task.drain():
            self._keep(output)
            routed = self._feed(output.topic, output.columns) or routed
        return routed

    def _feed(self, topic: str, columns: Columns, *, anew: bool = True) -> bool:
        """Writes records into a topic; whether a task has to process them. A global table has them
        at once, unless it had them before."""
        first = self._offsets[topic]
        end = self._offsets[topic] = first + len(columns)
        columns = replace(columns, offsets=range(first, end))
        readers = [t for t in self._tasks if t.sub_topology.source_of(topic) is not None]
        for task in readers:
            task.enqueue(topic, columns)
        for store in self._globals.values():
            if anew and store.topic == topic:
                store.take(PARTITION, columns, end, self.now_ms)
        return bool(readers)

    def _keep(self, output: Output) -> None:
        """Decodes an output for `read`, by the serdes of the sink that wrote it."""
        columns = output.columns
        keys, values = columns.keys, columns.values
        is_letter = output.topic == self._plan.dead_letter_topic
        sink = None if is_letter else self._sinks.get(output.sink)
        if sink is not None:
            assert sink.key is not None
            assert sink.value is not None
            keys = self._codec(sink.key, is_key=True).deserialize(output.topic, keys)
            values = self._codec(sink.value, is_key=False).deserialize(output.topic, values)
        headers = columns.headers or [()] * len(columns)
        records = list(map(Record, keys, values, columns.timestamps, headers))
        self._outputs.setdefault(output.topic, deque()).extend(records)
        if self._steps is not None and sink is not None:
            self._steps.written(sink, output.topic, records)
        elif self._steps is not None:
            self._steps.dead_letter(output.topic, records)

    # Looking things up

    def _codec(self, serde: Serde, *, is_key: bool) -> Any:
        return serde.open(SerdeContext(self._registry, is_key, as_dicts=True))

    def _source(self, topic: str) -> p.Source:
        """The node that reads `topic`."""
        for task in self._tasks:
            if (source := task.sub_topology.source_of(topic)) is not None:
                return source
        for store in self._globals.values():
            if store.topic == topic:
                return store.node
        known = sorted(str(t) for task in self._tasks for t in task.sub_topology.source_topics)
        known += sorted(store.topic for store in self._globals.values())
        raise TopologyError(f"the topology does not read topic {topic!r}; it reads {known}")

    def _written(self) -> list[Any]:
        topics = [sink.topic for sink in self._sinks.values()]
        return [*topics, self._plan.dead_letter_topic]

    def _may_write(self, topic: str) -> bool:
        return any(callable(written) or written == topic for written in self._written())


def _headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Headers as a record has them. TopologyError for anything but pairs of text and bytes."""
    found = tuple(headers)
    for header in found:
        if not isinstance(header, tuple) or list(map(type, header)) not in PAIRS:
            raise TopologyError(f"headers: expected pairs (str, bytes), got {header!r}")
    return found
