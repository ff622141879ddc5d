"""The staged changes of a load, merged into a table: new rows for those that they replace.   [IO]

    changes ─▶ winners: the last change of each key of the load        a task for each bucket
    a file of the table, winners ─▶ the file without replaced rows     a task for each file
    winners ─▶ files of new rows                                       a task for each bucket

Within a partition the record with the higher offset is later. If several partitions have a key,
the record with the later timestamp wins, and of equal ones that of the higher partition. The
files of a table are rewritten only if they lose rows. A task holds the keys of one bucket and those
of one file in memory, and a row group of its rows.

Owns   the files that it writes into the staging folder.
Never  changes the table: one commit takes files out of it and adds others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafkalite.warehouse.changes import codes, last_of_each
from kafkalite.warehouse.files import sync
from kafkalite.warehouse.identity import identities
from kafkalite.warehouse.partitioning import Partitioning
from kafkalite.warehouse.reading import DELETED
from kafkalite.warehouse.target import StagedFile, Stored
from kafkalite.warehouse.writing import ROWS_BYTES_MAX, write_file

BUCKET_RECORDS: Final = 4_000_000  # of the log: their keys fit in a worker's memory
ORIGIN: Final = ("_partition", "_offset", "_timestamp")
INT64: Final = pa.int64()


@dataclass(frozen=True, slots=True)
class Changes:
    """The staged files of a bucket, and where its winners are noted."""

    bucket: int
    files: tuple[str, ...]
    winners: str


@dataclass(frozen=True, slots=True)
class FindWinners:
    """The last change of each key of a bucket, noted in a file. Picklable."""

    staging: Path
    keys: tuple[str, ...]

    def __call__(self, changes: Changes) -> Changes:
        """The bucket, with the name of the file."""
        wanted = [*dict.fromkeys((*self.keys, *ORIGIN)), DELETED]
        parts = []
        for number, name in enumerate(changes.files):
            rows = pq.read_table(self.staging / name, columns=wanted)
            parts.append(
                pa.table(
                    {
                        "of": identities(rows, self.keys),
                        "partition": rows["_partition"],
                        "offset": rows["_offset"],
                        "at": rows["_timestamp"].cast(INT64),
                        "deleted": rows[DELETED],
                        "file": pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows),
                        "row": _numbers(rows.num_rows),
                    }
                )
            )
        every = pa.concat_tables(parts)
        winners = write_file(self.staging, _winners(every), f"winners.{changes.bucket}", "", None)
        return replace(changes, winners=winners.staged)


def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), INT64)


def _winners(changes: pa.Table) -> pa.Table:
    group = codes(changes["of"].combine_chunks())
    changes = changes.append_column("group", group)
    width = pc.max(changes["partition"]).as_py() + 1
    apart = pc.add(pc.multiply(changes["group"].cast(INT64), width), changes["partition"])
    ordered = pa.table({"apart": apart, "offset": changes["offset"]})
    changes = changes.take(last_of_each(ordered.combine_chunks()))
    later = changes.select(["group", "at", "partition"]).combine_chunks()
    return changes.take(last_of_each(later)).drop_columns(["group"])


@dataclass(frozen=True, slots=True)
class Replaced:
    """A file of the table after its merge. `file` is None if all its rows are replaced; `beaten`
    has winners, by their bucket, that are earlier than the row of the table.
    """

    stored: Stored
    is_changed: bool
    file: StagedFile | None
    beaten: dict[int, list[int]]


@dataclass(frozen=True, slots=True)
class ReplaceRows:
    """A file of the table without the rows that changes replace. Picklable."""

    table: Path
    staging: Path
    keys: tuple[str, ...]
    buckets: tuple[Changes, ...]
    token: str

    def __call__(self, numbered: tuple[int, Stored]) -> Replaced:
        """Stages the file anew if it loses rows."""
        number, stored = numbered
        source = pq.ParquetFile(self.table / stored.path)
        rows = source.read(columns=[*dict.fromkeys((*self.keys, *ORIGIN))])
        for name in set(self.keys) - set(rows.column_names):  # a field that keys have since then
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
        found = identities(rows, self.keys)
        replaced = pa.repeat(pa.scalar(False), len(found))
        beaten: dict[int, list[int]] = {}
        for changes in self.buckets:
            mine, lost = _contest(self.staging / changes.winners, rows, found)
            replaced = pc.or_(replaced, mine)
            if lost:
                beaten[changes.bucket] = lost
        losses = pc.sum(replaced).as_py()
        if not losses:
            return Replaced(stored, False, None, beaten)
        file = None
        if losses < len(found):
            file = self._rewrite(source, number, stored, pc.invert(replaced))
        return Replaced(stored, True, file, beaten)

    def _rewrite(
        self, source: pq.ParquetFile, number: int, stored: Stored, kept: pa.Array
    ) -> StagedFile:
        folder = stored.path.rpartition("/")[0]
        name = f"{self.token}.r{number}.parquet"
        staged = f"{name}.{os.getpid()}.tmp"
        start = rows = 0
        texts = [f.name for f in source.schema_arrow if not pa.types.is_primitive(f.type)]
        path = self.staging / staged
        with pq.ParquetWriter(path, source.schema_arrow, use_dictionary=texts) as writer:
            for group in range(source.num_row_groups):
                whole = source.read_row_group(group)
                own = whole.filter(kept.slice(start, whole.num_rows))
                start, rows = start + whole.num_rows, rows + own.num_rows
                if own.num_rows:
                    writer.write_table(own)
        sync(path)
        target = f"{folder}/{name}" if folder else name
        return StagedFile(staged, target, rows, path.stat().st_size, stored.partition)


def _contest(winners: Path, rows: pa.Table, found: pa.Array) -> tuple[pa.Array, list[int]]:
    """Which rows of a file winners replace, and the winners that are earlier than their row."""
    theirs = pq.read_table(winners, columns=["of", "partition", "at"]).combine_chunks()
    at = pc.index_in(found, value_set=theirs["of"].combine_chunks())
    is_changed = pc.is_valid(at)
    mine = rows.select(["_partition", "_timestamp"]).filter(is_changed)
    met = at.filter(is_changed)
    theirs = theirs.select(["partition", "at"]).take(met)
    time, partition = mine["_timestamp"].cast(INT64), mine["_partition"]
    is_later = pc.or_(
        pc.greater(time, theirs["at"]),
        pc.and_(pc.equal(time, theirs["at"]), pc.greater(partition, theirs["partition"])),
    )
    stays = pc.and_(pc.not_equal(partition, theirs["partition"]), is_later).combine_chunks()
    lost: list[int] = met.filter(stays).to_pylist()
    if not lost:
        return is_changed, lost
    return pc.replace_with_mask(is_changed, is_changed, pc.invert(stays)), lost


@dataclass(frozen=True, slots=True)
class WriteNew:
    """Files of the new rows of a bucket. Picklable."""

    staging: Path
    token: str
    partitioning: Partitioning
    is_sorted: bool
    drops_field: bool  # the field of the folders is not in the files
    columns: pa.Schema

    def __call__(self, item: tuple[Changes, list[int]]) -> list[StagedFile]:
        """Stages the files, of winners that are not beaten."""
        changes, beaten = item
        winners = pq.read_table(self.staging / changes.winners, columns=["file", "row", "deleted"])
        keep = pc.invert(winners["deleted"]).combine_chunks()
        if beaten:
            lost = pc.is_in(_numbers(winners.num_rows), value_set=pa.array(beaten, INT64))
            keep = pc.and_(keep, pc.invert(lost))
        winners = winners.filter(keep)
        files: list[StagedFile] = []
        waiting: list[pa.Table] = []
        size = 0
        for rows in self._rows(changes, winners):
            waiting.append(rows)
            size += rows.nbytes
            if size >= ROWS_BYTES_MAX:
                files += self._write(waiting, changes.bucket, len(files))
                waiting, size = [], 0
        if waiting:
            files += self._write(waiting, changes.bucket, len(files))
        return files

    def _rows(self, changes: Changes, winners: pa.Table) -> Iterator[pa.Table]:
        """The rows of winners, a row group of changes at a time."""
        for number, name in enumerate(changes.files):
            wanted = winners.filter(pc.equal(winners["file"], number))["row"].combine_chunks()
            source, start = pq.ParquetFile(self.staging / name), 0
            for group in range(source.num_row_groups):
                end = start + source.metadata.row_group(group).num_rows
                own = wanted.filter(pc.and_(pc.greater_equal(wanted, start), pc.less(wanted, end)))
                if len(own):
                    rows = source.read_row_group(group, columns=self.columns.names)
                    yield rows.take(pc.subtract(own, start)).cast(self.columns)
                start = end

    def _write(self, batches: Sequence[pa.Table], bucket: int, first: int) -> Iterator[StagedFile]:
        rows = pa.concat_tables(batches)
        by = self.partitioning.by
        parts = self.partitioning.parts(rows, is_sorted=self.is_sorted)
        for number, (value, own) in enumerate(parts, first):
            own = own.drop_columns([by]) if self.drops_field else own
            name = f"{self.token}.{bucket}.{number}.parquet"
            path = f"{self.partitioning.folder(value)}{name}"
            yield write_file(self.staging, own, name, path, value)


def changes_of(files: Sequence[StagedFile]) -> list[Changes]:
    """The staged files of each bucket, in order of their names' ranges."""
    by_bucket: dict[int, list[str]] = {}
    for file in files:
        by_bucket.setdefault(int(file.partition or 0), []).append(file.staged)
    return [Changes(bucket, tuple(names), "") for bucket, names in sorted(by_bucket.items())]


def count_deleted(staging: Path, changes: Changes) -> Any:
    """How many keys of a bucket were deleted last."""
    return pc.sum(pq.read_table(staging / changes.winners, columns=["deleted"])["deleted"]).as_py()
