"""A follower's fetch and its news, written and read without messages: as the codec does."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.protocol.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from kafkalite.core.protocol.usual_fetch import FETCH_V, News, read_news, write_fetch
from kafkalite.errors import ErrorCode, WireError

NEWS_TAGS = b"\0\0\0"  # of the partition, the topic and the answer
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ID = UUID(int=0x0102030405060708090A0B0C0D0E0F10)


def encoded(message: FetchRequest | FetchResponse) -> bytes:
    return b"".join(map(bytes, codec.encode_parts(message, FETCH_V)))  # type: ignore[arg-type]


def test_the_version_is_the_newest_that_brokers_speak() -> None:
    assert API[ApiKey.FETCH].versions[1] == FETCH_V


@given(
    st.tuples(st.uuids(), INT32),
    st.tuples(INT32, INT64, INT32, INT64),
    st.tuples(INT32, INT32),
    st.tuples(INT32, INT32, INT32, INT32),
    st.tuples(st.integers(0, (1 << 31) - 1), INT64),
)
def test_a_request_is_as_the_codec_writes_it(
    place: tuple[UUID, int],
    position: tuple[int, int, int, int],
    session: tuple[int, int],
    limits: tuple[int, int, int, int],
    replica: tuple[int, int],
) -> None:
    partition = FetchPartition(place[1], *position, limits[3])
    request = FetchRequest(
        replica_state=ReplicaState(*replica),
        max_wait_ms=limits[0],
        min_bytes=limits[1],
        max_bytes=limits[2],
        session_id=session[0],
        session_epoch=session[1],
        topics=(FetchTopic("", place[0], (partition,)),),
    )
    written = write_fetch((place[0].bytes, place[1]), position, session, limits, replica)
    assert written == encoded(request)


def response(**changes: object) -> FetchResponse:
    fields: dict[str, object] = {
        "high_watermark": 7, "last_stable_offset": 6, "log_start_offset": 5,
        "aborted_transactions": None, "records": b"r" * 300,
    }  # fmt: skip
    data = PartitionData(3, **(fields | changes))  # type: ignore[arg-type]
    return FetchResponse(session_id=9, responses=(FetchableTopicResponse("", ID, (data,)),))


@given(st.sampled_from([0, 1, 126, 127, 128, 16_382, 16_383, 100_000]), st.booleans(), INT64, INT64)
def test_news_are_as_the_codec_reads_them(
    size: int, is_null: bool, high_watermark: int, start: int
) -> None:
    records = None if is_null and not size else b"r" * size
    told = response(
        high_watermark=high_watermark, log_start_offset=start, records=records,
        aborted_transactions=None if is_null else (),
    )  # fmt: skip
    news = read_news(memoryview(encoded(told)))
    assert news == News(9, ID.bytes, 3, high_watermark, start, memoryview(b"r" * size))


def test_whatever_else_is_answered_is_no_news() -> None:
    (topic,) = response().responses
    (data,) = topic.partitions
    for other in (
        FetchResponse(session_id=9),
        FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        FetchResponse(session_id=9, responses=(topic, topic)),
        FetchResponse(session_id=9, responses=(FetchableTopicResponse("", ID, (data, data)),)),
        response(error_code=ErrorCode.FENCED_LEADER_EPOCH),
        response(diverging_epoch=EpochEndOffset(2, 3)),
        response(aborted_transactions=(AbortedTransaction(1, 2),)),
    ):
        assert read_news(memoryview(encoded(other))) is None, other


def test_a_length_that_does_not_end_is_no_news() -> None:
    whole = encoded(response(records=b""))
    place = len(whole) - len(NEWS_TAGS) - 1
    assert whole[place:] == b"\1" + NEWS_TAGS
    for length, is_read in ((b"\x81\x80\x80\x80\0", True), (b"\x81\x80\x80\x80\x80", False)):
        news = read_news(memoryview(whole[:place] + length + NEWS_TAGS))
        assert (news is not None) == is_read, length


@given(st.data())
def test_damaged_news_are_left_to_the_codec(data: st.DataObject) -> None:
    """They are read as the codec reads them, or not at all."""
    whole = encoded(response(records=b"r" * 20))
    cut = data.draw(st.integers(0, len(whole)))
    assert read_news(memoryview(whole[:cut])) is None or cut == len(whole)
    assert read_news(memoryview(whole + b"\0")) is None
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    news = read_news(memoryview(changed))
    if news is not None:
        try:
            (topic,) = codec.decode(FetchResponse, memoryview(changed), FETCH_V).responses
        except WireError:
            raise AssertionError(news) from None
        (read,) = topic.partitions
        assert (topic.topic_id.bytes, read.partition_index) == news[1:3]
        assert (read.high_watermark, read.log_start_offset) == news[3:5]
        assert bytes(read.records or b"") == news.records  # type: ignore[arg-type]
