"""Produce and Fetch of one partition: read and answered in one native call each.             [P]

    body ──read──> fields | None: not the usual request, or no native module: the codecs read it
    fields ──write──> the frame of the answer, without a message in between

Nearly all requests of busy clients are of this form: one topic with one partition, no tagged
fields. A transactional id is read in Python. A poll in a fetch session may also name no partition.
A reader that returns None has done nothing, so whatever is odd or damaged goes the general way and
is answered there. A pure Python twin is not needed: the general way is it, and the tests hold both
to the same answers.

Owns   the choice between native and none, made once at import.
Source ProduceRequest.json, FetchRequest.json and their responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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


__all__ = [
    "FETCH_FLEXIBLE_SINCE_V",
    "NATIVE",
    "NO_TAGS",
    "read_poll",
    "read_produce",
    "read_transactional",
    "write_poll",
    "write_produce",
]
