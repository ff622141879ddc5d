"""Transactions over the wire: what readers see when, who is refused, what a restart finishes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from kafkalite.core.cluster.internal_topics import TRANSACTIONS_TOPIC
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkalite.core.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.core.transactions.shards import TransactionCoordinators
from kafkalite.core.transactions.transaction import TransactionState
from kafkalite.core.types import Columns
from kafkalite.errors import ApiError, ErrorCode

Start = Any
COMMITTED = {"isolation_level": 1}


class Producer:
    """A transactional producer that says exactly what it is told to."""

    def __init__(self, peer: Any, transactional_id: str = "tx") -> None:
        self.peer, self.transactional_id = peer, transactional_id
        self.identity = (-1, -1)
        self.sequences: dict[str, int] = {}

    async def init(self, timeout_ms: int = 60_000, **more: Any) -> ErrorCode:
        while True:
            request = t.InitProducerIdRequest(self.transactional_id, timeout_ms, **more)
            answer = await self.peer.ask(request)
            if answer.error_code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        if not answer.error_code:
            self.identity, self.sequences = (answer.producer_id, answer.producer_epoch), {}
        error: ErrorCode = answer.error_code
        return error

    async def add(self, *topics: str, version: int | None = None) -> ErrorCode:
        wanted = tuple(t.AddPartitionsToTxnTopic(name, (0,)) for name in topics)
        request = t.AddPartitionsToTxnRequest(self.transactional_id, *self.identity, wanted)
        answer = await self.peer.ask(request, version)
        error: ErrorCode = (
            answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        )
        return error

    async def produce(self, topic: str, *values: bytes, acks: int = -1) -> ErrorCode:
        sequence, now_ms = self.sequences.get(topic, 0), time.time_ns() // 1_000_000
        records = encode(
            Columns([None] * len(values), list(values), [now_ms] * len(values)),
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=sequence,
            transactional=True,
        )
        data = (TopicProduceData(topic, (PartitionProduceData(0, records),)),)
        request = ProduceRequest(self.transactional_id, acks, 5_000, data)
        error: ErrorCode = (
            (await self.peer.ask(request, 9)).responses[0].partition_responses[0].error_code
        )
        if not error:
            self.sequences[topic] = sequence + len(values)
        return error

    async def write(self, topic: str, *values: bytes) -> None:
        """Begins or goes on with a transaction."""
        assert not await self.add(topic)
        assert not await self.produce(topic, *values)

    async def end(self, *, commit: bool, version: int | None = None) -> ErrorCode:
        request = t.EndTxnRequest(self.transactional_id, *self.identity, commit)
        error: ErrorCode = (await self.peer.ask(request, version)).error_code
        return error

    async def add_offsets(self, group_id: str, version: int | None = None) -> ErrorCode:
        request = t.AddOffsetsToTxnRequest(self.transactional_id, *self.identity, group_id)
        error: ErrorCode = (await self.peer.ask(request, version)).error_code
        return error

    async def commit_offset(
        self, group_id: str, topic: str, offset: int, version: int | None = None
    ) -> ErrorCode:
        partition = t.TxnOffsetCommitRequestPartition(0, offset)
        topics = (t.TxnOffsetCommitRequestTopic(topic, (partition,)),)
        request = t.TxnOffsetCommitRequest(
            self.transactional_id, group_id, *self.identity, topics=topics
        )
        answer = await self.peer.ask(request, version)
        error: ErrorCode = answer.topics[0].partitions[0].error_code
        return error


async def find(peer: Any, *names: str, kind: int = 1) -> None:
    answer = await peer.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=names))
    assert all(not c.error_code and c.node_id == 1 for c in answer.coordinators), answer


async def producing(running: Any, transactional_id: str = "tx") -> Producer:
    peer = await running.connect()
    await find(peer, transactional_id)
    producer = Producer(peer, transactional_id)
    assert not await producer.init()
    return producer


async def ends(peer: Any, topic: str, isolation_level: int) -> int:
    partition = (ListOffsetsPartition(0, timestamp=-1),)
    request = ListOffsetsRequest(-1, isolation_level, (ListOffsetsTopic(topic, partition),))
    offset: int = (await peer.ask(request, 5)).topics[0].partitions[0].offset
    return offset


async def fetched_offset(peer: Any, group_id: str, topic: str, *, stable: bool) -> Any:
    wanted = (OffsetFetchRequestTopics(topic, (0,)),)
    groups = (OffsetFetchRequestGroup(group_id, topics=wanted),)
    answer = await peer.ask(OffsetFetchRequest(groups=groups, require_stable=stable))
    partition = answer.groups[0].topics[0].partitions[0]
    return partition.error_code or partition.committed_offset


def test_the_topic_is_made_as_kafka_makes_it(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            await find(await running.connect(), "tx")
            topic = running.broker.image.topics[TRANSACTIONS_TOPIC]
            assert len(topic.partitions) == 4
            assert topic.configs["cleanup.policy"] == "compact"
            assert topic.configs["compression.type"] == "uncompressed"
            assert topic.configs["min.insync.replicas"] == "1"

    asyncio.run(story())


@pytest.mark.parametrize("commit", [True, False])
def test_readers_of_committed_records_wait_for_the_end(start: Start, *, commit: bool) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t", segment_ms="9000000000000")
            assert (await reader.produce("t", b"before")).base_offset == 0
            await producer.write("t", b"a", b"b")
            assert (await reader.produce("t", b"after")).base_offset == 3
            assert await reader.values("t") == [b"before", b"a", b"b", b"after"]
            assert await reader.values("t", **COMMITTED) == [b"before"]
            assert [await ends(reader, "t", level) for level in (0, 1)] == [4, 1]

            reader.send_fetch("t", 1, max_wait_ms=60_000, **COMMITTED)
            await asyncio.sleep(0)
            assert not await producer.end(commit=commit)
            partition = await reader.received_fetch()
            assert (partition.high_watermark, partition.last_stable_offset) == (5, 5)
            aborted = [(a.producer_id, a.first_offset) for a in partition.aborted_transactions]
            assert aborted == ([] if commit else [(producer.identity[0], 1)])
            assert [await ends(reader, "t", level) for level in (0, 1)] == [5, 5]

    asyncio.run(story())


def test_a_marker_wakes_readers_who_wait_for_more_than_its_own_bytes(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t")
            await producer.write("t", b"x" * 2_000)
            longest_ms = 2_000_000_000
            reader.send_fetch("t", max_wait_ms=longest_ms, min_bytes=2_000, **COMMITTED)
            hungry = await running.connect()
            hungry.send_fetch("t", max_wait_ms=longest_ms, min_bytes=3_000, **COMMITTED)
            await running.until(lambda: len(running.broker.waiting) == 2)
            assert not await producer.end(commit=True)
            assert len((await reader.received_fetch()).records) > 2_000
            assert len(running.broker.waiting) == 1
            await producer.write("t", b"x" * 2_000)
            assert not await producer.end(commit=True)
            assert len((await hungry.received_fetch()).records) > 4_000

    asyncio.run(story())


def test_the_markers_of_many_partitions_let_others_have_their_turn(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer, other = await producing(running), await running.connect()
            await other.create("t", 200)
            wanted = (t.AddPartitionsToTxnTopic("t", tuple(range(200))),)
            added = t.AddPartitionsToTxnRequest("tx", *producer.identity, wanted)
            await producer.peer.ask(added)
            producer.peer.send(t.EndTxnRequest("tx", *producer.identity, True))
            logs = [running.broker.partition("t", n).log for n in range(200)]
            await running.until(lambda: logs[0].log_end_offset == 1)
            assert logs[-1].log_end_offset == 0
            described = t.DescribeTransactionsRequest(("tx",))
            (found,) = (await other.ask(described)).transaction_states
            assert found.transaction_state in ("PrepareCommit", "CompleteCommit")
            await running.until(lambda: all(log.log_end_offset == 1 for log in logs))
            assert not (await producer.peer.receive()).error_code
            (found,) = (await other.ask(described)).transaction_states
            assert found.transaction_state == "CompleteCommit"

    asyncio.run(story())


def test_a_partition_must_be_part_of_the_transaction(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t")
            await reader.create("u")
            assert await producer.produce("t", b"early") is ErrorCode.INVALID_TXN_STATE
            await producer.write("t", b"a")
            assert await producer.produce("u", b"elsewhere") is ErrorCode.INVALID_TXN_STATE
            assert not await producer.end(commit=True)
            # a batch that comes after the end would hold readers up for ever
            assert await producer.produce("t", b"late") is ErrorCode.INVALID_TXN_STATE
            assert await reader.values("u") == []
            assert await ends(reader, "t", 1) == await ends(reader, "t", 0) == 2
            producer.transactional_id = "other"
            assert await producer.produce("t", b"x") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            producer.transactional_id = ""
            assert await producer.produce("t", b"x") is ErrorCode.INVALID_REQUEST

            # nor does a batch of an epoch that nobody has given out join what is open
            producer.transactional_id = "tx"
            await producer.write("t", b"b")
            producer.identity = (producer.identity[0], producer.identity[1] + 1)
            producer.sequences = {}
            assert await producer.produce("t", b"x") is ErrorCode.INVALID_PRODUCER_EPOCH

    asyncio.run(story())


def test_all_partitions_are_added_or_none(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer = await producing(running)
            await producer.peer.create("t")
            wanted = tuple(t.AddPartitionsToTxnTopic(name, (0,)) for name in ("t", "nowhere"))
            request = t.AddPartitionsToTxnRequest("tx", *producer.identity, wanted)
            answer = (await producer.peer.ask(request)).results_by_topic_v3_and_below
            codes = [p.partition_error_code for topic in answer for p in topic.results_by_partition]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, unknown]
            assert await producer.produce("t", b"a") is ErrorCode.INVALID_TXN_STATE

    asyncio.run(story())


def test_a_zombie_is_fenced_everywhere(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            zombie, reader = await producing(running), await running.connect()
            await reader.create("t")
            await find(reader, "g", kind=0)
            await zombie.write("t", b"zombie")
            assert not await zombie.add_offsets("g")
            heir = await producing(running)
            assert heir.identity == (zombie.identity[0], zombie.identity[1] + 2)
            assert await reader.values("t", **COMMITTED) != []  # aborted, but no longer open
            assert await ends(reader, "t", 1) == 2

            epoch, fenced = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
            assert await zombie.produce("t", b"again") is epoch
            assert await zombie.commit_offset("g", "t", 1) is epoch
            for version in range(4):
                code = epoch if version < 2 else fenced
                assert await zombie.add("t", version=version) is code
                assert await zombie.add_offsets("g", version=version) is code
                assert await zombie.end(commit=True, version=version) is code
            request = t.InitProducerIdRequest("tx", 60_000, *zombie.identity)
            for version in (3, 4):
                answer = await reader.ask(request, version)
                assert answer.error_code is (epoch if version < 4 else fenced)
                assert (answer.producer_id, answer.producer_epoch) == (-1, -1)

            await heir.write("t", b"heir")
            assert not await heir.end(commit=True)

    asyncio.run(story())


def test_a_transaction_that_takes_too_long_is_aborted(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t")
            assert not await producer.init(timeout_ms=20)
            await producer.write("t", b"slow")
            log: PartitionLog = running.broker.partition("t", 0).log
            await running.until(lambda: log.last_stable_offset == 2)
            assert await producer.end(commit=True) is ErrorCode.PRODUCER_FENCED
            assert await producer.produce("t", b"late") is ErrorCode.INVALID_PRODUCER_EPOCH

    asyncio.run(story())


def test_offsets_count_with_the_commit(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t")
            assert not await producer.add_offsets("g")  # nobody has looked for its coordinator
            assert not await producer.end(commit=False)
            await find(reader, "g", kind=0)
            assert await producer.commit_offset("g", "t", 5) is ErrorCode.INVALID_TXN_STATE

            for offset, commit, then in ((5, True, 5), (7, False, 5), (9, True, 9)):
                assert not await producer.add_offsets("g")
                assert not await producer.commit_offset("g", "t", offset)
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert await producer.commit_offset("g", "nowhere", 1) is unknown
                unstable = await fetched_offset(reader, "g", "t", stable=True)
                assert unstable is ErrorCode.UNSTABLE_OFFSET_COMMIT
                assert not await producer.end(commit=commit)
                assert await fetched_offset(reader, "g", "t", stable=True) == then
            for version in range(4):
                assert not await producer.add_offsets("g", version=version)
                assert not await producer.commit_offset("g", "t", 20 + version, version=version)
            assert not await producer.end(commit=True)
        async with start() as running:
            reader = await running.connect()
            assert await fetched_offset(reader, "g", "t", stable=True) == 23

    asyncio.run(story())


def test_offsets_that_await_their_end_survive_a_restart(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t")
            await find(reader, "g", kind=0)
            assert not await producer.add_offsets("g")
            assert not await producer.commit_offset("g", "t", 5)
            identity = producer.identity
        async with start() as running:
            reader = await running.connect()
            producer = Producer(reader)
            producer.identity = identity
            unstable = await fetched_offset(reader, "g", "t", stable=True)
            assert unstable is ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert not await producer.end(commit=True)
            assert await fetched_offset(reader, "g", "t", stable=True) == 5

    asyncio.run(story())


@pytest.mark.parametrize("commit", [True, False])
def test_what_was_decided_is_finished_after_a_restart(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, commit: bool
) -> None:
    async def story() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(TransactionCoordinators, "_run_effect", _only_ids(commit=commit))
            async with start() as running:
                producer, reader = await producing(running), await running.connect()
                await reader.create("t")
                await producer.write("t", b"a")
                assert not await producer.end(commit=commit)
                assert await ends(reader, "t", 1) == 0
        async with start() as running:
            reader = await running.connect()
            log: PartitionLog = running.broker.partition("t", 0).log
            await running.until(lambda: log.last_stable_offset == 2)
            (described,) = (
                await reader.ask(t.DescribeTransactionsRequest(("tx",)))
            ).transaction_states
            state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
            assert described.transaction_state == state.label

    asyncio.run(story())


def _only_ids(*, commit: bool) -> Any:
    run = TransactionCoordinators._run_effect

    def only_ids(self: Any, coordinator: Any, effect: Any) -> None:
        if type(effect).__name__ == "TakeProducerId":
            run(self, coordinator, effect)
        else:
            assert effect.commit is commit

    return only_ids


def test_markers_are_tried_again_and_not_needed_where_the_topic_is_gone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            for topic in ("t", "u", "gone"):
                await reader.create(topic)
                await producer.write(topic, b"x")
            await reader.ask(DeleteTopicsRequest(topic_names=("gone",)), 5)
            append, log = PartitionLog.append_as_leader, running.broker.partition("t", 0).log
            failing = [1]

            def fails_once(self: PartitionLog, *args: Any, **more: Any) -> Any:
                if self is log and failing:
                    failing.pop()
                    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "t-0: the disk")
                return append(self, *args, **more)

            monkeypatch.setattr(PartitionLog, "append_as_leader", fails_once)
            assert not await producer.end(commit=True)
            assert await ends(reader, "u", 1) == 2
            assert await ends(reader, "t", 1) == 0
            (described,) = (
                await reader.ask(t.DescribeTransactionsRequest(("tx",)))
            ).transaction_states
            assert described.transaction_state == "PrepareCommit"
            assert described.topics == (t.TransactionTopic("t", (0,)),)
            await running.until(lambda: log.last_stable_offset == 2)
            assert await producer.add("t") is ErrorCode.NONE

    asyncio.run(story())


def test_an_operator_sees_transactions_and_ends_one_that_hangs(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t")
            assert not await producer.init()
            await producer.write("t", b"a", b"b")
            listed = await reader.ask(t.ListTransactionsRequest(("Ongoing", "Silly"), ()))
            assert [s.transactional_id for s in listed.transaction_states] == ["tx"]
            assert listed.unknown_state_filters == ("Silly",)
            asked = t.DescribeTransactionsRequest(("tx", "nobody", ""))
            found, nobody, nothing = (await reader.ask(asked)).transaction_states
            assert (found.producer_id, found.producer_epoch) == producer.identity
            assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
            assert found.topics == (t.TransactionTopic("t", (0,)),)
            assert nobody.error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            assert nothing.error_code is ErrorCode.INVALID_REQUEST

            describe = t.DescribeProducersRequest((t.DescribeProducersTopic("t", (0, 1)),))
            known, unknown = (await reader.ask(describe)).topics[0].partitions
            (state,) = known.active_producers
            assert (state.producer_id, state.last_sequence) == (producer.identity[0], 1)
            assert (state.current_txn_start_offset, state.coordinator_epoch) == (0, -1)
            assert unknown.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

            topics = (t.WritableTxnMarkerTopic("t", (0, 1)), t.WritableTxnMarkerTopic("u", (0,)))
            stale, marker = (
                t.WritableTxnMarker(producer.identity[0], epoch, False, topics, 0)
                for epoch in (producer.identity[1] - 1, producer.identity[1])
            )
            for version in (0, 1):
                answer = await reader.ask(t.WriteTxnMarkersRequest((stale, marker)), version)
                codes = [
                    [p.error_code for topic in each.topics for p in topic.partitions]
                    for each in answer.markers
                ]
                missing = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
                assert codes == [[ErrorCode.INVALID_PRODUCER_EPOCH, *missing], [0, *missing]]
                assert await ends(reader, "t", 1) == 3 + version
            marker_of_nobody = t.WritableTxnMarker(-1, 0, False, topics[:1], 0)
            answer = await reader.ask(t.WriteTxnMarkersRequest((marker_of_nobody,)))
            codes = [p.error_code for p in answer.markers[0].topics[0].partitions]
            assert codes == [ErrorCode.INVALID_REQUEST] * 2

    asyncio.run(story())


def test_steps_that_wait_for_the_disk_come_one_after_the_other(start: Start) -> None:
    """Nothing counts before it is synced; each end is told when it is decided."""

    async def story() -> None:
        async with start(log_flush_interval_messages="1") as running:
            producer, reader = await producing(running), await running.connect()
            await reader.create("t")
            await find(reader, "g", kind=0)
            log: PartitionLog = running.broker.partition("t", 0).log
            for number, commit in enumerate((True, False, True, True)):
                while (error := await producer.add("t")) is ErrorCode.CONCURRENT_TRANSACTIONS:
                    pass
                assert not error
                assert not await producer.produce("t", b"%d" % number)
                assert not await producer.add_offsets("g")
                assert not await producer.commit_offset("g", "t", number)
                assert not await producer.end(commit=commit)
            await running.until(lambda: log.last_stable_offset == 8)
            while await fetched_offset(reader, "g", "t", stable=True) != 3:
                pass
            reader.send_fetch("t", **COMMITTED)
            partition = await reader.received_fetch()
            aborted = [a.first_offset for a in partition.aborted_transactions]
            assert aborted == [2]

    asyncio.run(story())


def test_an_id_of_another_length_of_transactions_is_refused(start: Start) -> None:
    async def story() -> None:
        async with start(transaction_max_timeout_ms="1000") as running:
            peer = await running.connect()
            request = t.InitProducerIdRequest("tx", 500)
            answer = await peer.ask(request)  # nobody has looked for the coordinator
            assert answer.error_code is ErrorCode.NOT_COORDINATOR
            await find(peer, "tx")
            producer = Producer(peer)
            assert await producer.init(1_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
            assert not await producer.init(1_000)
            producer.transactional_id = ""
            assert await producer.init(1_000) is ErrorCode.INVALID_REQUEST
            for identity in ((-1, 3), (3, -1)):
                half = t.InitProducerIdRequest(None, 1_000, *identity)
                assert (await peer.ask(half)).error_code is ErrorCode.INVALID_REQUEST
            assert await producer.end(commit=True) is ErrorCode.INVALID_REQUEST

    asyncio.run(story())


def test_coordinators_go_with_their_topic(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            producer = await producing(running)
            deleted = DeleteTopicsRequest(topic_names=(TRANSACTIONS_TOPIC,))
            assert not (await producer.peer.ask(deleted, 5)).responses[0].error_code
            assert await producer.end(commit=True) is ErrorCode.NOT_COORDINATOR
            heir = await producing(running)
            assert heir.identity != producer.identity

    asyncio.run(story())
