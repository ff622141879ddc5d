"""Members over a runtime of coordinators that is lossy and slow: in the end all have their share.

Clients do what clients do, each in its own time. Meanwhile connections are lost with the answers
that were due on them, clients die and others come, the log refuses, flushes are late or fail,
loading takes long, and the broker is started again. Then all of it stops, and what must come is
waited for, only as long as timeouts allow: nobody may be left without an answer, without an
assignment, or with an offset that stays unstable for ever.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy import LossyHost

from kafkalite.core.cluster.internal_topics import OFFSETS_TOPIC
from kafkalite.core.coordinators import runtime
from kafkalite.core.coordinators.runtime import Coordinators
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import GroupConfig
from kafkalite.core.groups.offsets import OffsetsConfig
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import groups as g
from kafkalite.core.protocol import offsets as o
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.subscriptions import Subscription, encode_subscription
from kafkalite.core.transactions.markers import LocalMarkers, Marker
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

WHERE = TopicPartition(OFFSETS_TOPIC, 0)
PROTOCOLS = (g.JoinGroupRequestProtocol("range", encode_subscription(Subscription(("t",)))),)
GROUPS = ("g", "h")
SESSION_MS, REBALANCE_MS, NEW_MEMBER_MS = 1_000, 2_000, 4_000
# Whoever has died in the midst of joining is waited for, once for each of three reasons.
ROUNDS_MAX = 3 * (SESSION_MS + REBALANCE_MS + NEW_MEMBER_MS) // (SESSION_MS // 10)


class Broker(LossyHost):
    """One partition of groups."""

    def __init__(self, random: Random, *, flushes: bool) -> None:
        super().__init__(random, {OFFSETS_TOPIC: 1}, flushes=flushes)

    def begin(self) -> list[Coordinators[Any]]:
        limits = GroupConfig(
            group_min_session_timeout_ms=1,
            group_initial_rebalance_delay_ms=self.random.choice([0, 100]),
            new_member_join_timeout_ms=NEW_MEMBER_MS,
        )
        self.groups = Coordinators(
            self, OFFSETS_TOPIC, lambda: GroupCoordinator(self.random, limits, OffsetsConfig())
        )
        self.markers = LocalMarkers(self, self.groups)
        return [self.groups]

    @property
    def log_end_offset(self) -> int:
        return self.logs[WHERE].log_end_offset


class Client:
    """A member as real ones are: it joins, syncs, then beats and commits, and begins anew."""

    def __init__(self, broker: Broker, number: int, group_id: str) -> None:
        self.broker, self.number, self.group_id = broker, number, group_id
        self.pending: Pending[Any] | None = None
        self.member_id, self.generation_id, self.phase = "", -1, "join"
        self.joined: Any = None
        self.assignment = b""
        self.producer: int | None = None  # whose transaction holds offsets of this one
        self.commits = False  # how that one ends, once it was decided
        self.is_ending = False  # its marker is on the way

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
                    SESSION_MS,
                    REBALANCE_MS,
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
            random.choice([self.beat, self.beat, self.commit, self.commit_in_transaction])()

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
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.member_id, self.phase = "", "join"

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


class World:
    def __init__(self, seed: int, *, flushes: bool) -> None:
        self.random = Random(seed)
        self.broker = Broker(self.random, flushes=flushes)
        self.clients = [Client(self.broker, n, GROUPS[n == 4]) for n in range(5)]

    def end_transaction(self, client: Client) -> None:
        """As a coordinator does: again and again until it is told that the marker is there."""
        producer_id = client.producer
        if producer_id is None or client.pending is not None or client.is_ending:
            return

        def done(errors: Any) -> None:
            client.is_ending = False
            if not errors[WHERE]:
                client.producer = None

        client.is_ending = True
        self.broker.markers.write(Marker(producer_id, 0, client.commits, 0), {WHERE}, done)

    def restart(self) -> None:
        for client in self.clients:
            client.lose_connection()
            client.is_ending = False
        self.broker.start()

    def look(self) -> None:
        """What is in memory is what the log says."""
        self.broker.settle()
        running = self.broker.groups._coordinators.get(0)
        self.restart()
        self.broker.settle()
        if running is not None and running.is_ready:
            again = self.broker.groups.ready(0)
            assert remembered(again.machine) == remembered(running.machine)

    def happen(self, what: str) -> None:
        broker, client = self.broker, self.random.choice(self.clients)
        match what:
            case "act":
                client.act(self.random)
            case "all act":
                for each in self.clients:
                    each.act(self.random)
            case "connection":
                client.lose_connection()
            case "death":
                client.die()
            case "transaction":
                self.end_transaction(client)
            case "disk":
                broker.refuse()
            case "flush":
                broker.flush()
            case "failed flush":
                broker.fail_what_waits()
            case "restart":
                self.restart()
            case "look":
                self.look()
            case "time":
                broker.pass_time(self.random.choice([1, 50, 300, 1_500]))
        if self.random.random() < 0.7:
            broker.go_on()

    def heal(self) -> None:
        """Nothing fails any more; clients act ten times in each session, until all is well."""
        self.broker.heal()
        rounds_left = ROUNDS_MAX
        while rounds_left and not self.is_well():
            rounds_left -= 1
            for client in self.clients:
                client.act(self.random)
                self.end_transaction(client)
            self.broker.settle()
            self.broker.pass_time(SESSION_MS // 10)

    def is_well(self) -> bool:
        """Whether every group is stable, and nobody waits or has a transaction open."""
        current = {(each.group_id, each.generation_id) for each in self.clients}
        return len(current) == len(GROUPS) and all(
            each.phase == "stable" and each.pending is None and each.producer is None
            for each in self.clients
        )


EVENTS = [
    *["act"] * 8, *["all act"] * 8, *["flush"] * 4, *["time"] * 4, *["transaction"] * 2,
    "connection", "connection", "death", "disk", "failed flush", "restart", "look",
]  # fmt: skip


EVENTS_OF_A_TIME = st.lists(st.sampled_from(EVENTS), max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS_OF_A_TIME, min_size=1, max_size=3), st.integers(0, 1 << 32), st.booleans())
def test_all_members_get_their_share_in_the_end(
    times: list[list[str]], seed: int, flushes: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "LOAD_SLICE_BYTES", 300)
        patch.setattr(runtime, "LOAD_SLICES_AT_ONCE", 1)
        world = World(seed, flushes=flushes)
        for events in times:
            for event in events:
                world.happen(event)
            world.heal()
            check(world)


def check(world: World) -> None:
    assert world.is_well(), [(each.phase, each.generation_id) for each in world.clients]
    with suppress(ApiError):  # it may have resigned, and nobody have asked since
        world.broker.groups.ready(0)
    for client in world.clients:
        assert client.assignment == b"share of " + client.member_id.encode()
        assert_stable(world.broker, client)
    world.look()


def assert_stable(broker: Broker, client: Client) -> None:
    """The offset can be used: nothing that might replace it is under way."""
    while broker.slices:
        broker.go_on()
    topics = (o.OffsetFetchRequestTopics("t", (0,)),)
    wanted = o.OffsetFetchRequestGroup(client.group_id, topics=topics)
    request = o.OffsetFetchRequest(groups=(wanted,), require_stable=True)
    answer = broker.groups.handle(0, request, RequestContext(8))
    assert answer.groups[0].topics[0].partitions[0].error_code is ErrorCode.NONE


def remembered(machine: GroupCoordinator) -> Any:
    """What a restart must not change: offsets, and each group's generation."""
    groups = {name: group.durable for name, group in machine._groups.items() if group.durable}
    offsets = {name: machine._offsets.committed(name) for name in machine._offsets.group_ids()}
    return groups, offsets
