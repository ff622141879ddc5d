"""Members of groups over a coordinator on a lossy host."""

from __future__ import annotations

from random import Random
from typing import Any

from lossy import LossyHost

from kafkalite.core.cluster.internal_topics import OFFSETS_TOPIC
from kafkalite.core.coordinators.runtime import Coordinators
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import GroupConfig
from kafkalite.core.groups.offsets import OffsetsConfig
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import groups as g
from kafkalite.core.protocol import offsets as o
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.subscriptions import Subscription, encode_subscription
from kafkalite.core.transactions.markers import LocalMarkers
from kafkalite.core.transactions.verification import Verifications
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

WHERE = TopicPartition(OFFSETS_TOPIC, 0)
PROTOCOLS = (g.JoinGroupRequestProtocol("range", encode_subscription(Subscription(("t",)))),)


class Broker(LossyHost):
    """One partition of groups."""

    def __init__(self, random: Random, limits: GroupConfig, *, flushes: bool) -> None:
        self.limits = limits
        super().__init__(random, {OFFSETS_TOPIC: 1}, flushes=flushes)

    def begin(self) -> list[Coordinators[Any]]:
        limits = self.limits
        self.groups = Coordinators(
            self, OFFSETS_TOPIC, lambda: GroupCoordinator(self.random, limits, OffsetsConfig())
        )
        self.markers = LocalMarkers(self, self.groups, Verifications())
        return [self.groups]

    @property
    def log_end_offset(self) -> int:
        return self.logs[WHERE].log_end_offset


class Client:
    """A member as real ones are: it joins, syncs, then beats and commits, and begins anew.

    One that `forgets` takes a wrong generation for the end of its membership, as aiokafka does.
    """

    def __init__(
        self,
        broker: Broker,
        number: int,
        group_id: str,
        session_ms: int,
        rebalance_ms: int,
        *,
        forgets: bool = True,
    ) -> None:
        self.broker, self.number, self.group_id = broker, number, group_id
        self.session_ms, self.rebalance_ms, self.forgets = session_ms, rebalance_ms, forgets
        self.pending: Pending[Any] | None = None
        self.member_id, self.generation_id, self.phase = "", -1, "join"
        self.joined: Any = None
        self.assignment = b""
        self.producer: int | None = None  # whose transaction holds offsets of this one
        self.commits = False  # how that one ends, once it was decided
        self.is_ending = False  # its marker is on the way
        self.habits = [self.beat, self.beat, self.commit, self.commit_in_transaction]

    def ask(self, request: Any, version: int) -> None:
        context = RequestContext(version, f"c{self.number}", "/h")
        try:
            answer = self.broker.groups.handle(0, request, context)
        except ApiError:  # not here, or not yet
            return
        if isinstance(answer, Pending):
            self.pending = answer
            answer.when_done(lambda response: self.told(request, response))
        else:
            self.told(request, answer)

    def act(self, random: Random) -> None:
        """The next thing that it wants, unless it waits for an answer."""
        if self.pending is not None:
            return
        if self.phase == "join":
            self.ask(
                g.JoinGroupRequest(
                    self.group_id,
                    self.session_ms,
                    self.rebalance_ms,
                    self.member_id,
                    None,
                    "consumer",
                    PROTOCOLS,
                ),
                9,
            )
        elif self.phase == "sync":
            parts = tuple(
                g.SyncGroupRequestAssignment(m.member_id, b"share of " + m.member_id.encode())
                for m in self.joined.members
            )
            request = g.SyncGroupRequest(
                self.group_id, self.generation_id, self.member_id, None, "consumer", "range", parts
            )
            self.ask(request, 5)
        else:
            random.choice(self.habits)()

    def beat(self) -> None:
        self.ask(g.HeartbeatRequest(self.group_id, self.generation_id, self.member_id), 4)

    def commit(self) -> None:
        partitions = (o.OffsetCommitRequestPartition(0, self.broker.log_end_offset),)
        topics = (o.OffsetCommitRequestTopic("t", partitions),)
        request = o.OffsetCommitRequest(
            self.group_id, self.generation_id, self.member_id, topics=topics
        )
        self.ask(request, 8)

    def commit_in_transaction(self) -> None:
        if self.is_ending:
            return
        if self.producer is None:
            self.producer, self.commits = self.number, self.broker.random.random() < 0.5
        partitions = (t.TxnOffsetCommitRequestPartition(0, self.broker.log_end_offset),)
        topics = (t.TxnOffsetCommitRequestTopic("t", partitions),)
        identity = (self.number, 0, self.generation_id, self.member_id)
        self.ask(t.TxnOffsetCommitRequest("x", self.group_id, *identity, topics=topics), 3)

    def told(self, request: Any, response: Any) -> None:
        self.pending = None
        codes = [
            p.error_code for topic in getattr(response, "topics", ()) for p in topic.partitions
        ]
        code = codes[0] if codes else response.error_code
        if isinstance(request, g.JoinGroupRequest):
            if code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id = response.member_id
            if not code:
                self.joined, self.generation_id, self.phase = (
                    response,
                    response.generation_id,
                    "sync",
                )
        elif isinstance(request, g.SyncGroupRequest):
            self.phase = "join" if code else "stable"
            self.assignment = response.assignment
        elif code in RETRIABLE:
            pass
        elif code:
            self.phase = "join"
        if code is ErrorCode.UNKNOWN_MEMBER_ID or (
            code is ErrorCode.ILLEGAL_GENERATION and self.forgets
        ):
            self.member_id, self.phase = "", "join"

    def leave(self) -> None:
        """Says goodbye, and is another member from now on, whether or not it is heard."""
        self.lose_connection()
        leaving = (g.MemberIdentity(self.member_id),)
        if self.member_id:
            self.ask(g.LeaveGroupRequest(self.group_id, members=leaving), 5)
        self.die()

    def lose_connection(self) -> None:
        if self.pending is not None:
            self.pending.abandon()
            self.pending = None

    def die(self) -> None:
        self.lose_connection()
        self.member_id, self.generation_id, self.phase = "", -1, "join"


RETRIABLE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
