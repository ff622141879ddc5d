"""A partition's state of each idempotent producer: its last batches and its transaction.     [D]

A producer numbers its records; the log takes a batch only if it follows the last one. The last
five batches are remembered, so that a repeated batch gets the first answer and is stored once.
Sequences run to 2**31 - 1 and begin again at 0.

A transaction is open from the producer's first transactional batch to its marker. The first offset
of the earliest one that is open, or whose marker is not yet below the high watermark, is the
`first_unstable_offset`: readers of committed records stop there.

    <offset>.snapshot, the state below `offset`:

     0  version   int16     1
     2  crc       uint32    CRC-32C of the following bytes
     6  batches   int32     then for each, those of a producer oldest first, 46 bytes:
        producer_id int64 | producer_epoch int16 | last_sequence int32 | last_offset int64
        | offset_delta int32 | timestamp int64 | coordinator_epoch int32
        | transaction_first_offset int64, -1: none

Apache Kafka writes the last batch of each producer alone, and of several takes the last, too. A
broker that stopped in between then refuses the batches before it as out of order if they come
again, and their producer cannot know that they are in the log.

Owns   the producers' states. `check` looks, `replay` changes.
Never  touches a file: `to_snapshot`, `load_snapshot`.
Fails  with ApiError for a refused producer; StorageError on a file that is no snapshot.
Source KIP-98, KIP-185, KIP-360; apache/kafka ProducerStateManager, ProducerAppendInfo.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from kafkalite.core.log.values import AbortedTransaction
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.records import (
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    decode,
    parse_end_transaction_marker,
)
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, StorageError

BATCHES_MAX: Final = 5
SEQUENCE_MAX: Final = (1 << 31) - 1

_VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_CRC: Final = Struct(">I")
_CRC_START: Final = 2
_COVERED_START: Final = 6
_ENTRY: Final = Struct(">qhiqiqiq")


class BatchMetadata(NamedTuple):
    """One batch of a producer that is in the log."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int  # epoch ms

    @property
    def base_offset(self) -> int:
        """Offset of the batch's first record."""
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """Sequence of the batch's first record."""
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended; [first_offset, last_offset], the marker is last."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True)
class ProducerEntry:
    """One producer as this partition knows it."""

    producer_id: int
    producer_epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    transaction_first_offset: int = NO_OFFSET
    batches: list[BatchMetadata] = field(default_factory=list)  # the last five, oldest first

    @property
    def last_sequence(self) -> int:
        """The last sequence of this epoch, -1 when none was seen."""
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_completed", "_open", "_partition", "entries", "first_unstable_offset")

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self.entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset, in the order of offsets
        self._completed: list[CompletedTransaction] = []  # the marker is not yet replicated
        self.first_unstable_offset: int | None = None

    # ---- what a leader asks before it appends --------------------------------------------------

    def admit(
        self, header: BatchHeader, data: Buffer, *, from_client: bool = True
    ) -> BatchMetadata | None:
        """The batch that `data` repeats, so that it is not to be stored again; None: it may follow.
        ApiError as `check` and `check_marker`."""
        if header.is_control:
            if (marker := marker_of(data)) is not None:
                self.check_marker(header.producer_id, header.producer_epoch, marker)
            return None
        if from_client and (repeated := self.duplicate(header)) is not None:
            return repeated
        self.check(header, from_client=from_client)
        return None

    def duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch that `header` repeats, if it is one of the producer's last five."""
        entry = self.entries.get(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch:
            return None
        last_sequence = header.last_sequence
        if header.base_sequence == (entry.last_sequence + 1) & SEQUENCE_MAX:
            return None  # it follows, as nearly all do
        for batch in entry.batches:
            if batch.last_sequence == last_sequence and batch.base_sequence == header.base_sequence:
                return batch
        return None

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open in this partition, in this epoch."""
        is_open = producer_id in self._open
        return is_open and self.entries[producer_id].producer_epoch == producer_epoch

    def check(self, header: BatchHeader, *, from_client: bool = True) -> None:
        """Whether the batch may follow. ApiError: INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        OUT_OF_ORDER_SEQUENCE_NUMBER. Batches of the broker itself have no sequence to check."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return  # a producer not known, or forgotten, may begin with any sequence
        self._check_epoch(entry, header.producer_epoch)
        if from_client:
            self._check_sequence(header)
        if entry.transaction_first_offset >= 0 and not header.is_transactional:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"{self._partition}: producer {header.producer_id} wrote outside of the "
                f"transaction it has open since offset {entry.transaction_first_offset}",
            )

    def check_marker(
        self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> None:
        """Whether a coordinator may end the producer's transaction. ApiError:
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        self._check_epoch(entry, producer_epoch)
        if entry.coordinator_epoch > marker.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"{self._partition}: producer {producer_id} marker of coordinator epoch "
                f"{marker.coordinator_epoch}, current {entry.coordinator_epoch}",
            )

    def _check_epoch(self, entry: ProducerEntry, producer_epoch: int) -> None:
        if producer_epoch < entry.producer_epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{self._partition}: producer {entry.producer_id} epoch {producer_epoch}, "
                f"current {entry.producer_epoch}",
            )

    def next_sequence(self, header: BatchHeader) -> int:
        """The sequence that a batch of this producer and epoch has to begin with."""
        entry = self.entries.get(header.producer_id)
        if entry is None or entry.producer_epoch == NO_EPOCH != header.producer_epoch:
            return header.base_sequence  # a producer not known may begin with any
        if entry.producer_epoch != header.producer_epoch or not entry.batches:
            return 0  # another epoch, or one that is known by a marker alone
        return (entry.last_sequence + 1) & SEQUENCE_MAX

    def last_offset(self, producer_id: int) -> int:
        """Where the producer's last batch ends; NO_OFFSET when none is known."""
        entry = self.entries.get(producer_id)
        return entry.batches[-1].last_offset if entry is not None and entry.batches else NO_OFFSET

    def _check_sequence(self, header: BatchHeader) -> None:
        expected = self.next_sequence(header)
        if header.base_sequence != expected:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{self._partition}: producer {header.producer_id} epoch {header.producer_epoch} "
                f"sequence {header.base_sequence}, expected {expected}",
            )

    # ---- what is in the log --------------------------------------------------------------------

    def replay(
        self, header: BatchHeader, base_offset: int, timestamp: int, data: Buffer
    ) -> AbortedTransaction | None:
        """A batch is in the log at `base_offset`; the transaction that it has aborted, if it has.

        `data` is the batch: of all but a control batch it may be empty.
        """
        if not header.is_control:
            self.append(header, base_offset, timestamp)
            return None
        marker = marker_of(data)
        completed = None if marker is None else self.end_transaction(header, base_offset, marker)
        if completed is None or not completed.is_aborted:
            return None
        return AbortedTransaction(*completed[:3], self.last_stable_offset_after(completed))

    def append(self, header: BatchHeader, base_offset: int, timestamp: int) -> None:
        """A data batch is in the log at `base_offset`."""
        entry = self._entry(header.producer_id, header.producer_epoch)
        delta = header.last_offset_delta
        batches = entry.batches
        if len(batches) == BATCHES_MAX:
            del batches[0]
        batches.append(BatchMetadata(header.last_sequence, base_offset + delta, delta, timestamp))
        entry.last_timestamp = timestamp
        if header.is_transactional and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset
            self._open[header.producer_id] = base_offset
            if self.first_unstable_offset is None:
                self.first_unstable_offset = base_offset

    def end_transaction(
        self, header: BatchHeader, offset: int, marker: EndTransactionMarker
    ) -> CompletedTransaction | None:
        """A marker is in the log at `offset`; the transaction that it ended, if one was open.

        It holds readers back until `on_high_watermark` has passed the marker.
        """
        entry = self._entry(header.producer_id, header.producer_epoch)
        entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
        entry.last_timestamp = header.max_timestamp
        first_offset, entry.transaction_first_offset = entry.transaction_first_offset, NO_OFFSET
        if first_offset < 0:
            return None
        self._open.pop(header.producer_id, None)
        is_aborted = marker.control_type is ControlType.ABORT
        completed = CompletedTransaction(header.producer_id, first_offset, offset, is_aborted)
        self._completed.append(completed)
        return completed

    def _entry(self, producer_id: int, producer_epoch: int) -> ProducerEntry:
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, producer_epoch)
        elif entry.producer_epoch != producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches.clear()
        return entry

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The end for readers of committed records once `completed` is replicated."""
        return min(self._open.values(), default=completed.last_offset + 1)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below the high watermark no longer hold readers back."""
        if self._completed:
            self._completed = [t for t in self._completed if t.last_offset >= high_watermark]
        self.update_first_unstable_offset()

    def update_first_unstable_offset(self) -> None:
        """Recomputes `first_unstable_offset`, which transactions ending may have raised."""
        firsts = [transaction.first_offset for transaction in self._completed]
        firsts += islice(self._open.values(), 1)  # the first one opened first
        self.first_unstable_offset = min(firsts, default=None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that were silent for `expiration_ms`, none in a transaction."""
        gone = [
            entry.producer_id
            for entry in self.entries.values()
            if entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in gone:
            del self.entries[producer_id]

    def clear(self) -> None:
        """Forgets all."""
        self.entries.clear()
        self._open.clear()
        self._completed = []
        self.first_unstable_offset = None

    # ---- snapshots -----------------------------------------------------------------------------

    def to_snapshot(self) -> bytes:
        """All batches of all entries, in Kafka's format."""
        parts = [part for entry in self.entries.values() for part in _snapshot_batches(entry)]
        body = bytearray(_HEAD.pack(_VERSION, 0, len(parts)) + b"".join(parts))
        _CRC.pack_into(body, _CRC_START, crc32c(bytes(body[_COVERED_START:])))
        return bytes(body)

    def load_snapshot(self, data: bytes, path: str) -> None:
        """Replaces all that is known; StorageError, and nothing changed, when it is no snapshot."""
        entries: dict[int, ProducerEntry] = {}
        for entry in _snapshot_entries(data, path):
            before = entries.get(entry.producer_id)
            if before is not None and before.producer_epoch == entry.producer_epoch:
                entry.batches[:0] = before.batches[1 - BATCHES_MAX :]
            entries[entry.producer_id] = entry
        self.clear()
        self.entries = entries
        in_transaction = [e for e in entries.values() if e.transaction_first_offset >= 0]
        for entry in sorted(in_transaction, key=lambda entry: entry.transaction_first_offset):
            self._open[entry.producer_id] = entry.transaction_first_offset
        self.update_first_unstable_offset()


def marker_of(data: Buffer) -> EndTransactionMarker | None:
    """The marker in a control batch; None for a control type that ends no transaction."""
    columns = decode(data, check_crc=False)
    if not len(columns):  # compaction kept the batch for its producer's sake
        return None
    return parse_end_transaction_marker(columns.keys[0], columns.values[0])


def _snapshot_batches(entry: ProducerEntry) -> Iterator[bytes]:
    *earlier, last = entry.batches or [BatchMetadata(-1, NO_OFFSET, 0, NO_TIMESTAMP)]
    for batch in (*earlier, last._replace(timestamp=entry.last_timestamp)):
        yield _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )


def _snapshot_entries(data: bytes, path: str) -> Iterator[ProducerEntry]:
    if len(data) < _HEAD.size:
        raise StorageError(f"{path}: {len(data)} bytes, a snapshot has {_HEAD.size} or more")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or len(data) != _HEAD.size + count * _ENTRY.size:
        raise StorageError(f"{path}: version {version}, {count} batches in {len(data)} bytes")
    if crc32c(data[_COVERED_START:]) != crc:
        raise StorageError(f"{path}: the CRC does not match")
    for position in range(_HEAD.size, len(data), _ENTRY.size):
        (
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_offset,
        ) = _ENTRY.unpack_from(data, position)  # fmt: skip
        batches = [BatchMetadata(sequence, offset, delta, timestamp)] if offset >= 0 else []
        yield ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches)
