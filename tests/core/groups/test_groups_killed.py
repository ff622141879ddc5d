"""A broker that is killed under a group again and again: no restart brings back who had gone.

A ghost would hold the group up until its session ends, 45 s after the restart. Members leave and
come back, are silent for longer than their sessions, lose connections; and between any two requests
of what comes of that the broker is killed. Half of the members forget their id where a generation
is said to be wrong, as aiokafka does; the others keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from lossy_groups import Broker, Client

from kafkalite.core.groups.group import GroupConfig

KILLS = 25  # in each of eight worlds
MEMBERS = 4
SESSION_MS, REBALANCE_MS, HEARTBEAT_MS = 45_000, 300_000, 3_000
SILENT_ROUNDS = SESSION_MS // HEARTBEAT_MS + 2
# After a restart: a heartbeat, a join, perhaps as a new member, another when one more has come
# back, and a sync. A ghost takes 15.
ROUNDS_MAX = 8


class World:
    """One group and its members, who act every HEARTBEAT_MS, in any order."""

    def __init__(self, seed: int, *, flushes: bool) -> None:
        self.random = Random(seed)
        limits = GroupConfig(group_initial_rebalance_delay_ms=0)
        self.broker = Broker(self.random, limits, flushes=flushes)
        self.clients = [
            Client(self.broker, n, "g", SESSION_MS, REBALANCE_MS, forgets=n % 2 == 0)
            for n in range(MEMBERS)
        ]
        for client in self.clients:
            client.habits = [*[client.beat] * 5, client.commit]
        self.silent: dict[Client, int] = {}  # for how many rounds more

    def act(self, client: Client) -> None:
        if self.silent.get(client, 0) > 0:
            self.silent[client] -= 1
            return
        client.act(self.random)
        if self.random.random() < 0.5:
            self.broker.settle()

    def round(self) -> None:
        """Everybody acts once."""
        for client in self.random.sample(self.clients, MEMBERS):
            self.act(client)
        self.broker.settle()
        self.broker.pass_time(HEARTBEAT_MS)

    def live(self) -> None:
        """Something that makes the group rebalance, and any part of what comes of it."""
        client = self.random.choice(self.clients)
        what = self.random.choice(["leave", "leave", "silent", "connection"])
        if what == "leave":
            client.leave()
        elif what == "silent":
            self.silent[client] = SILENT_ROUNDS
            for _ in range(SILENT_ROUNDS - self.random.randint(0, 2)):
                self.round()
        else:
            client.lose_connection()
        for _ in range(self.random.randint(0, 12)):
            self.act(self.random.choice(self.clients))

    def kill(self) -> None:
        """SIGKILL, and what the clients waited for never comes."""
        self.silent.clear()
        for client in self.clients:
            client.lose_connection()
        self.broker.start()
        self.broker.settle()

    def rounds_until_well(self) -> int:
        """How often everybody acts until all have the assignment of one generation."""
        for count in range(2 * SILENT_ROUNDS):
            if self.is_well():
                return count
            self.round()
        return 2 * SILENT_ROUNDS

    def is_well(self) -> bool:
        machine = self.broker.groups.ready(0).machine
        members = set(machine._groups["g"].members) if "g" in machine._groups else set()
        return members == {client.member_id for client in self.clients} and all(
            client.phase == "stable"
            and client.pending is None
            and client.generation_id == self.clients[0].generation_id
            and client.assignment == b"share of " + client.member_id.encode()
            for client in self.clients
        )


@pytest.mark.parametrize("seed", range(8))
def test_no_member_that_was_gone_is_waited_for_after_a_kill(
    seed: int, few: Callable[[int], int]
) -> None:
    world = World(seed, flushes=seed % 2 == 0)
    assert world.rounds_until_well() <= ROUNDS_MAX
    waited = []
    for _ in range(few(KILLS)):
        world.live()
        world.kill()
        waited.append(world.rounds_until_well())
    assert max(waited) <= ROUNDS_MAX, waited
