"""Members over a runtime of coordinators that is lossy and slow: in the end all have their share.

Clients do what clients do, each in its own time. Meanwhile connections are lost with the answers
that were due on them, clients die and others come, the log refuses, flushes are late or fail,
loading takes long, and the broker is started again. Then all of it stops, and what must come is
waited for, only as long as timeouts allow: nobody may be left without an answer, without an
assignment, or with an offset that stays unstable for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core import coordinators
from kafkalite.core.config import LogConfig
from kafkalite.core.coordinator import GroupCoordinator
from kafkalite.core.coordinators import Coordinators
from kafkalite.core.groups import GroupConfig
from kafkalite.core.image import ClusterImage, PartitionImage, TopicImage
from kafkalite.core.internal_topics import OFFSETS_TOPIC
from kafkalite.core.log.partition_log import Appended, PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.offsets import OffsetsConfig
from kafkalite.core.partition import Partition
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import groups as g
from kafkalite.core.protocol import offsets as o
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.replication import PartitionReplication
from kafkalite.core.subscriptions import Subscription, encode_subscription
from kafkalite.core.transaction_markers import LocalMarkers, Marker
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.testing.storage import MemoryStorage

WHERE = TopicPartition(OFFSETS_TOPIC, 0)
IMAGE = PartitionImage((1,), 1, 0, (1,))
TOPIC = TopicImage(OFFSETS_TOPIC, UUID(int=7), (IMAGE,))
PROTOCOLS = (g.JoinGroupRequestProtocol("range", encode_subscription(Subscription(("t",)))),)
GROUPS = ("g", "h")
SESSION_MS, REBALANCE_MS, NEW_MEMBER_MS, FLUSH_EACH = 1_000, 2_000, 4_000, 3
# Whoever has died in the midst of joining is waited for, once for each of three reasons.
ROUNDS_MAX = 3 * (SESSION_MS + REBALANCE_MS + NEW_MEMBER_MS) // (SESSION_MS // 10)


class FaultyPartition(Partition):
    """A partition whose disk refuses while it is told to."""

    refuses = False

    def append(
        self, records: Buffer, acks: int, now_ms: int, *, from_client: bool = True
    ) -> Appended:
        if self.refuses:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")
        return super().append(records, acks, now_ms, from_client=from_client)


class Waiting(NamedTuple):
    offset: int
    then: Callable[[], None]
    otherwise: Callable[[], None]


class Broker:
    """The coordinators' host: one partition, a clock, and nothing that happens by itself."""

    node_id = 1

    def __init__(self, random: Random, *, flushes: bool) -> None:
        self.random = random
        self.clock_ms = 1_000_000
        self.wake_ms: int | None = None
        self.slices: list[Iterator[None]] = []
        self.waiting: deque[Waiting] = deque()
        log_config = LogConfig(flush_messages=FLUSH_EACH if flushes else 1 << 60)
        logs = LogStore(MemoryStorage())
        self.log: PartitionLog = logs.open(WHERE, TOPIC.topic_id, log_config, self.clock_ms)
        self.image = ClusterImage(topics={OFFSETS_TOPIC: TOPIC})
        self.start()

    def start(self) -> None:
        """What was in memory is gone; the log is there."""
        self.wake_ms, self.slices, self.waiting = None, [], deque()
        self.held = FaultyPartition(WHERE, self.log, PartitionReplication(WHERE, 1))
        self.held.replay(IMAGE)
        limits = GroupConfig(
            group_min_session_timeout_ms=1,
            group_initial_rebalance_delay_ms=self.random.choice([0, 100]),
            new_member_join_timeout_ms=NEW_MEMBER_MS,
        )
        self.groups = Coordinators(
            self, OFFSETS_TOPIC, lambda: GroupCoordinator(self.random, limits, OffsetsConfig())
        )
        self.markers = LocalMarkers(self, self.groups)
        self.run_slices(self.groups.load_all(), "loading")

    # -- Host

    def now_ms(self) -> int:
        return self.clock_ms

    def partition(self, topic: str, index: int) -> Partition:
        assert (topic, index) == WHERE
        return self.held

    def appended(self, partition: Partition, byte_count: int) -> None:
        pass  # flushes are the test's to begin

    def when_committed(
        self,
        partition: Partition,
        offset: int,
        then: Callable[[], None],
        otherwise: Callable[[], None],
    ) -> None:
        if partition.log.high_watermark >= offset and not self.waiting:
            then()
        else:
            self.waiting.append(Waiting(offset, then, otherwise))

    def wake_at(self, deadline_ms: int | None) -> None:
        if deadline_ms is not None:
            self.wake_ms = min(deadline_ms, self.wake_ms or deadline_ms)

    def run_slices(self, slices: Iterator[None], name: str) -> None:
        if next(slices, self) is None:
            self.slices.append(slices)

    def note(self, message: str) -> None:
        pass

    # -- what happens

    def go_on(self) -> None:
        """One slice of each that is under way; and what is committed is told."""
        slices, self.slices = self.slices, []
        for each in slices:
            self.run_slices(each, "")
        while self.waiting and self.waiting[0].offset <= self.log.high_watermark:
            self.waiting.popleft().then()

    def flush(self) -> None:
        flush = self.log.begin_flush()
        self.log.end_flush(flush, flush.run(), self.clock_ms)
        self.held.advance()

    def fail_what_waits(self) -> None:
        """The flush has failed; nobody knows that what waited is in the log all the same."""
        waiting, self.waiting = self.waiting, deque()
        for each in waiting:
            each.otherwise()

    def pass_time(self, ms: int) -> None:
        """Wakes only when it was asked to."""
        until_ms = self.clock_ms + ms
        while self.wake_ms is not None and self.wake_ms <= until_ms:
            self.clock_ms = max(self.clock_ms + 1, self.wake_ms)
            self.wake_ms = None
            self.wake_at(self.groups.tick(self.clock_ms))
        self.clock_ms = max(self.clock_ms, until_ms)


class Client:
    """A member as real ones are: it joins, syncs, then beats and commits, and begins anew."""

    def __init__(self, broker: Broker, number: int, group_id: str) -> None:
        self.broker, self.number, self.group_id = broker, number, group_id
        self.pending: Pending[Any] | None = None
        self.member_id, self.generation_id, self.phase = "", -1, "join"
        self.joined: Any = None
        self.assignment = b""
        self.producer: int | None = None  # whose transaction holds offsets of this one
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
        partitions = (o.OffsetCommitRequestPartition(0, self.broker.log.log_end_offset),)
        topics = (o.OffsetCommitRequestTopic("t", partitions),)
        request = o.OffsetCommitRequest(
            self.group_id, self.generation_id, self.member_id, topics=topics
        )
        self.ask(request, 8)

    def commit_in_transaction(self) -> None:
        if self.is_ending:
            return
        self.producer = self.number
        partitions = (t.TxnOffsetCommitRequestPartition(0, self.broker.log.log_end_offset),)
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
        producer_id, commit = client.producer, self.random.random() < 0.5
        if producer_id is None or client.pending is not None or client.is_ending:
            return

        def done(errors: Any) -> None:
            client.is_ending = False
            if not errors[WHERE]:
                client.producer = None

        client.is_ending = True
        self.broker.markers.write(Marker(producer_id, 0, commit, 0), {WHERE}, done)

    def restart(self) -> None:
        for client in self.clients:
            client.lose_connection()
            client.is_ending = False
        self.broker.start()

    def look(self) -> None:
        """What is in memory is what the log says."""
        self.settle()
        running = self.broker.groups._coordinators.get(0)
        self.restart()
        self.settle()
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
                broker.held.refuses = not broker.held.refuses
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
        self.broker.held.refuses = False
        rounds_left = ROUNDS_MAX
        while rounds_left and not self.is_well():
            rounds_left -= 1
            for client in self.clients:
                client.act(self.random)
                self.end_transaction(client)
            self.settle()
            self.broker.pass_time(SESSION_MS // 10)

    def settle(self) -> None:
        """What was asked is flushed and told."""
        while self.broker.slices or self.broker.waiting:
            self.broker.flush()
            self.broker.go_on()

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
        patch.setattr(coordinators, "LOAD_SLICE_BYTES", 300)
        patch.setattr(coordinators, "LOAD_SLICES_AT_ONCE", 1)
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
