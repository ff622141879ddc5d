"""Both ends of a connection, fed with bytes: however they are cut, the same events come out."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.protocol import connection
from kafkalite.core.protocol.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.codec import decode, encode
from kafkalite.core.protocol.connection import (
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
    FIRST_BYTES_MAX,
    SMALL_FRAME_BYTES,
    ClientConnection,
    FrameReceiver,
    Parts,
    RequestHeader,
    RequestReceived,
    ServerConnection,
    UnknownApi,
)
from kafkalite.core.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kafkalite.core.protocol.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafkalite.core.protocol.produce import ProduceRequest
from kafkalite.errors import ErrorCode, WireError

HEARTBEAT = HeartbeatRequest("g", 1, "m")


def joined(parts: Parts) -> bytes:
    return b"".join(p if isinstance(p, bytes) else b"." * p.size_bytes for p in parts)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def drain(receiver: FrameReceiver) -> list[memoryview]:
    return list(iter(receiver.next_frame, None))


def feed(receiver: FrameReceiver, stream: bytes, cuts: Iterable[int]) -> list[memoryview]:
    """As a socket would: each read fills a part of the buffer, then whole frames are taken."""
    frames = []
    for cut in cuts:
        while cut and stream:
            room = receiver.get_buffer(-1)
            count = min(len(room), cut, len(stream))
            assert count > 0
            room[:count] = stream[:count]
            receiver.buffer_updated(count)
            stream, cut = stream[count:], cut - count
            frames += drain(receiver)
    assert not stream
    return frames


# --- frames -----------------------------------------------------------------------------------

SIZES = st.one_of(
    st.integers(1, 40),
    st.sampled_from(
        [SMALL_FRAME_BYTES, SMALL_FRAME_BYTES + 1, CHUNK_BYTES - 4, CHUNK_BYTES, 150_000]
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(SIZES, max_size=12), cut=st.one_of(st.integers(1, 9), st.integers(1, 300_000))
)
def test_frames_are_the_same_however_the_stream_is_cut(sizes: list[int], cut: int) -> None:
    bodies = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    stream = b"".join(map(framed, bodies))
    if cut < 10 and len(stream) > 2_000:
        cut *= 997
    frames = feed(FrameReceiver(200_000), stream, [cut] * (len(stream) // cut + 1))
    assert [bytes(frame) for frame in frames] == bodies  # at the end: nothing was overwritten


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(SIZES, max_size=6))
def test_data_from_elsewhere_is_taken_at_once(sizes: list[int]) -> None:
    bodies = [bytes([i]) * size for i, size in enumerate(sizes)]
    receiver = FrameReceiver(200_000)
    frames = []
    for body in bodies:
        receiver.receive_data(framed(body))
        frames += drain(receiver)
    assert [bytes(frame) for frame in frames] == bodies


def test_who_says_little_holds_little_and_who_says_much_gets_larger_buffers() -> None:
    receiver = FrameReceiver(200_000)
    assert feed(receiver, framed(b"x" * 50), [54]) == [b"x" * 50]
    assert len(receiver.get_buffer()) < CHUNK_BYTES_MIN
    feed(receiver, framed(b"y" * 1_000) * 200, [1 << 20])
    assert len(receiver._view) == CHUNK_BYTES


def test_a_large_frame_takes_its_memory_when_more_of_it_is_received() -> None:
    receiver = FrameReceiver(200_000)
    start = framed(bytes(150_000))[:1_000]
    receiver.get_buffer()[:1_000] = start
    receiver.buffer_updated(1_000)
    assert receiver.next_frame() is None
    assert receiver.large_bytes == 150_000
    assert len(receiver._view) < CHUNK_BYTES  # not yet
    assert len(receiver.get_buffer()) == 150_000 - 996


def test_frames_may_wait_while_more_arrives() -> None:
    receiver = FrameReceiver(1_000_000)
    bodies = [bytes([i]) * 30_000 for i in range(10)]
    for body in bodies:
        receiver.receive_data(framed(body))
    assert [bytes(frame) for frame in drain(receiver)] == bodies


def test_a_large_frame_is_followed_by_others_in_the_same_data() -> None:
    receiver = FrameReceiver(1_000_000)
    large, small = framed(b"L" * 500_000), framed(b"s")
    receiver.receive_data(large[:100_000])
    assert receiver.next_frame() is None
    receiver.receive_data(large[100_000:] + small)
    assert [len(frame) for frame in drain(receiver)] == [500_000, 1]


def test_frames_are_writable_and_keep_what_was_written() -> None:
    receiver = FrameReceiver(1_000_000)
    small, large = feed(receiver, framed(b"abc") + framed(b"L" * 200_000), [300_000])
    small[0], large[0] = ord("x"), ord("y")
    feed(receiver, framed(b"d" * 100) * 2_000, [70_000] * 3)
    assert bytes(small) == b"xbc"
    assert bytes(large[:2]) == b"yL"


def test_small_frames_of_one_read_share_its_buffer() -> None:
    frames = feed(FrameReceiver(100), framed(b"a") + framed(b"b"), [100])
    assert frames[0].obj is frames[1].obj


def test_a_large_frame_is_received_into_a_buffer_that_holds_nothing_else() -> None:
    (frame,) = feed(FrameReceiver(1_000_000), framed(b"L" * 300_000), [50_000] * 7)
    assert isinstance(frame.obj, bytearray)
    assert len(frame.obj) == 300_000


def test_memory_is_taken_for_what_arrives_not_for_what_a_size_promises() -> None:
    receiver = FrameReceiver(connection.FRAME_BYTES_MAX)
    receiver.receive_data(struct.pack(">i", connection.FRAME_BYTES_MAX))
    assert receiver.next_frame() is None
    assert len(receiver.get_buffer()) == FIRST_BYTES_MAX
    receiver.receive_data(bytes(FIRST_BYTES_MAX + 1))
    assert len(receiver.get_buffer()) < 4 * FIRST_BYTES_MAX


def test_a_frame_that_outgrows_its_first_buffer_arrives_whole() -> None:
    body = b"0123456789" * 600_000
    (frame,) = feed(FrameReceiver(len(body)), framed(body), [1 << 20] * 6)
    assert frame == body


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), 101, (1 << 31) - 1])
def test_a_size_that_is_not_allowed_is_refused(size: int) -> None:
    receiver = FrameReceiver(100)
    receiver.receive_data(struct.pack(">i", size))
    for _ in range(2):  # and stays refused
        with pytest.raises(
            WireError, match=rf"a frame of {size} bytes \(b.*\); 1 to 100 are allowed"
        ):
            receiver.next_frame()


# --- requests ---------------------------------------------------------------------------------


def request_bytes(key: int, version: int, rest: bytes, correlation_id: int = 7) -> bytes:
    return framed(struct.pack(">hhi", key, version, correlation_id) + rest)


def server_event(data: bytes) -> RequestReceived | UnknownApi | None:
    server = ServerConnection()
    server.receive_data(data)
    return server.next_event()


@pytest.mark.parametrize("version", range(5))
def test_what_a_client_sends_a_server_reads(version: int) -> None:
    client, server = ClientConnection("c-1"), ServerConnection()
    for expected in range(3):
        correlation_id, parts = client.send(HEARTBEAT, version)
        assert correlation_id == expected
        server.receive_data(joined(parts))
    for expected in range(3):
        event = server.next_event()
        assert isinstance(event, RequestReceived)
        assert event.header == RequestHeader(ApiKey.HEARTBEAT, version, expected, "c-1")
        assert decode(HeartbeatRequest, event.body, version) == HEARTBEAT
    assert server.next_event() is None


@pytest.mark.parametrize(("client_id", "read"), [(None, None), ("", ""), ("č", "č")])
def test_a_client_need_not_name_itself(client_id: str | None, read: str | None) -> None:
    _, parts = ClientConnection(client_id).send(HEARTBEAT, 0)
    event = server_event(joined(parts))
    assert isinstance(event, RequestReceived)
    assert event.header.client_id == read


def test_each_request_may_come_from_another_client_of_a_proxy() -> None:
    server = ServerConnection()
    for name in ("a", "b", "a"):
        server.receive_data(joined(ClientConnection(name).send(HEARTBEAT, 0)[1]))
        event = server.next_event()
        assert isinstance(event, RequestReceived)
        assert event.header.client_id == name


def test_a_client_id_that_is_no_utf8_is_read_as_well_as_can_be() -> None:
    event = server_event(request_bytes(12, 0, b"\0\2a\xff" + encode(HEARTBEAT, 0)))
    assert isinstance(event, RequestReceived)
    assert event.header.client_id == "a\ufffd"


def test_a_negative_size_of_a_client_id_is_none() -> None:
    event = server_event(request_bytes(12, 0, b"\x80\0" + encode(HEARTBEAT, 0)))
    assert isinstance(event, RequestReceived)
    assert (event.header.client_id, event.body) == (None, encode(HEARTBEAT, 0))


def test_a_header_with_tagged_fields_is_read_past_them() -> None:
    body = encode(HEARTBEAT, 4)
    event = server_event(request_bytes(12, 4, b"\0\1c\2\0\1x\5\2yz" + body))
    assert isinstance(event, RequestReceived)
    assert event.body == body


def test_a_version_from_the_future_has_a_header_that_can_be_read() -> None:
    event = server_event(request_bytes(18, 99, b"\0\1c\0whatever"))
    assert isinstance(event, RequestReceived)
    assert event.header == RequestHeader(ApiKey.API_VERSIONS, 99, 7, "c")
    assert bytes(event.body) == b"whatever"


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0\1cgarbage"])
def test_an_api_that_is_not_in_the_table_is_told_with_its_number(rest: bytes) -> None:
    assert server_event(request_bytes(999, 3, rest)) == UnknownApi(999, 3, 7)


@pytest.mark.parametrize(
    "data",
    [
        framed(b"1234567"),  # not even a correlation id
        request_bytes(12, 0, b""),
        request_bytes(12, 0, b"\0"),
        request_bytes(12, 0, b"\0\5abcd"),
        request_bytes(12, 4, b"\0\1c"),
        request_bytes(12, 4, b"\0\1c\1\0\7abc"),
        request_bytes(12, 4, b"\0\1c" + b"\xff" * 9),
    ],
)
def test_a_header_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        server_event(data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=40), key=st.sampled_from(ApiKey), version=st.integers(-2, 13))
def test_any_header_is_read_or_refused(data: bytes, key: ApiKey, version: int) -> None:
    try:
        server_event(request_bytes(key, version, data))
    except WireError as error:
        assert str(error)  # noqa: PT017  it is the kind of error that matters


# --- responses --------------------------------------------------------------------------------


def answered(client: ClientConnection, server: ServerConnection, response: object) -> object:
    event = server.next_event()
    assert isinstance(event, RequestReceived)
    parts, size = server.send(event.header, response)
    assert size == len(joined(parts))
    client.receive_data(joined(parts))
    received = client.next_event()
    assert received is not None
    assert received.correlation_id == event.header.correlation_id
    return received.message


@pytest.mark.parametrize("version", range(5))
def test_what_a_server_answers_a_client_reads(version: int) -> None:
    client, server = ClientConnection("c"), ServerConnection()
    server.receive_data(joined(client.send(HEARTBEAT, version)[1]))
    assert client.in_flight == 1
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert answered(client, server, response) == response
    assert client.in_flight == 0


def test_a_body_that_was_encoded_before_is_sent_as_it_is() -> None:
    client, server = ClientConnection("c"), ServerConnection()
    server.receive_data(joined(client.send(HEARTBEAT, 4)[1]))
    response = HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert answered(client, server, encode(response, 4)) == response


class InFile:
    size_bytes = 5


def test_a_frame_counts_records_that_are_sent_from_a_file() -> None:
    partition = PartitionData(0, records=InFile())
    response = FetchResponse(responses=(FetchableTopicResponse("t", partitions=(partition,)),))
    parts, _ = ServerConnection().send(RequestHeader(ApiKey.FETCH, 12, 3, None), response)
    wire = joined(parts)
    assert struct.unpack_from(">ii", wire) == (len(wire) - 4, 3)
    assert [type(part) for part in parts] == [bytes, InFile, bytes]


def test_answers_come_in_the_order_of_the_questions() -> None:
    client = ClientConnection("c")
    client.send(HEARTBEAT, 4)
    client.send(ListGroupsRequest(), 0)
    client.receive_data(
        framed(b"\0\0\0\0\0" + encode(HeartbeatResponse(), 4))
        + framed(b"\0\0\0\1" + encode(ListGroupsResponse(), 0))
    )
    first, second = client.next_event(), client.next_event()
    assert first is not None
    assert second is not None
    assert (first.message, second.message) == (HeartbeatResponse(), ListGroupsResponse())


def test_an_answer_out_of_turn_is_refused() -> None:
    client = ClientConnection("c")
    client.send(HEARTBEAT, 0)
    client.receive_data(framed(b"\0\0\0\1" + encode(HeartbeatResponse(), 0)))
    with pytest.raises(WireError, match=r"response 1, expected 0 \(HEARTBEAT\)"):
        client.next_event()


def test_an_answer_to_nothing_is_refused() -> None:
    client = ClientConnection("c")
    client.receive_data(framed(b"\0\0\0\1"))
    with pytest.raises(WireError, match="response 1 answers no request"):
        client.next_event()


@pytest.mark.parametrize(
    "body", [b"\0", b"\0\0\0\0", b"\0\0\0\0\1\7", b"\0\0\0\0\1\7\7", b"\0\0\0\0\0"]
)
def test_an_answer_that_is_cut_off_is_refused(body: bytes) -> None:
    client = ClientConnection("c")
    client.send(HEARTBEAT, 4)
    client.receive_data(framed(body))
    with pytest.raises(WireError):
        client.next_event()


def test_an_old_broker_answers_api_versions_in_the_oldest_layout() -> None:
    client = ClientConnection("c")
    client.send(ApiVersionsRequest("kafkalite", "1"), 4)
    refusal = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, (ApiVersion(18, 0, 2),))
    client.receive_data(framed(b"\0\0\0\0" + encode(refusal, 0)))
    received = client.next_event()
    assert received is not None
    assert received.message == refusal


def test_what_is_no_refusal_of_api_versions_is_read_in_the_version_that_was_asked() -> None:
    client = ClientConnection("c")
    looks_alike = HeartbeatResponse(throttle_time_ms=ErrorCode.UNSUPPORTED_VERSION << 16)
    answer = ApiVersionsResponse(api_keys=(ApiVersion(18, 0, 4),), throttle_time_ms=3)
    client.send(HEARTBEAT, 1)
    client.send(ApiVersionsRequest("kafkalite", "1"), 2)
    client.receive_data(framed(b"\0\0\0\0" + encode(looks_alike, 1)))
    client.receive_data(framed(b"\0\0\0\1" + encode(answer, 2)))
    for expected in (looks_alike, answer):
        received = client.next_event()
        assert received is not None
        assert received.message == expected


def test_produce_without_acknowledgement_is_not_answered() -> None:
    client = ClientConnection("c")
    client.send(ProduceRequest(acks=0), 9)
    assert client.in_flight == 0
    assert client.send(ProduceRequest(acks=1), 9)[0] == 1
    assert client.in_flight == 1


def test_a_request_that_cannot_be_encoded_is_not_in_flight() -> None:
    client = ClientConnection("c")
    with pytest.raises(WireError):
        client.send(HEARTBEAT, 99)
    assert client.in_flight == 0
    assert client.send(HEARTBEAT, 0)[0] == 0


def test_correlation_ids_stay_positive() -> None:
    client = ClientConnection("c")
    client._next_correlation_id = (1 << 31) - 1
    assert client.send(HEARTBEAT, 0)[0] == (1 << 31) - 1
    assert client.send(HEARTBEAT, 0)[0] == 0
