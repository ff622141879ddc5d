"""A segment's log read from end to end after a crash: which of its batches are whole.         [D]

Owns   nothing: it goes through a file and leaves it as it is.
Fails  with StorageError where a message of magic 0 or 1 is: it is whole, and not ours to cut.
Source apache/kafka LogSegment.recover.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final
from zlib import crc32

from kafkalite.core.log.index import RELATIVE_OFFSET_MAX
from kafkalite.core.log.port import File
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.records import BATCH_HEADER_BYTES, MAGIC_POSITION, BatchHeader
from kafkalite.core.protocol.records_pure import (
    ATTRIBUTES_POSITION,
    HEADER,
    LENGTH_OVERHEAD,
    MAGIC,
)
from kafkalite.errors import StorageError

_RUN_BYTES: Final = 1 << 20  # read at once
_COPIED_BYTES_MAX: Final = 4096  # a batch below it is copied for its CRC
_OLD_MESSAGE: Final = Struct(">8xiIb")  # of magic 0 and 1: length, CRC-32 of what follows, magic


def verified(log: File, base_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of the batches, up to the first that is torn or corrupt.

    Every CRC is computed, and offsets ascend. StorageError where a message of magic 0 or 1 is:
    it is whole, and not ours to cut. A log may be of many small batches, so this loop does
    nothing twice, and copies what costs less to copy than to lend.
    """
    size, position, next_offset = log.size_bytes, 0, base_offset
    offset_max = next_offset + RELATIVE_OFFSET_MAX  # no index can hold a larger one
    run, at = b"", 0  # what was read from the file; where in it the batch begins
    while size - position >= BATCH_HEADER_BYTES:
        if at + BATCH_HEADER_BYTES > len(run):
            run, at = log.read(position, _RUN_BYTES), 0
        header = BatchHeader._make(HEADER.unpack_from(run, at))
        batch_bytes = header.batch_length + LENGTH_OVERHEAD
        last_offset = header.base_offset + header.last_offset_delta
        if (
            header.magic != MAGIC
            or not BATCH_HEADER_BYTES <= batch_bytes <= size - position
            or not next_offset <= header.base_offset <= last_offset <= offset_max
        ):
            break
        if at + batch_bytes > len(run):
            run, at = log.read(position, max(_RUN_BYTES, batch_bytes)), 0
        start, end = at + ATTRIBUTES_POSITION, at + batch_bytes
        small = batch_bytes < _COPIED_BYTES_MAX
        if crc32c(run[start:end] if small else memoryview(run)[start:end]) != header.crc:
            break
        yield position, header
        position += batch_bytes
        at, next_offset = end, last_offset + 1
    _refuse_old_format(log, position)


def _refuse_old_format(log: File, position: int) -> None:
    head = log.read(position, _OLD_MESSAGE.size)
    if len(head) < _OLD_MESSAGE.size:
        return
    length, crc, magic = _OLD_MESSAGE.unpack(head)
    if magic not in (0, 1) or not 0 < length <= log.size_bytes - position - LENGTH_OVERHEAD:
        return
    covered = log.read(position + MAGIC_POSITION, length + LENGTH_OVERHEAD - MAGIC_POSITION)
    if crc32(covered) == crc:
        raise StorageError(
            f"{log.path}: byte {position}: a message of magic {magic}, as Kafka wrote "
            f"before 0.11; only magic {MAGIC} is read"
        )
