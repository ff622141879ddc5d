"""The policy of compaction: which records stay.                                            [P]

The record with the largest offset of each key stays, with its offset. Four more rules keep readers
of the log from being misled:

    tombstone   A record without a value deletes its key. The tombstone stays for
                delete.retention.ms after the first cleaning that finds it, so that readers see it.
                That cleaning writes the end of this time, the delete horizon, into the batch's
                header (KIP-534); later cleanings use only the header.
    aborted     Records of an aborted transaction are removed at once, and an older record of
                their key stays.
    marker      A marker stays as long as a batch of its transaction, then delete.retention.ms.
    empty       A batch without records is removed unless its header is needed. Needed are a
                producer's last batch, which restores its sequence and epoch after a restart, and
                the last batch of the cleaned part, which marks its end. A marker that is needed
                keeps its record, because the record holds the epoch.

All records from `mapped_until` on stay: the map does not know newer records of their keys.

Owns   `judge`, which decides about a batch, and `keeps`, which decides about a record by its key.
Never  looks at bytes: callers parse headers and markers.
Source KIP-534, KIP-98; apache/kafka Cleaner.cleanInto, CleanedTransactionMetadata.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import NamedTuple

from kafkalite.core.log.values import AbortedTransaction
from kafkalite.core.protocol.records import BatchHeader, ControlType, EndTransactionMarker


class Stays(Enum):
    """The records of a batch that stay."""

    NONE = "none, whatever they are"
    LATEST = "those that `keeps` says"
    ALL = "all: they are no users' records"


class Verdict(NamedTuple):
    """The decision about a batch."""

    stays: Stays
    keep_empty: bool  # the header stays even when no record does
    begins_to_go: bool  # a marker that nothing needs: it gets its delete horizon
    tombstones_go: bool  # their horizon has passed


class LastBatch(NamedTuple):
    """The last batch of a producer that may still write."""

    last_data_offset: int | None  # None: of this producer only a marker is known
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The part of a log to clean, and the batches in it that must survive."""

    end_offset: int  # where it ends
    mapped_until: int  # up to where the map has seen it
    producers: Mapping[int, LastBatch]  # by producer id
    now_ms: int
    delete_horizon_ms: int  # of tombstones and markers that have none yet
    needed: memoryview = field(init=False)  # last offsets of what may stay although empty; int64

    def __post_init__(self) -> None:
        offsets = {last.last_data_offset for last in self.producers.values()}
        ascending = sorted({self.end_offset - 1, *(o for o in offsets if o is not None)})
        object.__setattr__(self, "needed", memoryview(array("q", ascending)))


@dataclass(slots=True)
class Transactions:
    """The transactions that are open at the present point of a walk over a log."""

    aborted: Iterable[AbortedTransaction]  # with a record in the part that is walked, in any order
    still_aborted: list[AbortedTransaction] = field(default_factory=list)  # by their markers
    ranges: memoryview = field(init=False)  # of the aborted: producer id, first, last offset; int64
    _coming: list[AbortedTransaction] = field(init=False)
    _open_aborted: dict[int, AbortedTransaction] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)  # producers whose open transaction has a batch

    def __post_init__(self) -> None:
        self._coming = sorted(self.aborted, key=lambda aborted: -aborted.first_offset)
        rows = sorted(aborted[:3] for aborted in self._coming)
        self.ranges = memoryview(array("q", chain.from_iterable(rows)))

    def saw(self, producer_ids: Iterable[int]) -> None:
        """Batches of transactions of these producers were met, none of them aborted."""
        self._seen.update(producer_ids)

    def _open_up_to(self, last_offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= last_offset:
            aborted = self._coming.pop()
            self._open_aborted.setdefault(aborted.producer_id, aborted)

    def on_data(self, header: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction."""
        self._open_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        return header.producer_id in self._open_aborted

    def on_marker(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """Whether the marker can go: the walk has met no batch of its transaction.
        A needed abort joins `still_aborted`, the list for readers."""
        self._open_up_to(header.last_offset)
        if marker is None:
            return header.record_count == 0  # emptied before; an unknown control type stays
        aborted = self._open_aborted.pop(header.producer_id, None)
        was_seen = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        if marker.control_type is ControlType.ABORT:
            if aborted is not None and was_seen:
                self.still_aborted.append(aborted)
            return aborted is None or not was_seen
        return not was_seen


def judge(
    header: BatchHeader,
    marker: EndTransactionMarker | None,
    transactions: Transactions,
    cleaned: Cleaned,
) -> Verdict:
    """The action for a batch; `marker` is a control batch's content, None if it is empty."""
    horizon_ms = header.delete_horizon_ms
    is_due = horizon_ms is not None and horizon_ms <= cleaned.now_ms
    keep_empty = header.next_offset == cleaned.end_offset or _is_last(header, cleaned.producers)
    if header.is_control:
        needless = transactions.on_marker(header, marker)
        stays = Stays.NONE if needless and is_due and not keep_empty else Stays.ALL
        return Verdict(stays, keep_empty, needless and horizon_ms is None, is_due)
    if transactions.on_data(header):
        return Verdict(Stays.NONE, keep_empty, False, is_due)
    return Verdict(Stays.LATEST, keep_empty, False, is_due)


def _is_last(header: BatchHeader, producers: Mapping[int, LastBatch]) -> bool:
    """Whether this batch is the last trace of a producer that may still write."""
    last = producers.get(header.producer_id) if header.has_producer_id else None
    if last is None:
        return False
    if last.last_data_offset is not None:
        return header.last_offset == last.last_data_offset
    return header.is_control and header.producer_epoch == last.producer_epoch


def keeps(
    offset: int,
    has_value: bool,
    *,
    latest: int | None,
    mapped_until: int,
    tombstones_go: bool,
) -> bool:
    """Whether a record stays. `latest` is the offset of its key's latest record in the map, -1 if
    the map has none, None for a record without a key."""
    if offset >= mapped_until:
        return True
    if latest is None or (tombstones_go and not has_value):
        return False
    return offset >= latest
