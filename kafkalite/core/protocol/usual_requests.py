"""Produce and Fetch of one partition: read and answered in one native call each.             [P]

    body ──read──> fields | None: not the usual request, or no native module: the codecs read it
    fields ──write──> the frame of the answer, without a message in between

Nearly all requests of busy clients are of this form: one topic with one partition, no transactional
id, no tagged fields. A poll in a fetch session may also name no partition. A reader that returns
None has done nothing, so whatever is odd or damaged goes the general way and is answered there. A
pure Python twin is not needed: the general way is it, and the tests hold both to the same answers.

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


FETCH_FLEXIBLE_SINCE_V: Final = 12
# What follows the records in an answer that `write_poll` began, from FETCH_FLEXIBLE_SINCE_V on:
NO_TAGS: Final = b"\0\0\0"  # of the partition, the topic and the answer


__all__ = [
    "FETCH_FLEXIBLE_SINCE_V",
    "NATIVE",
    "NO_TAGS",
    "read_poll",
    "read_produce",
    "write_poll",
    "write_produce",
]
