"""A run of batches as a leader sent them: what a follower checks before it stores them.        [P]

    [ batch 40..44, epoch 3 ][ batch 47..47, epoch 3 ][ batch 48..60, epoch 5 ][ cut off ..

A batch's CRC covers neither its offset nor its epoch, which leaders set; so these must ascend. The
leader has looked at the records already, and the CRC says that they are still the same.

Never  changes a byte: a follower's log is its leader's.
Fails  with CorruptBatchError, naming the partition and the numbers, before anything is stored.
Source apache/kafka `UnifiedLog.appendAsFollower`, `analyzeAndValidateRecords`.
"""

from __future__ import annotations

from typing import TypeAlias

from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.records import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    Buffer,
    batches,
    verify_crc,
)
from kafkalite.core.protocol.records_pure import (
    ATTRIBUTES_POSITION,
    HEADER,
    LENGTH_OVERHEAD,
    MAGIC,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import CorruptBatchError

Run: TypeAlias = list[tuple[int, BatchHeader]]  # each batch's position in the bytes


def checked_run(
    records: Buffer, partition: TopicPartition, latest_epoch: int, leader_epoch: int
) -> Run:
    """The whole batches of `records`, for a log whose last one is of `latest_epoch`, from the
    leader of `leader_epoch`. An incomplete batch at the end is left out. CorruptBatchError."""
    run: Run = []
    next_offset = 0
    for position, header in batches(records):
        verify_crc(records, position, header)
        offset, epoch = header.base_offset, header.partition_leader_epoch
        if offset < next_offset or header.last_offset_delta < 0:
            raise CorruptBatchError(
                f"{partition}: batch with offsets [{offset}, {header.next_offset}) where "
                f"{next_offset} or more is expected"
            )
        if not latest_epoch <= epoch <= leader_epoch:
            raise CorruptBatchError(
                f"{partition}: batch at offset {offset} of leader epoch {epoch} where those in "
                f"[{latest_epoch}, {leader_epoch}] are expected"
            )
        next_offset, latest_epoch = header.next_offset, epoch
        run.append((position, header))
    return run


def next_batch(records: memoryview, offset: int, epoch: int) -> BatchHeader | None:
    """The header of `records` if they are one whole batch of that leader epoch, at that offset, as
    nearly always. None for anything else, which `checked_run` looks at."""
    if len(records) < BATCH_HEADER_BYTES:
        return None
    header = BatchHeader(*HEADER.unpack_from(records))
    is_next = header[0] == offset and header[2] == epoch and header[3] == MAGIC
    if not is_next or header[1] != len(records) - LENGTH_OVERHEAD or header[6] < 0:
        return None
    return header if crc32c(records[ATTRIBUTES_POSITION:]) == header[4] else None
