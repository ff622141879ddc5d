"""One transaction an epoch: its rows, and the epoch's own record.                          [IO]

    <name>-epochs    one partition, compacted; key: the name, value: {"query": …, "epoch": 7}

The record is part of the transaction, so it is there if and only if the rows are. An epoch that
Spark repeats after a crash finds it and is left alone. Only one process has a transactional id:
who opens it later fences the earlier one and aborts what that had not committed, and looks for the
record after that.

Owns   the transaction of an epoch, and the topic of its record.
Fails  with ApiError when the broker refuses; the next try sees whether the epoch was committed.
Source KIP-98 (transactions); Spark's epochs: a failed one is repeated with the same number.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import TopicPartition
from kafkalite.spark.sink.options import SinkOptions
from kafkalite.spark.sink.rows import by_topic

Check = Callable[[], Awaitable[None]]

TAIL: Final = 16  # offsets that are read to find the last record; more where it is not among them
POLL_MS: Final = 1_000


class Epoch(NamedTuple):
    """One batch of one query."""

    query: str
    number: int


def commit(
    options: SinkOptions,
    name: str,
    batches: Iterable[pa.RecordBatch],
    epoch: Epoch | None,
    check: Check | None = None,
) -> bool:
    """Writes the records in one transaction of the transactional id `name`; False where `epoch` was
    committed before. Without an epoch, nothing is remembered. `check` is called once the
    transactional id is this process's: its error ends the commit."""
    return asyncio.run(_commit(options, name, batches, epoch, check))


async def _commit(
    options: SinkOptions,
    name: str,
    batches: Iterable[pa.RecordBatch],
    epoch: Epoch | None,
    check: Check | None,
) -> bool:
    servers, topic = options.bootstrap_servers, f"{name}-epochs"
    if epoch is not None:
        async with Admin(servers) as admin:
            made = NewTopic(topic, 1, configs={"cleanup.policy": "compact"})
            await admin.create_missing_topics([made])
    async with TransactionalProducer(
        servers, name, transaction_timeout_ms=options.transaction_timeout_ms, **options.producer
    ) as producer:
        if check is not None:
            await check()
        if epoch is not None:
            last = await last_epoch(servers, TopicPartition(topic, 0))
            if last is not None and last.query == epoch.query and last.number >= epoch.number:
                return False
        async with producer.transaction():
            for batch in batches:
                for target, columns, partitions in by_topic(batch):
                    await producer.send_columns(target, columns, partitions=partitions)
            if epoch is not None:
                value = json.dumps({"query": epoch.query, "epoch": epoch.number})
                await producer.send(topic, value.encode(), key=name.encode())
    return True


async def last_epoch(servers: str, partition: TopicPartition) -> Epoch | None:
    """The last epoch that was committed."""
    async with Consumer(
        servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        first = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        consumer.assign([partition])
        tail = TAIL
        while True:
            start = max(first, end - tail)
            value = await _last_value(consumer, partition, start, end)
            if value is not None:
                found = json.loads(value)
                return Epoch(found["query"], found["epoch"])
            if start == first:
                return None
            tail *= TAIL


async def _last_value(
    consumer: Consumer, partition: TopicPartition, start: int, end: int
) -> bytes | None:
    """The value of the last committed record of [start, end)."""
    consumer.seek(partition, start)
    last: bytes | None = None
    while (consumer.position(partition) or 0) < end:
        for columns in (await consumer.poll(timeout_ms=POLL_MS)).values():
            with suppress(IndexError):
                last = columns.values[-1]
    return last
