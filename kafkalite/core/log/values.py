"""Values that the log hands to other rooms: contents of its files, without the files.      [P]"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.core.protocol.primitives import Buffer


class Mark(NamedTuple):
    """A batch in a run of batches that gets an index entry."""

    position: int  # of the batch in the run
    last_offset: int  # of the batch
    max_timestamp: int  # of the segment up to the end of the batch
    max_timestamp_offset: int  # last offset of the batch that bears it


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` in [first_offset, last_offset] are hidden from committed readers."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int  # when the marker was written


class TimestampAndOffset(NamedTuple):
    """A record that a search by time found."""

    timestamp: int  # epoch ms
    offset: int
    leader_epoch: int


class GoOn(NamedTuple):
    """A search that has read enough for once: everything before `offset` is searched."""

    offset: int


class Appended(NamedTuple):
    """The result of an append; with `duplicate` the result of the append that it repeats."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 where the producer's time counts
    log_start_offset: int
    duplicate: bool = False


class MemoryRecords(NamedTuple):
    """One batch that was just appended, as it lies in the log's file."""

    data: Buffer
    base_offset: int
    before_offset: int  # above the last record's

    @property
    def size_bytes(self) -> int:
        """How many bytes the batch has."""
        return len(self.data)
