"""Record batches: the unit that is produced, stored, replicated and fetched.              [P]

A batch, magic 2, all numbers big endian. What lies above the line is outside the CRC, so that a
broker sets offset and epoch without reading the records:

     0  base_offset             int64   offset of the first record (before compaction)
     8  batch_length            int32   bytes after this field: size - 12
    12  partition_leader_epoch  int32   set by the leader that appended it
    16  magic                   int8    2
    17  crc                     uint32  CRC-32C of all that follows
    ------------------------------------------------------------------------------------------
    21  attributes              int16   bits 0-2 codec, 3 log append time, 4 transactional,
                                        5 control, 6 base_timestamp is the delete horizon
    23  last_offset_delta       int32   last offset - base_offset; survives compaction
    27  base_timestamp          int64   of the first record, ms
    35  max_timestamp           int64   of all records; with bit 3 the time of the append
    43  producer_id             int64   -1: not idempotent
    51  producer_epoch          int16
    53  base_sequence           int32   of the first record
    57  record_count            int32
    61  records                         in the codec's framing; drawn in records_pure.py

A broker reads headers, checks (`check_produced`), patches and keeps the bytes; a client encodes
and decodes whole batches from and to columns.

Owns   the header. The records are the work of `record_codec`.
Never  builds a record in the broker: `skim` looks at each without making an object.
Fails  with CorruptBatchError, naming the batch's byte position and the numbers; where a producer
       is refused, with ApiError and the code that Apache Kafka answers.
Source KIP-98, KIP-101, KIP-534 (delete horizon); apache/kafka DefaultRecordBatch, LogValidator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.compression import (
    DECOMPRESSED_BYTES_MAX,
    Compression,
    compress,
    decompress,
)
from kafkalite.core.protocol.record_codec import (
    check_batch,
    decode_forms,
    decode_records,
    encode_batch,
    skim_records,
    unfit_records,
)
from kafkalite.core.protocol.records_pure import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER,
    INT64_MAX,
    INT64_MIN,
    LENGTH_OVERHEAD,
    MAGIC,
)
from kafkalite.core.types import Columns, concat
from kafkalite.errors import (
    ApiError,
    CorruptBatchError,
    DecompressedTooLarge,
    ErrorCode,
    RecordsTooLarge,
)

Buffer: TypeAlias = bytes | bytearray | memoryview

BATCH_HEADER_BYTES: Final = HEADER.size
MAGIC_POSITION: Final = 16
BATCH_LENGTH_MIN: Final = BATCH_HEADER_BYTES - LENGTH_OVERHEAD

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40

_BATCH_LENGTH: Final = Struct(">8xi")
_CRC: Final = Struct(">I")
_EPOCH: Final = Struct(">i")
_OFFSET: Final = Struct(">q")
_ATTRIBUTES: Final = Struct(">h")
_LEADER_EPOCH_POSITION: Final = 12
_MAX_TIMESTAMP_POSITION: Final = 35

_MARKER_KEY: Final = Struct(">hh")  # version, type
_MARKER_VALUE: Final = Struct(">hi")  # version, coordinator epoch


class TimestampType(IntEnum):
    """The meaning of a batch's timestamps: bit 3 of its attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The type of a control record; clients skip types that they do not know."""

    ABORT = 0
    COMMIT = 1


@dataclass(slots=True)
class Allowance:
    """How many bytes the batches that are checked with it may still decompress to."""

    bytes_left: int


class EndTransactionMarker(NamedTuple):
    """The control record that ends a producer's transaction in a partition."""

    control_type: ControlType
    coordinator_epoch: int


class BatchHeader(NamedTuple):
    """The 61 bytes that open a batch, in their order on the wire."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch was written with."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The base offset of the next batch, at which a reader continues."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 without one; sequences wrap after 2**31 - 1."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> Compression:
        """The codec; CorruptBatchError for an unknown one."""
        codec = self.attributes & _CODEC_MASK
        if codec > Compression.ZSTD:
            raise CorruptBatchError(f"unknown codec {codec} in attributes {self.attributes:#06x}")
        return Compression(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker's append set the timestamps."""
        return TimestampType(bool(self.attributes & _LOG_APPEND_TIME))

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker for clients instead of users' records."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent producer wrote the batch."""
        return self.producer_id >= 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the batch's tombstones and markers; None before it decided."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`; CorruptBatchError, which names an old magic.

    Only the header needs to be there; the CRC is not looked at.
    """
    assert position >= 0, position
    left = len(buffer) - position
    if left >= BATCH_HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
        if header.magic == MAGIC and header.batch_length >= BATCH_LENGTH_MIN:
            return header
    if left > MAGIC_POSITION:
        magic = buffer[position + MAGIC_POSITION]
        (batch_length,) = _BATCH_LENGTH.unpack_from(buffer, position)
        if magic in (0, 1):
            raise CorruptBatchError(
                f"byte {position}: message set of magic {magic}; only magic {MAGIC} is read"
            )
        if magic != MAGIC:
            raise CorruptBatchError(f"byte {position}: magic {magic}, expected {MAGIC}")
        if batch_length < BATCH_LENGTH_MIN:
            raise CorruptBatchError(
                f"byte {position}: batch length {batch_length}, expected {BATCH_LENGTH_MIN} or more"
            )
    words = f"byte {position}: {left} bytes, a batch header needs {BATCH_HEADER_BYTES}"
    raise CorruptBatchError(words)


def batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every whole batch; stops at an incomplete tail, as fetches have one.

    CorruptBatchError when what follows is no batch.
    """
    position = 0
    while len(buffer) - position > MAGIC_POSITION:
        if len(buffer) - position < BATCH_HEADER_BYTES:
            _refuse_foreign_magic(buffer, position)
            return
        header = read_header(buffer, position)
        end = position + header.size_bytes
        if end > len(buffer):
            return
        yield position, header
        position = end


def _refuse_foreign_magic(buffer: Buffer, position: int) -> None:
    """A tail too short for a header may still be an old message, which can be that short."""
    if buffer[position + MAGIC_POSITION] != MAGIC:
        read_header(buffer, position)


def _records_of(buffer: Buffer, position: int, header: BatchHeader) -> memoryview:
    """The records' bytes as they are stored."""
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptBatchError(
            f"byte {position}: batch of {header.size_bytes} bytes, {len(buffer) - position} left"
        )
    return memoryview(buffer)[position + BATCH_HEADER_BYTES : end]


def verify_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Checks the CRC over attributes and records; CorruptBatchError."""
    end = position + header.size_bytes
    if end > len(buffer):
        _records_of(buffer, position, header)  # which says so
    computed = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    if computed != header.crc:
        raise CorruptBatchError(
            f"byte {position}: batch of {header.size_bytes} bytes has CRC {computed:#010x}, "
            f"its header says {header.crc:#010x}"
        )


def skim(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    keys_required: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    allowance: Allowance | None = None,
    scratch: bytearray | None = None,
) -> tuple[int, int]:
    """Checks a batch's header against its records, without building records.

    Returns the least and the greatest timestamp delta. Compressed records are decompressed, to
    `decompressed_bytes_max` bytes at most, and taken from the `allowance`. ApiError: INVALID_RECORD
    when framing, offset deltas, counts or keys are not as they should be, RecordsTooLarge by that
    code, too, UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    if allowance is not None:
        decompressed_bytes_max = min(decompressed_bytes_max, allowance.bytes_left)
    try:
        compression = header.compression
    except CorruptBatchError as error:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"byte {position}: {error}"
        ) from None
    try:
        data: Buffer = _records_of(buffer, position, header)
        if compression is not Compression.NONE:
            data = decompress(
                data,
                compression,
                decompressed_bytes_max=decompressed_bytes_max,
                scratch=scratch,
            )
            if allowance is not None:
                allowance.bytes_left -= len(data)
        deltas = skim_records(data, header.record_count, header.last_offset_delta, keys_required)
        if header.record_count == 0:
            raise CorruptBatchError("no records")
        return deltas
    except DecompressedTooLarge as error:
        if allowance is not None:
            allowance.bytes_left -= decompressed_bytes_max
        what = f"batch at byte {position}: {error}"
        raise RecordsTooLarge(ErrorCode.INVALID_RECORD, what) from error
    except CorruptBatchError as error:
        raise ApiError(ErrorCode.INVALID_RECORD, f"batch at byte {position}: {error}") from error


def unfit(
    buffer: Buffer, *, times: tuple[int, int] | None = None, most: int
) -> list[tuple[int, int]]:
    """The first `most` records of a refused batch whose timestamp is not within `times`, or,
    without `times`, that have no key: index and timestamp of each; CorruptBatchError.
    """
    header = read_header(buffer)
    data: Buffer = _records_of(buffer, 0, header)
    if header.compression is not Compression.NONE:
        data = decompress(data, header.compression)
    if times is not None:
        times = max(times[0], INT64_MIN), min(times[1], INT64_MAX)
    return unfit_records(data, header.record_count, header.base_timestamp, times, most)


class Produced(NamedTuple):
    """A batch that passed all checks."""

    header: BatchHeader
    oldest: int  # least and greatest timestamp of its records, ms
    newest: int


def check_produced(
    buffer: Buffer,
    *,
    keys_required: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    allowance: Allowance | None = None,
    scratch: bytearray | None = None,
) -> Produced:
    """A leader's checks of a client's bytes: exactly one valid batch.

    ApiError with the code that Apache Kafka answers: CORRUPT_MESSAGE for a bad CRC, an unknown
    magic or a batch length no batch can have, INVALID_RECORD for the rest. `scratch` is memory to
    decompress in, used by nobody else meanwhile.
    """
    glance = check_batch(buffer, keys_required, crc32c, BatchHeader)
    if glance is None:
        header = _sole_batch(buffer)
        _check_slowly(header, buffer)
    else:
        header, oldest, newest = glance
        if not header.attributes & _CODEC_MASK:
            base = header.base_timestamp
            return Produced(header, base + oldest, base + newest)
    oldest, newest = skim(
        buffer,
        0,
        header,
        keys_required=keys_required,
        decompressed_bytes_max=decompressed_bytes_max,
        allowance=allowance,
        scratch=scratch,
    )
    return Produced(header, header.base_timestamp + oldest, header.base_timestamp + newest)


def _check_slowly(header: BatchHeader, buffer: Buffer) -> None:
    """Checks the batch apart from its records. ApiError for a damaged or invalid one."""
    try:
        verify_crc(buffer, 0, header)
    except CorruptBatchError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    for wrong, what in (
        (header.base_offset != 0, f"base offset {header.base_offset}, expected 0"),
        (
            header.last_offset_delta + 1 != header.record_count,
            f"last offset delta {header.last_offset_delta} of {header.record_count} records",
        ),
        (header.is_control, "control batches are written by brokers only"),
        (
            header.has_producer_id and header.base_sequence < 0,
            f"producer id {header.producer_id} with sequence {header.base_sequence}",
        ),
    ):
        if wrong:
            raise ApiError(ErrorCode.INVALID_RECORD, what)


def is_one_batch(buffer: Buffer) -> bool:
    """Whether `buffer` looks like one batch of magic 2 from its first to its last byte."""
    try:
        return bool(_sole_batch(buffer))
    except ApiError:
        return False


def _sole_batch(buffer: Buffer) -> BatchHeader:
    """The header of the single batch in `buffer`."""
    left = len(buffer)
    if left <= MAGIC_POSITION or buffer[MAGIC_POSITION] in (0, 1):
        what = f"magic {buffer[MAGIC_POSITION]}" if left > MAGIC_POSITION else f"{left} bytes"
        raise ApiError(ErrorCode.INVALID_RECORD, f"{what} where one batch of magic 2 is expected")
    (batch_length,) = _BATCH_LENGTH.unpack_from(buffer)
    size = batch_length + LENGTH_OVERHEAD
    if buffer[MAGIC_POSITION] == MAGIC and batch_length >= BATCH_LENGTH_MIN and size != left:
        raise ApiError(ErrorCode.INVALID_RECORD, f"one batch of {size} bytes in {left} bytes")
    try:
        return read_header(buffer)
    except CorruptBatchError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def patch(
    buffer: bytearray | memoryview,
    position: int,
    base_offset: int,
    leader_epoch: int,
    max_timestamp: int | None = None,
) -> None:
    """Writes what the leader decides at the append: base offset and leader epoch.

    With `max_timestamp` the batch also becomes one of log append time. `buffer` must be writable.
    """
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)
    if max_timestamp is not None:
        attributes = read_header(buffer, position).attributes | _LOG_APPEND_TIME
        _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
        set_max_timestamp(buffer, position, max_timestamp)


def set_max_timestamp(buffer: bytearray | memoryview, position: int, max_timestamp: int) -> None:
    """Writes the largest timestamp of a batch. It lies under the CRC, which is computed anew."""
    header = read_header(buffer, position)
    _records_of(buffer, position, header)
    _OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    end = position + header.size_bytes
    with memoryview(buffer) as view, view[position + ATTRIBUTES_POSITION : end] as covered:
        _CRC.pack_into(buffer, position + CRC_POSITION, crc32c(covered))


def recompressed(buffer: Buffer, header: BatchHeader, compression: Compression) -> bytearray:
    """The batch at the start of `buffer` in another codec; CorruptBatchError.

    Only the framing of its records changes: none is read, and all else in the header stays.
    """
    data: Buffer = _records_of(buffer, 0, header)
    if header.compression is not Compression.NONE:
        data = decompress(data, header.compression)
    data = compress(data, compression)
    attributes = header.attributes & ~_CODEC_MASK | compression
    batch_length = BATCH_LENGTH_MIN + len(data)
    made = header._replace(attributes=attributes, batch_length=batch_length, crc=0)
    batch = bytearray(HEADER.pack(*made)) + data
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))
    return batch


def encode(
    columns: Columns,
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """One batch of all records of `columns`.

    Offset deltas count up from `base_offset`, or are taken from `columns.offsets` when those are
    given; the first is then the base offset. A producer gives none: brokers refuse a batch that
    does not begin at 0. TypeError or ValueError names the record that cannot be encoded.
    """
    attributes = (
        compression | (_TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)
    )
    return encode_batch(
        columns,
        attributes,
        base_offset,
        leader_epoch,
        (producer_id, producer_epoch, base_sequence),
        partial(compress, compression=compression) if compression else None,
        crc32c,
    )


def decode(
    buffer: Buffer,
    position: int = 0,
    *,
    header: BatchHeader | None = None,
    check_crc: bool = True,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    as_forms: bool = False,
    few: int = FEW,
) -> Columns:
    """The records of the batch at `position`, with their offsets; CorruptBatchError.

    `headers` is None when no record has any. In a batch of log append time every record has the
    batch's `max_timestamp`. With `as_forms` the columns of a batch of `few` records or more are
    forms, which keep `buffer` alive. `header`: as `batches` gave it.
    """
    header = read_header(buffer, position) if header is None else header
    if check_crc:
        verify_crc(buffer, position, header)
    data: Buffer = _records_of(buffer, position, header)
    log_append_time = header.max_timestamp if header.attributes & _LOG_APPEND_TIME else None
    try:
        if header.attributes & _CODEC_MASK:
            compression = header.compression
            if header.record_count:
                data = decompress(data, compression, decompressed_bytes_max=decompressed_bytes_max)
        read = decode_forms if as_forms and header.record_count >= few else decode_records
        return read(
            data, header.record_count, header.base_offset, header.base_timestamp, log_append_time
        )
    except CorruptBatchError as error:
        raise CorruptBatchError(f"batch at byte {position}: {error}") from error


def decode_all(buffer: Buffer, *, check_crc: bool = True) -> Columns:
    """The records of all whole batches in `buffer`, control batches left out; CorruptBatchError."""
    return concat(
        decode(buffer, position, check_crc=check_crc)
        for position, header in batches(buffer)
        if not header.is_control
    )


def encode_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that commits or aborts a producer's transaction; it takes one offset."""
    columns = Columns(
        [_MARKER_KEY.pack(0, marker.control_type)],
        [_MARKER_VALUE.pack(0, marker.coordinator_epoch)],
        [timestamp_ms],
    )
    return encode(
        columns,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def parse_end_transaction_marker(
    key: bytes | None, value: bytes | None
) -> EndTransactionMarker | None:
    """The marker in a control record; None for a control type that ends no transaction.

    Later versions may add fields at the end; CorruptBatchError when there are too few bytes.
    """
    if key is None or len(key) < _MARKER_KEY.size:
        raise CorruptBatchError(f"control record key {key!r}, expected {_MARKER_KEY.size} bytes")
    version, control_type = _MARKER_KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatchError(f"control record key of version {version}")
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise CorruptBatchError(
            f"{ControlType(control_type).name} marker of value {value!r}, "
            f"expected {_MARKER_VALUE.size} bytes"
        )
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if version < 0:
        raise CorruptBatchError(f"end transaction marker of version {version}")
    return EndTransactionMarker(ControlType(control_type), coordinator_epoch)
