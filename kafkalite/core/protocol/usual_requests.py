"""Produce and Fetch of one partition: read and answered in one native call each.             [P]

    body ──read──> fields | None: not the usual request, or no native module: the codecs read it
    fields ──write──> the frame of the answer, without a message in between

Nearly all requests of busy clients are of this form: one topic with one partition, no tagged
fields. A transactional id is read in Python, and so is the tagged field in which a follower says
who it is. A poll in a fetch session may also name no partition.
A reader that returns None has done nothing, so whatever is odd or damaged goes the general way and
is answered there. A pure Python twin is not needed: the general way is it, and the tests hold both
to the same answers.

Owns   the choice between native and none, made once at import.
Source ProduceRequest.json, FetchRequest.json and their responses.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalite.core.protocol.primitives import Buffer

try:
    from kafkalite.core.protocol._requests import (
        read_poll,
        read_produce,
        write_poll,
        write_produce,
    )

    NATIVE = True
except ImportError:
    NATIVE = False
    if not TYPE_CHECKING:

        def read_produce(body: Buffer, version: int) -> None:
            """No request is the usual one."""

        def read_poll(body: Buffer, version: int) -> None:
            """No request is the usual one."""

        write_produce = write_poll = None  # nobody asks for them


PRODUCE_FLEXIBLE_SINCE_V: Final = 9
FETCH_FLEXIBLE_SINCE_V: Final = 12
ID_BYTES_MAX: Final = 126  # of a transactional id, which has one byte of length then
# What follows the records in an answer that `write_poll` began, from FETCH_FLEXIBLE_SINCE_V on:
NO_TAGS: Final = b"\0\0\0"  # of the partition, the topic and the answer
FOLLOWERS_TAGGED_SINCE_V: Final = 15
_ACKS_AND_TIMEOUT: Final = Struct(">hi")
# The end of a follower's request: its partition, no tags of it and of its topic, nothing forgotten,
# no rack; then one tagged field, its number and size, the broker and its epoch, and no tags in it.
_PARTITION: Final = Struct(">iiqiqi4s")
_PARTITION_END: Final = b"\0\0\1\1"
_REPLICA_STATE: Final = Struct(">BBBiqB")
_REPLICA_SHAPE: Final = (1, 1, 13, 0)


def read_transactional(
    body: Buffer, version: int
) -> tuple[str, tuple[int, str, int, int, int]] | None:
    """The transactional id of a request that is usual but for having one, and what `read_produce`
    tells of it. The native reader is given the request without its id: to copy one batch costs less
    than the objects of a message."""
    is_flexible = version >= PRODUCE_FLEXIBLE_SINCE_V
    start = 1 if is_flexible else 2
    if len(body) < start:
        return None
    size = body[0] - 1 if is_flexible else body[0] << 8 | body[1]
    if not 0 < size <= ID_BYTES_MAX or len(body) < start + size:
        return None
    null = b"\0" if is_flexible else b"\xff\xff"
    fields = read_produce(b"".join((null, body[start + size :])), version)
    if fields is None:
        return None
    try:
        transactional_id = str(body[start : start + size], "utf-8")
    except UnicodeDecodeError:
        return None
    acks, topic, partition, first, end = fields
    return transactional_id, (acks, topic, partition, first + size, end + size)


def timeout_of(body: Buffer, version: int) -> int:
    """The timeout of a usual request to produce, in ms."""
    is_flexible = version >= PRODUCE_FLEXIBLE_SINCE_V
    start = 1 if is_flexible else 2
    size = body[0] - 1 if is_flexible else int.from_bytes(body[:2], signed=True)
    return int(_ACKS_AND_TIMEOUT.unpack_from(body, start + max(0, size))[1])


class FollowerPoll(NamedTuple):
    """A follower's request: what `read_poll` tells of one, and what followers alone say."""

    fields: tuple[Any, ...]
    last_fetched_epoch: int
    log_start_offset: int
    replica_id: int
    replica_epoch: int


NO_FOLLOWER: Final = FollowerPoll((), -1, -1, -1, -1)


def read_follower(body: Buffer, version: int) -> FollowerPoll | None:
    """A follower's request about one partition, or none, which `read_poll` does not take. The
    native reader is given it without the last tagged field, and what it skips stands before that at
    a fixed distance: in requests of brokers, which name no rack."""
    tags = len(body) - _REPLICA_STATE.size
    if version < FOLLOWERS_TAGGED_SINCE_V or tags < 0:
        return None
    *shape, replica_id, replica_epoch, more = _REPLICA_STATE.unpack_from(body, tags)
    if (*shape, more) != _REPLICA_SHAPE or replica_id < 0:
        return None
    fields = read_poll(b"".join((body[:tags], b"\0")), version)
    if fields is None:
        return None
    if fields[6] is None:
        return FollowerPoll(fields, -1, -1, replica_id, replica_epoch)
    position = tags - _PARTITION.size
    *place, last_epoch, start, bytes_max, end = _PARTITION.unpack_from(body, position)
    if (*place, bytes_max) != fields[7:] or end != _PARTITION_END:
        return None
    return FollowerPoll(fields, last_epoch, start, replica_id, replica_epoch)


__all__ = [
    "FETCH_FLEXIBLE_SINCE_V",
    "NATIVE",
    "NO_FOLLOWER",
    "NO_TAGS",
    "FollowerPoll",
    "read_follower",
    "read_poll",
    "read_produce",
    "read_transactional",
    "timeout_of",
    "write_poll",
    "write_produce",
]
