"""librdkafka reads the replica in its rack, and the leader once that replica is gone (KIP-392)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin
from kafkalite.core.replicas.selection import RACK_AWARE
from kafkalite.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.slow

RACKS = ("a", "b", "c")
SECONDS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    settings = {"replica.selector.class": RACK_AWARE}
    folder = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(folder, racks=RACKS, overrides=settings) as running:
        yield running


class Reader:
    """A consumer of partition 0 of a topic, and the broker that it fetches from, by its word."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, rack: str) -> None:
        self.topic, self.source = topic, -1
        self.values: list[bytes] = []
        settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "client.rack": rack,
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": 100,
            "stats_cb": self._note,
        }
        self.consumer = Consumer(settings)
        self.consumer.assign([TopicPartition(topic, 0, 0)])

    def _note(self, text: str) -> None:
        topics: dict[str, Any] = json.loads(text)["topics"]
        if self.topic in topics and "0" in topics[self.topic]["partitions"]:
            self.source = topics[self.topic]["partitions"]["0"]["broker"]

    def read_until(self, count: int, source: int | None = None) -> list[bytes]:
        until = time.monotonic() + SECONDS
        while len(self.values) < count or source not in (None, self.source):
            assert time.monotonic() < until, (self.values, self.source)
            message = self.consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                self.values.append(message.value())
        return self.values


def write(cluster: EmbeddedCluster, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS) == 0


def test_a_consumer_reads_the_replica_in_its_rack(cluster: EmbeddedCluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("t", replica_assignment=[[1, 2, 3]])])
    write(cluster, "t", b"v0", b"v1")
    reader = Reader(cluster, "t", "b")
    assert reader.read_until(2, source=2) == [b"v0", b"v1"]
    write(cluster, "t", b"v2")
    assert reader.read_until(3, source=2)[2:] == [b"v2"]
    at_leader = Reader(cluster, "t", "nowhere")
    assert at_leader.read_until(3, source=1) == [b"v0", b"v1", b"v2"]
    cluster.kill(2)
    write(cluster, "t", b"v3")
    assert reader.read_until(4)[3:] == [b"v3"]
    for each in (reader, at_leader):
        each.consumer.close()
