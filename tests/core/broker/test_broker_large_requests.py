"""Large requests, however made, hold nobody else: slices, threads, and bounds on both."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kafkalite.core.handlers import configs
from kafkalite.core.handlers import produce as produce_module
from kafkalite.core.handlers.configs import describe_configs
from kafkalite.core.handlers.offset_commits import OFFSETS_PER_PART
from kafkalite.core.handlers.routes import ENTRIES_AT_ONCE
from kafkalite.core.handlers.service import ENTRIES_MAX
from kafkalite.core.handlers.slices import ENTRIES_PER_SLICE
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import API, key_of
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kafkalite.core.protocol.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns, RequestContext
from kafkalite.errors import ErrorCode
from kafkalite.testing.turns import Turns

Start = Any
PRODUCE_V = 9
CODECS = [codec for codec in Compression if codec]


def batch(*values: bytes, time_ms: int = 1_000, **more: Any) -> bytes:
    return encode(Columns([None] * len(values), list(values), [time_ms] * len(values)), **more)


def large(codec: Compression = Compression.ZSTD, mib: int = 2, **more: Any) -> bytes:
    return batch(bytes(mib << 20), compression=codec, **more)


def produce(*batches: tuple[int, bytes], acks: int = 1) -> ProduceRequest:
    data = tuple(PartitionProduceData(index, records) for index, records in batches)
    return ProduceRequest(None, acks, 5_000, (TopicProduceData("t", data),))


def answers(response: Any) -> tuple[PartitionProduceResponse, ...]:
    return tuple(each for topic in response.responses for each in topic.partition_responses)


def codes(response: Any) -> list[ErrorCode]:
    return [answer.error_code for answer in answers(response)]


def held(broker: Any) -> tuple[list[Any], asyncio.Event]:
    """What goes to threads from now on, and what lets it come back."""
    begun: list[Any] = []
    may_end = asyncio.Event()
    compute = broker.compute

    async def end(act: Any) -> Any:
        await may_end.wait()
        return await compute(act)

    def begin(act: Any) -> Any:
        begun.append(act)
        return asyncio.ensure_future(end(act))

    broker.compute = begin
    return begun, may_end


def test_a_partition_named_twice_is_refused(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 3)
            request = produce((0, batch(b"a")), (1, batch(b"b")), (0, batch(b"c")))
            refused = ErrorCode.INVALID_REQUEST
            assert codes(await peer.ask(request, PRODUCE_V)) == [refused, ErrorCode.NONE, refused]
            (one,) = request.topic_data
            request = ProduceRequest(None, 1, 5_000, (one, one))
            assert codes(await peer.ask(request, PRODUCE_V)) == [refused] * 6
            assert running.broker.partition("t", 0).log.log_end_offset == 0
            assert running.broker.partition("t", 1).log.log_end_offset == 1

    asyncio.run(story())


@pytest.mark.parametrize("codec", CODECS)
def test_large_batches_are_checked_in_threads_and_keep_their_order(
    start: Start, codec: Compression
) -> None:
    async def story() -> None:
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            await peer.create("t", 2)
            ids = {"producer_id": 7, "producer_epoch": 0}
            begun, may_end = held(running.broker)
            peer.send(produce((0, large(codec, base_sequence=0, **ids)), (1, batch(b"x"))), 9)
            peer.send(produce((0, batch(b"second", base_sequence=1, **ids))), 9)
            await running.until(lambda: begun)
            small = await other.produce("t", b"small", acks=1)
            assert small.base_offset == 0, "others are not held up"
            log = running.broker.partition("t", 1).log
            assert log.log_end_offset == 0, "the batch behind it in the request waits"
            may_end.set()
            first, second = await peer.receive(), await peer.receive()
            assert codes(first) + codes(second) == [ErrorCode.NONE] * 3
            assert [answer.base_offset for answer in answers(first) + answers(second)] == [1, 0, 2]
            assert len(begun) == 1, "only what is large goes to a thread"

    asyncio.run(story())


def test_a_producer_that_leaves_has_sent_its_large_batch_all_the_same(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            peer.send(produce((0, large()), acks=0), PRODUCE_V)
            await peer.writer.drain()
            peer.writer.close()
            log = running.broker.partition("t", 0).log
            await running.until(lambda: log.log_end_offset == 1)

    asyncio.run(story())


def test_a_large_batch_that_is_refused_under_acks_0_ends_its_connection(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", cleanup_policy="compact")
            peer.send(produce((0, large()), acks=0), PRODUCE_V)
            assert await peer.is_hung_up_on()

    asyncio.run(story())


@pytest.mark.parametrize("codec", CODECS)
def test_the_batches_of_a_request_decompress_to_so_many_bytes_in_all(
    start: Start, codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_module, "DECOMPRESSED_BYTES_MAX", 5 << 20)
    monkeypatch.setattr(produce_module, "DECOMPRESSED_RATIO_MAX", 1)

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 5)
            request = produce(*((i, large(codec)) for i in range(4)), (4, batch(b"plain")))
            response = await peer.ask(request, PRODUCE_V)
            too_large = ErrorCode.MESSAGE_TOO_LARGE
            assert codes(response) == [0, 0, too_large, too_large, 0]
            assert "a request may decompress to 5242880" in answers(response)[2].error_message
            assert codes(await peer.ask(produce((2, large(codec))), PRODUCE_V)) == [0]

    asyncio.run(story())


def test_many_batches_go_on_in_slices(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            await peer.create("t", 300)
            order: list[str] = []

            async def ask() -> None:
                assert set(codes(await peer.receive())) == {ErrorCode.NONE}
                order.append("large")

            peer.send(produce(*((i, batch(b"v")) for i in range(300))), PRODUCE_V)
            async with asyncio.TaskGroup() as group:
                group.create_task(ask())
                await other.produce("t", b"small", acks=1)
                order.append("small")
            assert order == ["small", "large"]

    asyncio.run(story())


def test_a_slice_of_many_batches_ends_when_the_disk_is_slow(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 60)
            broker, now_ms = running.broker, [10**9]
            slices, run = [0], broker._agenda._run_slice

            def counting(work: Any) -> None:
                slices[0] += work.name == "PRODUCE"
                run(work)

            def slow_append(*given: Any, **more: Any) -> Any:
                now_ms[0] += produce_module.SLICE_MS // 2
                return append(*given, **more)

            log = type(broker.partition("t", 0).log)
            append = log.append_as_leader
            broker._agenda._run_slice = counting
            broker.monotonic_ms = lambda: now_ms[0]
            monkeypatch.setattr(log, "append_as_leader", slow_append)
            answer = await peer.ask(produce(*((i, batch(b"v")) for i in range(60))), PRODUCE_V)
            assert set(codes(answer)) == {ErrorCode.NONE}
            assert slices[0] >= 60 // 3 - 1, "each has a first batch and those of its time"

    asyncio.run(story())


def test_an_answer_names_so_many_refused_records_in_all(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 20, cleanup_policy="compact")
            keyless = batch(*[b"v"] * 30)
            response = await peer.ask(produce(*((i, keyless) for i in range(20))), PRODUCE_V)
            named = [len(answer.record_errors) for answer in answers(response)]
            assert named == [10] * 10 + [0] * 10
            assert set(codes(response)) == {ErrorCode.INVALID_RECORD}

    asyncio.run(story())


def by_name(names: Iterable[str]) -> MetadataRequest:
    return MetadataRequest(tuple(MetadataRequestTopic(name=name) for name in names), False)


def test_a_request_with_many_entries_is_read_in_a_thread(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            begun, may_end = held(running.broker)
            may_end.set()
            names = ["t", *(f"n{i}" for i in range(ENTRIES_AT_ONCE))]
            response = await peer.ask(by_name(names))
            assert [topic.name for topic in response.topics] == names
            assert response.topics[0].error_code is ErrorCode.NONE
            assert len(begun) == 2, "read, and its answer written"

    asyncio.run(story())


def test_a_request_with_too_many_entries_ends_its_connection(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            peer.send(by_name(["n"] * (ENTRIES_MAX + 1)))
            assert await peer.is_hung_up_on()

    asyncio.run(story())
    assert "topics with 50001 entries are too many for one message" in caplog.text


LISTS = {
    "Metadata": (by_name([f"n{i}" for i in range(900)]), lambda answer: len(answer.topics)),
    "FindCoordinator": (
        FindCoordinatorRequest(key_type=0, coordinator_keys=tuple(f"g{i}" for i in range(900))),
        lambda answer: len(answer.coordinators),
    ),
    "DescribeConfigs": (
        DescribeConfigsRequest(
            tuple(DescribeConfigsResource(2, f"n{i}", None) for i in range(900))
        ),
        lambda answer: len(answer.results),
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_many_entries_are_answered_in_slices(start: Start, name: str) -> None:
    request, count = LISTS[name]

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
            slices, run = [0], running.broker._agenda._run_slice

            def counting(work: Any) -> None:
                slices[0] += work.name == API[key_of(request)].key.name
                run(work)

            running.broker._agenda._run_slice = counting
            assert count(await peer.ask(request)) == 900
            assert slices[0] >= 900 // ENTRIES_PER_SLICE

    asyncio.run(story())


def test_the_settings_of_few_topics_are_many_entries(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t")
            me = str(running.broker.node_id)
            every = tuple(DescribeConfigsResource(2, name, None) for name in "ttt")
            every += tuple(DescribeConfigsResource(4, name, None) for name in (me, f"0{me}", ""))
            context = RequestContext(4, "c", "/h")
            answer = describe_configs(running.broker, DescribeConfigsRequest(every), context)
            assert isinstance(answer, Pending)
            await running.until(lambda: answer.response)
            told = answer.response.message.results
            assert [each.resource_name for each in told] == ["t", f"0{me}", ""]

    asyncio.run(story())


def test_very_many_settings_are_changed_in_slices(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []  # the turn of the loop in which each change was checked
    turn = 0
    refusal = configs.refusal

    def counted(*given: Any) -> Any:
        checked.append(turn)
        return refusal(*given)

    def next_turn(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn, loop)

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            count = 10 * ENTRIES_PER_SLICE
            names = ("t", *(f"unknown-{n}" for n in range(count)))
            setting = (IncrementalAlterableConfig("retention.ms", 0, "1000"),)
            resources = tuple(IncrementalAlterConfigsResource(2, name, setting) for name in names)
            monkeypatch.setattr(configs, "refusal", counted)
            next_turn(asyncio.get_running_loop())
            answer = await peer.ask(IncrementalAlterConfigsRequest(resources, False), 1)
            assert [each.resource_name for each in answer.responses] == list(names)
            assert answer.responses[0].error_code is ErrorCode.NONE
            assert len(checked) == count + 1
            assert max(Counter(checked).values()) <= ENTRIES_PER_SLICE

    asyncio.run(story())


def test_very_many_offsets_are_committed_in_steps(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            count = 2 * OFFSETS_PER_PART + 1
            for name in ("t", "u"):
                await peer.create(name, count)
            await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
            offsets = tuple(OffsetCommitRequestPartition(i, 10 + i) for i in range(count + 2))
            topics = tuple(OffsetCommitRequestTopic(name, offsets) for name in ("t", "u"))
            answer = await peer.ask(OffsetCommitRequest("g", topics=topics), 8)
            assert [topic.name for topic in answer.topics] == ["t", "u"]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for topic in answer.topics:
                codes = [partition.error_code for partition in topic.partitions]
                assert codes == [ErrorCode.NONE] * count + [unknown] * 2
                indexes = [partition.partition_index for partition in topic.partitions]
                assert indexes == list(range(count + 2))
            wanted = (OffsetFetchRequestTopics("u", (0, count - 1)),)
            fetched = await peer.ask(
                OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=wanted),)), 8
            )
            (told,) = fetched.groups[0].topics
            assert [each.committed_offset for each in told.partitions] == [10, 9 + count]

    asyncio.run(story())


def test_a_member_with_very_many_protocols_takes_the_loop_little_time(
    start: Start, run_measured: Callable[..., None], yardstick_s: Callable[[], float]
) -> None:
    """Fifty milliseconds and more, where all of them are counted as votes."""

    async def story(turns: Turns) -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
            known = tuple(JoinGroupRequestProtocol(f"p{n}", b"") for n in range(ENTRIES_MAX - 1))
            request = JoinGroupRequest("g", 10_000, 10_000, protocol_type="x", protocols=known)
            frame = b"".join(map(bytes, peer.frames.send(request, 3)[1]))
            gc.collect()
            gc.disable()
            try:
                with turns.watch() as watch:
                    peer.writer.write(frame)
                    answer = await peer.receive()
            finally:
                gc.enable()
            assert answer.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            assert watch.longest_s < 6 * yardstick_s()

    run_measured(story, time.thread_time)


@pytest.mark.slow
def test_a_batch_of_a_hundred_megabytes_takes_the_loop_little_time(
    start: Start, run_measured: Callable[..., None], yardstick_s: Callable[[], float]
) -> None:
    """A hundred milliseconds and more, where the loop itself decompresses it."""

    async def story(turns: Turns) -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", message_timestamp_before_max_ms="1000")
            refused = large(mib=100)
            gc.collect()
            gc.disable()
            try:
                with turns.watch() as watch:
                    answer = await peer.ask(produce((0, refused)), PRODUCE_V)
            finally:
                gc.enable()
            assert codes(answer) == [ErrorCode.INVALID_TIMESTAMP]
            assert watch.longest_s < 15 * yardstick_s()

    run_measured(story, time.thread_time)
