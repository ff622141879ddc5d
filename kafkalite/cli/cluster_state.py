"""The state of a cluster as commands see it: brokers, replicas, moves, partitions in trouble. [IO]

Owns   nothing: it asks, and computes from the answers. It speaks Kafka's protocol alone, so it
       reads any cluster of Apache Kafka as well.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalite.cli.output import counted, say, warn
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin, ClusterInfo, LogDirInfo, Reassignment
    from kafkalite.clients.admin.plans import Replicas
    from kafkalite.clients.metadata import PartitionInfo, TopicInfo

LOOK_SECONDS: Final = 0.5
MIN_ISR: Final = "min.insync.replicas"
OFFLINE: Final = "offline"
UNDER_REPLICATED: Final = "under-replicated"
BELOW_MIN_ISR: Final = "below-min-isr"


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What one broker holds. One that is down has neither address nor rack."""

    node_id: int
    address: str | None
    rack: str | None
    leaders: int
    preferred_leaders: int
    replicas: int
    out_of_sync: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A partition without a leader, or without all of its replicas in sync."""

    partition: TopicPartition
    info: PartitionInfo
    min_isr: int | None  # None: its settings cannot be had
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All that was answered. `moving` are the partitions under reassignment."""

    cluster: ClusterInfo
    topics: list[TopicInfo]
    min_isr: dict[str, int]
    moving: dict[TopicPartition, Reassignment]

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
        """Every partition."""
        for topic in self.topics:
            for info in topic.partitions:
                yield TopicPartition(topic.name, info.partition), info

    def placed(self) -> dict[TopicPartition, Replicas]:
        """The replicas of every partition, as they will be after the moves under way."""
        found = {}
        for tp, info in self.partitions():
            going = set(self.moving[tp].removing) if tp in self.moving else set()
            found[tp] = tuple(broker for broker in info.replicas if broker not in going)
        return found

    def _settled(self, tp: TopicPartition, info: PartitionInfo) -> set[int]:
        """The replicas without those that a move adds just now."""
        added = self.moving[tp].adding if tp in self.moving else ()
        return set(info.replicas) - set(added)

    def racks(self) -> dict[int, str | None]:
        """The racks of the brokers that are up."""
        return {n.node_id: self.cluster.racks.get(n.node_id) for n in self.cluster.nodes}

    def loads(self) -> list[BrokerLoad]:
        """Each broker that is up, or that a partition names."""
        leaders, preferred = Counter[int](), Counter[int]()
        replicas, out_of_sync = Counter[int](), Counter[int]()
        for _, info in self.partitions():
            leaders[info.leader_id] += 1
            preferred.update(info.replicas[:1])
            replicas.update(info.replicas)
            out_of_sync.update(set(info.replicas) - set(info.in_sync_replicas))
        up = {node.node_id: f"{node.host}:{node.port}" for node in self.cluster.nodes}
        return [
            BrokerLoad(
                broker,
                up.get(broker),
                self.cluster.racks.get(broker),
                leaders[broker],
                preferred[broker],
                replicas[broker],
                out_of_sync[broker],
            )
            for broker in sorted({*up, *replicas})
        ]

    def troubles(self) -> list[Trouble]:
        """The partitions in trouble, in the order of topics."""
        found = []
        for tp, info in self.partitions():
            min_isr = self.min_isr.get(tp.topic)
            in_sync = len(info.in_sync_replicas)
            kinds = {
                OFFLINE: info.leader_id < 0,
                UNDER_REPLICATED: not self._settled(tp, info) <= set(info.in_sync_replicas),
                # Of one with fewer replicas than that, brokers ask for all replicas.
                BELOW_MIN_ISR: in_sync < min(min_isr or 1, len(info.replicas)),
            }
            if any(kinds.values()):
                named = tuple(kind for kind, is_so in kinds.items() if is_so)
                found.append(Trouble(tp, info, min_isr, named))
        return found


async def read_state(admin: Admin) -> ClusterState:
    """Asks for all of it; for moves first, so that none ends unseen."""
    moving, topics = await _moving(admin), await admin.describe_topics()
    return ClusterState(
        await admin.describe_cluster(), topics, await _min_isr(admin, topics), moving
    )


async def read_settled(admin: Admin) -> ClusterState:
    """The same, once no partition is in trouble and none moves. Progress goes to stderr."""
    told = None
    while True:
        state = await read_state(admin)
        left = len({trouble.partition for trouble in state.troubles()} | state.moving.keys())
        if not left:
            return state
        if left != told:
            say(f"{counted(left, 'partition')} not in sync yet")
            told = left
        await asyncio.sleep(LOOK_SECONDS)


async def log_dirs(admin: Admin) -> dict[int, tuple[LogDirInfo, ...]]:
    """The log directories of the brokers that answer; of none where they are too old to say."""
    found: dict[int, tuple[LogDirInfo, ...]] = {}
    for node in (await admin.describe_cluster()).nodes:
        try:
            found |= await admin.describe_log_dirs([node.node_id])
        except BrokerUnavailable as error:  # it may have died just now
            warn(f"the sizes of broker {node.node_id} are missing: {error}")
        except ApiError as error:
            if error.error_code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
    return found


async def sizes_of(admin: Admin) -> dict[TopicPartition, int]:
    """Bytes of each partition's largest log."""
    sizes: dict[TopicPartition, int] = {}
    for directories in (await log_dirs(admin)).values():
        for directory in directories:
            for tp, replica in directory.replicas.items():
                sizes[tp] = max(sizes.get(tp, 0), replica.size_bytes)
    return sizes


async def _min_isr(admin: Admin, topics: list[TopicInfo]) -> dict[str, int]:
    from kafkalite.clients.admin.client import ConfigResource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
    try:
        described = await admin.describe_configs(resources, [MIN_ISR])
    except ApiError as error:
        if error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # deleted in between
            return {}
        raise
    return {
        resource.name: int(entries[MIN_ISR].value or 1)
        for resource, entries in described.items()
        if MIN_ISR in entries
    }


async def _moving(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """The moves under way; none where a broker is too old to know of such."""
    try:
        return await admin.list_partition_reassignments()
    except ApiError as error:
        if error.error_code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
