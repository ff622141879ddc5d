"""What the codec makes of a definition: layouts byte by byte, records without copies, refusals."""

from __future__ import annotations

import struct
import tracemalloc
import uuid
from dataclasses import dataclass
from typing import Annotated

import pytest

from kafkalite.core.protocol import codec, compiler, primitives
from kafkalite.core.protocol.apis import (
    API,
    ApiKey,
    key_of,
    request_header_version,
    response_header_version,
)
from kafkalite.core.protocol.codec import (
    decode,
    decode_with_version,
    encode,
    encode_parts,
    encode_with_version,
    message,
    read_version,
    schema,
)
from kafkalite.core.protocol.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kafkalite.core.protocol.consumer_protocol import ConsumerProtocolSubscription
from kafkalite.core.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kafkalite.core.protocol.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafkalite.core.protocol.groups import HeartbeatRequest
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkalite.core.protocol.primitives import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableSince,
    Records,
    Since,
    String,
    Tag,
    UInt16,
    Until,
    Uuid,
    read_uvarint,
    write_uvarint,
)
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafkalite.errors import ErrorCode, WireError


@codec.struct
class Leaf:
    number: Int32 = 0
    name: Annotated[String, Since(1)] = ""


@message(api_key=1_000, versions=(0, 2), flexible_since=2)
class Everything:
    truth: Bool
    small: Int8
    short: Int16
    unsigned: UInt16
    long: Int64
    double: Float64
    error_code: ErrorCode
    id_: Uuid
    text: String
    nothing: String | None
    blob: Bytes
    numbers: tuple[Int32, ...]
    names: tuple[String, ...]
    ids: tuple[Uuid, ...]
    errors: tuple[ErrorCode, ...]
    leaf: Leaf
    leaves: tuple[Leaf, ...]
    perhaps: Leaf | None
    records: Records | None
    old: Annotated[Int8, Until(0)] = 7
    new: Annotated[Int8, Since(1)] = 8
    later_null: Annotated[String | None, NullableSince(1)] = ""
    tagged: Annotated[Leaf, Tag(3, since=2)] = Leaf()
    first_tag: Annotated[tuple[String, ...], Tag(0, since=2)] = ()


EVERYTHING = Everything(
    truth=True,
    small=-2,
    short=-3,
    unsigned=0xFFFE,
    long=-4,
    double=0.5,
    error_code=ErrorCode.NOT_CONTROLLER,
    id_=uuid.UUID(int=5),
    text="é",
    nothing=None,
    blob=b"\1\2",
    numbers=(1, -1),
    names=("a", ""),
    ids=(uuid.UUID(int=6),),
    errors=(ErrorCode.NONE,),
    leaf=Leaf(9, "n"),
    leaves=(Leaf(10, "m"),),
    perhaps=None,
    records=b"rr",
)

FIXED = (
    b"\1\xfe\xff\xfd\xff\xfe\xff\xff\xff\xff\xff\xff\xff\xfc"
    b"\x3f\xe0\0\0\0\0\0\0\0\x29" + bytes(15) + b"\5"
)  # fmt: skip


def test_an_old_layout_has_fixed_lengths_and_no_tags() -> None:
    assert encode(EVERYTHING, 1) == (
        FIXED + b"\0\2\xc3\xa9\xff\xff\0\0\0\2\1\2"
        b"\0\0\0\2\0\0\0\1\xff\xff\xff\xff"
        b"\0\0\0\2\0\1a\0\0"
        b"\0\0\0\1" + bytes(15) + b"\6"
        b"\0\0\0\1\0\0"
        b"\0\0\0\x09\0\1n"
        b"\0\0\0\1\0\0\0\x0a\0\1m"
        b"\xff"
        b"\0\0\0\2rr"
        b"\x08"
        b"\0\0"
    )  # fmt: skip


def test_a_flexible_layout_has_varint_lengths_and_tags_after_every_struct() -> None:
    value = codec_replace(EVERYTHING, tagged=Leaf(1, "x"), first_tag=("y",), perhaps=Leaf(2, ""))
    assert encode(value, 2) == (
        FIXED + b"\3\xc3\xa9\0\3\1\2"
        b"\3\0\0\0\1\xff\xff\xff\xff"
        b"\3\2a\1"
        b"\2" + bytes(15) + b"\6"
        b"\2\0\0"
        b"\0\0\0\x09\2n\0"
        b"\2\0\0\0\x0a\2m\0"
        b"\1\0\0\0\2\1\0"
        b"\3rr"
        b"\x08"
        b"\1"
        b"\2\0\3\2\2y\3\7\0\0\0\1\2x\0"
    )  # fmt: skip
    assert decode(Everything, encode(value, 2), 2) == value


def codec_replace(value: Everything, **changes: object) -> Everything:
    named = {name: getattr(value, name) for name in Everything.__dataclass_fields__}
    return Everything(**(named | changes))


def test_what_a_version_lacks_is_left_out_and_read_as_its_default() -> None:
    value = decode(Everything, encode(codec_replace(EVERYTHING, old=1, new=2), 0), 0)
    assert (value.old, value.new, value.leaf.name) == (1, 8, "")
    value = decode(Everything, encode(codec_replace(EVERYTHING, old=1, new=2), 1), 1)
    assert (value.old, value.new, value.leaf.name) == (7, 2, "n")


def test_null_is_refused_where_the_version_knows_none() -> None:
    wire = encode(codec_replace(EVERYTHING, later_null=None), 1)
    assert decode(Everything, wire, 1).later_null is None
    with pytest.raises(WireError, match="Everything v0"):
        encode(codec_replace(EVERYTHING, later_null=None), 0)
    old = encode(EVERYTHING, 0)
    with pytest.raises(WireError, match=r"Everything.later_null is null"):
        decode(Everything, old[:-2] + b"\xff\xff", 0)


@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x80\0"])
def test_any_negative_length_is_null_or_refused(length: bytes) -> None:
    null = codec_replace(EVERYTHING, later_null=None)
    assert decode(Everything, encode(null, 1)[:-2] + length, 1).later_null is None
    with pytest.raises(WireError, match=r"Everything.later_null is null or has a negative length"):
        decode(Everything, encode(EVERYTHING, 0)[:-2] + length, 0)


def test_text_that_is_no_utf_8_is_read_as_well_as_can_be() -> None:
    wire = encode(HeartbeatRequest("g", 1, "m"), 3)
    assert decode(HeartbeatRequest, wire.replace(b"g", b"\xff"), 3).group_id == "\ufffd"
    long = encode(HeartbeatRequest("g" * 10_923, 1, "m"), 3)
    with pytest.raises(WireError, match="HeartbeatRequest v3: 10923 bytes of a string"):
        decode(HeartbeatRequest, long.replace(b"g", b"\xff", 1), 3)
    shorter = encode(HeartbeatRequest("g" * 10_922, 1, "m"), 3)
    read = decode(HeartbeatRequest, shorter.replace(b"g", b"\xff"), 3)
    assert decode(HeartbeatRequest, encode(read, 3), 3) == read


def test_a_string_is_no_longer_than_every_version_can_say() -> None:
    longest = HeartbeatRequest("g" * 32_767, 1, "m")
    wire = encode(longest, 4)
    assert decode(HeartbeatRequest, wire, 4) == longest
    with pytest.raises(WireError, match="HeartbeatRequest v4: a string of 32768 bytes"):
        encode(HeartbeatRequest("g" * 32_768, 1, "m"), 4)
    longer = wire.replace(b"\x80\x80\x02g", b"\x81\x80\x02gg")
    with pytest.raises(WireError, match="v4: HeartbeatRequest.group_id has 32768 bytes; 32767 are"):
        decode(HeartbeatRequest, longer, 4)


# --- tagged fields ----------------------------------------------------------------------------


@message(api_key=1_001, versions=(0, 0), flexible_since=0)
class Tagged:
    known: Annotated[Int32, Tag(1, since=0)] = 5


def test_a_tagged_field_is_written_only_if_it_differs_from_its_default() -> None:
    assert encode(Tagged(), 0) == b"\0"
    assert encode(Tagged(6), 0) == b"\1\1\4\0\0\0\6"


def test_unknown_tagged_fields_are_skipped() -> None:
    assert decode(Tagged, b"\3\0\2ab\1\4\0\0\0\6\x85\1\1z", 0) == Tagged(6)


@pytest.mark.parametrize("wire", [b"\1\1\3\0\0\0\6", b"\1\1\5\0\0\0\6\0"])
def test_a_tagged_field_fills_the_size_that_it_announced(wire: bytes) -> None:
    with pytest.raises(WireError, match=r"tagged field Tagged.known does not fill its"):
        decode(Tagged, wire, 0)


@pytest.mark.parametrize(
    "wire", [b"\1\1", b"\1\7\x7fab", b"\x7f", b"\1\7\xff\xff\xff\xff\x0f", b"\xff" * 9]
)
def test_tagged_fields_that_run_past_the_end_are_refused(wire: bytes) -> None:
    with pytest.raises(WireError):
        decode(Tagged, wire, 0)


# --- records ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class InFile:
    size_bytes: int


def response(*records: object, version: int = 12) -> FetchResponse:
    partitions = tuple(
        PartitionData(index, records=some)  # type: ignore[arg-type]
        for index, some in enumerate(records)
    )
    return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=partitions),))


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_records_in_a_file_stay_a_part_and_count_with_their_size(version: int) -> None:
    first, second = InFile(300), InFile(2)
    parts = encode_parts(response(first, b"in memory", second), version)
    assert [part for part in parts if not isinstance(part, bytes)] == [first, second]
    wire = b"".join(p if isinstance(p, bytes) else b"." * p.size_bytes for p in parts)
    assert wire == encode(response(b"." * 300, b"in memory", b".."), version)


def test_large_records_are_not_joined_and_nothing_shares_a_buffer_that_may_change() -> None:
    large = bytes(compiler.LARGE_RECORDS_BYTES)
    parts = encode_parts(response(large, b"small"), 12)
    assert any(part is large for part in parts)
    changing = bytearray(large)
    parts = encode_parts(response(memoryview(changing)), 12)
    changing[:] = b"!" * len(changing)
    assert parts[1] == large


def test_records_in_a_file_cannot_be_one_piece_of_bytes() -> None:
    with pytest.raises(TypeError):
        encode(response(InFile(1)), 12)


def test_records_are_views_into_what_was_received_and_can_be_patched_there() -> None:
    request = ProduceRequest(
        topic_data=(TopicProduceData("t", (PartitionProduceData(0, b"abc"),)),)
    )
    frame = bytearray(encode(request, 9))
    decoded = decode(ProduceRequest, memoryview(frame), 9)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0:1] = b"X"
    assert b"Xbc" in frame


# --- refusals ---------------------------------------------------------------------------------


def test_a_count_beyond_the_bytes_that_follow_is_refused_before_anything_is_allocated() -> None:
    tracemalloc.start()
    with pytest.raises(WireError, match="claims 2147483647 entries in 2 bytes"):
        decode(MetadataRequest, b"\x7f\xff\xff\xff\0\1", 1)
    with pytest.raises(WireError, match="claims 4294967294 entries in 0 bytes"):
        decode(MetadataRequest, b"\xff\xff\xff\xff\x0f", 9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_an_error_names_the_message_the_version_and_the_numbers() -> None:
    wire = encode(HeartbeatRequest("g", 1, "m"), 3)
    with pytest.raises(WireError, match="HeartbeatRequest v3 runs past its 11 bytes"):
        decode(HeartbeatRequest, wire[:11], 3)
    with pytest.raises(WireError, match="HeartbeatRequest has versions 0 to 4, not 5"):
        decode(HeartbeatRequest, wire, 5)
    with pytest.raises(WireError, match="HeartbeatRequest has versions 0 to 4, not -1"):
        encode(HeartbeatRequest("g", 1, "m"), -1)


@pytest.mark.parametrize(
    "value",
    [
        HeartbeatRequest("g", 1 << 31, "m"),
        HeartbeatRequest("g" * 32_768, 1, "m"),
        HeartbeatRequest("\ud800", 1, "m"),
        HeartbeatRequest(None, 1, "m"),  # type: ignore[arg-type]
        HeartbeatRequest("g", "1", "m"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: HeartbeatRequest) -> None:
    with pytest.raises(WireError, match="HeartbeatRequest v0"):
        encode(value, 0)


def test_only_messages_are_encoded() -> None:
    with pytest.raises(TypeError, match="Leaf is not a message"):
        encode(Leaf(), 0)
    with pytest.raises(TypeError, match="str is not a message"):
        decode(str, b"", 0)


def test_an_annotation_that_the_wire_does_not_know_is_a_programmers_error() -> None:
    @message(api_key=1_002, versions=(0, 0))
    class Strange:
        field: dict[str, int]

    with pytest.raises(TypeError, match=r"Strange.field: the wire knows no dict"):
        decode(Strange, b"", 0)


def test_an_error_code_that_we_do_not_know_is_a_server_error() -> None:
    wire = encode(CreateTopicsResponse(topics=(CreatableTopicResult("t"),)), 0)
    read = decode(CreateTopicsResponse, wire[:-2] + b"\x7f\xff", 0)
    assert read.topics[0].error_code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_messages_are_values() -> None:
    one, other = HeartbeatRequest("g", 1, "m"), HeartbeatRequest("g", 1, "m")
    assert one == other
    assert hash(one) == hash(other)
    assert not hasattr(one, "__dict__")


# --- varints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "wire"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16_384, "808001"),
     (0xFFFF_FFFF, "ffffffff0f")],
)  # fmt: skip
def test_varints_are_groups_of_seven_bits(number: int, wire: str) -> None:
    assert write_uvarint(number).hex() == wire
    assert read_uvarint(bytes.fromhex(wire), 0) == (number, len(wire) // 2)


@pytest.mark.parametrize("length", [0, 125, 126, 127, 128, 1_022, 1_023, 1_024, 16_383, 20_000])
def test_lengths_of_one_two_and_three_bytes(length: int) -> None:
    request = HeartbeatRequest("g" * length, 1, "m")
    wire = encode(request, 4)
    assert wire.startswith(write_uvarint(length + 1) + b"g" * length)
    assert decode(HeartbeatRequest, wire, 4) == request


def test_a_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(WireError, match="longer than 5 bytes"):
        read_uvarint(b"\x80\x80\x80\x80\x80\x01", 0)


# --- schemas with a version in front ----------------------------------------------------------


def test_records_of_consumer_offsets_are_kafkas() -> None:
    key = OffsetCommitKey("g", "t", 3)
    assert encode_with_version(key, 1) == b"\0\1\0\1g\0\1t\0\0\0\3"
    assert encode_with_version(GroupMetadataKey("g"), 2) == b"\0\2\0\1g"
    value = OffsetCommitValue(5, 6, "m", 7)
    eight = bytes(7)
    assert encode_with_version(value, 3) == (b"\0\3" + eight + b"\5\0\0\0\6\0\1m" + eight + b"\7")
    assert encode_with_version(OffsetCommitValue(5, metadata="m", commit_timestamp=7), 1) == (
        b"\0\1" + eight + b"\5\0\1m" + eight + b"\7" + b"\xff" * 8
    )
    assert encode_with_version(value, 4) == (b"\0\4" + eight + b"\5\0\0\0\6\2m" + eight + b"\7\0")
    member = MemberMetadata("m", None, "c", "/h", 1, 2, b"s", b"a")
    group = GroupMetadataValue("consumer", 4, "range", None, -1, (member,))
    assert encode_with_version(group, 3) == (
        b"\0\3\0\x08consumer\0\0\0\4\0\5range\xff\xff" + b"\xff" * 8 +
        b"\0\0\0\1\0\1m\xff\xff\0\1c\0\2/h\0\0\0\1\0\0\0\2"
        b"\0\0\0\1s\0\0\0\1a"
    )  # fmt: skip
    assert decode_with_version(GroupMetadataValue, encode_with_version(group, 3)) == group


def test_a_version_is_read_before_what_follows_it() -> None:
    assert read_version(b"\0\2...") == 2
    with pytest.raises(WireError, match="no version fits into 1 bytes"):
        read_version(b"\0")
    with pytest.raises(WireError, match="OffsetCommitKey has versions 0 to 1, not 2"):
        decode_with_version(OffsetCommitKey, b"\0\2\0\1g")


def test_a_newer_version_is_read_as_the_last_we_know_where_that_is_asked_for() -> None:
    subscription = ConsumerProtocolSubscription(("t",), b"u", rack_id="r")
    newer = b"\0\x09" + encode(subscription, 3) + b"what we do not know"
    read = decode_with_version(ConsumerProtocolSubscription, newer, accept_newer=True)
    assert read == subscription
    with pytest.raises(WireError, match="not 9"):
        decode_with_version(ConsumerProtocolSubscription, newer)
    with pytest.raises(WireError, match="runs past"):
        decode_with_version(ConsumerProtocolSubscription, b"\0\x09\0\0", accept_newer=True)
    with pytest.raises(WireError, match="not -1"):
        decode_with_version(ConsumerProtocolSubscription, b"\xff\xff\0\0", accept_newer=True)


@schema(versions=(0, 0))
class Empty:
    pass


def test_a_message_may_have_no_fields() -> None:
    assert encode(Empty(), 0) == b""
    assert decode(Empty, b"", 0) == Empty()


# --- versions that no other codec of today has ------------------------------------------------

TOPIC = CreatableTopic("t", 1, 2, (), (CreatableTopicConfig("k", "v"),))
TOPIC_BYTES = b"\0\0\0\1\0\1t\0\0\0\1\0\2\0\0\0\0\0\0\0\1\0\1k\0\1v"
BAD = ErrorCode.INVALID_TOPIC_EXCEPTION
SETTING = DescribeConfigsResourceResult("k", "v", True, True, is_sensitive=False)
PRODUCED = PartitionProduceResponse(1, BAD, 5, 6)
COMMIT = OffsetCommitRequestPartition(1, 2, commit_timestamp=3, committed_metadata=None)
PRODUCE_REQUEST = ProduceRequest(
    None, 1, 2, (TopicProduceData("t", (PartitionProduceData(3, b"r"),)),)
)


@pytest.mark.parametrize(
    ("value", "version", "wire"),
    [
        (CreateTopicsRequest((TOPIC,), 9), 0, TOPIC_BYTES + b"\0\0\0\x09"),
        (CreateTopicsRequest((TOPIC,), 9, True), 1, TOPIC_BYTES + b"\0\0\0\x09\1"),
        (
            CreateTopicsResponse(topics=(CreatableTopicResult("t", error_code=BAD),)),
            0,
            b"\0\0\0\1\0\1t\0\x11",
        ),
        (
            CreateTopicsResponse(
                topics=(CreatableTopicResult("t", error_code=BAD, error_message="m"),)
            ),
            1,
            b"\0\0\0\1\0\1t\0\x11\0\1m",
        ),
        (DeleteTopicsRequest(topic_names=("t",), timeout_ms=1), 0, b"\0\0\0\1\0\1t\0\0\0\1"),
        (
            DeleteTopicsResponse(responses=(DeletableTopicResult("t", error_code=BAD),)),
            0,
            b"\0\0\0\1\0\1t\0\x11",
        ),
        (
            DescribeConfigsResponse(
                0, (DescribeConfigsResult(ErrorCode.NONE, None, 2, "t", (SETTING,)),)
            ),
            0,
            b"\0\0\0\0\0\0\0\1\0\0\xff\xff\2\0\1t\0\0\0\1\0\1k\0\1v\1\1\0",
        ),
        (
            OffsetCommitRequest("g", 1, "m", topics=(OffsetCommitRequestTopic("t", (COMMIT,)),)),
            1,
            b"\0\1g\0\0\0\1\0\1m\0\0\0\1\0\1t\0\0\0\1\0\0\0\1"
            + struct.pack(">qqh", 2, 3, -1),
        ),
        (
            PRODUCE_REQUEST,
            0,
            b"\0\1\0\0\0\2\0\0\0\1\0\1t\0\0\0\1\0\0\0\3\0\0\0\1r",
        ),
        (
            ProduceResponse((TopicProduceResponse("t", (PRODUCED,)),)),
            0,
            b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\1\0\x11" + struct.pack(">q", 5),
        ),
        (
            ProduceResponse((TopicProduceResponse("t", (PRODUCED,)),), 7),
            2,
            b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\1\0\x11" + struct.pack(">qqi", 5, 6, 7),
        ),
        (MetadataRequest((MetadataRequestTopic(name="t"),)), 0, b"\0\0\0\1\0\1t"),
    ],
)  # fmt: skip
def test_old_versions_byte_by_byte(value: object, version: int, wire: bytes) -> None:
    assert encode(value, version) == wire
    assert encode(decode(type(value), wire, version), version) == wire


# --- the table of APIs ------------------------------------------------------------------------


def test_every_api_is_in_the_table_under_its_own_key() -> None:
    for key, api in API.items():
        assert key_of(object.__new__(api.request)) is key
        assert codec.definition(api.request).api_key == key
        assert codec.definition(api.response).is_response
    assert API[ApiKey.OFFSET_COMMIT].name == "OffsetCommit"


def test_headers_carry_tags_from_the_first_flexible_version_on() -> None:
    assert request_header_version(ApiKey.METADATA, 8) == 1
    assert request_header_version(ApiKey.METADATA, 9) == 2
    assert response_header_version(ApiKey.METADATA, 8) == 0
    assert response_header_version(ApiKey.METADATA, 9) == 1
    assert request_header_version(ApiKey.OFFSET_DELETE, 0) == 1


def test_the_response_to_api_versions_has_a_header_that_anyone_can_read() -> None:
    assert request_header_version(ApiKey.API_VERSIONS, 3) == 2
    assert response_header_version(ApiKey.API_VERSIONS, 4) == 0


def test_topic_ids_are_made_once() -> None:
    raw = uuid.uuid4().bytes
    assert primitives.to_uuid(raw) is primitives.to_uuid(bytes(bytearray(raw)))
