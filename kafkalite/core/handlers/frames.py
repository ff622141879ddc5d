"""The answer to a poll about one partition, as bytes.                                       [D]

    head (native) | records, in memory or in their file | tagged fields of flexible versions

Owns   nothing.
Never  has an error or aborted transactions: such an answer is a message, and encoded.
"""

from __future__ import annotations

from kafkalite.core.log.segment import FileRecords
from kafkalite.core.pending import Framed
from kafkalite.core.protocol.compiler import LARGE_RECORDS_BYTES
from kafkalite.core.protocol.connection import RequestHeader
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.usual_requests import FETCH_FLEXIBLE_SINCE_V, NO_TAGS, write_poll

Offsets = tuple[int, int, int]  # high watermark, last stable offset, log start offset


def framed_poll(
    header: RequestHeader,
    session_id: int,
    topic: str | bytes,
    partition: int,
    offsets: Offsets,
    is_committed: bool,
    records: Buffer | FileRecords,
    size: int,
) -> Framed:
    """`topic` is a name, from v13 on the bytes of an id; `size` is that of the records."""
    version = header.api_version
    head = write_poll(
        version, header.correlation_id, session_id, topic, partition, *offsets, is_committed, size
    )
    tail = NO_TAGS if version >= FETCH_FLEXIBLE_SINCE_V else b""
    total = len(head) + size + len(tail)
    if not size:
        return Framed([head + tail], total)
    if size < LARGE_RECORDS_BYTES and not isinstance(records, FileRecords):
        return Framed([b"".join((head, records, tail))], total)
    return Framed([head, records, tail] if tail else [head, records], total)
