"""Packets: a batch of records as one value of Spark.                                        [P]

A row of Spark holds a packet, never a record, so the JVM, a shuffle and Arrow cost a packet's price
for thousands of records. A packet is a byte and the record batches that a log would hold:

    0   HAS_OFFSETS or NO_OFFSETS
    1   record batches, magic 2, without compression (core/protocol/records.py)

The log's own format was chosen by measurement (100,000 records of 100 bytes): 95 ns a record to
pack and 50 to unpack, against 160 and 5 for Arrow's IPC, and 122 and 10 for bare buffers. A packet
of one record has 183 bytes, Arrow's has 472. It also carries headers and a checksum.

Owns   nothing.
Fails  with CorruptBatchError for bytes that are no packet, with ValueError for offsets that do not
       rise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kafkalite.clients.producer.batching import chunks
from kafkalite.core.protocol import records
from kafkalite.core.protocol.records import Buffer
from kafkalite.core.types import EMPTY_COLUMNS, Columns, concat
from kafkalite.errors import CorruptBatchError

NO_OFFSETS: Final = b"\x00"
HAS_OFFSETS: Final = b"\x01"
BATCH_BYTES: Final = 16 << 20  # of one record batch; a batch has 2 GiB at most


def pack(columns: Columns) -> bytes:
    """The records as bytes. Keys and values are bytes or None."""
    head = NO_OFFSETS if columns.offsets is None else HAS_OFFSETS
    if not len(columns):
        return head
    return b"".join([head, *(records.encode(part) for part, _ in chunks(columns, BATCH_BYTES))])


def unpack(packet: Buffer) -> Columns:
    """The records of a packet. The columns of a large one are forms, which keep `packet` alive."""
    view = memoryview(packet)
    head = bytes(view[:1])
    if head not in (NO_OFFSETS, HAS_OFFSETS):
        raise CorruptBatchError(f"{len(view)} bytes that are no packet: they begin with {head!r}")
    body = view[1:]
    parts: list[Columns] = []
    end = 0
    for position, header in records.batches(body):
        parts.append(records.decode(body, position, header=header, as_forms=True))
        end = position + header.size_bytes
    if end != len(body):
        raise CorruptBatchError(f"packet: {len(body) - end} bytes behind its last record batch")
    if not parts:
        return EMPTY_COLUMNS if head == NO_OFFSETS else replace(EMPTY_COLUMNS, offsets=())
    columns = concat(parts)
    return replace(columns, offsets=None) if head == NO_OFFSETS else columns
