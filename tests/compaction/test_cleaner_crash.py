"""Kill -9, again and again, while the cleaner is at work and an idempotent producer writes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka as confluent
import pytest

from kafkalite.embedded import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROUNDS, KEYS = 8, 200
SETTINGS = {
    "log.cleaner.backoff.ms": "10",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleanup.policy": "compact",
    "log.segment.bytes": "40000",
    "log.cleaner.delete.retention.ms": "200",
    "num.partitions": "1",
}
PATIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}


def read_all(address: str) -> list[tuple[int, bytes, Any]]:
    consumer = confluent.Consumer(
        {"bootstrap.servers": address, "group.id": "x", "enable.partition.eof": True} | PATIENT
    )
    consumer.assign([confluent.TopicPartition("state", 0, 0)])
    rows = []
    while True:
        message = consumer.poll(60)
        assert message is not None, "nothing came"
        if message.error():
            assert message.error().code() == confluent.KafkaError._PARTITION_EOF, message.error()
            break
        rows.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


def test_a_killed_broker_has_the_latest_of_every_key(tmp_path: Path) -> None:
    random = Random(5)
    broker = EmbeddedBroker(tmp_path, overrides=SETTINGS)
    address = broker.bootstrap_servers
    producer = confluent.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1,
         "batch.num.messages": 20, "message.timeout.ms": 120_000} | PATIENT
    )  # fmt: skip
    failed: list[Any] = []
    state: dict[bytes, Any] = {}
    sent = 0
    for _ in range(ROUNDS):
        die_at = time.monotonic() + random.uniform(0.3, 1.2)
        while time.monotonic() < die_at:
            key = b"%d" % random.randrange(KEYS)
            state[key] = None if random.random() < 0.05 else b"%d " % sent * 20
            producer.produce(
                "state", state[key], key, on_delivery=lambda e, _: failed.append(e) if e else None
            )
            sent += 1
            if len(producer) > 2_000:
                producer.poll(0.05)
            producer.poll(0)
        os.kill(broker.pid, signal.SIGKILL)
        broker.close()
        broker = EmbeddedBroker(tmp_path, listen=address, overrides=SETTINGS)
    assert producer.flush(60) == 0
    assert failed == []
    found = read_all(address)
    while len(found) >= sent / 2:  # the cleaner has not got so far yet
        found = read_all(address)
    broker.close()
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    latest = {key: value for _, key, value in found}
    wanted = {key: value for key, value in state.items() if value is not None}
    assert {key: value for key, value in latest.items() if value is not None} == wanted
