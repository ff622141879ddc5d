"""Data files written anew, where the columns of a table get other names or wider types.      [IO]

    TABLE/_kafkalite/staging/rewritten-….json     a file is written anew: what it became
    TABLE/_kafkalite/staging/rewritten-….tmp      such a file

A file is read and written a row group at a time. Readers see the new files once a commit has put
them into the place of the old ones.

Owns   the files that it writes into the staging folder.
Fails  with the disk's errors; with ConfigError, naming the file, for values that do not fit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.errors import ConfigError
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.evolution import Aliases, Evolution, conformed
from kafkalite.warehouse.files import sync, write_json
from kafkalite.warehouse.partitioning import TIMES, Partitioning
from kafkalite.warehouse.target import NewColumns, Rewritten, StagedFile, Stored, Target
from kafkalite.warehouse.workspace import noted
from kafkalite.warehouse.writing import ROW_GROUP_ROWS, Read, ReadRange, open_writer

NUMBER: Final = re.compile(r"\.columns-\d+$")


@dataclass(frozen=True, slots=True)
class RewriteFile:
    """Writes a file anew with `columns`, of which it has some under older names; the file may have
    the name that stands beside it. Picklable: a worker process or a Spark task calls it.
    """

    table: Path
    staging: Path
    columns: pa.Schema
    older_names: Aliases

    def __call__(self, item: tuple[Stored, str]) -> Rewritten:
        """What was written, or what an earlier attempt has written already."""
        old, path = item
        mark = f"rewritten-{sha256(path.encode()).hexdigest()[:24]}"
        found = noted(self.staging / f"{mark}.json")
        if found is not None:
            return _rewritten(found)
        staged = f"{mark}.{os.getpid()}.tmp"
        target = self.staging / staged
        try:
            records = self._write(self.table / old.path, target)
        except ConfigError as error:
            raise ConfigError(f"{self.table / old.path}: {error}") from error
        sync(target)
        size = target.stat().st_size
        made = Rewritten(StagedFile(staged, path, records, size, old.partition), old)
        write_json(self.staging / f"{mark}.json", asdict(made))
        return made

    def _write(self, source: Path, target: Path) -> int:
        with pq.ParquetFile(source) as file:
            there = {*file.schema_arrow.names, *self.older_names}
            columns = pa.schema([each for each in self.columns if each.name in there])
            with open_writer(target, columns) as writer:
                for rows in file.iter_batches(ROW_GROUP_ROWS):
                    writer.write_batch(conformed(rows, columns, self.older_names))
            return int(file.metadata.num_rows)


def _rewritten(found: dict[str, Any]) -> Rewritten:
    return Rewritten(StagedFile(**found["file"]), Stored(**found["old"]))


@dataclass(frozen=True, slots=True)
class ConformedRows:
    """Rows of a range with the table's types, which may be wider than their own. Picklable."""

    rows: ReadRange
    columns: pa.Schema

    def __call__(self, wanted: OffsetRange) -> Iterator[Read]:
        """The rows; columns that are not the table's stay at their end."""
        for read in self.rows(wanted):
            others = [f for f in read.rows.schema if f.name not in self.columns.names]
            columns = pa.schema([*self.columns, *others])
            is_so = read.rows.schema == columns
            yield read if is_so else replace(read, rows=conformed(read.rows, columns))


@dataclass(frozen=True, slots=True)
class NewSchema:
    """Brings the columns of `target` up to those of new rows."""

    engine: Engine
    target: Target
    staging: Path
    evolution: Evolution
    partitioning: Partitioning

    def steps(self) -> Generator[str, None, int]:
        """Writes files anew and commits them, unless the next commit does without; yields the name
        of each step. The number of files.
        """
        if not self.evolution.changes_files:
            return 0
        columns, by = self.evolution.columns, self.partitioning.by
        if by is not None and by not in TIMES and not self.target.field_in_files:
            columns = pa.schema([each for each in columns if each.name != by])
        older = self.evolution.older_names
        rewrite = RewriteFile(self.target.table, self.staging, columns, older)
        rewritten: list[Rewritten] = []
        for made in self.engine.run(rewrite, self.target.old_files(self.evolution)):
            rewritten.append(made)
            yield f"rewritten {made.old.path}"
        change = NewColumns(self.evolution, tuple(rewritten), self.partitioning)
        for step in self.target.evolve(change, self.staging):
            yield f"columns: {step}"
        return len(rewritten)


def forget(target: Target, staging: Path) -> None:
    """Removes files of a change that broke off from the table's folder. The table still has the
    old file of a change without a commit; files of any other change may be in older versions.
    """
    notes = [noted(path) for path in staging.glob("rewritten-*.json")]
    stored = {file.path for file in target.stored()} if notes else set()
    for made in map(_rewritten, notes):
        if made.old.path in stored:
            (target.table / made.file.path).unlink(missing_ok=True)


def anew(path: str, version: int) -> str:
    """The name of what a file becomes, on top of a version of the table."""
    stem = NUMBER.sub("", path.removesuffix(".parquet"))
    return f"{stem}.columns-{version}.parquet"


def conforms(file: Path, columns: pa.Schema) -> bool:
    """Whether a file has no column that the table lacks or has as another type."""
    types = {each.name: each.type for each in columns}
    return all(types.get(each.name) == each.type for each in pq.read_schema(file))
