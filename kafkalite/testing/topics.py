"""A topic of a broker as tests use it: objects in, records out.                           [IO]

    orders = TestTopic("127.0.0.1:9092", "orders", key=string(), value=json())
    orders.put({"amount": 5}, key="ann")
    [record] = orders.read(1)

Owns   a producer, a consumer and a registry in the log, each from its first use until `close`.
Fails  with AssertionError, which tells what came, where records do not come in time; with
       SerdeError for a value that the topic's serdes do not write or read.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final

from kafkalite.clients.sync import Admin, Consumer, Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.serde.primitives import bytes_
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.serde.serde import Codec, Serde, SerdeContext
from kafkalite.streams.durations import Duration, positive
from kafkalite.streams.record import Record

SECONDS_MAX: Final = 10.0
POLL_MS: Final = 100


class TestTopic:
    """A topic that exists. `key` and `value` are the serdes of its records, bytes unless given."""

    __test__ = False  # is no test, though its name begins like one

    def __init__(
        self,
        bootstrap_servers: str,
        name: str,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
    ) -> None:
        self.name = name
        self._servers = bootstrap_servers
        self._stack = ExitStack()
        registry = self._stack.enter_context(LogRegistry(bootstrap_servers))
        self._key = _codec(key, registry, is_key=True)
        self._value = _codec(value, registry, is_key=False)
        self._waiting: list[Record] = []  # that came and were not read

    def __str__(self) -> str:
        return self.name

    def put(
        self,
        value: Any,
        key: Any = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Writes a record, and returns once the broker has it."""
        (key_bytes,) = self._key.serialize(self.name, [key])
        (value_bytes,) = self._value.serialize(self.name, [value])
        sent = self._producer.send(
            self.name,
            value_bytes,
            key=key_bytes,
            partition=partition,
            timestamp_ms=timestamp,
            headers=tuple(headers),
        )
        self._producer.flush()
        sent.result(SECONDS_MAX)

    def read(self, count: int, within: Duration = "10s") -> list[Record]:
        """The next `count` committed records; of one partition in its order. Waits `within` for
        them, and as long again after some have come."""
        waits = waits_max = -(-positive(within, "read: within") // POLL_MS)
        while len(self._waiting) < count and waits > 0:
            waits = waits_max if self._poll() else waits - 1
        assert len(self._waiting) >= count, (
            f"{self.name}: {len(self._waiting)} of {count} records came in time: {self._waiting}"
        )
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return found

    def read_all(self) -> list[Record]:
        """The committed records that are there now and were not read."""
        partitions = list(self._consumer.assignment)
        ends = self._consumer.end_offsets(partitions)
        while any((self._consumer.position(tp) or 0) < end for tp, end in ends.items()):
            self._poll()
        found, self._waiting = self._waiting, []
        return found

    def close(self) -> None:
        """Lets go of the broker."""
        self._stack.close()

    def _poll(self) -> bool:
        """Waits for records; whether some came."""
        polled = self._consumer.poll(POLL_MS)
        for partition, columns in polled.items():
            self._waiting += self._records(partition, columns)
        return bool(polled)

    def _records(self, partition: TopicPartition, columns: Columns) -> Iterable[Record]:
        keys = self._key.deserialize(self.name, columns.keys)
        values = self._value.deserialize(self.name, columns.values)
        headers = columns.headers or [()] * len(columns)
        offsets = columns.offsets
        assert offsets is not None, f"{self.name}: fetched records have offsets"
        place = (partition.topic, partition.partition)
        for key, value, stamp, header, offset in zip(
            keys, values, columns.timestamps, headers, offsets, strict=True
        ):
            yield Record(key, value, stamp, header, *place, offset)

    @cached_property
    def _producer(self) -> Producer:
        return self._stack.enter_context(Producer(self._servers))

    @cached_property
    def _consumer(self) -> Consumer:
        opened = Consumer(
            self._servers, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        consumer = self._stack.enter_context(opened)
        with Admin(self._servers) as admin:
            (topic,) = admin.describe_topics([self.name])
        consumer.assign([TopicPartition(self.name, n) for n in range(topic.partition_count)])
        return consumer


def _codec(serde: Serde | None, registry: LogRegistry, *, is_key: bool) -> Codec:
    return (serde or bytes_()).open(SerdeContext(registry, is_key, as_dicts=True))
