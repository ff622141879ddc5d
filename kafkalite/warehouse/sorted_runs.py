"""Data files merged in order of time, a few row groups in memory at once.                  [IO]

    files ─▶ runs, each sorted by `_timestamp` ─▶ one sorted stream ─▶ files of equal size

A file whose rows are sorted is a run. Row groups of other files are sorted one by one into runs of
their own, in the scratch folder. The merge opens a run when the stream comes to its first row, and
takes from all open runs the rows up to the earliest end of what they hold in memory.

Owns   the files that it writes into the scratch folder.
Fails  with the disk's errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kafkalite.warehouse.files import sync
from kafkalite.warehouse.partitioning import TIMESTAMP
from kafkalite.warehouse.writing import ROW_GROUP_ROWS

MEMORY: Final = 128 << 20  # rows of all runs that are open, about
ROW_GROUP_BYTES: Final = 64 << 20
BATCH_ROWS: Final = (1_024, 65_536)


@dataclass(frozen=True, slots=True)
class Run:
    """A file whose rows are sorted; `first` is the time of its first row."""

    path: Path
    first: int


def runs_of(paths: Sequence[Path], scratch: Path) -> list[Run]:
    """The runs of some files, earliest first. All timestamps are there and have statistics."""
    found: list[Run] = []
    for number, path in enumerate(paths):
        if is_sorted(path):
            found.append(Run(path, _first(path)))
            continue
        with closing(pq.ParquetFile(path)) as source:
            for group in range(source.num_row_groups):
                rows = source.read_row_group(group).sort_by(TIMESTAMP)
                own = scratch / f"run-{number}-{group}.parquet"
                pq.write_table(rows, own)
                found.append(Run(own, _first(own)))
    return sorted(found, key=lambda run: run.first)


def is_sorted(path: Path) -> bool:
    """Whether each row of a file is as late as the one before it, or later."""
    last: int | None = None
    with closing(pq.ParquetFile(path)) as source:
        for batch in source.iter_batches(BATCH_ROWS[1], columns=[TIMESTAMP]):
            times = _times(batch.column(0))
            if (last is not None and times[0] < last) or (times[1:] < times[:-1]).any():
                return False
            last = times[-1]
    return True


def times_of(metadata: Any) -> tuple[int, int] | None:
    """The earliest and the latest time of a file, as its statistics say; None if they do not."""
    names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    if TIMESTAMP not in names or not metadata.num_rows:
        return None
    column = names.index(TIMESTAMP)
    found = [metadata.row_group(n).column(column) for n in range(metadata.num_row_groups)]
    known = [each.statistics for each in found if each.is_stats_set and each.statistics.has_min_max]
    if len(known) < len(found) or any(each.null_count for each in known):
        return None
    if any(each.physical_type != "INT64" for each in known):
        return None
    return min(each.min_raw for each in known), max(each.max_raw for each in known)


def _first(path: Path) -> int:
    times = times_of(pq.read_metadata(path))
    assert times is not None, f"{path} has statistics of its times"
    return times[0]


def _times(column: Any) -> Any:
    """Timestamps as an array of whole numbers."""
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


@dataclass(slots=True)
class _Cursor:
    """A run that is open, with the rows of it that are in memory: never none."""

    source: pq.ParquetFile
    batches: Iterator[pa.RecordBatch]
    rows: pa.RecordBatch
    times: Any

    @classmethod
    def opened(cls, run: Run, memory: int) -> _Cursor | None:
        source = pq.ParquetFile(run.path)
        metadata = source.metadata
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
        row_bytes = sum(group.total_byte_size for group in groups) / max(1, metadata.num_rows)
        least, most = BATCH_ROWS
        batches = source.iter_batches(min(most, max(least, int(memory / max(1.0, row_bytes)))))
        cursor = cls(source, batches, pa.record_batch([], names=[]), ())
        return cursor if cursor.fill() else None

    def fill(self) -> bool:
        """Reads more rows if none are left; False at the end of the run."""
        while not len(self.times):
            batch = next(self.batches, None)
            if batch is None:
                self.source.close()
                return False
            self.rows, self.times = batch, _times(batch[TIMESTAMP])
        return True

    def take(self, until: int) -> pa.RecordBatch:
        """The rows up to a time, which leave the cursor."""
        end = int(self.times.searchsorted(until, side="right"))
        taken = self.rows.slice(0, end)
        self.rows, self.times = self.rows.slice(end), self.times[end:]
        return taken


def merged(runs: Sequence[Run], memory: int = MEMORY) -> Iterator[pa.Table]:
    """The rows of all runs in order of their times. All have the same columns, in any order."""
    if not runs:
        return
    columns = _plain(pq.read_schema(runs[0].path))
    waiting = list(reversed(runs))
    share = memory // len(runs)
    cursors: list[_Cursor] = []
    try:
        while waiting or cursors:
            until = min((cursor.times[-1] for cursor in cursors), default=None)
            if waiting and (until is None or waiting[-1].first <= until):
                if (cursor := _Cursor.opened(waiting.pop(), share)) is not None:
                    cursors.append(cursor)
                continue
            assert until is not None, "a run is open"
            taken = [pa.Table.from_batches([cursor.take(until)]) for cursor in cursors]
            cursors = [cursor for cursor in cursors if cursor.fill()]
            alike = [rows.select(columns.names).cast(columns) for rows in taken if rows.num_rows]
            yield alike[0] if len(alike) == 1 else pa.concat_tables(alike).sort_by(TIMESTAMP)
    finally:
        for cursor in cursors:
            cursor.source.close()


def _plain(columns: pa.Schema) -> pa.Schema:
    """Columns without what other writers note about them."""
    return pa.schema([pa.field(each.name, each.type) for each in columns])


@dataclass(slots=True)
class SortedFiles:
    """Writes sorted rows into files of `rows_a_file` rows. Row groups are of equal size, so that
    their statistics prune.
    """

    scratch: Path
    prefix: str
    rows_a_file: int
    paths: list[Path] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _written: int = 0  # rows of the open file
    _waiting: list[pa.Table] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Takes the next rows."""
        while rows.num_rows:
            there = self._written + sum(part.num_rows for part in self._waiting)
            own = rows.slice(0, self.rows_a_file - there)
            rows = rows.slice(own.num_rows)
            self._waiting.append(own)
            self._write_groups()
            if there + own.num_rows == self.rows_a_file:
                self.close()

    def close(self) -> None:
        """Ends the open file; it is on the disk."""
        self._write_groups(is_last=True)
        if self._writer is not None:
            self._writer.close()
            sync(self.paths[-1])
        self._writer, self._written = None, 0

    def _write_groups(self, *, is_last: bool = False) -> None:
        rows = sum(part.num_rows for part in self._waiting)
        size = sum(part.nbytes for part in self._waiting)
        if not rows or not (is_last or rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES):
            return
        table = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._writer = self._opened(table.schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._written += rows
        self._waiting = []

    def _opened(self, columns: pa.Schema) -> pq.ParquetWriter:
        self.paths.append(self.scratch / f"{self.prefix}-{len(self.paths)}.parquet")
        texts = [each.name for each in columns if not pa.types.is_primitive(each.type)]
        by_time = pq.SortingColumn.from_ordering(columns, [(TIMESTAMP, "ascending")])
        return pq.ParquetWriter(
            self.paths[-1], columns, use_dictionary=texts, sorting_columns=by_time
        )
