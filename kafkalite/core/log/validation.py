"""The checks of a batch before a leader stores it, and the changes that it makes to it.   [D]

    size          max.message.bytes: MESSAGE_TOO_LARGE; segment.bytes: RECORD_LIST_TOO_LARGE
    framing, CRC  records.check_produced: CORRUPT_MESSAGE, INVALID_RECORD
    keys          every record of a compacted topic has one: INVALID_RECORD
    timestamps    message.timestamp.before.max.ms, .after.max.ms: INVALID_TIMESTAMP; a wrong
                  largest one in the header is corrected, as retention and searches use it
    codec         compression.type other than the batch's: the batch is compressed again

Never  changes the given buffer, unless it returns that buffer.
Fails  with ApiError, naming the partition and the numbers.
Source apache/kafka LogValidator, UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn

from kafkalite.core.config.keys import LONG_MAX
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.port import Buffer
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import (
    Allowance,
    BatchHeader,
    TimestampType,
    check_produced,
    read_header,
    recompressed,
    set_max_timestamp,
    unfit,
    verify_crc,
)
from kafkalite.core.types import NO_TIMESTAMP, TopicPartition
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, RecordsRefused, RecordsTooLarge

_CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
RECORD_ERRORS_MAX: Final = 10  # records of a refused batch that the answer names, the first ones
_SCRATCH: Final = bytearray(1 << 18)  # appends are one thread's, and nothing of it is kept
_LOG_APPEND_TIME: Final = 0x08  # of the attributes


class Validated(NamedTuple):
    """A batch as it is to be stored, writable, and its header."""

    records: bytearray | memoryview
    header: BatchHeader


Batch = Buffer | Validated


def validated(
    records: Buffer,
    config: LogConfig,
    partition: TopicPartition,
    now_ms: int,
    from_client: bool,
    *,
    allowance: Allowance | None = None,
    scratch: bytearray | None = _SCRATCH,
) -> Validated:
    """The batch as it is to be stored; ApiError, RecordsTooLarge where it needs more than the
    `allowance`. Another thread than that of the appends brings a `scratch` of its own, or None.

    `records` is a copy of itself only where it is read-only or compressed anew.
    """
    size = len(records)
    if size > config.max_message_bytes:
        _refuse_size(partition, size, config)
    try:
        if from_client:
            produced = check_produced(
                records,
                keys_required=config.is_compacted,
                allowance=allowance,
                scratch=scratch,
            )
            header = produced.header
        else:
            header = _brokers_own(records)
    except ApiError as error:
        code = error.error_code
        what = str(error).removesuffix(f": {code.name}")
        keyless = _keyless(records, code) if config.is_compacted else ()
        if keyless:
            raise RecordsRefused(code, f"{partition}: {what}", keyless) from error
        kind = RecordsTooLarge if isinstance(error, RecordsTooLarge) else ApiError
        raise kind(code, f"{partition}: {what}") from error
    if from_client:
        if header.attributes & _LOG_APPEND_TIME:
            raise ApiError(
                ErrorCode.INVALID_TIMESTAMP, f"{partition}: only a broker sets the log append time"
            )
        before_ms = config.message_timestamp_before_max_ms
        after_ms = config.message_timestamp_after_max_ms
        latest_ms = min(now_ms + after_ms, LONG_MAX)
        if not (now_ms - produced.oldest <= before_ms and produced.newest <= latest_ms):
            _check_timestamps(records, config, partition, now_ms)
        if config.compression_type != "producer":
            records, header = _recompressed(records, header, config, partition)
    if len(records) > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{partition}: batch of {len(records)} bytes, segment.bytes is {config.segment_bytes}",
        )
    if isinstance(records, bytes) or (isinstance(records, memoryview) and records.readonly):
        records = bytearray(records)
    if from_client and header.max_timestamp != produced.newest:
        header = _set_max_timestamp(records, header, produced.newest, config)
    return Validated(records, header)


def _refuse_size(partition: TopicPartition, size: int, config: LogConfig) -> NoReturn:
    raise ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{partition}: batch of {size} bytes, max.message.bytes is {config.max_message_bytes}",
    )


def _set_max_timestamp(
    records: bytearray | memoryview, header: BatchHeader, newest: int, config: LogConfig
) -> BatchHeader:
    """Writes the records' largest timestamp into the header, unless the broker's time counts."""
    if config.message_timestamp_type == "LogAppendTime":
        return header
    newest = max(newest, NO_TIMESTAMP)
    set_max_timestamp(records, 0, newest)
    return header._replace(max_timestamp=newest)


def _brokers_own(records: Buffer) -> BatchHeader:
    """The header of a batch that this broker encoded: a coordinator's records, or a marker."""
    try:
        header = read_header(records)
        verify_crc(records, 0, header)
    except CorruptBatchError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    assert header.size_bytes == len(records), (header.size_bytes, len(records))
    return header


def _check_timestamps(
    records: Buffer, config: LogConfig, partition: TopicPartition, now_ms: int
) -> None:
    """Looks at each record: one of a time too far off is refused, one without a time is not."""
    before_ms = config.message_timestamp_before_max_ms
    after_ms = config.message_timestamp_after_max_ms
    if config.message_timestamp_type == "LogAppendTime":
        return
    times = now_ms - before_ms, now_ms + after_ms
    try:
        found = unfit(records, times=times, most=RECORD_ERRORS_MAX)
    except CorruptBatchError as error:  # one that no 64 bits can hold
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, f"{partition}: {error}") from error
    if found:
        allowed = f"allowed is [{now_ms} - {before_ms}, {now_ms} + {after_ms}]"
        refused = tuple((i, f"timestamp {timestamp}, {allowed}") for i, timestamp in found)
        index, words = refused[0]
        words = f"{partition}: record {index} has {words}"
        raise RecordsRefused(ErrorCode.INVALID_TIMESTAMP, words, refused)


def _keyless(records: Buffer, code: ErrorCode) -> tuple[tuple[int, str], ...]:
    """The first records without a key in a refused batch, if that is why it was refused."""
    if code is not ErrorCode.INVALID_RECORD:
        return ()
    try:
        found = unfit(records, most=RECORD_ERRORS_MAX)
    except CorruptBatchError:
        return ()
    return tuple((index, "it has no key") for index, _ in found)


def _recompressed(
    records: Buffer, header: BatchHeader, config: LogConfig, partition: TopicPartition
) -> tuple[Buffer, BatchHeader]:
    """The same records in the topic's codec; the header's other fields stay."""
    compression = _CODECS[config.compression_type]
    if header.compression is compression:
        return records, header
    data = recompressed(records, header, compression)
    if len(data) > config.max_message_bytes:
        _refuse_size(partition, len(data), config)
    assert header.timestamp_type is TimestampType.CREATE_TIME
    return data, read_header(data)
