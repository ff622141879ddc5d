"""The consumer against brokers that move, restart and refuse; the metadata it goes by."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.protocol import records
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.protocol.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kafkalite.core.protocol.offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

TP = TopicPartition("t", 0)


def fetched(code: ErrorCode = ErrorCode.NONE, data: bytes = b"") -> FetchResponse:
    partition = PartitionData(0, code, high_watermark=1, records=data)
    return FetchResponse(responses=(FetchableTopicResponse("t", partitions=(partition,)),))


def a_batch(value: bytes = b"v") -> bytes:
    return records.encode(Columns([None], [value], [0]))


def serving(*answers: Any, hang: object) -> Any:
    """Gives these answers to fetches in turn, then leaves them waiting."""
    left = iter(answers)
    return lambda _: next(left, hang)


async def first_value(consumer: Consumer) -> bytes | None:
    for _ in range(500):
        for columns in (await consumer.poll(20)).values():
            value: bytes | None = columns.values[0]
            return value
    pytest.fail("no record came")


def test_a_leader_that_moved_is_followed(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as old, fake_broker(2) as new:
            old.peers = new.peers = [old, new]
            old.topics["t"], new.topics["t"] = [1], [2]

            def moved(_: FetchRequest) -> FetchResponse:
                old.topics["t"] = [2]
                return fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)

            old.handlers[FetchRequest] = moved
            new.handlers[FetchRequest] = serving(fetched(data=a_batch()), hang=hang)
            async with Consumer(old.address) as consumer:
                consumer.assign([TP])
                consumer.seek(TP, 0)
                assert await first_value(consumer) == b"v"

    asyncio.run(scenario())


def test_a_broker_that_hangs_up_is_asked_again(
    fake_broker: Any, hang: Any, hang_up: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topics["t"] = [1]
            answers = (hang_up, fetched(data=a_batch()))
            broker.handlers[FetchRequest] = serving(*answers, hang=hang)
            async with Consumer(broker.address) as consumer:
                consumer.assign([TP])
                consumer.seek(TP, 0)
                assert await first_value(consumer) == b"v"

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "fetching from broker 1: the connection to 127.0.0.1" in caplog.text


def test_a_broker_out_of_reach_leaves_a_poll_empty(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topics["t"] = [1]
            async with Consumer(broker.address) as consumer:
                await broker.stop()
                consumer.assign([TP])
                consumer.seek(TP, 0)
                assert await consumer.poll(50) == {}
            await broker.listen()

    asyncio.run(scenario())


def test_a_refused_fetch_is_an_error_of_the_poll(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topics["t"] = [1]
            broker.handlers[FetchRequest] = lambda _: fetched(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            async with Consumer(broker.address) as consumer:
                consumer.assign([TP])
                consumer.seek(TP, 3)
                with pytest.raises(ApiError, match="t-0 from offset 3: TOPIC_AUTHORIZATION_FAILED"):
                    await consumer.poll(5_000)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (ApiKey.FETCH, "speaks Fetch 13 to 17, this client 4 to 12"),
        (ApiKey.LIST_OFFSETS, "speaks ListOffsets 99 to 99"),
    ],
)
def test_a_broker_that_speaks_no_version_of_ours_is_an_error_of_the_poll(
    fake_broker: Any, key: ApiKey, told: str
) -> None:
    async def scenario() -> None:
        async with fake_broker(topics={"t": [1]}) as broker:
            broker.versions[key] = (13, 17) if key is ApiKey.FETCH else (99, 99)
            async with Consumer(broker.address) as consumer:
                consumer.assign([TP])
                if key is ApiKey.FETCH:
                    consumer.seek(TP, 0)
                for _ in range(2):
                    with pytest.raises(ApiError, match=told):
                        for _ in range(500):
                            await consumer.poll(20)

    asyncio.run(scenario())


def test_where_partitions_begin_is_asked_once_and_after_who_leads_them(
    fake_broker: Any, hang: Any
) -> None:
    def beginnings(request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked = request.topics[0].partitions
        found = tuple(ListOffsetsPartitionResponse(p.partition_index, offset=0) for p in asked)
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse("t", found),))

    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topics["t"] = [1] * 8
            broker.handlers[ListOffsetsRequest] = beginnings
            broker.handlers[FetchRequest] = serving(fetched(data=a_batch()), hang=hang)
            async with Consumer(broker.address) as consumer:
                partitions = [TopicPartition("t", index) for index in range(8)]
                consumer.assign(partitions)
                consumer.seek_to_beginning(partitions)
                assert await first_value(consumer) == b"v"
            (fetch, *_) = (r for r in broker.asked if isinstance(r, FetchRequest))
            assert broker.count(ListOffsetsRequest) == 1
            assert len(fetch.topics[0].partitions) == 8

    asyncio.run(scenario())


def test_the_next_fetch_is_under_way_while_the_user_works(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topics["t"] = [1]
            broker.handlers[FetchRequest] = serving(fetched(data=a_batch()), hang=hang)
            async with Consumer(broker.address) as consumer:
                consumer.assign([TP])
                consumer.seek(TP, 0)
                await first_value(consumer)
                await asyncio.sleep(0.02)  # the user works, and does not poll
                asked = [r for r in broker.asked if isinstance(r, FetchRequest)]
                assert [r.topics[0].partitions[0].fetch_offset for r in asked] == [0, 1]
                assert asked[1].topics[0].partitions[0].current_leader_epoch == 3

    asyncio.run(scenario())


class OneMember:
    """A group of one, as a coordinator would run it; `codes` are what heartbeats are told."""

    def __init__(self, broker: Any, codes: list[ErrorCode]) -> None:
        self.codes = codes
        broker.topics["t"] = [1]
        broker.handlers |= {
            JoinGroupRequest: self.join,
            SyncGroupRequest: lambda r: SyncGroupResponse(assignment=r.assignments[0].assignment),
            HeartbeatRequest: lambda _: HeartbeatResponse(
                error_code=self.codes.pop(0) if self.codes else ErrorCode.NONE
            ),
            LeaveGroupRequest: lambda _: LeaveGroupResponse(),
            OffsetFetchRequest: lambda _: OffsetFetchResponse(
                groups=(OffsetFetchResponseGroup("g", ()),)
            ),
        }

    def join(self, request: JoinGroupRequest) -> JoinGroupResponse:
        if not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
        protocol = request.protocols[0]
        return JoinGroupResponse(
            generation_id=1,
            protocol_name=protocol.name,
            leader="m",
            member_id="m",
            members=(JoinGroupResponseMember("m", None, protocol.metadata),),
        )


def test_a_coordinator_that_moved_is_found_and_the_member_stays(
    fake_broker: Any, hang: Any
) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as old, fake_broker(2) as new:
            old.peers = new.peers = [old, new]
            OneMember(new, [])
            OneMember(old, [])
            for broker in (old, new):
                broker.handlers[FetchRequest] = lambda _: hang

            def moved(_: HeartbeatRequest) -> HeartbeatResponse:
                old.handlers[FindCoordinatorRequest] = new.find_coordinator
                return HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)

            old.handlers[HeartbeatRequest] = moved
            async with Consumer(old.address, group_id="g", heartbeat_interval_ms=20) as consumer:
                consumer.subscribe(["t"])
                for _ in range(500):
                    await consumer.poll(10)
                    if new.count(HeartbeatRequest) > 1:
                        break
                assert new.count(HeartbeatRequest) > 1
                assert new.count(JoinGroupRequest) == 0, "it is still a member"
                assert consumer.assignment == (TP,)

    asyncio.run(scenario())


def test_a_forgotten_member_joins_again(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            group = OneMember(broker, [])
            broker.handlers[FetchRequest] = lambda _: hang
            lost: list[TopicPartition] = []
            async with Consumer(broker.address, group_id="g", heartbeat_interval_ms=20) as consumer:
                consumer.subscribe(["t"], on_lost=lost.extend)
                while not consumer.assignment:
                    await consumer.poll(10)
                group.codes.append(ErrorCode.UNKNOWN_MEMBER_ID)
                for _ in range(500):
                    await consumer.poll(10)
                    if broker.count(JoinGroupRequest) == 4 and consumer.assignment:
                        break
                assert lost == [TP]
                assert consumer.assignment == (TP,)
            assert broker.count(LeaveGroupRequest) == 1

    asyncio.run(scenario())


def test_what_was_lost_before_the_end_is_told_at_the_end(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            group = OneMember(broker, [])
            broker.handlers[FetchRequest] = lambda _: hang
            lost: list[TopicPartition] = []
            revoked: list[TopicPartition] = []
            async with Consumer(broker.address, group_id="g", heartbeat_interval_ms=20) as consumer:
                consumer.subscribe(["t"], on_lost=lost.extend, on_revoked=revoked.extend)
                while not consumer.assignment:
                    await consumer.poll(10)
                group.codes.append(ErrorCode.UNKNOWN_MEMBER_ID)
                while consumer.group_metadata().member_id:  # the heartbeats go on without polls
                    await asyncio.sleep(0.01)
                assert lost == []
            assert (lost, revoked) == ([TP], [])

    asyncio.run(scenario())


def test_partitions_that_come_while_the_leader_joins_are_noticed(
    fake_broker: Any, hang: Any
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            OneMember(broker, [])
            broker.handlers[FetchRequest] = broker.handlers[ListOffsetsRequest] = lambda _: hang
            synced = asyncio.get_running_loop().create_future()
            at_once = broker.handlers[SyncGroupRequest]
            broker.handlers[SyncGroupRequest] = lambda _: synced
            async with Consumer(client, group_id="g") as consumer:
                consumer.subscribe(["t"])
                while not broker.count(SyncGroupRequest):
                    await consumer.poll(10)
                broker.topics["t"].append(1)
                await client.refresh(("t",))
                await consumer.poll(10)
                broker.handlers[SyncGroupRequest] = at_once
                (asked,) = (r for r in broker.asked if isinstance(r, SyncGroupRequest))
                synced.set_result(at_once(asked))
                for _ in range(500):
                    await consumer.poll(10)
                    if len(consumer.assignment) == 2:
                        break
                assert consumer.assignment == (TP, TopicPartition("t", 1))

    asyncio.run(scenario())


def test_a_join_waits_without_holding_up_the_poll(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            OneMember(broker, [])
            broker.handlers[JoinGroupRequest] = lambda _: hang
            async with Consumer(broker.address, group_id="g") as consumer:
                consumer.subscribe(["t"])
                for _ in range(3):
                    assert await consumer.poll(20) == {}
                assert broker.count(JoinGroupRequest) == 1

    asyncio.run(scenario())


def test_clients_go_on_when_their_broker_comes_back(tmp_path: Path) -> None:
    from kafkalite.node import start_node

    settings = {"group.initial.rebalance.delay.ms": "0"}

    async def scenario() -> None:
        node = await start_node(tmp_path, "127.0.0.1:0", settings)
        address = str(node.address)
        async with (
            Client(address) as client,
            Producer(client) as producer,
            Consumer(client, group_id="g", auto_offset_reset="earliest") as consumer,
        ):
            consumer.subscribe(["t"])
            seen: list[int] = []
            for i in range(40):
                if i == 20:
                    await node.close()
                    node = await start_node(tmp_path, address, settings)
                await producer.send("t", b"%d" % i)
                for columns in (await consumer.poll(10)).values():
                    seen += map(int, columns.values)
            await producer.flush()
            for _ in range(500):
                if len(seen) >= 40:
                    break
                for columns in (await consumer.poll(20)).values():
                    seen += map(int, columns.values)
            assert seen == list(range(40))
        await node.close()

    asyncio.run(scenario())
