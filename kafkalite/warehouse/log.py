"""What a load asks the log before it plans: bounds of partitions, and sizes of records.   [IO]

Owns   a client for the duration of a call.
Fails  with BrokerUnavailable, and with TopologyError for a topic that does not exist.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kafkalite.clients.admin.client import Admin
from kafkalite.columnar.lookup import Lookup
from kafkalite.columnar.settings import ReadSettings
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of each partition: the first offset, the next one, and the one at which a load ends."""

    first: Offsets
    end: Offsets
    until: Offsets


def bounds(bootstrap_servers: str, topic: str, until_ms: int | None = None) -> Bounds:
    """The bounds of the topic's partitions now. A log ends at its first open transaction; a load
    ends at the first record of `until_ms` or later.
    """
    with Lookup(ReadSettings(bootstrap_servers)) as lookup:
        first, end = lookup.bounds(lookup.partitions_of([topic]))
        before = {} if until_ms is None else lookup.at_times(dict.fromkeys(end, until_ms))
    return Bounds(first, end, {tp: _earlier(at, before.get(tp)) for tp, at in end.items()})


def _earlier(end: int, found: int | None) -> int:
    return end if found is None else min(end, found)


def record_bytes(bootstrap_servers: str, topic: str) -> dict[TopicPartition, float]:
    """The mean size of a record in each partition's log; empty where the broker does not say."""

    async def ask() -> dict[TopicPartition, int]:
        async with Admin(bootstrap_servers) as admin:
            brokers = await admin.describe_log_dirs()
        replicas = [d.replicas for dirs in brokers.values() for d in dirs]
        return {
            tp: log.size_bytes
            for logs in replicas
            for tp, log in logs.items()
            if tp.topic == topic and not log.is_future
        }

    try:
        sizes = asyncio.run(ask())
    except ApiError:
        return {}
    now = bounds(bootstrap_servers, topic)
    records = {tp: now.end[tp] - now.first[tp] for tp in sizes}
    return {tp: sizes[tp] / count for tp, count in records.items() if count}
