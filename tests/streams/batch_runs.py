"""All tasks of a topology in one process, fed with batches of any split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry, SerdeContext
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.task import Output, Task
from kafkalite.streams.record import Record

Input = tuple[Any, Any, int]  # key, value, timestamp


class BatchRun:
    """All tasks of a topology, one partition, fed with batches; what goes round is routed."""

    def __init__(
        self,
        app: StreamsBuilder,
        *,
        cached: bool = False,
        place: Callable[[], Place] | None = None,
    ) -> None:
        self.place = place
        self.registry = MemoryRegistry()
        self.cached = cached
        self.subs = compile_topology(app.plan())
        self.tasks = [self.make(sub) for sub in self.subs]
        self.offsets: dict[str, int] = {}
        self.changelog: dict[str, list[Columns]] = {}
        self.out: dict[str, list[Record]] = {}

    def make(self, sub: Any) -> Task:
        place = self.place and self.place()
        counts = {topic.name: 1 for each in self.subs for topic in each.repartition_sources}
        return Task(sub, 0, self.registry, cached=self.cached, partition_counts=counts, place=place)

    def feed(self, topic: str, records: Sequence[Input]) -> None:
        """One fetched batch, processed and routed to the end; no commit."""
        self.enqueue(self.reader(topic), topic, self.encoded(topic, records))
        self.settle()

    def feed_all(self, batches: dict[str, Sequence[Input]]) -> None:
        """A fetch of several topics, processed together; the first is the task's first input."""
        for topic, records in batches.items():
            self.enqueue(self.reader(topic), topic, self.encoded(topic, records))
        self.settle()

    def reader(self, topic: str) -> Task:
        """The task that reads a topic."""
        return next(t for t in self.tasks if t.sub_topology.source_of(topic) is not None)

    def encoded(self, topic: str, records: Sequence[Input]) -> Columns:
        """Records as they stand in the topic."""
        source = self.reader(topic).sub_topology.source_of(topic)
        assert source is not None
        keys = source.key.open(SerdeContext(self.registry, True))
        values = source.value.open(SerdeContext(self.registry, False))
        return Columns(
            keys.serialize(topic, [r[0] for r in records]),
            values.serialize(topic, [r[1] for r in records]),
            [r[2] for r in records],
        )

    def enqueue(self, task: Task, topic: str, columns: Columns) -> None:
        first = self.offsets.get(topic, 0)
        self.offsets[topic] = first + len(columns)
        offsets = range(first, first + len(columns))
        task.enqueue(
            topic,
            Columns(columns.keys, columns.values, columns.timestamps, offsets, columns.headers),
        )

    def settle(self) -> None:
        busy = True
        while busy:
            busy = sum(task.process(1_000_000, 0) for task in self.tasks) > 0
            busy = sum(self.route(task.drain()) for task in self.tasks) > 0 or busy

    def route(self, outputs: Iterable[Output]) -> bool:
        routed = False
        for output in outputs:
            sink = next(
                s for t in self.tasks for s in t.sub_topology.sinks if s.name == output.sink
            )
            columns = output.columns
            keys = sink.key.open(SerdeContext(self.registry, True))
            values = sink.value.open(SerdeContext(self.registry, False))
            self.out.setdefault(output.topic, []).extend(
                map(
                    Record,
                    keys.deserialize(output.topic, columns.keys),
                    values.deserialize(output.topic, columns.values),
                    columns.timestamps,
                    columns.headers or [()] * len(columns),
                )
            )
            for task in self.tasks:
                if any(output.topic in s.topics for s in task.sub_topology.sources):
                    self.enqueue(task, output.topic, columns)
                    routed = True
        return routed

    def commit(self) -> None:
        """Commits every task, those that feed others first."""
        for task in self.tasks:
            self.settle()
            commit = task.commit()
            self.route(commit.outputs)
            for change in commit.changelog:
                self.changelog.setdefault(change.topic, []).append(change.columns)

    def restart(self) -> None:
        """Throws the tasks away and makes them again from changelogs."""
        self.tasks = [self.make(sub) for sub in self.subs]
        for task in self.tasks:
            for store, topic in task.changelog_topics.items():
                for columns in self.changelog.get(topic, []):
                    task.restore(store, columns)

    def rows(self, topic: str) -> list[tuple[Any, Any, int]]:
        return [(r.key, r.value, r.timestamp) for r in self.out.get(topic, [])]

    def total(self, metric: str) -> int:
        return sum(task.metrics.get(metric, 0) for task in self.tasks)
