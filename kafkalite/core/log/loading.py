"""How a partition's log is loaded: valid files, a recovery after a crash, its producers.       [D]

    .deleted .cleaned   go: no reader needs them any more, or they are unfinished
    .swap               replaces the segments that it was made from
    an index alone      goes
    .log                a segment; after a crash those from the recovery point on are read whole,
                        cut at the first torn batch, and their indexes rebuilt

After a clean shutdown nothing is scanned: the last index entries lead to the log's end.

Owns   the order in which that happens, so that a crash in between changes nothing.
Fails  with OSError from the storage, StorageError on a file that is no checkpoint.
Source apache/kafka LogLoader, LogSegment.recover, ProducerStateManager.truncateAndReload.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kafkalite.core.log.epochs import LeaderEpochs
from kafkalite.core.log.place import Place
from kafkalite.core.log.port import TEMPORARY_SUFFIX
from kafkalite.core.log.producer_state import ProducerState
from kafkalite.core.log.scan import verified
from kafkalite.core.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    offset_name,
    offset_of,
)
from kafkalite.core.log.snapshots import Snapshots, replay
from kafkalite.core.protocol.records import BatchHeader
from kafkalite.errors import CorruptBatchError

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
_LEFTOVERS: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)
_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


@dataclass(slots=True)
class Loaded:
    """A log that can be read and written."""

    segments: list[Segment]  # at least one, by base offset; the last is the active one
    producers: ProducerState
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    snapshots: Snapshots
    loss: str | None  # what was there once and is not any more, for the operator


def load(
    place: Place, *, clean_shutdown: bool, recovery_point: int, log_start_offset: int
) -> Loaded:
    """Opens a log. `recovery_point`: below it everything was synced."""
    sizes = _settle(place)
    bases = _offsets_of(sizes, LOG_SUFFIX)
    segments = [place.segment(base, sizes) for base in bases]
    snapshots = Snapshots(place, _offsets_of(sizes, SNAPSHOT_SUFFIX))
    producers = ProducerState(place.partition)
    epochs = LeaderEpochs(place.storage, place.directory)
    size_bytes, on_disk = _size_bytes(segments), recovery_point
    if clean_shutdown:
        recovery_point = max(recovery_point, bases[-1] if bases else 0)
    first = max((i for i, base in enumerate(bases) if base <= recovery_point), default=0)
    end_offset = _trusted_end(place, segments, snapshots, sizes) if clean_shutdown else None
    if end_offset is None:
        _mend_indexes(place, segments, range(first), snapshots, sizes, thoroughly=True)
        end_offset = _recover(place, segments, first, producers, epochs, snapshots)
    else:
        snapshots.reload(producers, segments, log_start_offset, end_offset)
    if clean_shutdown and segments and end_offset < log_start_offset:
        warning = f"{place.partition}: log start offset {log_start_offset} is beyond its end"
        place.report(f"{warning} {end_offset}: it begins with its first file instead")
        log_start_offset = 0
    loss = _loss(size_bytes - _size_bytes(segments), end_offset, on_disk)
    if not segments or end_offset < log_start_offset:
        _start_anew(place, segments, snapshots, log_start_offset)
        producers.clear()
        end_offset = log_start_offset
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    if epochs.damage is not None:
        _find_epochs(place, segments, epochs)
    elif clean_shutdown:
        _look_for_first(place, segments[0].base_offset, epochs)
    epochs.truncate_to(end_offset)
    epochs.truncate_before(log_start_offset)
    segments[-1].begin_writing()
    snapshots.keep_needed(segments)
    recovery_point = end_offset if clean_shutdown else min(recovery_point, end_offset)
    return Loaded(
        segments, producers, epochs, log_start_offset, end_offset, recovery_point, snapshots, loss
    )


def _look_for_first(place: Place, base_offset: int, epochs: LeaderEpochs) -> None:
    """A log that was closed began where its first epoch does, or before."""
    if epochs.entries and epochs.entries[0].start_offset < base_offset:
        began = f"{place.partition}: it began at offset {epochs.entries[0].start_offset}"
        place.report(f"{began}, and its first file begins at {base_offset}: segments are gone")


def _find_epochs(place: Place, segments: list[Segment], epochs: LeaderEpochs) -> None:
    """Reads the leader epochs from the log. Damaged batches are passed over: the epochs before and
    after them are found all the same."""
    place.report(f"{epochs.damage}; leader epochs are read from the log")
    epochs.clear()
    for segment in segments:
        with suppress(CorruptBatchError):
            for _, header in segment.headers(0):
                if header.partition_leader_epoch > epochs.latest:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)


def _size_bytes(segments: list[Segment]) -> int:
    return sum(segment.size_bytes for segment in segments)


def _loss(bytes_cut: int, end_offset: int, on_disk: int) -> str | None:
    """The message about a log that became shorter; everything below `on_disk` was synced."""
    told = []
    if bytes_cut:
        told.append(f"{bytes_cut} bytes from offset {end_offset} on were torn or corrupt, and cut")
    if end_offset < on_disk:
        told.append(f"it ends at offset {end_offset}, though all below {on_disk} was on the disk")
    return "; ".join(told) or None


def _trusted_end(
    place: Place, segments: list[Segment], snapshots: Snapshots, sizes: dict[str, int]
) -> int | None:
    """The end of a log that was closed; None if the files contradict it."""
    if not segments:
        return 0
    last = len(segments) - 1
    try:
        _mend_indexes(place, segments, range(last), snapshots, sizes, thoroughly=False)
        # The end is found by those of the last one.
        _mend_indexes(place, segments, range(last, last + 1), snapshots, sizes, thoroughly=True)
        return segments[last].end_offset()
    except CorruptBatchError:
        return None


def _settle(place: Place) -> dict[str, int]:
    """Removes and completes what a crash left half done; the files that count, with sizes."""
    sizes = place.storage.files(place.directory)
    swaps = [name for name in sizes if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if swaps:
        _complete_swaps(place, sizes, swaps)
        sizes = place.storage.files(place.directory)
    stray = {name for name in sizes if name.endswith((*_LEFTOVERS, SWAP_SUFFIX))}
    for name in sizes:
        stem, dot, suffix = name.rpartition(".")
        if dot + suffix in _INDEX_SUFFIXES and stem + LOG_SUFFIX not in sizes:
            stray.add(name)
    for name in stray:
        place.storage.delete(place.path(name))
    return {name: size for name, size in sizes.items() if name not in stray}


def _complete_swaps(place: Place, sizes: dict[str, int], swaps: list[str]) -> None:
    """Puts finished replacements in their place.

    A replacement is renamed from `.cleaned` to `.swap` once it is synced, before the first of the
    segments it replaces goes. It covers the offsets up to the last of its batches.
    """
    logs = _offsets_of([name for name in sizes if name not in swaps], LOG_SUFFIX)
    for base_offset in _offsets_of(swaps, SWAP_SUFFIX):
        swap = Segment(
            place.storage, place.directory, base_offset, place.cache, place.opened.wall_ms,
            suffix=SWAP_SUFFIX, mend=place.mend,
        )  # fmt: skip
        end_offset = max(
            (header.next_offset for _, header in swap.headers(0)), default=base_offset + 1
        )
        for covered in [base for base in logs if base_offset <= base < end_offset]:
            place.segment(covered).delete()
        swap.rename(SWAP_SUFFIX, "")
        swap.close()
    place.storage.sync_directory(place.directory)


def _offsets_of(sizes: Iterable[str], suffix: str) -> list[int]:
    """The offsets in the names of the files with `suffix`, ascending."""
    offsets = (offset_of(name) for name in sizes if name.endswith(suffix))
    return sorted(offset for offset in offsets if offset is not None)


def _mend_indexes(
    place: Place,
    segments: list[Segment],
    which: range,
    snapshots: Snapshots,
    sizes: dict[str, int],
    *,
    thoroughly: bool,
) -> None:
    """Makes anew, from the log, the indexes of `which` that are missing or cannot be right."""
    for number in which:
        segment = segments[number]
        if not segment.size_bytes:
            continue
        if offset_name(segment.base_offset) + INDEX_SUFFIX not in sizes:
            _index_aborts(place, segments, number, snapshots)
        elif segment.has_sane_indexes(thoroughly=thoroughly):
            continue
        place.report(f"{segment.log.path}: its indexes are missing or damaged, and are made anew")
        segment.clear_indexes()
        segment.begin_writing()
        for position, header in segment.headers(0):
            segment.reindex(position, header, place.config.index_interval_bytes)
        segment.end_writing()


def _index_aborts(place: Place, segments: list[Segment], number: int, snapshots: Snapshots) -> None:
    """Rebuilds the index of a segment's aborted transactions, after indexes were removed."""
    segment, producers = segments[number], ProducerState(place.partition)
    before, base_offset = segments[:number], segment.base_offset
    snapshots.reload(producers, before, segments[0].base_offset, base_offset)
    segment.transaction_index.clear()
    for position, header in segment.headers(0):
        aborted = replay(producers, segment, position, header)
        if aborted is not None:
            segment.transaction_index.append(aborted)


def _recover(
    place: Place,
    segments: list[Segment],
    first: int,
    producers: ProducerState,
    epochs: LeaderEpochs,
    snapshots: Snapshots,
) -> int:
    """Reads the segments from `first` on and cuts a torn end. Returns the log's end offset."""
    if not segments:
        return 0
    end_offset = segments[first].base_offset
    snapshots.reload(producers, segments[:first], segments[0].base_offset, end_offset)
    index_interval_bytes = place.config.index_interval_bytes
    may_have_gaps = place.config.is_compacted or place.was_cleaned
    for number in range(first, len(segments)):
        segment = segments[number]
        if segment.base_offset != end_offset and not may_have_gaps:
            _delete_from(segments, number)  # the end of the segment before it never got synced
            break
        segment.clear_indexes()
        segment.transaction_index.clear()
        segment.begin_writing()
        last: tuple[int, BatchHeader] | None = None
        for last in verified(segment.log, segment.base_offset):
            position, header = last
            segment.reindex(position, header, index_interval_bytes)
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                aborted = replay(producers, segment, position, header)
                if aborted is not None:
                    segment.transaction_index.append(aborted)
        end_offset = segment.base_offset if last is None else last[1].next_offset
        valid_bytes = 0 if last is None else last[0] + last[1].size_bytes
        if valid_bytes < segment.size_bytes:
            _delete_from(segments, number + 1)  # first: what is cut would not tell a second time
            segment.log.truncate(valid_bytes)
        if segment is segments[-1]:
            break  # it becomes the active one: its indexes are written when it is no more
        segment.end_writing()
    snapshots.drop(lambda offset: offset > end_offset)
    return end_offset


def _delete_from(segments: list[Segment], number: int) -> None:
    for lost in segments[number:]:
        lost.delete()
    del segments[number:]


def _start_anew(
    place: Place, segments: list[Segment], snapshots: Snapshots, log_start_offset: int
) -> None:
    """An empty log that begins at `log_start_offset`. Its file is made at the first append,
    except where the name is all that remembers the offset."""
    for segment in segments:
        segment.delete()
    snapshots.drop(lambda offset: True)
    segments[:] = [place.segment(log_start_offset, {})]
    if log_start_offset:
        segments[0].log.create()
