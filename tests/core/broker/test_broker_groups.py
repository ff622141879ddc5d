"""Groups over the wire: who coordinates, what is refused, what a restart keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkalite.core.coordinators import runtime
from kafkalite.core.coordinators.runtime import partition_for
from kafkalite.core.groups.group import GroupState
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.errors import ErrorCode

Start = Any
TOPIC = "__consumer_offsets"


def commit(group_id: str, offset: int, *topics: str, **more: Any) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(0, offset, committed_metadata="note")
    wanted = tuple(OffsetCommitRequestTopic(name, (partition,)) for name in topics or ("t",))
    return OffsetCommitRequest(group_id, topics=wanted, **more)


def codes(response: Any) -> list[ErrorCode]:
    return [p.error_code for topic in response.topics for p in topic.partitions]


async def committed(peer: Any, group_id: str) -> dict[str, int]:
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id, topics=None),))
    (group,) = (await peer.ask(request)).groups
    assert not group.error_code, group
    return {t.name: p.committed_offset for t in group.topics for p in t.partitions}


async def find(peer: Any, *group_ids: str) -> None:
    answer = await peer.ask(FindCoordinatorRequest(coordinator_keys=group_ids))
    assert all(c.error_code is ErrorCode.NONE for c in answer.coordinators), answer


async def join(peer: Any, group_id: str) -> str:
    """Joins a group alone, with the assignment b"mine"."""
    protocols = (JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0\0\0\0\0"),)
    request = JoinGroupRequest(group_id, 10_000, 10_000, "", None, "consumer", protocols)
    first = await peer.ask(request)
    assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
    request = JoinGroupRequest(
        group_id, 10_000, 10_000, first.member_id, None, "consumer", protocols
    )
    joined = await peer.ask(request)
    assert (joined.error_code, joined.leader) == (ErrorCode.NONE, first.member_id)
    assignment = (SyncGroupRequestAssignment(first.member_id, b"mine"),)
    synced = await peer.ask(
        SyncGroupRequest(group_id, 1, first.member_id, None, "consumer", "range", assignment)
    )
    assert synced.assignment == b"mine"
    member_id: str = first.member_id
    return member_id


@pytest.mark.parametrize(
    ("group_id", "partition"),
    # Utils.abs(groupId.hashCode()) % 50 of kafka-clients 3.9
    [
        ("", 0),
        ("a", 47),
        ("console-consumer", 40),
        ("my-group", 12),
        ("g\u00e4\U0001f600", 30),
        ("polygenelubricants", 0),
    ],
)
def test_groups_are_placed_as_the_jvm_places_them(group_id: str, partition: int) -> None:
    assert partition_for(group_id, 50) == partition


@pytest.mark.parametrize("version", range(5))
def test_the_coordinator_is_found_and_its_topic_made(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            assert TOPIC not in running.broker.image.topics
            keys = ("g", "h") if version >= 4 else ()
            answer = await peer.ask(FindCoordinatorRequest("g", 0, keys), version)
            found = answer.coordinators if version >= 4 else [answer]
            assert [(c.node_id, c.host, c.port) for c in found] == [
                (1, *running.node.address) for _ in found
            ]
            assert len(running.broker.image.topics[TOPIC].partitions) == 4
            if version >= 1:
                answer = await peer.ask(FindCoordinatorRequest("g", 7, keys), version)
                refused = answer.coordinators[0] if version >= 4 else answer
                assert (refused.error_code, refused.node_id) == (ErrorCode.INVALID_REQUEST, -1)

    asyncio.run(story())


def test_a_sync_names_its_protocol_from_version_5_on(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            for version, code in (
                (4, ErrorCode.NOT_COORDINATOR),
                (5, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ):
                answer = await peer.ask(SyncGroupRequest("g", 1, "m"), version)
                assert answer.error_code is code

    asyncio.run(story())


def test_before_the_topic_exists_nobody_coordinates(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            code = ErrorCode.NOT_COORDINATOR
            assert (await peer.ask(HeartbeatRequest("g", 1, "m"))).error_code is code
            assert (await peer.ask(JoinGroupRequest("g", 10_000))).error_code is code
            sync = SyncGroupRequest("g", 1, "m", None, "consumer", "range")
            assert (await peer.ask(sync)).error_code is code
            leave = LeaveGroupRequest("g", members=(MemberIdentity("m"),))
            assert (await peer.ask(leave)).error_code is code
            assert (await peer.ask(OffsetDeleteRequest("g", ()))).error_code is code
            assert codes(await peer.ask(commit("g", 5))) == [code]
            assert (await peer.ask(DescribeGroupsRequest(("g",)))).groups[0].error_code is code
            assert (await peer.ask(DeleteGroupsRequest(("g",)))).results[0].error_code is code
            fetch = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g"),))
            assert (await peer.ask(fetch)).groups[0].error_code is code
            old = OffsetFetchRequest("g", (OffsetFetchRequestTopic("t", (0,)),))
            assert codes(await peer.ask(old, 1)) == [code]
            assert (await peer.ask(old, 5)).error_code is code
            answer = await peer.ask(ListGroupsRequest())
            assert (answer.error_code, answer.groups) == (ErrorCode.NONE, ())

    asyncio.run(story())


def test_a_member_joins_commits_and_leaves(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await find(peer, "g")
            member_id = await join(peer, "g")
            own = {"generation_id_or_member_epoch": 1, "member_id": member_id}
            assert codes(await peer.ask(commit("g", 7, "t", "nowhere", **own))) == [
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert codes(await peer.ask(commit("g", 8))) == [ErrorCode.UNKNOWN_MEMBER_ID]
            assert await committed(peer, "g") == {"t": 7}
            beat = HeartbeatRequest("g", 1, member_id)
            assert (await peer.ask(beat)).error_code is ErrorCode.NONE
            (group,) = (await peer.ask(DescribeGroupsRequest(("g",), True))).groups
            assert (group.group_state, group.protocol_data) == ("Stable", "range")
            assert group.members[0].client_host == "/127.0.0.1"
            assert group.members[0].client_id == "test"
            assert group.authorized_operations == 328
            leave = LeaveGroupRequest("g", members=(MemberIdentity(member_id),))
            assert (await peer.ask(leave)).error_code is ErrorCode.NONE
            assert (await peer.ask(beat)).error_code is ErrorCode.UNKNOWN_MEMBER_ID

    asyncio.run(story())


def test_a_silent_member_is_expelled_by_the_clock(start: Start) -> None:
    async def story() -> None:
        async with start(group_min_session_timeout_ms="1") as running:
            peer = await running.connect()
            await peer.create("t")
            await find(peer, "g")
            protocols = (JoinGroupRequestProtocol("range", b""),)
            ask = JoinGroupRequest("g", 30, 30, "", None, "other", protocols)
            assert (await peer.ask(ask, 2)).error_code is ErrorCode.NONE
            groups = running.broker.groups
            members = groups._coordinators[groups.index_of("g")].machine._groups["g"].members
            await running.until(lambda: not members)
            (group,) = (await peer.ask(DescribeGroupsRequest(("g",)))).groups
            assert group.group_state in ("Empty", "Dead")

    asyncio.run(story())


def test_groups_of_several_coordinators_are_asked_at_once(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            names = [f"g{n}" for n in range(8)]
            assert len({partition_for(name, 4) for name in names}) > 1
            await find(peer, *names)
            for number, name in enumerate(names[:6]):
                assert codes(await peer.ask(commit(name, number))) == [ErrorCode.NONE]
            groups = tuple(OffsetFetchRequestGroup(name, topics=None) for name in names)
            answer = await peer.ask(OffsetFetchRequest(groups=groups))
            assert [g.group_id for g in answer.groups] == names
            offsets = [
                p.committed_offset for g in answer.groups for t in g.topics for p in t.partitions
            ]
            assert offsets == [0, 1, 2, 3, 4, 5]
            described = (await peer.ask(DescribeGroupsRequest(tuple(names)))).groups
            assert [g.group_id for g in described] == names
            assert [g.group_state for g in described] == ["Empty"] * 6 + ["Dead"] * 2
            listed = (await peer.ask(ListGroupsRequest())).groups
            assert sorted(g.group_id for g in listed) == names[:6]
            deleted = (await peer.ask(DeleteGroupsRequest(tuple(names[4:])))).results
            assert [(r.group_id, r.error_code) for r in deleted] == [
                ("g4", ErrorCode.NONE),
                ("g5", ErrorCode.NONE),
                ("g6", ErrorCode.GROUP_ID_NOT_FOUND),
                ("g7", ErrorCode.GROUP_ID_NOT_FOUND),
            ]
            assert await committed(peer, "g4") == {}
            wanted = (OffsetDeleteRequestTopic("t", (OffsetDeleteRequestPartition(0),)),)
            assert codes(await peer.ask(OffsetDeleteRequest("g3", wanted))) == [ErrorCode.NONE]
            assert await committed(peer, "g3") == {}
            names = ("t", (0, 9)), ("u", (0,))
            wanted = tuple(
                OffsetDeleteRequestTopic(name, tuple(map(OffsetDeleteRequestPartition, indexes)))
                for name, indexes in names
            )
            assert codes(await peer.ask(OffsetDeleteRequest("g2", wanted))) == [
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            answer = await peer.ask(OffsetDeleteRequest("g7", wanted))
            assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, ())

    asyncio.run(story())


def test_a_restart_keeps_groups_and_offsets(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await find(peer, "g", "h")
            member_id = await join(peer, "g")
            own = {"generation_id_or_member_epoch": 1, "member_id": member_id}
            await peer.ask(commit("g", 7, **own))
            await peer.ask(commit("h", 9))
        async with start() as running:
            peer = await running.connect()
            listed = (await peer.ask(ListGroupsRequest())).groups
            assert {g.group_id: g.group_state for g in listed} == {"g": "Stable", "h": "Empty"}
            assert await committed(peer, "g") == {"t": 7}
            assert await committed(peer, "h") == {"t": 9}
            beat = await peer.ask(HeartbeatRequest("g", 1, member_id))
            assert beat.error_code is ErrorCode.NONE
            assert codes(await peer.ask(commit("g", 8, **own))) == [ErrorCode.NONE]

    asyncio.run(story())


def test_a_long_log_is_loaded_in_slices_and_said_so(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start(offsets_topic_num_partitions="1") as running:
            peer = await running.connect()
            await peer.create("t")
            await find(peer, "g")
            for number in range(50):
                await peer.ask(commit("g", number))
        monkeypatch.setattr(runtime, "LOAD_SLICE_BYTES", 1)
        async with start() as running:
            assert not running.broker.groups._coordinators[0].is_ready
            peer = await running.connect()
            told: list[ErrorCode] = []
            request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=None),))
            while (group := (await peer.ask(request)).groups[0]).error_code:
                told.append(group.error_code)
            assert set(told) <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert group.topics[0].partitions[0].committed_offset == 49

    asyncio.run(story())


def test_a_record_that_does_not_read_is_skipped(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with start(offsets_topic_num_partitions="1") as running:
            peer = await running.connect()
            await peer.create("t")
            await find(peer, "g")
            await peer.ask(commit("g", 1))
            peer.frames._client_id = len("__admin_client").to_bytes(2, "big") + b"__admin_client"
            from kafkalite.core.protocol.records import encode
            from kafkalite.core.types import Columns

            nonsense = Columns([b"", b"\0\1\0", b"\0\2\0\1g"], [b"x", b"", b"\0"], [0, 0, 0])
            assert not (await peer.produce(TOPIC, batch=encode(nonsense))).error_code
            await peer.ask(commit("g", 2))
        async with start() as running:
            peer = await running.connect()
            while (await peer.ask(ListGroupsRequest())).error_code:
                pass
            assert await committed(peer, "g") == {"t": 2}
        assert "3 records do not read" in caplog.text

    asyncio.run(story())


def test_offsets_of_a_deleted_topic_are_forgotten(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.create("u")
            await find(peer, "g")
            await peer.ask(commit("g", 5, "t", "u"))
            await peer.ask(DeleteTopicsRequest(topic_names=("t",)), 5)
            assert await committed(peer, "g") == {"u": 5}

    asyncio.run(story())


def test_offsets_of_a_deleted_topic_are_forgotten_however_many_they_are(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a batch may hold; who makes the topic again would go on at those left over."""
    monkeypatch.setattr(runtime, "PART_BYTES_MAX", 1_000)

    async def story() -> None:
        async with start(offsets_topic_num_partitions="1", message_max_bytes="2000") as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.create("u")
            names = [f"g{number}" for number in range(100)]
            await find(peer, *names)
            for name in names:
                assert codes(await peer.ask(commit(name, 5, "t", "u"))) == [ErrorCode.NONE] * 2
            await peer.ask(DeleteTopicsRequest(topic_names=("t",)), 5)
            for name in names:
                assert await committed(peer, name) == {"u": 5}

    asyncio.run(story())


def test_without_its_topic_a_coordinator_resigns(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer, waiting = await running.connect(), await running.connect()
            await peer.create("t")
            await find(peer, "g")
            member_id = await join(peer, "g")
            protocols = (JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0\0\0\0\0"),)
            waiting.send(JoinGroupRequest("g", 9_000, 9_000, "", None, "consumer", protocols), 2)
            machine = running.broker.groups._coordinators[
                running.broker.groups.index_of("g")
            ].machine
            group = machine._groups["g"]
            await running.until(lambda: group.state is GroupState.PREPARING_REBALANCE)
            beat = await peer.ask(HeartbeatRequest("g", 1, member_id))
            assert beat.error_code is ErrorCode.REBALANCE_IN_PROGRESS
            await peer.ask(DeleteTopicsRequest(topic_names=(TOPIC,)), 5)
            assert (await waiting.receive()).error_code is ErrorCode.NOT_COORDINATOR
            await find(peer, "g")
            assert await committed(peer, "g") == {}

    asyncio.run(story())


def test_a_log_that_refuses_is_told_to_the_group(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await find(peer, "g")
            index = running.broker.groups.index_of("g")
            file = running.broker.partition(TOPIC, index).log.segments[-1].log

            def full(self: object, data: object) -> int:
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patched:
                patched.setattr(type(file), "append", full)
                assert codes(await peer.ask(commit("g", 5))) == [ErrorCode.NOT_COORDINATOR]
            assert codes(await peer.ask(commit("g", 6))) == [ErrorCode.NONE]
            assert await committed(peer, "g") == {"t": 6}

    asyncio.run(story())
