"""The admin client: topics, settings, groups and brokers, asked about and changed.          [IO]

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("orders", 4)])

Owns   nothing: every call is a request or a few.
Never  repeats a change that a broker may have made, unless the broker said that it did not.
Fails  with ApiError for the first topic, group or resource refused, naming it and the broker's
       reason.
Source KIP-4, KIP-117, KIP-195, KIP-339; apache/kafka `KafkaAdminClient`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kafkalite.core.client import Client, client_of
from kafkalite.core.consumer_membership import FIND_COORDINATOR, GroupMetadata
from kafkalite.core.group_member import (
    OffsetAndMetadata,
    offset_commit_request,
    offset_fetch_request,
    read_committed_offsets,
    refused_offsets,
)
from kafkalite.core.metadata import TopicInfo
from kafkalite.core.protocol.cluster import DescribeClusterRequest
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
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
from kafkalite.core.subscriptions import PROTOCOL_TYPE, decode_assignment
from kafkalite.core.types import Node, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

BROKER_DEFAULT: Final = -1
TIMEOUT_MS: Final = 30_000
ELSEWHERE: Final = frozenset({ErrorCode.NOT_CONTROLLER})  # the broker has done nothing
NO_COORDINATOR: Final = FIND_COORDINATOR | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
NOT_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})
SET: Final = 0
DELETE: Final = 1

T = TypeVar("T")
Reader = Callable[[Any], Iterable[tuple[str, ErrorCode, str | None]]]


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


class ResourceType(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic by its name, or a broker by its id in digits."""

    resource_type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.resource_type.name.lower()} {self.name}"


class ConfigSource(IntEnum):
    """Where a setting's value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. The value of a sensitive one is None."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    is_read_only: bool = False
    is_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The brokers. `controller_id` is −1 while there is none."""

    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it. The state is empty where the broker is too old."""

    group_id: str
    protocol_type: str
    state: str = ""


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A member of a group, and what it reads if it is a consumer."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group: `protocol` is the assignor that it uses."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMemberInfo, ...]


class Admin:
    """Asks about a cluster and changes it. Use it as an async context manager.

    `client` is a Client to share, or bootstrap servers.
    """

    def __init__(
        self, client: Client | str | Sequence[str], *, client_id: str = "kafkalite-admin"
    ) -> None:
        self._client, self._owns_client = client_of(client, client_id)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Finds the cluster."""
        await self._client.start()

    async def close(self) -> None:
        """Closes the connections, unless the client is shared."""
        if self._owns_client:
            await self._client.close()

    # ---- topics ----

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> None:
        """Creates topics, and returns once brokers tell of them."""
        wanted = list(topics)
        request = CreateTopicsRequest(
            topics=tuple(_creatable(topic) for topic in wanted),
            timeout_ms=TIMEOUT_MS,
            validate_only=validate_only,
        )
        await self._ask_controller(
            request,
            lambda r: [(f"topic {t.name}", t.error_code, t.error_message) for t in r.topics],
        )
        if not validate_only:
            for topic in wanted:
                await self._client.topic(topic.name, create=False)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Deletes topics and all their records, and returns once brokers tell of them no more."""
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

        async def are_gone() -> None:
            cluster = await self._client.refresh(wanted)
            for name in wanted:
                if name in cluster.topics:
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"topic {name} is still there")

        await self._client.retrying("deleted topics", are_gone)

    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Gives topics more partitions, so many in all, and returns once brokers tell of them."""
        topics = tuple(CreatePartitionsTopic(name, n, None) for name, n in counts.items())
        await self._ask_controller(
            CreatePartitionsRequest(topics, TIMEOUT_MS, False),
            lambda r: [(f"topic {t.name}", t.error_code, t.error_message) for t in r.results],
        )

        async def are_there() -> None:
            cluster = await self._client.refresh(counts)
            for name, count in counts.items():
                if cluster.partition_count(name) < count:
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"topic {name} has not grown")

        await self._client.retrying("new partitions", are_there)

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
        """Deletes the records below these offsets. Returns where each log starts now."""
        starts: dict[TopicPartition, int] = {}
        await self._know({tp.topic for tp in before})
        for tp, offset in before.items():
            partition = (DeleteRecordsPartition(tp.partition, offset),)
            request = DeleteRecordsRequest((DeleteRecordsTopic(tp.topic, partition),), TIMEOUT_MS)

            async def attempt(tp: TopicPartition = tp, request: Any = request) -> Any:
                response = await self._client.request(request, self._leader_of(tp))
                told = response.topics[0].partitions[0]
                _raise_for([(str(tp), told.error_code, None)])
                return told

            told = await self._client.retrying(f"deleting records of {tp}", attempt, NOT_LEADER)
            starts[tp] = told.low_watermark
        return starts

    async def _know(self, topics: Collection[str]) -> None:
        for topic in topics:
            await self._client.topic(topic, create=False)

    def _leader_of(self, tp: TopicPartition) -> int:
        leader = self._client.cluster.leader_id(tp)
        if leader is None:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
        return leader

    # ---- settings ----

    async def describe_configs(
        self, resources: Iterable[ConfigResource]
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """All settings of topics and brokers, with their defaults."""
        described: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for resource in resources:
            asked = DescribeConfigsResource(resource.resource_type, resource.name, None)
            request = DescribeConfigsRequest((asked,))
            response = await self._client.request(request, _home(resource))
            for result in response.results:
                _raise_for([(str(resource), result.error_code, result.error_message)])
                described[resource] = {
                    told.name: ConfigEntry(
                        told.name,
                        told.value,
                        _config_source(told.config_source),
                        told.read_only,
                        told.is_sensitive,
                    )
                    for told in result.configs
                }
        return described

    async def alter_configs(
        self, resource: ConfigResource, changes: Mapping[str, str | None]
    ) -> None:
        """Sets these settings and keeps the others; None returns one to its default."""
        configs = tuple(
            IncrementalAlterableConfig(name, DELETE if value is None else SET, value)
            for name, value in changes.items()
        )
        altered = IncrementalAlterConfigsResource(resource.resource_type, resource.name, configs)
        request = IncrementalAlterConfigsRequest((altered,), False)
        node_id = _home(resource)
        if node_id is not None:
            response = await self._client.request(request, node_id)
            _raise_for([(str(resource), r.error_code, r.error_message) for r in response.responses])
            return
        await self._ask_controller(
            request,
            lambda r: [(str(resource), t.error_code, t.error_message) for t in r.responses],
        )

    # ---- cluster ----

    async def describe_cluster(self) -> ClusterInfo:
        """The brokers and which of them is the controller."""
        response = await self._client.request(DescribeClusterRequest(False))
        _raise_for([("the cluster", response.error_code, response.error_message)])
        nodes = tuple(Node(b.broker_id, b.host, b.port) for b in response.brokers)
        return ClusterInfo(response.cluster_id, response.controller_id, nodes)

    # ---- groups ----

    async def list_groups(self) -> list[GroupListing]:
        """The groups that all reachable brokers coordinate, sorted by id."""
        await self._client.refresh(())
        found: dict[str, GroupListing] = {}
        for node_id in self._client.cluster.nodes:
            response = await self._client.request(ListGroupsRequest(), node_id)
            _raise_for([(f"groups of broker {node_id}", response.error_code, None)])
            for group in response.groups:
                found[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state
                )
        return [found[group_id] for group_id in sorted(found)]

    async def describe_groups(self, group_ids: Iterable[str]) -> list[GroupInfo]:
        """Members and assignments. A group that does not exist is DEAD or GROUP_ID_NOT_FOUND."""
        described: list[GroupInfo] = []
        for group_id in group_ids:
            response = await self._ask_coordinator(
                group_id,
                DescribeGroupsRequest((group_id,)),
                lambda r: [(f"group {g.group_id}", g.error_code, None) for g in r.groups],
            )
            described += [_group_info(group) for group in response.groups]
        return described

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Forgets groups and their offsets. NON_EMPTY_GROUP while one has members."""
        for group_id in group_ids:
            await self._ask_coordinator(
                group_id,
                DeleteGroupsRequest((group_id,)),
                lambda r: [(f"group {g.group_id}", g.error_code, None) for g in r.results],
            )

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All offsets that a group has committed."""

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
            request = offset_fetch_request(group_id, None, stable=False)
            node_id = await self._client.coordinator(group_id)
            return read_committed_offsets(await self._client.request(request, node_id), group_id)

        return await self._at_coordinator(group_id, attempt)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Sets a group's offsets; UNKNOWN_MEMBER_ID while the group has members."""
        await self._ask_coordinator(
            group_id,
            offset_commit_request(GroupMetadata(group_id), offsets),
            lambda r: [
                (f"group {group_id}, offset of {tp}", code, None)
                for tp, code in refused_offsets(r).items()
            ],
        )

    # ---- whom to ask ----

    async def _ask_controller(self, request: Request[Any], read: Reader) -> None:
        async def attempt() -> None:
            controller = self._client.cluster.controller_id
            known = controller in self._client.cluster.nodes
            _raise_for(read(await self._client.request(request, controller if known else None)))

        await self._client.retrying("the controller", attempt, ELSEWHERE)

    async def _ask_coordinator(self, group_id: str, request: Request[Any], read: Reader) -> Any:
        async def attempt() -> Any:
            node_id = await self._client.coordinator(group_id)
            response = await self._client.request(request, node_id)
            _raise_for(read(response))
            return response

        return await self._at_coordinator(group_id, attempt)

    async def _at_coordinator(self, group_id: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeats `attempt` while the coordinator is another one, or not ready."""

        async def forgetful() -> T:
            try:
                return await attempt()
            except ApiError as error:
                if error.error_code in NO_COORDINATOR:
                    self._client.forget_coordinator(group_id)
                raise

        return await self._client.retrying(f"group {group_id}", forgetful, NO_COORDINATOR)


def _raise_for(told: Iterable[tuple[str, ErrorCode, str | None]]) -> None:
    """Raises ApiError for the first of (what, code, why) that was refused."""
    for what, code, why in told:
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"{what}, {why}" if why else what)


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


def _home(resource: ConfigResource) -> int | None:
    """The broker that knows a resource's settings; None where every broker does."""
    if resource.resource_type is not ResourceType.BROKER:
        return None
    if not resource.name.isdigit():
        raise ValueError(f"broker {resource.name!r} is not a broker id")
    return int(resource.name)


def _config_source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def _group_info(group: DescribedGroup) -> GroupInfo:
    is_consumer = group.protocol_type == PROTOCOL_TYPE
    return GroupInfo(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        tuple(
            GroupMemberInfo(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                decode_assignment(member.member_assignment).partitions if is_consumer else (),
            )
            for member in group.members
        ),
    )
