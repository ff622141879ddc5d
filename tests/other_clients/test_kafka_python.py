"""kafka-python against our broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import kafka
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import (
    InvalidTopicError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
)
from kafka.structs import OffsetAndMetadata

SECONDS_MAX = 30.0
EPOCH_MS = 1_700_000_000_000


def produce(bootstrap: str, topic: str, records: Iterable[dict[str, Any]], **config: Any) -> list:
    """Produces, waits for all, and returns their places in order."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap, **config)) as producer:
        futures = [producer.send(topic, **record) for record in records]
        producer.flush(SECONDS_MAX)
        return [future.get(SECONDS_MAX) for future in futures]


def consumer_of(bootstrap: str, *topics: str, **config: Any) -> KafkaConsumer:
    quick = {"heartbeat_interval_ms": 100, "auto_offset_reset": "earliest"}
    return KafkaConsumer(*topics, bootstrap_servers=bootstrap, **{**quick, **config})


def take(consumer: KafkaConsumer, count: int) -> list[Any]:
    """Polls until there are so many messages.

    Long polls: one that ends just as a join completes makes kafka-python 3.0 lose its assignment.
    """
    got: list[Any] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} messages after {SECONDS_MAX:g} s"
        for messages in consumer.poll(timeout_ms=1_000).values():
            got += messages
    return got


def read_all(bootstrap: str, topic: str, count: int) -> list[Any]:
    with closing(consumer_of(bootstrap)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        return take(consumer, count)


@pytest.mark.parametrize("idempotent", [False, True])
def test_what_is_produced_with_defaults_is_consumed(
    bootstrap: str, topic: str, group: str, idempotent: bool
) -> None:
    records = [{"key": b"%d" % (i % 7), "value": b"value %d" % i} for i in range(500)]
    acknowledged = produce(bootstrap, topic, records, enable_idempotence=idempotent)
    assert [(m.partition, m.offset) for m in acknowledged] == [(0, i) for i in range(500)]
    with closing(consumer_of(bootstrap, topic, group_id=group)) as consumer:
        messages = take(consumer, 500)
    assert [{"key": m.key, "value": m.value} for m in messages] == records
    assert [m.offset for m in messages] == list(range(500))


def test_nulls_headers_and_timestamps_arrive_as_they_were_sent(bootstrap: str, topic: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("ü", "é".encode())]
    records: list[dict[str, Any]] = [
        {"key": b"k", "value": b"v", "timestamp_ms": EPOCH_MS},
        {"key": None, "value": b"no key", "timestamp_ms": EPOCH_MS + 10},
        {"key": b"tombstone", "value": None, "timestamp_ms": EPOCH_MS - 10},
        {"key": b"", "value": b"", "timestamp_ms": EPOCH_MS},
        {"key": b"h", "value": b"v", "timestamp_ms": EPOCH_MS, "headers": headers},
        {"key": b"large", "value": bytes(range(256)) * 3_500, "timestamp_ms": EPOCH_MS},
    ]
    produce(bootstrap, topic, records, linger_ms=50)
    read = [
        {
            "key": m.key,
            "value": m.value,
            "timestamp_ms": m.timestamp,
            **({"headers": list(m.headers)} if m.headers else {}),
        }
        for m in read_all(bootstrap, topic, len(records))
    ]
    assert read == records


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_kept_as_they_came(
    bootstrap: str, topic: str, codec: str | None, codecs_on_disk: Callable[[str], set[str]]
) -> None:
    records = [{"value": b"the same again and again %d" % i} for i in range(500)]
    produce(bootstrap, topic, records, compression_type=codec, linger_ms=50)
    assert [m.value for m in read_all(bootstrap, topic, 500)] == [r["value"] for r in records]
    assert codecs_on_disk(topic) == {codec or "none"}


@pytest.mark.parametrize("acks", [1, "all"])
def test_every_kind_of_acknowledgement(bootstrap: str, topic: str, acks: Any) -> None:
    """But acks=0, which makes kafka-python report success and send nothing."""
    config = {"acks": acks, "enable_idempotence": False}
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(20)], **config)
    assert [m.value for m in read_all(bootstrap, topic, 20)] == [b"%d" % i for i in range(20)]


class Member(kafka.ConsumerRebalanceListener):
    """A member of a group in a thread of its own, which tells `news` what it was given."""

    def __init__(self, consumer: KafkaConsumer, topic: str, news: threading.Condition) -> None:
        self.assigned = 0
        self.got: list[tuple[int, int]] = []
        self._consumer, self._news, self._is_over = consumer, news, False
        consumer.subscribe([topic], listener=self)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with closing(self._consumer):
            while not self._is_over:
                batches = self._consumer.poll(timeout_ms=1_000).values()
                with self._news:
                    self.got += [(m.partition, m.offset) for batch in batches for m in batch]
                    self._news.notify_all()

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        with self._news:
            self.assigned = len(assigned)
            self._news.notify_all()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()


@pytest.mark.slow
def test_two_members_share_a_topic_and_no_record_is_seen_twice(
    bootstrap: str, make_topic: Callable[[int], str], group: str
) -> None:
    topic = make_topic(4)
    news = threading.Condition()

    def send(count: int) -> None:
        produce(bootstrap, topic, [{"value": b"", "partition": i % 4} for i in range(count)])

    def until(condition: Callable[[], bool]) -> None:
        with news:
            assert news.wait_for(condition, SECONDS_MAX)

    send(40)
    with closing(Member(consumer_of(bootstrap, group_id=group), topic, news)) as first:
        until(lambda: len(first.got) == 40)
        with closing(Member(consumer_of(bootstrap, group_id=group), topic, news)) as second:
            until(lambda: first.assigned == second.assigned == 2)
            send(200)
            until(lambda: len(first.got) + len(second.got) >= 240)
        until(lambda: first.assigned == 4)
        send(40)
        until(lambda: len(first.got) + len(second.got) >= 280)
    got = sorted(first.got + second.got)
    assert got == [(p, offset) for p in range(4) for offset in range(70)]


def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str, group: str) -> None:
    where = TopicPartition(topic, 0)
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(10)])
    config = {"group_id": group, "enable_auto_commit": False}
    with closing(consumer_of(bootstrap, topic, **config)) as first:
        take(first, 10)
        first.commit({where: OffsetAndMetadata(4, "half of it", -1)})
        kept = first.committed(where, metadata=True)
        assert (kept.offset, kept.metadata) == (4, "half of it")
    with closing(consumer_of(bootstrap, topic, **config)) as second:
        messages = take(second, 6)
    assert [m.offset for m in messages] == [4, 5, 6, 7, 8, 9]


def test_seek_and_the_ends_of_the_log(bootstrap: str, topic: str) -> None:
    where = TopicPartition(topic, 0)
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(10)])
    with closing(consumer_of(bootstrap)) as consumer:
        consumer.assign([where])
        consumer.seek(where, 8)
        assert [m.offset for m in take(consumer, 2)] == [8, 9]
        consumer.seek(where, 3)
        assert [m.offset for m in take(consumer, 7)] == [*range(3, 10)]
        assert consumer.position(where) == 10
        assert consumer.beginning_offsets([where]) == {where: 0}
        assert consumer.end_offsets([where]) == {where: 10}


def test_an_offset_out_of_range_is_told(bootstrap: str, topic: str) -> None:
    where = TopicPartition(topic, 0)
    produce(bootstrap, topic, [{"value": b"only"}])
    with closing(consumer_of(bootstrap, auto_offset_reset="none")) as consumer:
        consumer.assign([where])
        consumer.seek(where, 100)
        with pytest.raises(OffsetOutOfRangeError):
            take(consumer, 1)


def test_offsets_for_times(bootstrap: str, topic: str) -> None:
    where = TopicPartition(topic, 0)
    produce(
        bootstrap, topic, [{"value": b"", "timestamp_ms": EPOCH_MS + 1_000 * i} for i in range(10)]
    )
    with closing(consumer_of(bootstrap)) as consumer:
        asked = [EPOCH_MS - 5, EPOCH_MS + 4_000, EPOCH_MS + 4_001, EPOCH_MS + 9_001]
        answers = [consumer.offsets_for_times({where: ms})[where] for ms in asked]
    found = [answer and (answer.offset, answer.timestamp - EPOCH_MS) for answer in answers]
    assert found == [(0, 0), (4, 4_000), (5, 5_000), None]


def test_topics_are_created_described_and_deleted(
    bootstrap: str, topic: str, settle: Callable[[], None]
) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        config = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
        admin.create_topics([NewTopic(topic, 3, 1, topic_configs=config)])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic(topic, 3, 1)])
        with pytest.raises(InvalidTopicError):
            admin.create_topics([NewTopic("a/b", 3, 1)])

        settle()
        (described,) = admin.describe_topics([topic])
        assert sorted(p["partition_index"] for p in described["partitions"]) == [0, 1, 2]

        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        told = admin.describe_configs([resource], config_filter="all")["topic"][topic]
        assert told["cleanup.policy"]["value"] == "compact"
        assert told["segment.bytes"]["value"] == "1048576"
        assert told["retention.ms"]["value"] == "604800000"

        admin.delete_topics([topic])
        settle()
        assert topic not in admin.list_topics()


def test_the_cluster_and_the_brokers_settings_can_be_read(bootstrap: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        (node,) = admin.describe_cluster()["brokers"]
        assert f"{node['host']}:{node['port']}" == bootstrap
        node_id = str(node["broker_id"])
        resource = ConfigResource(ConfigResourceType.BROKER, node_id)
        told = admin.describe_configs([resource], config_filter="all")["broker"][node_id]
        assert told["group.initial.rebalance.delay.ms"]["value"] == "0"


def test_groups_are_listed_described_and_deleted(bootstrap: str, topic: str, group: str) -> None:
    produce(bootstrap, topic, [{"value": b"1"}])
    where = TopicPartition(topic, 0)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        with closing(consumer_of(bootstrap, topic, group_id=group)) as consumer:
            take(consumer, 1)
            consumer.commit()
            described = admin.describe_groups([group])[group]
            assert described["group_state"] == "Stable"
            assert len(described["members"]) == 1
        assert group in {listed["group_id"] for listed in admin.list_groups()}
        offsets = admin.list_group_offsets([group])[group]
        assert {place: found.offset for place, found in offsets.items()} == {where: 1}
        assert admin.delete_groups([group]) == {group: "OK"}
        assert group not in {listed["group_id"] for listed in admin.list_groups()}


def test_a_message_that_is_too_large_is_refused(
    bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1, {"max.message.bytes": "1000"})
    with pytest.raises(MessageSizeTooLargeError):
        produce(bootstrap, topic, [{"value": bytes(2_000)}])
    (place,) = produce(bootstrap, topic, [{"value": bytes(20)}])
    assert place.offset == 0
