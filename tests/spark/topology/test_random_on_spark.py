"""Random topologies as queries of a real Spark, against plain Python; each goes on once from its
checkpoint.

    KAFKALITE_SPARK_TOPOLOGIES=100 KAFKALITE_SPARK_SEED=7 \\
        pytest -m deep tests/spark/topology/test_random_on_spark.py         more, and others
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from reference.drawing import Topology, draw_log, draw_topology
from reference.machine import Row
from reference.sameness import sameness
from test_random_topologies import LENGTH, by_topic, difference
from topology_runs import LETTERS, without_calls
from whole_topics import read_topic

from kafkalite import EmbeddedBroker
from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.serde import SerdeContext, json, string
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.spark.topology.stages import describe_stages
from kafkalite.streams.api import StreamsBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkalite.spark.topology.query import TopologyQuery

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

COUNT = int(os.environ.get("KAFKALITE_SPARK_TOPOLOGIES", "12"))
SEED = int(os.environ.get("KAFKALITE_SPARK_SEED", "1"))
REFERENCE = Path(__file__).parents[2] / "streams"  # where workers find the functions


class SparkRun:
    """A topology over topics of one partition."""

    def __init__(self, spark: SparkSession, servers: str, topology: Topology, folder: Path) -> None:
        from kafkalite.spark.topology.preparing import prepare
        from kafkalite.spark.topology.shipping import Shipment
        from kafkalite.spark.topology.stages import stages_of

        app: StreamsBuilder[str, Any] = StreamsBuilder(
            "app", key=string(), value=json(), dead_letter_topic=LETTERS
        )
        topology.build(app)
        self.spark, self.servers, self.folder = spark, servers, folder
        self.registry = LogRegistry(servers)
        names = {*topology.topics, *topology.machine().outputs, LETTERS}
        kept = {"retention.ms": "-1"}  # the times of records are those of 1970
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(name, 1, configs=kept) for name in sorted(names)])
        self.layout = prepare(servers, stages_of(app.plan()))
        self.shipment = Shipment.of(self.layout, servers, None, [str(REFERENCE)])
        self.dropped = 0

    def fetch(self, topic: str, rows: list[Row]) -> None:
        """Writes records, and runs a query until it has read all."""
        with Producer(self.servers) as producer:
            producer.send_columns(topic, self.encoded(topic, rows), partition=0)
        query = self.query()
        query.run(lambda: False, until_caught_up=True)
        self.dropped += sum(query.seen.drops.counts.values())

    def query(self) -> TopologyQuery:
        from kafkalite.spark.topology.query import QuerySettings, TopologyQuery

        settings = QuerySettings(str(self.folder / "checkpoint"))
        return TopologyQuery(self.spark, self.layout, self.shipment, settings)

    def encoded(self, topic: str, rows: list[Row]) -> Columns:
        stages = self.layout.stages
        sources: Iterable[Any] = [
            *(sub.source_of(topic) for sub in stages.subs),
            *(table for table in stages.plan.global_tables if topic in table.topics),
        ]
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
        subs = self.layout.stages.subs
        return sum(any(sink.topic == topic for sink in sub.sinks) for sub in subs)

    def check_description(self) -> None:
        """The checkpoint has the state of as many levels as `describe --engine spark` says, and
        the topics that it calls shuffles hold no records."""
        stages = self.layout.stages
        states = list((self.folder / "checkpoint" / "state").glob("[0-9]*"))
        assert len(states) == stages.depth, describe_stages(stages)
        with Admin(self.servers) as admin:
            shuffled = sorted(stages.shuffled.keys() & set(admin.list_topics()))
            ends = admin.end_offsets([TopicPartition(topic, 0) for topic in shuffled])
        assert not any(ends.values()), describe_stages(stages)

    def rows(self, topic: str) -> list[Row]:
        """What was written, decoded."""
        subs = self.layout.stages.subs
        sink = next(s for sub in subs for s in sub.sinks if s.topic == topic)
        keys = sink.key.open(SerdeContext(self.registry, True))
        values = sink.value.open(SerdeContext(self.registry, False))
        found = asyncio.run(read_topic(self.servers, topic, 1))
        if not len(found):
            return []
        return list(
            zip(
                keys.deserialize(topic, found.keys), values.deserialize(topic, found.values),
                found.timestamps, strict=True,
            )
        )  # fmt: skip


def fetches(random: Random, log: list[tuple[str, Row]]) -> Iterator[tuple[str, list[Row]]]:
    """The records topic by topic, as those of two topics would meet by time; one topic goes on
    after all others."""
    left = by_topic(log)
    goes_on = random.choice(sorted(left))
    cut = random.randrange(len(left[goes_on]))
    rest = left[goes_on][cut:]
    left[goes_on] = left[goes_on][:cut]
    yield from ((topic, rows) for topic, rows in left.items() if rows)
    yield goes_on, rest


@pytest.fixture
def one_partition(spark: SparkSession) -> Iterator[None]:
    """A task of Spark's for each level: a topology has a task or two there."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "1")
    yield
    spark.conf.set(name, str(before))


@pytest.mark.usefixtures("one_partition")
@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_results_are_those_of_plain_python(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    topology = without_calls(draw_topology(random))
    log = draw_log(random, topology.topics, random.randint(1, LENGTH))
    machine = topology.machine()
    with EmbeddedBroker(tmp_path / "broker") as broker:
        run = SparkRun(spark, broker.bootstrap_servers, topology, tmp_path)
        for topic, rows in fetches(random, log):
            run.fetch(topic, rows)
            machine.feed({topic: rows})
        run.check_description()
        alikes = topology.outputs([each.updates for each in sameness(topology.steps)])
        for topic, alike in alikes.items():
            found, wanted = run.rows(topic), machine.rows(topic)
            if run.writers(topic) > 1:  # tasks of several levels, whose order nobody knows
                found, wanted = sorted(found, key=repr), sorted(wanted, key=repr)
            problem = difference(alike, found, wanted)
            assert problem is None, f"{topic}: {problem} in\n{topology}"
        run.registry.close()
