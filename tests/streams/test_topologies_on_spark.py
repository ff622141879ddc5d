"""Random topologies as Spark runs them, in one process: micro-batches cut anywhere, repeated, with
workers that die, against plain Python.

    KAFKALITE_TOPOLOGIES=5000 pytest tests/streams/test_topologies_on_spark.py     others, and more
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from reference.drawing import Topology
from reference.machine import Row
from reference.sameness import sameness
from test_random_topologies import Case, by_topic, cases, difference, examples
from topology_runs import LETTERS, without_calls

from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry, SerdeContext, json, string
from kafkalite.streams.api import StreamsBuilder
from kafkalite.testing.spark import Rehearsal

pytestmark = pytest.mark.slow


class SparkRun:
    """A topology over topics of one partition."""

    def __init__(self, topology: Topology, seed: int) -> None:
        self.app: StreamsBuilder[str, Any] = StreamsBuilder(
            "app", key=string(), value=json(), dead_letter_topic=LETTERS
        )
        topology.build(self.app)
        self.registry = MemoryRegistry()
        names = {*topology.topics, *topology.machine().outputs}
        self.spark = Rehearsal(self.app, dict.fromkeys(names, 1), registry=self.registry, seed=seed)
        self.random = Random(seed)

    def fetch(self, topic: str, rows: list[Row]) -> None:
        """A micro-batch of one topic, and those that follow by the log; perhaps repeated, perhaps
        in another worker than the one before."""
        self.spark.write(topic, 0, self.encoded(topic, rows))
        while self.spark.lag:
            if self.random.random() < 0.3:
                self.spark.forget_tasks()
            self.spark.micro_batch(repeats=int(self.random.random() < 0.3))

    def encoded(self, topic: str, rows: list[Row]) -> Columns:
        stages = self.spark.layout.stages
        sources = [sub.source_of(topic) for sub in stages.subs]
        sources += [table for table in stages.plan.global_tables if topic in table.topics]
        source = next(source for source in sources if source is not None)
        keys = source.key.open(SerdeContext(self.registry, True))
        values = source.value.open(SerdeContext(self.registry, False))
        return Columns(
            keys.serialize(topic, [row[0] for row in rows]),
            values.serialize(topic, [row[1] for row in rows]),
            [row[2] for row in rows],
        )

    def writers(self, topic: str) -> int:
        """How many sub-topologies write a topic."""
        subs = self.spark.layout.stages.subs
        return sum(any(sink.topic == topic for sink in sub.sinks) for sub in subs)

    def rows(self, topic: str) -> list[Row]:
        """What was written, decoded."""
        subs = self.spark.layout.stages.subs
        sink = next(s for sub in subs for s in sub.sinks if s.topic == topic)
        keys = sink.key.open(SerdeContext(self.registry, True))
        values = sink.value.open(SerdeContext(self.registry, False))
        found = self.spark.read(topic)
        if not found:
            return []
        raw_keys, raw_values, times = zip(*found, strict=True)
        return list(
            zip(
                keys.deserialize(topic, raw_keys), values.deserialize(topic, raw_values), times,
                strict=True,
            )
        )  # fmt: skip


@given(cases())
@examples(80)
def test_results_are_those_of_plain_python(case: Case) -> None:
    topology = without_calls(case.topology)
    run, machine = SparkRun(topology, len(str(topology))), topology.machine()
    for life in case.lives:
        for batch in life:
            for topic, rows in by_topic(batch).items():  # of two, records would meet by time
                run.fetch(topic, rows)
                machine.feed({topic: rows})
    run.spark.run()
    for topic, alike in topology.outputs(
        [each.updates for each in sameness(topology.steps)]
    ).items():
        found, wanted = run.rows(topic), machine.rows(topic)
        if run.writers(topic) > 1:  # tasks of several levels, whose order nobody knows
            found, wanted = sorted(found, key=repr), sorted(wanted, key=repr)
        problem = difference(alike, found, wanted)
        assert problem is None, f"{topic}: {problem} in\n{topology}"
    run.spark.forget_tasks()
