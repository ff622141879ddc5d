"""The admin client's calls about topics, their records and their offsets.                  [IO]

Owns   nothing: every call is a request or a few.
Never  returns from a change before the brokers' metadata shows it.
Fails  with ApiError for the first topic or partition refused.
Source KIP-4, KIP-107, KIP-195, KIP-396; apache/kafka `KafkaAdminClient`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kafkalite.clients.admin.calls import TIMEOUT_MS, AdminCalls
from kafkalite.clients.consumer.fetcher import OffsetAndTimestamp
from kafkalite.clients.consumer.positions import CONSUMER_REPLICA_ID, EARLIEST, LATEST
from kafkalite.clients.metadata import Cluster, TopicInfo
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kafkalite.core.types import NO_OFFSET, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

BROKER_DEFAULT: Final = -1
MAX_TIMESTAMP: Final = -3  # asks for the record with the greatest timestamp (KIP-734)
HIGH_WATERMARK: Final = -1  # as an offset to delete records below

IsolationLevel = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; −1 asks for the broker's default number.

    `replica_assignment[i]` names the brokers that shall hold partition i, the leader first; the
    two numbers are left at −1 then.
    """

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str | None] = field(default_factory=dict)
    replica_assignment: Sequence[Sequence[int]] = ()


class TopicCalls(AdminCalls):
    """Topics, records, offsets."""

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> None:
        """Creates topics, and returns once the brokers' metadata has them."""
        await self._create(list(topics), validate_only=validate_only, exist_ok=False)

    async def create_missing_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> set[str]:
        """Creates the topics that do not exist yet, and returns the names of those it created.

        An existing topic keeps its partitions, replicas and settings, whatever its `NewTopic`
        says; `describe_topics` shows how many partitions it has. Several clients may call this
        at once: one of them creates a topic, and all return once the brokers' metadata has it.
        """
        wanted = list(topics)
        cluster = await self._client.refresh([topic.name for topic in wanted])
        missing = [topic for topic in wanted if not cluster.partition_count(topic.name)]
        if not missing:
            return set()
        return await self._create(missing, validate_only=validate_only, exist_ok=True)

    async def _create(
        self, topics: Sequence[NewTopic], *, validate_only: bool, exist_ok: bool
    ) -> set[str]:
        """Creates topics and returns their names; with `exist_ok`, without those that exist."""
        accepted = {ErrorCode.TOPIC_ALREADY_EXISTS} if exist_ok else set()
        response = await self._ask_controller(
            CreateTopicsRequest(
                topics=tuple(_creatable(topic) for topic in topics),
                timeout_ms=TIMEOUT_MS,
                validate_only=validate_only,
            ),
            lambda r: [
                (f"topic {t.name}", t.error_code, t.error_message)
                for t in r.topics
                if t.error_code not in accepted
            ],
        )
        if not validate_only:
            await self._until(
                [topic.name for topic in topics],
                lambda now, t: now.partition_count(t) > 0,
                "is not in the brokers' metadata yet",
            )
        return {t.name for t in response.topics if t.error_code is ErrorCode.NONE}

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Deletes topics and all their records, and returns once brokers no longer list them."""
        wanted = tuple(names)
        request = DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name) for name in wanted),
            topic_names=wanted,
            timeout_ms=TIMEOUT_MS,
        )
        await self._ask_controller(
            request,
            lambda r: [(f"topic {t.name}", t.error_code, t.error_message) for t in r.responses],
        )
        await self._until(
            wanted, lambda now, t: t not in now.topics, "is still in the brokers' metadata"
        )

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> None:
        """Raises topics' numbers of partitions, and returns once the brokers' metadata has them."""
        topics = tuple(CreatePartitionsTopic(name, n, None) for name, n in counts.items())
        await self._ask_controller(
            CreatePartitionsRequest(topics, TIMEOUT_MS, validate_only),
            lambda r: [(f"topic {t.name}", t.error_code, t.error_message) for t in r.results],
        )
        if not validate_only:
            await self._until(
                counts, lambda now, t: now.partition_count(t) >= counts[t], "has not grown yet"
            )

    async def _until(
        self, names: Collection[str], is_so: Callable[[Cluster, str], bool], otherwise: str
    ) -> None:
        """Refreshes the metadata of these topics until it shows the change of each.

        A broker gets the controller's changes with a delay, which is long if it has just
        started. REQUEST_TIMED_OUT if it takes too long: the change is made all the same.
        """

        async def attempt() -> None:
            cluster = await self._client.refresh(names)
            for name in names:
                if not is_so(cluster, name):
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"topic {name} {otherwise}")

        await self._client.retrying("topics", attempt)

    async def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return [topic.name for topic in await self.describe_topics()]

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Partitions, leaders and replicas of these topics, or of all; sorted by name."""
        wanted = None if names is None else tuple(names)
        cluster = await self._client.refresh(wanted)
        for name in wanted or ():
            if (code := cluster.errors.get(name, ErrorCode.NONE)) is not ErrorCode.NONE:
                raise ApiError(code, f"topic {name}")
        chosen = cluster.topics if wanted is None else wanted
        return [cluster.topics[name] for name in sorted(chosen) if name in cluster.topics]

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Deletes the records below these offsets; HIGH_WATERMARK (−1): all there are.

        Returns where each log starts now.
        """

        def request(topics: Mapping[str, Sequence[int]]) -> DeleteRecordsRequest:
            return DeleteRecordsRequest(
                tuple(
                    DeleteRecordsTopic(
                        t,
                        tuple(DeleteRecordsPartition(p, before[TopicPartition(t, p)]) for p in ps),
                    )
                    for t, ps in topics.items()
                ),
                TIMEOUT_MS,
            )

        return await self._ask_leaders(
            before,
            request,
            lambda r: (
                (TopicPartition(t.name, p.partition_index), p.error_code, None, p.low_watermark)
                for t in r.topics
                for p in t.partitions
            ),
        )

    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        known_only: bool = False,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (epoch ms); None where there is none.

        EARLIEST, LATEST and MAX_TIMESTAMP ask for the log's start, its end (under read_committed
        the last stable offset) and the record with the greatest timestamp. `known_only`: None, too,
        where a new leader does not know yet what is committed, which is waited for otherwise.
        """
        committed = isolation_level == "read_committed"
        no_answer = {ErrorCode.OFFSET_NOT_AVAILABLE} if known_only else set()

        def request(topics: Mapping[str, Sequence[int]]) -> ListOffsetsRequest:
            return ListOffsetsRequest(
                replica_id=CONSUMER_REPLICA_ID,
                isolation_level=int(committed),
                topics=tuple(
                    ListOffsetsTopic(
                        t,
                        tuple(
                            ListOffsetsPartition(p, timestamp=timestamps[TopicPartition(t, p)])
                            for p in ps
                        ),
                    )
                    for t, ps in topics.items()
                ),
            )

        return await self._ask_leaders(
            timestamps,
            request,
            lambda r: (
                (
                    TopicPartition(t.name, p.partition_index),
                    ErrorCode.NONE if p.error_code in no_answer else p.error_code,
                    None,
                    None
                    if p.offset == NO_OFFSET
                    else OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch),
                )
                for t in r.topics
                for p in t.partitions
            ),
        )

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return await self._end_offsets_of(partitions, EARLIEST, "read_uncommitted")

    async def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        known_only: bool = False,
    ) -> dict[TopicPartition, int]:
        """The offset after each partition's last record that a consumer may read. `known_only`:
        without the partitions whose new leader does not know yet what is committed."""
        return await self._end_offsets_of(
            partitions, LATEST, isolation_level, known_only=known_only
        )

    async def _end_offsets_of(
        self,
        partitions: Iterable[TopicPartition],
        which: int,
        isolation_level: IsolationLevel,
        *,
        known_only: bool = False,
    ) -> dict[TopicPartition, int]:
        timestamps = dict.fromkeys(partitions, which)
        offsets = await self.list_offsets(
            timestamps, isolation_level=isolation_level, known_only=known_only
        )
        return {tp: found.offset for tp, found in offsets.items() if found is not None}


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(index, tuple(brokers))
            for index, brokers in enumerate(topic.replica_assignment)
        ),
        configs=tuple(CreatableTopicConfig(name, value) for name, value in topic.configs.items()),
    )
