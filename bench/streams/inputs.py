"""The topics that are read, filled once for each broker with the same records.

Four partitions, the default partitioner, event times that ascend over ten minutes up to now, and
values that are all different: repeated ones would flatter caches.

| topic | keys | values |
|---|---|---|
| keyed | 1,000 of 8 B, at random | 100 B of JSON: `{"amount":10..99,"id":…,"user":…,"pad":…}` |
| events | 1,000 of 8 B | 55 B of Avro, six fields, 100 pages |
| updates | a fifth as many as records, of 9 B | as in `keyed` |
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry, SchemaRegistry, SerdeContext, avro

from .topologies import EVENT

PARTITIONS: Final = 4
KEYS: Final = 1_000
SPAN_MS: Final = 600_000
CHUNK: Final = 50_000
BATCH_BYTES: Final = 131_072
VALUE_BYTES: Final = 100

Column = Sequence[bytes | None]
MakeChunk = Callable[[random.Random, range], tuple[Column, Column]]  # keys and values


def values_of_json(rng: random.Random, rows: range, keys: Sequence[bytes]) -> Iterator[bytes]:
    """100 B each."""
    heads = [
        b'{"amount":%d,"id":%d,"user":"%s","pad":"' % (amount, 100_000_000 + row, key)
        for amount, row, key in zip(
            rng.choices(range(10, 100), k=len(rows)), rows, keys, strict=True
        )
    ]
    pads = rng.randbytes(VALUE_BYTES * len(rows) // 2).hex().encode()
    for i, head in enumerate(heads):
        start = i * VALUE_BYTES
        yield head + pads[start : start + VALUE_BYTES - len(head) - 2] + b'"}'


def keyed(rng: random.Random, rows: range) -> tuple[Column, Column]:
    keys = [b"k%07d" % key for key in rng.choices(range(KEYS), k=len(rows))]
    return keys, list(values_of_json(rng, rows, keys))


def updates_of(key_count: int) -> MakeChunk:
    """Updates of so many keys, each several times."""

    def updates(rng: random.Random, rows: range) -> tuple[Column, Column]:
        keys = [b"k%08d" % key for key in rng.choices(range(key_count), k=len(rows))]
        return keys, list(values_of_json(rng, rows, keys))

    return updates


def events_of(topic: str, registry: SchemaRegistry) -> MakeChunk:
    """Events in Avro, with the schema's id of this registry."""
    codec = avro(schema=EVENT).open(SerdeContext(registry))

    def event(rng: random.Random) -> dict[str, Any]:
        return {
            "id": rng.randrange(10**12),
            "kind": rng.randrange(40),
            "amount": rng.random() * 100,
            "ok": rng.random() < 0.9,
            "user": f"user-{rng.randrange(10**6):06d}",
            "page": f"/page/{rng.randrange(100):02d}",
        }

    def events(rng: random.Random, rows: range) -> tuple[Column, Column]:
        keys = [b"key-%04d" % (row * 7919 % KEYS) for row in rows]
        return keys, codec.serialize(topic, [event(rng) for _ in rows])

    return events


def create(address: str, *topics: str, partitions: int = PARTITIONS) -> None:
    """Topics that keep their records."""
    with Admin(address) as admin:
        kept = {"retention.ms": "-1"}
        admin.create_topics([NewTopic(topic, partitions, configs=kept) for topic in topics])


def fill(address: str, topic: str, records: int, make_chunk: MakeChunk) -> None:
    """Creates the topic and writes so many records to it."""
    create(address, topic)
    rng = random.Random(7)
    begin = time.time_ns() // 1_000_000 - SPAN_MS
    begin -= begin % 60_000
    with Producer(address, batch_bytes=BATCH_BYTES) as producer:
        for first in range(0, records, CHUNK):
            rows = range(first, min(first + CHUNK, records))
            keys, values = make_chunk(rng, rows)
            times = [begin + SPAN_MS * row // records for row in rows]
            producer.send_columns(topic, Columns(keys, values, times))
        producer.flush()


def chunks_of(topic: str, records: int, registry: SchemaRegistry | None) -> MakeChunk:
    """What fills the topic of this name. Kafka Streams takes any schema id."""
    if topic == "events":
        return events_of(topic, registry or MemoryRegistry())
    return keyed if topic == "keyed" else updates_of(max(1, records // 5))
