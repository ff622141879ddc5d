"""Any requests in any order, any clock, any delay of the log: what always holds for groups."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kafkalite.core.coordinators.machine import AppendInTransaction, Record
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import EMPTY, STABLE, GroupConfig
from kafkalite.core.groups.offsets import OffsetsConfig
from kafkalite.core.groups.rebalance import Timer
from kafkalite.core.protocol import groups as g
from kafkalite.core.protocol import offsets as o
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.subscriptions import Subscription, encode_subscription
from kafkalite.core.types import Outcome, RequestContext
from kafkalite.errors import ErrorCode
from kafkalite.testing.clock import at

GROUP_IDS = st.sampled_from(["g", "h"])
CLIENTS = st.integers(0, 4)
INSTANCES = [None, None, None, "s", "s"]
SUBSCRIPTIONS = [encode_subscription(Subscription(topics)) for topics in [("t",), ("t", "u")]]


class GroupsMachine(RuleBasedStateMachine):
    """Five clients, two of which claim one instance id, two groups, and a log that may lag."""

    @initialize(delay=st.sampled_from([0, 30]), size_max=st.sampled_from([2, 100]))
    def begin(self, delay: int, size_max: int) -> None:
        self.config = GroupConfig(
            group_min_session_timeout_ms=10,
            group_initial_rebalance_delay_ms=delay,
            group_max_size=size_max,
            new_member_join_timeout_ms=200,
            pending_members_max=3,
        )
        self.offsets_config = OffsetsConfig(
            offsets_retention_ms=300, offsets_retention_check_interval_ms=50
        )
        self.machine = GroupCoordinator(Random(0), self.config, self.offsets_config)
        self.now_ms = 1_000
        self.token = 0
        self.asked: dict[int, tuple[int, str]] = {}  # token -> client, group
        self.answered: Counter[int] = Counter()
        self.ids: dict[tuple[int, str], str] = {}
        self.generations: dict[tuple[int, str], int] = {}
        self.held: list[Outcome[Record]] = []
        self.log: list[tuple[Any, Any, int]] = []
        self.leaders: dict[tuple[int, int], set[str]] = {}
        self.seen: dict[int, tuple[object, int]] = {}  # id of a group -> it, its generation

    # -- the rim

    def ask(self, client: int, group_id: str, request: Any, version: int) -> None:
        self.token += 1
        self.asked[self.token] = (client, group_id)
        context = RequestContext(version, f"c{client}", "/h", self.token)
        self.settle(self.machine.handle(request, context, at(self.now_ms)))

    def settle(self, outcome: Outcome[Record]) -> None:
        if outcome.records:
            self.held.append(outcome)
        else:
            self.answer(outcome)

    def answer(self, outcome: Outcome[Record]) -> None:
        for reply in outcome.replies:
            self.answered[reply.token] += 1
            where = self.asked[reply.token]
            if isinstance(reply.response, g.JoinGroupResponse):
                self.note_join(where, reply.response)

    def note_join(self, where: tuple[int, str], response: g.JoinGroupResponse) -> None:
        if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.ids[where] = response.member_id
            self.generations[where] = response.generation_id
        elif response.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.ids.pop(where, None)
        if response.members and not response.skip_assignment:
            group = self.machine._groups.get(where[1])
            if group is not None and group.generation_id == response.generation_id:
                leaders = self.leaders.setdefault((id(group), response.generation_id), set())
                leaders.add(response.leader)

    # -- what clients do

    @rule(
        client=CLIENTS,
        group_id=GROUP_IDS,
        keeps_id=st.booleans(),
        topics=st.sampled_from(SUBSCRIPTIONS),
        protocols=st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range")]),
        version=st.sampled_from([3, 5, 9]),
    )
    def join(
        self,
        client: int,
        group_id: str,
        keeps_id: bool,
        topics: bytes,
        protocols: tuple[str, ...],
        version: int,
    ) -> None:
        member_id = self.ids.get((client, group_id), "") if keeps_id else ""
        request = g.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=100,
            rebalance_timeout_ms=60 + client,
            member_id=member_id,
            group_instance_id=INSTANCES[client] if version >= 5 else None,
            protocol_type="consumer",
            protocols=tuple(g.JoinGroupRequestProtocol(name, topics) for name in protocols),
        )
        self.ask(client, group_id, request, version)

    @rule(client=CLIENTS, group_id=GROUP_IDS, stale=st.integers(0, 1))
    def sync(self, client: int, group_id: str, stale: int) -> None:
        where = (client, group_id)
        everyone = tuple(
            g.SyncGroupRequestAssignment(member_id, member_id.encode())
            for member_id in self.ids.values()
        )
        request = g.SyncGroupRequest(
            group_id=group_id,
            generation_id=self.generations.get(where, 0) - stale,
            member_id=self.ids.get(where, "nobody"),
            group_instance_id=INSTANCES[client],
            assignments=everyone,
        )
        self.ask(client, group_id, request, 5)

    @rule(group_id=GROUP_IDS, clients=st.sets(CLIENTS, min_size=1), lands=st.booleans())
    def rebalance(self, group_id: str, clients: set[int], lands: bool) -> None:
        """All of them do what clients do, so that the group becomes stable, or nearly."""
        for _ in range(2):
            for client in clients:
                self.join(client, group_id, True, SUBSCRIPTIONS[0], ("range",), 9)
        for client in clients:
            self.sync(client, group_id, 0)
        if lands and self.held:
            self.log_takes(True)

    @rule(client=CLIENTS, group_id=GROUP_IDS)
    def heartbeat(self, client: int, group_id: str) -> None:
        where = (client, group_id)
        member_id, generation_id = self.ids.get(where, "nobody"), self.generations.get(where, 0)
        request = g.HeartbeatRequest(group_id, generation_id, member_id, INSTANCES[client])
        self.ask(client, group_id, request, 4)

    @rule(client=CLIENTS, group_id=GROUP_IDS, by_name=st.booleans())
    def leave(self, client: int, group_id: str, by_name: bool) -> None:
        member_id = "" if by_name else self.ids.get((client, group_id), "nobody")
        members = (g.MemberIdentity(member_id, INSTANCES[client]),)
        self.ask(client, group_id, g.LeaveGroupRequest(group_id, members=members), 5)

    @rule(client=CLIENTS, group_id=GROUP_IDS, offset=st.integers(0, 99), simple=st.booleans())
    def commit(self, client: int, group_id: str, offset: int, simple: bool) -> None:
        where = (client, group_id)
        partitions = (o.OffsetCommitRequestPartition(client % 2, offset),)
        request = o.OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=-1 if simple else self.generations.get(where, 0),
            member_id="" if simple else self.ids.get(where, ""),
            topics=tuple(o.OffsetCommitRequestTopic(topic, partitions) for topic in "tu"),
        )
        self.ask(client, group_id, request, 8)

    @rule(producer_id=st.integers(1, 2), group_id=GROUP_IDS, offset=st.integers(0, 99))
    def commit_in_transaction(self, producer_id: int, group_id: str, offset: int) -> None:
        partitions = (t.TxnOffsetCommitRequestPartition(0, offset),)
        topics = (t.TxnOffsetCommitRequestTopic("t", partitions),)
        request = t.TxnOffsetCommitRequest("x", group_id, producer_id, 0, topics=topics)
        self.ask(0, group_id, request, 3)

    @rule(group_id=GROUP_IDS)
    def delete(self, group_id: str) -> None:
        self.ask(0, group_id, g.DeleteGroupsRequest((group_id,)), 2)

    @rule(group_id=GROUP_IDS)
    def delete_offsets(self, group_id: str) -> None:
        partitions = (g.OffsetDeleteRequestPartition(0), g.OffsetDeleteRequestPartition(1))
        topics = (g.OffsetDeleteRequestTopic("u", partitions),)
        self.ask(0, group_id, g.OffsetDeleteRequest(group_id, topics), 0)

    @rule()
    def topic_is_deleted(self) -> None:
        self.settle(self.machine.topics_deleted(["u"], at(self.now_ms)))

    # -- what happens

    @rule(ms=st.sampled_from([1, 20, 60, 110, 400]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.settle(self.machine.tick(at(self.now_ms)))

    @precondition(lambda self: self.held)
    @rule(all_of_them=st.booleans())
    def log_takes(self, all_of_them: bool) -> None:
        for _ in range(len(self.held) if all_of_them else 1):
            outcome = self.held.pop(0)
            producer_id = next(
                (e.producer_id for e in outcome.effects if isinstance(e, AppendInTransaction)), -1
            )
            for key, value in outcome.records:
                self.log.append((key, value, producer_id))
                self.machine.replay(key, value, at(self.now_ms), producer_id=producer_id)
            self.answer(outcome)
        self.settle(self.machine.tick(at(self.now_ms)))

    @precondition(lambda self: self.held)
    @rule()
    def log_refuses(self) -> None:
        outcome = self.held.pop()
        error = ErrorCode.NOT_ENOUGH_REPLICAS
        instead = self.machine.append_failed(outcome, error, at(self.now_ms))
        assert not instead.records
        self.answer(instead)

    @precondition(lambda self: not self.held)
    @rule(producer_id=st.integers(1, 2), commit=st.booleans())
    def transaction_ends(self, producer_id: int, commit: bool) -> None:
        self.log.append((producer_id, commit, -1))
        self.machine.complete_transaction(producer_id, 0, commit=commit)

    # -- what always holds

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(count == 1 for count in getattr(self, "answered", Counter()).values())

    @invariant()
    def generations_only_grow(self) -> None:
        for group in self.machine._groups.values():
            _, before = self.seen.get(id(group), (None, 0))
            assert group.generation_id >= before
            self.seen[id(group)] = (group, group.generation_id)  # kept, so that ids stay unique

    @invariant()
    def a_generation_has_one_leader(self) -> None:
        assert all(len(leaders) == 1 for leaders in self.leaders.values())

    @invariant()
    def groups_are_consistent(self) -> None:
        deadlines = self.machine._rebalances._deadlines
        waiting = [0]
        for group in self.machine._groups.values():
            members = set(group.members)
            assert group.joining.keys() <= members
            assert group.syncing.keys() <= members
            assert group.not_yet_synced <= members
            assert not members & group.pending_members
            assert set(group.static_members.values()) <= members
            assert (group.state is EMPTY) <= (not members)
            assert group.leader_id in members if members else group.leader_id is None
            assert group.state is not STABLE or not group.joining
            assert len(group.joining) <= self.config.group_max_size
            assert len(members) <= 2 * self.config.group_max_size  # half of them did not rejoin
            knows = Counter(name for m in group.members.values() for name in m.knows)
            assert knows == +group.votes
            for member_id in members - set(group.joining) - set(group.syncing):
                assert (Timer.SESSION, group.group_id, member_id) in deadlines
            waiting.append(len(group.joining) + len(group.syncing))
        held = sum(len(outcome.replies) for outcome in self.held)
        assert sum(waiting) + held == len(self.asked) - len(self.answered)

    @invariant()
    def a_restart_would_bring_back_nobody_who_is_gone(self) -> None:
        """But where the log refused the record of a departure, until the next step of the group."""
        for group in self.machine._groups.values():
            if group.durable is not None and not self.held and not group.has_departures:
                assert {m.member_id for m in group.durable.members} <= set(group.members)

    @invariant()
    def the_log_alone_says_what_is_durable(self) -> None:
        fresh = GroupCoordinator(Random(0), self.config, self.offsets_config)
        for first, second, producer_id in self.log:
            if isinstance(first, int):
                fresh.complete_transaction(first, 0, commit=second)
            else:
                fresh.replay(first, second, at(self.now_ms), producer_id=producer_id)
        assert durable(fresh) == durable(self.machine)

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        for outcome in self.held:
            self.answer(outcome)
        self.held.clear()
        self.answer(self.machine.resign(at(self.now_ms)))
        assert set(self.answered) == set(self.asked)
        assert not self.machine._groups
        assert not self.machine._rebalances._deadlines


def durable(machine: GroupCoordinator) -> tuple[Any, ...]:
    groups = {name: group.durable for name, group in machine._groups.items() if group.durable}
    offsets = machine._offsets
    pending = {p: {k: set(v) for k, v in groups.items()} for p, groups in offsets._pending.items()}
    return groups, offsets._committed, pending


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
