"""One batch in the cleaner: its keys go into the map, and it is rewritten without old records. [P]

The rewritten batch keeps its offsets, timestamps, producer, sequence, epoch and codec. The base
offset, the last offset delta and the base timestamp stay as well, so records are copied byte for
byte. The exception is the first write of the delete horizon: it replaces the base timestamp, and
the timestamp deltas of the records are computed anew.

Never  checks the CRC. The caller has checked it; recomputing it here would hide damage.
Fails  with CorruptBatchError, naming the batch's offset.
Source KIP-534; apache/kafka MemoryRecords.filterTo, DefaultRecordBatch.writeEmptyHeader.
"""

from __future__ import annotations

from typing import Final

from kafkalite.compaction.cleaning_pure import is_likely_time
from kafkalite.compaction.loops import OffsetMap, copy_records, judge_records, put_records
from kafkalite.compaction.retain import Cleaned, Stays, Verdict
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.compression import Compression, compress, decompress
from kafkalite.core.protocol.records import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    Buffer,
    EndTransactionMarker,
    TimestampType,
    decode,
    parse_end_transaction_marker,
)
from kafkalite.core.protocol.records_pure import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER,
    LENGTH_OVERHEAD,
)
from kafkalite.core.types import NO_TIMESTAMP
from kafkalite.errors import CorruptBatchError

DELETE_HORIZON: Final = 0x40
EMPTY_ATTRIBUTES: Final = 0x38  # an empty batch keeps timestamp type, transactional and control


def marker_in(batch: Buffer, header: BatchHeader) -> EndTransactionMarker | None:
    """A control batch's content; None for an emptied batch, or if it ends no transaction."""
    if not header.record_count:
        return None
    columns = decode(batch, check_crc=False)
    return parse_end_transaction_marker(columns.keys[0], columns.values[0])


def put_batch(
    batch: Buffer, header: BatchHeader, offsets: OffsetMap, first_offset: int, entries_max: int
) -> int | None:
    """Puts the batch's records from `first_offset` on into the map. The first offset left out, as
    the map has `entries_max` keys; None when all are in."""
    body = _body(batch, header)
    return put_records(
        offsets, body, header.record_count, header.base_offset, first_offset, entries_max
    )


def clean_batch(
    batch: Buffer,
    header: BatchHeader,
    verdict: Verdict,
    offsets: OffsetMap,
    cleaned: Cleaned,
) -> tuple[Buffer, BatchHeader] | None:
    """The batch without the removed records, and its header; None if the batch goes."""
    if verdict.stays is Stays.NONE:
        return _empty(header) if verdict.keep_empty else None
    body = _body(batch, header)
    if verdict.stays is Stays.ALL:
        mask, has_tombstones = bytes([1]) * header.record_count, False
    else:
        mask, has_tombstones = judge_records(
            offsets, body, header.record_count, header.base_offset, cleaned.mapped_until,
            verdict.tombstones_go,
        )  # fmt: skip
    kept = mask.count(1)
    if not kept:
        return _empty(header) if verdict.keep_empty else None
    begins = header.delete_horizon_ms is None and (has_tombstones or verdict.begins_to_go)
    begins = begins and is_likely_time(header.base_timestamp)
    if kept == header.record_count and not begins:
        return batch, header
    base_timestamp = cleaned.delete_horizon_ms if begins else header.base_timestamp
    body, least, largest = copy_records(body, mask, header.base_timestamp - base_timestamp)
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME and all(
        map(is_likely_time, (header.base_timestamp, least, largest))
    ):
        max_timestamp = header.base_timestamp + largest
    return _packed(
        header._replace(
            attributes=header.attributes | (DELETE_HORIZON if begins else 0),
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=kept,
        ),
        compress(body, header.compression),
    )


def _body(batch: Buffer, header: BatchHeader) -> Buffer:
    """The records, decompressed."""
    body = memoryview(batch)[BATCH_HEADER_BYTES:]
    try:
        if header.compression is Compression.NONE or not header.record_count:
            return body
        return decompress(body, header.compression)
    except CorruptBatchError as error:
        raise CorruptBatchError(f"batch at offset {header.base_offset}: {error}") from error


def _empty(header: BatchHeader) -> tuple[Buffer, BatchHeader]:
    """The header alone, with offsets, producer and sequence."""
    empty = header._replace(
        attributes=header.attributes & EMPTY_ATTRIBUTES,
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return _packed(empty, b"")


def _packed(header: BatchHeader, body: Buffer) -> tuple[Buffer, BatchHeader]:
    """The batch with that header, its length and CRC made right."""
    length = BATCH_HEADER_BYTES - LENGTH_OVERHEAD + len(body)
    batch = bytearray(HEADER.pack(*header._replace(batch_length=length, crc=0)))
    batch += body
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return batch, header._replace(batch_length=length, crc=crc)
