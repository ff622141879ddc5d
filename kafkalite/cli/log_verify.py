"""One directory of a log, verified: every segment with its indexes, and the small files.    [IO]

Owns   the counts and the faults found; `core.log.inspection` decides what a fault is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from kafkalite.cli.log_dump import documents
from kafkalite.cli.log_files import Directory, FileKind, LogFile, opened
from kafkalite.core.log import inspection
from kafkalite.core.log.inspection import Fault, Seen, SegmentCheck
from kafkalite.core.log.segment import LOG_SUFFIX, offset_name
from kafkalite.errors import StorageError

Show = Callable[[int, int], None]  # takes the bytes and records done so far
INDEXES: Final = (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


class Check:
    """One directory: run it, then look at `faults`, each with file, position and fault."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.faults: list[dict[str, Any]] = []
        self._segments = self._batches = self._records = self._bytes = 0

    def run(self, show: Show) -> None:
        """Checks segments in the order of their offsets, then the other files."""
        of_segments = (FileKind.LOG, *INDEXES)
        bases = {f.base_offset for f in self.directory.files if f.kind in of_segments}
        next_offset = 0
        for base_offset in sorted(bases):
            next_offset = self._segment(base_offset, next_offset, show)
        for file in self.directory.files:
            if file.kind not in of_segments:
                self._small(file)

    def document(self) -> dict[str, Any]:
        """The counts."""
        return {
            "directory": str(self.directory.path),
            "segments": self._segments,
            "batches": self._batches,
            "records": self._records,
            "bytes": self._bytes,
            "faults": len(self.faults),
        }

    @property
    def log_bytes(self) -> int:
        """The size of all that is to be read record by record."""
        return sum(f.path.stat().st_size for f in self.directory.files if f.kind is FileKind.LOG)

    def _segment(self, base_offset: int, next_offset: int, show: Show) -> int:
        """Checks a log and then its indexes. Returns the least base offset of the next segment.

        Indexes are checked only against a sound log: a damaged log does not show their errors.
        """
        path = self.directory.path / (offset_name(base_offset) + LOG_SUFFIX)
        indexes = [f for f in (self.directory.find(k, base_offset) for k in INDEXES) if f]
        if not path.is_file():
            for file in indexes:
                self._add(file.path, Fault(0, f"its segment {path.name} does not exist"))
            return next_offset
        check, seen, faults = SegmentCheck(base_offset, next_offset), [], []
        with opened(path) as readable:
            for found in check.log(readable):
                if isinstance(found, Seen):
                    seen.append(found)
                    show(self._bytes + found.position, self._records + check.records)
                else:
                    faults.append(found)
            size_bytes = readable.size_bytes
        if self.directory.find(FileKind.LOG, base_offset):
            self._segments += 1
            self._batches += check.batches
            self._records += check.records
            self._bytes += size_bytes
            for fault in faults:
                self._add(path, fault)
        for file in indexes if not faults else ():
            for fault in _index_faults(file, seen):
                self._add(file.path, fault)
        return check.next_offset

    def _small(self, file: LogFile) -> None:
        try:
            for _ in documents(self.directory, file, records=False):
                pass
        except StorageError as error:
            self._add(file.path, Fault(0, str(error).removeprefix(f"{file.path}: ")))

    def _add(self, path: Path, fault: Fault) -> None:
        document = {"file": str(path), "position": fault.position, "fault": fault.what}
        self.faults.append(document)


def _index_faults(file: LogFile, seen: list[Seen]) -> Iterator[Fault]:
    data = file.whole()
    if file.kind is FileKind.INDEX:
        return inspection.check_offset_index(data, file.base_offset, seen)
    if file.kind is FileKind.TIME_INDEX:
        return inspection.check_time_index(data, file.base_offset, seen)
    return inspection.check_transaction_index(data, seen)
