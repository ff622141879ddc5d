"""A follower's fetch of one partition in a session, and its answer: bytes without a message.  [P]

    fields ──write_fetch──> the body of a request
    the body of an answer ──read_news──> its one partition | None: the codec reads it

While a producer waits for replicas, this is what passes between leader and follower: one partition
has news, and the next fetch has its next position. All fields but the records have fixed sizes.
`read_news` returns None for any other answer, be it odd or damaged, and for every error.

Owns   the layout of version FETCH_V, which tests compare with the codec's.
Source FetchRequest.json, FetchResponse.json, KIP-903.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

FETCH_V: Final = 17
_ONE: Final = 2  # the length of an array of one element, plus one
# Wait, least and most bytes, isolation, session and its epoch; one topic by its id; of that one
# partition: number, leader epoch, offset, last epoch, log start, most bytes; an end, as below; the
# broker and its epoch.
_REQUEST: Final = Struct(">iiibiiB16sBiiqiqi7siqB")
# No tags of the partition and of the topic, nothing forgotten, no rack. Then there is one tagged
# field, number 1, of 13 bytes: the broker, its epoch and no tags of them.
_END: Final = bytes((0, 0, 1, 1, 1, 1, 13))
# Throttle, error, session; one topic by its id; of that one partition: number, error, high
# watermark, last stable offset, log start, aborted transactions, replica to read from.
_NEWS: Final = Struct(">ihiB16sBihqqqBi")
_NEWS_TAGS: Final = b"\0\0\0"  # of the partition, the topic and the answer
_LENGTH_BYTES_MAX: Final = 5


class News(NamedTuple):
    """An answer about one partition, without an error."""

    session_id: int
    topic_id: bytes
    partition: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


def write_fetch(
    place: tuple[bytes, int],
    position: tuple[int, int, int, int],
    session: tuple[int, int],
    limits: tuple[int, int, int, int],
    replica: tuple[int, int],
) -> bytes:
    """A follower's request for one partition.

    `place` is topic id and number; `position` leader epoch, offset, last epoch and log start;
    `session` its id and epoch; `limits` the wait in ms, least and most bytes, and most bytes of the
    partition; `replica` the broker and its epoch.
    """
    return _REQUEST.pack(
        *limits[:3], 0, *session, _ONE, place[0], _ONE, place[1], *position, limits[3], _END,
        *replica, 0,
    )  # fmt: skip


def read_news(body: memoryview) -> News | None:
    """The answer to a follower, if it has news of one partition and no error."""
    start = _NEWS.size
    if len(body) <= start + len(_NEWS_TAGS):
        return None
    (
        _, error, session_id, topics, topic_id, partitions, partition, partition_error,
        high_watermark, _, log_start_offset, aborted, _,
    ) = _NEWS.unpack_from(body)  # fmt: skip
    if error or partition_error or topics != _ONE or partitions != _ONE or aborted > 1:
        return None
    length = shift = 0
    for byte in body[start : start + _LENGTH_BYTES_MAX]:
        length |= (byte & 0x7F) << shift
        shift += 7
        start += 1
        if byte < 0x80:
            break
    else:
        return None
    end = start + max(0, length - 1)
    if bytes(body[end:]) != _NEWS_TAGS:
        return None
    return News(session_id, topic_id, partition, high_watermark, log_start_offset, body[start:end])
