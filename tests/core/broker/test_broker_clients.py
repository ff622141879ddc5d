"""Clients of others, unmodified: each produces, and consumes in a group."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.embedded import EmbeddedBroker

SETTINGS = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
COUNT = 1_000
VALUES = [b"value %d" % n for n in range(COUNT)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("clients"), overrides=SETTINGS) as broker:
        yield broker.bootstrap_servers
        assert not broker._stderr, list(broker._stderr)


@pytest.mark.parametrize(
    "compression",
    ["none", "lz4", *(pytest.param(c, marks=pytest.mark.slow) for c in ("gzip", "snappy", "zstd"))],
)
def test_confluent_kafka(address: str, compression: str) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    topic = f"confluent-{compression}"
    settings = {"bootstrap.servers": address, "compression.type": compression}
    producer = kafka.Producer({**settings, "enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    for reset, expected in (("earliest", VALUES), ("error", VALUES[600:])):
        consumer = kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": topic,
                "auto.offset.reset": reset,
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        found: list[bytes] = []
        while len(found) < len(expected):
            messages = consumer.consume(COUNT, 1.0)
            assert not [m.error() for m in messages if m.error()]
            found += [m.value() for m in messages]
        assert found == expected
        consumer.commit(offsets=[kafka.TopicPartition(topic, 0, 600)], asynchronous=False)
        consumer.close()


def test_confluent_kafka_admin(address: str) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    admin_module = pytest.importorskip("confluent_kafka.admin")
    admin = admin_module.AdminClient({"bootstrap.servers": address})
    new = admin_module.NewTopic("admin", 3, 1, config={"retention.ms": "5000"})
    assert admin.create_topics([new])["admin"].result() is None
    with pytest.raises(kafka.KafkaException, match="already exists"):
        admin.create_topics([new])["admin"].result()
    resource = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, "admin")
    configs = admin.describe_configs([resource])[resource].result()
    assert configs["retention.ms"].value == "5000"
    partition = kafka.TopicPartition("admin", 0)
    latest = {partition: admin_module.OffsetSpec.latest()}
    assert admin.list_offsets(latest)[partition].result().offset == 0
    assert len(admin.list_topics().topics["admin"].partitions) == 3
    assert admin.delete_topics(["admin"])["admin"].result() is None
    assert "admin" not in admin.list_topics().topics


def test_kafka_python(address: str) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type="gzip")
    sent = [producer.send("kafka-python", value, partition=0) for value in VALUES]
    assert [future.get(20).offset for future in sent] == list(range(COUNT))
    producer.close()
    consumer = kafka.KafkaConsumer(
        "kafka-python",
        bootstrap_servers=address,
        group_id="kafka-python",
        auto_offset_reset="earliest",
    )
    found: list[bytes] = []
    while len(found) < COUNT:
        found += [r.value for batch in consumer.poll(1_000).values() for r in batch]
    assert found == VALUES
    consumer.commit()
    (partition,) = consumer.assignment()
    assert consumer.committed(partition) == COUNT
    assert consumer.end_offsets([partition]) == {partition: COUNT}
    consumer.close()
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    assert "kafka-python" in [g["group_id"] for g in admin.list_groups()]
    assert admin.describe_cluster()["controller_id"] == 1
    admin.close()


@pytest.mark.slow
def test_aiokafka(address: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def story() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, compression_type="zstd"
        )
        consumers = [
            aiokafka.AIOKafkaConsumer(
                "aiokafka", bootstrap_servers=address, group_id="a", auto_offset_reset="earliest"
            )
            for _ in range(2)
        ]
        async with producer:
            for value in VALUES:
                await producer.send("aiokafka", value)
        async with consumers[0], consumers[1]:
            found: list[bytes] = []
            while len(found) < COUNT:
                for consumer in consumers:
                    for batch in (await consumer.getmany(timeout_ms=100)).values():
                        found += [record.value for record in batch]
            assert found == VALUES

    asyncio.run(story())


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(address: str) -> None:
    def kcat(*arguments: str, given: bytes = b"") -> bytes:
        command = ["kcat", "-b", address, "-q", *arguments]
        return subprocess.run(command, input=given, capture_output=True, timeout=60).stdout

    lines = b"".join(value + b"\n" for value in VALUES)
    kcat("-P", "-t", "kcat", "-z", "snappy", given=lines)
    assert kcat("-C", "-t", "kcat", "-o", "beginning", "-e") == lines
    assert kcat("-G", "kcat-group", "-o", "earliest", "-e", "kcat") == lines
    assert b'topic "kcat" with 1 partitions' in kcat("-L")


def test_it_is_ready_within_a_second(tmp_path: Path) -> None:
    """Not a measurement: the limit is ten times what it takes."""
    began = time.monotonic()
    with EmbeddedBroker(tmp_path):
        assert time.monotonic() - began < 5
