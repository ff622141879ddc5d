"""What operators ask of groups: DescribeGroups, ListGroups, DeleteGroups.                  [P]

Owns   nothing.
Fails  with an error code per group. A group that is not there is described as Dead.
Source KIP-222 (DeleteGroups), KIP-518 (states filter), KIP-848 (types filter); apache/kafka
       `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kafkalite.core.coordinators.machine import Step
from kafkalite.core.groups.group import (
    DEAD,
    EMPTY,
    STABLE,
    Group,
    Member,
    Protocols,
    metadata_of,
)
from kafkalite.core.groups.offsets import Offsets
from kafkalite.core.groups.rebalance import Rebalances
from kafkalite.core.groups.records import group_tombstone
from kafkalite.core.protocol.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafkalite.core.types import RequestContext
from kafkalite.errors import ErrorCode

GROUP_TYPE: Final = "classic"


class GroupAdmin:
    """The requests about groups as a whole. Each adds its results to a `Step`."""

    def __init__(self, rebalances: Rebalances, offsets: Offsets) -> None:
        self._groups = rebalances.groups
        self._offsets = offsets

    def describe(self, request: DescribeGroupsRequest, context: RequestContext, step: Step) -> None:
        """Shows members; their metadata and assignments only if the group is stable."""
        found = (Description(group_id, self._groups.get(group_id)) for group_id in request.groups)
        groups = tuple(each.with_members(tuple(each.members())) for each in found)
        step.reply(context.token, DescribeGroupsResponse(groups=groups))

    def list(self, request: ListGroupsRequest, context: RequestContext, step: Step) -> None:
        """Names all groups in one of the wanted states; no state named means any."""
        states = {state.lower() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        groups = tuple(
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value, GROUP_TYPE)
            for group in self._groups.values()
            if (not states or group.state.value.lower() in states)
            and (not types or GROUP_TYPE in types)
        )
        step.reply(context.token, ListGroupsResponse(groups=groups))

    def delete(self, request: DeleteGroupsRequest, context: RequestContext, step: Step) -> None:
        """Forgets groups and their offsets; the answer follows the tombstones."""
        wanted = dict.fromkeys(request.groups_names)
        results = tuple(DeletableGroupResult(g, self._delete_one(g, step)) for g in wanted)
        step.reply(context.token, DeleteGroupsResponse(results=results))

    def _delete_one(self, group_id: str, step: Step) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        step.append(*self._offsets.forget(group_id), group_tombstone(group_id))
        group.records_in_flight += 1
        return ErrorCode.NONE


class Description:
    """One group at a moment. Its members can be described later, a few at a time: their metadata
    and assignments are held, not copied."""

    def __init__(self, group_id: str, group: Group | None) -> None:
        self._members: tuple[tuple[Member, Protocols, bytes], ...] = ()
        self._protocol_name: str | None = None
        if group is None:
            self._head = DescribedGroup(group_id=group_id, group_state=DEAD.value)
            return
        is_stable = group.state is STABLE
        if is_stable:
            self._protocol_name = group.protocol_name
            self._members = tuple((m, m.protocols, m.assignment) for m in group.members.values())
        else:
            self._members = tuple((m, (), b"") for m in group.members.values())
        self._head = DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=self._protocol_name or "",
        )

    def members(self) -> Iterator[DescribedGroupMember]:
        """Each member, with metadata and assignment if the group was stable."""
        for member, protocols, assignment in self._members:
            yield DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=metadata_of(protocols, self._protocol_name),
                member_assignment=assignment,
            )

    def with_members(self, members: tuple[DescribedGroupMember, ...]) -> DescribedGroup:
        """The whole description."""
        return replace(self._head, members=members) if members else self._head
