"""Scenarios of groups as text: what members send, and below it what comes of it.

How they are played is told in `player`. A step comes to, in this order, the records that it
appends, the answers, and the group's state if that changed. A client keeps the member id and
generation that it was last told, as real ones do; `member=` and `generation=` say otherwise. A
member's ids are shown as a1, a2, … in the order in which `a` got them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from player import Player, check, scenarios

from kafkalite.core.coordinators.machine import AppendInTransaction, Record
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import GroupConfig
from kafkalite.core.groups.offsets import OffsetsConfig
from kafkalite.core.groups.records import (
    GroupRecordKey,
    decode_group,
    decode_key,
    decode_offset,
)
from kafkalite.core.protocol import groups as g
from kafkalite.core.protocol import offsets as o
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.subscriptions import Subscription, encode_subscription
from kafkalite.core.types import Outcome, RequestContext
from kafkalite.errors import ErrorCode
from kafkalite.testing.clock import wall_of

OFFSETS_KEYS = {"offset_metadata_max_bytes", "offsets_retention_ms"} | {
    "offsets_retention_check_interval_ms"
}


class Client:
    """What a client of the group remembers between two requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = ""
        self.generation = -1
        self.instance: str | None = None


class Group(Player):
    """A coordinator, its log, and the clients of its group."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # member id -> a1, a2, …
        self.clients: dict[str, Client] = {}
        self.state = ""
        self.lives = 0
        super().__init__(group_initial_rebalance_delay_ms=0)

    def make(self) -> GroupCoordinator:
        offsets = {k: v for k, v in self.settings.items() if k in OFFSETS_KEYS}
        groups = {k: v for k, v in self.settings.items() if k not in OFFSETS_KEYS}
        self.lives += 1
        return GroupCoordinator(Random(self.lives), GroupConfig(**groups), OffsetsConfig(**offsets))

    # -- the rim

    def run(self, line: str) -> Iterator[str]:
        yield from super().run(line)
        yield from self.changed_state()

    def ask(self, request: Any, version: int, who: str) -> Iterator[str]:
        context = RequestContext(version, f"{who}", "/10.0.0.1", who)
        return self.settle(self.machine.handle(request, context, self.now))

    def show_records(self, outcome: Outcome[Record]) -> Iterator[str]:
        for record in outcome.records:
            yield "+ " + self.show_record(record, producer_of(outcome))

    def land(self, outcome: Outcome[Record]) -> Iterator[str]:
        producer_id = producer_of(outcome)
        for record in outcome.records:
            self.log.append((*record, producer_id))
            self.machine.replay(*record, self.now, producer_id=producer_id)
        for reply in outcome.replies:
            yield f"{reply.token}: {self.show(reply.token, reply.response)}"
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None and wall_of(deadline_ms) <= self.now_ms:
            yield from self.settle(self.machine.tick(self.now))

    def replay_log(self) -> None:
        for first, second, producer_id in self.log:
            if isinstance(first, int):
                self.machine.complete_transaction(first, 0, commit=second)
            else:
                self.machine.replay(first, second, self.now, producer_id=producer_id)

    def changed_state(self) -> Iterator[str]:
        context = RequestContext(5)
        request = g.DescribeGroupsRequest(("g",))
        found = self.machine.handle(request, context, self.now).replies[0].response.groups[0]
        members = ",".join(self.name(m.member_id) for m in found.members)
        state = f"= {found.group_state} {members}".rstrip()
        if state != self.state:
            self.state = state
            yield state

    # -- names

    def client(self, name: str) -> Client:
        return self.clients.setdefault(name, Client(name))

    def name(self, member_id: str) -> str:
        if member_id and member_id not in self.names:
            who = member_id[:-37]
            count = sum(1 for known in self.names if known[:-37] == who)
            self.names[member_id] = f"{who}{count + 1}" if who else member_id
        return self.names.get(member_id, "-")

    def member_id(self, name: str) -> str:
        return next((i for i, known in self.names.items() if known == name), name.strip("-"))

    # -- what is shown

    def show(self, who: str, response: Any) -> str:
        if isinstance(response, g.JoinGroupResponse):
            return self.show_joined(who, response)
        if isinstance(response, g.SyncGroupResponse):
            return f"{response.error_code.name} {response.assignment.decode()}".strip()
        if isinstance(response, g.LeaveGroupResponse):
            parts = [f"{self.name(m.member_id)} {m.error_code.name}" for m in response.members]
            return " ".join([response.error_code.name, *parts])
        if isinstance(response, o.OffsetFetchResponse):
            return self.show_fetched(response)
        if hasattr(response, "topics"):
            parts = [
                f"{topic.name}-{p.partition_index} {p.error_code.name}"
                for topic in response.topics
                for p in topic.partitions
            ]
            error = getattr(response, "error_code", ErrorCode.NONE)
            return " ".join(parts if not error else [error.name])
        if isinstance(response, g.DeleteGroupsResponse):
            return " ".join(f"{r.group_id} {r.error_code.name}" for r in response.results)
        if isinstance(response, g.ListGroupsResponse):
            return " ".join(f"{r.group_id}:{r.group_state}" for r in response.groups) or "nothing"
        return str(response.error_code.name)

    def show_joined(self, who: str, response: g.JoinGroupResponse) -> str:
        client = self.client(who)
        error = response.error_code
        if error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            client.id, client.generation = response.member_id, response.generation_id
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            client.id, client.generation = "", -1
        if error:
            return f"{error.name} {self.name(response.member_id)}"
        parts = [
            f"NONE {self.name(response.member_id)} generation {response.generation_id}",
            f"{response.protocol_name} leader {self.name(response.leader)}",
        ]
        if response.members:
            parts.append("of " + ",".join(self.name(m.member_id) for m in response.members))
        return " ".join(parts) + (" skip" if response.skip_assignment else "")

    def show_fetched(self, response: o.OffsetFetchResponse) -> str:
        topics = response.groups[0].topics
        return " ".join(
            f"{topic.name}-{p.partition_index} "
            + (p.error_code.name if p.error_code else f"{p.committed_offset}")
            + (f"@{p.committed_leader_epoch}" if p.committed_leader_epoch >= 0 else "")
            + (f"'{p.metadata}'" if p.metadata else "")
            for topic in topics
            for p in topic.partitions
        ) or ("nothing" if topics is not None else "null")

    def show_record(self, record: Record, producer_id: int) -> str:
        key, value = record
        kind = decode_key(key)
        if isinstance(kind, GroupRecordKey):
            if value is None:
                return f"group {kind.group_id} tombstone"
            stored = decode_group(value)
            members = " ".join(
                f"{self.name(m.member_id)}={m.assignment.decode()}" for m in stored.members
            )
            return f"group {kind.group_id} generation {stored.generation} {members}".rstrip()
        assert kind is not None
        shown = "tombstone" if value is None else str(decode_offset(value).offset)
        by = f" by producer {producer_id}" if producer_id >= 0 else ""
        return f"offset {kind.group_id} {kind.partition} {shown}{by}"

    # -- verbs

    def do_join(
        self,
        who: str,
        member: str | None = None,
        instance: str | None = None,
        topics: str = "t",
        protocols: str = "range",
        session: str = "10000",
        rebalance: str = "60000",
        v: str = "9",
        kind: str = "consumer",
        group: str = "g",
    ) -> Iterator[str]:
        client = self.client(who)
        client.instance = instance or client.instance
        metadata = encode_subscription(Subscription(tuple(topics.split(","))))
        yield from self.ask(
            g.JoinGroupRequest(
                group_id=group.strip("-"),
                session_timeout_ms=int(session),
                rebalance_timeout_ms=int(rebalance),
                member_id=client.id if member is None else self.member_id(member),
                group_instance_id=client.instance,
                protocol_type=kind.strip("-"),
                protocols=tuple(
                    g.JoinGroupRequestProtocol(name, metadata)
                    for name in protocols.split(",")
                    if name != "-"
                ),
            ),
            int(v),
            who,
        )

    def do_sync(
        self,
        who: str,
        generation: str = "",
        protocol: str | None = "range",
        kind: str | None = "consumer",
        **given: str,
    ) -> Iterator[str]:
        client = self.client(who)
        assignments = tuple(
            g.SyncGroupRequestAssignment(self.client(name).id, what.encode())
            for name, what in given.items()
        )
        yield from self.ask(
            g.SyncGroupRequest(
                group_id="g",
                generation_id=int(generation or client.generation),
                member_id=client.id,
                group_instance_id=client.instance,
                protocol_type=kind,
                protocol_name=protocol,
                assignments=assignments,
            ),
            5,
            who,
        )

    def do_heartbeat(
        self, who: str, generation: str = "", member: str | None = None, instance: str | None = None
    ) -> Iterator[str]:
        client = self.client(who)
        yield from self.ask(
            g.HeartbeatRequest(
                "g",
                int(generation or client.generation),
                client.id if member is None else self.member_id(member),
                instance or client.instance,
            ),
            4,
            who,
        )

    def do_leave(self, *who: str, instance: str = "", v: str = "5") -> Iterator[str]:
        ids = [self.client(name).id for name in who if name != "operator"]
        members = [g.MemberIdentity(member_id) for member_id in ids]
        if instance:
            members.append(g.MemberIdentity("", instance))
        request = g.LeaveGroupRequest("g", members[0].member_id, tuple(members))
        yield from self.ask(request, int(v), who[0])

    def do_commit(
        self,
        who: str,
        generation: str | None = None,
        member: str | None = None,
        v: str = "8",
        retention: str = "-1",
        note: str = "",
        note_bytes: str = "0",
        epoch: str = "-1",
        **offsets: str,
    ) -> Iterator[str]:
        client = self.client(who)
        note = note or "x" * int(note_bytes)
        partitions = (
            (p, o.OffsetCommitRequestPartition(int(p.split("-")[1]), int(n), int(epoch), -1, note))
            for p, n in offsets.items()
        )
        yield from self.ask(
            o.OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=int(
                    client.generation if generation is None else generation
                ),
                member_id=client.id if member is None else self.member_id(member),
                group_instance_id=client.instance,
                retention_time_ms=int(retention),
                topics=tuple(
                    o.OffsetCommitRequestTopic(p.split("-")[0], (part,)) for p, part in partitions
                ),
            ),
            int(v),
            who,
        )

    def do_transaction(
        self, who: str, producer: str = "7", member: str | None = None, **offsets: str
    ) -> Iterator[str]:
        client = self.client(who)
        topics = tuple(
            t.TxnOffsetCommitRequestTopic(
                p.split("-")[0],
                (t.TxnOffsetCommitRequestPartition(int(p.split("-")[1]), int(offset)),),
            )
            for p, offset in offsets.items()
        )
        request = t.TxnOffsetCommitRequest(
            "tx",
            "g",
            int(producer),
            0,
            client.generation,
            client.id if member is None else self.member_id(member),
            client.instance,
            topics,
        )
        yield from self.ask(request, 3, who)

    def do_marker(self, decision: str, producer: str = "7") -> Iterator[str]:
        commit = {"commit": True, "abort": False}[decision]
        self.log.append((int(producer), commit, -1))
        self.machine.complete_transaction(int(producer), 0, commit=commit)
        yield from ()

    def do_fetch(self, *partitions: str, stable: str = "no") -> Iterator[str]:
        wanted = tuple(
            o.OffsetFetchRequestTopics(p.split("-")[0], (int(p.split("-")[1]),))
            for p in partitions
            if p != "all"
        )
        group = o.OffsetFetchRequestGroup("g", topics=None if "all" in partitions else wanted)
        request = o.OffsetFetchRequest(groups=(group,), require_stable=stable == "yes")
        yield from self.ask(request, 8, "reader")

    def do_delete_offsets(self, *partitions: str) -> Iterator[str]:
        topics = tuple(
            g.OffsetDeleteRequestTopic(
                p.split("-")[0], (g.OffsetDeleteRequestPartition(int(p.split("-")[1])),)
            )
            for p in partitions
        )
        yield from self.ask(g.OffsetDeleteRequest("g", topics), 0, "operator")

    def do_delete_group(self, *names: str) -> Iterator[str]:
        yield from self.ask(g.DeleteGroupsRequest(names or ("g",)), 2, "operator")

    def do_list(self, *states: str) -> Iterator[str]:
        yield from self.ask(g.ListGroupsRequest(states), 5, "operator")


def producer_of(outcome: Outcome[Record]) -> int:
    """In whose transaction a step's records are; −1 outside of any."""
    effects = outcome.effects
    return next((e.producer_id for e in effects if isinstance(e, AppendInTransaction)), -1)


@pytest.mark.parametrize("path", scenarios("group"), ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_it_is_written(path: Path) -> None:
    check(path, Group)
