"""The part of a load that updates rows: from staged changes to the epoch of one commit.       [IO]

    TABLE/_kafkalite/merge.json    the names of files that are in the table's folder before a commit

Each attempt gives its files names of its own, since the table may have changed between a load that
broke off and the load that goes on. Files of an attempt that was not committed are removed.

Owns   `merge.json`, and files of the table with such names that no commit added.
Fails  with ConfigError where a table's folders are named by its key.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.errors import ConfigError
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.files import write_json
from kafkalite.warehouse.merging import (
    Changes,
    FindWinners,
    ReplaceRows,
    WriteNew,
    changes_of,
    count_deleted,
)
from kafkalite.warehouse.partitioning import TIMES, Partitioning, visible
from kafkalite.warehouse.target import Epoch, StagedFile, Stored, Target
from kafkalite.warehouse.workspace import Workspace, noted


@dataclass(slots=True)
class Update:
    """Merges the changes of `ranges` into `target`. `keys` are the columns that name a row."""

    engine: Engine
    target: Target
    workspace: Workspace
    ranges: tuple[OffsetRange, ...]
    keys: tuple[str, ...]
    partitioning: Partitioning
    is_sorted: bool
    rows: int = field(default=0, init=False)  # that are new or replace older ones
    deleted: int = field(default=0, init=False)  # keys whose last change is a delete

    def check(self) -> None:
        """ConfigError where files lack a column of the key, since folders have it."""
        by = self.partitioning.by
        if by in self.keys and not self.target.field_in_files:
            raise ConfigError(f"--partition-by {by}: rows are updated by that column")

    def epoch(self, files: Sequence[StagedFile], columns: pa.Schema) -> Generator[str, None, Epoch]:
        """The epoch that brings the staged changes into the table; yields the name of each step."""
        self.clean()
        found: list[Changes] = []
        staging = self.workspace.staging
        for changes in self.engine.run(FindWinners(staging, self.keys), changes_of(files)):
            found.append(changes)
            yield f"reduced bucket {changes.bucket}"
        token = Path(mkdtemp(prefix=f"{visible(self.ranges[0].topic)}-", dir=staging)).name
        removed: list[Stored] = []
        kept: list[StagedFile] = []
        beaten: dict[int, list[int]] = {changes.bucket: [] for changes in found}
        replace = ReplaceRows(self.target.table, staging, self.keys, tuple(found), token)
        stored = list(enumerate(self.target.stored())) if found else []
        for each in self.engine.run(replace, stored):
            for bucket, lost in each.beaten.items():
                beaten[bucket] += lost
            if each.is_changed:
                removed.append(each.stored)
                kept += [] if each.file is None else [each.file]
                yield f"replaced {each.stored.path}"
        new = yield from self._new_files(token, found, beaten, columns)
        write_json(self.workspace.folder / "merge.json", {"token": token})
        yield "merged"
        return Epoch(self.ranges, (*kept, *new), columns, self.partitioning, True, tuple(removed))

    def _new_files(
        self, token: str, found: Sequence[Changes], beaten: dict[int, list[int]], columns: pa.Schema
    ) -> Generator[str, None, list[StagedFile]]:
        by, staging = self.partitioning.by, self.workspace.staging
        drops = by is not None and by not in TIMES and not self.target.field_in_files
        write = WriteNew(staging, token, self.partitioning, self.is_sorted, drops, columns)
        new: list[StagedFile] = []
        for files in self.engine.run(write, [(each, beaten[each.bucket]) for each in found]):
            new += files
            yield f"wrote {len(files)} files of new rows"
        self.rows = sum(file.records for file in new)
        self.deleted = sum(count_deleted(staging, each) for each in found)
        return new

    def clean(self) -> None:
        """Removes files of an attempt that are in the table's folder, but not in the table. Those
        of an attempt that was committed stay: if they were merged since, older versions have them.
        """
        note = self.workspace.folder / "merge.json"
        found = noted(note)
        if found is None:
            return
        attempt = Epoch(self.ranges, (), pa.schema([]), self.partitioning)
        if not attempt.is_in(self.target.offsets()):
            for path in self.target.table.glob(f"**/{found['token']}.*.parquet"):
                path.unlink()
        note.unlink()
