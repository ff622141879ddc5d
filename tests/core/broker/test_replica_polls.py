"""Followers, producers and consumers get the same answers by the short way and the general way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from two_ways import NOW_MS, Asked, both, placeholder

from kafkalite.core.broker.clock import Clock
from kafkalite.core.cluster.image import (
    PartitionImage,
    broker_record,
    partition_record,
    topic_record,
)
from kafkalite.core.handlers.replica_polls import ReplicaPoll
from kafkalite.core.log.readable import ReadableLog
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import RequestReceived
from kafkalite.core.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import batches, encode
from kafkalite.core.protocol.usual_requests import NATIVE
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode

pytestmark = pytest.mark.skipif(not NATIVE, reason="without native modules all polls are general")

V = 17
TOPIC = "plain"
PARTITIONS = (0, 1)
MINUTE_MS = 60_000
HEADER_BYTES = 5  # of an answer: the request's number and no tags
OPERATIONS = (
    *("fetch",) * 6, *("produce",) * 4, "read", "late", "anew", "elect", "throttle", "gone",
)  # fmt: skip


class Story:
    """What happens to a leader, a follower in its session, producers and readers, on both."""

    def __init__(self, pair: tuple[Asked, Asked], seed: int) -> None:
        self.pair = pair
        self.random = Random(seed)
        self.epoch = 1  # the leader's
        self.session_id = self.session_epoch = 0
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.last_epochs = dict.fromkeys(PARTITIONS, -1)
        self.changed = set(PARTITIONS)
        self.waiting: list[tuple[RequestReceived, Any, Any, bool]] = []
        self.answered: list[bytes] = []

    async def lead(self) -> None:
        """Broker 1 leads both partitions in this epoch; broker 2 is in sync."""
        for each in self.pair:
            broker = each.broker
            image = PartitionImage((broker.node_id, 2), broker.node_id, self.epoch,
                                   (broker.node_id, 2), self.epoch)  # fmt: skip
            topic = replace(broker.image.topics[TOPIC], partitions=(image,) * len(PARTITIONS))
            await broker.steering.apply(
                (
                    broker_record(2, {"PLAINTEXT": ("127.0.0.1", 2)}, epoch=7),
                    topic_record(topic),
                    *(partition_record(TOPIC, index, image) for index in PARTITIONS),
                )
            )
            for index in PARTITIONS:  # whatever the clock says, the follower stays in sync
                leader = broker.partition(TOPIC, index).replication.led()
                leader.lag_time_max_ms = 1 << 60
        await self.settle()

    async def ask(self, key: ApiKey, version: int, body: bytes, *, of_follower: bool) -> None:
        one, other = (each.ask(key, version, body) for each in self.pair)
        if isinstance(one, Pending) or isinstance(other, Pending):
            # The short way looks for what to send a turn later, and may answer then.
            held = [each.answer for each in self.pair]
            self.waiting.append((self.pair[0].request, held[0], held[1], of_follower))
        else:
            assert one == other, body
            self.receive(one, of_follower=of_follower)
        if self.random.random() < 0.7:  # else more happens in the same turn of the loop
            await self.settle()

    async def settle(self) -> None:
        """All that is due is answered, the same by both."""
        for _ in range(3):
            for each in self.pair:
                each.service.settle()
            await asyncio.sleep(0)
        left = []
        for event, one, other, of_follower in self.waiting:
            told = [
                None if isinstance(answer, Pending) and answer.response is None
                else each.sent(event, answer)
                for each, answer in zip(self.pair, (one, other), strict=True)
            ]  # fmt: skip
            assert told[0] == told[1], event.header
            if told[0] is None:
                left.append((event, one, other, of_follower))
            else:
                self.receive(told[0], of_follower=of_follower)
        self.waiting = left
        assert self.state(self.pair[0]) == self.state(self.pair[1])

    def receive(self, answer: bytes | str, *, of_follower: bool) -> None:
        """The follower appends what it is sent."""
        assert isinstance(answer, bytes)
        self.answered.append(answer)
        if not of_follower:
            return
        response = codec.decode(FetchResponse, memoryview(answer)[4 + HEADER_BYTES :], V)
        if response.error_code is not ErrorCode.NONE:
            return
        self.session_id, self.session_epoch = response.session_id, self.session_epoch + 1
        for topic in response.responses:
            for data in topic.partitions:
                for _, header in batches(bytes(data.records or b"")):  # type: ignore[arg-type]
                    self.ends[data.partition_index] = header.next_offset
                    self.last_epochs[data.partition_index] = header.partition_leader_epoch
                    self.changed.add(data.partition_index)

    @staticmethod
    def state(asked: Asked) -> list[object]:
        """What the requests have changed, but for what a session will look at again."""
        *state, sessions = asked.state()
        return [*state, [each[:-1] for each in sessions]]  # type: ignore[attr-defined]

    # -- what happens

    @property
    def is_fetching(self) -> bool:
        return any(of_follower for *_, of_follower in self.waiting)

    async def fetch(self, *, anew: bool = False) -> None:
        """The follower's next request, or one that begins anew while the last one waits."""
        if self.is_fetching and not anew:
            return
        if anew:
            self.session_epoch, self.changed = 0, set(PARTITIONS)
        wanted = tuple(
            FetchPartition(
                index, self.epoch, self.ends[index], self.last_epochs[index], 0,
                partition_max_bytes=1 << 20,
            )
            for index in sorted(self.changed)
        )  # fmt: skip
        self.changed = set()
        request = FetchRequest(
            replica_state=ReplicaState(2, 7),
            max_wait_ms=self.random.choice((0, MINUTE_MS, MINUTE_MS, MINUTE_MS)),
            min_bytes=self.random.choice((1, 1, 1, 1, 1, 200)),
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=(FetchTopic("", placeholder(TOPIC), wanted),) if wanted else (),
        )
        await self.ask(ApiKey.FETCH, V, codec.encode(request, V), of_follower=True)

    async def produce(self) -> None:
        for _ in range(self.random.choice((1, 1, 1, 2))):
            batch = encode(Columns([None], [b"v" * 90], [NOW_MS]))
            index, acks = self.random.choice((0,) * 9 + (1,)), self.random.choice((-1, -1, 1))
            data = (TopicProduceData(TOPIC, (PartitionProduceData(index, batch),)),)
            request = ProduceRequest(None, acks, MINUTE_MS, data)
            await self.ask(ApiKey.PRODUCE, 7, codec.encode(request, 7), of_follower=False)

    async def read(self) -> None:
        """A consumer waits for what comes next."""
        log = self.pair[0].broker.partition(TOPIC, 0).log
        partition = FetchPartition(0, -1, log.high_watermark, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=MINUTE_MS,
            min_bytes=1,
            isolation_level=self.random.choice((0, 1)),
            session_epoch=-1,
            topics=(FetchTopic(TOPIC, partitions=(partition,)),),
        )
        await self.ask(ApiKey.FETCH, 11, codec.encode(request, 11), of_follower=False)

    async def elect(self) -> None:
        """The leader leads in another epoch; the follower hears of it."""
        self.epoch += 1
        await self.lead()
        self.changed = set(PARTITIONS)

    def throttle(self) -> None:
        for each in self.pair:
            leader = each.broker.throttles.leader
            leader.rate = 1 << 30 if leader.rate is None else None

    def go(self) -> None:
        """The follower's connection breaks while it waits; the next request begins anew."""
        for _, one, other, of_follower in self.waiting:
            if of_follower:
                one.abandon()
                other.abandon()
                self.session_epoch, self.changed = 0, set(PARTITIONS)
        self.waiting = [each for each in self.waiting if not each[3]]


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_give_the_same_answers(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    frames = list[bool]()
    framed = ReplicaPoll._frame
    now_ms = 0

    def counted(poll: ReplicaPoll) -> Any:
        frame = framed(poll)
        frames.append(frame is not None)
        return frame

    async def story() -> None:
        nonlocal now_ms
        async with both(tmp_path, monkeypatch) as pair:
            now_ms = pair[0].broker.monotonic_ms()  # it stands still from now on
            monkeypatch.setattr(ReplicaPoll, "_frame", counted)
            monkeypatch.setattr(Clock, "monotonic_ms", lambda _: now_ms)
            told = Story(pair, seed)
            await told.lead()
            for _ in range(1_500):
                match told.random.choice(OPERATIONS):
                    case "fetch":
                        await told.fetch()
                    case "produce":
                        await told.produce()
                    case "read":
                        await told.read()
                    case "anew" if told.random.random() < 0.15:
                        await told.fetch(anew=True)
                    case "elect" if told.random.random() < 0.15:
                        await told.elect()
                    case "throttle" if told.random.random() < 0.15:
                        told.throttle()
                    case "gone" if told.random.random() < 0.15:
                        told.go()
                    case "late" if told.random.random() < 0.5:
                        now_ms += MINUTE_MS
                        for each in pair:
                            each.broker.waiting._expire(now_ms)
                if told.random.random() < 0.8:
                    await told.settle()
            for _, one, other, _ in told.waiting:
                one.abandon()
                other.abandon()
            await told.settle()

    asyncio.run(story())
    assert any(frames), "the short way was taken"
    assert not all(frames), "and left"


def fetched(
    leader: Asked, session_id: int, epoch: int, positions: Mapping[int, tuple[int, int]]
) -> Any:
    """The answer to a follower in leader epoch 1, which asks for partitions: offset, last epoch."""
    wanted = tuple(
        FetchPartition(index, 1, offset, last_epoch, 0, partition_max_bytes=1 << 20)
        for index, (offset, last_epoch) in positions.items()
    )
    request = FetchRequest(
        replica_state=ReplicaState(2, 7), max_wait_ms=MINUTE_MS, min_bytes=1,
        session_id=session_id, session_epoch=epoch,
        topics=(FetchTopic("", placeholder(TOPIC), wanted),),
    )  # fmt: skip
    return leader.ask(ApiKey.FETCH, V, codec.encode(request, V))


def produced(leader: Asked, index: int = 0) -> Any:
    batch = encode(Columns([None], [b"v"], [NOW_MS]))
    data = (TopicProduceData(TOPIC, (PartitionProduceData(index, batch),)),)
    return leader.ask(ApiKey.PRODUCE, 7, codec.encode(ProduceRequest(None, -1, MINUTE_MS, data), 7))


@pytest.mark.parametrize("event", ["another request", "another partition"])
def test_a_poll_is_not_parked_after_news_in_the_same_turn(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """A later request uses the session, or another partition has grown."""

    async def story() -> None:
        async with both(tmp_path, monkeypatch) as (leader, _):
            await Story((leader, leader), 1).lead()
            begun = fetched(leader, 0, 0, {0: (0, -1), 1: (0, -1)})
            produced(leader)
            leader.service.settle()
            assert begun.response is not None
            (session,) = leader.broker.fetch_sessions._sessions.values()
            there = {0: (1, 1)}
            waits = fetched(leader, session.session_id, 1, there)
            leader.service.settle()
            assert isinstance(waits, ReplicaPoll), "the short way was taken"
            if event == "another request":
                last = fetched(leader, session.session_id, 2, there)
            else:
                produced(leader, 1)
            leader.service.settle()
            await asyncio.sleep(0)
            response = waits.response
            if event == "another request":
                assert response.error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
                assert last.response is None
                last.abandon()
            else:
                assert response is not None, "the other partition's batch is sent"

    asyncio.run(story())


def test_requests_that_wait_for_a_follower_are_answered_before_its_poll_is_parked(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers get the batch that the producer waits for from memory."""
    reads = list[int]()
    read = ReadableLog.read

    def counted(log: ReadableLog, offset: int, *more: int) -> Any:
        reads.append(offset)
        return read(log, offset, *more)

    async def story() -> None:
        async with both(tmp_path, monkeypatch) as (leader, _):
            told = Story((leader, leader), 1)
            await told.lead()

            def fetch(offset: int, last_epoch: int, epoch: int, session_id: int = 0) -> Any:
                return fetched(leader, session_id, epoch, {0: (offset, last_epoch)})

            def produce() -> Any:
                return produced(leader)

            async def turn() -> None:
                leader.service.settle()
                await asyncio.sleep(0)

            begun = fetch(0, -1, 0)
            first = produce()
            await turn()
            (session,) = leader.broker.fetch_sessions._sessions.values()
            waits = fetch(1, 1, 1, session.session_id)
            leader.service.settle()
            assert (begun.response, first.response) != (None, None)
            assert waits.response is None
            await turn()
            assert len(leader.broker.waiting) == 1, "the follower waits"

            partition = FetchPartition(0, -1, 1, partition_max_bytes=1 << 20)
            asked = FetchRequest(
                max_wait_ms=MINUTE_MS, min_bytes=1, isolation_level=1, session_epoch=-1,
                topics=(FetchTopic(TOPIC, partitions=(partition,)),),
            )  # fmt: skip
            reader = leader.ask(ApiKey.FETCH, 11, codec.encode(asked, 11))
            await turn()
            second = produce()
            await turn()
            assert waits.response is not None
            monkeypatch.setattr(ReadableLog, "read", counted)
            waits = fetch(2, 1, 2, session.session_id)
            leader.service.settle()
            assert reader.response is not None
            assert second.response is not None
            assert reads == [], "the batch came from memory"
            assert len(leader.broker.waiting) == 0, "the follower is not looked after yet"
            await turn()
            assert len(leader.broker.waiting) == 1
            waits.abandon()

    asyncio.run(story())
