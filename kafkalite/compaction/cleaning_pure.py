"""The cleaner's inner loops in plain Python: a reference and fallback for the native ones. [P]

Every class and function here has a twin in `_offset_map.pyx`, `_output.pyx`, `_batch.pyx` or
`_loops.pyx` with the same results; `loops.py` chooses. The native loops process runs of plain
batches in one call. The loops here leave each batch to the caller, which processes it through the
same primitives: `put_records`, `judge_records`, `copy_records`.

A plain batch is uncompressed, not a marker, not part of an aborted transaction, and its framing
and CRC are correct.

Fails  with CorruptBatchError if the records do not match their batch header.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from typing import Final, NoReturn, TypeAlias

from kafkalite.compaction.retain import Cleaned, keeps
from kafkalite.core.log.values import Mark
from kafkalite.core.protocol.records_pure import (
    INT64_MAX,
    INT64_MIN,
    LENGTH,
    TIMESTAMP_DELTA,
    RecordReader,
    decode_records,
    write_varint,
)
from kafkalite.core.types import NO_OFFSET, NO_TIMESTAMP, Columns
from kafkalite.errors import CorruptBatchError

Buffer: TypeAlias = bytes | bytearray | memoryview

ENTRY_BYTES: Final = 24  # of the native map: a hash of 16 and an offset
PURE_ENTRY_BYTES: Final = 200  # of a dictionary: its share, a digest, an integer
SECRET_BYTES: Final = 16
LIKELY_TIME_MAX: Final = 1 << 61  # ms: of two such times sum and difference are within 64 bits


class Stop(Enum):
    """The reason why a walk over a run of batches ended."""

    END = "no whole batch is left"
    OTHER = "the batch here is not a plain one"
    FULL = "the map takes no more"


def is_likely_time(number: int) -> bool:
    """Whether clocks may show this time, or difference of times, in ms."""
    return -LIKELY_TIME_MAX <= number <= LIKELY_TIME_MAX


def refuse_full(slots: int) -> NoReturn:
    """More keys than the map was made for."""
    raise ValueError(f"the offset map has room for {slots} keys")


def refuse_records(count: int, base_offset: int) -> NoReturn:
    """Records that are not what their batch says."""
    raise CorruptBatchError(f"batch at offset {base_offset}: not {count} whole records")


class OffsetMap:
    """From a key to the offset of its latest record, by a keyed hash of the key."""

    def __init__(self, slots: int, secret: bytes) -> None:
        if slots < 1 or len(secret) != SECRET_BYTES:
            raise ValueError(f"{slots} slots, a secret of {len(secret)} bytes")
        self.slots: Final = slots
        self._secret = secret
        self._latest: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        """How many keys it knows."""
        return len(self._latest)

    def _hash(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._secret).digest()

    def release(self) -> None:
        """Gives the memory back; it knows nothing any more, and takes nothing."""
        self._latest = {}

    def put(self, key: bytes, offset: int) -> None:
        """The key's latest record has `offset`."""
        hashed = self._hash(key)
        if len(self._latest) >= self.slots and hashed not in self._latest:
            refuse_full(self.slots)
        self._latest[hashed] = offset

    def get(self, key: bytes) -> int:
        """The offset of the key's latest record, -1 when it is not known."""
        return self._latest.get(self._hash(key), -1)


# ---- first pass --------------------------------------------------------------------------------


def put_records(
    offsets: OffsetMap,
    body: Buffer,
    count: int,
    base_offset: int,
    first_offset: int,
    entries_max: int,
) -> int | None:
    """Puts a batch's records from `first_offset` on. The first offset that is left out as the map
    has `entries_max` keys; None when all are in."""
    columns = _columns(body, count, base_offset)
    for key, offset in zip(columns.keys, columns.offsets or (), strict=True):
        if key is None or offset < first_offset:
            continue
        if offsets.size >= entries_max:
            return int(offset)
        offsets.put(key, offset)
    return None


def put_batches(
    offsets: OffsetMap,
    run: Buffer,
    position: int,
    next_offset: int,
    end_offset: int,
    first_offset: int,
    entries_max: int,
    aborted: Buffer,
) -> tuple[int, Stop, int]:
    """Puts the records of plain batches from `position` on, until a stop: where, why, and up to
    which offset all is in the map. Batches ascend within [next_offset, end_offset). `aborted` are
    those of `Transactions.ranges`."""
    return position, Stop.OTHER, next_offset


# ---- second pass -------------------------------------------------------------------------------


class Output:
    """The batches kept for one segment, a run at a time, and its index entries: the first batch
    after every `index_interval_bytes`, as with batches that are appended one by one."""

    def __init__(self, index_interval_bytes: int) -> None:
        self._interval = index_interval_bytes
        self._bytes_since = 0  # the last mark
        self._data = bytearray()
        self._marks: list[Mark] = []
        self.latest = (NO_TIMESTAMP, NO_OFFSET)  # largest timestamp of all, its batch's last offset

    def __len__(self) -> int:
        return len(self._data)

    def view(self) -> memoryview:
        """The bytes, to be released before the next batch comes."""
        return memoryview(self._data).toreadonly()

    def take_producers(self) -> list[int]:
        """Producers of whose transactions batches were met since this was last asked."""
        return []

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Adds a batch as it is."""
        if max_timestamp > self.latest[0]:
            self.latest = max_timestamp, last_offset
        if self._bytes_since > self._interval:
            self._marks.append(Mark(len(self._data), last_offset, *self.latest))
            self._bytes_since = 0
        self._bytes_since += len(batch)
        self._data += batch

    def marks(self) -> list[Mark]:
        """The batches of this run that get an index entry."""
        return list(self._marks)

    def clear(self) -> None:
        """Begins the next run."""
        self._data = bytearray()
        self._marks = []


def judge_records(
    offsets: OffsetMap,
    body: Buffer,
    count: int,
    base_offset: int,
    mapped_until: int,
    tombstones_go: bool,
) -> tuple[bytes, bool]:
    """Which records stay (a byte each, 1 or 0), and whether tombstones are among them. A tombstone
    beside a record of an absurd time does not count: no other base timestamp can take that one's
    place, so it gets no delete horizon and stays."""
    columns = _columns(body, count, base_offset)
    rows = zip(columns.keys, columns.values, columns.offsets or (), strict=True)
    stays = [
        keeps(
            offset,
            value is not None,
            latest=None if key is None else offsets.get(key),
            mapped_until=mapped_until,
            tombstones_go=tombstones_go,
        )
        for key, value, offset in rows
    ]
    tombstones = any(
        stay and value is None for stay, value in zip(stays, columns.values, strict=True)
    )
    kept = columns.where(stays).timestamps
    return bytes(stays), tombstones and all(map(is_likely_time, kept))


def filter_batches(
    offsets: OffsetMap,
    run: Buffer,
    position: int,
    next_offset: int,
    end_offset: int,
    output: Output,
    cleaned: Cleaned,
    aborted: Buffer,
) -> tuple[int, Stop, int]:
    """Appends to `output` what stays of plain batches from `position` on, until a stop: where, why,
    and the offset after the last batch. Batches ascend within [next_offset, end_offset). Batches
    that `cleaned` needs, or in `aborted`, are not plain: they may stay although empty, or go."""
    return position, Stop.OTHER, next_offset


def copy_records(body: Buffer, mask: bytes, shift: int) -> tuple[bytes, int, int]:
    """The records that `mask` keeps, `shift` added to each timestamp delta, and the least and the
    largest of their deltas before that. All else of a record is copied as it is."""
    deltas = _columns(body, len(mask), 0).where(mask).timestamps
    least, largest = min(deltas, default=INT64_MAX), max(deltas, default=INT64_MIN)
    output, reader = bytearray(), RecordReader(body)
    for kept in mask:
        start = reader.position
        length = reader.length(LENGTH, 0)
        attributes, end = reader.position, reader.position + length
        reader.position += 1
        timestamp = reader.varint(TIMESTAMP_DELTA, 64)
        if kept and shift:
            delta = bytearray()
            write_varint(delta, timestamp + shift)
            write_varint(output, 1 + len(delta) + end - reader.position)
            output += bytes((body[attributes],)) + delta + body[reader.position : end]
        elif kept:
            output += body[start:end]
        reader.position = end
    return bytes(output), least, largest


def _columns(body: Buffer, count: int, base_offset: int) -> Columns:
    """The records, their timestamps as deltas; CorruptBatchError."""
    return decode_records(body, count, base_offset, 0, None)
