"""Offsets, groups' offsets and transactions through the clients' own admins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest
from drivers import CLIENTS, Client, Options, Place
from kafka.structs import OffsetAndMetadata

SECONDS_MAX = 30.0
EPOCH_MS = 1_700_000_000_000
BY_NAME = {client.name: client for client in CLIENTS}
MakeTopic = Callable[..., str]


def write(client: Client, bootstrap: str, topic: str, count: int) -> None:
    with closing(client.writer(bootstrap, None)) as writer:
        for i in range(count):
            writer.send(topic, b"%d" % i, partition=0)
        writer.flush()


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(SECONDS_MAX) for future in futures.values()]


@pytest.fixture
def librdkafka(bootstrap: str) -> Any:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})


def test_confluent_lists_offsets(librdkafka: Any, bootstrap: str, make_topic: MakeTopic) -> None:
    topic, spec = make_topic(1), confluent_kafka.admin.OffsetSpec
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for i in (0, 3, 1, 2):
        producer.produce(topic, b"", partition=0, timestamp=EPOCH_MS + i)
    assert producer.flush(SECONDS_MAX) == 0
    place = confluent_kafka.TopicPartition(topic, 0)
    asked = [spec.earliest(), spec.latest(), spec.max_timestamp(), spec.for_timestamp(EPOCH_MS + 1)]
    found = [done(librdkafka.list_offsets({place: each}))[0].offset for each in asked]
    assert found == [0, 4, 1, 1]


def test_confluent_moves_and_reads_a_groups_offsets(
    librdkafka: Any, bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(2)
    write(BY_NAME["confluent-kafka"], bootstrap, topic, 10)
    wanted = [confluent_kafka.TopicPartition(topic, p, 3 + p) for p in range(2)]
    of_group = confluent_kafka.ConsumerGroupTopicPartitions
    done(librdkafka.alter_consumer_group_offsets([of_group(group, wanted)]))
    (kept,) = done(librdkafka.list_consumer_group_offsets([of_group(group)]))
    assert sorted((p.partition, p.offset) for p in kept.topic_partitions) == [(0, 3), (1, 4)]


@pytest.fixture
def python(bootstrap: str) -> Any:
    with closing(kafka.KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        yield admin


@pytest.mark.needs("OffsetDelete")
def test_kafka_python_changes_a_groups_offsets(
    python: Any, bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(2)
    write(BY_NAME["kafka-python"], bootstrap, topic, 10)
    places = [kafka.TopicPartition(topic, p) for p in range(2)]

    def offsets() -> dict[int, int]:
        kept = python.list_group_offsets([group])[group]
        return {place.partition: found.offset for place, found in kept.items()}

    python.alter_group_offsets(group, {p: OffsetAndMetadata(5, "moved", -1) for p in places})
    assert offsets() == {0: 5, 1: 5}
    python.reset_group_offsets(group, dict.fromkeys(places, kafka.admin.OffsetSpec.LATEST))
    assert offsets() == {0: 10, 1: 0}
    python.delete_group_offsets(group, places[1:])
    assert offsets() == {0: 10}


@pytest.mark.needs("ListTransactions", "DescribeTransactions", "DescribeProducers", "EndTxn")
def test_kafka_python_sees_transactions(python: Any, bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    with closing(BY_NAME["kafka-python"].writer(bootstrap, topic)) as writer:
        writer.begin()
        writer.send(topic, b"open", partition=0)
        writer.flush()
        assert topic in str(python.list_transactions())
        assert "Ongoing" in str(python.describe_transactions([topic]))
        place = kafka.TopicPartition(topic, 0)
        assert "producer_id" in str(python.describe_producers([place]))
        writer.commit()
    assert "Ongoing" not in str(python.describe_transactions([topic]))


@pytest.mark.needs("DeleteRecords")
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_reader_starts_where_the_records_were_deleted(
    client: Client, librdkafka: Any, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    write(client, bootstrap, topic, 10)
    done(librdkafka.delete_records([confluent_kafka.TopicPartition(topic, 0, 7)]))
    with closing(client.reader(bootstrap, Options())) as reader:
        reader.assign([Place(topic, 0)])
        records: list[Any] = []
        while len(records) < 3:
            records += reader.poll()
    assert [r.offset for r in records] == [7, 8, 9]
