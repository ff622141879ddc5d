"""The admin client against brokers that refuse, move and hang up."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import UNKNOWN_TOPIC_TRIES, Client
from kafkalite.clients.consumer.positions import LATEST
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kafkalite.core.protocol.metadata import MetadataResponseTopic
from kafkalite.core.protocol.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kafkalite.core.protocol.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode

TP = TopicPartition("t", 0)


def offsets(code: ErrorCode, offset: int = -1) -> Any:
    """What answers ListOffsets: the same for every partition asked for."""

    def answer(request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    t.name,
                    tuple(
                        ListOffsetsPartitionResponse(p.partition_index, code, offset=offset)
                        for p in t.partitions
                    ),
                )
                for t in request.topics
            )
        )

    return answer


def test_a_partition_is_asked_for_where_it_went(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            for broker in (one, two):
                broker.peers = [one, two]
                broker.topics = {"t": [1, 2]}
            two.handlers[ListOffsetsRequest] = offsets(ErrorCode.NONE, 9)

            def moved(request: ListOffsetsRequest) -> ListOffsetsResponse:
                one.topics = two.topics = {"t": [2, 2]}
                return offsets(ErrorCode.NOT_LEADER_OR_FOLLOWER)(request)

            one.handlers[ListOffsetsRequest] = moved
            async with Admin(one.address) as admin:
                partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
                assert await admin.end_offsets(partitions) == dict.fromkeys(partitions, 9)
            assert one.count(ListOffsetsRequest) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_leader_that_dies_or_knows_no_end_yet_costs_no_answer(
    fake_broker: Any, hang_up: Any, is_gone: bool
) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            for broker in (one, two):
                broker.peers = [one, two]
                broker.topics = {"t": [1]}
            two.handlers[ListOffsetsRequest] = offsets(ErrorCode.NONE, 9)

            def late(request: ListOffsetsRequest) -> Any:
                one.topics = two.topics = {"t": [2]}
                return hang_up if is_gone else offsets(ErrorCode.OFFSET_NOT_AVAILABLE)(request)

            one.handlers[ListOffsetsRequest] = late
            async with Admin(one.address) as admin:
                assert await admin.end_offsets([TP]) == {TP: 9}

    asyncio.run(scenario())


def test_ends_that_no_leader_knows_are_left_out_at_once_where_that_is_asked(
    fake_broker: Any,
) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as broker:
            broker.peers, broker.topics = [broker], {"t": [1]}
            broker.handlers[ListOffsetsRequest] = offsets(ErrorCode.OFFSET_NOT_AVAILABLE)
            async with Admin(broker.address) as admin:
                assert await admin.end_offsets([TP], known_only=True) == {}
                assert broker.count(ListOffsetsRequest) == 1

    asyncio.run(scenario())


def test_a_partition_without_a_leader_is_named(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with (
            fake_broker(topics={"t": [-1]}) as broker,
            Client(broker.address) as client,
        ):
            client.timing.request_timeout_ms = 300  # of all tries; each may take its time
            with pytest.raises(ApiError, match="t-0: LEADER_NOT_AVAILABLE"):
                await Admin(client).list_offsets({TopicPartition("t", 0): LATEST})

    asyncio.run(scenario())


def created(code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=(CreatableTopicResult("t", error_code=code),))


def test_who_is_not_the_controller_has_done_nothing(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(topics={"t": [1]}) as broker:
            answers = [created(ErrorCode.NOT_CONTROLLER), created(ErrorCode.NONE)]
            broker.handlers[CreateTopicsRequest] = lambda _: answers.pop(0)
            async with Admin(broker.address) as admin:
                await admin.create_topics([NewTopic("t")])
            assert not answers

    asyncio.run(scenario())


def test_a_topic_that_another_client_created_meanwhile_is_waited_for(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            def create(_: CreateTopicsRequest) -> CreateTopicsResponse:
                broker.topics["t"] = [1, 1]
                return created(ErrorCode.TOPIC_ALREADY_EXISTS)

            broker.handlers[CreateTopicsRequest] = create
            async with Admin(broker.address) as admin:
                assert await admin.create_missing_topics([NewTopic("t", 1)]) == set()
                assert admin.client.cluster.partition_count("t") == 2
                assert await admin.create_missing_topics([NewTopic("t", 1)]) == set()
            assert broker.count(CreateTopicsRequest) == 1

    asyncio.run(scenario())


def test_a_new_topic_is_waited_for_until_brokers_tell_of_it(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[CreateTopicsRequest] = lambda _: created(ErrorCode.NONE)
            late = itertools.count()
            told = broker.topic

            def topic(name: str) -> MetadataResponseTopic:
                if next(late) == UNKNOWN_TOPIC_TRIES:
                    broker.topics["t"] = [1]
                return told(name)

            broker.topic = topic
            async with Client(broker.address) as client:
                client.timing.retry_backoff_max_ms = 1
                await Admin(client).create_topics([NewTopic("t")])
                assert client.cluster.partition_count("t") == 1
            assert broker.count(CreateTopicsRequest) == 1

    asyncio.run(scenario())


def test_a_new_topic_that_no_broker_tells_of_is_named(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with (
            fake_broker() as broker,
            Client(broker.address) as client,
        ):
            client.timing.request_timeout_ms = 300
            broker.handlers[CreateTopicsRequest] = lambda _: created(ErrorCode.NONE)
            with pytest.raises(
                ApiError, match="topic t is not in the brokers' metadata yet: REQUEST_TIMED_OUT"
            ):
                await Admin(client).create_topics([NewTopic("t")])

    asyncio.run(scenario())


def test_a_change_that_may_have_been_made_is_not_repeated(fake_broker: Any, hang_up: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[CreateTopicsRequest] = lambda _: hang_up
            async with Admin(broker.address) as admin:
                with pytest.raises(BrokerUnavailable):
                    await admin.create_topics([NewTopic("t")])
            assert broker.count(CreateTopicsRequest) == 1

    asyncio.run(scenario())


def test_a_controller_or_leader_out_of_reach_is_not_asked_for_ever(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(2, {"t": [1]}) as one, fake_broker(1, {"t": [1]}) as gone:
            one.peers = gone.peers = [one, gone]
            for broker in (one, gone):
                broker.handlers[CreateTopicsRequest] = lambda _: created(ErrorCode.NONE)
                broker.handlers[ListOffsetsRequest] = offsets(ErrorCode.NONE, 9)
            async with Client(one.address) as client:
                admin = Admin(client)
                assert await admin.end_offsets([TP]) == {TP: 9}
                await gone.stop()
                client.timing.unavailable_after_ms = 100
                client.timing.request_timeout_ms = 300
                with pytest.raises(BrokerUnavailable):
                    await admin.create_topics([NewTopic("t")])
                await admin.create_topics([NewTopic("t")])
                with pytest.raises(BrokerUnavailable):
                    await admin.end_offsets([TP])
                one.topics["t"] = [2]
                assert await admin.end_offsets([TP]) == {TP: 9}
                await gone.listen()

    asyncio.run(scenario())


def test_a_coordinator_that_moved_is_looked_for(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.peers = two.peers = [one, two]
            group = DescribedGroup(group_id="g", group_state="Empty")
            two.handlers[DescribeGroupsRequest] = lambda _: DescribeGroupsResponse(groups=(group,))

            def elsewhere(request: DescribeGroupsRequest) -> DescribeGroupsResponse:
                one.handlers[FindCoordinatorRequest] = two.find_coordinator
                refused = DescribedGroup(ErrorCode.NOT_COORDINATOR, "g")
                return DescribeGroupsResponse(groups=(refused,))

            one.handlers[DescribeGroupsRequest] = elsewhere
            async with Admin(one.address) as admin:
                (told,) = await admin.describe_groups(["g"])
                assert told.state == "Empty"
            assert one.count(DescribeGroupsRequest) == 1

    asyncio.run(scenario())


def test_a_coordinator_out_of_reach_is_looked_for_by_the_next_call(
    fake_broker: Any, hang_up: Any
) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.peers = two.peers = [one, two]
            group = DescribedGroup(group_id="g", group_state="Empty")
            two.handlers[DescribeGroupsRequest] = lambda _: DescribeGroupsResponse(groups=(group,))
            one.handlers[DescribeGroupsRequest] = lambda _: hang_up
            two.handlers[FindCoordinatorRequest] = one.find_coordinator
            async with Client(one.address) as client:
                client.timing.request_timeout_ms = 300
                admin = Admin(client)
                with pytest.raises(BrokerUnavailable):
                    await admin.describe_groups(["g"])
                for broker in (one, two):
                    broker.handlers[FindCoordinatorRequest] = two.find_coordinator
                (told,) = await admin.describe_groups(["g"])
                assert told.state == "Empty"

    asyncio.run(scenario())


def test_a_producer_is_fenced_once_its_transaction_has_ended(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            busy = InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
            answers = [busy, busy, InitProducerIdResponse(producer_id=7, producer_epoch=3)]
            broker.handlers[InitProducerIdRequest] = lambda _: answers.pop(0)
            async with Admin(broker.address) as admin:
                assert await admin.fence_producer("x") == (7, 3)
            kinds = [a.key_type for a in broker.asked if isinstance(a, FindCoordinatorRequest)]
            assert kinds == [1]  # a transaction's coordinator, asked for once

    asyncio.run(scenario())


def test_every_broker_is_asked_for_groups_and_transactions(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.peers = two.peers = [one, two]
            for broker, name in ((one, "b"), (two, "a")):
                group = ListedGroup(name, "consumer", "Empty")
                listed = ListedTransaction(name, broker.node_id, "Ongoing")
                groups = ListGroupsResponse(groups=(group,))
                transactions = ListTransactionsResponse(transaction_states=(listed,))
                broker.handlers[ListGroupsRequest] = lambda _, groups=groups: groups
                broker.handlers[ListTransactionsRequest] = lambda _, told=transactions: told
            async with Admin(one.address) as admin:
                assert [g.group_id for g in await admin.list_groups()] == ["a", "b"]
                found = await admin.list_transactions()
                assert [(t.transactional_id, t.coordinator_id) for t in found] == [
                    ("a", 2), ("b", 1),
                ]  # fmt: skip

    asyncio.run(scenario())


def test_all_are_asked_again_when_one_goes_away_meanwhile(fake_broker: Any, hang_up: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.peers = two.peers = [one, two]
            known: list[ListedGroup] = []
            one.handlers[ListGroupsRequest] = lambda _: ListGroupsResponse(groups=tuple(known))

            def die(_: ListGroupsRequest) -> Any:
                one.peers = [one]
                known.append(ListedGroup("taken-over", "consumer", "Empty"))
                return hang_up

            two.handlers[ListGroupsRequest] = die
            async with Admin(one.address) as admin:
                assert [g.group_id for g in await admin.list_groups()] == ["taken-over"]

    asyncio.run(scenario())


def test_a_group_that_may_be_deleted_is_not_deleted_again(fake_broker: Any, hang_up: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[DeleteGroupsRequest] = lambda _: hang_up
            async with Admin(broker.address) as admin:
                with pytest.raises(BrokerUnavailable):
                    await admin.delete_groups(["g"])
            assert broker.count(DeleteGroupsRequest) == 1

    asyncio.run(scenario())


def test_an_api_that_the_broker_does_not_know_is_named(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            del broker.versions[ApiKey.DESCRIBE_LOG_DIRS]
            async with Admin(broker.address) as admin:
                with pytest.raises(ApiError, match="does not know DescribeLogDirs"):
                    await admin.describe_log_dirs()

    asyncio.run(scenario())
