"""The native readers and writers of usual requests beside the compiled codecs, their oracle."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import RequestHeader, ServerConnection
from kafkalite.core.protocol.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafkalite.core.protocol.usual_requests import (
    FETCH_FLEXIBLE_SINCE_V,
    ID_BYTES_MAX,
    NATIVE,
    NO_TAGS,
    read_follower,
    read_poll,
    read_produce,
    read_transactional,
    timeout_of,
    write_poll,
    write_produce,
)
from kafkalite.errors import ErrorCode, WireError

if not NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

int8, int16 = st.integers(-128, 127), st.integers(-(1 << 15), (1 << 15) - 1)
int32, int64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
names = st.text(max_size=20) | st.sampled_from(["t" * 126, "t" * 127, "t" * 249, "t" * 250])
topics = names.filter(lambda name: len(name.encode()) <= 249)
records = st.binary(max_size=40) | st.integers(100, 300).map(bytes)
produce_versions, fetch_versions = st.integers(3, 11), st.integers(4, 17)
topic_ids = st.uuids()


def parsed(cls: Any, body: bytes, version: int) -> Any:
    try:
        return codec.decode(cls, body, version)
    except WireError:
        return None


@st.composite
def damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """The same, or cut, or longer, or with a byte or two changed."""
    data = bytearray(body)
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    data += draw(st.sampled_from([b"", b"", b"\0", b"\xff"]))
    return bytes(data[: draw(st.sampled_from([len(data)] * 3 + [len(data) // 2, len(data) - 1]))])


@settings(max_examples=500)
@given(st.data(), produce_versions, names, records, int16, int32, int32)
def test_what_is_read_of_a_produce_is_what_the_codec_reads(
    data: st.DataObject, version: int, name: str, batch: bytes, acks: int, index: int, timeout: int
) -> None:
    asked = (TopicProduceData(name, (PartitionProduceData(index, batch),)),)
    whole = codec.encode(ProduceRequest(None, acks, timeout, asked), version)
    body = data.draw(damaged(whole))
    fields = read_produce(body, version)
    if fields is None:
        assert body != whole or len(name.encode()) > 249, "a usual request"
        return
    read = parsed(ProduceRequest, body, version)
    assert read is not None, "the codec refuses it"
    ((topic),) = read.topic_data
    ((partition),) = topic.partition_data
    acks, name, index, start, end = fields
    assert (read.transactional_id, read.acks) == (None, acks)
    assert read.timeout_ms == timeout_of(body, version)
    assert (topic.name, partition.index, partition.records) == (name, index, body[start:end])


@settings(max_examples=500)
@given(st.data(), produce_versions, names, names, records, int16, int32)
def test_what_is_read_of_a_transactional_produce_is_what_the_codec_reads(
    data: st.DataObject, version: int, tx: str, name: str, batch: bytes, acks: int, index: int
) -> None:
    asked = (TopicProduceData(name, (PartitionProduceData(index, batch),)),)
    whole = codec.encode(ProduceRequest(tx, acks, 5_000, asked), version)
    body = data.draw(damaged(whole))
    found = read_transactional(memoryview(body), version)
    if found is None:
        is_long = len(name.encode()) > 249 or not 0 < len(tx.encode()) <= ID_BYTES_MAX
        assert body != whole or is_long, "a usual request"
        return
    read = parsed(ProduceRequest, body, version)
    assert read is not None, "the codec refuses it"
    (topic,) = read.topic_data
    (partition,) = topic.partition_data
    tx, (acks, name, index, start, end) = found
    assert (read.transactional_id, read.acks) == (tx, acks)
    assert read.timeout_ms == timeout_of(body, version)
    assert (topic.name, partition.index, partition.records) == (name, index, body[start:end])


@settings(max_examples=500)
@given(
    *(st.data(), fetch_versions, names, topic_ids, st.tuples(int32, int32, int32, int8)),
    *(int32, int32, int64, st.sampled_from([(0, -1), (0, 0), (5, 3), (-1, -(1 << 31))])),
)
def test_what_is_read_of_a_fetch_is_what_the_codec_reads(
    data: st.DataObject,
    version: int,
    name: str,
    topic_id: UUID,
    limits: tuple[int, int, int, int],
    index: int,
    epoch: int,
    offset: int,
    session: tuple[int, int],
) -> None:
    wait, least, most, isolation = limits
    partition = FetchPartition(index, epoch, offset, partition_max_bytes=most)
    wanted = FetchTopic(name, topic_id, partitions=(partition,))
    request = FetchRequest(
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=data.draw(st.sampled_from([(), (wanted,), (wanted,), (wanted,)])),
        rack_id=data.draw(names),
    )
    whole = codec.encode(request, version)
    body = data.draw(damaged(whole))
    fields = read_poll(body, version)
    if fields is None:
        lengths = len(name.encode()) * (version < 13), len(request.rack_id.encode())
        assert body != whole or max(lengths) > 249, "a usual request"
        return
    read = parsed(FetchRequest, body, version)
    assert read is not None, "the codec refuses it"
    assert (read.cluster_id, read.replica_id, read.replica_state.replica_id) == (None, -1, -1)
    assert read.forgotten_topics_data == ()
    assert fields[:6] == (
        *(read.session_id, read.session_epoch),
        *(read.max_wait_ms, read.min_bytes, read.max_bytes, read.isolation_level),
    )
    if not read.topics:
        assert fields[6] is None
        return
    ((topic),) = read.topics
    ((asked),) = topic.partitions
    assert fields[6:] == (
        topic.topic_id.bytes if version >= 13 else topic.topic,
        *(asked.partition, asked.current_leader_epoch, asked.fetch_offset),
        asked.partition_max_bytes,
    )


@settings(max_examples=500)
@given(st.data(), st.integers(14, 16), st.lists(st.booleans(), min_size=6, max_size=6))
def test_what_is_read_of_a_followers_fetch_is_what_the_codec_reads(
    data: st.DataObject, version: int, odd: list[bool]
) -> None:
    topic_id, few = data.draw(topic_ids), st.integers(0, 300)
    partition = FetchPartition(*(data.draw(each) for each in (few, few, int64, few, int64, few)))
    wanted = FetchTopic("", topic_id, (partition, partition) if odd[0] else (partition,))
    forgotten = ForgottenTopic("", topic_id, (1,))
    replica_id = data.draw(st.sampled_from([-1, 0, 2, 2]))
    request = FetchRequest(
        cluster_id="c" if odd[1] and odd[2] else None,
        replica_id=replica_id,
        replica_state=ReplicaState(replica_id, data.draw(int64)),
        session_id=data.draw(few),
        session_epoch=data.draw(few),
        topics=data.draw(st.sampled_from([(), (wanted,), (wanted,), (wanted,)])),
        forgotten_topics_data=(forgotten,) if odd[2] and odd[3] else (),
        rack_id=data.draw(st.sampled_from(["rack", "\0\0\1\1"])) if odd[4] and odd[5] else "",
    )
    whole = codec.encode(request, version)
    body = data.draw(damaged(whole))
    found = None if read_poll(body, version) else read_follower(body, version)
    if found is None:
        is_odd = odd[0] or (odd[1] and odd[2]) or (odd[2] and odd[3]) or (odd[4] and odd[5])
        assert body != whole or is_odd or replica_id < 0 or version < 15, "a usual request"
        return
    read = parsed(FetchRequest, body, version)
    assert read is not None, "the codec refuses it"
    assert (read.cluster_id, read.forgotten_topics_data) == (None, ())
    assert ReplicaState(*found[3:]) == read.replica_state
    assert found.fields[:6] == (
        *(read.session_id, read.session_epoch),
        *(read.max_wait_ms, read.min_bytes, read.max_bytes, read.isolation_level),
    )
    if not read.topics:
        assert found.fields[6] is None
        return
    ((topic),) = read.topics
    ((asked),) = topic.partitions
    *place, bytes_max = found.fields[7:]
    assert found.fields[6] == topic.topic_id.bytes
    assert FetchPartition(*place, *found[1:3], bytes_max) == asked


@given(produce_versions, topics, int32, int32, int64, int64, int64)
def test_a_produce_is_answered_in_the_codecs_bytes(
    version: int, name: str, index: int, correlation_id: int, base: int, time_ms: int, start: int
) -> None:
    answer = PartitionProduceResponse(index, ErrorCode.NONE, base, time_ms, start)
    response = ProduceResponse((TopicProduceResponse(name, (answer,)),))
    header = RequestHeader(ApiKey.PRODUCE, version, correlation_id, None)
    written = write_produce(version, correlation_id, name, index, base, time_ms, start)
    assert [written] == ServerConnection().send(header, response)[0]


@given(
    *(fetch_versions, topics, topic_ids, int32, int32, int32, int64, int64, int64),
    *(st.booleans(), records),
)
def test_a_fetch_is_answered_in_the_codecs_bytes(
    version: int,
    name: str,
    topic_id: UUID,
    index: int,
    correlation_id: int,
    session_id: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    is_committed: bool,
    batch: bytes,
) -> None:
    offsets = high_watermark, last_stable_offset, log_start_offset
    aborted = () if is_committed else None
    data = PartitionData(
        index, ErrorCode.NONE, *offsets, aborted_transactions=aborted, records=batch
    )
    topic = FetchableTopicResponse(name, topic_id, partitions=(data,))
    response = FetchResponse(session_id=session_id, responses=(topic,))
    called = topic_id.bytes if version >= 13 else name
    place = version, correlation_id, session_id, called, index
    header = RequestHeader(ApiKey.FETCH, version, correlation_id, None)
    head = write_poll(*place, *offsets, is_committed, len(batch))
    sent = ServerConnection().send(header, response)[0]
    tail = NO_TAGS if version >= FETCH_FLEXIBLE_SINCE_V else b""
    assert head + batch + tail == b"".join(map(bytes, sent))  # type: ignore[arg-type]
