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
from lossy_groups import WHERE, Broker, Client

from kafkalite.core.coordinators import runtime
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import GroupConfig
from kafkalite.core.protocol import offsets as o
from kafkalite.core.transactions.markers import Marker
from kafkalite.core.types import RequestContext
from kafkalite.errors import ApiError, ErrorCode

GROUPS = ("g", "h")
SESSION_MS, REBALANCE_MS, NEW_MEMBER_MS = 1_000, 2_000, 4_000
# Whoever has died in the midst of joining is waited for, once for each of three reasons.
ROUNDS_MAX = 3 * (SESSION_MS + REBALANCE_MS + NEW_MEMBER_MS) // (SESSION_MS // 10)


class World:
    def __init__(self, seed: int, *, flushes: bool) -> None:
        self.random = Random(seed)
        limits = GroupConfig(
            group_min_session_timeout_ms=1,
            group_initial_rebalance_delay_ms=self.random.choice([0, 100]),
            new_member_join_timeout_ms=NEW_MEMBER_MS,
        )
        self.broker = Broker(self.random, limits, flushes=flushes)
        self.clients = [
            Client(self.broker, n, GROUPS[n == 4], SESSION_MS, REBALANCE_MS) for n in range(5)
        ]

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
            case "leave":
                client.leave()
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
    "connection", "connection", "death", "leave", "disk", "failed flush", "restart", "look",
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
