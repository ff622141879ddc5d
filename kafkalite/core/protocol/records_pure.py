"""The record codec in plain Python: oracle and stand-in of the native one.               [P]

Every function here has a twin of the same name in `_records_read.pyx`, `_records_write.pyx` or
`_partitions.pyx`, with the same results and the same errors; `record_codec.py` chooses. A record,
as it lies in a batch:

    length           varint    of all that follows
    attributes       int8      unused
    timestamp delta  varlong   from the batch's base timestamp
    offset delta     varint    from the batch's base offset
    key              varint length, -1 for null; bytes
    value            varint length, -1 for null; bytes
    headers          varint count; each a varint length and UTF-8 bytes, then like a value

Varints are zigzag, seven bits a byte, lowest first: at most 5 bytes (varint) or 10 (varlong).

Never  believes a length: each is checked against what holds it before it is used, and the record
       count against the bytes there are before lists are made for it.
Fails  with CorruptBatchError: the record, its byte among the records' bytes, the numbers. What a
       caller hands in to encode and cannot be encoded is a TypeError or ValueError.
Source KIP-82, KIP-98; apache/kafka DefaultRecord, ByteUtils, Utils.murmur2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from operator import index
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from kafkalite.core.types import NO_TIMESTAMP, Columns, Headers
from kafkalite.errors import CorruptBatchError

Buffer: TypeAlias = bytes | bytearray | memoryview
Compress: TypeAlias = Callable[[Buffer], Buffer]
Checksum: TypeAlias = Callable[[Buffer], int]
H = TypeVar("H", bound=tuple[int, ...])

# What the native modules, of records and of the cleaner, and the Python beside them agree on.
# Raised, here and in `_interface.pxd`, whenever one of them comes to take, give or call something
# else.
INTERFACE: Final = 6

# What lends a checksum the bytes of a buffer. Without native code it must copy them.
Window: TypeAlias = bytes

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21  # where the bytes under the CRC begin
LENGTH_OVERHEAD: Final = 12  # base_offset and batch_length, which batch_length does not count
MAGIC: Final = 2

INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, two null lengths, no headers
HEADER_PAIR_BYTES_MIN: Final = 2

assert HEADER_BYTES == 61


class Fault(Enum):
    """The faults of a record; the value is the rest of the sentence."""

    TRUNCATED = "{field} runs past byte {limit}"
    OVERLONG = "{field} is not a varint of {limit} bytes at most"
    NEGATIVE = "{field} is {number}"
    PAST_END = "{field} is {number}, but {limit} bytes are left"
    UNREAD = "{number} bytes after its last field"
    ORDER = "offset delta {number}, expected {limit} or more"
    FIRST_DELTA = "offset delta {number}, expected {limit}"
    NULL_KEY = "key is null where every record needs one"
    TIMESTAMP = "timestamp delta {number} from {limit} leaves 64 bits"
    OFFSET = "offset delta {number} from {limit} leaves 64 bits"


# The fields of a record by number, as the native twin names them.
FIELDS: Final = (
    "length",
    "attributes",
    "timestamp delta",
    "offset delta",
    "key length",
    "value length",
    "header count",
    "header key length",
    "header value length",
)
(
    LENGTH,
    ATTRIBUTES,
    TIMESTAMP_DELTA,
    OFFSET_DELTA,
    KEY_LENGTH,
    VALUE_LENGTH,
    HEADER_COUNT,
    HEADER_KEY_LENGTH,
    HEADER_VALUE_LENGTH,
) = range(len(FIELDS))
FAULTS: Final = tuple(Fault)


def fail(
    fault: Fault, record: int, position: int, *, field: int = 0, number: int = 0, limit: int = 0
) -> NoReturn:
    """Raises CorruptBatchError for a record; `position` is a byte among the records' bytes."""
    what = fault.value.format(field=FIELDS[field], number=number, limit=limit)
    raise CorruptBatchError(f"record {record}, byte {position} of the records: {what}")


def check_count(record_count: int, size: int) -> None:
    """Refuses a record count that `size` bytes cannot hold."""
    if not 0 <= record_count <= size // RECORD_BYTES_MIN:
        raise CorruptBatchError(f"{record_count} records in {size} bytes")


def check_trailing(record_count: int, unread: int) -> None:
    """Refuses bytes after the last record."""
    if unread:
        raise CorruptBatchError(f"{unread} bytes after the last of {record_count} records")


def check_last_delta(delta: int, last_offset_delta: int) -> None:
    """Refuses a header whose last offset delta is not the last record's."""
    if delta != last_offset_delta:
        raise CorruptBatchError(
            f"the last record's offset delta is {delta}, the header's {last_offset_delta}"
        )


class RecordReader:
    """Reads fields one after the other, each bounded by `end`; knows where it is for errors."""

    __slots__ = ("data", "end", "position", "record")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)
        self.record = 0

    def fail(self, fault: Fault, *, field: int = 0, number: int = 0, limit: int = 0) -> NoReturn:
        """CorruptBatchError, of the record that is read."""
        fail(fault, self.record, self.position, field=field, number=number, limit=limit)

    def varint(self, field: int, bits: int = 32) -> int:
        """A zigzag varint of at most `bits` bits. The position moves only when it is whole."""
        position, shift, raw = self.position, 0, 0
        while True:
            if position == self.end:
                self.fail(Fault.TRUNCATED, field=field, limit=self.end)
            byte = self.data[position]
            position += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= bits:
                self.fail(Fault.OVERLONG, field=field, limit=(bits + 6) // 7)
        if raw >> bits:
            self.fail(Fault.OVERLONG, field=field, limit=(bits + 6) // 7)
        self.position = position
        return (raw >> 1) ^ -(raw & 1)

    def length(self, field: int, least: int) -> int:
        """A length in [least, bytes left]."""
        at = self.position
        number = self.varint(field)
        left = self.end - self.position
        if not least <= number <= left:
            self.position = at
            fault = Fault.NEGATIVE if number < least else Fault.PAST_END
            self.fail(fault, field=field, number=number, limit=left)
        return number

    def blob(self, field: int, least: int = -1) -> bytes | None:
        """A length and its bytes; None for length -1."""
        length = self.length(field, least)
        if length < 0:
            return None
        start = self.position
        self.position = start + length
        return bytes(self.data[start : self.position])

    def begin_record(self) -> tuple[int, int]:
        """Reads up to the offset delta: timestamp delta, offset delta. `end` is the record's."""
        length = self.length(LENGTH, 0)
        self.end = self.position + length
        if length == 0:
            self.fail(Fault.TRUNCATED, field=ATTRIBUTES, limit=self.end)
        self.position += 1
        return self.varint(TIMESTAMP_DELTA, 64), self.varint(OFFSET_DELTA)

    def headers(self) -> Headers:
        """The record's headers. Names that are not UTF-8 get replacement characters, as in Java."""
        at = self.position
        count = self.length(HEADER_COUNT, 0)
        left = self.end - self.position
        if count * HEADER_PAIR_BYTES_MIN > left:
            self.position = at
            self.fail(Fault.PAST_END, field=HEADER_COUNT, number=count, limit=left)
        return tuple(self.header() for _ in range(count))

    def header(self) -> tuple[str, bytes | None]:
        """One header: name and value."""
        name = self.blob(HEADER_KEY_LENGTH, 0)
        assert name is not None
        return name.decode(errors="replace"), self.blob(HEADER_VALUE_LENGTH)

    def end_record(self) -> None:
        """The record ends where its length said; the next is bounded by all bytes again."""
        if self.position != self.end:
            self.fail(Fault.UNREAD, number=self.end - self.position)
        self.end = len(self.data)
        self.record += 1


def decode_records(
    data: Buffer,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
) -> Columns:
    """The records as columns; CorruptBatchError.

    `log_append_time` replaces all timestamps when it is not None. Offsets are a range when the
    deltas are dense, as all but compaction leave them.
    """
    check_count(record_count, len(data))
    reader = RecordReader(data)
    keys, values, timestamps, deltas, headers = [], [], [], [], []
    for _ in range(record_count):
        timestamp_delta, delta = reader.begin_record()
        timestamp = base_timestamp + timestamp_delta
        if not INT64_MIN <= timestamp <= INT64_MAX:
            reader.fail(Fault.TIMESTAMP, number=timestamp_delta, limit=base_timestamp)
        if not INT64_MIN <= base_offset + delta <= INT64_MAX:
            reader.fail(Fault.OFFSET, number=delta, limit=base_offset)
        timestamps.append(timestamp)
        deltas.append(delta)
        keys.append(reader.blob(KEY_LENGTH))
        values.append(reader.blob(VALUE_LENGTH))
        headers.append(reader.headers())
        reader.end_record()
    check_trailing(record_count, len(data) - reader.position)
    return Columns(
        keys,
        values,
        timestamps if log_append_time is None else [log_append_time] * record_count,
        _offsets(base_offset, deltas),
        headers if any(headers) else None,
    )


def _offsets(base_offset: int, deltas: list[int]) -> Sequence[int]:
    first = deltas[0] if deltas else 0
    if all(delta == first + i for i, delta in enumerate(deltas)):
        return range(base_offset + first, base_offset + first + len(deltas))
    return [base_offset + delta for delta in deltas]


def skim_records(
    data: Buffer, record_count: int, last_offset_delta: int, keys_required: bool
) -> tuple[int, int]:
    """Checks that the records are what their batch says, keeping none; CorruptBatchError.

    Returns the least and the greatest timestamp delta. Offset deltas rise from 0 to
    `last_offset_delta`; no byte is left over; no key is null if `keys_required`.
    """
    check_count(record_count, len(data))
    reader = RecordReader(data)
    last = -1
    times: list[int] = []
    for i in range(record_count):
        time, delta = reader.begin_record()
        times.append(time)
        if i == 0 and delta != 0:
            reader.fail(Fault.FIRST_DELTA, number=delta, limit=0)
        if delta <= last:
            reader.fail(Fault.ORDER, number=delta, limit=last + 1)
        last = delta
        if reader.blob(KEY_LENGTH) is None and keys_required:
            reader.fail(Fault.NULL_KEY)
        reader.blob(VALUE_LENGTH)
        reader.headers()
        reader.end_record()
    check_trailing(record_count, len(data) - reader.position)
    check_last_delta(last, last_offset_delta)
    return min(times, default=0), max(times, default=0)


def unfit_records(
    data: Buffer, record_count: int, base_timestamp: int, times: tuple[int, int] | None, most: int
) -> list[tuple[int, int]]:
    """The first `most` records whose timestamp is not within `times`, or, without `times`, that
    have no key: index and timestamp of each. CorruptBatchError where fewer are found.

    A record without a timestamp is within any `times`.
    """
    check_count(record_count, len(data))
    reader = RecordReader(data)
    unfit: list[tuple[int, int]] = []
    while reader.record < record_count and len(unfit) < most:
        timestamp_delta, _ = reader.begin_record()
        timestamp = base_timestamp + timestamp_delta
        if not INT64_MIN <= timestamp <= INT64_MAX:
            reader.fail(Fault.TIMESTAMP, number=timestamp_delta, limit=base_timestamp)
        key = reader.blob(KEY_LENGTH)
        reader.blob(VALUE_LENGTH)
        reader.headers()
        reader.end_record()
        is_timely = times is None or timestamp == NO_TIMESTAMP or times[0] <= timestamp <= times[1]
        if not is_timely or (times is None and key is None):
            unfit.append((reader.record - 1, timestamp))
    return unfit


def check_batch(
    data: Buffer, keys_required: bool, checksum: Checksum, header_type: type[H]
) -> tuple[H, int, int] | None:
    """What one glance tells of a batch as producers send it: header, least and greatest timestamp
    delta; of compressed records only the header is right, and the deltas are 0. None where one
    must look closely, because something is wrong or because, as here, there is no native code.
    """
    return None


def encode_batch(
    columns: Columns,
    attributes: int,
    base_offset: int,
    leader_epoch: int,
    producer: tuple[int, int, int],
    compress: Compress | None,
    checksum: Checksum,
) -> bytes:
    """One batch. `producer` is id, epoch, base sequence; `columns.offsets` win over base_offset.

    TypeError or ValueError names the column and the record that cannot be encoded.
    """
    count = check_lengths(columns)
    timestamps = [int64(t, "timestamp", i) for i, t in enumerate(columns.timestamps)]
    deltas: Sequence[int] = range(count)
    if columns.offsets is not None:
        offsets = [int64(offset, "offset", i) for i, offset in enumerate(columns.offsets)]
        base_offset = offsets[0]
        deltas = [offset - base_offset for offset in offsets]
        check_offsets(offsets)
    body: Buffer = _encode_records(columns, timestamps, deltas)
    if compress is not None:
        body = compress(body)
    header = bytearray(
        pack_header(
            (base_offset, deltas[-1], leader_epoch, attributes, timestamps[0], max(timestamps)),
            producer,
            count,
            len(body),
        )
    )
    batch = header + body
    crc = checksum(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return bytes(batch)


def _encode_records(
    columns: Columns, timestamps: Sequence[int], deltas: Sequence[int]
) -> bytearray:
    headers: Sequence[Any] = columns.headers if columns.headers is not None else [()] * len(columns)
    output = bytearray()
    for i, (key, value, row) in enumerate(zip(columns.keys, columns.values, headers, strict=True)):
        body = bytearray(1)  # attributes
        timestamp_delta = timestamps[i] - timestamps[0]
        if not INT64_MIN <= timestamp_delta <= INT64_MAX:
            refuse_timestamp(i, timestamps[i], timestamps[0])
        write_varint(body, timestamp_delta)
        write_varint(body, deltas[i])
        _write_blob(body, key, "key", i)
        _write_blob(body, value, "value", i)
        _write_headers(body, row, i)
        write_varint(output, len(body))
        output += body
        check_size(len(output))
    return output


def write_varint(output: bytearray, number: int) -> None:
    """Appends a zigzag varint of at most 64 bits."""
    raw = (number << 1) ^ (number >> 63)
    while raw > 0x7F:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
    output.append(raw)


def _write_blob(output: bytearray, blob: object, column: str, i: int) -> None:
    if blob is None:
        write_varint(output, -1)
    elif isinstance(blob, bytes):
        write_varint(output, len(blob))
        output += blob
    else:
        refuse_blob(column, i, blob)


def _write_headers(output: bytearray, row: object, i: int) -> None:
    if not isinstance(row, tuple | list):
        refuse_headers(i, row)
    write_varint(output, len(row))
    for header in row:
        if not (isinstance(header, tuple | list) and len(header) == 2):
            refuse_headers(i, header)
        name, value = header
        if not isinstance(name, str):
            refuse_headers(i, header)
        _write_blob(output, name.encode(), "header name", i)
        _write_blob(output, value, "header value", i)


def int64(number: object, column: str, i: int) -> int:
    """`number` as an integer of 64 bits, or an error that names the column and the record."""
    try:
        integer = index(number)  # type: ignore[arg-type]
    except TypeError:
        refuse_integer(column, i, number)
    if not INT64_MIN <= integer <= INT64_MAX:
        refuse_range(column, i, integer)
    return integer


def check_lengths(columns: Columns) -> int:
    """The count of records; ValueError when there are none or the columns differ."""
    count = _check_same(_lengths(columns))
    if not count:
        raise ValueError("no records: a batch holds one or more")
    return count


def _lengths(columns: Columns) -> dict[str, int]:
    return {
        name: len(column)
        for name in ("keys", "values", "timestamps", "offsets", "headers")
        if (column := getattr(columns, name)) is not None
    }


def _check_same(lengths: dict[str, int]) -> int:
    if len(set(lengths.values())) != 1:
        raise ValueError(f"columns of different lengths: {lengths}")
    return lengths["values"]


def check_offsets(offsets: Sequence[int]) -> None:
    """Refuses offsets that do not rise, or rise by more than a batch can say."""
    for i in range(1, len(offsets)):
        if not offsets[i - 1] < offsets[i] <= offsets[0] + INT32_MAX:
            raise ValueError(
                f"offset {offsets[i]} of record {i} after {offsets[i - 1]}, from {offsets[0]}"
            )


def check_size(size: int) -> None:
    """Refuses records too large for any batch."""
    if size > INT32_MAX:
        raise ValueError(f"records of {size} bytes; a batch holds at most {INT32_MAX}")


def pack_header(
    columns_part: tuple[int, int, int, int, int, int],
    producer: tuple[int, int, int],
    count: int,
    size: int,
) -> bytes:
    """A batch's header, the CRC still 0. ValueError when a number does not fit its field.

    `columns_part` is base offset, last offset delta, leader epoch, attributes, base timestamp, max
    timestamp; `size` the bytes of the records as they are stored.
    """
    base_offset, last_delta, leader_epoch, attributes, base_timestamp, max_timestamp = columns_part
    fields = (
        base_offset,
        HEADER_BYTES - LENGTH_OVERHEAD + size,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    if base_offset > INT64_MAX - last_delta:
        raise ValueError(f"base offset {base_offset} and {last_delta} more leave 64 bits")
    try:
        return HEADER.pack(*fields)
    except StructError as error:
        raise ValueError(f"batch header {fields}: {error}") from None


def refuse_blob(column: str, i: int, blob: object) -> NoReturn:
    """A key, value or header value that is not bytes."""
    raise TypeError(f"{column} of record {i} is {type(blob).__name__}, expected bytes or None")


def refuse_hash(key: object) -> NoReturn:
    """A key that is not bytes has no hash."""
    raise TypeError(f"key is {type(key).__name__}, expected bytes")


def refuse_headers(i: int, headers: object) -> NoReturn:
    """Headers that are not pairs of name and value."""
    raise TypeError(f"headers of record {i}: {headers!r} where (str, bytes or None) is expected")


def refuse_integer(column: str, i: int, number: object) -> NoReturn:
    """A timestamp, offset or partition that is no integer."""
    raise TypeError(f"{column} of record {i} is {type(number).__name__}, expected int")


def refuse_range(column: str, i: int, number: int) -> NoReturn:
    """A timestamp or offset beyond 64 bits."""
    raise ValueError(f"{column} of record {i} is {number}, which does not fit 64 bits")


def refuse_timestamp(i: int, timestamp: int, base: int) -> NoReturn:
    """A timestamp too far from the batch's first."""
    raise ValueError(f"timestamp {timestamp} of record {i} is more than 64 bits from {base}")


def murmur2(key: bytes) -> int:
    """Java clients' hash of a key, as an unsigned 32-bit number."""
    if not isinstance(key, bytes):
        refuse_hash(key)
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    length = len(key)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * multiplier & mask
        k = (k ^ k >> 24) * multiplier & mask
        h = (h * multiplier & mask) ^ k
    if whole != length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    h = (h ^ h >> 13) * multiplier & mask
    return h ^ h >> 15


def partition_column(keys: Sequence[bytes | None], partition_count: int) -> Sequence[int]:
    """The partition of each key, -1 for a null one."""
    check_partition_count(partition_count)
    column = []
    for i, key in enumerate(keys):
        if key is not None and not isinstance(key, bytes):
            refuse_blob("key", i, key)
        column.append(-1 if key is None else (murmur2(key) & INT32_MAX) % partition_count)
    return column


def split(columns: Columns, partitions: Sequence[int], partition_count: int) -> list[Columns]:
    """The records of each partition, in order."""
    check_partition_count(partition_count)
    check_split_lengths(columns, partitions)
    rows: list[list[int]] = [[] for _ in range(partition_count)]
    for i, partition in enumerate(partitions):
        number = int64(partition, "partition", i)
        if not 0 <= number < partition_count:
            refuse_partition(i, number, partition_count)
        rows[number].append(i)
    return [
        Columns(
            [columns.keys[i] for i in chosen],
            [columns.values[i] for i in chosen],
            [columns.timestamps[i] for i in chosen],
            None if columns.offsets is None else [columns.offsets[i] for i in chosen],
            None if columns.headers is None else [columns.headers[i] for i in chosen],
        )
        for chosen in rows
    ]


def check_partition_count(partition_count: int) -> None:
    """A topic has at least one partition, and fewer than 2**31."""
    if not 1 <= partition_count <= INT32_MAX:
        raise ValueError(f"{partition_count} partitions, expected 1 to {INT32_MAX}")


def check_split_lengths(columns: Columns, partitions: Sequence[int]) -> None:
    """Every record has one partition."""
    _check_same(_lengths(columns) | {"partitions": len(partitions)})


def refuse_partition(i: int, partition: int, partition_count: int) -> NoReturn:
    """A partition that the topic does not have; -1 is left for the caller to replace."""
    raise ValueError(f"partition of record {i} is {partition}, expected 0 to {partition_count - 1}")
