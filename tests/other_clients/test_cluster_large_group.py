"""A group of a thousand members whose coordinator is killed: each goes on in its generation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from kafkalite import EmbeddedCluster
from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin
from kafkalite.core.peers.connection import BrokerConnection, open_connection
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kafkalite.errors import BrokerUnavailable, ErrorCode

pytestmark = pytest.mark.slow

T = TypeVar("T")

MEMBERS: Final = 1_000
GROUP: Final = "crowd"
TOPIC: Final = "t"
SECONDS_MAX: Final = 60
PATIENCE_MS: Final = 60_000  # of sessions and of requests
SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "120000",  # it outlives the test: the death is seen otherwise
    "group.initial.rebalance.delay.ms": "1000",  # all members come meanwhile
    "offsets.topic.num.partitions": "3",
    "socket.listen.backlog.size": "1000",  # beyond it, a peer knocks again after a second
}
TO_COME: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class Member:
    """One member, with a connection of its own to its coordinator."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.number, self.crowd = number, crowd
        self.member_id = ""
        self.joined: JoinGroupResponse
        self.connection: BrokerConnection | None = None

    async def ask(self, request: Request[T]) -> T:
        if self.connection is None or not self.connection.is_open:
            self.connection = await connect(await self.crowd.coordinator())
        return await self.connection.submit(request)

    async def introduce(self) -> None:
        """The coordinator names the member, which is to join with that name (KIP-394)."""
        answer = await self.ask(self.join_request())
        assert answer.error_code is ErrorCode.MEMBER_ID_REQUIRED
        self.member_id = answer.member_id

    async def join(self) -> None:
        self.joined = await self.ask(self.join_request())
        assert self.joined.error_code is ErrorCode.NONE

    def join_request(self) -> JoinGroupRequest:
        protocol = JoinGroupRequestProtocol("range", b"wants %d" % self.number)
        return JoinGroupRequest(
            GROUP, PATIENCE_MS, PATIENCE_MS, self.member_id, None, "consumer", (protocol,)
        )

    async def sync(self) -> bytes:
        """The member's assignment; the leader assigns its name to each member."""
        assigned = (
            SyncGroupRequestAssignment(each.member_id, each.member_id.encode())
            for each in self.joined.members
        )
        answer = await self.ask(
            SyncGroupRequest(
                GROUP, self.joined.generation_id, self.member_id, None, "consumer", "range",
                tuple(assigned),
            )
        )  # fmt: skip
        assert answer.error_code is ErrorCode.NONE
        return bytes(answer.assignment)

    async def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(GROUP, self.joined.generation_id, self.member_id)
        return (await self.ask(request)).error_code

    async def commit(self, offset: int) -> ErrorCode:
        partition = OffsetCommitRequestPartition(self.number, offset)
        topics = (OffsetCommitRequestTopic(TOPIC, (partition,)),)
        request = OffsetCommitRequest(
            GROUP, self.joined.generation_id, self.member_id, topics=topics
        )
        answer = await self.ask(request)
        return answer.topics[0].partitions[0].error_code


class Crowd:
    """The members, and what others see of their group. `servers` are the brokers that live."""

    def __init__(self, servers: dict[int, str]) -> None:
        self.servers = servers
        self.members = [Member(self, number) for number in range(MEMBERS)]
        self._coordinator: asyncio.Task[tuple[int, str]] | None = None

    async def coordinator(self) -> str:
        """Its address; those who ask meanwhile share the question."""
        return (await self.find_coordinator())[1]

    async def find_coordinator(self) -> tuple[int, str]:
        if self._coordinator is None:
            self._coordinator = asyncio.create_task(self._ask_for_coordinator())
        return await asyncio.shield(self._coordinator)

    async def _ask_for_coordinator(self) -> tuple[int, str]:
        while True:
            for address in self.servers.values():
                answer = await ask_once(address, FindCoordinatorRequest(coordinator_keys=(GROUP,)))
                (found,) = answer.coordinators
                if found.error_code is ErrorCode.NONE and found.node_id in self.servers:
                    return found.node_id, f"{found.host}:{found.port}"
            await asyncio.sleep(0.01)

    def forget_coordinator(self) -> None:
        self._coordinator = None

    async def all(self, act: Callable[[Member], Awaitable[T]]) -> list[T]:
        return await asyncio.gather(*map(act, self.members))

    async def describe(self) -> DescribedGroup:
        answer = await ask_once(await self.coordinator(), DescribeGroupsRequest((GROUP,)))
        return answer.groups[0]

    async def offsets(self) -> dict[int, int]:
        """The committed offsets by partition."""
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(GROUP, topics=None),))
        (group,) = (await ask_once(await self.coordinator(), request)).groups
        return {p.partition_index: p.committed_offset for t in group.topics for p in t.partitions}

    def hang_up(self) -> None:
        for member in self.members:
            if member.connection is not None:
                member.connection.close()


async def connect(address: str) -> BrokerConnection:
    host, _, port = address.rpartition(":")
    return await open_connection(
        host, int(port), client_id="member", request_timeout_ms=PATIENCE_MS,
        connect_timeout_ms=PATIENCE_MS,
    )  # fmt: skip


async def ask_once(address: str, request: Request[T]) -> T:
    connection = await connect(address)
    try:
        return await connection.submit(request)
    finally:
        connection.close()


async def beat_on(member: Member) -> None:
    """Heartbeats until one is answered by a coordinator, which must know the member still."""
    while True:
        try:
            code = await member.heartbeat()
        except BrokerUnavailable:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is ErrorCode.NONE:
            return
        assert code in TO_COME, f"member {member.number} was answered {code.name}"
        member.crowd.forget_coordinator()
        if member.connection is not None:
            member.connection.close()
        await asyncio.sleep(0.02)


def test_a_thousand_members_survive_the_death_of_their_coordinator(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, overrides=SETTINGS) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, MEMBERS, 1)])
        asyncio.run(story(cluster))


async def story(cluster: EmbeddedCluster) -> None:
    crowd = Crowd({node_id: cluster.address(node_id) for node_id in cluster.node_ids})
    async with asyncio.timeout(SECONDS_MAX):
        await crowd.all(Member.introduce)
        await crowd.all(Member.join)
        assert only(member.joined.generation_id for member in crowd.members) == 1
        names = [member.member_id.encode() for member in crowd.members]
        assert await crowd.all(Member.sync) == names
        assert only(await crowd.all(lambda member: member.commit(member.number))) is ErrorCode.NONE

        victim, _ = await crowd.find_coordinator()
        cluster.kill(victim)
        del crowd.servers[victim]
        crowd.forget_coordinator()
        await crowd.all(beat_on)

        group = await crowd.describe()
        assert (group.group_state, len(group.members)) == ("Stable", MEMBERS)
        assert {bytes(each.member_assignment) for each in group.members} == set(names)
        assert await crowd.offsets() == {number: number for number in range(MEMBERS)}
        assert only(await crowd.all(lambda member: member.commit(7))) is ErrorCode.NONE
        assert set((await crowd.offsets()).values()) == {7}
        assert only(await crowd.all(Member.heartbeat)) is ErrorCode.NONE
        crowd.hang_up()


def only(answers: Iterable[Any]) -> Any:
    """What all have been answered."""
    (answer,) = Counter(answers)
    return answer
