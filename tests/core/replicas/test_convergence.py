"""Three replicas of a partition, real logs under both machines: whatever happens, they converge,
and nothing that was committed is lost. Images, answers and votes of the controller come late."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import batches, encode
from kafkalite.core.replicas.follower import REST_MS, LeaderAnswer, Position
from kafkalite.core.replicas.leader import Altered, AlterPartition, FollowerFetch
from kafkalite.core.replicas.partition import READ_AS_REPLICA, Change, Partition
from kafkalite.core.replicas.replication import PartitionReplication, Role
from kafkalite.core.types import Columns, Now, TopicPartition
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

ORDERS: Final = TopicPartition("orders", 0)
ID: Final = UUID(int=7)
NODES: Final = (1, 2, 3)
START: Final = PartitionImage(NODES, 1, 1, NODES, 1)
LIVE: Final = dict.fromkeys(NODES, 1)
LAG_MS: Final = 500
LARGE: Final = 1 << 20


class Replica:
    """One broker's partition, which survives its broker's kills."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.storage = MemoryStorage()
        self.late: tuple[Position, LeaderAnswer] | None = None
        self.start(0)

    def start(self, now_ms: int) -> None:
        self.logs = LogStore(self.storage)
        config = LogConfig(segment_bytes=400, index_interval_bytes=64)
        log = self.logs.open(ORDERS, ID, config, at(now_ms))
        self.partition = Partition(ORDERS, log, PartitionReplication(ORDERS, self.node_id, LAG_MS))
        self.late, self.seen = None, 0

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    @property
    def leads(self) -> bool:
        return self.partition.replication.role is Role.LEADER


@dataclass
class World:
    """The replicas, and the controller's truth."""

    random: Random
    now_ms: int = 10_000
    truth: PartitionImage = START
    questions: list[tuple[int, AlterPartition]] = field(default_factory=list)
    committed: dict[int, bytes] = field(default_factory=dict)  # base offset -> batch
    written: int = 0

    def __post_init__(self) -> None:
        self.replicas = {node: Replica(node) for node in NODES}
        for node in NODES:
            self.learn(node)

    # -- what may happen

    def learn(self, node: int) -> None:
        replica = self.replicas[node]
        began = replica.partition.replication.leader_epoch
        self.take(node, replica.partition.replay(self.truth, self.now_ms))
        if replica.leads and began < self.truth.leader_epoch:
            self.check_has_all_committed(replica)

    def take(self, node: int, change: Change) -> None:
        for effect in change.effects:
            assert isinstance(effect, AlterPartition)
            self.questions.append((node, effect))

    def produce(self, node: int) -> None:
        replica = self.replicas[node]
        if replica.leads:
            self.written += 1
            values = [b"%d" % self.written] * self.random.randint(1, 3)
            batch = bytearray(encode(Columns([b"k"] * len(values), values, [1] * len(values))))
            replica.partition.append(batch, 1, self.now_ms)

    def fetch(self, node: int) -> None:
        """A follower asks the broker that it takes for the leader; the answer may come late."""
        replica = self.replicas[node]
        asked = replica.partition.wanted(self.now_ms)
        if asked is not None and asked.leader_id != node:
            answer = self.answer(self.replicas[asked.leader_id], node, asked)
            if self.random.random() < 0.2:
                replica.late = asked, answer
            else:
                self.deliver(replica, asked, answer)

    def answer(self, leader: Replica, node: int, asked: Position) -> LeaderAnswer:
        partition, log = leader.partition, leader.log
        try:
            partition.replication.check_leader(asked.leader_epoch)
            parts_at = partition.check_lineage(asked.last_fetched_epoch, asked.fetch_offset)
            if parts_at is not None:
                return LeaderAnswer(diverging_epoch=parts_at[0], diverging_end_offset=parts_at[1])
            fetch = FollowerFetch(node, asked.fetch_offset, asked.log_start_offset)
            self.take(leader.node_id, partition.fetched(fetch, self.now_ms))
            size = self.random.randint(1, 600)
            found = partition.read(asked.fetch_offset, size, READ_AS_REPLICA)
            records = b"" if found is None else found.read()  # type: ignore[union-attr]
        except ApiError as error:
            return LeaderAnswer(error.error_code, log_start_offset=log.log_start_offset)
        return LeaderAnswer(
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
            records=records,
        )

    def deliver(self, replica: Replica, asked: Position, answer: LeaderAnswer) -> None:
        now: Now = at(self.now_ms)
        now = Now(now.wall_ms, self.now_ms, now.retention_ms)
        replica.partition.answered(asked, answer, replica.logs, now)

    def deliver_late(self, node: int) -> None:
        replica = self.replicas[node]
        if replica.late is not None:
            (asked, answer), replica.late = replica.late, None
            self.deliver(replica, asked, answer)

    def elect(self, node: int) -> None:
        truth = self.truth
        if node in truth.in_sync_replicas and node != truth.leader:
            kept = [n for n in truth.in_sync_replicas if n == node or self.random.random() < 0.6]
            epochs = truth.leader_epoch + 1, tuple(kept), truth.epoch + 1
            self.truth = PartitionImage(NODES, node, *epochs)

    def vote(self, _: int) -> None:
        """The controller answers a question; the answer may be lost."""
        if not self.questions:
            return
        node, asked = self.questions.pop(0)
        answer: Altered | ErrorCode = ErrorCode.INVALID_UPDATE_VERSION
        truth = self.truth
        if (asked.leader_epoch, asked.partition_epoch) == (truth.leader_epoch, truth.epoch):
            members = tuple(each.node_id for each in asked.in_sync_replicas)
            epochs = truth.leader_epoch, members, truth.epoch + 1
            self.truth = PartitionImage(NODES, truth.leader, *epochs)
            answer = Altered(truth.leader_epoch, truth.epoch + 1, members)
        if self.random.random() < 0.2:
            answer = ErrorCode.NETWORK_EXCEPTION
        partition = self.replicas[node].partition
        self.take(node, partition.altered(asked, answer, self.now_ms))

    def tick(self, node: int) -> None:
        self.now_ms += self.random.randint(1, LAG_MS)
        self.take(node, self.replicas[node].partition.tick(self.now_ms, LIVE))

    def kill(self, node: int) -> None:
        replica = self.replicas[node]
        if self.random.random() < 0.5:
            replica.logs.write_high_watermarks()
        for log in replica.logs.logs.values():
            log.abandon()
        self.questions = [each for each in self.questions if each[0] != node]
        replica.start(self.now_ms)
        self.learn(node)

    def delete(self, node: int) -> None:
        log = self.replicas[node].log
        if self.replicas[node].leads and self.random.random() < 0.3:
            log.increment_log_start_offset(
                self.random.randint(log.log_start_offset, log.high_watermark)
            )

    # -- what must be so

    def check(self) -> None:
        """What a leader calls committed is what every leader before called so, and more."""
        for replica in self.replicas.values():
            log = replica.log
            assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
            if not replica.leads or log.high_watermark <= replica.seen:
                continue
            for base, batch in content(log, max(replica.seen, log.log_start_offset)):
                assert self.committed.setdefault(base, batch) == batch, (replica.node_id, base)
            replica.seen = log.high_watermark

    def check_has_all_committed(self, replica: Replica) -> None:
        log = replica.log
        found = dict(content(log, log.log_start_offset, log.log_end_offset))
        for base, batch in self.committed.items():
            if base >= log.log_start_offset:
                assert found.get(base) == batch, f"broker {replica.node_id} lacks offset {base}"

    def converge(self) -> None:
        """Everybody learns what is so, and nothing else happens."""
        for _ in range(60):
            for node in NODES:
                self.now_ms += REST_MS
                self.learn(node)
                self.fetch(node)
                self.deliver_late(node)
                self.vote(node)
                self.check()
            leader = self.replicas[self.truth.leader]
            self.take(self.truth.leader, leader.partition.tick(self.now_ms, LIVE))
            ends = {replica.log.high_watermark for replica in self.replicas.values()}
            if ends == {leader.log.log_end_offset} and set(self.truth.in_sync_replicas) == {*NODES}:
                return
        raise AssertionError(self.truth)


def content(log: PartitionLog, start: int, end: int | None = None) -> list[tuple[int, bytes]]:
    """The batches from `start` to the high watermark, or `end`, by base offset."""
    found: list[tuple[int, bytes]] = []
    end = log.high_watermark if end is None else end
    while start < end and (records := log.read(start, LARGE, end)) is not None:
        data = records.read()
        for position, header in batches(data):
            batch = data[position : position + header.size_bytes]
            found.append((header.base_offset, batch))
            start = header.next_offset
    return found


def history(seed: int, steps: int = 150) -> World:
    random = Random(seed)
    world = World(random)
    often = [world.produce, world.produce, world.fetch, world.fetch, world.fetch, world.fetch]
    acts = [*often, world.deliver_late, world.learn, world.vote, world.tick]
    rare = [world.elect, world.kill, world.delete]
    for _ in range(steps):
        act = random.choice(rare if random.random() < 0.12 else acts)
        act(random.choice(NODES))
        world.check()
    return world


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30))
def test_replicas_converge_and_lose_nothing_that_was_committed(seed: int) -> None:
    world = history(seed)
    world.converge()
    logs = [replica.log for replica in world.replicas.values()]
    start = max(log.log_start_offset for log in logs)
    first, *others = [content(log, start) for log in logs]
    assert others == [first, first]
    with_records = [log for log in logs if log.log_start_offset < log.log_end_offset]
    epochs = {log.end_offset_for_epoch(log.latest_epoch) for log in with_records}
    assert len(epochs) <= 1
    for replica in world.replicas.values():
        world.check_has_all_committed(replica)


def test_histories_part_and_commit() -> None:
    """The histories above are worth it: logs are cut, leaders change, records are committed."""
    worlds = [history(seed) for seed in range(20)]
    assert sum(world.truth.leader_epoch for world in worlds) > 50
    assert sum(len(world.committed) for world in worlds) > 100


@pytest.mark.parametrize("seed", range(30))
def test_named_seeds(seed: int) -> None:
    history(seed, 400).converge()
