"""A consumer's part in its group: join, sync, heartbeat, leave.                           [P]

              ┌────────── the group rebalances, or the subscription changed ───────────┐
              v                                                                        │
    UNJOINED ──> JOINING ──> SYNCING ──> STABLE ───────────────────────────────────────┘
        ^           │           │           │
        └───────────┴───────────┴───────────┴── the coordinator no longer knows the member
    any ──> LEFT

The caller sends its requests and hands back the answers; `Next` names the next step.
Partitions are given up and taken on in two steps around a join, `revoke_before_join` and `take`,
so that the user's callbacks run in between, in the user's own poll.

    EAGER        all partitions are revoked before the join, the new ones taken after the sync
    COOPERATIVE  what the new assignment lacks is revoked after the sync, and the member joins
                 again, so that others can take the revoked partitions

Owns   the member's id, generation and partitions; when it must heartbeat and poll.
Never  reads a clock or a socket, or assigns partitions (assignors do).
Fails  with ApiError when the group refuses the member for good.
Source KIP-62 (poll interval), KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED), KIP-429
       (cooperative), KIP-814 (skip_assignment), KIP-1092 (leaving or not at a close);
       apache/kafka `AbstractCoordinator`, `ConsumerCoordinator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kafkalite.clients.consumer.assignors import (
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
)
from kafkalite.core.protocol.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from kafkalite.core.protocol.subscriptions import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode

NO_MEMBER: Final = ""
REASON_CHARACTERS_MAX: Final = 255


class MemberState(Enum):
    """The state of a member."""

    UNJOINED = "not part of any generation"
    JOINING = "waits for the others at the coordinator"
    SYNCING = "waits for the leader's assignment"
    STABLE = "has its assignment"
    LEFT = "has left and will not come back"


LEGAL: Final[Mapping[MemberState, frozenset[MemberState]]] = {
    MemberState.UNJOINED: frozenset({MemberState.JOINING, MemberState.LEFT}),
    MemberState.JOINING: frozenset({MemberState.SYNCING, MemberState.UNJOINED, MemberState.LEFT}),
    MemberState.SYNCING: frozenset(
        {MemberState.STABLE, MemberState.JOINING, MemberState.UNJOINED, MemberState.LEFT}
    ),
    MemberState.STABLE: frozenset({MemberState.JOINING, MemberState.UNJOINED, MemberState.LEFT}),
    MemberState.LEFT: frozenset(),
}


class Next(Enum):
    """How to go on after an answer."""

    DONE = "nothing to do"
    JOIN = "join again at once"
    RETRY = "join again after a pause"
    FIND = "find the coordinator anew, then join again"
    LEAD = "work out everyone's assignment, then sync"
    SYNC = "sync, bringing nothing"


FIND_COORDINATOR: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
# What a refused commit says of the member; all else is about the offsets.
ABOUT_THE_MEMBER: Final = FIND_COORDINATOR | {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
}


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """How a member behaves. Times in ms; a `group_instance_id` makes it a static member."""

    group_id: str
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's identity in its group. A transactional producer sends it with offsets."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of a new assignment to the member's partitions."""

    revoked: tuple[TopicPartition, ...]
    assigned: tuple[TopicPartition, ...]


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """COOPERATIVE only if all assignors are: any of them may win the group's vote."""
    if all(a.rebalance_protocol is RebalanceProtocol.COOPERATIVE for a in assignors):
        return RebalanceProtocol.COOPERATIVE
    return RebalanceProtocol.EAGER


class Membership:
    """One member. `lost` holds partitions that it owned until the group went on without it."""

    def __init__(self, config: MemberConfig, assignors: Sequence[Assignor]) -> None:
        assert assignors, "a group member needs an assignor"
        self.config = config
        self.state = MemberState.UNJOINED
        self.member_id = NO_MEMBER
        self.generation_id = NO_GENERATION
        self.topics: tuple[str, ...] = ()
        self.owned: frozenset[TopicPartition] = frozenset()
        self.lost: frozenset[TopicPartition] = frozenset()
        self.subscriptions: Mapping[str, Subscription] = {}  # of all members, for the leader alone
        self.is_leader = False
        self.rejoin_needed = True
        self._reason = ""
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._protocol = common_protocol(assignors)
        self._protocol_name = ""
        self._assignment = Assignment()
        self._heartbeat_at_ms = 0.0
        self._last_contact_ms = 0.0
        self._polled_at_ms = 0.0

    @property
    def group_metadata(self) -> GroupMetadata:
        """The member's current identity; an empty one without a generation."""
        known = self.generation_id != NO_GENERATION
        return GroupMetadata(
            self.config.group_id,
            self.generation_id,
            self.member_id if known else NO_MEMBER,
            self.config.group_instance_id,
        )

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances."""
        return self._protocol is RebalanceProtocol.COOPERATIVE

    @property
    def assignor(self) -> Assignor:
        """The assignor that the group voted for."""
        return self._assignors[self._protocol_name]

    def subscribe(self, topics: Sequence[str]) -> None:
        """Wants these topics from now on. A change makes the member join again."""
        wanted = tuple(sorted(set(topics)))
        if wanted != self.topics:
            self.topics = wanted
            self.rejoin("the subscription changed")

    def rejoin(self, reason: str) -> None:
        """Asks for a rebalance; the next poll joins."""
        self.rejoin_needed = True
        self._reason = reason

    # ---- join and sync ----

    def revoke_before_join(self) -> tuple[TopicPartition, ...]:
        """Gives up what the protocol wants given up before a join, and returns it."""
        if self.is_cooperative:
            revoked = frozenset(tp for tp in self.owned if tp.topic not in self.topics)
        else:
            revoked = self.owned
        self.owned -= revoked
        return tuple(sorted(revoked))

    def join_request(self) -> JoinGroupRequest:
        """Begins a join, or begins it again."""
        self._become(MemberState.JOINING)
        self.rejoin_needed = False
        owned = tuple(sorted(self.owned))
        protocols = []
        for name, assignor in self._assignors.items():
            subscription = Subscription(
                self.topics,
                owned,
                self.generation_id,
                assignor.subscription_user_data(self.topics, owned),
                rack_id=self.config.rack_id,
            )
            protocols.append(JoinGroupRequestProtocol(name, encode_subscription(subscription)))
        return JoinGroupRequest(
            group_id=self.config.group_id,
            session_timeout_ms=self.config.session_timeout_ms,
            rebalance_timeout_ms=self.config.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self.config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(protocols),
            reason=self._reason[:REASON_CHARACTERS_MAX] or None,
        )

    def joined(self, response: JoinGroupResponse, now_ms: float) -> Next:
        """Takes the answer to a join. ApiError when the group will not have the member.

        DONE means that the member was cast out in the meantime.
        """
        if self.state is not MemberState.JOINING:
            return Next.DONE
        code = response.error_code
        if code is ErrorCode.NONE:
            return self._begin_generation(response, now_ms)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return Next.JOIN
        if code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS):
            return Next.RETRY
        return self._cast_out(code)

    def _begin_generation(self, response: JoinGroupResponse, now_ms: float) -> Next:
        name = response.protocol_name or ""
        if name not in self._assignors:
            known = ", ".join(self._assignors)
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {self.config.group_id} uses assignor {name!r}, this member has {known}",
            )
        self.member_id, self.generation_id = response.member_id, response.generation_id
        self._protocol_name = name
        self._reason = ""
        self.is_leader = response.leader == response.member_id
        self.subscriptions = {}
        self._become(MemberState.SYNCING)
        self._note_contact(now_ms)
        if not self.is_leader:
            return Next.SYNC
        self.subscriptions = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in response.members
        }
        return Next.SYNC if response.skip_assignment else Next.LEAD

    def sync_request(self, assignments: Mapping[str, Assignment] | None = None) -> SyncGroupRequest:
        """Asks for the assignment; the leader brings everyone's."""
        assert self.state is MemberState.SYNCING, self.state
        if assignments is not None and self.is_cooperative:
            self._check_cooperative(assignments)
        return SyncGroupRequest(
            group_id=self.config.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol_name,
            assignments=tuple(
                SyncGroupRequestAssignment(member_id, encode_assignment(assignment))
                for member_id, assignment in (assignments or {}).items()
            ),
        )

    def _check_cooperative(self, assignments: Mapping[str, Assignment]) -> None:
        """A cooperative assignor must not give away what another member still owns."""
        owner = {tp: m for m, s in self.subscriptions.items() for tp in s.owned_partitions}
        for member_id, assignment in assignments.items():
            for tp in assignment.partitions:
                assert owner.get(tp, member_id) == member_id, (
                    f"{self._protocol_name} gave {tp} to {member_id}, {owner[tp]} owns it still"
                )

    def synced(self, response: SyncGroupResponse, now_ms: float) -> Next:
        """Takes the answer to a sync; after DONE and if STABLE, `take` returns the changes."""
        if self.state is not MemberState.SYNCING:
            return Next.DONE
        code = response.error_code
        if code is ErrorCode.NONE:
            self._assignment = decode_assignment(response.assignment)
            self._become(MemberState.STABLE)
            self._note_contact(now_ms)
            return Next.DONE
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return Next.JOIN
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return Next.RETRY
        return self._cast_out(code)

    def take(self) -> Change:
        """Takes over the assignment, and returns the revoked and the added partitions.

        After a cooperative revocation the member joins again.
        """
        assert self.state is MemberState.STABLE, self.state
        mine = frozenset(self._assignment.partitions)
        revoked, added = self.owned - mine, mine - self.owned
        self.owned = mine
        if revoked:
            self.rejoin("gave up partitions that others wait for")
        self.assignor.on_assignment(self._assignment)
        return Change(tuple(sorted(revoked)), tuple(sorted(added)))

    # ---- staying ----

    def polled(self, now_ms: float) -> None:
        """The user asks for records, so the member is at work."""
        self._polled_at_ms = now_ms

    def beat(self, now_ms: float) -> HeartbeatRequest | LeaveGroupRequest | None:
        """The request that is due now to keep the membership.

        A member whose user has not polled for `max_poll_interval_ms` leaves, and its partitions
        are lost; the next poll joins again.
        """
        if self.state not in (MemberState.SYNCING, MemberState.STABLE):
            return None
        if now_ms - self._polled_at_ms > self.config.max_poll_interval_ms:
            leaving = self.leave_request("the poll interval has passed")
            self._lose(keep_member_id=self.config.group_instance_id is not None)
            return leaving
        if now_ms < self._heartbeat_at_ms:
            return None
        self._heartbeat_at_ms = now_ms + self.config.heartbeat_interval_ms
        return self.heartbeat_request()

    def heartbeat_request(self) -> HeartbeatRequest:
        """A sign of life, as the member that this is now."""
        return HeartbeatRequest(
            self.config.group_id, self.generation_id, self.member_id, self.config.group_instance_id
        )

    def is_session_over(self, now_ms: float) -> bool:
        """Whether the coordinator has been silent for a session, and so has removed this member."""
        return now_ms - self._last_contact_ms > self.config.session_timeout_ms

    def beat_again(self, pause_ms: float, now_ms: float) -> None:
        """The last heartbeat has reached nobody who knows: the next one follows soon."""
        self._heartbeat_at_ms = min(self._heartbeat_at_ms, now_ms + pause_ms)

    def next_beat_ms(self) -> float:
        """When `beat` is due."""
        poll_end_ms = self._polled_at_ms + self.config.max_poll_interval_ms + 1
        return min(self._heartbeat_at_ms, poll_end_ms)

    def heartbeat_answered(self, asked: HeartbeatRequest, code: ErrorCode, now_ms: float) -> Next:
        """Takes the answer to a heartbeat. ApiError when another instance took our place."""
        asked_as = (asked.generation_id, asked.member_id)
        is_outdated = asked_as != (self.generation_id, self.member_id)
        return Next.DONE if is_outdated else self._take_error_code(code, now_ms)

    def commit_refused(self, identity: GroupMetadata, code: ErrorCode, now_ms: float) -> Next:
        """Reacts to a refused commit of `identity` as to such an answer to a heartbeat.

        Errors in the offsets or their metadata do not change the member.
        """
        is_outdated = identity != self.group_metadata or identity.generation_id == NO_GENERATION
        if is_outdated or code not in ABOUT_THE_MEMBER:
            return Next.DONE
        return self._take_error_code(code, now_ms)

    def _take_error_code(self, code: ErrorCode, now_ms: float) -> Next:
        if self.state not in (MemberState.SYNCING, MemberState.STABLE):
            return Next.DONE  # the join that is under way will hear the same
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._note_contact(now_ms)
            if code is not ErrorCode.NONE and self.state is MemberState.STABLE:
                self.rejoin("the group rebalances")
            return Next.DONE
        if code in FIND_COORDINATOR:
            return Next.FIND
        if not code.is_retriable:
            self._cast_out(code)
        return Next.DONE

    # ---- going ----

    def leave_request(self, reason: str, leaves: bool | None = None) -> LeaveGroupRequest | None:
        """A LeaveGroup request. Static members leave only on request: they are expected back."""
        instance_id = self.config.group_instance_id
        leaves = instance_id is None if leaves is None else leaves
        if self.member_id == NO_MEMBER or not leaves:
            return None
        identity = MemberIdentity(self.member_id, instance_id, reason[:REASON_CHARACTERS_MAX])
        return LeaveGroupRequest(self.config.group_id, self.member_id, (identity,))

    def leave(self) -> None:
        """The end: nothing is owned, nothing will be joined."""
        self.owned = frozenset()
        self.generation_id, self.member_id = NO_GENERATION, NO_MEMBER
        self.rejoin_needed = False
        self._become(MemberState.LEFT)

    def take_lost(self) -> tuple[TopicPartition, ...]:
        """The partitions lost since the last call."""
        lost, self.lost = self.lost, frozenset()
        return tuple(sorted(lost))

    def _cast_out(self, code: ErrorCode) -> Next:
        """The coordinator refuses the member: try as another, elsewhere, or not at all."""
        if code in FIND_COORDINATOR:
            return Next.FIND
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose(keep_member_id=code is ErrorCode.ILLEGAL_GENERATION)
            return Next.JOIN
        self._lose(keep_member_id=False)
        message = f"group {self.config.group_id} refuses this member"
        if code is ErrorCode.FENCED_INSTANCE_ID:
            message = (
                f"group {self.config.group_id}: another member has taken the place of "
                f"instance {self.config.group_instance_id}"
            )
        raise ApiError(code, message)

    def _lose(self, *, keep_member_id: bool) -> None:
        """The group goes on without this member; others may read its partitions already."""
        self.lost |= self.owned
        self.owned = frozenset()
        self.generation_id = NO_GENERATION
        if not keep_member_id:
            self.member_id = NO_MEMBER
        self._become(MemberState.UNJOINED)
        self.rejoin("the coordinator no longer knew the member")

    def _note_contact(self, now_ms: float) -> None:
        self._last_contact_ms = now_ms
        next_ms = now_ms + self.config.heartbeat_interval_ms
        self._heartbeat_at_ms = max(self._heartbeat_at_ms, next_ms)

    def _become(self, state: MemberState) -> None:
        step = f"{self.config.group_id}: {self.state.name} -> {state.name}"
        assert state is self.state or state in LEGAL[self.state], step
        self.state = state
