"""Our transactional producer with coordinators that refuse, hang up and answer late."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kafkalite.clients.cluster import GROUP_KEY, Client
from kafkalite.clients.producer.transaction import LEGAL, ProducerState, ProducerTransaction
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.protocol import records
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kafkalite.core.protocol.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode

NONE = ErrorCode.NONE
GARBAGE = struct.pack(">ii", 4, 99)  # an answer to a request that nobody made
Handler = Callable[[Any], Any]


class Coordinator:
    """Answers transactions' requests, each kind's faults first."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.faults: dict[type, list[Any]] = {}
        self.epoch = -1
        self.ends: list[bool] = []
        self.batches: list[tuple[int, int]] = []  # epoch, base sequence
        handlers: dict[type, Handler] = {
            t.InitProducerIdRequest: self.init,
            t.AddPartitionsToTxnRequest: self.add,
            t.AddOffsetsToTxnRequest: lambda _: t.AddOffsetsToTxnResponse(),
            t.TxnOffsetCommitRequest: self.offsets,
            t.EndTxnRequest: self.end,
            ProduceRequest: self.produce,
        }
        for kind, handler in handlers.items():
            broker.handlers[kind] = self.faulty(kind, handler)

    def faulty(self, kind: type, handler: Handler) -> Handler:
        def answer(request: Any) -> Any:
            faults = self.faults.get(kind)
            fault = faults.pop(0) if faults else None
            if fault is None:
                return handler(request)
            return self.refused(request, fault) if isinstance(fault, ErrorCode) else fault

        return answer

    def refused(self, request: Any, code: ErrorCode) -> Any:
        if isinstance(request, t.AddPartitionsToTxnRequest):
            return self.add(request, code)
        if isinstance(request, ProduceRequest):
            return self.produce(request, code)
        if isinstance(request, t.TxnOffsetCommitRequest):
            return self.offsets(request, code)
        kinds: dict[type, type] = {
            t.InitProducerIdRequest: t.InitProducerIdResponse,
            t.AddOffsetsToTxnRequest: t.AddOffsetsToTxnResponse,
            t.EndTxnRequest: t.EndTxnResponse,
        }
        return kinds[type(request)](error_code=code)

    def init(self, request: t.InitProducerIdRequest) -> t.InitProducerIdResponse:
        self.epoch += 1
        return t.InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)

    def add(self, request: t.AddPartitionsToTxnRequest, code: ErrorCode = NONE) -> Any:
        return t.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=tuple(
                t.AddPartitionsToTxnTopicResult(
                    topic.name,
                    tuple(t.AddPartitionsToTxnPartitionResult(n, code) for n in topic.partitions),
                )
                for topic in request.v3_and_below_topics
            )
        )

    def offsets(self, request: t.TxnOffsetCommitRequest, code: ErrorCode = NONE) -> Any:
        return t.TxnOffsetCommitResponse(
            topics=tuple(
                t.TxnOffsetCommitResponseTopic(
                    topic.name,
                    tuple(
                        t.TxnOffsetCommitResponsePartition(p.partition_index, code)
                        for p in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def end(self, request: t.EndTxnRequest) -> t.EndTxnResponse:
        self.ends.append(request.committed)
        return t.EndTxnResponse()

    def produce(self, request: ProduceRequest, code: ErrorCode = NONE) -> ProduceResponse:
        assert request.transactional_id == "tx"
        for topic in request.topic_data:
            for part in topic.partition_data:
                header = records.read_header(bytes(part.records))  # type: ignore[arg-type]
                assert header.is_transactional
                self.batches.append((header.producer_epoch, header.base_sequence))
        return ProduceResponse(
            responses=tuple(
                TopicProduceResponse(
                    topic.name,
                    tuple(PartitionProduceResponse(p.index, code, 0) for p in topic.partition_data),
                )
                for topic in request.topic_data
            )
        )


def play(fake_broker: Any, story: Callable[[TransactionalProducer, Coordinator], Any]) -> None:
    async def go() -> None:
        async with fake_broker(topics={"t": [1, 1]}) as broker:
            coordinator = Coordinator(broker)
            async with (
                Client(broker.address, request_timeout_ms=3_000) as client,
                TransactionalProducer(client, "tx") as producer,
            ):
                await story(producer, coordinator)

    asyncio.run(go())


@pytest.mark.parametrize(
    "kind",
    [
        t.AddPartitionsToTxnRequest,
        t.EndTxnRequest,
        t.AddOffsetsToTxnRequest,
        t.TxnOffsetCommitRequest,
    ],
)
def test_what_may_pass_is_asked_again(fake_broker: Any, hang_up: Any, kind: type) -> None:
    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        coordinator.faults[kind] = [
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
            hang_up,
            GARBAGE,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ]
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
            await producer.send_offsets({TopicPartition("t", 1): 5}, "g")
        assert not coordinator.faults[kind]
        assert coordinator.ends == [True]
        assert coordinator.batches == [(0, 0)]

    play(fake_broker, story)


def test_a_groups_coordinator_that_went_away_is_looked_for(fake_broker: Any, hang_up: Any) -> None:
    async def go() -> None:
        async with fake_broker(1) as here, fake_broker(2) as away:
            here.peers = [here, away]
            coordinator = Coordinator(here)

            def find(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
                is_group = request.key_type == GROUP_KEY and not here.count(
                    t.AddOffsetsToTxnRequest
                )
                found: FindCoordinatorResponse = (away if is_group else here).find_coordinator(
                    request
                )
                return found

            here.handlers[FindCoordinatorRequest] = find
            async with (
                Client(here.address) as client,
                TransactionalProducer(client, "tx") as producer,
            ):
                await client.coordinator("g")
                away.handlers[t.TxnOffsetCommitRequest] = lambda _: hang_up
                async with producer.transaction():
                    await producer.send_offsets({TopicPartition("t", 1): 5}, "g")
            assert coordinator.ends == [True]
            assert away.count(t.TxnOffsetCommitRequest) == 1

    asyncio.run(go())


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (t.AddPartitionsToTxnRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ProduceRequest, ErrorCode.INVALID_TXN_STATE),
        (ProduceRequest, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (ProduceRequest, ErrorCode.INVALID_PRODUCER_EPOCH),
        (t.TxnOffsetCommitRequest, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_does_not_pass_ends_in_an_abort_and_a_new_epoch(
    fake_broker: Any, kind: type, code: ErrorCode
) -> None:
    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        for _ in range(2):
            coordinator.faults[kind] = [code]
            with pytest.raises(ApiError) as raised:
                async with producer.transaction():
                    await producer.send("t", b"1", partition=0)
                    await producer.send("t", b"1", partition=1)
                    await producer.send_offsets({TopicPartition("t", 1): 5}, "g")
            assert raised.value.error_code is code
        assert coordinator.ends == [False, False]
        coordinator.batches.clear()
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
        assert coordinator.ends == [False, False, True]
        assert coordinator.batches == [(coordinator.epoch, 0)]

    play(fake_broker, story)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
@pytest.mark.parametrize("kind", [t.AddPartitionsToTxnRequest, t.EndTxnRequest])
def test_a_coordinator_that_knows_another_producer_ends_it(
    fake_broker: Any, kind: type, code: ErrorCode
) -> None:
    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        coordinator.faults[kind] = [code]
        with pytest.raises(ApiError, match="PRODUCER_FENCED"):
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
        with pytest.raises(ApiError, match="PRODUCER_FENCED"):
            producer.begin()
        assert coordinator.ends == []

    play(fake_broker, story)


def test_a_commit_without_an_answer_can_only_be_repeated(fake_broker: Any, hang_up: Any) -> None:
    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        coordinator.faults[t.EndTxnRequest] = [hang_up] * 100
        producer.begin()
        await producer.send("t", b"1", partition=0)
        with pytest.raises(ApiError, match="NETWORK_EXCEPTION"):
            await producer.commit()
        with pytest.raises(RuntimeError, match="is committing"):
            await producer.abort()
        with pytest.raises(RuntimeError, match="is committing"):
            await producer.send("t", b"2", partition=0)
        coordinator.faults.clear()
        await producer.commit()
        assert coordinator.ends == [True]
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert coordinator.batches == [(0, 0), (1, 0)]

    play(fake_broker, story)


@pytest.mark.parametrize(
    "kind",
    [
        t.AddPartitionsToTxnRequest,
        t.EndTxnRequest,
        t.AddOffsetsToTxnRequest,
        t.TxnOffsetCommitRequest,
    ],
)
@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_request_without_an_answer_is_of_no_later_epoch(
    fake_broker: Any, hang_up: Any, kind: type, is_aborted: bool
) -> None:
    """A coordinator that comes back may carry it out, and would end the next transaction."""

    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        for number in range(2):
            coordinator.faults[kind] = [hang_up] if number == 0 else []
            producer.begin()
            await producer.send("t", b"1", partition=0)
            await producer.send_offsets({TopicPartition("t", 1): 5}, "g")
            await producer.flush()
            await (producer.abort() if is_aborted else producer.commit())
            assert coordinator.ends == [not is_aborted] * (number + 1)
            assert coordinator.epoch == 1, "where all is answered there is no other"
        assert coordinator.batches == [(0, 0), (1, 0)]

    play(fake_broker, story)


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.PRODUCER_FENCED]
)
def test_a_commit_that_is_decided_is_not_asked_for_again(
    fake_broker: Any, hang_up: Any, code: ErrorCode
) -> None:
    """The next epoch is another matter: the coordinator is silent about it, or knows another
    producer by then."""

    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        coordinator.faults[t.EndTxnRequest] = [hang_up]
        coordinator.faults[t.InitProducerIdRequest] = [code] * 100
        producer.begin()
        await producer.send("t", b"1", partition=0)
        if code is ErrorCode.PRODUCER_FENCED:
            await producer.commit()
            with pytest.raises(ApiError, match="PRODUCER_FENCED"):
                producer.begin()
        else:
            with pytest.raises(ApiError, match="LOAD_IN_PROGRESS"):
                await producer.commit()
            coordinator.faults.clear()
            await producer.commit()
            producer.begin()
            await producer.abort()
        assert coordinator.ends == [True]

    play(fake_broker, story)


def test_a_block_whose_commit_is_decided_does_not_fail(fake_broker: Any, hang_up: Any) -> None:
    """Its caller would do everything again. The next block takes the epoch first."""

    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        coordinator.faults[t.EndTxnRequest] = [hang_up]
        coordinator.faults[t.InitProducerIdRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
        with pytest.raises(ApiError, match="LOAD_IN_PROGRESS"):
            async with producer.transaction():
                raise AssertionError("there is no epoch for it")
        coordinator.faults.clear()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert coordinator.ends == [True, True]
        assert coordinator.batches == [(0, 0), (1, 0)]

    play(fake_broker, story)


def test_a_block_whose_commit_is_not_decided_fails(fake_broker: Any) -> None:
    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        coordinator.faults[t.EndTxnRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100
        with pytest.raises(ApiError, match="LOAD_IN_PROGRESS"):
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
        coordinator.faults.clear()
        await producer.commit()
        assert coordinator.ends == [True]

    play(fake_broker, story)


@pytest.mark.parametrize(
    "kind", [t.TxnOffsetCommitRequest, t.AddOffsetsToTxnRequest, t.EndTxnRequest]
)
def test_a_request_whose_caller_went_away_is_of_an_earlier_epoch(
    fake_broker: Any, kind: type
) -> None:
    """It is on its way all the same."""

    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        silence = asyncio.get_running_loop().create_future()
        coordinator.faults[kind] = [silence]
        producer.begin()
        await producer.send("t", b"1", partition=0)
        await producer.flush()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.send_offsets({TopicPartition("t", 1): 5}, "g")
                await producer.commit()
        answers = {
            t.TxnOffsetCommitRequest: coordinator.offsets,
            t.AddOffsetsToTxnRequest: lambda _: t.AddOffsetsToTxnResponse(),
            t.EndTxnRequest: lambda _: t.EndTxnResponse(),
        }
        assert isinstance(coordinator.broker.asked[-1], kind)
        silence.set_result(answers[kind](coordinator.broker.asked[-1]))
        await (producer.commit() if kind is t.EndTxnRequest else producer.abort())
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert coordinator.batches == [(0, 0), (1, 0)]

    play(fake_broker, story)


def test_a_producer_that_is_fenced_while_it_aborts_stays_so(fake_broker: Any) -> None:
    """The answer about its partitions comes first, and says that another has the id."""

    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        late = asyncio.get_running_loop().create_future()
        coordinator.faults[t.AddPartitionsToTxnRequest] = [late]
        producer.begin()
        await producer.send("t", b"1", partition=0)
        while not coordinator.broker.count(t.AddPartitionsToTxnRequest):
            await asyncio.sleep(0.001)
        aborting = asyncio.create_task(producer.abort())
        await asyncio.sleep(0.01)
        asked = coordinator.broker.asked[-1]
        assert isinstance(asked, t.AddPartitionsToTxnRequest)
        late.set_result(coordinator.add(asked, ErrorCode.PRODUCER_FENCED))
        with pytest.raises(ApiError, match="PRODUCER_FENCED"):
            await aborting
        with pytest.raises(ApiError, match="PRODUCER_FENCED"):
            producer.begin()
        assert coordinator.ends == []

    play(fake_broker, story)


def test_an_abort_of_what_the_coordinator_never_heard_of_is_fine(fake_broker: Any) -> None:
    async def story(producer: TransactionalProducer, coordinator: Coordinator) -> None:
        coordinator.faults[t.EndTxnRequest] = [ErrorCode.INVALID_TXN_STATE]
        producer.begin()
        await producer.send("t", b"1", partition=0)
        await producer.flush()
        await producer.abort()
        producer.begin()
        await producer.abort()
        assert coordinator.ends == []

    play(fake_broker, story)


def test_many_partitions_are_added_at_once(fake_broker: Any) -> None:
    async def go() -> None:
        async with fake_broker(topics={"t": [1] * 50}) as broker:
            coordinator = Coordinator(broker)
            async with (
                Client(broker.address) as client,
                TransactionalProducer(client, "tx", linger_ms=5) as producer,
                producer.transaction(),
            ):
                for number in range(50):
                    await producer.send("t", b"x", partition=number)
            assert broker.count(t.AddPartitionsToTxnRequest) <= 2
            assert len(coordinator.batches) == 50

    asyncio.run(go())


def test_every_state_has_its_transitions_and_none_leaves_fenced() -> None:
    assert set(LEGAL) == set(ProducerState)
    assert LEGAL[ProducerState.FENCED] == frozenset()
    reached = {after for states in LEGAL.values() for after in states}
    assert reached == set(ProducerState) - {ProducerState.NEW}


def test_partitions_wait_to_be_added_and_are_so_until_the_end() -> None:
    transaction = ProducerTransaction("tx")
    transaction.identified()
    places: Sequence[TopicPartition] = [TopicPartition("t", n) for n in range(3)]
    assert not transaction.may_send(places[0])
    assert transaction.waiting == ()
    transaction.begin()
    assert not any(map(transaction.may_send, places[:2]))
    assert transaction.waiting == tuple(places[:2])
    transaction.added(places[:1])
    assert transaction.may_send(places[0])
    assert transaction.waiting == (places[1],)
    transaction.failed(ApiError(ErrorCode.INVALID_RECORD, "first"))
    transaction.failed(ApiError(ErrorCode.INVALID_RECORD, "second"))
    assert not transaction.may_send(places[0])
    assert transaction.waiting == ()
    with pytest.raises(ApiError, match="first"):
        transaction.check_in_transaction()
    transaction.aborting()
    transaction.aborting()
    transaction.ended()
    transaction.begin()
    assert not transaction.may_send(places[0])
