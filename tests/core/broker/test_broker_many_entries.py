"""Requests and answers with very many entries go on in slices, in every API that has them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from kafkalite.core.coordinators.runtime import REPLIES_AT_ONCE
from kafkalite.core.groups.group import STABLE, Group, Member
from kafkalite.core.handlers import transactions
from kafkalite.core.handlers.fetch import PARTITIONS_AT_ONCE, PARTITIONS_PER_SLICE
from kafkalite.core.handlers.parts import ENTRIES_PER_PART
from kafkalite.core.protocol.apis import API, key_of
from kafkalite.core.protocol.cluster import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkalite.core.protocol.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkalite.core.protocol.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkalite.core.transactions import coordinator, markers
from kafkalite.core.transactions.markers import MARKERS_PER_SLICE
from kafkalite.core.types import RequestContext
from kafkalite.errors import ErrorCode

Start = Any
FETCH_V = 12
MANY = 4 * ENTRIES_PER_PART
NUMBERS = tuple(range(MANY))
CONTEXT = RequestContext(5, "c", "/h")
PARTITIONS = 3  # of the topic `t`, of which every request speaks


def partitions(answer: Any, topics: str = "topics", inner: str = "partitions") -> int:
    return sum(len(getattr(topic, inner)) for topic in getattr(answer, topics))


def indexed(kind: Any, *more: Any) -> Any:
    return tuple(kind(n, *more) for n in NUMBERS)


REQUESTS: dict[str, tuple[Any, Any]] = {
    "OffsetFetch": (
        OffsetFetchRequest(
            groups=(OffsetFetchRequestGroup("g", topics=(OffsetFetchRequestTopics("t", NUMBERS),)),)
        ),
        lambda answer: partitions(answer.groups[0]),
    ),
    "OffsetDelete": (
        OffsetDeleteRequest(
            "g", (OffsetDeleteRequestTopic("t", indexed(OffsetDeleteRequestPartition)),)
        ),
        partitions,
    ),
    "DescribeGroups": (
        DescribeGroupsRequest(tuple(map(str, NUMBERS))),
        lambda answer: len(answer.groups),
    ),
    "DeleteGroups": (
        DeleteGroupsRequest(tuple(map(str, NUMBERS))),
        lambda answer: len(answer.results),
    ),
    "LeaveGroup": (
        LeaveGroupRequest("g", members=tuple(MemberIdentity(str(n)) for n in NUMBERS)),
        lambda answer: len(answer.members),
    ),
    "ListOffsets": (
        ListOffsetsRequest(-1, 0, (ListOffsetsTopic("t", indexed(ListOffsetsPartition)),)),
        partitions,
    ),
    "OffsetForLeaderEpoch": (
        OffsetForLeaderEpochRequest(
            -1, (OffsetForLeaderTopic("t", indexed(OffsetForLeaderPartition)),)
        ),
        partitions,
    ),
    "DeleteRecords": (
        DeleteRecordsRequest(
            (DeleteRecordsTopic("t", indexed(DeleteRecordsPartition, -1)),), 5_000
        ),
        partitions,
    ),
    "DescribeProducers": (
        DescribeProducersRequest((DescribeProducersTopic("t", NUMBERS),)),
        partitions,
    ),
    "DescribeTransactions": (
        DescribeTransactionsRequest(tuple(map(str, NUMBERS))),
        lambda answer: len(answer.transaction_states),
    ),
    "WriteTxnMarkers": (
        WriteTxnMarkersRequest(
            (WritableTxnMarker(1, 0, False, (WritableTxnMarkerTopic("u", NUMBERS),), 0),)
        ),
        lambda answer: partitions(answer.markers[0]),
    ),
    "DescribeTopicPartitions": (
        DescribeTopicPartitionsRequest(
            tuple(DescribeTopicPartitionsTopic(str(n)) for n in NUMBERS), MANY
        ),
        lambda answer: len(answer.topics),
    ),
}


def slices_of(running: Any, request: Any) -> list[int]:
    """How many slices requests like `request` take from now on."""
    slices, run = [0], running.broker._agenda._run_slice

    def counting(work: Any) -> None:
        slices[0] += work.name == API[key_of(request)].key.name
        run(work)

    running.broker._agenda._run_slice = counting
    return slices


@pytest.mark.parametrize("name", REQUESTS)
def test_very_many_entries_are_answered_in_slices(start: Start, name: str) -> None:
    request, count = REQUESTS[name]

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", PARTITIONS)
            for key_type in (0, 1):
                await peer.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=("g",)))
            committed = (OffsetCommitRequestTopic("t", (OffsetCommitRequestPartition(0, 1),)),)
            await peer.ask(OffsetCommitRequest("g", topics=committed), 8)
            slices = slices_of(running, request)
            assert count(await peer.ask(request)) == MANY
            assert slices[0] >= MANY // ENTRIES_PER_PART

    asyncio.run(story())


@pytest.mark.slow
def test_all_offsets_of_a_group_that_has_many_come_in_slices(start: Start) -> None:
    count = 2 * ENTRIES_PER_PART + 1

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", count)
            await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
            offsets = tuple(OffsetCommitRequestPartition(n, 10 + n) for n in range(count))
            committed = (OffsetCommitRequestTopic("t", offsets),)
            await peer.ask(OffsetCommitRequest("g", topics=committed), 8)
            of_all = OffsetFetchRequestGroup("g", topics=None)
            of_none = OffsetFetchRequestGroup("h", topics=None)
            request = OffsetFetchRequest(groups=(of_all, of_none, *[of_all] * 100))
            slices = slices_of(running, request)
            all_of, none_of = (await peer.ask(request)).groups
            assert none_of.topics == ()
            (old,) = (await peer.ask(OffsetFetchRequest("g", topics=None), 7)).topics
            assert 4 <= slices[0] <= 20, "a group that is named often is looked up once"
            for topic in (*all_of.topics, old):
                found = [(p.partition_index, p.committed_offset) for p in topic.partitions]
                assert found == [(n, 10 + n) for n in range(count)]

    asyncio.run(story())


@pytest.mark.slow
def test_a_group_without_offsets_is_gone_and_so_is_what_was_to_be_deleted(start: Start) -> None:
    request, count = REQUESTS["OffsetDelete"]

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", MANY - 1)
            await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
            missing = await peer.ask(request)
            assert missing.error_code is ErrorCode.GROUP_ID_NOT_FOUND
            offsets = OffsetCommitRequestPartition(0, 1), OffsetCommitRequestPartition(1, 1)
            committed = (OffsetCommitRequestTopic("t", offsets),)
            await peer.ask(OffsetCommitRequest("g", topics=committed), 8)
            answer = await peer.ask(request)
            assert (answer.error_code, count(answer)) == (ErrorCode.NONE, MANY)
            codes = [each.error_code for each in answer.topics[0].partitions]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes == [ErrorCode.NONE] * (MANY - 1) + [unknown]
            groups = (await peer.ask(DescribeGroupsRequest(("g",)))).groups
            assert groups[0].group_state == "Dead"

    asyncio.run(story())


def test_one_group_of_very_many_members_is_described_in_slices(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
            groups = running.broker.groups
            machine = groups.ready(groups.index_of("g")).machine
            group = machine._groups["g"] = Group("g", STABLE, protocol_name="p")
            for n in NUMBERS:
                said = (JoinGroupRequestProtocol("p", b"said %d" % n),)
                member = Member(str(n), None, "c", "/h", 1, 1, said, assignment=b"got %d" % n)
                group.add(member, "consumer")
            request = DescribeGroupsRequest(("none", "g", "g"), include_authorized_operations=True)
            slices = slices_of(running, request)
            none, told = (await peer.ask(request)).groups
            assert slices[0] >= MANY // ENTRIES_PER_PART
            assert (none.group_state, told.group_state) == ("Dead", "Stable")
            of_machine = machine.handle(DescribeGroupsRequest(("g",)), CONTEXT, groups._host.now())
            (whole,) = of_machine.replies[0].response.groups
            assert (told.members, told.protocol_data) == (whole.members, "p")
            assert told.members[-1].member_metadata == b"said %d" % NUMBERS[-1]
            assert told.members[-1].member_assignment == b"got %d" % NUMBERS[-1]
            assert told.authorized_operations > 0

    asyncio.run(story())


def test_a_rebalance_answers_some_members_at_once_and_all_with_one_generation(
    start: Start,
) -> None:
    count = 3 * REPLIES_AT_ONCE + 7

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
            groups = running.broker.groups
            index = groups.index_of("g")
            group = groups.ready(index).machine._groups["g"] = Group("g", STABLE, protocol_name="p")
            known = (JoinGroupRequestProtocol("p", b"said"),)
            for n in range(count):
                group.add(Member(str(n), None, "c", "/h", 60_000, 60_000, known), "x")
            answers: list[Any] = []
            for n in range(count - 1):
                request = JoinGroupRequest("g", 60_000, 60_000, str(n), None, "x", known)
                groups.handle(index, request, CONTEXT).when_done(answers.append)
            assert not answers
            last = JoinGroupRequest("g", 60_000, 60_000, str(count - 1), None, "x", known)
            groups.handle(index, last, CONTEXT).when_done(answers.append)
            counts = [len(answers)]
            while counts[-1] < count:
                await asyncio.sleep(0)
                counts.append(len(answers))
            steps = [after - before for before, after in pairwise(counts)]
            assert (counts[0], max(steps)) == (0, REPLIES_AT_ONCE), "others come in between"
            assert {(each.error_code, each.generation_id) for each in answers} == {(0, 1)}
            assert {each.member_id for each in answers} == {str(n) for n in range(count)}

    asyncio.run(story())


def added(identity: tuple[int, int], *topics: AddPartitionsToTxnTopic) -> AddPartitionsToTxnRequest:
    producer_id, epoch = identity
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )


@pytest.mark.slow
def test_very_many_partitions_join_a_transaction_all_or_none(start: Start) -> None:
    count = 2 * ENTRIES_PER_PART + 1

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", count)
            await peer.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=("x",)))
            made = await peer.ask(InitProducerIdRequest("x", 60_000), 4)
            identity = made.producer_id, made.producer_epoch
            every = AddPartitionsToTxnTopic("t", tuple(range(count)))
            unknown = AddPartitionsToTxnTopic("u", (7,))
            request = added(identity, every, unknown)
            slices = slices_of(running, request)
            refused = (await peer.ask(request, 3)).results_by_topic_v3_and_below
            assert [topic.name for topic in refused] == ["t", "u"]
            codes = [[p.partition_error_code for p in t.results_by_partition] for t in refused]
            untried = ErrorCode.OPERATION_NOT_ATTEMPTED
            assert codes == [[untried] * count, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]]
            (topic,) = (await peer.ask(added(identity, every), 3)).results_by_topic_v3_and_below
            assert {p.partition_error_code for p in topic.results_by_partition} == {ErrorCode.NONE}
            assert len(topic.results_by_partition) == count
            assert slices[0] > 8
            (state,) = (await peer.ask(DescribeTransactionsRequest(("x",)))).transaction_states
            assert partitions(state) == count

    asyncio.run(story())


def test_a_transaction_of_very_many_partitions_is_not_read_again_and_ends_in_slices(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is 4 bytes a partition: to write it is a fifth of the work of reading it."""
    count = 4 * MARKERS_PER_SLICE
    monkeypatch.setattr(coordinator, "decode_value", lambda *_: 1 / 0)
    monkeypatch.setattr(markers, "SLICE_MS", 3_600_000)  # however slow the machine is

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", count)
            await peer.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=("x",)))
            made = await peer.ask(InitProducerIdRequest("x", 60_000), 4)
            identity = made.producer_id, made.producer_epoch
            request = added(identity, AddPartitionsToTxnTopic("t", tuple(range(count))))
            await peer.ask(request, 3)
            written, run = [0], running.broker._agenda._run_slice

            def ends() -> int:
                partitions = (running.broker.partition("t", n) for n in range(count))
                return sum(partition.log.log_end_offset for partition in partitions)

            def counting(work: Any) -> None:
                before = ends()
                run(work)
                written.append(ends() - before)

            monkeypatch.setattr(running.broker._agenda, "_run_slice", counting)
            assert not (await peer.ask(EndTxnRequest("x", *identity, True), 3)).error_code
            await running.until(lambda: ends() == count)
            assert max(written) == MARKERS_PER_SLICE <= 16
            (state,) = (await peer.ask(DescribeTransactionsRequest(("x",)))).transaction_states
            assert (state.transaction_state, state.topics) == ("CompleteCommit", ())

    asyncio.run(story())


def test_very_many_transactions_are_listed_in_slices(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ENTRIES_LISTED_PER_SLICE", 2)

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=("x",)))
            names = {f"x{n}" for n in range(9)}
            for name in names:
                await peer.ask(InitProducerIdRequest(name, 60_000), 4)
            request = ListTransactionsRequest((), ())
            slices = slices_of(running, request)
            listed = (await peer.ask(request)).transaction_states
            assert {each.transactional_id for each in listed} == names
            assert slices[0] >= 4

    asyncio.run(story())


@pytest.mark.slow
def test_a_fetch_of_very_many_partitions_goes_on_in_slices(start: Start) -> None:
    count = PARTITIONS_AT_ONCE + 1

    async def story() -> None:
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            await peer.create("t", count)
            wanted = FetchTopic(
                "t",
                partitions=tuple(
                    FetchPartition(n, fetch_offset=0, partition_max_bytes=1_000)
                    for n in range(count)
                ),
            )
            request = FetchRequest(
                max_wait_ms=3_600_000,
                min_bytes=1,
                session_id=0,
                session_epoch=0,
                topics=(wanted,),
            )
            slices = slices_of(running, request)
            peer.send(request, FETCH_V)
            await running.until(lambda: len(running.broker.waiting))
            assert slices[0] >= count // PARTITIONS_PER_SLICE
            await other.produce("t", b"woken", acks=1)
            answer = await peer.receive()
            (topic,) = answer.responses
            found = [p.partition_index for p in topic.partitions if p.records]
            assert (len(topic.partitions), found) == (count, [0])
            request = FetchRequest(
                max_wait_ms=0, min_bytes=1, session_id=answer.session_id, session_epoch=1
            )
            (topic,) = (await peer.ask(request, FETCH_V)).responses
            assert [p.partition_index for p in topic.partitions] == [0]

    asyncio.run(story())
