"""The topics that are read, filled once for each broker with the same records.

Four partitions, the default partitioner, event times that ascend over ten minutes up to now, and
values that are all different: repeated ones would flatter caches.

| topic | keys | values |
|---|---|---|
| keyed | 1,000 of 8 B, at random | 100 B of JSON: `{"amount":10..99,"id":…,"user":…,"pad":…}` |
| events | 1,000 of 8 B | 55 B of Avro, six fields, 100 pages |
| updates | a fifth as many as records, of 9 B | as in `keyed` |

`market` has those of the joins and of windows that move.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry, SchemaRegistry, SerdeContext, avro

from . import market
from .market import Column, Input, values_of_json
from .topologies import EVENT

PARTITIONS: Final = 4
KEYS: Final = 1_000
SPAN_MS: Final = 600_000
CHUNK: Final = 50_000
BATCH_BYTES: Final = 131_072


def keyed(rng: random.Random, rows: range) -> tuple[Column, Column]:
    keys = [b"k%07d" % key for key in rng.choices(range(KEYS), k=len(rows))]
    return keys, list(values_of_json(rng, rows, keys))


def updates_of(key_count: int) -> market.MakeChunk:
    """Updates of so many keys, each several times."""

    def updates(rng: random.Random, rows: range) -> tuple[Column, Column]:
        keys = [b"k%08d" % key for key in rng.choices(range(key_count), k=len(rows))]
        return keys, list(values_of_json(rng, rows, keys))

    return updates


def events_of(topic: str, registry: SchemaRegistry) -> market.MakeChunk:
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


def fill(address: str, topic: str, filled: Input) -> None:
    """Creates the topic and writes the records to it."""
    create(address, topic)
    rng = random.Random(7)
    begin = time.time_ns() // 1_000_000 - SPAN_MS
    begin -= begin % 60_000
    with Producer(address, batch_bytes=BATCH_BYTES) as producer:
        for first in range(0, filled.records, CHUNK):
            rows = range(first, min(first + CHUNK, filled.records))
            keys, values = filled.make_chunk(rng, rows)
            times = [begin + filled.after_ms(row, SPAN_MS) for row in rows]
            producer.send_columns(topic, Columns(keys, values, times))
        producer.flush()


def input_of(topic: str, records: int, registry: SchemaRegistry | None) -> Input:
    """What fills the topic of this name. Kafka Streams takes any schema id."""
    if topic in market.INPUTS:
        return market.INPUTS[topic](records)
    if topic == "events":
        return Input(records, events_of(topic, registry or MemoryRegistry()))
    return Input(records, keyed if topic == "keyed" else updates_of(max(1, records // 5)))
