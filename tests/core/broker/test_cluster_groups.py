"""Consumer groups whose coordinator dies, is paused or cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.protocol.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
)
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode
from kafkalite.testing.simulation import Host

TOPIC = "t"
SETTINGS = {
    "offsets_topic_replication_factor": "3",
    "offsets_topic_num_partitions": "6",
    "min_insync_replicas": "2",
}
SESSION_MS = 10_000


class Place(ThreeBrokers):
    """A group of two consumers whose coordinator is broker 1."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, **SETTINGS)
        self.create(NewTopic(TOPIC, 4, 3))
        self.produce(TOPIC, b"first")
        self.programs: Host = self.host("programs")
        self.group = self.result(self.programs, self.name_of_group())
        self.members: list[Consumer] = []
        self.generations: set[int] = set()
        self.committed: list[int] = []  # offsets that the group was told of
        self.seen: list[int] = []  # offsets that others found, one after the other
        self.is_over = False

    async def name_of_group(self) -> str:
        async with self.client() as client:
            for number in range(100):
                if await client.coordinator(f"group-{number}") == 1:
                    return f"group-{number}"
        raise AssertionError("no group is kept by broker 1")

    # ---- programs

    async def belong(self) -> None:
        """One member, which polls for ever."""
        async with Consumer(
            self.client(), group_id=self.group, session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=1_000, enable_auto_commit=False, auto_offset_reset="earliest",
        ) as consumer:  # fmt: skip
            consumer.subscribe([TOPIC])
            self.members.append(consumer)
            while not self.is_over:
                await consumer.poll(100)

    async def commit(self) -> None:
        """Commits from outside of any group, one offset after the other."""
        async with Consumer(
            self.client(), group_id=f"{self.group}", enable_auto_commit=False
        ) as consumer:
            where = TopicPartition(TOPIC, 0)
            consumer.assign([where])
            offset = 0
            while not self.is_over:
                offset += 1
                await consumer.commit({where: offset})
                self.committed.append(offset)
                await asyncio.sleep(0.05)

    async def look(self) -> None:
        """Another client that looks how far the group is."""
        async with Consumer(self.client(), group_id=self.group) as consumer:
            where = TopicPartition(TOPIC, 0)
            while not self.is_over:
                told = self.committed[-1] if self.committed else 0
                found = (await consumer.committed([where])).get(where)
                offset = 0 if found is None else found.offset
                assert offset >= max([told, *self.seen]), (offset, told, self.seen[-1:])
                self.seen.append(offset)
                await asyncio.sleep(0.05)

    def begin(self, *programs: Any) -> list[asyncio.Task[Any]]:
        return [self.programs.spawn(program()) for program in programs]

    def end(self, tasks: list[asyncio.Task[Any]]) -> None:
        self.is_over = True
        self.run(lambda: all(task.done() for task in tasks), 120)
        for task in tasks:
            task.result()

    # ---- faults

    def fail(self, kind: str) -> None:
        if kind == "kill":
            self.kill(1)
        elif kind == "pause":
            self.pause(1)
        else:
            self.isolate(1, loses=kind == "cut, without a word")
            self.server.cut("broker-1")

    def mend(self, kind: str) -> None:
        if kind == "kill":
            self.start(1)
            self.wait_for(1)
        elif kind == "pause":
            self.go_on(1)
        else:
            self.heal()
            self.server.restore("broker-1")
        self.agree()


KINDS = ("kill", "pause", "cut", "cut, without a word")


@pytest.fixture
def place() -> Iterator[Place]:
    with Place(1) as made:
        yield made
        assert not made.defects


@pytest.mark.parametrize("kind", KINDS)
def test_committed_offsets_never_go_back(place: Place, kind: str) -> None:
    tasks = place.begin(place.commit, place.look)
    place.pass_seconds(1)
    before = len(place.committed)
    place.fail(kind)
    place.until(lambda: len(place.committed) > before + 20 and len(place.seen) > 20)
    place.mend(kind)
    middle = len(place.committed)
    place.until(lambda: len(place.committed) > middle + 20)
    place.end(tasks)
    assert place.seen[-1] >= place.committed[middle]


@pytest.mark.parametrize("kind", KINDS)
def test_members_stay_in_their_generation_through_the_death_of_their_coordinator(
    place: Place, kind: str
) -> None:
    tasks = place.begin(place.belong, place.belong)

    def generations() -> set[int]:
        return {member.group_metadata().generation_id for member in place.members}

    def shares() -> list[int]:
        return sorted(len(member.assignment) for member in place.members)

    place.until(lambda: shares() == [2, 2])
    (generation,) = generations()
    place.fail(kind)
    place.pass_seconds(2 * SESSION_MS / 1000)
    assert generations() == {generation}
    place.mend(kind)
    place.pass_seconds(2 * SESSION_MS / 1000)
    assert generations() == {generation}
    assert shares() == [2, 2]
    place.end(tasks)


def test_a_group_takes_new_members_after_the_death_of_its_coordinator(place: Place) -> None:
    tasks = place.begin(place.belong)
    place.until(lambda: place.members and len(place.members[0].assignment) == 4)
    place.kill(1)
    tasks += place.begin(place.belong)
    place.until(lambda: [len(member.assignment) for member in place.members] == [2, 2])
    place.end(tasks)


def test_each_broker_answers_for_the_groups_that_it_coordinates(place: Place) -> None:
    tasks = place.begin(place.belong)
    place.until(lambda: place.members and len(place.members[0].assignment) == 4)
    for node_id in (1, 2, 3):
        listed = [each.group_id for each in place.ask(node_id, ListGroupsRequest()).groups]
        assert listed == ([place.group] if node_id == 1 else [])
        found = place.ask(node_id, FindCoordinatorRequest(place.group, 0, (place.group,)))
        assert [each.node_id for each in found.coordinators] == [1]
    offset = OffsetCommitRequestTopic(TOPIC, (OffsetCommitRequestPartition(0, 7),))
    for node_id in (2, 3):
        committed = place.ask(node_id, OffsetCommitRequest(place.group, topics=(offset,)))
        answers = [
            committed.topics[0].partitions[0].error_code,
            place.ask(node_id, HeartbeatRequest(place.group, 1, "m")).error_code,
            place.ask(node_id, JoinGroupRequest(place.group, 10_000, 10_000, "", None, "consumer"))
            .error_code,
        ]  # fmt: skip
        assert answers == [ErrorCode.NOT_COORDINATOR] * 3
    place.end(tasks)


def test_a_coordinator_without_its_followers_sends_clients_away_in_time(place: Place) -> None:
    where = OffsetCommitRequestTopic(TOPIC, (OffsetCommitRequestPartition(0, 7),))
    request = OffsetCommitRequest(place.group, topics=(where,))

    def code() -> ErrorCode:
        found: ErrorCode = place.ask(1, request).topics[0].partitions[0].error_code
        return found

    assert code() is ErrorCode.NONE
    place.isolate(1, from_clients=False)
    began = place.seconds
    assert code() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert 4 < place.seconds - began < 6
    place.heal()
    place.until(lambda: code() is ErrorCode.NONE)


@pytest.mark.parametrize("kind", ["cut", "pause"])
def test_a_coordinator_that_may_have_a_successor_tells_no_offsets(place: Place, kind: str) -> None:
    group = OffsetFetchRequestGroup(place.group, topics=(OffsetFetchRequestTopics(TOPIC, (0,)),))
    request = OffsetFetchRequest(groups=(group,))

    async def asked_while_paused() -> ErrorCode:
        answer = await place.asking(1, request)
        found: ErrorCode = answer.groups[0].error_code
        return found

    def code() -> ErrorCode:
        found: ErrorCode = place.ask(1, request).groups[0].error_code
        return found

    place.until(lambda: code() is ErrorCode.NONE)
    if kind == "cut":
        place.isolate(1, from_clients=False)
        place.pass_seconds(3)
        assert code() is ErrorCode.NOT_COORDINATOR, "some clients give up after any other error"
        place.heal()
    else:
        place.pause(1)
        place.pass_seconds(8)
        asking = place.peer.spawn(asked_while_paused())
        place.pass_seconds(1)
        place.go_on(1)
        place.run(asking.done, 60)
        assert asking.result() is ErrorCode.NOT_COORDINATOR


def test_a_silent_follower_keeps_only_exact_offsets_back_until_it_is_out_of_sync(
    place: Place,
) -> None:
    """It may be cut off together with a successor, so those who read exactly once wait for it."""
    if place.controller() == 3:
        place.kill(3)
        place.start_all()
        place.agree()
    group = OffsetFetchRequestGroup(place.group, topics=(OffsetFetchRequestTopics(TOPIC, (0,)),))

    def code(*, stable: bool) -> ErrorCode:
        request = OffsetFetchRequest(groups=(group,), require_stable=stable)
        found: ErrorCode = place.ask(1, request).groups[0].error_code
        return found

    place.until(lambda: code(stable=True) is ErrorCode.NONE)
    place.pause(3)
    place.pass_seconds(3)
    assert code(stable=False) is ErrorCode.NONE
    assert code(stable=True) is ErrorCode.NOT_COORDINATOR
    place.until(lambda: code(stable=True) is ErrorCode.NONE, 30)
    place.go_on(3)
    place.agree()
