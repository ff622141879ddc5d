"""The test driver: a topology in one process, without broker, clock, threads or cache.    [P]

    driver = TopologyTestDriver(app)
    driver.pipe("clicks", {"user": "ann"}, key="1", timestamp=0)
    assert driver.read("counts") == [Record(…)]

One partition of everything. A record is processed to its end before `pipe` returns: what it leads
to in repartition topics, and in other topics that the topology reads, is processed as well.
Every record is committed, so that stores are written as a worker would write them, and every
update of a table goes on; `cached=True` shows how updates merge between commits. The wall clock
stands still, at 1970 if nobody says else, so no record counts as one from the future.

Owns   one task per sub-topology, the outputs that were not read, the wall clock.
Fails  as a worker would; on_error="fail" raises ProcessingError from `pipe`.
Source Kafka Streams' TopologyTestDriver.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kafkalite.core.types import Columns, Headers
from kafkalite.errors import TopologyError
from kafkalite.serde.registry import MemoryRegistry, SchemaRegistry
from kafkalite.serde.serde import Serde, SerdeContext
from kafkalite.streams import plan as p
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.durations import Duration, not_negative
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.calling import TIMESTAMP_MAX
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task
from kafkalite.streams.record import Record

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
        self._plan = replace(app.plan(), max_future_ms=None)
        self._registry = registry or MemoryRegistry()
        self._is_cached = cached
        self._tasks = [
            Task(sub, PARTITION, self._registry, cached=cached, partition_counts=_OnePartition())
            for sub in compile_topology(self._plan)
        ]
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
        task, source = self._reader(topic)
        (key_bytes,) = self._codec(source.key, is_key=True).serialize(topic, [key])
        (value_bytes,) = self._codec(source.value, is_key=False).serialize(topic, [value])
        stamp = self.now_ms if timestamp is None else timestamp
        if type(stamp) is not int or stamp > TIMESTAMP_MAX:
            raise TopologyError(f"timestamp: expected epoch milliseconds, got {stamp!r}")
        found = _headers(headers)
        self._feed(
            task,
            topic,
            Columns([key_bytes], [value_bytes], [stamp], None, [found] if found else None),
        )
        self._run(commits=not self._is_cached)

    def read(self, topic: str) -> list[Record]:
        """The records that were written into `topic` since the last call, oldest first."""
        if topic not in self._outputs and not self._may_write(topic):
            known = sorted({t for t in self._written() if isinstance(t, str)})
            raise TopologyError(f"nothing is written into topic {topic!r}; topics are {known}")
        return list(self._outputs.pop(topic, ()))

    def advance_wall_clock(self, duration: Duration) -> None:
        """Lets time pass: what waits for it happens."""
        self.now_ms += not_negative(duration, "advance_wall_clock")
        for task in self._tasks:
            task.tick(self.now_ms)
        self.commit()

    def commit(self) -> None:
        """Sends on what waits for the commit."""
        self._run(commits=True)

    def store(self, name: str) -> Any:
        """A store to look into, by the name of its operator."""
        for task in self._tasks:
            if name in task.changelog_topics:
                return task.store(name)
        known = sorted(name for task in self._tasks for name in task.changelog_topics)
        raise TopologyError(f"no store is called {name!r}; stores are {known}")

    def metrics(self) -> dict[str, int]:
        """Counters over all tasks, such as `dropped-records-total`; one that is missing is 0."""
        total: Counter[str] = Counter({"dropped-records-total": 0})
        for task in self._tasks:
            total.update(task.metrics)
        return total

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
        for output in task.commit().outputs if commits else task.drain():
            self._keep(output)
            for reader in self._tasks:
                if reader.sub_topology.source_of(output.topic) is not None:
                    self._feed(reader, output.topic, output.columns)
                    routed = True
        return routed

    def _feed(self, task: Task, topic: str, columns: Columns) -> None:
        first = self._offsets[topic]
        self._offsets[topic] += len(columns)
        offsets = range(first, first + len(columns))
        task.enqueue(
            topic,
            Columns(columns.keys, columns.values, columns.timestamps, offsets, columns.headers),
        )

    def _keep(self, output: Output) -> None:
        """Decodes an output for `read`, by the serdes of the sink that wrote it."""
        columns = output.columns
        keys, values = columns.keys, columns.values
        sink = self._sinks.get(output.sink)
        if sink is not None and output.topic != self._plan.dead_letter_topic:
            assert sink.key is not None
            assert sink.value is not None
            keys = self._codec(sink.key, is_key=True).deserialize(output.topic, keys)
            values = self._codec(sink.value, is_key=False).deserialize(output.topic, values)
        headers = columns.headers or [()] * len(columns)
        self._outputs.setdefault(output.topic, deque()).extend(
            map(Record, keys, values, columns.timestamps, headers)
        )

    # Looking things up

    def _codec(self, serde: Serde, *, is_key: bool) -> Any:
        return serde.open(SerdeContext(self._registry, is_key, as_dicts=True))

    def _reader(self, topic: str) -> tuple[Task, p.Source]:
        for task in self._tasks:
            if (source := task.sub_topology.source_of(topic)) is not None:
                return task, source
        known = sorted(str(t) for task in self._tasks for t in task.sub_topology.source_topics)
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
