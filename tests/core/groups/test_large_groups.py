"""Groups of very many members: what a step does not look at again."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Final

import pytest

from kafkalite.core.groups import group as groups
from kafkalite.core.groups import rebalance
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import STABLE, Group, Member
from kafkalite.core.groups.records import decode_group
from kafkalite.core.protocol.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
)
from kafkalite.core.protocol.subscriptions import Subscription, encode_subscription
from kafkalite.core.types import Now, RequestContext

COUNT: Final = 300
KNOWN: Final = (JoinGroupRequestProtocol("p", encode_subscription(Subscription(("t",)))),)
NOW: Final = Now(1_000, 1_000, 1_000)


def member_id(number: int) -> str:
    return f"member-{number}"


def fill(group: Group) -> None:
    for number in range(COUNT):
        name = member_id(number)
        group.add(Member(name, None, "c", "/h", 9_000, 9_000, KNOWN, b"got"), "consumer")


def join(number: int) -> JoinGroupRequest:
    name = member_id(number)
    return JoinGroupRequest("g", 9_000, 9_000, name, None, "consumer", KNOWN)


def machine() -> GroupCoordinator:
    made = GroupCoordinator(Random(1))
    group = made._groups["g"] = Group("g", STABLE, generation_id=1, protocol_name="p")
    fill(group)
    return made


def context(token: Any = None) -> RequestContext:
    return RequestContext(3, "c", "/h", token=token)


def test_a_generation_finds_subscriptions_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def subscribed_topics(members: Iterable[bytes]) -> frozenset[str]:
        read.extend(members)
        return frozenset("t")

    it = machine()
    for number in range(COUNT - 1):
        assert not it.handle(join(number), context(), NOW).replies
    monkeypatch.setattr(groups, "subscribed_topics", subscribed_topics)
    outcome = it.handle(join(COUNT - 1), context(), NOW)
    assert len(outcome.replies) == COUNT
    assert len(read) == 1, "that of the member who has come last"


def test_departures_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    it = machine()
    group = it._groups["g"]
    group.written = group.durable = group.to_value({}, 0)
    monkeypatch.setattr(rebalance, "decode_group", lambda _: 1 / 0)
    for number in range(3):
        members = (MemberIdentity(member_id(number)),)
        leaving = LeaveGroupRequest("g", members=members)
        outcome = it.handle(leaving, RequestContext(4, "c", "/h"), NOW)
        ((key, data),) = outcome.records
        it.replay(key, data, NOW)
        assert data is not None
        assert group.durable == decode_group(data)
        assert group.durable is not None
        assert len(group.durable.members) == COUNT - 1 - number
