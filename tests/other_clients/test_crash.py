"""A broker that is killed: what it acknowledged is there, once, in order; and one that is asked."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kafkalite.clients.producer.producer import Producer as OurProducer
from kafkalite.core.types import Columns

SECONDS_MAX = 60.0
PARTITIONS = 4
RECORDS_PER_ROUND = 20_000
KILLS = 8
FULL = "No space left on device"
# Small segments, so that a crash finds several; a small index interval, so that they have entries.
SEGMENTS = {"segment.bytes": "65536", "index.interval.bytes": "1024"}
# A broker that is gone is asked again soon, and silently.
PATIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}


class Load:
    """An idempotent producer under acks=all, and what it was told."""

    def __init__(self, bootstrap: str, topic: str, padding: int = 0) -> None:
        self._padding = b" " * padding
        config = {"enable.idempotence": True, "message.timeout.ms": 120_000, "linger.ms": 1}
        config["queue.buffering.max.messages"] = 1_000_000  # more than any test sends
        self.acknowledged: dict[int, tuple[int, int]] = {}  # record -> partition, offset
        self.sent = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, **PATIENT, **config})

    def send(self) -> None:
        """The next record, a number; records go to the partitions in turn."""
        number = self.sent
        self._producer.produce(
            self._topic,
            b"%d" % number + self._padding,
            partition=number % PARTITIONS,
            on_delivery=self._delivered,
        )
        self.sent += 1
        self._producer.poll(0)

    def wait(self) -> None:
        """Until everything that was sent is acknowledged."""
        assert self._producer.flush(SECONDS_MAX) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        number = int(message.value())
        assert number not in self.acknowledged
        self.acknowledged[number] = (message.partition(), message.offset())


def consumer_of(bootstrap: str, group: str = "nobody") -> Consumer:
    config = {"enable.auto.commit": False, "group.id": group, "fetch.wait.max.ms": 10}
    return Consumer({"bootstrap.servers": bootstrap, **PATIENT, **config})


def read_to_the_end(bootstrap: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Every partition's (offset, record), in the order in which they came."""
    consumer = consumer_of(bootstrap)
    places = [TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)]
    ends = {p.partition: consumer.get_watermark_offsets(p, SECONDS_MAX)[1] for p in places}
    consumer.assign(places)
    read: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _ in range(sum(ends.values())):
        (message,) = consumer.consume(1, SECONDS_MAX)
        assert message.error() is None, message.error()
        read[message.partition()].append((message.offset(), int(message.value())))
    consumer.close()
    return read


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    consumer = consumer_of(bootstrap, group)
    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    offsets = [place.offset for place in consumer.committed(places, SECONDS_MAX)]
    consumer.close()
    return offsets


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = consumer_of(bootstrap, group)
    places = [TopicPartition(topic, index, offset + index) for index in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def create_topic(bootstrap: str, topic: str, more: Mapping[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, PARTITIONS, 1, config={**SEGMENTS, **(more or {})})
    admin.create_topics([new])[topic].result(SECONDS_MAX)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(SECONDS_MAX)


def topic_ids(bootstrap: str) -> dict[str, str]:
    """Topics and their ids, but for those that the broker makes for itself."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [name for name in admin.list_topics(timeout=SECONDS_MAX).topics if name[0] != "_"]
    described = admin.describe_topics(confluent_kafka.TopicCollection(names))
    return {name: str(future.result(SECONDS_MAX).topic_id) for name, future in described.items()}


def segment_bytes_of(bootstrap: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource]).values()
    value: str = future.result(SECONDS_MAX)["segment.bytes"].value
    return value


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1])
def test_what_was_acknowledged_survives_kill_9_once_and_in_order(
    serve: Callable[..., Any], tmp_path: Path, topic: str, group: str, seed: int
) -> None:
    random = Random(seed)
    server = serve(tmp_path)
    address = server.address
    create_topic(address, topic)
    create_topic(address, "short-lived")
    ids = topic_ids(address)
    load = Load(address, topic)
    for round_number in range(KILLS):
        commit(address, group, topic, 100 * round_number)
        if round_number == 1:
            delete_topic(address, "short-lived")
            del ids["short-lived"]
        enough = len(load.acknowledged) + random.randrange(1, RECORDS_PER_ROUND // 2)
        while len(load.acknowledged) < enough:  # the kill hits in the midst of it
            load.send()
        server.kill()
        for _ in range(RECORDS_PER_ROUND // 20):
            load.send()
        server = serve(tmp_path, address)
        load.wait()
        assert committed(address, group, topic) == [100 * round_number + i for i in range(4)]
        assert topic_ids(address) == ids
        assert segment_bytes_of(address, topic) == SEGMENTS["segment.bytes"]

    assert len(load.acknowledged) == load.sent
    check(read_to_the_end(address, topic), load)
    assert "Traceback" not in server.stderr
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flush_messages", ["9223372036854775807", "100"])
def test_our_producer_loses_and_repeats_nothing_under_kill_9(
    serve: Callable[..., Any], tmp_path: Path, topic: str, flush_messages: str
) -> None:
    """Records are columns sent without a pause; the last word is what a flush said."""
    random = Random(3)
    server = serve(tmp_path)
    create_topic(server.address, topic, {"flush.messages": flush_messages})
    address, sent, flushed = server.address, 0, 0

    async def load(enough: asyncio.Event, stop: asyncio.Event) -> None:
        nonlocal sent, flushed
        async with OurProducer(address, linger_ms=1, batch_bytes=2_000) as producer:
            while not stop.is_set():
                values: list[bytes | None] = [b"%d" % (sent + i) for i in range(40)]
                columns = Columns([None] * 40, values, [1_000 + sent] * 40)
                await producer.send_columns(
                    topic, columns, partitions=[(sent + i) % PARTITIONS for i in range(40)]
                )
                sent += 40
                if sent % 2_000 == 0:
                    await producer.flush()
                    flushed = sent
                    enough.set()
            await producer.flush()
            flushed = sent

    async def story() -> None:
        nonlocal server
        enough, stop = asyncio.Event(), asyncio.Event()
        loading = asyncio.create_task(load(enough, stop))
        for _ in range(KILLS):
            enough.clear()
            await enough.wait()
            await asyncio.sleep(random.random() / 20)
            server.kill()
            assert not loading.done(), loading
            server = await asyncio.to_thread(serve, tmp_path, address)
        stop.set()
        await loading

    asyncio.run(story())
    assert flushed == sent
    read = read_to_the_end(address, topic)
    for partition, records in read.items():
        assert [offset for offset, _ in records] == list(range(len(records)))
        assert [number for _, number in records] == list(range(partition, sent, PARTITIONS))
    assert "Traceback" not in server.stderr
    assert server.stop() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(where)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes root")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_disk_and_kill_9_on_it_lose_nothing(
    serve: Callable[..., Any], small_disk: Path, topic: str, group: str
) -> None:
    """The disk fills up under load, the broker is killed and started on it, and room is made."""
    server = serve(small_disk / "data")
    address = server.address
    create_topic(address, topic, {"segment.bytes": "2097152"})
    commit(address, group, topic, 7)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(12 << 20))
    load = Load(address, topic, padding=200)
    for _ in range(120_000):  # more than fits
        load.send()
        if FULL in server.stderr:
            break
    until = monotonic() + SECONDS_MAX
    while FULL not in server.stderr:
        assert monotonic() < until, server.stderr
        sleep(0.01)
    server.kill()
    server = serve(small_disk / "data", address)
    filler.unlink()
    load.wait()
    assert len(load.acknowledged) == load.sent
    check(read_to_the_end(address, topic), load)
    assert committed(address, group, topic) == [7, 8, 9, 10]
    assert "Traceback" not in server.stderr
    assert server.stop() == 0


def check(read: dict[int, list[tuple[int, int]]], load: Load) -> None:
    """Dense offsets, every record once and where it was acknowledged, in the order sent."""
    for partition, records in read.items():
        assert [offset for offset, _ in records] == list(range(len(records)))
        assert [number for _, number in records] == list(range(partition, load.sent, PARTITIONS))
    found = {
        number: (partition, offset)
        for partition, records in read.items()
        for offset, number in records
    }
    for number, place in load.acknowledged.items():
        if place[1] >= 0:  # a resent batch is acknowledged without an offset if it is an old one
            assert found[number] == place


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_is_asked_to_stop_ends_with_0_and_loses_nothing(
    serve: Callable[..., Any], tmp_path: Path, topic: str, group: str, signal_number: int
) -> None:
    server = serve(tmp_path)
    create_topic(server.address, topic)
    load = Load(server.address, topic)
    for _ in range(400):
        load.send()
    load.wait()
    commit(server.address, group, topic, 7)
    waiting = consumer_of(server.address)  # its fetch waits at the broker meanwhile
    waiting.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert len(waiting.consume(100, SECONDS_MAX)) == 100
    ids = topic_ids(server.address)
    assert server.stop(signal_number) == 0
    assert "Traceback" not in server.stderr
    assert "WARNING" not in server.stderr

    again = serve(tmp_path, server.address)
    check(read_to_the_end(again.address, topic), load)
    assert committed(again.address, group, topic) == [7, 8, 9, 10]
    assert committed(again.address, "another group", topic) == [OFFSET_INVALID] * PARTITIONS
    assert topic_ids(again.address) == ids
    load.send()  # the same producer, in sequence
    load.wait()
    assert load.acknowledged[400] == (0, 100)
    waiting.close()
    assert again.stop() == 0
