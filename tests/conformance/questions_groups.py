"""Groups and the offsets that they commit."""

from __future__ import annotations

from typing import Any

from asking import Talk

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
    OffsetFetchRequestTopics,
)

NO_TOPICS = b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"  # version, topics, user data


def join(
    group: str,
    member: str = "",
    instance: str | None = None,
    kind: str = "consumer",
    protocols: tuple[str, ...] = ("range",),
    session_ms: int = 10_000,
) -> JoinGroupRequest:
    known = tuple(JoinGroupRequestProtocol(name, NO_TOPICS) for name in protocols)
    return JoinGroupRequest(group, session_ms, 5_000, member, instance, kind, known)


def sync(
    group: str, generation: int, member: str, instance: str | None = None, protocol: str = "range"
) -> SyncGroupRequest:
    mine = (SyncGroupRequestAssignment(member, b"assigned"),)
    return SyncGroupRequest(group, generation, member, instance, "consumer", protocol, mine)


def leave(group: str, member: str, instance: str | None = None) -> LeaveGroupRequest:
    return LeaveGroupRequest(group, member, (MemberIdentity(member, instance),))


def commit(
    group: str,
    topic: str,
    offset: int = 3,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    index: int = 0,
    metadata: str | None = "note",
) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(index, offset, committed_metadata=metadata)
    topics = (OffsetCommitRequestTopic(topic, (partition,)),)
    return OffsetCommitRequest(group, generation, member, instance, topics=topics)


def joined(talk: Talk, group: str, version: int = 5, instance: str | None = None) -> Any:
    """The answer of a join that succeeded, after MEMBER_ID_REQUIRED where it comes."""
    answer = talk.say(join(group, instance=instance), version)
    return talk.say(join(group, answer.member_id), version) if answer.error_code else answer


def finding(talk: Talk) -> None:
    group = talk.coordinator(talk.name("g"))
    for version in range(5):
        keys = (group,) if version >= 4 else ()
        talk.ask(f"v{version}", FindCoordinatorRequest(group, 0, keys), version)
    talk.ask("an empty group", FindCoordinatorRequest("", 0), 2)
    talk.ask("of nothing", FindCoordinatorRequest(key_type=0), 4)


def living(talk: Talk) -> None:
    """A group of one member from its first join to its end, in every version."""
    first = talk.coordinator(talk.name("g"))
    topic = talk.topic("t")
    for version in range(10):
        group = f"{first}-{version}"

        def ask(label: str, request: Any, last: int, version: int = version) -> Any:
            return talk.ask(f"v{version}: {label}", request, min(version, last))

        answer = ask("join", join(group), 9)
        if answer.error_code:
            answer = ask("join with the id", join(group, answer.member_id), 9)
        member, generation = answer.member_id, answer.generation_id
        ask("sync", sync(group, generation, member), 5)
        ask("heartbeat", HeartbeatRequest(group, generation, member), 4)
        ask("heartbeat ahead", HeartbeatRequest(group, generation + 1, member), 4)
        ask("sync ahead", sync(group, generation + 1, member), 5)
        ask("join again", join(group, member), 9)
        request = commit(group, topic, 5, generation, member)
        talk.ask(f"v{version}: commit", request, max(1, min(version, 9)))
        ask("describe", DescribeGroupsRequest((group,)), 5)
        ask("delete", DeleteGroupsRequest((group,)), 2)
        ask("leave", leave(group, member), 5)
        ask("describe then", DescribeGroupsRequest((group,)), 5)
        ask("delete then", DeleteGroupsRequest((group,)), 2)
    talk.ask("sync in v5 without a protocol", SyncGroupRequest(first, 1, "m"), 5)


def intruding(talk: Talk) -> None:
    """What members may not do."""
    group = talk.coordinator(talk.name("g"))
    topic = talk.topic("t")
    talk.ask("join an empty group", join(""), 5)
    talk.ask("a session of 1 ms", join(group, session_ms=1), 5)
    talk.ask("a session of a day", join(group, session_ms=86_400_000), 5)
    talk.ask("join without protocols", join(group, protocols=()), 5)
    talk.ask("join without a type", join(group, kind=""), 5)
    talk.ask("join as nobody known", join(group, "nobody"), 5)
    talk.ask("heartbeat of nobody known", HeartbeatRequest(group, 1, "nobody"), 3)
    talk.ask("heartbeat in an empty group", HeartbeatRequest("", 1, "m"), 3)
    talk.ask("sync of nobody known", sync(group, 1, "nobody"), 3)
    talk.ask("leave of nobody known", leave(group, "nobody"), 3)
    talk.ask("leave of nobody known, v2", leave(group, "nobody"), 2)
    there = joined(talk, group)
    talk.ask("join with another type", join(group, kind="connect"), 5)
    talk.ask("join with another protocol", join(group, protocols=("sticky",)), 5)
    before = commit(group, topic, 5, there.generation_id, there.member_id)
    talk.ask("commit before sync", before, 7)
    beat = HeartbeatRequest(group, there.generation_id, there.member_id)
    talk.ask("heartbeat before sync", beat, 3)
    talk.ask("sync with another protocol", sync(group, 1, there.member_id, None, "sticky"), 5)
    talk.ask("commit from outside", commit(group, topic), 7)
    for version in range(6):
        unknown = DescribeGroupsRequest((talk.name("nowhere"),), version >= 3)
        talk.ask(f"describe an unknown group, v{version}", unknown, version)
    talk.ask("list groups of no such state", ListGroupsRequest(("Foo",)), 4)
    talk.ask("delete an unknown group", DeleteGroupsRequest((talk.name("nowhere"),)), 1)


def staying(talk: Talk) -> None:
    """Static members (KIP-345)."""
    group = talk.coordinator(talk.name("g"))
    topic = talk.topic("t")
    old = talk.ask("join", join(group, instance="i"), 5)
    generation, member = old.generation_id, old.member_id
    talk.ask("sync", sync(group, generation, member, "i"), 3)
    for label, who, instance in (
        ("without its instance", member, None),
        ("with another id", "other", "i"),
        ("as an unknown instance", member, "j"),
    ):
        beat = HeartbeatRequest(group, generation, who, instance)
        talk.ask(f"heartbeat {label}", beat, 3)
    talk.ask("join again", join(group, instance="i"), 5)
    talk.ask("heartbeat of the old", HeartbeatRequest(group, generation, member, "i"), 3)
    talk.ask("commit of the old", commit(group, topic, 5, generation, member, "i"), 7)
    talk.ask("join of the old", join(group, member, "i"), 5)
    talk.ask("leave of an unknown instance", leave(group, "", "j"), 3)
    talk.ask("leave by instance", leave(group, "", "i"), 3)
    talk.ask("join under a foreign id", join(group, "foreign", "i"), 5)


def committing(talk: Talk) -> None:
    """Offsets of a group without members."""
    group, topic = talk.coordinator(talk.name("g")), talk.topic("t", 2)
    nowhere = talk.name("nowhere")

    def fetch(label: str, version: int, group: str = group, *, every: bool = False) -> None:
        if version < 8:
            wanted = None if every else (OffsetFetchRequestTopic(topic, (0, 1)),)
            request = OffsetFetchRequest(group, wanted)
        else:
            topics = None if every else (OffsetFetchRequestTopics(topic, (0, 1)),)
            request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group, topics=topics),))
        talk.ask(label, request, version)

    for version in range(1, 10):
        fetch(f"before, v{version}", version)
    for version in range(1, 10):
        talk.ask(f"commit, v{version}", commit(group, topic, version), version)
        fetch(f"after, v{version}", version)
    for version in range(2, 10):
        fetch(f"all, v{version}", version, every=True)
    for label, how in (
        ("an unknown partition", {"index": 9}),
        ("an unknown topic", {"topic": nowhere}),
        ("a generation", {"generation": 1}),
        ("a member", {"member": "m"}),
        ("an instance", {"instance": "i"}),
        ("a negative offset", {"offset": -5}),
        ("a long note", {"metadata": "x" * 5_000}),
        ("a null note", {"metadata": None}),
        ("an empty group", {"group": ""}),
    ):
        what: dict[str, Any] = {"group": group, "topic": topic} | how
        talk.ask(f"commit with {label}", commit(**what), 7)
    fetch("after a null note", 5)
    fetch("of an empty group", 5, "")
    fetch("of an unknown group", 5, nowhere)
    fetch("all of an unknown group", 5, nowhere, every=True)

    def forget(label: str, topic: str = topic, index: int = 0, group: str = group) -> None:
        wanted = OffsetDeleteRequestTopic(topic, (OffsetDeleteRequestPartition(index),))
        talk.ask(label, OffsetDeleteRequest(group, (wanted,)), 0)

    forget("forget an unknown partition while there are offsets", index=9)
    forget("forget an unknown topic while there are offsets", nowhere)
    forget("forget")
    forget("forget again")
    forget("forget an unknown partition", index=9)
    forget("forget an unknown topic", nowhere)
    forget("forget in an unknown group", group=nowhere)
    fetch("after forgetting", 5)
    talk.ask("describe", DescribeGroupsRequest((group,)), 4)
    talk.ask("commit nothing", OffsetCommitRequest(group), 7)
    talk.ask("delete", DeleteGroupsRequest((group,)), 1)
    talk.ask("describe an empty name", DescribeGroupsRequest(("",)), 4)
    talk.ask("delete an empty name", DeleteGroupsRequest(("",)), 1)
