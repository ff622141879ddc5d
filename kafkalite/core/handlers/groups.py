"""All requests about groups but commits: carried to the coordinators that keep them.        [P]

A request about one group goes to its coordinator as it is. One about several is split by
coordinator, and their answers are put together in the order of the request.

Source KIP-699, KIP-709 (several groups); apache/kafka `KafkaApis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.handlers.group_errors import refuse
from kafkalite.core.handlers.offset_commits import known_partitions
from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import after, when_all
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafkalite.core.protocol.offsets import OffsetFetchRequest, OffsetFetchResponse
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

SEVERAL_GROUPS_V: Final = 8
GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8  # read, delete, describe: there is no authorizer


def _carry(broker: Broker, group_id: str, request: Any, context: RequestContext) -> Any:
    """The answer of the group's coordinator, or why it cannot be asked."""
    try:
        return broker.groups.handle(broker.groups.index_of(group_id), request, context)
    except ApiError as error:
        return refuse(request, error.error_code)


@handles(ApiKey.JOIN_GROUP, versions=(0, 9))
def join_group(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> Any:
    """Answered when the next generation begins."""
    return _carry(broker, request.group_id, request, context)


@handles(ApiKey.SYNC_GROUP, versions=(0, 5))
def sync_group(broker: Broker, request: SyncGroupRequest, context: RequestContext) -> Any:
    """Answered when the leader's assignment is durable. From v5 on the protocol must be named."""
    if context.api_version >= 5 and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return _carry(broker, request.group_id, request, context)


@handles(ApiKey.HEARTBEAT, versions=(0, 4))
def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> Any:
    """Answered at once."""
    return _carry(broker, request.group_id, request, context)


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5))
def leave_group(broker: Broker, request: LeaveGroupRequest, context: RequestContext) -> Any:
    """Answered when the departure is durable."""
    return _carry(broker, request.group_id, request, context)


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0))
def offset_delete(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> Any:
    """Answered when the tombstones are durable. Partitions that do not exist keep their offsets."""
    if not request.group_id:
        return refuse(request, ErrorCode.INVALID_GROUP_ID)
    known = known_partitions(request, broker.image)
    answer = _carry(broker, request.group_id, known, context)
    if known is request:
        return answer
    return after(answer, partial(_with_unknown_partitions, request))


def _with_unknown_partitions(
    request: OffsetDeleteRequest, response: OffsetDeleteResponse
) -> OffsetDeleteResponse:
    """The coordinator's answer, completed by the partitions that it was not asked about."""
    if response.error_code is not ErrorCode.NONE:
        return response
    codes = {
        TopicPartition(topic.name, p.partition_index): p.error_code
        for topic in response.topics
        for p in topic.partitions
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = (
        OffsetDeleteResponseTopic(
            topic.name,
            tuple(
                OffsetDeleteResponsePartition(
                    p.partition_index,
                    codes.get(TopicPartition(topic.name, p.partition_index), unknown),
                )
                for p in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return replace(response, topics=tuple(topics))


# ---- several groups at once --------------------------------------------------------------------


def _split(
    broker: Broker,
    group_ids: Iterable[str],
    part: Callable[[tuple[str, ...]], Any],
    context: RequestContext,
) -> list[Any]:
    """The coordinators' answers, each to its `part` of the request."""
    by_index: dict[int, list[str]] = {}
    nowhere: list[str] = []
    for group_id in dict.fromkeys(group_ids):
        if broker.groups.exists:
            by_index.setdefault(broker.groups.index_of(group_id), []).append(group_id)
        else:
            nowhere.append(group_id)
    answers = [_carry(broker, ids[0], part(tuple(ids)), context) for ids in by_index.values()]
    if nowhere:
        answers.append(refuse(part(tuple(nowhere)), ErrorCode.NOT_COORDINATOR))
    return answers


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 5))
def describe_groups(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> Any:
    """Members and states of groups, each told once."""

    def combine(answers: list[DescribeGroupsResponse]) -> DescribeGroupsResponse:
        found = {group.group_id: group for answer in answers for group in answer.groups}
        groups = (found[group_id] for group_id in dict.fromkeys(request.groups))
        if request.include_authorized_operations:
            groups = (_with_operations(group) for group in groups)
        return DescribeGroupsResponse(groups=tuple(groups))

    answers = _split(broker, request.groups, lambda ids: DescribeGroupsRequest(ids), context)
    return when_all(answers, combine)


def _with_operations(group: DescribedGroup) -> DescribedGroup:
    return replace(group, authorized_operations=GROUP_OPERATIONS)


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2))
def delete_groups(broker: Broker, request: DeleteGroupsRequest, context: RequestContext) -> Any:
    """Answered when the groups are durably gone."""

    def combine(answers: list[DeleteGroupsResponse]) -> DeleteGroupsResponse:
        found = {result.group_id: result for answer in answers for result in answer.results}
        wanted = dict.fromkeys(request.groups_names)
        return DeleteGroupsResponse(results=tuple(found[name] for name in wanted))

    answers = _split(broker, request.groups_names, lambda ids: DeleteGroupsRequest(ids), context)
    return when_all(answers, combine)


@handles(ApiKey.OFFSET_FETCH, versions=(1, 9))
def offset_fetch(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> Any:
    """Where groups go on."""
    if context.api_version < SEVERAL_GROUPS_V:
        return _carry(broker, request.group_id, request, context)
    by_id: Mapping[str, Any] = {group.group_id: group for group in request.groups}

    def combine(answers: list[OffsetFetchResponse]) -> OffsetFetchResponse:
        found = {group.group_id: group for answer in answers for group in answer.groups}
        return OffsetFetchResponse(groups=tuple(found[group_id] for group_id in by_id))

    def part(ids: tuple[str, ...]) -> OffsetFetchRequest:
        return replace(request, groups=tuple(by_id[group_id] for group_id in ids))

    return when_all(_split(broker, by_id, part, context), combine)


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def list_groups(broker: Broker, request: ListGroupsRequest, context: RequestContext) -> Any:
    """All groups that this broker coordinates; an error while some are still being loaded."""
    try:
        coordinators = broker.groups.all_ready()
    except ApiError as error:
        return ListGroupsResponse(error_code=error.error_code)
    answers = [
        broker.groups.handle(each.partition.topic_partition.partition, request, context)
        for each in coordinators
    ]

    def combine(parts: list[ListGroupsResponse]) -> ListGroupsResponse:
        groups = tuple(group for part in parts for group in part.groups)
        return ListGroupsResponse(groups=groups)

    return when_all(answers, combine)
