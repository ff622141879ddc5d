"""MirrorMaker 2 between a cluster of ours and Apache Kafka: topics, records, offsets of groups."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.deep

PATIENCE_SECONDS = 120
RECORDS = 500
COMMITTED = 10
SETTINGS = """clusters = ours, theirs
ours.bootstrap.servers = {ours}
theirs.bootstrap.servers = {theirs}
ours->theirs.enabled = true
theirs->ours.enabled = true
ours->theirs.topics = from-ours
theirs->ours.topics = from-theirs
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
refresh.topics.interval.seconds = 1
refresh.groups.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
offset.lag.max = 0
dedicated.mode.enable.internal.rest = false
"""


def wait_for(is_so: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.2)


def write(bootstrap: str, topic: str) -> None:
    AdminClient({"bootstrap.servers": bootstrap}).create_topics([NewTopic(topic, 2, 1)])
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, b"%d" % (number % 7))
    assert producer.flush(30) == 0


def commit(bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, COMMITTED)], asynchronous=False)
    consumer.close()


def values(bootstrap: str, topic: str) -> list[bytes]:
    config = {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False}
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in (0, 1)])
        messages = consumer.consume(2 * RECORDS, 3)
        return [each.value() or b"" for each in messages if each.error() is None]
    finally:
        consumer.close()


def committed(bootstrap: str, topic: str, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = ConsumerGroupTopicPartitions(group)
    (future,) = admin.list_consumer_group_offsets([asked]).values()
    offsets = {
        (each.topic, each.partition): each.offset for each in future.result(30).topic_partitions
    }
    return int(offsets.get((topic, 0), -1))


@pytest.mark.timeout(600)
def test_both_mirror_each_other(kafka: str, mirror_maker: list[str], tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path / "ours", brokers=3) as cluster:
        ours = cluster.bootstrap_servers
        write(ours, "from-ours")
        write(kafka, "from-theirs")
        commit(ours, "from-ours", "readers")
        settings = tmp_path / "mirror.properties"
        settings.write_text(SETTINGS.format(ours=ours, theirs=kafka))
        with (tmp_path / "log").open("wb") as log:
            mirror = subprocess.Popen([*mirror_maker, str(settings)], stdout=log, stderr=log)
        try:
            expected = sorted(b"%d" % number for number in range(RECORDS))
            for bootstrap, topic in ((kafka, "ours.from-ours"), (ours, "theirs.from-theirs")):
                wait_for(
                    lambda: sorted(values(bootstrap, topic)) == expected,  # noqa: B023
                    f"{topic} is not mirrored: {(tmp_path / 'log').read_text()[-3000:]}",
                )
            # MirrorMaker translates offsets to one that it knows in both logs, at or before.
            wait_for(
                lambda: 0 <= committed(kafka, "ours.from-ours", "readers") <= COMMITTED,
                "the group's offsets are not mirrored",
            )
        finally:
            mirror.terminate()
            mirror.wait(60)
