"""What a type checker makes of the public clients; `test_public_names` has mypy read it.

A line that must be refused says how it is refused: mypy also complains of an ignore without need.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import assert_type

from kafkalite import clients
from kafkalite.clients import (
    Columns,
    GroupMetadata,
    NewTopic,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from kafkalite.clients.sync import Admin, Consumer, Producer, TransactionalProducer

PLACE = TopicPartition("t", 0)


def admin() -> None:
    with Admin("127.0.0.1:9092", client_id="mine") as admin:
        assert_type(admin, Admin)
        assert_type(admin.list_topics(), list[str])
        assert_type(admin.create_topics([NewTopic("t")], validate_only=True), None)
        assert_type(admin.create_missing_topics([NewTopic("t")]), set[str])
        assert_type(admin.client, clients.Client)
        admin.create_topics(["t"])  # type: ignore[list-item]
        admin.list_topic()  # type: ignore[attr-defined]
    Admin(9092)  # type: ignore[arg-type]


def producers() -> None:
    with Producer("127.0.0.1:9092", acks=1) as producer:
        assert_type(producer.send("t", b"v", key=b"k"), Future[RecordMetadata])
        assert_type(producer.buffered_bytes, int)
        producer.send("t", "v")  # type: ignore[arg-type]
    Producer("127.0.0.1:9092", acks=2)  # type: ignore[arg-type]
    with TransactionalProducer("127.0.0.1:9092", "x", linger_ms=5) as producer:
        with producer.transaction():
            assert_type(producer.send_columns("t", Columns([], [], [])), None)
        producer.send_offsets({PLACE: 17}, GroupMetadata("g"))
        producer.close(flush=False)
    TransactionalProducer("127.0.0.1:9092", "x", acks=1)  # type: ignore[call-arg]


def consumer() -> None:
    with Consumer("127.0.0.1:9092", group_id="g") as consumer:
        assert_type(consumer.poll(100), dict[TopicPartition, Columns])
        assert_type(consumer.position(PLACE), int | None)
        assert_type(consumer.committed([PLACE]), dict[TopicPartition, OffsetAndMetadata | None])
        assert_type(consumer.assignment, tuple[TopicPartition, ...])
        for partition, columns in consumer:
            assert_type(partition, TopicPartition)
            assert_type(columns, Columns)
        consumer.seek(PLACE, "0")  # type: ignore[arg-type]


async def asynchronous() -> None:
    async with clients.Consumer("127.0.0.1:9092") as consumer:
        async for partition, columns in consumer:
            assert_type((partition, columns), tuple[TopicPartition, Columns])
    clients.Consumers  # type: ignore[attr-defined]  # noqa: B018
