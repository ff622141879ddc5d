"""The admin client's calls about brokers, disks, elections and reassignments.              [IO]

Owns   nothing.
Fails  with ApiError for the first broker, directory or partition refused.
Source KIP-113 (log directories), KIP-455 (reassignments), KIP-460 (elections), KIP-700, KIP-827.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kafkalite.clients.admin.calls import TIMEOUT_MS, AdminCalls, raise_for
from kafkalite.core.peers.connection import SOFTWARE_NAME, SOFTWARE_VERSION
from kafkalite.core.protocol.api_versions import ApiVersionsRequest
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.types import Node, TopicPartition, by_topic
from kafkalite.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The brokers. `controller_id` is −1 while there is none."""

    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]
    racks: Mapping[int, str]  # of the brokers that have one


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A partition's log in a directory, in bytes; a future one will replace the current one."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirInfo:
    """A broker's log directory. A figure that an old broker does not report is −1."""

    path: str
    error_code: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaInfo]


class ElectionType(IntEnum):
    """Which leader is wanted."""

    PREFERRED = 0  # the first of the replicas
    UNCLEAN = 1  # any replica, at the price of records


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition under reassignment: its replicas, the added and the removed ones."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ClusterCalls(AdminCalls):
    """Brokers and where partitions lie."""

    async def describe_cluster(self) -> ClusterInfo:
        """The brokers and which of them is the controller."""
        response = await self._client.request(DescribeClusterRequest(False))
        raise_for([("the cluster", response.error_code, response.error_message)])
        nodes = tuple(Node(b.broker_id, b.host, b.port) for b in response.brokers)
        racks = {b.broker_id: b.rack for b in response.brokers if b.rack}
        return ClusterInfo(response.cluster_id, response.controller_id, nodes, racks)

    async def api_versions(self, node_id: int | None = None) -> dict[int, tuple[int, int]]:
        """The APIs that a broker serves, by their keys, each with its first and last version."""
        request = ApiVersionsRequest(SOFTWARE_NAME, SOFTWARE_VERSION)
        response = await self._client.request(request, node_id)
        raise_for([("ApiVersions", response.error_code, None)])
        return {v.api_key: (v.min_version, v.max_version) for v in response.api_keys}

    async def describe_log_dirs(
        self, node_ids: Iterable[int] | None = None
    ) -> dict[int, tuple[LogDirInfo, ...]]:
        """The log directories of these brokers, or of all, and how much lies in them."""
        await self._client.refresh(())
        wanted = self._client.cluster.nodes if node_ids is None else node_ids
        found: dict[int, tuple[LogDirInfo, ...]] = {}
        for node_id in wanted:
            response = await self._client.request(DescribeLogDirsRequest(None), node_id)
            raise_for([(f"log directories of broker {node_id}", response.error_code, None)])
            found[node_id] = tuple(map(_log_dir, response.results))
        return found

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        election_type: ElectionType = ElectionType.PREFERRED,
    ) -> dict[TopicPartition, tuple[ErrorCode, str]]:
        """Elects leaders of these partitions, or of all. Returns each result and its reason.

        ELECTION_NOT_NEEDED if the leader is the preferred one already. Without `partitions`,
        only partitions with an election are in the result.
        """
        topics = None
        if partitions is not None:
            numbers = by_topic(partitions).items()
            topics = tuple(ElectLeadersTopic(t, tuple(ps)) for t, ps in numbers)
        response = await self._ask_controller(
            ElectLeadersRequest(election_type, topics, TIMEOUT_MS),
            lambda r: [("the election", r.error_code, None)],
        )
        return {
            TopicPartition(t.topic, p.partition_id): (p.error_code, p.error_message or "")
            for t in response.replica_election_results
            for p in t.partition_result
        }

    async def alter_partition_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Moves partitions to these brokers, the preferred leader first; None cancels a move."""
        topics = tuple(
            ReassignableTopic(
                topic,
                tuple(
                    ReassignablePartition(n, None if wanted is None else tuple(wanted))
                    for n in numbers
                    for wanted in [replicas[TopicPartition(topic, n)]]
                ),
            )
            for topic, numbers in by_topic(replicas).items()
        )
        await self._ask_controller(
            AlterPartitionReassignmentsRequest(TIMEOUT_MS, topics),
            lambda r: [
                ("the reassignment", r.error_code, r.error_message),
                *(
                    (f"{t.name}-{p.partition_index}", p.error_code, p.error_message)
                    for t in r.responses
                    for p in t.partitions
                ),
            ],
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Those of these partitions, or of all, that are being moved."""
        topics = None
        if partitions is not None:
            numbers = by_topic(partitions).items()
            topics = tuple(ListPartitionReassignmentsTopics(t, tuple(ps)) for t, ps in numbers)
        response = await self._ask_controller(
            ListPartitionReassignmentsRequest(TIMEOUT_MS, topics),
            lambda r: [("the reassignments", r.error_code, r.error_message)],
        )
        return {
            TopicPartition(t.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for t in response.topics
            for p in t.partitions
        }


def _log_dir(result: DescribeLogDirsResult) -> LogDirInfo:
    return LogDirInfo(
        result.log_dir,
        result.error_code,
        result.total_bytes,
        result.usable_bytes,
        {
            TopicPartition(t.name, p.partition_index): ReplicaInfo(
                p.partition_size, p.offset_lag, p.is_future_key
            )
            for t in result.topics
            for p in t.partitions
        },
    )
