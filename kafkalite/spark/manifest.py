"""A table's manifest: the offset ranges in its files.                                   [IO]

    TABLE/_kafkalite/00000007.json    a finished load: its ranges, committed by a rename
    TABLE/_kafkalite/pending.json     a planned load, which may be half written
    TABLE/_kafkalite/lock             held by the loading process

A load is planned, then written under names that the plan determines, then committed. After a crash
the same plan runs again and replaces the same files, so the table has each range exactly once.

Owns   the folder `_kafkalite` of one table. Spark and other readers skip names with a leading _.
Fails  with StorageError if the manifest cannot be read (naming the file), if a log has become
       shorter than the loaded ranges, or if another load holds the table.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kafkalite.columnar.ranges import OffsetRange, ranges_between
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of the table in the folder `table`."""

    table: Path

    @property
    def folder(self) -> Path:
        """The directory of the manifest."""
        return self.table / "_kafkalite"

    @property
    def pending(self) -> Path:
        """The plan of a load that is not committed."""
        return self.folder / "pending.json"

    def loads(self) -> list[Path]:
        """The committed loads, oldest first."""
        return sorted(self.folder.glob("[0-9]*.json"))

    def ranges(self) -> Iterator[OffsetRange]:
        """The loaded ranges of the table, the newest load first."""
        for load in reversed(self.loads()):
            yield from _read(load)

    def committed(self) -> dict[TopicPartition, int]:
        """For each partition the first offset that the table does not hold."""
        ends: dict[TopicPartition, int] = {}
        for done in self.ranges():
            ends[done.topic_partition] = max(ends.get(done.topic_partition, 0), done.end)
        return ends

    def planned(self) -> list[OffsetRange]:
        """The ranges of a load that broke off, and may be half written."""
        return _read(self.pending) if self.pending.exists() else []

    def gaps(self, first: Mapping[TopicPartition, int]) -> list[OffsetRange]:
        """What was deleted of logs that begin at `first` now, after the last load of it."""
        done, end = self.committed(), dict(first)
        for broken_off in self.planned():
            tp = broken_off.topic_partition
            done[tp], end[tp] = broken_off.start, min(first.get(tp, 0), broken_off.end)
        return ranges_between(done, {tp: offset for tp, offset in end.items() if tp in done})

    def plan(
        self, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """The ranges to load now: those of a load that broke off, else all up to `end`.

        `first` is where each log begins; what was deleted before it was loaded is gone, and `gaps`
        tells. StorageError where a log ends before what the table has of it.
        """
        done, planned = self.committed(), self.planned()
        for tp, offset in (done | {r.topic_partition: r.end for r in planned}).items():
            if end.get(tp, 0) < offset:
                raise StorageError(
                    f"table {self.table} holds {tp} up to offset {offset}, and the log ends at "
                    f"{end.get(tp, 0)}: its topic was made anew, or has lost records; such a log "
                    "needs a warehouse of its own"
                )
        if planned:
            return planned
        start = {tp: max(done.get(tp, 0), first.get(tp, 0)) for tp in end}
        ranges = ranges_between(start, end)
        if ranges:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(self.pending, ranges)
        return ranges

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other loads away from the table. StorageError while there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"table {self.table}: another load is writing it") from None
            yield
        finally:
            os.close(fd)

    def commit(self) -> None:
        """The pending load is in the table now: its files are on the disk before we say so."""
        os.sync()
        self.pending.replace(self.folder / f"{len(self.loads()):08}.json")
        _sync(self.folder)


def _read(path: Path) -> list[OffsetRange]:
    try:
        return [OffsetRange(**entry) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"{path}: not a manifest of offset ranges: {error}") from error


def _write(path: Path, ranges: Sequence[OffsetRange]) -> None:
    fresh = path.with_suffix(".tmp")
    with fresh.open("w") as file:
        json.dump([asdict(wanted) for wanted in ranges], file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
