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
from kafkalite.core.handlers.parts import ENTRIES_PER_PART, Parts
from kafkalite.core.handlers.routes import handles
from kafkalite.core.handlers.slices import Answering, in_slices
from kafkalite.core.pending import after, when_all
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafkalite.core.protocol.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kafkalite.core.types import RequestContext, TopicPartition, sorted_by_topic
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker
    from kafkalite.core.groups.coordinator import GroupCoordinator

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


@handles(ApiKey.LEAVE_GROUP, (0, 5), Parts("members", "members"))
def leave_group(broker: Broker, request: LeaveGroupRequest, context: RequestContext) -> Any:
    """Answered when the departure is durable."""
    return _carry(broker, request.group_id, request, context)


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0))
def offset_delete(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> Any:
    """Answered when the tombstones are durable. Partitions that do not exist keep their offsets."""
    if sum(len(topic.partitions) for topic in request.topics) <= ENTRIES_PER_PART:
        return _delete_offsets(broker, request, context)
    slices = _delete_in_slices(broker, request, context)
    return in_slices(broker, ApiKey.OFFSET_DELETE, context, slices)


def _delete_in_slices(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> Answering:
    """The same part by part. A group whose last offset goes with one part is gone for the next:
    that has nothing left to delete."""
    has_begun = False

    def delete(part: OffsetDeleteRequest) -> Any:
        def checked(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
            nonlocal has_begun
            if has_begun and response.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
                known = known_partitions(part, broker.image)
                return _with_unknown_partitions(part, _nothing_to_delete(known))
            has_begun |= response.error_code is ErrorCode.NONE
            return response

        return after(_delete_offsets(broker, part, context), checked)

    return (yield from Parts("topics.partitions", "topics.partitions").answer(request, delete))


def _nothing_to_delete(request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    topics = (
        OffsetDeleteResponseTopic(
            topic.name,
            tuple(OffsetDeleteResponsePartition(p.partition_index) for p in topic.partitions),
        )
        for topic in request.topics
    )
    return OffsetDeleteResponse(topics=tuple(topics))


def _delete_offsets(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> Any:
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


@handles(ApiKey.DESCRIBE_GROUPS, (0, 5), Parts("groups", "groups", identity=str))
def describe_groups(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> Any:
    """Returns the members and states of groups, each group once."""
    if sum(_member_count(broker, each) for each in request.groups) > ENTRIES_PER_PART:
        slices = _describe_in_slices(broker, request, context)
        return in_slices(broker, ApiKey.DESCRIBE_GROUPS, context, slices)
    return _describe_groups(broker, request, context)


def _describe_groups(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> Any:
    def combine(answers: list[DescribeGroupsResponse]) -> DescribeGroupsResponse:
        found = {group.group_id: group for answer in answers for group in answer.groups}
        groups = (found[group_id] for group_id in dict.fromkeys(request.groups))
        if request.include_authorized_operations:
            groups = (_with_operations(group) for group in groups)
        return DescribeGroupsResponse(groups=tuple(groups))

    answers = _split(broker, request.groups, lambda ids: DescribeGroupsRequest(ids), context)
    return when_all(answers, combine)


def _member_count(broker: Broker, group_id: str) -> int:
    try:
        return _machine(broker, group_id).member_count(group_id)
    except ApiError:
        return 0


def _machine(broker: Broker, group_id: str) -> GroupCoordinator:
    """The machine that keeps a group. ApiError: not here, or not yet."""
    return broker.groups.ready(broker.groups.index_of(group_id)).machine


def _describe_in_slices(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> Answering:
    """The same where groups have very many members. Each group is described as the slice that
    begins with it finds it."""
    groups: list[DescribedGroup] = []
    for group_id in dict.fromkeys(request.groups):
        if _member_count(broker, group_id) > ENTRIES_PER_PART:
            description = _machine(broker, group_id).description(group_id)
            members: list[DescribedGroupMember] = []
            for member in description.members():
                members.append(member)
                if len(members) % ENTRIES_PER_PART == 0:
                    yield
            group = description.with_members(tuple(members))
            is_for_operators = request.include_authorized_operations
            groups.append(_with_operations(group) if is_for_operators else group)
        else:
            few = replace(request, groups=(group_id,))
            groups += _describe_groups(broker, few, context).groups
        yield
    return DescribeGroupsResponse(groups=tuple(groups))


def _with_operations(group: DescribedGroup) -> DescribedGroup:
    return replace(group, authorized_operations=GROUP_OPERATIONS)


@handles(ApiKey.DELETE_GROUPS, (0, 2), Parts("groups_names", "results", identity=str))
def delete_groups(broker: Broker, request: DeleteGroupsRequest, context: RequestContext) -> Any:
    """Answered when the groups are durably gone."""

    def combine(answers: list[DeleteGroupsResponse]) -> DeleteGroupsResponse:
        found = {result.group_id: result for answer in answers for result in answer.results}
        wanted = dict.fromkeys(request.groups_names)
        return DeleteGroupsResponse(results=tuple(found[name] for name in wanted))

    answers = _split(broker, request.groups_names, lambda ids: DeleteGroupsRequest(ids), context)
    return when_all(answers, combine)


OFFSETS_OF_GROUPS: Final = Parts(
    "groups.topics.partition_indexes",
    "groups.topics.partitions",
    identity=lambda group: group.group_id,
)
OFFSETS_OF_TOPICS: Final = Parts("topics.partition_indexes", "topics.partitions")


@handles(ApiKey.OFFSET_FETCH, (1, 9), OFFSETS_OF_GROUPS, OFFSETS_OF_TOPICS)
def offset_fetch(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> Any:
    """Returns the committed offsets of groups."""
    unnamed = [group.group_id for group in request.groups if group.topics is None]
    if request.topics is None:
        unnamed.append(request.group_id)
    if unnamed and sum(_committed_count(broker, each) for each in unnamed) > ENTRIES_PER_PART:
        slices = _fetch_by_name(broker, request, context)
        return in_slices(broker, ApiKey.OFFSET_FETCH, context, slices)
    return _fetch_offsets(broker, request, context)


def _committed_count(broker: Broker, group_id: str) -> int:
    try:
        return _machine(broker, group_id).committed_count(group_id)
    except ApiError:
        return 0


def _fetch_by_name(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext
) -> Answering:
    """The same where groups have committed very many offsets: in parts, which name partitions."""
    handler = partial(_fetch_offsets, broker, context=context)
    if request.topics is None:
        topics = _committed(broker, request.group_id, OffsetFetchRequestTopic)
        return (yield from OFFSETS_OF_TOPICS.answer(replace(request, topics=topics), handler))
    groups: list[OffsetFetchRequestGroup] = []
    distinct = {group.group_id: group for group in request.groups}
    for group in distinct.values():
        if group.topics is None:
            yield
            named = _committed(broker, group.group_id, OffsetFetchRequestTopics)
            groups.append(replace(group, topics=named))
        else:
            groups.append(group)
    named_by_all = replace(request, groups=tuple(groups))
    return (yield from OFFSETS_OF_GROUPS.answer(named_by_all, handler))


def _committed(
    broker: Broker, group_id: str, topic: Callable[[str, tuple[int, ...]], Any]
) -> tuple[Any, ...] | None:
    """The partitions of which a group has committed offsets; None where its coordinator is not here
    to say it, as the answer will tell."""
    try:
        machine = _machine(broker, group_id)
    except ApiError:
        return None
    partitions, _ = machine.committed_offsets(group_id)
    topics = sorted_by_topic(partitions).items()
    return tuple(topic(name, tuple(numbers)) for name, numbers in topics)


def _fetch_offsets(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> Any:
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
    indexes = [each.partition.topic_partition.partition for each in coordinators]
    slices = _list_groups(broker, request, context, indexes)
    return in_slices(broker, ApiKey.LIST_GROUPS, context, slices)


def _list_groups(
    broker: Broker, request: ListGroupsRequest, context: RequestContext, indexes: Iterable[int]
) -> Answering:
    """The groups of one coordinator after the other."""
    groups: list[ListedGroup] = []
    work = 0
    for index in indexes:
        if work >= ENTRIES_PER_PART:
            work = 0
            yield
        try:
            answer = broker.groups.handle(index, request, context)
        except ApiError as error:  # it resigned meanwhile
            return ListGroupsResponse(error_code=error.error_code)
        groups += answer.groups
        work += len(answer.groups)
    return ListGroupsResponse(groups=tuple(groups))
