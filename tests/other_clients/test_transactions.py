"""Transactions with every client that has them: all of it is read or nothing, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

SECONDS_MAX = 30.0
KEPT = [b"kept %d" % i for i in range(40)]


def read_committed(bootstrap: str, topic: str, partitions: Iterable[int] = (0,)) -> list[bytes]:
    """All committed values that are there now, as confluent-kafka reads them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    start = confluent_kafka.OFFSET_BEGINNING
    places = [confluent_kafka.TopicPartition(topic, n, start) for n in partitions]
    consumer.assign(places)
    values: list[bytes] = []
    at_end: set[int] = set()
    while len(at_end) < len(places):
        (message,) = consumer.consume(1, SECONDS_MAX)
        if (error := message.error()) is None:
            values.append(message.value())
        else:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            at_end.add(message.partition())
    consumer.close()
    return values


# ---- confluent-kafka ---------------------------------------------------------------------------


def confluent(bootstrap: str, transactional_id: str, **config: Any) -> Any:
    settings = {"transactional.id": transactional_id, "log_level": 0, **config}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(SECONDS_MAX)
    return producer


def test_confluent_kafka_commits_and_aborts(
    bootstrap: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(3)
    producer = confluent(bootstrap, group)
    for number, value in enumerate(KEPT):
        producer.begin_transaction()
        producer.produce(topic, value, partition=number % 3)
        producer.produce(topic, b"twin of " + value, partition=(number + 1) % 3)
        producer.commit_transaction(SECONDS_MAX)
        producer.begin_transaction()
        producer.produce(topic, b"void", partition=number % 3)
        producer.flush(SECONDS_MAX)
        producer.abort_transaction(SECONDS_MAX)
    found = read_committed(bootstrap, topic, range(3))
    assert sorted(found) == sorted([*KEPT, *(b"twin of " + value for value in KEPT)])


def test_confluent_kafka_zombies_are_fenced(
    bootstrap: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(1)
    zombie = confluent(bootstrap, group)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    zombie.flush(SECONDS_MAX)
    heir = confluent(bootstrap, group)
    heir.begin_transaction()
    heir.produce(topic, b"heir", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        zombie.commit_transaction(SECONDS_MAX)
    assert raised.value.args[0].fatal()
    heir.commit_transaction(SECONDS_MAX)
    assert read_committed(bootstrap, topic) == [b"heir"]


def test_confluent_kafka_consumes_transforms_produces_once(
    bootstrap: str, make_topic: Callable[..., str], group: str
) -> None:
    """Offsets go with the output: what an aborted transaction consumed is consumed again."""
    source = make_topic(1)
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for value in KEPT:
        plain.produce(source, value, partition=0)
    assert plain.flush(SECONDS_MAX) == 0
    target = source + "-out"
    producer = confluent(bootstrap, group)
    quick = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    done = 0
    attempt = 0
    while done < len(KEPT):
        attempt += 1
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, **quick}
        )
        consumer.subscribe([source])
        producer.begin_transaction()
        messages = consumer.consume(len(KEPT) // 2, SECONDS_MAX)
        for message in messages:
            producer.produce(target, message.value().upper(), partition=0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()),
            consumer.consumer_group_metadata(),
            SECONDS_MAX,
        )
        if attempt % 2:
            producer.flush(SECONDS_MAX)
            producer.abort_transaction(SECONDS_MAX)
        else:
            producer.commit_transaction(SECONDS_MAX)
            done += len(messages)
        consumer.close()
    assert read_committed(bootstrap, target) == [value.upper() for value in KEPT]


# ---- aiokafka ----------------------------------------------------------------------------------


def test_aiokafka_commits_aborts_and_sends_offsets(
    bootstrap: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(1)
    place = aiokafka.TopicPartition(topic, 0)

    async def story() -> None:
        settings = {"bootstrap_servers": bootstrap, "transactional_id": group}
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in KEPT:
                async with producer.transaction():
                    await producer.send(topic, value, partition=0)
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"void", partition=0)
                await producer.send_offsets_to_transaction({place: 1}, group)
                await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({place: 7}, group)
            await producer.commit_transaction()
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=group
        )
        async with consumer, asyncio.timeout(SECONDS_MAX):
            consumer.assign([place])
            assert await consumer.committed(place) == 7
            consumer.seek(place, 0)
            assert [(await consumer.getone()).value for _ in KEPT] == KEPT
            assert await consumer.end_offsets([place]) == {place: 4 * len(KEPT)}

    asyncio.run(story())
    assert read_committed(bootstrap, topic) == KEPT


def test_aiokafka_zombies_are_fenced(
    bootstrap: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(1)

    async def story() -> None:
        settings = {"bootstrap_servers": bootstrap, "transactional_id": group}
        zombie = aiokafka.AIOKafkaProducer(**settings)
        await zombie.start()
        await zombie.begin_transaction()
        await zombie.send_and_wait(topic, b"zombie", partition=0)
        async with aiokafka.AIOKafkaProducer(**settings) as heir:
            async with heir.transaction():
                await heir.send(topic, b"heir", partition=0)
            with pytest.raises(aiokafka.errors.ProducerFenced):
                await zombie.commit_transaction()
        await zombie.stop()

    asyncio.run(story())
    assert read_committed(bootstrap, topic) == [b"heir"]


# ---- kafka-python ------------------------------------------------------------------------------


def test_kafka_python_commits_aborts_and_sends_offsets(
    bootstrap: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(1)
    place = kafka.TopicPartition(topic, 0)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
    producer.init_transactions()
    for value in KEPT:
        producer.begin_transaction()
        producer.send(topic, value, partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"void", partition=0).get(SECONDS_MAX)
        producer.abort_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({place: kafka.OffsetAndMetadata(7, "", -1)}, group)
    producer.commit_transaction()
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=group
    )
    consumer.assign([place])
    assert consumer.committed(place) == 7
    consumer.seek(place, 0)
    assert [next(consumer).value for _ in KEPT] == KEPT
    consumer.close()


# ---- kill -9 under load ------------------------------------------------------------------------


class Load:
    """Numbers, each written to all partitions in a transaction of its own."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str) -> None:
        patient = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
        self._topic = topic
        self._producer = confluent(bootstrap, transactional_id, **patient)
        self.committed: set[int] = set()
        self.enough = False

    def write_until_told(self) -> None:
        """One after the other."""
        for number in count(1):
            if self.enough:
                return
            self.write(number)

    def write(self, number: int) -> None:
        """One transaction; every fifth is aborted. Goes on until its end is known."""
        producer = self._producer
        producer.begin_transaction()
        delivered: list[Any] = []
        for partition in range(3):
            producer.produce(
                self._topic,
                b"%d" % number,
                partition=partition,
                on_delivery=lambda error, _: delivered.append(error),
            )
        if number % 5 == 0:
            # librdkafka also asks to abort what it does not know the coordinator to have heard of;
            # that is no transaction, and a fatal error for its producer.
            while not delivered:
                producer.poll(0.001)
            self._end(producer.abort_transaction)
        elif self._end(producer.commit_transaction):
            self.committed.add(number)
        else:
            self._end(producer.abort_transaction)

    def _end(self, end: Callable[[float], None]) -> bool:
        """False where the transaction must be aborted instead."""
        while True:
            try:
                end(SECONDS_MAX)
            except confluent_kafka.KafkaException as error:
                reason = error.args[0]
                if reason.txn_requires_abort():
                    return False
                assert reason.retriable(), reason
            else:
                return True


@pytest.mark.slow
def test_every_transaction_is_whole_through_kill_9(
    serve: Callable[..., Any], tmp_path: Path, topic: str
) -> None:
    random = Random(7)
    server = serve(tmp_path)
    client = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
    client.create_topics([NewTopic(topic, 3, 1)])[topic].result(SECONDS_MAX)
    load = Load(server.address, topic, "load")
    with ThreadPoolExecutor(1) as executor:
        written = executor.submit(load.write_until_told)
        try:
            for _ in range(5):
                enough = len(load.committed) + random.randrange(3, 60)
                while len(load.committed) < enough and not written.done():
                    sleep(0.001)
                server.kill()  # in the midst of one
                server = serve(tmp_path, server.address)
        finally:
            load.enough = True
        written.result(SECONDS_MAX)
    assert len(load.committed) > 15
    for partition in range(3):
        found = read_committed(server.address, topic, [partition])
        assert [int(value) for value in found] == sorted(load.committed)
    assert "Traceback" not in server.stderr
    assert server.stop() == 0
