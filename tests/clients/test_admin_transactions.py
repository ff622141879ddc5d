"""The admin client's calls about transactions, with one that is begun by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kafkalite.clients.admin.calls import NOT_LEADER
from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import TRANSACTION_KEY, Client
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
)
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ConfigError, ErrorCode

Run = Callable[[Any], None]
Name = Callable[[], str]


class Begun(NamedTuple):
    """A transaction with one record in it."""

    transactional_id: str
    partition: TopicPartition
    producer_id: int
    producer_epoch: int


async def begin(client: Client, admin: Admin, name: Name) -> Begun:
    """Opens a transaction."""
    transactional_id, tp = name(), TopicPartition(name(), 0)
    await admin.create_topics([NewTopic(tp.topic)])

    async def identify() -> Any:
        coordinator = await client.coordinator(transactional_id, TRANSACTION_KEY)
        told = await client.request(InitProducerIdRequest(transactional_id, 60_000), coordinator)
        if told.error_code is not ErrorCode.NONE:
            raise ApiError(told.error_code, "producer id")
        return told

    told = await client.retrying("producer id", identify)
    who = (transactional_id, told.producer_id, told.producer_epoch)
    topics = (AddPartitionsToTxnTopic(tp.topic, (tp.partition,)),)
    coordinator = await client.coordinator(transactional_id, TRANSACTION_KEY)
    added = await client.request(AddPartitionsToTxnRequest(*who, topics), coordinator)
    (topic,) = added.results_by_topic_v3_and_below
    assert topic.results_by_partition[0].partition_error_code is ErrorCode.NONE
    batch = encode(
        Columns([None], [b"v"], [1_000]),
        producer_id=told.producer_id,
        producer_epoch=told.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    data = (TopicProduceData(tp.topic, (PartitionProduceData(tp.partition, batch),)),)

    async def produce() -> None:
        leader = client.cluster.leader_id(tp)
        stored = await client.request(ProduceRequest(transactional_id, -1, 30_000, data), leader)
        code = stored.responses[0].partition_responses[0].error_code
        if code is not ErrorCode.NONE:
            raise ApiError(code, str(tp))

    await client.retrying("the record", produce, NOT_LEADER)
    return Begun(transactional_id, tp, told.producer_id, told.producer_epoch)


async def ends(admin: Admin, tp: TopicPartition) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    stable = await admin.end_offsets([tp], isolation_level="read_committed")
    return stable[tp], (await admin.end_offsets([tp]))[tp]


def test_a_transaction_is_listed_described_and_ended(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            begun = await begin(client, admin, name)
            (listed,) = await admin.list_transactions(producer_ids=[begun.producer_id])
            assert (listed.transactional_id, listed.state) == (begun.transactional_id, "Ongoing")
            ids = [t.transactional_id for t in await admin.list_transactions(states=["Ongoing"])]
            assert begun.transactional_id in ids
            (told,) = await admin.describe_transactions([begun.transactional_id])
            assert (told.state, told.producer_id, told.producer_epoch) == (
                "Ongoing", begun.producer_id, begun.producer_epoch,
            )  # fmt: skip
            assert told.partitions == (begun.partition,)
            assert told.timeout_ms == 60_000
            assert told.started_ms > 0
            (producer,) = (await admin.describe_producers([begun.partition]))[begun.partition]
            assert (producer.producer_id, producer.transaction_start_offset) == (
                begun.producer_id, 0,
            )  # fmt: skip
            assert producer.in_transaction
            assert await ends(admin, begun.partition) == (0, 1)

            _, epoch = await admin.fence_producer(begun.transactional_id)
            assert epoch > begun.producer_epoch
            assert await ends(admin, begun.partition) == (2, 2)  # the record and its marker
            (producer,) = (await admin.describe_producers([begun.partition]))[begun.partition]
            assert not producer.in_transaction

    run(scenario)


def test_a_hanging_transaction_is_aborted_where_it_hangs(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            begun = await begin(client, admin, name)
            (producer,) = (await admin.describe_producers([begun.partition]))[begun.partition]
            coordinator_epoch = max(producer.coordinator_epoch, 0)
            who = (begun.producer_id, begun.producer_epoch)
            await admin.abort_transaction(begun.partition, *who, coordinator_epoch)
            assert await ends(admin, begun.partition) == (2, 2)
            await admin.fence_producer(begun.transactional_id)

    run(scenario)


def test_a_producer_that_has_gone_on_is_not_aborted(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            begun = await begin(client, admin, name)
            await admin.fence_producer(begun.transactional_id)
            who = (begun.producer_id, begun.producer_epoch)
            with pytest.raises(ApiError, match=f"{begun.partition}: INVALID_PRODUCER_EPOCH"):
                await admin.abort_transaction(begun.partition, *who, 0)

    run(scenario)


def test_what_is_not_known_is_named(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            await begin(client, admin, name)
            unknown = name()
            match = f"transactional id {unknown}: TRANSACTIONAL_ID_NOT_FOUND"
            with pytest.raises(ApiError, match=match):
                await admin.describe_transactions([unknown])
            with pytest.raises(ConfigError, match="no transaction state 'Sleeping'"):
                await admin.list_transactions(states=["Sleeping"])
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.describe_producers([TopicPartition(name(), 0)])

    run(scenario)
