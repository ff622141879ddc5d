"""One consumer group: who is in it, in which generation, and who waits for what.          [P]

            somebody joins                     all joined, or the time is up
    EMPTY ─────────────────> PREPARING_REBALANCE ──────────────────> COMPLETING_REBALANCE
      ^                        │    ^       ^                             │         │
      └──── nobody joined ─────┘    │       └── members came or went ─────┘         │ assignment
                                    └────── members came or went ─── STABLE <───────┘ in the log
    and DEAD from everywhere: the group was deleted, or its coordinator resigned

A group runs in memory; of its steps only those that the group must survive a restart with become
records: a generation's assignment, a static member's new id, and every departure, for a member that
the log still names would come back with a restart as a ghost. `durable` is what the log says, and
`replay` alone writes it; `written` is what the log will say once it has all records asked for.

Owns   members, generation, state, and the tokens of requests that wait for an answer.
Never  answers anybody: `membership` decides what to do, a group keeps itself consistent.
Fails  on a broken invariant, with an assert.
Source KIP-62, KIP-345, KIP-394; apache/kafka `ClassicGroup`, `ClassicGroupState`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from kafkalite.core.protocol.group_records import GroupMetadataValue, MemberMetadata
from kafkalite.core.protocol.groups import JoinGroupRequestProtocol
from kafkalite.core.protocol.subscriptions import PROTOCOL_TYPE, subscribed_topics
from kafkalite.core.types import NO_TIMESTAMP
from kafkalite.errors import ErrorCode


class GroupState(Enum):
    """A group's state, by the name that Kafka's tools show."""

    EMPTY = "Empty"  # no members; offsets are kept until they expire
    PREPARING_REBALANCE = "PreparingRebalance"  # members are asked to join again
    COMPLETING_REBALANCE = "CompletingRebalance"  # waits for the leader's assignment
    STABLE = "Stable"  # every member has its assignment
    DEAD = "Dead"  # deleted, or known to another coordinator by now


EMPTY: Final = GroupState.EMPTY
PREPARING_REBALANCE: Final = GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE: Final = GroupState.COMPLETING_REBALANCE
STABLE: Final = GroupState.STABLE
DEAD: Final = GroupState.DEAD

LEGAL: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    EMPTY: frozenset({PREPARING_REBALANCE, DEAD}),
    PREPARING_REBALANCE: frozenset({COMPLETING_REBALANCE, EMPTY, DEAD}),
    COMPLETING_REBALANCE: frozenset({STABLE, PREPARING_REBALANCE, DEAD}),
    STABLE: frozenset({PREPARING_REBALANCE, DEAD}),
    DEAD: frozenset(),
}


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The limits of groups, by the names of Kafka's settings where it has them."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1  # members
    pending_members_max: int = 10_000  # of one group
    protocols_max: int = 1_000  # of one member, some 2 us each; clients send a handful
    groups_max: int = 100_000  # of one coordinator
    new_member_join_timeout_ms: int = 300_000


Protocols = tuple[JoinGroupRequestProtocol, ...]  # in the member's order of preference


class Waiting(NamedTuple):
    """A request that is answered later, and the version in which it was asked."""

    token: Any
    api_version: int


@dataclass(slots=True, eq=False)
class Member:
    """One member. A new one does not know its first generation yet and cannot heartbeat."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    subscription: tuple[bytes, frozenset[str] | None] | None = None  # what it said, as it was read

    @property
    def knows(self) -> set[str]:
        """The names of its protocols, each once: a client may repeat one."""
        return {p.name for p in self.protocols}

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for this protocol; empty for one that it does not know."""
        return metadata_of(self.protocols, protocol_name)

    def topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """The topics of its subscription, which is read once; None if we cannot read it."""
        metadata = self.metadata(protocol_name)
        if self.subscription is None or self.subscription[0] != metadata:
            self.subscription = metadata, subscribed_topics((metadata,))
        return self.subscription[1]


def metadata_of(protocols: Protocols, protocol_name: str | None) -> bytes:
    """A member's metadata for one of its `protocols`."""
    for protocol in protocols:
        if protocol.name == protocol_name:
            return protocol.metadata
    return b""


def positive_or(timeout_ms: int, default_ms: int) -> int:
    """A timeout as the client or the log gave it, or the default if it is none."""
    return timeout_ms if timeout_ms > 0 else max(1, default_ms)


@dataclass(slots=True, eq=False)
class Group:
    """A group in memory. `members` keeps the order of joining; `generation_id` 0 is the first."""

    group_id: str
    state: GroupState = EMPTY
    state_timestamp_ms: int = NO_TIMESTAMP
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    pending_members: set[str] = field(default_factory=set)  # ids given out, not yet joined with
    joining: dict[str, Waiting] = field(default_factory=dict)  # by member id
    syncing: dict[str, Waiting] = field(default_factory=dict)  # by member id
    not_yet_synced: set[str] = field(default_factory=set)
    topics: frozenset[str] | None = None  # subscribed to; None if that cannot be known
    votes: Counter[str] = field(default_factory=Counter)  # protocol -> members who know it
    initial_until_ms: int | None = None  # the first generation may wait for members until then
    grew: bool = False  # since the last look, while the first generation waits
    storing_generation_id: int | None = None  # its assignment is on its way to the log
    records_in_flight: int = 0  # appended, not yet replayed
    durable: GroupMetadataValue | None = None
    written: GroupMetadataValue | None = None
    written_data: bytes | None = None  # the bytes of `written`, where they are on their way
    has_departures: bool = False  # since `written` was last compared with the members
    is_taken_over: bool = False  # from the log, and no generation has become stable since

    # -- members

    def add(self, member: Member, protocol_type: str) -> None:
        """Takes a member in; the first one is the leader and decides the protocol type."""
        assert member.member_id not in self.members, member.member_id
        assert member.group_instance_id not in self.static_members, member.group_instance_id
        if not self.members:
            self.protocol_type = protocol_type
            self.topics = None
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.leader_id = self.leader_id or member.member_id
        self.votes.update(member.knows)
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Takes a member out, whose waiting requests must have been answered."""
        assert member_id not in self.joining, f"{self.group_id}: {member_id} waits to join"
        assert member_id not in self.syncing, f"{self.group_id}: {member_id} waits to sync"
        member = self.members.pop(member_id)
        self.votes.subtract(member.knows)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        self.not_yet_synced.discard(member_id)
        self.has_departures = True
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, old_id: str, new_id: str) -> Member:
        """Gives a static member a new id; clients that still use the old id are fenced."""
        was_leader = self.leader_id == old_id
        member = self.members[old_id]
        self.remove(old_id)
        member.member_id = new_id
        self.add(member, self.protocol_type or "")
        if was_leader:
            self.leader_id = new_id
        return member

    def update(self, member: Member, protocols: Protocols) -> None:
        """Replaces the protocols that a member knows."""
        self.votes.subtract(member.knows)
        member.protocols = protocols
        self.votes.update(member.knows)

    def find(self, member_id: str, group_instance_id: str | None) -> Member | ErrorCode:
        """The member that a request speaks for, or why it does not."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return self.members.get(member_id) or ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def wrong_generation(self) -> ErrorCode:
        """The answer to a member of another generation than the current one.

        The coordinator before this one may have begun generations that the log does not know, or
        been killed before its answers were out. So the member is as good as any; it joins again,
        and keeps its id.
        """
        if self.is_taken_over:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.ILLEGAL_GENERATION

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member may take to join again; at least 1."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=1)

    @property
    def is_vacant(self) -> bool:
        """Whether nothing speaks for keeping the group, offsets apart."""
        return self.state is EMPTY and not (
            self.pending_members or self.records_in_flight or self.durable
        )

    # -- protocols

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols fits to the others."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        return any(self.votes[name] == len(self.members) for name in names)

    def selected_protocol(self) -> str:
        """The protocol with the most votes among those that all members know.

        Each member votes for the one that it likes best. Of two with as many votes, the one that
        the members who joined first like better is taken.
        """
        common = {name for name, count in self.votes.items() if count == len(self.members)}
        if len(common) == 1:
            return common.pop()
        ballots = Counter(
            next(p.name for p in member.protocols if p.name in common)
            for member in self.members.values()
        )
        return ballots.most_common(1)[0][0]

    def subscriptions(self) -> frozenset[str] | None:
        """The topics of all members' subscriptions in the selected protocol."""
        if self.protocol_type != PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = member.topics(self.protocol_name)
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def read_subscription(self, member: Member) -> None:
        """Reads what a member subscribes to. A generation that begins finds it read."""
        if self.protocol_type == PROTOCOL_TYPE:
            member.topics(self.protocol_name or member.protocols[0].name)

    def topics_of(self, member: Member) -> frozenset[str] | None:
        """The topics of one member's subscription, if its metadata is a subscription."""
        if self.protocol_type != PROTOCOL_TYPE:
            return None
        return member.topics(self.protocol_name)

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read `topic`, as far as is known; a consumer group may read anything."""
        if self.topics is None:
            return self.protocol_type == PROTOCOL_TYPE and bool(self.members)
        return topic in self.topics

    # -- generations

    @property
    def all_joined(self) -> bool:
        """Whether everyone who is expected in the next generation waits for it to begin."""
        return len(self.joining) == len(self.members) and not self.pending_members

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader joined; False if no member did."""
        if self.leader_id not in self.joining:
            joined = next((m for m in self.members if m in self.joining), None)
            if joined is None:
                return False
            self.leader_id = joined
        return True

    def begin_generation(self, wall_ms: int) -> None:
        """The next generation, of the members that there are; without any, the group is empty."""
        self.generation_id += 1
        self.initial_until_ms = None
        self.protocol_name = self.selected_protocol() if self.members else None
        self.topics = self.subscriptions()
        self.not_yet_synced = set(self.members)
        self.become(COMPLETING_REBALANCE if self.members else EMPTY, wall_ms)

    def become(self, state: GroupState, wall_ms: int) -> None:
        """Changes the state, which must be legal."""
        step = f"{self.group_id}: {self.state.name} -> {state.name}"
        assert state in LEGAL[self.state], step
        self.state = state
        self.state_timestamp_ms = wall_ms

    # -- what the log says

    def to_value(self, assignments: Mapping[str, bytes], wall_ms: int) -> GroupMetadataValue:
        """The group as it is to be remembered, with these assignments by member id."""
        members = tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol_name),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=wall_ms,
            members=members,
        )

    def without_departed(self, wall_ms: int) -> GroupMetadataValue | None:
        """The last written state without departed members; None if all members are present.

        A static member stays under the id that it has now. Assignments are void with the departure.
        """
        if not self.has_departures or self.written is None:
            return None
        self.has_departures = False
        members = tuple(
            member
            if member.member_id == current_id and not member.assignment
            else replace(member, member_id=current_id, assignment=b"")
            for member in self.written.members
            if (current_id := self._current_id(member)) is not None
        )
        ids = [member.member_id for member in members]
        if ids == [member.member_id for member in self.written.members]:
            return None
        leader = self.written.leader if self.written.leader in ids else next(iter(ids), None)
        protocol = self.written.protocol if members else None
        return replace(
            self.written,
            protocol=protocol,
            leader=leader,
            current_state_timestamp=wall_ms,
            members=members,
        )

    def _current_id(self, member: MemberMetadata) -> str | None:
        if member.group_instance_id is not None:
            return self.static_members.get(member.group_instance_id)
        return member.member_id if member.member_id in self.members else None

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> Group:
        """The group that a coordinator left behind: stable, or empty.

        One without any assignment was in the midst of a rebalance.
        """
        group = cls(
            group_id,
            state=STABLE if value.members else EMPTY,
            state_timestamp_ms=value.current_state_timestamp,
            generation_id=value.generation,
            protocol_name=value.protocol,
            leader_id=value.leader,
        )
        for member in value.members:
            known = (JoinGroupRequestProtocol(value.protocol or "", member.subscription),)
            loaded = Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=positive_or(member.rebalance_timeout, member.session_timeout),
                session_timeout_ms=member.session_timeout,
                protocols=known,
                assignment=member.assignment,
            )
            group.add(loaded, value.protocol_type)
        group.protocol_type = value.protocol_type or None
        group.topics = group.subscriptions()
        group.durable = group.written = value
        group.is_taken_over = True
        return group

    @property
    def is_unassigned(self) -> bool:
        """Whether there are members, none of whom has an assignment."""
        return bool(self.members) and not any(m.assignment for m in self.members.values())

    def install(self, value: GroupMetadataValue, wall_ms: int) -> bool:
        """Applies the group's record in the log; True if that makes the group stable.

        It does if the generation is still the one whose assignment was stored. If a rebalance has
        begun meanwhile, the assignment is void, and the next generation will bring another.
        """
        self.durable = value
        if self.storing_generation_id != value.generation or not value.members:
            return False
        assert self.state is COMPLETING_REBALANCE, f"{self.group_id}: {self.state.name}"
        assert self.generation_id == value.generation, f"{self.group_id}: {value.generation}"
        for stored in value.members:
            self.members[stored.member_id].assignment = stored.assignment
        self.storing_generation_id = None
        self.is_taken_over = False
        self.become(STABLE, wall_ms)
        return True
