"""The short way of usual requests answers, stores and counts as the general handlers do.

Two brokers of the same time are asked the same; one has the short way, the other has not. Without
native modules neither has.
"""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from two_ways import NOW_MS, PRODUCER, TOPICS, both, placeholder

from kafkalite.core.handlers import service
from kafkalite.core.pending import Framed, Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.codec import Request, encode
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.connection import RequestHeader, RequestReceived
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kafkalite.core.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkalite.core.protocol.records import encode as batch_of
from kafkalite.core.protocol.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)
from kafkalite.core.protocol.usual_requests import NATIVE
from kafkalite.core.types import Columns, PeerIdentity
from kafkalite.errors import KafkaliteError
from kafkalite.node import start_node

names = st.sampled_from([*TOPICS, "missing", "__consumer_offsets", "", "é", "x" * 260])
codecs = st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD])
keys = st.sampled_from([None, b"", b"key"])


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    count = draw(st.integers(1, 3))
    columns = Columns(
        [draw(keys)] * count,
        [draw(st.sampled_from([b"v", b"w" * 300]))] * count,
        [draw(st.sampled_from([NOW_MS, NOW_MS - 5, -1, NOW_MS + (1 << 40)]))] * count,
    )
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more = {"producer_id": 7, "producer_epoch": 0, "base_sequence": draw(st.integers(-1, 3))}
    more["compression"] = draw(codecs)
    data = bytearray(batch_of(columns, **more))
    if draw(st.integers(0, 3)) == 0:
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(data[: draw(st.sampled_from([len(data), len(data), len(data) - 1, 20]))])


@st.composite
def produces(draw: st.DrawFn) -> Request[Any]:
    count = draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
    entries = tuple(
        PartitionProduceData(
            draw(st.sampled_from([0, 1, 0, 2, -1])), draw(st.one_of(batches(), st.none()))
        )
        for _ in range(count)
    )
    topics = (TopicProduceData(draw(names), entries),) * draw(st.sampled_from([1, 1, 1, 0, 2]))
    transactional_id = draw(st.sampled_from([None, None, None, "t"]))
    return ProduceRequest(transactional_id, draw(st.sampled_from([1, -1, 1, 0, 2])), 50, topics)


@st.composite
def fetches(draw: st.DrawFn) -> Request[Any]:
    entries = tuple(
        FetchPartition(
            draw(st.sampled_from([0, 1, 0, 2])),
            draw(st.sampled_from([-1, 0, 1])),
            draw(st.integers(-1, 6)),
            partition_max_bytes=draw(st.sampled_from([1 << 20, 1, 0, -1])),
        )
        for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2])))
    )
    named = draw(names)
    topics = (FetchTopic(named, placeholder(named), partitions=entries),)
    topics *= draw(st.sampled_from([1, 1, 1, 0, 2]))
    return FetchRequest(
        cluster_id=draw(st.sampled_from([None, None, "c"])),
        replica_id=draw(st.sampled_from([-1, -1, -1, 2])),
        max_wait_ms=draw(st.sampled_from([0, 0, 60_000])),
        min_bytes=draw(st.sampled_from([0, 1, 1_000])),
        max_bytes=draw(st.sampled_from([1 << 20, 1, -1])),
        isolation_level=draw(st.sampled_from([0, 1, 2])),
        session_id=draw(st.sampled_from([0, 0, 0, 5])),
        session_epoch=draw(st.sampled_from([-1, -1, -1, 3])),
        topics=topics,
        forgotten_topics_data=draw(
            st.sampled_from([(), (), (), (ForgottenTopic("plain", partitions=(0,)),)])
        ),
        rack_id=draw(st.sampled_from(["", "r"])),
    )


@st.composite
def usual(draw: st.DrawFn) -> tuple[ApiKey, int, bytes]:
    """A request as nearly all are."""
    topic = draw(st.sampled_from(["plain", "stamped", "plain", "compacted", "small"]))
    if draw(st.booleans()):
        count, value = draw(st.sampled_from([(1, b"v"), (3, b"w"), (2, b"w" * 9_000)]))
        columns = Columns([b"k"] * count, [value] * count, [NOW_MS - 1] * count)
        data = (
            TopicProduceData(
                topic, (PartitionProduceData(0, batch_of(columns, compression=draw(codecs))),)
            ),
        )
        produce = ProduceRequest(None, draw(st.sampled_from([1, -1])), 50, data)
        version = draw(st.integers(3, 11))
        return ApiKey.PRODUCE, version, encode(produce, version)
    partition = FetchPartition(0, -1, draw(st.integers(0, 4)), partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=draw(st.sampled_from([1, 1, 400])),
        isolation_level=draw(st.sampled_from([0, 1])),
        topics=(FetchTopic(topic, placeholder(topic), partitions=(partition,)),),
    )
    version = draw(st.integers(4, 17))
    return ApiKey.FETCH, version, encode(fetch, version)


@st.composite
def transactional(draw: st.DrawFn) -> tuple[ApiKey, int, bytes]:
    """A step of a transaction: its partition, its end, or a batch, which may lie outside of it."""
    kind = draw(st.sampled_from(["add", "end", "batch", "batch", "batch", "batch"]))
    if kind == "add":
        topic = AddPartitionsToTxnTopic("plain", (0,))
        add = AddPartitionsToTxnRequest("t", *PRODUCER, (topic,))
        return ApiKey.ADD_PARTITIONS_TO_TXN, 3, encode(add, 3)
    if kind == "end":
        end = EndTxnRequest("t", *PRODUCER, draw(st.booleans()))
        return ApiKey.END_TXN, 3, encode(end, 3)
    count, producer_id = draw(st.integers(1, 2)), PRODUCER[0]
    batch = batch_of(
        Columns([b"k"] * count, [b"v"] * count, [NOW_MS] * count),
        producer_id=draw(st.sampled_from([producer_id, producer_id, producer_id, 9])),
        producer_epoch=draw(st.sampled_from([0, 0, 0, 0, 1])),
        base_sequence=draw(st.sampled_from([0, 0, 1, 2])),
        transactional=draw(st.sampled_from([True, True, True, False])),
        compression=draw(codecs),
    )
    index = draw(st.sampled_from([0, 0, 0, 1]))
    data = (TopicProduceData("plain", (PartitionProduceData(index, batch),)),)
    named = draw(st.sampled_from(["t", "t", "t", "t", "u", "", None]))
    produce = ProduceRequest(named, draw(st.sampled_from([-1, -1, 1, 0])), 50, data)
    version = draw(st.integers(3, 11))
    return ApiKey.PRODUCE, version, encode(produce, version)


@st.composite
def odd(draw: st.DrawFn) -> tuple[ApiKey, int, bytes]:
    """A request as bytes, in any version, at times cut, longer than it says, or damaged."""
    if draw(st.booleans()):
        key, version = ApiKey.PRODUCE, draw(st.integers(0, 11))
        message = draw(produces())
    else:
        key, version = ApiKey.FETCH, draw(st.integers(4, 17))
        message = draw(fetches())
    try:
        body = bytearray(encode(message, version))
    except KafkaliteError:  # a name that no string holds, for example
        body = bytearray()
    match draw(st.integers(0, 5)):
        case 0 if body:
            body[draw(st.integers(0, min(60, len(body) - 1)))] ^= draw(st.integers(1, 255))
        case 1:
            del body[draw(st.integers(0, len(body))) :]
        case 2:
            body += bytes(draw(st.lists(st.integers(0, 255), max_size=3)))
    return key, version, bytes(body)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    asked=st.lists(st.one_of(usual(), usual(), transactional(), odd()), min_size=10, max_size=40)
)
def test_both_ways_answer_and_store_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[tuple[ApiKey, int, bytes]],
) -> None:
    async def story() -> None:
        async with both(tmp_path_factory.mktemp("two"), monkeypatch) as (short, general):
            waiting: list[tuple[RequestReceived, Any, Any]] = []
            for request in asked:
                one, other = short.ask(*request), general.ask(*request)
                if isinstance(other, Pending):
                    assert isinstance(one, Pending), request
                    waiting.append((short.request, one, other))
                else:
                    assert one == other, request
                short.service.settle()
                general.service.settle()
            for event, one, other in waiting:
                assert (one.response is None) == (other.response is None)
                if other.response is not None:
                    assert short.sent(event, one) == general.sent(event, other)
            assert short.state() == general.state()
            for _, one, other in waiting:
                one.abandon()
                other.abandon()
            assert short.state() == general.state()
            assert not any(each.watchers for each in short.partitions())

    asyncio.run(story())


def of_transaction(sequence: int, transactional_id: str = "t") -> tuple[ApiKey, int, bytes]:
    """A batch of the transaction, by its first sequence."""
    batch = batch_of(
        Columns([b"k"], [b"v"], [NOW_MS]),
        producer_id=PRODUCER[0],
        producer_epoch=PRODUCER[1],
        base_sequence=sequence,
        transactional=True,
    )
    data = (TopicProduceData("plain", (PartitionProduceData(0, batch),)),)
    produce = ProduceRequest(transactional_id, -1, 50, data)
    return ApiKey.PRODUCE, 9, encode(produce, 9)


def test_batches_of_an_open_transaction_go_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = AddPartitionsToTxnRequest("t", *PRODUCER, (AddPartitionsToTxnTopic("plain", (0,)),))
    end = EndTxnRequest("t", *PRODUCER, True)
    steps = [
        (of_transaction(0), False),  # nothing is open yet
        ((ApiKey.ADD_PARTITIONS_TO_TXN, 3, encode(add, 3)), False),
        (of_transaction(0, "u"), False),
        (of_transaction(0), True),
        (of_transaction(1), True),
        (of_transaction(1), True),  # sent again
        (of_transaction(1, "t" * 200), False),
        ((ApiKey.END_TXN, 3, encode(end, 3)), False),
        (of_transaction(2), False),
    ]

    async def story() -> None:
        async with both(tmp_path, monkeypatch) as (short, general):
            for request, is_short in steps:
                one, other = short.ask(*request), general.ask(*request)
                assert one == other
                assert isinstance(short.answer, Framed) is (is_short and NATIVE)
                for each in (short, general):
                    each.service.settle()
            assert short.state() == general.state()

    asyncio.run(story())


@st.composite
def turns(draw: st.DrawFn) -> tuple[str, int, int, bool]:
    """What happens next to a reader in a session: what, in which partition, a number, a flag."""
    kinds = ["poll", "poll", "poll", "produce", "produce", "again", "two", "committed", "wait"]
    return (
        draw(st.sampled_from(kinds)),
        draw(st.sampled_from([0, 0, 0, 1, 2])),
        draw(st.integers(-1, 3)),
        draw(st.booleans()),
    )


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    version=st.integers(7, 17),
    count=st.sampled_from([1, 1, 2]),
    told=st.lists(turns(), min_size=5, max_size=40),
)
def test_a_session_goes_on_the_same_both_ways(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    count: int,
    told: list[tuple[str, int, int, bool]],
) -> None:
    """A reader of one or two partitions, its polls in turn with batches, and some out of turn."""

    def fetch(epoch: int, *partitions: FetchPartition, waits: bool, isolation: int = 0) -> bytes:
        topics = (FetchTopic("plain", placeholder("plain"), partitions),) if partitions else ()
        request = FetchRequest(
            max_wait_ms=60_000 if waits else 0,
            min_bytes=1,
            isolation_level=isolation,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
        )
        return encode(request, version)

    def partition(index: int, offset: int) -> FetchPartition:
        return FetchPartition(index, -1, offset, partition_max_bytes=1 << 20)

    session_id = 0

    async def story() -> None:
        nonlocal session_id
        async with both(tmp_path_factory.mktemp("two"), monkeypatch) as pair:
            waiting: list[tuple[RequestReceived, Any, Any]] = []

            def ask(key: ApiKey, version: int, body: bytes) -> None:
                one, other = (each.ask(key, version, body) for each in pair)
                if isinstance(other, Pending):
                    assert isinstance(one, Pending), body
                    waiting.append((pair[0].request, one, other))
                else:
                    assert one == other, body
                for each in pair:
                    each.service.settle()
                for event, one, other in waiting:
                    assert (one.response is None) == (other.response is None)
                    if other.response is not None:
                        assert pair[0].sent(event, one) == pair[1].sent(event, other)
                waiting[:] = [each for each in waiting if each[2].response is None]

            first = (partition(index, 0) for index in range(count))
            ask(ApiKey.FETCH, version, fetch(0, *first, waits=False))
            (session_id,) = pair[0].broker.fetch_sessions._sessions
            epoch = 1
            for kind, index, number, flag in told:
                if kind == "produce":
                    batch = batch_of(Columns([None], [b"v" * 90], [NOW_MS]))
                    data = (TopicProduceData("plain", (PartitionProduceData(index, batch),)),)
                    ask(ApiKey.PRODUCE, 7, encode(ProduceRequest(None, 1, 50, data), 7))
                    continue
                changed = [partition(index, max(number, 0) if flag else number)]
                if kind == "two":
                    changed.append(partition(1 - index, 0))
                if kind == "wait":
                    changed.clear()
                isolation = int(kind == "committed")
                due = epoch - (kind == "again")
                body = fetch(due, *changed, waits=flag or kind == "wait", isolation=isolation)
                ask(ApiKey.FETCH, version, body)
                epoch += due == epoch
                assert pair[0].state() == pair[1].state()
            for _, one, other in waiting:
                one.abandon()
                other.abandon()
            assert pair[0].state() == pair[1].state()

    asyncio.run(story())


def test_a_poll_that_waits_does_not_keep_the_bytes_of_its_request(tmp_path: Path) -> None:
    """They lie in a buffer of its connection, whose room another request may have by then."""

    async def story() -> None:
        node = await start_node(tmp_path, listen="127.0.0.1:0")
        try:
            pending = node.broker.create_topics(["t"])
            while pending.response is None:
                await asyncio.sleep(0.001)
            partition = FetchPartition(0, partition_max_bytes=1 << 20)
            asked = FetchRequest(
                max_wait_ms=60_000, min_bytes=1, topics=(FetchTopic("t", partitions=(partition,)),)
            )
            request = RequestReceived(
                RequestHeader(ApiKey.FETCH, 11, 1, "c"), memoryview(bytearray(encode(asked, 11)))
            )
            kept = weakref.ref(request.body)
            answer = service.BrokerService(node.broker).answer(request, PeerIdentity("h"))
            assert answer.response is None, "it waits"
            del request
            assert kept() is None
            answer.abandon()
            assert len(node.broker.waiting) == 0
        finally:
            await node.close()

    asyncio.run(story())
