"""A table of Parquet files with a manifest of the offset ranges in them.                  [IO]

    TABLE/_kafkalite/00000007.json    a committed load: ranges, files, columns, partitioning
    TABLE/orders-2-0-84213.parquet    a data file, there for any reader of Parquet
    TABLE/_common_metadata            the newest columns, as an empty file of Parquet

A load is committed by the exchange of two folders: the table, and its next version with the new
files and the new entry; see `kafkalite.warehouse.versions`. So a reader of the folder sees a load
entirely or not at all. Where a file system cannot exchange folders, the rename that creates the
entry commits the load, and its files get their names afterwards; the next load finishes that if the
process is killed in between.

Where a column gets another name or a wider type, the next version has those files anew, under
their names, that have the old one.

Entries of the first format are lists of ranges. Loads in that format wrote rows by day under their
final names and committed afterwards: `pending.json` was their plan, and `recover` undoes it.

Owns   the table's files and its manifest.
Fails  with StorageError naming an entry that cannot be read.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError
from kafkalite.warehouse.evolution import Evolution
from kafkalite.warehouse.files import move, sync, write_json
from kafkalite.warehouse.partitioning import FOLDER_TYPES, TIMES, Partitioning, file_name
from kafkalite.warehouse.rewriting import conforms
from kafkalite.warehouse.target import Epoch, NewColumns, StagedFile, Stored
from kafkalite.warehouse.versions import GRACE_SECONDS, NoExchange, Versions, link
from kafkalite.warehouse.workspace import FOLDER, Workspace

OLD_FOLDERS = Partitioning("day")
COLUMNS: Final = "_common_metadata"
VERSION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed load; `columns` is None in entries of the old format. `rewritten`: files of
    earlier loads, whose columns have changed.
    """

    ranges: tuple[OffsetRange, ...]
    files: tuple[StagedFile, ...]
    columns: pa.Schema | None
    partitioning: Partitioning
    rewritten: tuple[StagedFile, ...] = ()


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
            if entry.files or entry.rewritten:
                return entry.columns
            files = (f for r in entry.ranges for f in self.table.glob(f"*/{file_name(r)}"))
            if entry.columns is None and (newest := next(files, None)):
                return pq.read_schema(newest)
        return None

    def readers_columns(self) -> pa.Schema | None:
        """The columns with that of the folders, as readers of folders have them. A field of the
        values with the name of the folders is in the files alone.
        """
        columns, by = self.columns(), (self.partitioning() or Partitioning()).by
        if columns is None or by is None:
            return columns
        kind = FOLDER_TYPES.get(by) or (pa.string() if by in TIMES else columns.field(by).type)
        return pa.schema([*(each for each in columns if each.name.lower() != by), (by, kind)])

    def files(self) -> None:
        """None: the folder has the files of the table and no others."""

    def has_updates(self) -> bool | None:
        """Never: readers of a folder cannot see files replaced in one step."""
        return False if self.loads() else None

    def stored(self) -> list[Stored]:
        """No files: none can be replaced."""
        return []

    def old_files(self, evolution: Evolution) -> list[tuple[Stored, str]]:
        """The files that have an old name or type. Their paths stay: the next version of the folder
        has other files there.
        """
        if not evolution.changes_files:
            return []
        files = self.table.glob("**/[!_.]*.parquet")
        paths = sorted(str(file.relative_to(self.table)) for file in files)
        return [
            (Stored(path), path)
            for path in paths
            if not path.startswith(FOLDER) and not conforms(self.table / path, evolution.columns)
        ]

    def recover(self) -> Iterator[str]:
        """Finishes the moves of the last load, and removes the files of a load in the old format
        that broke off.
        """
        staging = Workspace(self.table).staging
        newest = next(self.entries(), None)
        if newest is not None and staging.exists():
            yield from self._publish(newest.files + newest.rewritten, staging)
        self.tell_columns()
        pending = self.folder / "pending.json"
        if pending.exists():
            for wanted in _ranges(pending, _read_json(pending)):
                for file in self.table.glob(f"*/{file_name(wanted)}"):
                    file.unlink()
            yield "undid a load in the old format"
            pending.unlink()

    def next_number(self) -> int:
        """The number of the next entry."""
        return max((int(path.stem) for path in self.loads()), default=-1) + 1

    def commit(self, epoch: Epoch, staging: Path) -> Iterator[str]:
        """Adds the entry and the files in one step, or one after the other if it must be."""
        assert not epoch.has_updates, "no load updates a folder of Parquet files"
        if epoch.is_in(self.offsets()):
            yield from self._publish(epoch.files, staging)
        else:
            yield from self._add(entry_of(epoch), epoch.files, staging)

    def evolve(self, change: NewColumns, staging: Path) -> Iterator[str]:
        """Puts the files that were written anew into the place of the old ones."""
        epoch = Epoch((), (), change.evolution.columns, change.partitioning)
        files = tuple(made.file for made in change.rewritten)
        entry = entry_of(epoch) | {"rewritten": [asdict(file) for file in files]}
        yield from self._add(entry, files, staging)

    def _add(
        self, entry: dict[str, Any], files: tuple[StagedFile, ...], staging: Path
    ) -> Iterator[str]:
        try:
            yield from self._switch(entry, files, staging)
            yield "committed"
        except NoExchange:
            write_json(self.folder / f"{self.next_number():08}.json", entry)
            yield "committed"
            yield from self._publish(files, staging)

    def _switch(
        self, entry: dict[str, Any], files: tuple[StagedFile, ...], staging: Path
    ) -> Iterator[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        versions, number = Versions(self.table), self.next_number()
        fresh = versions.build(f"{number:08}.load")
        try:
            yield "version built"
            for file in files:
                link(staging / file.staged, fresh / file.path)
            write_json(fresh / FOLDER / f"{number:08}.json", entry)
            ParquetTable(fresh).tell_columns()
            yield "version filled"
            versions.switch(fresh)
        except NoExchange:
            shutil.rmtree(fresh)
            raise
        for _ in versions.remove(versions.now() - GRACE_SECONDS, ".load"):
            pass

    def _publish(self, files: tuple[StagedFile, ...], staging: Path) -> Iterator[str]:
        for file in files:
            if (staging / file.staged).exists():
                move(staging / file.staged, self.table / file.path)
                yield f"published {file.path}"
        self.tell_columns()
        for folder in {self.table, *((self.table / file.path).parent for file in files)}:
            if folder.exists():
                sync(folder)

    def tell_columns(self) -> None:
        """Writes the columns where readers of Parquet look for them, in one step."""
        columns, path = self.readers_columns(), self.table / COLUMNS
        if columns is None or (path.exists() and pq.read_schema(path) == columns):
            return
        fresh = path.with_name(f"{COLUMNS}.{os.getpid()}")
        pq.write_metadata(columns, fresh)
        sync(fresh)
        fresh.replace(path)


def entry_of(epoch: Epoch) -> dict[str, Any]:
    """The entry of a commit, as it stands in the manifest."""
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
        rewritten = tuple(StagedFile(**file) for file in found.get("rewritten", ()))
        return Entry(ranges, files, columns, Partitioning(found["partition_by"]), rewritten)
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
