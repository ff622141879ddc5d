"""Random topologies in tasks: fed with batches cut anywhere, made anew from changelogs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from batch_runs import BatchRun
from reference.drawing import Topology
from reference.machine import Row
from reference.steps import Stateless
from test_state_stores import Durably

from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry, SerdeContext, json, string
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.call_loop import run_to_the_end
from kafkalite.streams.local.calls import WaitedCalls
from kafkalite.streams.local.global_store import GlobalStore
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.task import Output, Task
from kafkalite.streams.plan import Plan
from kafkalite.streams.rewrites import without_cache

LETTERS = "letters"


class Planned:
    """An application whose plan is there."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self) -> Plan:
        return self._plan


class TopologyRun(BatchRun):
    """All tasks of a topology, with async calls and global tables. `cached`: updates of tables
    merge until the commit; without, every one goes on."""

    def __init__(self, topology: Topology, *, cached: bool) -> None:
        app: StreamsBuilder[str, Any] = StreamsBuilder(
            "app", key=string(), value=json(), dead_letter_topic=LETTERS
        )
        plan = replace(topology.build(app).plan(), max_future_ms=None)
        plan = plan if cached else without_cache(plan)
        self.global_registry = MemoryRegistry()
        self.globals = {
            node.topics[0]: GlobalStore(node, plan, self.global_registry, MemoryBackend())
            for node in plan.global_tables
        }
        super().__init__(Planned(plan), cached=cached)  # type: ignore[arg-type]
        self.dropped = 0

    def make(self, sub: Any) -> Task:
        counts = {topic.name: 1 for each in self.subs for topic in each.repartition_sources}
        return Task(
            sub,
            0,
            self.registry,
            cached=self.cached,
            partition_counts=counts,
            place=self.place_of(sub.id),
            global_stores={store.node.name: store for store in self.globals.values()},
            calls=lambda callee: WaitedCalls(callee, run_to_the_end),
        )

    def place_of(self, sub: int) -> Any:
        return None

    def fetch(self, batches: dict[str, list[Row]]) -> None:
        """A fetch of several topics, processed together."""
        self.feed_all(
            {topic: rows for topic, rows in batches.items() if not self.took(topic, rows)}
        )

    def route(self, outputs: Iterable[Output]) -> bool:
        """As before, but for dead letters, which nobody reads."""
        return super().route(each for each in outputs if each.topic != LETTERS)

    def took(self, topic: str, rows: list[Row]) -> bool:
        """Whether the topic is that of a global table, which has the rows then."""
        if (store := self.globals.get(topic)) is None:
            return False
        keys, values = (
            serde.open(SerdeContext(self.global_registry, is_key))
            for serde, is_key in ((store.node.key, True), (store.node.value, False))
        )
        first = self.offsets.get(topic, 0)
        end = self.offsets[topic] = first + len(rows)
        columns = Columns(
            keys.serialize(topic, [row[0] for row in rows]),
            values.serialize(topic, [row[1] for row in rows]),
            [row[2] for row in rows],
            range(first, end),
        )
        store.take(0, columns, end, 0)
        return True

    def restart(self) -> None:
        self.count_drops()
        super().restart()

    def count_drops(self) -> None:
        self.dropped += self.total("dropped-records-total")

    def all_dropped(self) -> int:
        """Records that were left out, in all lives."""
        global_drops = sum(
            store.metrics["dropped-records-total"] for store in self.globals.values()
        )
        return self.dropped + self.total("dropped-records-total") + global_drops


class DurableTopologyRun(Durably, TopologyRun):  # type: ignore[misc]
    """The same over state that survives, none of it in memory between commits."""

    def __init__(self, topology: Topology, *, cached: bool) -> None:
        self.disks = {}
        TopologyRun.__init__(self, topology, cached=cached)

    def make(self, sub: Any) -> Task:
        return TopologyRun.make(self, sub)

    def restart(self) -> None:
        self.count_drops()
        Durably.restart(self)


def without_calls(topology: Topology) -> Topology:
    """The same with functions that answer at once: when answers come in is nobody's business."""
    return Topology(
        tuple(
            replace(step, word="map", function="step", as_expression=False)
            if isinstance(step, Stateless) and step.word == "map_async"
            else step
            for step in topology.steps
        )
    )
