"""The APIs: which request and response belong to a key, and which headers they travel under.  [P]

Owns   the table `API`, the one list of what is defined. What a broker advertises is the broker's
       business: a range within `versions`.
Source apache/kafka `ApiKeys`, `ApiMessageType`; RequestHeader.json, ResponseHeader.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kafkalite.core.protocol import (
    api_versions,
    cluster,
    configs,
    fetch,
    groups,
    list_offsets,
    metadata,
    offsets,
    peers,
    produce,
    topics,
    transactions,
)
from kafkalite.core.protocol.codec import Request, definition


class ApiKey(IntEnum):
    """The number by which a request names its API."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    ALTER_PARTITION = 56
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    DESCRIBE_TOPIC_PARTITIONS = 75
    FOLLOW_METADATA = 20_000
    VERIFY_TRANSACTIONS = 20_001
    REPORT_REPLICAS = 20_002

    @property
    def is_private(self) -> bool:
        """Whether the API is ours, between brokers of one release: ApiVersions does not list it."""
        return self >= PRIVATE_SINCE


PRIVATE_SINCE: Final = 20_000  # Kafka's keys count up from 0


@dataclass(frozen=True, slots=True)
class Api:
    """One API. `versions` are the first and the last that its messages are defined for."""

    key: ApiKey
    request: type[Request[Any]]
    response: type
    versions: tuple[int, int]
    flexible_since: int

    @property
    def name(self) -> str:
        """Kafka's name of the API, for example `OffsetCommit`."""
        return self.request.__name__.removesuffix("Request")


def _api(request: type[Request[Any]], response: type) -> Api:
    asked, answered = definition(request), definition(response)
    assert asked.api_key is not None
    assert asked.name.removesuffix("Request") == answered.name.removesuffix("Response")
    assert (asked.api_key, asked.versions) == (answered.api_key, answered.versions), asked.name
    assert asked.flexible_since == answered.flexible_since, asked.name
    key = ApiKey(asked.api_key)
    return Api(key, request, response, asked.versions, asked.flexible_since)


API: Final[dict[ApiKey, Api]] = {
    api.key: api
    for api in (
        _api(produce.ProduceRequest, produce.ProduceResponse),
        _api(fetch.FetchRequest, fetch.FetchResponse),
        _api(list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse),
        _api(metadata.MetadataRequest, metadata.MetadataResponse),
        _api(peers.ControlledShutdownRequest, peers.ControlledShutdownResponse),
        _api(offsets.OffsetCommitRequest, offsets.OffsetCommitResponse),
        _api(offsets.OffsetFetchRequest, offsets.OffsetFetchResponse),
        _api(groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
        _api(groups.JoinGroupRequest, groups.JoinGroupResponse),
        _api(groups.HeartbeatRequest, groups.HeartbeatResponse),
        _api(groups.LeaveGroupRequest, groups.LeaveGroupResponse),
        _api(groups.SyncGroupRequest, groups.SyncGroupResponse),
        _api(groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
        _api(groups.ListGroupsRequest, groups.ListGroupsResponse),
        _api(api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse),
        _api(topics.CreateTopicsRequest, topics.CreateTopicsResponse),
        _api(topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
        _api(topics.DeleteRecordsRequest, topics.DeleteRecordsResponse),
        _api(transactions.InitProducerIdRequest, transactions.InitProducerIdResponse),
        _api(list_offsets.OffsetForLeaderEpochRequest, list_offsets.OffsetForLeaderEpochResponse),
        _api(transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
        _api(transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
        _api(transactions.EndTxnRequest, transactions.EndTxnResponse),
        _api(transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
        _api(transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
        _api(configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
        _api(configs.AlterConfigsRequest, configs.AlterConfigsResponse),
        _api(cluster.DescribeLogDirsRequest, cluster.DescribeLogDirsResponse),
        _api(topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
        _api(groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
        _api(cluster.ElectLeadersRequest, cluster.ElectLeadersResponse),
        _api(configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse),
        _api(
            cluster.AlterPartitionReassignmentsRequest, cluster.AlterPartitionReassignmentsResponse
        ),
        _api(cluster.ListPartitionReassignmentsRequest, cluster.ListPartitionReassignmentsResponse),
        _api(groups.OffsetDeleteRequest, groups.OffsetDeleteResponse),
        _api(peers.AlterPartitionRequest, peers.AlterPartitionResponse),
        _api(cluster.DescribeClusterRequest, cluster.DescribeClusterResponse),
        _api(transactions.DescribeProducersRequest, transactions.DescribeProducersResponse),
        _api(transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse),
        _api(transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
        _api(peers.AllocateProducerIdsRequest, peers.AllocateProducerIdsResponse),
        _api(cluster.DescribeTopicPartitionsRequest, cluster.DescribeTopicPartitionsResponse),
        _api(peers.FollowMetadataRequest, peers.FollowMetadataResponse),
        _api(peers.VerifyTransactionsRequest, peers.VerifyTransactionsResponse),
        _api(peers.ReportReplicasRequest, peers.ReportReplicasResponse),
    )
}
assert set(API) == set(ApiKey)

KEY_OF_REQUEST: Final[dict[type, ApiKey]] = {api.request: api.key for api in API.values()}


def key_of(request: Request[Any]) -> ApiKey:
    """The API that a request asks."""
    return KEY_OF_REQUEST[type(request)]


def request_header_version(key: ApiKey, version: int) -> int:
    """2 carries tagged fields, 1 does not. The client id is an old-style string in both."""
    return 2 if version >= API[key].flexible_since else 1


def response_header_version(key: ApiKey, version: int) -> int:
    """1 carries tagged fields, 0 does not; ApiVersions has 0 always, so that anyone can read it."""
    return 1 if version >= _ANSWERS_FLEXIBLE_SINCE[key] else 0


# A request is as large as what it lists: 16 MiB hold 10,000 partitions of topics with the longest
# names, and more metadata of commits and members than brokers store. Produce alone carries records.
# Requests without lists hold a few strings of 32 KiB at most.
REQUEST_BYTES_SMALL: Final = 1 << 18
REQUEST_BYTES_OF_LISTS: Final = 1 << 24
_WITHOUT_LISTS: Final = frozenset(
    {
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.API_VERSIONS,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.END_TXN,
        ApiKey.FOLLOW_METADATA,
        ApiKey.HEARTBEAT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.LIST_GROUPS,
    }
)


def request_bytes_max(key: ApiKey) -> int:
    """How large a broker lets a request be, below socket.request.max.bytes."""
    if key is ApiKey.PRODUCE:
        return INT32_MAX
    return REQUEST_BYTES_SMALL if key in _WITHOUT_LISTS else REQUEST_BYTES_OF_LISTS


INT32_MAX: Final = 2**31 - 1
NO_VERSION: Final = 1 << 15  # above all that 16 bits can say: a client may ask in any
_ANSWERS_FLEXIBLE_SINCE: Final = {
    api.key: NO_VERSION if api.key is ApiKey.API_VERSIONS else api.flexible_since
    for api in API.values()
}
