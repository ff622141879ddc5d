"""A worker's part of a load that updates: an offset range becomes files of its last changes. [IO]

A change is a row, or the end of one: a record with a null value. Of the changes of one key in a
part of a range only the last is staged, in a file of its bucket; a bucket has a share of all keys.

Owns   the files that it writes into the staging folder; each attempt has names of its own.
Fails  with the errors of the disk and of the records that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.warehouse.identity import buckets, identities
from kafkalite.warehouse.partitioning import file_name
from kafkalite.warehouse.target import StagedFile
from kafkalite.warehouse.workspace import Staged
from kafkalite.warehouse.writing import ReadRange, stage, write_file


@dataclass(frozen=True, slots=True)
class StageChanges:
    """Stages the changes of a range. Picklable: a worker process or a Spark task calls it."""

    rows: ReadRange
    staging: Path
    keys: tuple[str, ...]
    bucket_count: int

    def __call__(self, wanted: OffsetRange) -> Staged:
        """What was staged. The records of a file are those that were read for it."""
        return stage(self.rows, self.staging, wanted, self._write)

    def _write(
        self, wanted: OffsetRange, batches: Sequence[pa.RecordBatch], part: int
    ) -> Iterator[StagedFile]:
        rows = pa.Table.from_batches(batches)
        found = identities(rows, self.keys)
        last = last_of_each(pa.table({"of": codes(found)}))  # they are in order of their offsets
        changes, read = rows.take(last), [rows.num_rows]
        name = file_name(wanted, part)
        for bucket, own in self._divided(changes, found.take(last)):
            staged = write_file(self.staging, own, f"{name}.changes.{bucket}", "", str(bucket))
            yield replace(staged, records=read.pop() if read else 0)

    def _divided(self, changes: pa.Table, found: pa.Array) -> Iterator[tuple[int, pa.Table]]:
        if self.bucket_count == 1:
            yield 0, changes
            return
        numbers = buckets(found, self.bucket_count)
        for bucket in range(self.bucket_count):
            own = changes.filter(pc.equal(numbers, bucket))
            if own.num_rows:
                yield bucket, own


def codes(found: pa.Array) -> pa.Array:
    """A number for each identity, the same for equal ones."""
    return found.dictionary_encode().indices


def last_of_each(rows: pa.Table) -> pa.Array:
    """The indices, rising, of the last row of each group. The first column is the group; the other
    columns say which row is later, and equal rows are in order of their index.
    """
    group, *_ = rows.column_names
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names])
    if not len(order):
        return order
    ordered = rows[group].combine_chunks().take(order)
    is_last = pc.not_equal(ordered[:-1], ordered[1:])
    is_last = pa.concat_arrays([is_last, pa.array([True])])
    last = order.filter(is_last)
    return last.take(pc.sort_indices(last))
