"""Spark and the registry on a cluster of ours while each of its brokers is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pytest
from whole_topics import read_topic

from kafkalite import EmbeddedCluster
from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.spark.failures import our_failures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PARTITIONS = 3
ROWS, PER_BATCH = 400, 250  # rows before and after each kill, and of a micro-batch
SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def until_whole(admin: Admin) -> None:
    """Waits until all replicas of all partitions are in sync."""
    deadline = monotonic() + SECONDS_MAX
    while True:
        partitions = [each for topic in admin.describe_topics() for each in topic.partitions]
        if all(len(each.in_sync_replicas) == len(each.replicas) for each in partitions):
            return
        assert monotonic() < deadline, "replicas stay out of sync"
        sleep(0.05)


def test_a_stream_writes_each_row_once_while_every_broker_dies(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    read = spark.readStream.format("kafkalite").options(**servers, subscribe="rows")
    read = read.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(PER_BATCH))
    sent: list[bytes] = []

    def send(producer: Producer) -> None:
        values = [b"%d" % number for number in range(len(sent), len(sent) + ROWS)]
        producer.send_columns("rows", Columns(values, values, [1_000] * ROWS))
        sent.extend(values)

    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in ("rows", "copies")])
        write = read.load().select("key", "value").writeStream.format("kafkalite")
        write = write.options(**servers, topic="copies", deliveryGuarantee="exactly-once")
        with our_failures("the stream"):
            query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            for node_id in cluster.node_ids:
                send(producer)
                cluster.kill(node_id)  # amid the micro-batches of these rows
                send(producer)
                query.processAllAvailable()
                cluster.start(node_id)
                until_whole(admin)
            query.processAllAvailable()
            query.stop()
    found = asyncio.run(read_topic(cluster.bootstrap_servers, "copies", PARTITIONS))
    assert Counter(found.values) == Counter(sent)


def test_the_registry_keeps_its_schemas_while_every_broker_dies(cluster: EmbeddedCluster) -> None:
    ids = {}
    with LogRegistry(cluster.bootstrap_servers) as registry:
        ids["s0"] = registry.register("s0", "string")
        with Admin(cluster.bootstrap_servers) as admin:
            for node_id in cluster.node_ids:
                until_whole(admin)
                cluster.kill(node_id)
                subject = f"s{node_id}"
                schema = {"type": "fixed", "name": f"f{node_id}", "size": node_id}
                ids[subject] = registry.register(subject, schema)
                cluster.start(node_id)
            until_whole(admin)
    assert len(set(ids.values())) == 4
    with LogRegistry(cluster.bootstrap_servers) as later:
        assert {subject: later.latest(subject).id for subject in later.subjects()} == ids
