"""The classic group protocol: join, sync, heartbeat, leave.                                 [P]

    member                coordinator
      │ JoinGroup ───────────> PREPARING_REBALANCE    waits until all joined, or the time is up
      │ <─────────── generation, leader, to the leader also who is in it
      │ SyncGroup ───────────> COMPLETING_REBALANCE   waits for the leader's assignment
      │ <─────────── assignment, once it is in the log: STABLE
      │ Heartbeat ───────────> REBALANCE_IN_PROGRESS means: join again

Owns   what each of these requests means in each state.
Never  reads a clock, writes a log or answers a socket: a step collects what to append and reply.
       A request is answered exactly once; if its member asks anew before that, the older one is
       answered with REBALANCE_IN_PROGRESS.
Fails  with an error code in the response.
Source KIP-62, KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED), KIP-559 (protocol checks),
       KIP-814 (skip_assignment); apache/kafka `GroupMetadataManager`. Two differences: a static
       member that comes back with other topics begins a rebalance; and no restart brings back a
       member that is gone (see `rebalance`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID

from kafkalite.core.coordinators.machine import Step
from kafkalite.core.groups.group import (
    PREPARING_REBALANCE,
    STABLE,
    Group,
    GroupConfig,
    Member,
    Waiting,
    positive_or,
)
from kafkalite.core.groups.rebalance import Rebalances, joined, refuse_join, refuse_sync, synced
from kafkalite.core.protocol.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)
from kafkalite.core.types import RequestContext
from kafkalite.errors import ErrorCode

MEMBER_ID_REQUIRED_SINCE: Final = 4  # JoinGroup
SKIP_ASSIGNMENT_SINCE: Final = 9  # JoinGroup
MEMBERS_SINCE: Final = 3  # LeaveGroup

HEARTBEAT: Final = {code: HeartbeatResponse(error_code=code) for code in ErrorCode}


@dataclass(frozen=True, slots=True)
class _Join:
    """A JoinGroup, and the step that it is part of."""

    request: JoinGroupRequest
    context: RequestContext
    step: Step

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.context.token, self.context.api_version)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 has none of its own."""
        return positive_or(self.request.rebalance_timeout_ms, self.request.session_timeout_ms)

    def answer(self, response: JoinGroupResponse) -> None:
        self.step.reply(self.context.token, response)

    def refuse(self, error: ErrorCode, member_id: str) -> None:
        refuse_join(self.waiting, error, member_id, self.step)


class Membership:
    """The four requests of members. Each adds its results to a `Step`."""

    def __init__(self, rebalances: Rebalances, config: GroupConfig, random: Random) -> None:
        self._groups = rebalances.groups
        self._rebalances = rebalances
        self._config = config
        self._random = random

    # -- JoinGroup

    def join(self, request: JoinGroupRequest, context: RequestContext, step: Step) -> None:
        """Lets a member take part in the next generation, which is when most are answered."""
        join = _Join(request, context, step)
        group = self._group_to_join(request)
        if isinstance(group, ErrorCode):
            join.refuse(group, request.member_id)
            return
        if not self._has_room(group, request):
            self._drop_whom_there_is_no_room_for(group, join)
        elif not group.supports(request.protocol_type, (p.name for p in request.protocols)):
            join.refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        elif request.member_id:
            self._join_known(group, join)
        else:
            self._join_unknown(group, join)
        self._rebalances.complete_join_if_ready(group, step)
        self._rebalances.conclude(group, step)

    def _group_to_join(self, request: JoinGroupRequest) -> Group | ErrorCode:
        """The group, made if it is not there and the member is new; or why it cannot be joined."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        config = self._config
        shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(request.protocols) > config.protocols_max:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id:
            return self._groups.get(request.group_id) or ErrorCode.UNKNOWN_MEMBER_ID
        group = self._rebalances.get_or_create(request.group_id)
        return group or ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _has_room(self, group: Group, request: JoinGroupRequest) -> bool:
        """Whether the member is in the group already or may still come in.

        While members rejoin, the first ones to do so have the room: so a limit that was lowered
        takes hold in the next rebalance.
        """
        size_max = self._config.group_max_size
        member_id = request.member_id
        if request.group_instance_id is not None:
            member_id = group.static_members.get(request.group_instance_id, member_id)
        if group.state is PREPARING_REBALANCE:
            return member_id in group.joining or len(group.joining) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _drop_whom_there_is_no_room_for(self, group: Group, join: _Join) -> None:
        member_id = join.request.member_id
        self._rebalances.drop_pending(group, member_id)
        if member_id in group.members:
            self._rebalances.remove(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID, join.step)
        join.refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, "")

    def _join_unknown(self, group: Group, join: _Join) -> None:
        """A member without an id: new, or a static one that came back."""
        instance_id = join.request.group_instance_id
        prefix = (join.context.client_id or "") if instance_id is None else instance_id
        member_id = f"{prefix}-{UUID(int=self._random.getrandbits(128), version=4)}"
        if instance_id is not None and instance_id in group.static_members:
            self._join_static_again(group, member_id, join)
        elif instance_id is not None or join.context.api_version < MEMBER_ID_REQUIRED_SINCE:
            self._join_new(group, member_id, join)
        elif len(group.pending_members) >= self._config.pending_members_max:
            join.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        else:
            until_ms = join.step.now.monotonic_ms + join.request.session_timeout_ms
            self._rebalances.give_out(group, member_id, until_ms)
            join.refuse(ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _join_known(self, group: Group, join: _Join) -> None:
        """A member with an id: a newly assigned id, or a member that joins again."""
        request = join.request
        member_id = request.member_id
        if member_id in group.pending_members and request.group_instance_id is None:
            self._rebalances.drop_pending(group, member_id)
            self._join_new(group, member_id, join)
            return
        member = group.find(member_id, request.group_instance_id)
        if isinstance(member, ErrorCode):
            join.refuse(member, member_id)
            return
        leads_stable = group.state is STABLE and group.leader_id == member_id
        if (
            group.state is not PREPARING_REBALANCE
            and member.protocols == request.protocols
            and not leads_stable
        ):
            # its answer was lost, or it wants the assignment that it has anyway
            join.answer(joined(group, member))
            return
        _update(group, member, join)
        self._wait_to_join(group, member, join)

    def _join_new(self, group: Group, member_id: str, join: _Join) -> None:
        """Adds a new member. It is removed if its generation does not begin in time."""
        request = join.request
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=join.context.client_id or "",
            client_host=join.context.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )
        group.add(member, request.protocol_type)
        group.grew = True
        self._rebalances.expect_join(group, member, join.step.now.monotonic_ms)
        self._wait_to_join(group, member, join)

    def _join_static_again(self, group: Group, member_id: str, join: _Join) -> None:
        """A static member is back, under a new id: in a stable group it has its old assignment."""
        assert join.request.group_instance_id is not None
        old_id = group.static_members[join.request.group_instance_id]
        old_leader_id = group.leader_id
        self._rebalances.answer_waiting(group, old_id, ErrorCode.FENCED_INSTANCE_ID, join.step)
        member = self._rebalances.rename(group, old_id, member_id)
        member.client_id = join.context.client_id or ""
        member.client_host = join.context.client_host
        member.is_new = False
        topics = group.topics_of(member)
        _update(group, member, join)
        self._rebalances.expect_heartbeat(group, member, join.step.now.monotonic_ms)
        if (
            group.state is not STABLE
            or group.selected_protocol() != group.protocol_name
            or group.topics_of(member) != topics
        ):
            self._wait_to_join(group, member, join)
            return
        self._rebalances.store(
            group, {m.member_id: m.assignment for m in group.members.values()}, join.step
        )
        if join.context.api_version >= SKIP_ASSIGNMENT_SINCE:
            skip = group.leader_id == member_id
            join.answer(joined(group, member, skip_assignment=skip))
        else:
            # it must not think that it leads: it would assign, and nobody would hear of it
            join.answer(joined(group, member, leader_id=old_leader_id))

    def _wait_to_join(self, group: Group, member: Member, join: _Join) -> None:
        """The member is answered when the next generation begins; it is asked for if need be."""
        older = group.joining.pop(member.member_id, None)
        if older is not None:
            refuse_join(older, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id, join.step)
        group.joining[member.member_id] = join.waiting
        group.read_subscription(member)
        if group.state is not PREPARING_REBALANCE:
            self._rebalances.prepare_rebalance(group, join.step)

    # -- SyncGroup

    def sync(self, request: SyncGroupRequest, context: RequestContext, step: Step) -> None:
        """Answers with the member's assignment, as soon as the leader's is in the log."""
        waiting = Waiting(context.token, context.api_version)
        group = self._groups.get(request.group_id) if request.group_id else None
        if group is None:
            refuse_sync(waiting, _no_group(request.group_id), step)
            return
        member = _syncing_member(group, request)
        if isinstance(member, ErrorCode):
            refuse_sync(waiting, member, step)
            return
        self._rebalances.note_sync(group, member)
        if group.state is STABLE:
            self._rebalances.expect_heartbeat(group, member, step.now.monotonic_ms)
            step.reply(waiting.token, synced(group, member.assignment))
            return
        if (older := group.syncing.pop(member.member_id, None)) is not None:
            refuse_sync(older, ErrorCode.REBALANCE_IN_PROGRESS, step)
        group.syncing[member.member_id] = waiting
        if member.member_id == group.leader_id and group.storing_generation_id is None:
            self._rebalances.store_assignment(group, request, step)

    # -- Heartbeat, LeaveGroup

    def heartbeat(self, request: HeartbeatRequest, monotonic_ms: int) -> HeartbeatResponse:
        """Keeps a member alive. Never durable: a restart gives every member a full session."""
        group = self._groups.get(request.group_id) if request.group_id else None
        if group is None:
            return HEARTBEAT[_no_group(request.group_id)]
        member = group.find(request.member_id, request.group_instance_id)
        if isinstance(member, ErrorCode):
            return HEARTBEAT[member]
        if request.generation_id != group.generation_id:
            return HEARTBEAT[group.wrong_generation]
        self._rebalances.expect_heartbeat(group, member, monotonic_ms)
        rebalances = group.state is PREPARING_REBALANCE
        return HEARTBEAT[ErrorCode.REBALANCE_IN_PROGRESS if rebalances else ErrorCode.NONE]

    def leave(self, request: LeaveGroupRequest, context: RequestContext, step: Step) -> None:
        """Takes members out, by their id or, from version 3 on, by their instance id."""
        members: Iterable[MemberIdentity] = request.members
        if context.api_version < MEMBERS_SINCE:
            members = (MemberIdentity(member_id=request.member_id),)
        group = self._groups.get(request.group_id) if request.group_id else None
        size = 0 if group is None else len(group.members)
        results = tuple(
            MemberResponse(m.member_id, m.group_instance_id, self._leave_one(group, m, step))
            for m in members
        )
        error = ErrorCode.NONE if request.group_id else ErrorCode.INVALID_GROUP_ID
        if context.api_version < MEMBERS_SINCE:
            response = LeaveGroupResponse(error_code=error or results[0].error_code)
        else:
            response = LeaveGroupResponse(error_code=error, members=() if error else results)
        step.reply(context.token, response)
        if group is None:
            return
        if len(group.members) < size:
            self._rebalances.after_removal(group, step)
        else:
            self._rebalances.complete_join_if_ready(group, step)
        self._rebalances.conclude(group, step)

    def _leave_one(self, group: Group | None, leaving: MemberIdentity, step: Step) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = leaving.member_id
        if not member_id:  # an operator removes a static member by its name
            member_id = group.static_members.get(leaving.group_instance_id or "", "")
        elif member_id in group.pending_members:
            self._rebalances.drop_pending(group, member_id)
            return ErrorCode.NONE
        member = group.find(member_id, leaving.group_instance_id)
        if isinstance(member, ErrorCode):
            return member
        self._rebalances.remove(group, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID, step)
        return ErrorCode.NONE


def _update(group: Group, member: Member, join: _Join) -> None:
    group.update(member, join.request.protocols)
    member.rebalance_timeout_ms = join.rebalance_timeout_ms
    member.session_timeout_ms = join.request.session_timeout_ms


def _no_group(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def _syncing_member(group: Group, request: SyncGroupRequest) -> Member | ErrorCode:
    """The member of a SyncGroup, or the error that it gets instead of an assignment."""
    member = group.find(request.member_id, request.group_instance_id)
    if isinstance(member, ErrorCode):
        return member
    if request.generation_id != group.generation_id:
        return group.wrong_generation
    if request.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return member
