"""What each request to a group coordinator is answered, version by version."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kafkalite.core.coordinators.append_errors import with_append_error
from kafkalite.core.coordinators.machine import AppendInTransaction, Record
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import LEGAL, Group, GroupConfig, GroupState, Member
from kafkalite.core.groups.records import (
    CommittedOffset,
    GroupRecordKey,
    decode_group,
    decode_key,
    group_record,
    group_tombstone,
    offset_record,
)
from kafkalite.core.protocol import groups as g
from kafkalite.core.protocol import offsets as o
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.protocol.codec import definition, encode
from kafkalite.core.protocol.group_records import GroupMetadataValue, MemberMetadata
from kafkalite.core.protocol.subscriptions import Subscription, encode_subscription
from kafkalite.core.types import NOTHING, Outcome, Reply, RequestContext, TopicPartition
from kafkalite.errors import ErrorCode
from kafkalite.testing.clock import at, wall_of

READS_T = encode_subscription(Subscription(("t",)))


class Rim:
    """Appends and replays at once; keeps each answer's bytes honest by encoding it."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self.machine = GroupCoordinator(Random(1), config)
        self.now_ms = 0
        self.answers: dict[Any, Any] = {}
        self.versions: dict[Any, int] = {}

    def ask(self, request: Any, version: int, token: str = "x", client_id: str | None = "c") -> Any:
        self.versions[token] = version
        context = RequestContext(version, client_id, "/10.0.0.1", token)
        self.settle(self.machine.handle(request, context, at(self.now_ms)))
        return self.answers.pop(token, None)

    def settle(self, outcome: Outcome[Record]) -> None:
        for key, value in outcome.records:
            self.machine.replay(key, value, at(self.now_ms))
        for reply in outcome.replies:
            encode(reply.response, self.versions[reply.token])
            self.answers[reply.token] = reply.response

    def join(self, version: int = 9, token: str = "x", **fields: Any) -> Any:
        request = g.JoinGroupRequest(
            **{
                "group_id": "g",
                "session_timeout_ms": 10_000,
                "protocol_type": "consumer",
                "protocols": (g.JoinGroupRequestProtocol("range", READS_T),),
                **fields,
            }
        )
        return self.ask(request, version, token)

    def stable(self) -> str:
        """A group g of one member, whose id it returns."""
        joined = self.join(3)
        assigned = (g.SyncGroupRequestAssignment(joined.member_id, b"t0"),)
        request = g.SyncGroupRequest("g", 1, joined.member_id, assignments=assigned)
        assert self.ask(request, 3).error_code is ErrorCode.NONE
        return str(joined.member_id)


@pytest.mark.parametrize("version", range(10))
def test_join_group_is_answered_in_every_version(version: int) -> None:
    rim = Rim()
    refused = rim.join(version, group_id="")
    assert refused.error_code is ErrorCode.INVALID_GROUP_ID
    first = rim.join(version)
    if version >= 4:
        assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
        first = rim.join(version, member_id=first.member_id)
    assert first.error_code is ErrorCode.NONE
    assert first.leader == first.member_id
    assert first.member_id.startswith("c-")
    assert len(first.member_id) == len("c-") + 36
    assert [(m.member_id, m.metadata) for m in first.members] == [(first.member_id, READS_T)]


def test_without_a_rebalance_timeout_the_session_s_is_taken() -> None:
    rim = Rim()
    first = rim.join(0, "a")
    rim.join(0, "b", session_timeout_ms=30_000)
    rim.now_ms = 1
    assert "b" not in rim.answers
    rim.ask(g.HeartbeatRequest("g", 1, first.member_id), 0)
    rim.now_ms = 30_000
    rim.settle(rim.machine.tick(at(rim.now_ms)))
    assert rim.answers["b"].generation_id == 2


def test_a_client_without_an_id_gets_a_member_id_all_the_same() -> None:
    rim = Rim()
    request = g.JoinGroupRequest(
        "g", 10_000, protocol_type="c", protocols=(g.JoinGroupRequestProtocol("p", b""),)
    )
    assert rim.ask(request, 3, client_id=None).member_id.startswith("-")


def test_a_protocol_named_twice_counts_once() -> None:
    rim = Rim()
    twice = (g.JoinGroupRequestProtocol("range", b"1"), g.JoinGroupRequestProtocol("range", b"2"))
    assert rim.join(3, protocols=twice).protocol_name == "range"
    rim.join(3, "b")
    assert rim.join(3, member_id=rim.machine._groups["g"].leader_id).generation_id == 2


@pytest.mark.parametrize("version", range(6))
def test_sync_heartbeat_and_leave_are_answered_in_every_version(version: int) -> None:
    rim = Rim()
    member_id = rim.stable()
    assert rim.ask(g.SyncGroupRequest("g", 1, member_id), min(version, 5)).assignment == b"t0"
    heartbeat = g.HeartbeatRequest("g", 1, member_id)
    assert rim.ask(heartbeat, min(version, 4)).error_code is ErrorCode.NONE
    leave = g.LeaveGroupRequest("g", member_id, (g.MemberIdentity(member_id),))
    assert rim.ask(leave, version).error_code is ErrorCode.NONE
    again = rim.ask(leave, version)
    if version < 3:
        assert again.error_code is ErrorCode.UNKNOWN_MEMBER_ID
    else:
        assert again.members[0].error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_id_is_for_offsets_alone() -> None:
    rim = Rim()

    def members_are_refused() -> None:
        for request in (
            g.SyncGroupRequest("", 1, "m"),
            g.HeartbeatRequest("", 1, "m"),
            g.LeaveGroupRequest("", "m", (g.MemberIdentity("m"),)),
            g.OffsetDeleteRequest("", ()),
        ):
            version = definition(type(request)).versions[1]
            assert rim.ask(request, version).error_code is ErrorCode.INVALID_GROUP_ID, request

    members_are_refused()
    partitions = (o.OffsetCommitRequestPartition(0, 5),)
    commit = o.OffsetCommitRequest("", topics=(o.OffsetCommitRequestTopic("t", partitions),))
    assert rim.ask(commit, 8).topics[0].partitions[0].error_code is ErrorCode.NONE
    members_are_refused()
    deleted = rim.ask(g.DeleteGroupsRequest(("",)), 2)
    assert deleted.results == (g.DeletableGroupResult("", ErrorCode.NONE),)


@pytest.mark.parametrize("version", range(1, 10))
def test_offsets_are_committed_and_fetched_in_every_version(version: int) -> None:
    rim = Rim()
    partitions = (o.OffsetCommitRequestPartition(3, 5, 7, 100, None),)
    commit = o.OffsetCommitRequest("g", topics=(o.OffsetCommitRequestTopic("t", partitions),))
    assert rim.ask(commit, version).topics[0].partitions[0].error_code is ErrorCode.NONE
    if version >= 8:
        topics = (o.OffsetFetchRequestTopics("t", (3, 4)),)
        fetch = o.OffsetFetchRequest(groups=(o.OffsetFetchRequestGroup("g", topics=topics),))
        found = rim.ask(fetch, version).groups[0].topics[0].partitions
    else:
        fetch = o.OffsetFetchRequest("g", (o.OffsetFetchRequestTopic("t", (3, 4)),))
        found = rim.ask(fetch, version).topics[0].partitions
    told = [(p.partition_index, p.committed_offset, p.metadata) for p in found]
    assert told == [(3, 5, ""), (4, -1, "")]
    assert [p.committed_leader_epoch for p in found] == [7, -1]


def test_null_topics_are_all_and_several_groups_are_answered_apart() -> None:
    rim = Rim()
    for group_id in ("g", "h"):
        topics = tuple(
            o.OffsetCommitRequestTopic(name, (o.OffsetCommitRequestPartition(1, 5),))
            for name in ("u", "t")
        )
        rim.ask(o.OffsetCommitRequest(group_id, topics=topics), 8)
    old = rim.ask(o.OffsetFetchRequest("g", None), 2)
    assert [topic.name for topic in old.topics] == ["t", "u"]
    groups = (
        o.OffsetFetchRequestGroup("g", topics=None),
        o.OffsetFetchRequestGroup("nobody", topics=None),
        o.OffsetFetchRequestGroup("h", topics=()),
    )
    new = rim.ask(o.OffsetFetchRequest(groups=groups), 8)
    assert [(found.group_id, len(found.topics)) for found in new.groups] == [
        ("g", 2),
        ("nobody", 0),
        ("h", 0),
    ]


def test_an_expiry_beyond_all_time_is_the_end_of_time() -> None:
    rim = Rim()
    partitions = (o.OffsetCommitRequestPartition(0, 5),)
    topics = (o.OffsetCommitRequestTopic("t", partitions),)
    rim.now_ms = 1_000
    for retention_ms in (2**63 - 1, -(2**63)):
        request = o.OffsetCommitRequest("g", retention_time_ms=retention_ms, topics=topics)
        assert rim.ask(request, 2).topics[0].partitions[0].error_code is ErrorCode.NONE


def test_a_transaction_s_offsets_go_into_its_own_batch() -> None:
    machine = GroupCoordinator(Random(1))
    partitions = (t.TxnOffsetCommitRequestPartition(0, 5, 7, None),)
    topics = (t.TxnOffsetCommitRequestTopic("t", partitions),)
    request = t.TxnOffsetCommitRequest("tx", "g", 9, 2, topics=topics)
    outcome = machine.handle(request, RequestContext(3), at(0))
    assert len(outcome.records) == 1
    assert outcome.effects == (AppendInTransaction("tx", 9, 2),)
    refused = t.TxnOffsetCommitRequest("tx", "", 9, 2, topics=topics)
    outcome = machine.handle(refused, RequestContext(3), at(0))
    assert outcome.effects == ()
    code = outcome.replies[0].response.topics[0].partitions[0].error_code
    assert code is ErrorCode.INVALID_GROUP_ID


def test_members_are_described_with_their_metadata_once_the_group_is_stable() -> None:
    rim = Rim()
    describe = g.DescribeGroupsRequest(("g", "nobody"))
    joined = rim.join(3)
    rebalancing, missing = rim.ask(describe, 5).groups
    assert rebalancing.group_state == "CompletingRebalance"
    assert (rebalancing.members[0].member_metadata, rebalancing.protocol_data) == (b"", "")
    assert missing == g.DescribedGroup(group_id="nobody", group_state="Dead")
    assigned = (g.SyncGroupRequestAssignment(joined.member_id, b"t0"),)
    rim.ask(g.SyncGroupRequest("g", 1, joined.member_id, assignments=assigned), 3)
    (stable, _) = rim.ask(describe, 5).groups
    assert stable == g.DescribedGroup(
        group_id="g",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=(g.DescribedGroupMember(joined.member_id, None, "c", "/10.0.0.1", READS_T, b"t0"),),
    )


def test_groups_are_listed_by_state_and_type() -> None:
    rim = Rim()
    rim.stable()
    partitions = (o.OffsetCommitRequestPartition(0, 5),)
    topics = (o.OffsetCommitRequestTopic("t", partitions),)
    rim.ask(o.OffsetCommitRequest("simple", topics=topics), 8)

    def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[str]:
        found = rim.ask(g.ListGroupsRequest(states, types), 5).groups
        assert all(group.group_type == "classic" for group in found)
        return [f"{group.group_id} {group.group_state} {group.protocol_type}" for group in found]

    assert listed() == ["g Stable consumer", "simple Empty "]
    assert listed(("stABLe", "Dead")) == ["g Stable consumer"]
    assert listed(types=("Classic",)) == listed()
    assert listed(types=("consumer",)) == []


def test_a_coordinator_holds_no_more_groups_than_it_may() -> None:
    rim = Rim(GroupConfig(group_initial_rebalance_delay_ms=0, groups_max=1))
    rim.stable()
    assert rim.join(3, group_id="h").error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    partitions = (o.OffsetCommitRequestPartition(0, 5),)
    topics = (o.OffsetCommitRequestTopic("t", partitions),)
    answer = rim.ask(o.OffsetCommitRequest("h", topics=topics), 8)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_commit_that_is_refused_leaves_no_group_behind() -> None:
    rim = Rim()
    partitions = (o.OffsetCommitRequestPartition(0, 5, committed_metadata="x" * 5_000),)
    topics = (o.OffsetCommitRequestTopic("t", partitions),)
    rim.ask(o.OffsetCommitRequest("g", topics=topics), 8)
    assert rim.ask(g.ListGroupsRequest(), 5).groups == ()


def test_a_static_member_comes_back_into_a_full_group() -> None:
    rim = Rim(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1))
    joined = rim.join(9, group_instance_id="i")
    assigned = (g.SyncGroupRequestAssignment(joined.member_id, b"t0"),)
    rim.ask(g.SyncGroupRequest("g", 1, joined.member_id, "i", assignments=assigned), 5)
    assert rim.join(9, group_instance_id="i").error_code is ErrorCode.NONE
    assert rim.join(9, group_instance_id="j").error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_request_that_is_none_of_ours_is_a_programmer_s_error() -> None:
    with pytest.raises(TypeError, match="FindCoordinatorRequest"):
        Rim().ask(g.FindCoordinatorRequest(), 4)


def test_every_request_to_a_coordinator_has_an_answer() -> None:
    apis = {11, 12, 13, 14, 15, 16, 42, 47, 8, 9, 28}
    requests = {API[ApiKey(key)].request for key in apis}
    machine = GroupCoordinator(Random(1))
    assert requests == {*machine._handlers, g.HeartbeatRequest}


def test_records_of_other_kinds_are_passed_over() -> None:
    machine = GroupCoordinator(Random(1))
    machine.replay(b"\0\3\0\1g", b"\0\0", at(0))
    assert machine.handle(g.ListGroupsRequest(), RequestContext(5), at(0)).replies[0].response == (
        g.ListGroupsResponse()
    )


def test_loading_gives_everyone_a_full_session_from_its_end_on() -> None:
    rim = Rim()
    member_id = rim.stable()
    stored = rim.machine._groups["g"].durable
    assert stored is not None
    fresh = GroupCoordinator(Random(2))
    fresh.replay(*group_record("g", stored), at(0))
    fresh.loaded(at(5_000))
    assert fresh.tick(at(14_999)) == NOTHING
    heartbeat = g.HeartbeatRequest("g", 1, member_id)
    alive = fresh.handle(heartbeat, RequestContext(4), at(14_999)).replies[0].response
    assert alive.error_code is ErrorCode.NONE


def test_a_group_outlives_its_tombstone_while_it_has_offsets() -> None:
    machine = GroupCoordinator(Random(1))
    machine.replay(*offset_record("g", TopicPartition("t", 0), CommittedOffset(5)), at(0))
    machine.replay(*group_tombstone("g"), at(0))
    listed = machine.handle(g.ListGroupsRequest(), RequestContext(5), at(0)).replies[0].response
    assert [group.group_id for group in listed.groups] == ["g"]


def test_a_member_from_before_rebalance_timeouts_has_its_session_s() -> None:
    stored = MemberMetadata("m", session_timeout=7, rebalance_timeout=-1)
    value = GroupMetadataValue("consumer", 1, "range", "m", members=(stored,))
    assert Group.from_value("g", value).members["m"].rebalance_timeout_ms == 7


def test_a_transactional_commit_that_is_refused_leaves_no_group_behind() -> None:
    rim = Rim()
    partitions = (t.TxnOffsetCommitRequestPartition(0, 5, committed_metadata="x" * 5_000),)
    topics = (t.TxnOffsetCommitRequestTopic("t", partitions),)
    rim.ask(t.TxnOffsetCommitRequest("tx", "g", 9, 2, topics=topics), 3)
    assert rim.ask(g.ListGroupsRequest(), 5).groups == ()


def test_a_static_member_comes_back_from_another_address() -> None:
    rim = Rim()
    joined = rim.join(9, group_instance_id="i")
    assigned = (g.SyncGroupRequestAssignment(joined.member_id, b"t0"),)
    rim.ask(g.SyncGroupRequest("g", 1, joined.member_id, "i", assignments=assigned), 5)
    protocols = (g.JoinGroupRequestProtocol("range", READS_T),)
    request = g.JoinGroupRequest("g", 10_000, 1, "", "i", "consumer", protocols)
    outcome = rim.machine.handle(request, RequestContext(9, "new", "/10.0.0.2", "x"), at(0))
    assert outcome.records[0][1] is not None
    stored = decode_group(outcome.records[0][1]).members[0]
    assert (stored.client_id, stored.client_host) == ("new", "/10.0.0.2")


def test_the_next_deadline_is_never_late_and_ticks_are_idle_before_it() -> None:
    rim = Rim(GroupConfig(group_initial_rebalance_delay_ms=0))
    assert rim.machine.next_deadline_ms() is None
    member_id = rim.stable()
    assert wall_of(rim.machine.next_deadline_ms()) == 10_000
    for now_ms in range(0, 60_000, 3_000):
        rim.now_ms = now_ms
        assert rim.machine.tick(at(now_ms)) == NOTHING
        rim.ask(g.HeartbeatRequest("g", 1, member_id), 4)
        deadline_ms = wall_of(rim.machine.next_deadline_ms())
        assert deadline_ms is not None
        assert now_ms < deadline_ms <= now_ms + 10_000


def test_an_answer_does_not_wait_for_what_expires_at_the_same_time() -> None:
    """Their records would go in one batch, and be refused together."""
    rim = Rim()
    rim.stable()
    topics = (o.OffsetCommitRequestTopic("t", (o.OffsetCommitRequestPartition(0, 5),)),)
    commit = o.OffsetCommitRequest("h", topics=topics, retention_time_ms=0)
    rim.ask(commit, 4)
    rim.join(3, "y", rebalance_timeout_ms=600_000)  # waits for the other one
    rim.now_ms = 600_000  # whose time is up, and who is gone; and h is looked at
    outcome = rim.machine.tick(at(rim.now_ms))
    assert [reply.token for reply in outcome.replies] == ["y"]
    assert [decode_key(key) for key, _ in outcome.records] == [GroupRecordKey("g")]  # who is gone
    assert wall_of(rim.machine.next_deadline_ms()) == rim.now_ms
    assert [value for _, value in rim.machine.tick(at(rim.now_ms)).records] == [None, None]


def test_what_the_log_refuses_is_told_in_the_group_s_words() -> None:
    joined = g.JoinGroupResponse(member_id="m", protocol_name="p")
    failed = with_append_error(joined, ErrorCode.REQUEST_TIMED_OUT)
    assert failed.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    synced = with_append_error(g.SyncGroupResponse(), ErrorCode.MESSAGE_TOO_LARGE)
    assert synced.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    partitions = (
        o.OffsetCommitResponsePartition(0),
        o.OffsetCommitResponsePartition(1, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    )
    response = o.OffsetCommitResponse(topics=(o.OffsetCommitResponseTopic("t", partitions),))
    codes = with_append_error(response, ErrorCode.MESSAGE_TOO_LARGE).topics[0].partitions
    assert [p.error_code for p in codes] == [
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    deleted = g.DeleteGroupsResponse(results=(g.DeletableGroupResult("g"),))
    moved = with_append_error(deleted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert moved.results[0].error_code is ErrorCode.NOT_COORDINATOR
    forgot = with_append_error(g.OffsetDeleteResponse(), ErrorCode.KAFKA_STORAGE_ERROR)
    assert forgot.error_code is ErrorCode.NOT_COORDINATOR
    left = g.LeaveGroupResponse()
    assert with_append_error(left, ErrorCode.NOT_ENOUGH_REPLICAS) is left


def test_a_commit_that_failed_leaves_nothing_unstable() -> None:
    machine = GroupCoordinator(Random(1))
    partitions = (o.OffsetCommitRequestPartition(0, 5),)
    topics = (o.OffsetCommitRequestTopic("t", partitions),)
    outcome = machine.handle(
        o.OffsetCommitRequest("g", topics=topics), RequestContext(8, token="x"), at(0)
    )
    assert (
        outcome.records[0][0] == offset_record("g", TopicPartition("t", 0), CommittedOffset(0))[0]
    )
    failed = machine.append_failed(outcome, ErrorCode.NOT_ENOUGH_REPLICAS, at(0))
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    expected = o.OffsetCommitResponse(
        topics=(o.OffsetCommitResponseTopic("t", (o.OffsetCommitResponsePartition(0, code),)),)
    )
    assert failed.replies == (Reply("x", expected),)
    assert not machine._groups


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("then", GroupState)
def test_a_group_takes_legal_steps_only(state: GroupState, then: GroupState) -> None:
    group = Group("g", state=state)
    if then in LEGAL[state]:
        group.become(then, 5)
        assert (group.state, group.state_timestamp_ms) == (then, 5)
    else:
        with pytest.raises(AssertionError, match=f"g: {state.name} -> {then.name}"):
            group.become(then, 5)


def test_the_vote_goes_to_the_protocol_that_most_like_best_of_those_that_all_know() -> None:
    group = Group("g")
    for member_id, names in [("a", "xyz"), ("b", "yxw"), ("c", "yx"), ("d", "xy")]:
        known = tuple(g.JoinGroupRequestProtocol(name, b"") for name in names)
        group.add(Member(member_id, None, "", "", 1, 1, known), "consumer")
    assert group.selected_protocol() == "x"  # as many votes as y, and a joined first
    group.remove("d")
    assert group.selected_protocol() == "y"
    assert not group.supports("consumer", ["w", "z"])
    assert group.supports("consumer", ["w", "x"])
    assert not group.supports("connect", ["x"])
