"""Rebalances: how a group comes from one generation to the next, and what time does to it. [P]

    prepare ── all joined, or the time is up ──> complete ── the leader's assignment ──> store
                                                                  in the log ──> stable

No restart brings back a member that is gone. The group would wait for such a ghost until its
session ends, 45 s by default. Apache Kafka writes a group when a generation gets its assignment;
members who leave, time out or are renamed before the next one are in the log all the same. Here
two rules hold:

1. A departure is a record before it is an answer. The record is the last value of the group without
   the members who are gone, and without assignments: a coordinator that takes such a group over
   asks all others to join again. It puts nobody out but those whom the one before had put out.
2. In a group that was taken over, a member of another generation is told that the group rebalances,
   not that its generation is illegal: some clients would forget their id at that, come back under
   another, and be their own ghosts. The generation may be one that the log never had, or an answer
   was lost in the kill. The member keeps its id and its place, and loses nothing but a generation.

What is left: a client that dies or says goodbye while no broker hears it has its full session from
the restart on, for it cannot be told from one that is slow to come back; and so has a JoinGroup
before version 4 whose answer was lost (KIP-394 gives members their ids first for that reason).

Owns   the groups that run, and all their deadlines.
Never  reads a clock, writes a log or answers a socket: a step collects what to append and reply.
       A request that waits is answered exactly once.
Source KIP-62, KIP-134 (initial delay), KIP-345, KIP-394; apache/kafka `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from kafkalite.core.coordinators.deadlines import Deadlines
from kafkalite.core.coordinators.machine import Step
from kafkalite.core.groups.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
    GroupConfig,
    Member,
    Waiting,
)
from kafkalite.core.groups.records import decode_group, group_record
from kafkalite.core.protocol.group_records import GroupMetadataValue
from kafkalite.core.protocol.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafkalite.core.types import Now
from kafkalite.errors import ErrorCode

NULL_PROTOCOL_NAME_SINCE: Final = 7  # JoinGroup
MEMBERS_AT_ONCE: Final = 1_000  # in groups of which something falls due: records of some 200 KB


class Timer(IntEnum):
    """A kind of deadline; with a group id and a member id ("" for the group) it is a key."""

    SESSION = 0  # a member has not been heard of
    PENDING = 1  # a member id was given out and never used
    JOIN = 2  # the rebalance takes those who joined
    SYNC = 3  # members who did not ask for their assignment go
    RELEASE = 4  # an assignment came to be in the log while more members asked for it


TimerKey = tuple[Timer, str, str]


class Rebalances:
    """The groups of one coordinator.

    `has_offsets` tells of a group id whether the group must be kept for its offsets.
    """

    def __init__(self, config: GroupConfig, has_offsets: Callable[[str], bool]) -> None:
        self.groups: dict[str, Group] = {}
        self._config = config
        self._has_offsets = has_offsets
        self._deadlines: Deadlines[TimerKey] = Deadlines()

    def get_or_create(self, group_id: str) -> Group | None:
        """The group; None if there would be more of them than the coordinator may hold."""
        group = self.groups.get(group_id)
        if group is None and len(self.groups) < self._config.groups_max:
            group = self.groups[group_id] = Group(group_id)
        return group

    def keep(self, group_id: str) -> None:
        """Makes the group of an offset in the log, if it is not there."""
        if group_id not in self.groups:
            self.groups[group_id] = Group(group_id)

    def forget_if_vacant(self, group: Group) -> None:
        """Drops a group without members that neither the log nor an offset speaks of."""
        if group.is_vacant and not self._has_offsets(group.group_id):
            self._forget(group)

    def _forget(self, group: Group) -> None:
        """Drops a group and all its deadlines."""
        for timer in (Timer.JOIN, Timer.SYNC, Timer.RELEASE):
            self._deadlines.cancel((timer, group.group_id, ""))
        for member_id in group.members:
            self._deadlines.cancel((Timer.SESSION, group.group_id, member_id))
        for member_id in group.pending_members:
            self._deadlines.cancel((Timer.PENDING, group.group_id, member_id))
        group.become(DEAD, group.state_timestamp_ms)
        del self.groups[group.group_id]

    # -- members

    def expect_heartbeat(self, group: Group, member: Member, monotonic_ms: int) -> None:
        """Begins the member's session anew."""
        key = (Timer.SESSION, group.group_id, member.member_id)
        self._deadlines.set(key, monotonic_ms + member.session_timeout_ms)

    def expect_join(self, group: Group, member: Member, monotonic_ms: int) -> None:
        """A new member knows no id to heartbeat with; it stays for as long as its JoinGroup may."""
        key = (Timer.SESSION, group.group_id, member.member_id)
        self._deadlines.set(key, monotonic_ms + self._config.new_member_join_timeout_ms)

    def give_out(self, group: Group, member_id: str, until_ms: int) -> None:
        """Expects a join with this id."""
        group.pending_members.add(member_id)
        self._deadlines.set((Timer.PENDING, group.group_id, member_id), until_ms)

    def drop_pending(self, group: Group, member_id: str) -> None:
        """No longer expects a join with this id."""
        group.pending_members.discard(member_id)
        self._deadlines.cancel((Timer.PENDING, group.group_id, member_id))

    def rename(self, group: Group, old_id: str, new_id: str) -> Member:
        """Gives a static member a new id."""
        self._deadlines.cancel((Timer.SESSION, group.group_id, old_id))
        return group.rename(old_id, new_id)

    def note_sync(self, group: Group, member: Member) -> None:
        """The member has asked for its assignment."""
        group.not_yet_synced.discard(member.member_id)
        if not group.not_yet_synced:
            self._deadlines.cancel((Timer.SYNC, group.group_id, ""))

    def remove(self, group: Group, member_id: str, error: ErrorCode, step: Step) -> None:
        """Removes a member; the caller decides the consequences for the generation."""
        self.answer_waiting(group, member_id, error, step)
        self._deadlines.cancel((Timer.SESSION, group.group_id, member_id))
        group.remove(member_id)

    def after_removal(self, group: Group, step: Step) -> None:
        """A generation that lost members is over; one that still forms may be complete now."""
        if group.state in (STABLE, COMPLETING_REBALANCE):
            self.prepare_rebalance(group, step)
        else:
            self.complete_join_if_ready(group, step)

    def conclude(self, group: Group, step: Step) -> None:
        """Ends a step in which members came or went.

        Departures become a record, so that nobody who is gone comes back with a restart.
        """
        value = group.without_departed(step.now.wall_ms)
        if value is not None:
            self._write(group, value, step)
        self.forget_if_vacant(group)

    def answer_waiting(self, group: Group, member_id: str, error: ErrorCode, step: Step) -> None:
        """Answers the member's waiting request. A removed member gets no member id."""
        if (waiting := group.joining.pop(member_id, None)) is not None:
            is_out = error is ErrorCode.UNKNOWN_MEMBER_ID
            refuse_join(waiting, error, "" if is_out else member_id, step)
        if (waiting := group.syncing.pop(member_id, None)) is not None:
            refuse_sync(waiting, error, step)

    # -- rebalances

    def prepare_rebalance(self, group: Group, step: Step) -> None:
        """Asks all members to join again, and goes on at once if none is missing."""
        for member_id in list(group.syncing):
            self.expect_heartbeat(group, group.members[member_id], step.now.monotonic_ms)
            refuse_sync(group.syncing.pop(member_id), ErrorCode.REBALANCE_IN_PROGRESS, step)
        group.not_yet_synced.clear()
        group.storing_generation_id = None
        self._deadlines.cancel((Timer.SYNC, group.group_id, ""))
        is_first = group.state is EMPTY
        group.become(PREPARING_REBALANCE, step.now.wall_ms)
        delay_ms = self._config.group_initial_rebalance_delay_ms
        if is_first and delay_ms > 0:
            group.initial_until_ms = step.now.monotonic_ms + max(
                group.rebalance_timeout_ms, delay_ms
            )
            group.grew = False
            self._deadlines.set((Timer.JOIN, group.group_id, ""), step.now.monotonic_ms + delay_ms)
        elif is_first or group.all_joined:
            self._complete_join(group, step)
        else:
            timeout_ms = step.now.monotonic_ms + group.rebalance_timeout_ms
            self._deadlines.set((Timer.JOIN, group.group_id, ""), timeout_ms)

    def complete_join_if_ready(self, group: Group, step: Step) -> None:
        """Begins the generation if everyone joined. An empty group's first one waits for more."""
        waits = group.initial_until_ms is not None and group.members
        if group.state is PREPARING_REBALANCE and group.all_joined and not waits:
            self._complete_join(group, step)

    def _complete_join(self, group: Group, step: Step) -> None:
        """Begins the next generation with the members that joined, and all static members."""
        self._deadlines.cancel((Timer.JOIN, group.group_id, ""))
        for member in list(group.members.values()):
            if member.member_id not in group.joining and member.group_instance_id is None:
                self.remove(group, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID, step)
        if group.members and not group.elect_joined_leader():
            # only static members, none of whom is back: they have until their sessions end
            timeout_ms = step.now.monotonic_ms + group.rebalance_timeout_ms
            self._deadlines.set((Timer.JOIN, group.group_id, ""), timeout_ms)
            return
        group.begin_generation(step.now.wall_ms)
        if group.state is EMPTY:
            self.store(group, {}, step)
            return
        for member in group.members.values():
            waiting = group.joining.pop(member.member_id, None)
            if waiting is not None:
                step.reply(waiting.token, joined(group, member))
            member.is_new = False
            self.expect_heartbeat(group, member, step.now.monotonic_ms)
        timeout_ms = step.now.monotonic_ms + group.rebalance_timeout_ms
        self._deadlines.set((Timer.SYNC, group.group_id, ""), timeout_ms)

    def store(self, group: Group, assignments: dict[str, bytes], step: Step) -> None:
        """Remembers the group's generation in the log, with these assignments by member id."""
        self._write(group, group.to_value(assignments, step.now.wall_ms), step)

    def _write(self, group: Group, value: GroupMetadataValue, step: Step) -> None:
        record = group_record(group.group_id, value)
        step.append(record)
        group.written, group.written_data = value, record[1]
        group.records_in_flight += 1

    def store_assignment(self, group: Group, request: SyncGroupRequest, step: Step) -> None:
        """Writes the leader's assignment to the log, and then answers all waiting members."""
        assignments = {a.member_id: a.assignment for a in request.assignments}
        self.store(group, assignments, step)
        group.storing_generation_id = group.generation_id
        for member_id in list(group.syncing):
            waiting = group.syncing.pop(member_id)
            self.expect_heartbeat(group, group.members[member_id], step.now.monotonic_ms)
            step.reply(waiting.token, synced(group, assignments.get(member_id, b"")))

    def _release(self, group: Group, step: Step) -> None:
        """Answers members that asked while the assignment was being written."""
        if group.state is STABLE:
            for member_id in list(group.syncing):
                member = group.members[member_id]
                self.expect_heartbeat(group, member, step.now.monotonic_ms)
                waiting = group.syncing.pop(member_id)
                step.reply(waiting.token, synced(group, member.assignment))

    # -- the log

    def read(self, group_id: str, data: bytes) -> GroupMetadataValue:
        """A record's content about a group. The last record written here is not decoded."""
        group = self.groups.get(group_id)
        if group is not None and group.written is not None and group.written_data == data:
            return group.written
        return decode_group(data)

    def replay(self, group_id: str, value: GroupMetadataValue | None, now: Now) -> None:
        """Applies a group's record: of a group that runs here, or of one to take over.

        A record that this coordinator appended concerns a group that runs, and may run on already:
        only an assignment that it waits for moves it. Any other record is one of the past.
        """
        group = self.groups.get(group_id)
        if group is not None and group.records_in_flight:
            group.records_in_flight -= 1
            if value is None:
                group.durable = None
            elif group.install(value, now.wall_ms) and group.syncing:
                self._deadlines.set((Timer.RELEASE, group_id, ""), now.monotonic_ms)
            self._note_landed(group)
            self.forget_if_vacant(group)
            return
        if group is not None:
            self._forget(group)
        if value is not None:
            self._take_over(Group.from_value(group_id, value), now)
        elif self._has_offsets(group_id):
            self.keep(group_id)

    @staticmethod
    def _note_landed(group: Group) -> None:
        """Once no write is under way, the written state is the log's."""
        if not group.records_in_flight and group.written is not group.durable:
            group.written, group.written_data = group.durable, None
            group.has_departures = True

    def _take_over(self, group: Group, now: Now) -> None:
        self.groups[group.group_id] = group
        if group.is_unassigned or len(group.members) > self._config.group_max_size:
            self.prepare_rebalance(group, Step(now))  # nobody waits yet: nothing to answer
        self.renew_deadlines(group, now.monotonic_ms)

    def renew_deadlines(self, group: Group, monotonic_ms: int) -> None:
        """Gives each member a full session, and as long to join again if that is asked of it: to
        find the new coordinator takes time too."""
        for member in group.members.values():
            self.expect_heartbeat(group, member, monotonic_ms)
        if group.state is PREPARING_REBALANCE:
            session_ms = max(member.session_timeout_ms for member in group.members.values())
            timeout_ms = monotonic_ms + max(group.rebalance_timeout_ms, session_ms)
            self._deadlines.set((Timer.JOIN, group.group_id, ""), timeout_ms)

    def append_failed(self, group_id: str, value: GroupMetadataValue | None, step: Step) -> None:
        """A record did not get into the log. Without its assignment a generation begins anew."""
        group = self.groups.get(group_id)
        if group is None:
            return
        group.records_in_flight -= 1
        self._note_landed(group)
        if value is not None and group.storing_generation_id == value.generation:
            self.prepare_rebalance(group, step)

    def resign(self, step: Step) -> None:
        """Sends all waiting members to another coordinator, and forgets all groups."""
        for group in list(self.groups.values()):
            for member_id in (*group.joining, *group.syncing):
                self.answer_waiting(group, member_id, ErrorCode.NOT_COORDINATOR, step)
            self._forget(group)

    # -- time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, or a little before."""
        return self._deadlines.next_ms()

    def tick(self, step: Step) -> None:
        """Runs due timers; those beyond one batch of records stay due.

        However many members of a group depart at a time, they are one record.
        """
        concerned: dict[str, Group] = {}
        size = 0
        for timer, group_id, member_id in self._deadlines.due(step.now.monotonic_ms):
            group = self.groups[group_id]
            if group_id not in concerned:
                concerned[group_id] = group
                size += len(group.members)
            self._fall_due(timer, group, member_id, step)
            if size >= MEMBERS_AT_ONCE and len(concerned) > 1:
                break
        for group in concerned.values():
            self.conclude(group, step)

    def _fall_due(self, timer: Timer, group: Group, member_id: str, step: Step) -> None:
        if timer is Timer.SESSION:
            self._session_ended(group, group.members[member_id], step)
        elif timer is Timer.PENDING:
            group.pending_members.discard(member_id)
            self.complete_join_if_ready(group, step)
        elif timer is Timer.JOIN:
            self._join_time_is_up(group, step)
        elif timer is Timer.SYNC:
            self._sync_time_is_up(group, step)
        else:
            self._release(group, step)

    def _session_ended(self, group: Group, member: Member, step: Step) -> None:
        """A member that waits for an answer is alive: its session begins again with the answer."""
        waits = member.member_id in group.joining or member.member_id in group.syncing
        if member.is_new or not waits:
            self.remove(group, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID, step)
            self.after_removal(group, step)

    def _join_time_is_up(self, group: Group, step: Step) -> None:
        """Begins the generation; the first one waits on while members keep coming."""
        until_ms = group.initial_until_ms
        if until_ms is not None and group.grew:
            group.grew = False
            delay_ms = self._config.group_initial_rebalance_delay_ms
            next_ms = min(step.now.monotonic_ms + delay_ms, until_ms)
            self._deadlines.set((Timer.JOIN, group.group_id, ""), next_ms)
        else:
            self._complete_join(group, step)

    def _sync_time_is_up(self, group: Group, step: Step) -> None:
        """Removes members that did not ask for their assignment."""
        for member_id in list(group.not_yet_synced):
            self.remove(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID, step)
        self.prepare_rebalance(group, step)


def joined(
    group: Group, member: Member, *, leader_id: str | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """The new generation; the leader also gets its members.

    Another `leader_id` than the group's is given to a member that must not lead.
    """
    members: tuple[JoinGroupResponseMember, ...] = ()
    leader_id = leader_id or group.leader_id or ""
    if leader_id == member.member_id:
        members = tuple(
            JoinGroupResponseMember(
                m.member_id, m.group_instance_id, m.metadata(group.protocol_name)
            )
            for m in group.members.values()
        )
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader_id,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=members,
    )


def synced(group: Group, assignment: bytes) -> SyncGroupResponse:
    """A member's assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )


def refuse_join(waiting: Waiting, error: ErrorCode, member_id: str, step: Step) -> None:
    """Answers a JoinGroup with an error; a protocol name could not be null in older versions."""
    name = None if waiting.api_version >= NULL_PROTOCOL_NAME_SINCE else ""
    response = JoinGroupResponse(error_code=error, protocol_name=name, member_id=member_id)
    step.reply(waiting.token, response)


def refuse_sync(waiting: Waiting, error: ErrorCode, step: Step) -> None:
    """Answers a SyncGroup with an error."""
    step.reply(waiting.token, SyncGroupResponse(error_code=error))
