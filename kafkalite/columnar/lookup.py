"""Questions to a cluster from a program without an event loop: partitions, offsets, groups. [IO]

    with Lookup(ReadSettings("127.0.0.1:9092")) as lookup:
        first, end = lookup.bounds(lookup.partitions_of(["flights"]))

Owns   an event loop and a client's connections, from the first question until `close`.
Fails  with TopologyError for a topic that does not exist, with BrokerUnavailable and ApiError.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Self, TypeVar

from kafkalite.clients.admin.client import MAX_TIMESTAMP, Admin
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.member import OffsetAndMetadata
from kafkalite.clients.consumer.positions import EARLIEST, LATEST
from kafkalite.columnar.connecting import connected
from kafkalite.columnar.settings import COMMITTED, ReadSettings
from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError

R = TypeVar("R")
Offsets = dict[TopicPartition, int]


class Lookup:
    """Asks one cluster. Not to be used in a coroutine: it runs an event loop of its own."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects."""
        if not self._loop.is_closed():
            if self._client is not None:
                self._loop.run_until_complete(self._client.close())
            self._loop.close()

    def now(self) -> float:
        """Seconds on a clock that nobody sets."""
        return self._loop.time()

    def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Every partition of these topics."""
        counts = self._partition_counts()
        wanted = list(topics)
        for topic in wanted:
            if topic not in counts:
                servers = self._settings.bootstrap_servers
                raise TopologyError(f"topic {topic!r} does not exist at {servers}")
        return [TopicPartition(topic, p) for topic in wanted for p in range(counts[topic])]

    def matching(self, pattern: re.Pattern[str]) -> list[TopicPartition]:
        """Every partition of the topics whose whole name matches; internal topics match nothing."""
        counts = self._partition_counts().items()
        names = [
            (topic, n) for topic, n in counts if pattern.fullmatch(topic) and topic[:2] != "__"
        ]
        return [TopicPartition(topic, p) for topic, n in sorted(names) for p in range(n)]

    def _partition_counts(self) -> dict[str, int]:
        topics = self._ask(lambda admin: admin.describe_topics())
        return {topic.name: topic.partition_count for topic in topics}

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Offsets, Offsets]:
        """First and next offsets; under read_committed the next is that of the oldest transaction
        that is still open.
        """
        wanted = list(partitions)
        return self._list_offsets(wanted, EARLIEST), self._list_offsets(wanted, LATEST)

    def end(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The next offsets alone."""
        return self._list_offsets(partitions, LATEST)

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first record at or after each moment (epoch ms); None where there is none."""
        if not times:
            return {}
        found = self._ask(lambda admin: admin.list_offsets(times))
        return {tp: None if there is None else there.offset for tp, there in found.items()}

    def newest_time(self, partitions: Iterable[TopicPartition]) -> int:
        """The greatest timestamp (epoch ms) of any record; -1 where there is none."""
        asked = dict.fromkeys(partitions, MAX_TIMESTAMP)
        found = self._ask(lambda admin: admin.list_offsets(asked))
        return max((there.timestamp for there in found.values() if there is not None), default=-1)

    def _list_offsets(self, partitions: Iterable[TopicPartition], which: int) -> Offsets:
        asked = dict.fromkeys(partitions, which)
        level = self._settings.read_committed
        found = self._ask(
            lambda admin: admin.list_offsets(
                asked, isolation_level=COMMITTED if level else "read_uncommitted"
            )
        )
        return {tp: there.offset for tp, there in found.items() if there is not None}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets the offsets of a group that has no members, for those who watch its lag."""
        committed = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        self._ask(lambda admin: admin.alter_group_offsets(group_id, committed))

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Deletes the records before these offsets."""
        self._ask(lambda admin: admin.delete_records(offsets))

    def _ask(self, question: Callable[[Admin], Awaitable[R]]) -> R:
        return self._loop.run_until_complete(self._answer(question))

    async def _answer(self, question: Callable[[Admin], Awaitable[R]]) -> R:
        if self._client is None:
            self._client = await connected(self._settings)
        async with Admin(self._client) as admin:
            return await question(admin)
