"""The producer against brokers that lose, refuse, move and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.clients.cluster import Client
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.protocol import records
from kafkalite.core.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafkalite.core.protocol.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafkalite.core.protocol.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafkalite.core.types import Columns
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode

Handler = Callable[[ProduceRequest], Any]


def column(*values: bytes) -> Columns:
    return Columns([None] * len(values), values, [0] * len(values))


def batches(request: ProduceRequest) -> list[bytes]:
    return [bytes(p.records) for t in request.topic_data for p in t.partition_data]  # type: ignore[arg-type]


def answer(
    request: ProduceRequest, code: ErrorCode = ErrorCode.NONE, offset: int = 0, **more: Any
) -> ProduceResponse:
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                topic.name,
                tuple(
                    PartitionProduceResponse(p.index, code, offset, **more)
                    for p in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


class Log:
    """A partition that keeps sequences as Kafka does, behind a list of faults to show first."""

    def __init__(self, *faults: Handler | ErrorCode) -> None:
        self.faults = list(faults)
        self.values: list[bytes | None] = []
        self.seen: list[bytes] = []
        self.last: dict[tuple[int, int], int] = {}

    def __call__(self, request: ProduceRequest) -> Any:
        self.seen += batches(request)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, ErrorCode):
            return answer(request, fault)
        return self.append(request) if fault is None else fault(request)

    def append(self, request: ProduceRequest) -> ProduceResponse:
        for data in batches(request):
            header = records.read_header(data)
            at = (header.producer_epoch, header.base_sequence)
            if at not in self.last:
                expected = self.last.get((header.producer_epoch, -1), 0)
                if header.base_sequence != expected:
                    return answer(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                self.last[at] = len(self.values)
                self.last[header.producer_epoch, -1] = expected + header.record_count
                self.values += records.decode(data).values
        return answer(request, offset=self.last[at])


async def sending(broker: Any, log: Handler, work: Callable[[Producer], Any], **more: Any) -> None:
    broker.topics["t"] = [1]
    broker.handlers[ProduceRequest] = log
    async with Producer(broker.address, **more) as producer:
        await work(producer)


def test_an_answer_that_got_lost_does_not_store_twice(fake_broker: Any, hang_up: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            def stored_but_unsaid(request: ProduceRequest) -> Any:
                log.append(request)
                return hang_up

            log = Log(stored_but_unsaid)

            async def work(producer: Producer) -> None:
                futures = [await producer.send("t", b"a"), await producer.send("t", b"b")]
                await producer.flush()
                assert [future.result().offset for future in futures] == [0, 1]

            await sending(broker, log, work)
            assert log.values == [b"a", b"b"]
            assert log.seen[0] == log.seen[1], "the retry sends the same bytes"

    asyncio.run(scenario())


def test_requests_in_flight_that_fail_are_stored_in_order(fake_broker: Any, hang_up: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            log = Log(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                lambda request: log.append(request),
                lambda request: log.append(request),
                lambda _: hang_up,
            )

            async def work(producer: Producer) -> None:
                for i in range(50):
                    await producer.send_columns("t", column(b"%d" % i * 60), partition=0)
                await producer.flush()

            await sending(broker, log, work, batch_bytes=100)
            assert log.values == [b"%d" % i * 60 for i in range(50)]

    asyncio.run(scenario())


def test_a_leader_that_moved_is_followed(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker(1) as old, fake_broker(2) as new:
            old.peers = new.peers = [old, new]
            old.topics["t"], new.topics["t"] = [1], [2]
            log = Log()
            new.handlers[ProduceRequest] = log

            def moved(request: ProduceRequest) -> Any:
                old.topics["t"] = [2]
                return answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

            old.handlers[ProduceRequest] = moved
            async with Producer(old.address) as producer:
                await producer.send("t", b"a")
                await producer.flush()
            assert log.values == [b"a"]
            assert old.count(ProduceRequest) == 1

    asyncio.run(scenario())


def test_a_broker_that_refuses_connections_is_not_stormed(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            broker.topics["t"] = [1]
            broker.handlers[ApiVersionsRequest] = lambda _: ApiVersionsResponse(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            )
            before = broker.count(ApiVersionsRequest)
            async with Producer(
                client, enable_idempotence=False, delivery_timeout_ms=300
            ) as producer:
                sent = await producer.send("t", b"a")
                with pytest.raises(ApiError, match="not acknowledged"):
                    await producer.flush()
                assert sent.exception() is not None
            # Pauses of 50, 100, 200 ms: hundreds of attempts would mean that there were none.
            assert broker.count(ApiVersionsRequest) - before < 20

    asyncio.run(scenario())


def test_a_broker_that_comes_back_gets_what_waited(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            log = Log()

            async def work(producer: Producer) -> None:
                await producer.send("t", b"a")
                await producer.flush()
                port = broker.port
                await broker.stop()
                await producer.send("t", b"b")
                flushing = asyncio.create_task(producer.flush())
                await asyncio.sleep(0.1)
                assert not flushing.done()
                await broker.listen(port)
                await flushing

            await sending(broker, log, work)
            assert log.values == [b"a", b"b"]

    asyncio.run(scenario())


def test_what_nobody_takes_in_time_is_an_error(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            def never(request: ProduceRequest) -> Any:
                return answer(request, ErrorCode.NOT_ENOUGH_REPLICAS)

            async def work(producer: Producer) -> None:
                future = await producer.send("t", b"a")
                with pytest.raises(ApiError, match=r"t-0: 1 records, not acknowledged in 0\.3 s"):
                    await producer.flush()
                assert "last error NOT_ENOUGH_REPLICAS" in str(future.exception())
                assert producer.buffered_bytes == 0

            await sending(broker, never, work, delivery_timeout_ms=300)

    asyncio.run(scenario())


def test_the_broker_tells_which_record_it_refuses(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            def refuse(request: ProduceRequest) -> Any:
                why = (BatchIndexAndErrorMessage(1, "it has no key"),)
                return answer(request, ErrorCode.INVALID_RECORD, record_errors=why)

            async def work(producer: Producer) -> None:
                await producer.send_columns("t", column(b"a", b"b"), partition=0)
                with pytest.raises(ApiError, match="t-0: 2 records, record 1: it has no key"):
                    await producer.flush()

            await sending(broker, refuse, work)

    asyncio.run(scenario())


def test_a_lost_producer_state_begins_a_new_epoch(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            log = Log(lambda r: log.append(r), ErrorCode.UNKNOWN_PRODUCER_ID)

            async def work(producer: Producer) -> None:
                for value in (b"a", b"b"):
                    await producer.send("t", value)
                    await producer.flush()

            await sending(broker, log, work)
            assert log.values == [b"a", b"b"]
            stamps = [records.read_header(data) for data in log.seen]
            assert [(h.producer_epoch, h.base_sequence) for h in stamps] == [(0, 0), (0, 1), (1, 0)]

    asyncio.run(scenario())


def test_a_worn_out_producer_id_is_replaced(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            ids = iter([InitProducerIdResponse(producer_id=7, producer_epoch=2**15 - 1)])
            broker.handlers[InitProducerIdRequest] = lambda _: next(
                ids, InitProducerIdResponse(producer_id=8)
            )
            log = Log(ErrorCode.UNKNOWN_PRODUCER_ID)

            async def work(producer: Producer) -> None:
                await producer.send("t", b"a")
                await producer.flush()

            await sending(broker, log, work)
            assert [records.read_header(data).producer_id for data in log.seen] == [7, 8]

    asyncio.run(scenario())


def test_no_more_than_five_requests_are_in_flight(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            async def work(producer: Producer) -> None:
                await producer.send("t", b"first")
                await producer.flush()
                broker.handlers[ProduceRequest] = lambda _: hang
                for _ in range(20):
                    await producer.send_columns("t", column(b"x" * 80), partition=0)
                await asyncio.sleep(0.05)
                assert broker.count(ProduceRequest) == 1 + 5
                await producer.close(flush=False)

            await sending(broker, Log(), work, batch_bytes=100)

    asyncio.run(scenario())


def test_a_full_buffer_makes_the_sender_wait(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            async def work(producer: Producer) -> None:
                await producer.send_columns("t", column(*[b"x" * 80] * 10), partition=0)
                more = producer.send_columns("t", column(*[b"x" * 80] * 10), partition=0)
                waiting = asyncio.create_task(more)
                await asyncio.sleep(0.05)
                assert not waiting.done()
                broker.handlers[ProduceRequest] = answer
                broker.hang_up()
                await waiting
                await producer.flush()

            await sending(broker, lambda _: hang, work, batch_bytes=1_000, buffer_bytes_max=1_000)

    asyncio.run(scenario())


def test_closing_without_a_flush_tells_those_who_wait(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topics["t"] = [1]
            broker.handlers[ProduceRequest] = lambda _: hang
            producer = Producer(broker.address)
            await producer.start()
            future = await producer.send("t", b"a")
            await producer.close(flush=False)
            with pytest.raises(ApiError, match="the producer was closed"):
                await future

    asyncio.run(scenario())


def test_an_error_in_the_block_is_raised_soon(fake_broker: Any, hang: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            async def work(producer: Producer) -> None:
                await producer.send("t", b"a")
                raise ZeroDivisionError

            log = Log()
            with pytest.raises(ZeroDivisionError):
                await sending(broker, log, work)
            assert log.values == [b"a"], "what was sent before is flushed"

    asyncio.run(scenario())


def test_a_broker_without_idempotence_is_refused_at_the_start(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.handlers[InitProducerIdRequest] = lambda _: InitProducerIdResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            )
            with pytest.raises(ApiError, match="producer id: CLUSTER_AUTHORIZATION_FAILED"):
                async with Producer(broker.address):
                    pass

    asyncio.run(scenario())


def test_a_shared_client_outlives_its_producer(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, Client(broker.address) as client:
            broker.topics["t"] = [1]
            broker.handlers[ProduceRequest] = Log()
            async with Producer(client) as producer:
                await producer.send("t", b"a")
            await client.refresh(())
            await client.close()
            with pytest.raises(BrokerUnavailable, match="the client is closed"):
                await client.refresh(())

    asyncio.run(scenario())
