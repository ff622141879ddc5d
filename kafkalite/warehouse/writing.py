"""A worker's part of a load: one offset range becomes one Parquet file per partition.      [IO]

Rows are sorted by their timestamp, so that the statistics of row groups let readers skip most of
them. A range whose rows need more than ROWS_BYTES_MAX bytes of memory is written in several parts.

Owns   the files that it writes into the staging folder; each attempt has names of its own.
Fails  with the disk's errors, and with those of the records that it reads.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.warehouse.files import sync
from kafkalite.warehouse.partitioning import TIMES, Partitioning, file_name
from kafkalite.warehouse.target import StagedFile
from kafkalite.warehouse.workspace import Staged, note_staged, read_staged

ROWS_BYTES_MAX: Final = 256 << 20
ROW_GROUP_ROWS: Final = 262_144


@dataclass(frozen=True, slots=True)
class Read:
    """Rows that were read, and the records among them that could not be decoded."""

    rows: pa.RecordBatch
    dead: pa.RecordBatch | None = None
    skipped: int = 0


ReadRange: TypeAlias = Callable[[OffsetRange], Iterator[Read]]  # picklable: workers are processes
WriteRows: TypeAlias = Callable[
    [OffsetRange, Sequence[pa.RecordBatch], int], Iterable[StagedFile]
]  # a range, some of its rows, and the number of that part


@dataclass(frozen=True, slots=True)
class StageRange:
    """Stages a range. Picklable: a worker process or a Spark task calls it."""

    rows: ReadRange
    staging: Path
    partitioning: Partitioning
    is_sorted: bool = True
    field_in_files: bool = False  # the field that names the folders

    def __call__(self, wanted: OffsetRange) -> Staged:
        """What was staged, or what an earlier attempt has staged already."""
        return stage(self.rows, self.staging, wanted, self._write)

    def _write(
        self, wanted: OffsetRange, batches: Sequence[pa.RecordBatch], part: int
    ) -> Iterator[StagedFile]:
        rows = pa.Table.from_batches(batches)
        name = file_name(wanted, part)
        parts = self.partitioning.parts(rows, is_sorted=self.is_sorted)
        by = self.partitioning.by
        drops = by is not None and by not in TIMES and not self.field_in_files
        for number, (value, own) in enumerate(parts):
            own = own.drop_columns([by]) if drops else own
            path = f"{self.partitioning.folder(value)}{name}"
            yield write_file(self.staging, own, f"{name}.{number}", path, value)


def stage(rows: ReadRange, staging: Path, wanted: OffsetRange, write: WriteRows) -> Staged:
    """Stages a range, unless an earlier attempt has; `write` gets rows that fit in memory."""
    done = read_staged(staging, wanted)
    if done is not None:
        return done
    waiting: list[pa.RecordBatch] = []
    dead: list[pa.RecordBatch] = []
    files: list[StagedFile] = []
    size, skipped, part = 0, 0, 0
    for read in rows(wanted):
        skipped += read.skipped
        if read.dead is not None:
            dead.append(read.dead)
        if read.rows.num_rows:
            waiting.append(read.rows)
            size += read.rows.nbytes
        if size >= ROWS_BYTES_MAX:
            files += write(wanted, waiting, part)
            waiting, size, part = [], 0, part + 1
    if waiting:
        files += write(wanted, waiting, part)
    letters = (_write_dead(staging, wanted, dead),) if dead else ()
    staged = Staged(wanted, tuple(files), letters, skipped)
    sync(staging)
    note_staged(staging, staged)
    return staged


def _write_dead(
    staging: Path, wanted: OffsetRange, batches: Sequence[pa.RecordBatch]
) -> StagedFile:
    name = file_name(wanted)
    return write_file(staging, pa.Table.from_batches(batches), f"{name}.dead", name, None)


def write_file(
    staging: Path, rows: pa.Table, name: str, path: str, partition: str | None
) -> StagedFile:
    """Writes rows into the staging folder, under a name that no other attempt has."""
    staged = f"{name}.{os.getpid()}.{socket.gethostname()}.tmp"
    target = staging / staged
    with open_writer(target, rows.schema) as writer:
        writer.write_table(rows, ROW_GROUP_ROWS)
    sync(target)
    return StagedFile(staged, path, rows.num_rows, target.stat().st_size, partition)


def open_writer(target: Path, columns: pa.Schema) -> Any:
    """A writer of a data file: numbers do not gain from a dictionary."""
    texts = [each.name for each in columns if not pa.types.is_primitive(each.type)]
    return pq.ParquetWriter(target, columns, use_dictionary=texts)
