"""What compaction keeps: the whole policy.                                                [P]

Of every key the record with the largest offset stays, where it is: offsets never change. Around
that rule stand four others, so that nobody who reads the log is misled:

    tombstone   a record without a value says that its key is gone. It stays for
                delete.retention.ms after the first cleaning that meets it, so that whoever reads
                along learns of it. That cleaning writes the end of the time, the delete horizon,
                into the batch's header (KIP-534), which alone counts from then on.
    aborted     records of a transaction that was aborted count for nothing: they go at once, and
                hide no older record of their key.
    marker      stays as long as a batch of its transaction does, then for delete.retention.ms.
    empty       a batch whose records are all gone goes too, unless its header is needed: a
                producer's last one, which tells its sequence and epoch after a restart, and the
                last of the part that is cleaned, which tells where that part ends. A marker that
                is needed for that stays whole: an emptied one would tell no epoch.

Records from `mapped_until` on stay whatever they are: the map has not seen what comes after them.

Owns   `judge`, what is to be done with a batch, and `keeps`, whether one record stays by its key.
Never  looks at bytes: headers and markers come parsed.
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
    """Which of a batch's records stay."""

    NONE = "none, whatever they are"
    LATEST = "those that `keeps` says"
    ALL = "all: they are no users' records"


class Verdict(NamedTuple):
    """What is to be done with a batch."""

    stays: Stays
    keep_empty: bool  # the header stays even when no record does
    begins_to_go: bool  # a marker that nothing needs: it gets its delete horizon
    tombstones_go: bool  # their horizon has passed


class LastBatch(NamedTuple):
    """What the log knows of a producer that may still write."""

    last_data_offset: int | None  # None: of this producer only a marker is known
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The part of a log that is cleaned, and what must survive in it."""

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
    """The transactions that a walk over a log, from its start, is in the midst of."""

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
        """Whether nothing needs the marker any more: the walk has met no batch of what it ends.
        An abort that is needed joins `still_aborted`: readers must be told of it."""
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
    """What is to be done with a batch; `marker` is what a control batch says, None if nothing."""
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
    """Whether a producer that may still write is known by this batch."""
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
    """Whether a record stays. `latest` is the offset of its key's latest record that the map knows,
    -1 where it knows none, None for a record without a key."""
    if offset >= mapped_until:
        return True
    if latest is None or (tombstones_go and not has_value):
        return False
    return offset >= latest
