"""confluent-kafka (librdkafka) against our broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
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

SECONDS_MAX = 30.0
EPOCH_MS = 1_700_000_000_000


def produce(bootstrap: str, topic: str, records: Iterable[dict[str, Any]], **config: Any) -> list:
    """Produces and waits for all; what the broker acknowledged, in the order of the answers."""
    acknowledged: list[Message] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, **config})
    for record in records:
        producer.produce(topic, on_delivery=delivered, **record)
    assert producer.flush(SECONDS_MAX) == 0
    return acknowledged


def consumer_of(bootstrap: str, group: str = "nobody", **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 10_000,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )


def take(consumers: list[Consumer], until: Callable[[list[Message]], bool]) -> list[Message]:
    """Polls all in turn until what they got is enough."""
    got: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while not until(got):
        assert time.monotonic() < deadline, f"{len(got)} messages after {SECONDS_MAX:g} s"
        for consumer in consumers:
            for message in consumer.consume(500, 0.05):
                assert message.error() is None, message.error()
                got.append(message)
    return got


def read_all(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Message]:
    consumer = consumer_of(bootstrap)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        return take([consumer], lambda got: len(got) >= count)
    finally:
        consumer.close()


def places(messages: Iterable[Message]) -> list[tuple[int, int]]:
    return sorted((message.partition(), message.offset()) for message in messages)


@pytest.mark.parametrize("idempotent", [False, True])
def test_what_is_produced_with_defaults_is_consumed(
    bootstrap: str, topic: str, group: str, idempotent: bool
) -> None:
    records = [{"key": b"%d" % (i % 7), "value": b"value %d" % i} for i in range(1_000)]
    acknowledged = produce(bootstrap, topic, records, **{"enable.idempotence": idempotent})
    assert places(acknowledged) == [(0, i) for i in range(1_000)]

    consumer = consumer_of(bootstrap, group)
    consumer.subscribe([topic])
    messages = take([consumer], lambda got: len(got) >= 1_000)
    consumer.close()
    assert [{"key": m.key(), "value": m.value()} for m in messages] == records
    assert [m.offset() for m in messages] == list(range(1_000))


def test_nulls_headers_and_timestamps_arrive_as_they_were_sent(bootstrap: str, topic: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("null", None), ("empty", b""), ("ü", "é".encode())]
    records: list[dict[str, Any]] = [
        {"key": b"k", "value": b"v", "timestamp": EPOCH_MS},
        {"key": None, "value": b"no key", "timestamp": EPOCH_MS + 10},
        {"key": b"tombstone", "value": None, "timestamp": EPOCH_MS - 10},  # time may go back
        {"key": None, "value": None, "timestamp": EPOCH_MS},
        {"key": b"", "value": b"", "timestamp": EPOCH_MS},
        {"key": b"h", "value": b"v", "timestamp": EPOCH_MS, "headers": headers},
        {"key": b"large", "value": bytes(range(256)) * 3_500, "timestamp": EPOCH_MS},
    ]
    produce(bootstrap, topic, records, **{"linger.ms": 50})
    read = [
        {
            "key": m.key(),
            "value": m.value(),
            "timestamp": m.timestamp()[1],
            **({"headers": m.headers()} if m.headers() else {}),
        }
        for m in read_all(bootstrap, topic, len(records))
    ]
    assert read == records


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_kept_as_they_came(
    bootstrap: str, topic: str, codec: str, codecs_on_disk: Callable[[str], set[str]]
) -> None:
    records = [{"value": b"the same again and again %d" % i} for i in range(500)]
    produce(bootstrap, topic, records, **{"compression.type": codec, "linger.ms": 50})
    found = codecs_on_disk(topic)  # librdkafka leaves a batch as it is where a codec gains nothing
    assert codec in found <= {codec, "none"}
    assert [m.value() for m in read_all(bootstrap, topic, 500)] == [r["value"] for r in records]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(bootstrap: str, topic: str, acks: object) -> None:
    produce(bootstrap, topic, [{"value": b"made"}])
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(20)], acks=acks)
    assert [m.value() for m in read_all(bootstrap, topic, 21)][1:] == [b"%d" % i for i in range(20)]


def test_two_members_share_a_topic_and_no_record_is_seen_twice(
    bootstrap: str, make_topic: Callable[[int], str], group: str
) -> None:
    topic = make_topic(4)

    def send(count: int) -> None:
        records = ({"value": b"", "partition": i % 4} for i in range(count))
        produce(bootstrap, topic, records)

    send(40)
    first, second = consumer_of(bootstrap, group), consumer_of(bootstrap, group)
    first.subscribe([topic])
    got = take([first], lambda got: len(got) >= 40)
    assert len(first.assignment()) == 4

    second.subscribe([topic])
    both = [first, second]
    got += take(both, lambda _: [len(c.assignment()) for c in both] == [2, 2])
    send(200)
    got += take(both, lambda more: len(more) >= 200)

    second.close()
    got += take([first], lambda _: len(first.assignment()) == 4)
    send(40)
    got += take([first], lambda more: len(more) >= 40)
    first.close()
    assert places(got) == [(p, offset) for p in range(4) for offset in range(70)]


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_other_assignors(
    bootstrap: str, make_topic: Callable[[int], str], group: str, strategy: str
) -> None:
    topic = make_topic(4)
    config = {"partition_assignment_strategy": strategy}
    both = [consumer_of(bootstrap, group, **config) for _ in range(2)]
    for consumer in both:
        consumer.subscribe([topic])
    take(both, lambda _: [len(c.assignment()) for c in both] == [2, 2])
    produce(bootstrap, topic, [{"value": b"", "partition": i % 4} for i in range(40)])
    got = take(both, lambda got: len(got) >= 40)
    for consumer in both:
        consumer.close()
    assert places(got) == [(p, offset) for p in range(4) for offset in range(10)]


def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str, group: str) -> None:
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(10)])
    first = consumer_of(bootstrap, group, enable_auto_commit=False)
    first.subscribe([topic])
    take([first], lambda got: len(got) >= 10)
    (done,) = first.commit(offsets=[TopicPartition(topic, 0, 4, "half of it")], asynchronous=False)
    assert done.error is None
    (kept,) = first.committed([TopicPartition(topic, 0)], timeout=SECONDS_MAX)
    assert (kept.offset, kept.metadata) == (4, "half of it")
    first.close()

    second = consumer_of(bootstrap, group)
    second.subscribe([topic])
    messages = take([second], lambda got: len(got) >= 6)
    second.close()
    assert [m.offset() for m in messages] == [4, 5, 6, 7, 8, 9]


def test_seek_and_watermarks(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(10)])
    consumer = consumer_of(bootstrap)
    consumer.assign([TopicPartition(topic, 0, 8)])
    assert [m.offset() for m in take([consumer], lambda got: len(got) >= 2)] == [8, 9]
    consumer.seek(TopicPartition(topic, 0, 3))
    assert [m.offset() for m in take([consumer], lambda got: len(got) >= 7)] == [*range(3, 10)]
    low_and_high = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS_MAX)
    assert low_and_high == (0, 10)
    consumer.close()


def test_an_offset_out_of_range_is_reset_or_told(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [{"value": b"only"}])
    consumer = consumer_of(bootstrap)
    consumer.assign([TopicPartition(topic, 0, 100)])
    assert [m.offset() for m in take([consumer], lambda got: bool(got))] == [0]
    consumer.close()

    strict = consumer_of(bootstrap, auto_offset_reset="error")
    strict.assign([TopicPartition(topic, 0, 100)])
    (message,) = strict.consume(1, SECONDS_MAX)
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    strict.close()


def test_offsets_for_times(bootstrap: str, topic: str) -> None:
    produce(
        bootstrap, topic, [{"value": b"", "timestamp": EPOCH_MS + 1_000 * i} for i in range(10)]
    )
    consumer = consumer_of(bootstrap)
    asked = [EPOCH_MS - 5, EPOCH_MS + 4_000, EPOCH_MS + 4_001, EPOCH_MS + 9_001]
    found = [
        consumer.offsets_for_times([TopicPartition(topic, 0, ms)], SECONDS_MAX)[0].offset
        for ms in asked
    ]
    consumer.close()
    assert found == [0, 4, 5, confluent_kafka.OFFSET_END]


def test_topics_are_created_described_and_deleted(
    bootstrap: str, topic: str, settle: Callable[[], None]
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
    wait_for(admin.create_topics([NewTopic(topic, 3, 1, config=config)]))
    with pytest.raises(KafkaException) as refused:
        wait_for(admin.create_topics([NewTopic(topic, 3, 1)]))
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    settle()
    described = admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2]
    assert described.error is None

    resource = ConfigResource(ResourceType.TOPIC, topic)
    (entries,) = wait_for(admin.describe_configs([resource]))
    told = {name: (entry.value, entry.is_default) for name, entry in entries.items()}
    assert told["cleanup.policy"] == ("compact", False)
    assert told["segment.bytes"] == ("1048576", False)
    assert told["retention.ms"] == ("604800000", True)

    wait_for(admin.delete_topics([topic]))
    settle()
    assert topic not in admin.list_topics(timeout=SECONDS_MAX).topics
    with pytest.raises(KafkaException) as refused:
        wait_for(admin.delete_topics([topic]))
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def wait_for(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(SECONDS_MAX) for future in futures.values()]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (NewTopic("a/b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("too-many-replicas", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("no-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("unknown-key", 1, 1, config={"no.such": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("bad-value", 1, 1, config={"retention.ms": "x"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic if isinstance(value, NewTopic) else "",
)
def test_topics_that_cannot_be(bootstrap: str, wrong: NewTopic, code: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with pytest.raises(KafkaException) as refused:
        wait_for(admin.create_topics([wrong]))
    assert refused.value.args[0].code() == code
    assert wrong.topic not in admin.list_topics(timeout=SECONDS_MAX).topics


def test_the_brokers_settings_can_be_read(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (node_id,) = admin.list_topics(timeout=SECONDS_MAX).brokers
    resource = ConfigResource(ResourceType.BROKER, str(node_id))
    (entries,) = wait_for(admin.describe_configs([resource]))
    assert entries["group.initial.rebalance.delay.ms"].value == "0"
    assert not entries["group.initial.rebalance.delay.ms"].is_default
    assert entries["num.partitions"].value == "1"


def test_groups_are_listed_described_and_deleted(bootstrap: str, topic: str, group: str) -> None:
    produce(bootstrap, topic, [{"value": b"1"}])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    consumer = consumer_of(bootstrap, group)
    consumer.subscribe([topic])
    take([consumer], lambda got: len(got) >= 1)
    consumer.commit(asynchronous=False)

    (described,) = wait_for(admin.describe_consumer_groups([group]))
    assert described.state.name == "STABLE"
    (member,) = described.members
    assert [(p.topic, p.partition) for p in member.assignment.topic_partitions] == [(topic, 0)]
    with pytest.raises(KafkaException) as refused:
        wait_for(admin.delete_consumer_groups([group]))
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    consumer.close()

    (found,) = wait_for(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert [(p.topic, p.offset) for p in found.topic_partitions] == [(topic, 1)]
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    assert group in {entry.group_id for entry in listed.valid}
    wait_for(admin.delete_consumer_groups([group]))
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    assert group not in {entry.group_id for entry in listed.valid}


def test_a_message_that_is_too_large_is_refused_and_the_next_is_not(
    bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1, {"max.message.bytes": "1000"})
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1})
    for size in (10, 2_000, 20):
        producer.produce(topic, bytes(size), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    codes = [error and error.code() for error in errors]
    assert sorted(codes, key=bool) == [None, None, KafkaError.MSG_SIZE_TOO_LARGE]
    assert [len(m.value()) for m in read_all(bootstrap, topic, 2)] == [10, 20]


def test_a_compacted_topic_wants_keys(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1, {"cleanup.policy": "compact"})
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"no key", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    (error,) = errors
    assert error is not None
    assert error.code() == KafkaError.INVALID_RECORD
