"""The two passes of a cleaning over a run of bytes.                                       [D]

The native loop processes plain batches. It stops at any other batch; that one is processed here,
through the same primitives, and the loop continues after it.

Owns   nothing on the disk: `Filling` writes the kept records to the target segment that it gets.
Never  trusts a batch whose CRC or offsets are wrong.
Fails  with CorruptBatchError, naming the batch's offset; with StorageError if a segment is full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafkalite.compaction.cleaning_pure import Stop
from kafkalite.compaction.loops import OffsetMap, Output, filter_batches, put_batches
from kafkalite.compaction.retain import Cleaned, Transactions, judge
from kafkalite.compaction.rewrite import clean_batch, marker_in, put_batch
from kafkalite.core.log.segment import Segment
from kafkalite.core.protocol.records import BATCH_HEADER_BYTES, BatchHeader, read_header, verify_crc
from kafkalite.errors import CorruptBatchError, StorageError

SEGMENT_BYTES_MAX: Final = (1 << 31) - 1

Pace: TypeAlias = Callable[[int], None]  # told of bytes read or written; may wait, or raise


@dataclass(slots=True)
class Ahead:
    """The batches that a walk over a segment has still to visit: [next_offset, end_offset).

    A batch's CRC does not cover its offset. The only check for offsets is that they ascend within
    their segment.
    """

    next_offset: int
    end_offset: int

    def batch_at(self, run: bytes, position: int) -> tuple[memoryview, BatchHeader] | None:
        """The whole batch there, its CRC true; None when it is not whole."""
        if len(run) - position < BATCH_HEADER_BYTES:
            return None
        header = read_header(run, position)
        if position + header.size_bytes > len(run):
            return None
        first, end = self.next_offset, self.end_offset
        if not first <= header.base_offset < header.next_offset <= end:
            raise CorruptBatchError(
                f"batch with offsets [{header.base_offset}, {header.next_offset}) where those in "
                f"[{first}, {end}) are expected"
            )
        try:
            verify_crc(run, position, header)
        except CorruptBatchError as error:
            raise CorruptBatchError(f"batch at offset {header.base_offset}: {error}") from error
        self.next_offset = header.next_offset
        return memoryview(run)[position : position + header.size_bytes], header


# Sees to the batches of a run: how many bytes of whole ones; None when it wants no more runs.
Take: TypeAlias = Callable[[Ahead, bytes], int | None]


class Mapping:
    """The first pass: it puts keys into the map."""

    def __init__(
        self, offsets: OffsetMap, transactions: Transactions, first_offset: int, entries_max: int
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._first_offset = first_offset
        self._entries_max = entries_max
        self.full_at: int | None = None  # the first offset that found no place in the map

    def take(self, ahead: Ahead, run: bytes) -> int | None:
        """Puts the keys of whole batches into the map; None when that is full."""
        position = 0
        while True:
            position, stop, ahead.next_offset = put_batches(
                self._offsets, run, position, ahead.next_offset, ahead.end_offset,
                self._first_offset, self._entries_max, self._transactions.ranges,
            )  # fmt: skip
            if stop is Stop.FULL:
                self.full_at = ahead.next_offset
                return None
            found = ahead.batch_at(run, position) if stop is Stop.OTHER else None
            if found is None:
                return position
            self.full_at = self._put(*found)
            if self.full_at is not None:
                return None
            position += found[1].size_bytes

    def _put(self, batch: memoryview, header: BatchHeader) -> int | None:
        if header.is_control:
            self._transactions.on_marker(header, marker_in(batch, header))
            return None
        if self._transactions.on_data(header):
            return None
        return put_batch(batch, header, self._offsets, self._first_offset, self._entries_max)


class Filling:
    """The second pass: it copies the kept records of a group of segments into `target`."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: Transactions,
        cleaned: Cleaned,
        target: Segment,
        index_interval_bytes: int,
        pace: Pace,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._cleaned = cleaned
        self._target = target
        self._pace = pace
        self._output = Output(index_interval_bytes)
        self.has_changed = False  # whether it wrote anything else than it took

    def take(self, ahead: Ahead, run: bytes) -> int:
        """Writes what stays of the whole batches."""
        position = 0
        while True:
            position, stop, ahead.next_offset = filter_batches(
                self._offsets, run, position, ahead.next_offset, ahead.end_offset, self._output,
                self._cleaned, self._transactions.ranges,
            )  # fmt: skip
            self._transactions.saw(self._output.take_producers())
            found = ahead.batch_at(run, position) if stop is Stop.OTHER else None
            if found is None:
                break
            self._keep(*found)
            position += found[1].size_bytes
        self._write(run, position)
        return position

    def _keep(self, batch: memoryview, header: BatchHeader) -> None:
        marker = marker_in(batch, header) if header.is_control else None
        known = len(self._transactions.still_aborted)
        verdict = judge(header, marker, self._transactions, self._cleaned)
        for aborted in self._transactions.still_aborted[known:]:
            self._target.transaction_index.append(aborted)
        kept = clean_batch(batch, header, verdict, self._offsets, self._cleaned)
        if kept is not None:
            self._output.append(kept[0], header.last_offset, kept[1].max_timestamp)

    def _write(self, run: bytes, end: int) -> None:
        output, target = self._output, self._target
        with output.view() as data:
            # `startswith` compares blocks, a memoryview one byte after another.
            is_same = len(data) == end and run.startswith(data)
            self.has_changed = self.has_changed or not is_same
            if len(data) > SEGMENT_BYTES_MAX - target.size_bytes:
                raise StorageError(f"{target.log.path}: the kept records need more than 2 GiB")
            if len(data):
                target.append_run(data, output.marks(), output.latest)
                self._pace(len(data))
        output.clear()
