"""The answer to each group request whose coordinator is on another broker, or still loading. [P]

Source apache/kafka `GroupCoordinatorService`, the `getErrorResponse` of each request.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Final

from kafkalite.core.protocol.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kafkalite.core.protocol.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kafkalite.errors import ErrorCode

NO_GENERATION: Final = -1


@singledispatch
def refuse(request: Any, code: ErrorCode) -> Any:
    """The response that says `code` in the place where clients look for it."""
    raise AssertionError(f"{type(request).__name__} is no request to a group coordinator")


@refuse.register
def _(request: JoinGroupRequest, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code, generation_id=NO_GENERATION, member_id=request.member_id
    )


@refuse.register
def _(request: SyncGroupRequest, code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


@refuse.register
def _(request: HeartbeatRequest, code: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


@refuse.register
def _(request: LeaveGroupRequest, code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


@refuse.register
def _(request: DescribeGroupsRequest, code: ErrorCode) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=tuple(DescribedGroup(code, group_id) for group_id in request.groups)
    )


@refuse.register
def _(request: DeleteGroupsRequest, code: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=tuple(DeletableGroupResult(name, code) for name in request.groups_names)
    )


@refuse.register
def _(request: OffsetDeleteRequest, code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code)


@refuse.register
def _(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    named = _each_partition(request, code, OffsetCommitResponseTopic, OffsetCommitResponsePartition)
    return OffsetCommitResponse(topics=named)


@refuse.register
def _(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    named = _each_partition(
        request, code, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition
    )
    return TxnOffsetCommitResponse(topics=named)


def _each_partition(
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    code: ErrorCode,
    topic: Any,
    partition: Any,
) -> tuple[Any, ...]:
    return tuple(
        topic(each.name, tuple(partition(p.partition_index, code) for p in each.partitions))
        for each in request.topics
    )


@refuse.register
def _(request: OffsetFetchRequest, code: ErrorCode) -> OffsetFetchResponse:
    """In all of its shapes at once: per partition (v1), on top (v2 to v7), per group (v8 on)."""
    return OffsetFetchResponse(
        error_code=code,
        topics=tuple(
            OffsetFetchResponseTopic(
                topic.name,
                tuple(
                    OffsetFetchResponsePartition(index, -1, error_code=code)
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics or ()
        ),
        groups=tuple(
            OffsetFetchResponseGroup(group.group_id, (), code) for group in request.groups
        ),
    )
