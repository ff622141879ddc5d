"""A group member's states: what it sends, and how each answer moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kafkalite.clients.consumer.assignors import COOPERATIVE_STICKY, RANGE, Assignment, Assignor
from kafkalite.clients.consumer.consumer import Listener
from kafkalite.clients.consumer.membership import (
    GroupMetadata,
    MemberConfig,
    Membership,
    MemberState,
    Next,
    common_protocol,
)
from kafkalite.core.protocol.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    SyncGroupResponse,
)
from kafkalite.core.protocol.subscriptions import decode_subscription, encode_assignment
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """`o0,o1` -> two partitions of topic o."""
    return tuple(TopicPartition(t[0], int(t[1:])) for t in text.split(",") if t != "-")


def show(partitions: object) -> str:
    assert isinstance(partitions, tuple | frozenset)
    return ",".join(f"{tp.topic}{tp.partition}" for tp in sorted(partitions)) or "-"


class Scenario:
    """Runs a script line by line: `command arguments = what comes out of it`."""

    def __init__(self, assignor: Assignor = RANGE, instance_id: str | None = None) -> None:
        config = MemberConfig("g", instance_id, max_poll_interval_ms=60_000)
        self.member = Membership(config, [assignor])
        self.assignor = assignor
        self.now_ms = 0.0
        self.asked: HeartbeatRequest | None = None

    def run(self, script: str) -> None:
        for line in filter(None, map(str.strip, script.splitlines())):
            command, _, expected = (part.strip() for part in line.partition("="))
            verb, *arguments = command.split()
            told = getattr(self, verb)(*arguments)
            assert told == expected, f"{line!r} told {told!r}"

    def subscribe(self, *topics: str) -> str:
        self.member.subscribe(topics)
        return ""

    def at(self, seconds: str) -> str:
        self.now_ms = float(seconds) * 1_000
        return ""

    def poll(self) -> str:
        self.member.polled(self.now_ms)
        return "join" if self.member.rejoin_needed else ""

    def revoke(self) -> str:
        return show(self.member.revoke_before_join())

    def join(self) -> str:
        request = self.member.join_request()
        told = decode_subscription(bytes(request.protocols[0].metadata))
        return f"{request.member_id or 'nobody'} owns {show(told.owned_partitions)}"

    def joined(self, member_id: str, generation: str, leader: str = "L") -> str:
        member = JoinGroupResponseMember(
            member_id, None, self.member.join_request().protocols[0].metadata
        )
        response = JoinGroupResponse(
            generation_id=int(generation),
            protocol_name=self.assignor.name,
            leader=leader,
            member_id=member_id,
            members=(member,) if leader == member_id else (),
        )
        return self.member.joined(response, self.now_ms).name

    def refused(self, code: str, member_id: str = "") -> str:
        response = JoinGroupResponse(error_code=ErrorCode[code], member_id=member_id)
        return self.member.joined(response, self.now_ms).name

    def synced(self, assigned: str) -> str:
        self.member.sync_request()
        data = encode_assignment(Assignment(partitions(assigned)))
        return self.member.synced(SyncGroupResponse(assignment=data), self.now_ms).name

    def unsynced(self, code: str) -> str:
        response = SyncGroupResponse(error_code=ErrorCode[code])
        return self.member.synced(response, self.now_ms).name

    def take(self) -> str:
        change = self.member.take()
        return f"-{show(change.revoked)} +{show(change.assigned)}"

    def beat(self) -> str:
        request = self.member.beat(self.now_ms)
        if isinstance(request, HeartbeatRequest):
            self.asked = request
            return f"heartbeat {request.member_id} {request.generation_id}"
        return "leave" if isinstance(request, LeaveGroupRequest) else "nothing"

    def told(self, code: str) -> str:
        assert self.asked is not None
        return self.member.heartbeat_answered(self.asked, ErrorCode[code], self.now_ms).name

    def state(self) -> str:
        return f"{self.member.state.name} {show(self.member.owned)}"

    def lost(self) -> str:
        return show(self.member.take_lost())


STABLE = """
    subscribe o
    poll             = join
    join             = nobody owns -
    joined m 1       = SYNC
    synced o0,o1     = DONE
    take             = -- +o0,o1
    poll             =
"""


def test_a_member_joins_syncs_and_is_stable() -> None:
    Scenario().run(STABLE + "state = STABLE o0,o1")


def test_the_first_join_learns_its_member_id() -> None:
    Scenario().run("""
        subscribe o
        join                          = nobody owns -
        refused MEMBER_ID_REQUIRED m  = JOIN
        join                          = m owns -
    """)


def test_the_leader_assigns() -> None:
    scenario = Scenario()
    scenario.run("subscribe o\njoin = nobody owns -\njoined m 1 m = LEAD")
    assert scenario.member.subscriptions["m"].topics == ("o",)
    request = scenario.member.sync_request({"m": Assignment(partitions("o0"))})
    assert [a.member_id for a in request.assignments] == ["m"]


def test_a_leader_told_to_skip_the_assignment_brings_none() -> None:
    scenario = Scenario()
    scenario.run("subscribe o\njoin = nobody owns -")
    response = JoinGroupResponse(
        generation_id=2, protocol_name="range", leader="m", member_id="m", skip_assignment=True
    )
    assert scenario.member.joined(response, 0) is Next.SYNC


def test_an_eager_member_gives_all_up_before_it_joins_again() -> None:
    Scenario().run(
        STABLE
        + """
        at 3
        beat                        = heartbeat m 1
        told REBALANCE_IN_PROGRESS  = DONE
        poll                        = join
        revoke                      = o0,o1
        join                        = m owns -
        joined m 2                  = SYNC
        synced o1                   = DONE
        take                        = -- +o1
        poll                        =
    """
    )


def test_a_cooperative_member_gives_up_only_what_moves_and_joins_again() -> None:
    Scenario(COOPERATIVE_STICKY).run(
        STABLE
        + """
        at 3
        beat                        = heartbeat m 1
        told REBALANCE_IN_PROGRESS  = DONE
        revoke                      = -
        join                        = m owns o0,o1
        joined m 2                  = SYNC
        synced o1                   = DONE
        take                        = -o0 +-
        poll                        = join
        join                        = m owns o1
        joined m 3                  = SYNC
        synced o1                   = DONE
        take                        = -- +-
        poll                        =
    """
    )


def test_a_cooperative_member_gives_up_topics_it_no_longer_wants() -> None:
    Scenario(COOPERATIVE_STICKY).run(STABLE + "subscribe p\npoll = join\nrevoke = o0,o1")


def test_a_member_that_the_coordinator_forgot_loses_its_partitions() -> None:
    Scenario().run(
        STABLE
        + """
        at 3
        beat                    = heartbeat m 1
        told UNKNOWN_MEMBER_ID  = DONE
        state                   = UNJOINED -
        lost                    = o0,o1
        lost                    = -
        poll                    = join
        join                    = nobody owns -
    """
    )


def test_a_member_of_an_old_generation_keeps_its_id() -> None:
    Scenario().run(
        STABLE
        + """
        at 3
        beat                     = heartbeat m 1
        told ILLEGAL_GENERATION  = DONE
        lost                     = o0,o1
        join                     = m owns -
    """
    )


def test_what_is_said_of_a_past_generation_is_ignored() -> None:
    Scenario().run(
        STABLE
        + """
        at 3
        beat                    = heartbeat m 1
        subscribe o p
        revoke                  = o0,o1
        join                    = m owns -
        joined m 2              = SYNC
        told UNKNOWN_MEMBER_ID  = DONE
        state                   = SYNCING -
    """
    )


@pytest.mark.parametrize(
    ("code", "then"),
    [
        ("COORDINATOR_LOAD_IN_PROGRESS", "RETRY"),
        ("REBALANCE_IN_PROGRESS", "RETRY"),
        ("NOT_COORDINATOR", "FIND"),
        ("COORDINATOR_NOT_AVAILABLE", "FIND"),
        ("UNKNOWN_MEMBER_ID", "JOIN"),
    ],
)
def test_a_refused_join_is_tried_again(code: str, then: str) -> None:
    scenario = Scenario()
    scenario.run(f"subscribe o\njoin = nobody owns -\nrefused {code} = {then}")
    scenario.run("join = nobody owns -\njoined m 1 = SYNC")


@pytest.mark.parametrize(
    ("code", "then", "who"),
    [
        ("REBALANCE_IN_PROGRESS", "JOIN", "m"),
        ("COORDINATOR_LOAD_IN_PROGRESS", "RETRY", "m"),
        ("NOT_COORDINATOR", "FIND", "m"),
        ("ILLEGAL_GENERATION", "JOIN", "m"),
        ("UNKNOWN_MEMBER_ID", "JOIN", "nobody"),
    ],
)
def test_a_refused_sync_begins_again_with_a_join(code: str, then: str, who: str) -> None:
    scenario = Scenario()
    scenario.run(f"subscribe o\njoin = nobody owns -\njoined m 1 = SYNC\nunsynced {code} = {then}")
    scenario.run(f"join = {who} owns -")


@pytest.mark.parametrize(
    "code",
    ["INCONSISTENT_GROUP_PROTOCOL", "INVALID_SESSION_TIMEOUT", "GROUP_AUTHORIZATION_FAILED"],
)
def test_a_group_that_will_not_have_the_member_is_an_error(code: str) -> None:
    with pytest.raises(ApiError, match=f"group g refuses this member: {code}"):
        Scenario().run(f"subscribe o\njoin = nobody owns -\nrefused {code} = ")


def test_a_fenced_instance_says_who_took_its_place() -> None:
    scenario = Scenario(instance_id="i-1")
    scenario.run(STABLE + "at 3\nbeat = heartbeat m 1")
    with pytest.raises(ApiError, match="another member has taken the place of instance i-1"):
        scenario.told("FENCED_INSTANCE_ID")


def test_an_assignor_nobody_here_has_is_named() -> None:
    scenario = Scenario()
    scenario.run("subscribe o\njoin = nobody owns -")
    response = JoinGroupResponse(generation_id=1, protocol_name="sticky", member_id="m")
    with pytest.raises(ApiError, match="'sticky', this member has range"):
        scenario.member.joined(response, 0)


def test_heartbeats_go_out_at_their_interval_and_not_while_joining() -> None:
    Scenario().run(
        STABLE
        + """
        beat        = nothing
        at 2.9
        beat        = nothing
        at 3
        beat        = heartbeat m 1
        beat        = nothing
        told NONE   = DONE
        at 6
        beat        = heartbeat m 1
        subscribe p
        join        = m owns o0,o1
        at 10
        beat        = nothing
    """
    )


def test_a_member_whose_user_does_not_poll_leaves() -> None:
    Scenario().run(
        STABLE
        + """
        at 60
        beat   = heartbeat m 1
        at 60.1
        beat   = leave
        lost   = o0,o1
        poll   = join
        join   = nobody owns -
    """
    )


def test_a_static_member_does_not_say_goodbye() -> None:
    scenario = Scenario(instance_id="i-1")
    scenario.run(STABLE)
    assert scenario.member.leave_request("done") is None
    asked = scenario.member.leave_request("done", leaves=True)
    assert asked is not None
    assert asked.members[0].group_instance_id == "i-1"
    scenario.member.leave()
    assert scenario.member.state is MemberState.LEFT


def test_a_silent_coordinator_is_noticed() -> None:
    scenario = Scenario()
    scenario.run(STABLE)
    assert not scenario.member.is_session_over(45_000)
    assert scenario.member.is_session_over(45_001)


def test_a_refused_commit_says_the_same_as_a_heartbeat() -> None:
    scenario = Scenario()
    scenario.run(STABLE)
    member = scenario.member
    told = member.group_metadata
    assert told == GroupMetadata("g", 1, "m")
    assert member.commit_refused(told, ErrorCode.NOT_COORDINATOR, 0) is Next.FIND
    member.commit_refused(told, ErrorCode.UNKNOWN_MEMBER_ID, 0)
    assert member.state is MemberState.UNJOINED
    assert member.group_metadata == GroupMetadata("g")


def test_a_commit_refused_for_its_offsets_leaves_the_member_in_the_group() -> None:
    scenario = Scenario()
    scenario.run(STABLE)
    member = scenario.member
    owned = member.owned
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert member.commit_refused(member.group_metadata, code, 0) is Next.DONE
    assert (member.state, member.owned) == (MemberState.STABLE, owned)


def test_a_cooperative_assignor_must_not_give_away_what_is_owned() -> None:
    scenario = Scenario(COOPERATIVE_STICKY)
    scenario.run(STABLE + "subscribe o p\njoin = m owns o0,o1\njoined m 2 m = LEAD")
    stolen: Mapping[str, Assignment] = {"x": Assignment(partitions("o1")), "m": Assignment()}
    with pytest.raises(AssertionError, match="gave o-1 to x, m owns it still"):
        scenario.member.sync_request(stolen)


def test_one_eager_assignor_makes_the_member_eager() -> None:
    assert common_protocol([RANGE, COOPERATIVE_STICKY]) is RANGE.rebalance_protocol
    assert common_protocol([COOPERATIVE_STICKY]) is COOPERATIVE_STICKY.rebalance_protocol


def test_a_member_hears_too_that_it_has_got_nothing_but_not_that_it_loses_nothing() -> None:
    told: list[str] = []
    listener = Listener(
        on_revoked=lambda tps: told.append(f"-{show(tps)}"),
        on_assigned=lambda tps: told.append(f"+{show(tps)}"),
        on_lost=lambda tps: told.append(f"!{show(tps)}"),
    )

    async def tell(given: tuple[TopicPartition, ...]) -> None:
        await listener.revoked(given)
        await listener.lost(given)
        await listener.assigned(given)

    asyncio.run(tell(()))
    asyncio.run(tell(partitions("o1")))
    assert told == ["+-", "-o1", "!o1", "+o1"]
