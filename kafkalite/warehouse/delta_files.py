"""The files of a Delta table, and how a compaction replaces them.                          [IO]

One commit of Delta's log adds the new files and takes the old ones out, without a change of data.
It builds on the version whose files were merged: if another writer commits meanwhile, it fails.
Transaction identifiers, which say how far the table is, stay as they are.

Owns   nothing.
Fails  with StorageError if another writer committed first, with ConfigError for tables with
       deletion vectors, which other writers make.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.compaction import DataFile, publish
from kafkalite.warehouse.delta_table import DeltaTarget, statistics_of
from kafkalite.warehouse.partitioning import partition_value
from kafkalite.warehouse.target import StagedFile

HOUR_MS: Final = 3_600_000
RETENTION: Final = "delta.deletedFileRetentionDuration"
RETAINED_HOURS: Final = 7 * 24  # by default
HOURS: Final = re.compile(r"interval (\d+) hours")
DELETION_VECTORS: Final = "deletionVectors"


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of a table that a load made. `now_ms` is the time of removals."""

    target: DeltaTarget
    now_ms: int

    @property
    def table(self) -> Path:
        """The table's folder."""
        return self.target.table

    @property
    def topic(self) -> str:
        """The table's topic."""
        return str(self._open().metadata().name)

    def _open(self) -> DeltaTable:
        self.target.offsets()  # ConfigError for a table that no load made
        found = DeltaTable(str(self.table))
        if DELETION_VECTORS in (found.protocol().writer_features or ()):
            raise ConfigError(
                f"table {self.table} has Delta's feature {DELETION_VECTORS}: files with deleted "
                "rows are not merged here"
            )
        return found

    def recover(self) -> Iterator[str]:
        """Nothing: a commit that is in Delta's log is complete."""
        yield from ()

    def data_files(self) -> list[DataFile]:
        """The files of the newest version."""
        return self._files(self._open())

    def _files(self, found: DeltaTable) -> list[DataFile]:
        by = next(iter(found.metadata().partition_columns), None)
        adds = pa.table(found.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        files = [(unquote(add["path"]), add["size_bytes"]) for add in adds]
        return [
            DataFile(path, size, None if by is None else partition_value(path))
            for path, size in files
            if by is None or path.startswith(f"{by}=")
        ]

    def replace(
        self, old: Sequence[DataFile], new: Sequence[StagedFile], staging: Path
    ) -> Iterator[str]:
        """Gives the files their names, then commits."""
        found = self._open()  # the version that the commit builds on: a later one is a conflict
        if not set(old) <= set(self._files(found)):
            raise StorageError(f"table {self.table}: another writer was first")
        yield from publish(self.table, new, staging)
        by = next(iter(found.metadata().partition_columns), None)
        removed = [self._remove(file, by) for file in old]
        try:
            found.create_write_transaction(
                [*(self._add(file, by) for file in new), *removed],
                "append",
                found.schema(),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError as error:
            raise StorageError(f"table {self.table}: another writer was first: {error}") from error

    def _add(self, file: StagedFile, by: str | None) -> AddAction:
        statistics = json.dumps(statistics_of(pq.read_metadata(self.table / file.path)))
        values = {} if by is None else {by: file.partition}
        return AddAction(file.path, file.size, values, self.now_ms, False, statistics)

    def _remove(self, file: DataFile, by: str | None) -> RemoveAction:
        values = {} if by is None else {by: file.partition}
        return RemoveAction(file.path, False, self.now_ms, file.size, values)

    def remove_old(self, before_ms: int) -> Iterator[str]:
        """Vacuums the table: files that left it before that time, and older ones that were never in
        it. Delta counts in hours.
        """
        hours = max(0, ceil((self.now_ms - before_ms) / HOUR_MS))
        found = self._open()
        if hours > _retained_hours(found):
            found.alter.set_table_properties({RETENTION: f"interval {hours} hours"})
        if not found.vacuum(hours, enforce_retention_duration=False, full=True):
            return  # a vacuum writes two entries into the log
        yield from found.vacuum(hours, False, enforce_retention_duration=False, full=True)


def _retained_hours(found: DeltaTable) -> int:
    """How long the table remembers files that left it; a vacuum judges others by their age."""
    configured = found.metadata().configuration.get(RETENTION)
    given = None if configured is None else HOURS.fullmatch(configured)
    return RETAINED_HOURS if given is None else int(given[1])
