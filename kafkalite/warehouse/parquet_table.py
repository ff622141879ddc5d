"""A table of Parquet files with a manifest of the offset ranges in them.                  [IO]

    TABLE/_kafkalite/00000007.json    a committed load: ranges, files, columns, partitioning
    TABLE/orders-2-0-84213.parquet    a data file, there for any reader of Parquet

A load is committed by the rename that creates its entry. Its files then move from the staging
folder to their names; the next load finishes that if the process is killed in between. So a
reader of the folder sees each record at most once, and exactly once after the load.

Entries of the first format are lists of ranges. Loads in that format wrote rows by day under their
final names and committed afterwards: `pending.json` was their plan, and `recover` undoes it.

Owns   the table's files and its manifest.
Fails  with StorageError naming an entry that cannot be read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError
from kafkalite.warehouse.files import move, sync, write_json
from kafkalite.warehouse.partitioning import Partitioning, file_name
from kafkalite.warehouse.target import Epoch, StagedFile
from kafkalite.warehouse.workspace import FOLDER, Workspace

OLD_FOLDERS = Partitioning("day")
VERSION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed load; `columns` is None in entries of the old format."""

    ranges: tuple[OffsetRange, ...]
    files: tuple[StagedFile, ...]
    columns: pa.Schema | None
    partitioning: Partitioning


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """The table in the folder `table`."""

    table: Path

    @property
    def folder(self) -> Path:
        """The directory of the manifest."""
        return self.table / FOLDER

    @property
    def field_in_files(self) -> bool:
        """Whether files have the field of the folders: readers take it from the folders."""
        return False

    def loads(self) -> list[Path]:
        """The committed loads, oldest first."""
        return sorted(self.folder.glob("[0-9]*.json"))

    def entries(self) -> Iterator[Entry]:
        """The committed loads, newest first."""
        return map(_read_entry, reversed(self.loads()))

    def offsets(self) -> dict[TopicPartition, int]:
        """For each partition the first offset that the table does not hold."""
        ends: dict[TopicPartition, int] = {}
        for entry in self.entries():
            for done in entry.ranges:
                ends[done.topic_partition] = max(ends.get(done.topic_partition, 0), done.end)
        return ends

    def partitioning(self) -> Partitioning | None:
        """The folders of the table; None while nothing is committed."""
        return next((entry.partitioning for entry in self.entries()), None)

    def columns(self) -> pa.Schema | None:
        """The columns of the newest load that wrote a file."""
        for entry in self.entries():
            if entry.files:
                return entry.columns
            files = (f for r in entry.ranges for f in self.table.glob(f"*/{file_name(r)}"))
            if entry.columns is None and (newest := next(files, None)):
                return pq.read_schema(newest)
        return None

    def files(self) -> None:
        """None: the folder has the files of the table and no others."""

    def recover(self) -> Iterator[str]:
        """Finishes the moves of the last load, and removes the files of a load in the old format
        that broke off.
        """
        staging = Workspace(self.table).staging
        newest = next(self.entries(), None)
        if newest is not None and staging.exists():
            yield from self._publish(newest.files, staging)
        pending = self.folder / "pending.json"
        if pending.exists():
            for wanted in _ranges(pending, _read_json(pending)):
                for file in self.table.glob(f"*/{file_name(wanted)}"):
                    file.unlink()
            yield "undid a load in the old format"
            pending.unlink()

    def commit(self, epoch: Epoch, staging: Path) -> Iterator[str]:
        """Writes the entry, then gives the files their names."""
        if not epoch.is_in(self.offsets()):
            self.folder.mkdir(parents=True, exist_ok=True)
            numbers = [int(path.stem) for path in self.loads()]
            path = self.folder / f"{max(numbers, default=-1) + 1:08}.json"
            write_json(path, _entry(epoch))
            yield "committed"
        yield from self._publish(epoch.files, staging)

    def _publish(self, files: tuple[StagedFile, ...], staging: Path) -> Iterator[str]:
        for file in files:
            if (staging / file.staged).exists():
                move(staging / file.staged, self.table / file.path)
                yield f"published {file.path}"
        for folder in {self.table, *((self.table / file.path).parent for file in files)}:
            if folder.exists():
                sync(folder)


def _entry(epoch: Epoch) -> dict[str, Any]:
    return {
        "version": VERSION,
        "ranges": [asdict(wanted) for wanted in epoch.ranges],
        "files": [asdict(file) for file in epoch.files],
        "columns": base64.b64encode(epoch.columns.serialize()).decode(),
        "partition_by": epoch.partitioning.by,
    }


def _read_entry(path: Path) -> Entry:
    found = _read_json(path)
    if isinstance(found, list):
        return Entry(tuple(_ranges(path, found)), (), None, OLD_FOLDERS)
    try:
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}")
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["columns"])))
        files = tuple(StagedFile(**file) for file in found["files"])
        ranges = tuple(_ranges(path, found["ranges"]))
        return Entry(ranges, files, columns, Partitioning(found["partition_by"]))
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise StorageError(f"{path}: not an entry of a manifest: {error}") from error


def _ranges(path: Path, entries: Any) -> list[OffsetRange]:
    try:
        return [OffsetRange(**entry) for entry in entries]
    except TypeError as error:
        raise StorageError(f"{path}: not a manifest of offset ranges: {error}") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: not a manifest of offset ranges: {error}") from error
