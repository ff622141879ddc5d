"""The files of a Parquet table, and how a compaction replaces them.                        [IO]

The table's folder is exchanged with a version that has the new files in the place of the old ones,
and one entry of the manifest in the place of all. The version before it keeps the old files in
WAREHOUSE/_kafkalite/TABLE until they go.

Owns   nothing.
Fails  with StorageError where the file system cannot exchange folders.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.errors import ConfigError
from kafkalite.warehouse.compaction import COMPACTION, DataFile
from kafkalite.warehouse.files import write_json
from kafkalite.warehouse.parquet_table import ParquetTable, entry_of
from kafkalite.warehouse.partitioning import Partitioning, file_name, partition_value
from kafkalite.warehouse.target import Epoch, StagedFile
from kafkalite.warehouse.versions import NoExchange, Versions, link
from kafkalite.warehouse.workspace import FOLDER


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """The files of a table that a load made."""

    target: ParquetTable

    @property
    def table(self) -> Path:
        """The table's folder."""
        return self.target.table

    @property
    def topic(self) -> str:
        """The table's topic."""
        for tp in self.target.offsets():
            return tp.topic
        raise ConfigError(f"{self.table}: there is no table that a load made")

    def recover(self) -> Iterator[str]:
        """Gives files their names that an interrupted load has committed."""
        yield from self.target.recover()

    def data_files(self) -> list[DataFile]:
        """The files of the table."""
        return [DataFile(f.path, f.size, f.partition) for f in self._files().values()]

    def _files(self) -> dict[str, StagedFile]:
        """The files of all entries, by their paths."""
        found: dict[str, StagedFile] = {}
        for entry in reversed(list(self.target.entries())):
            found |= {file.path: file for file in (*entry.files, *entry.rewritten)}
            if entry.columns is None:
                for wanted in entry.ranges:
                    for path in sorted(self.table.glob(f"*/{file_name(wanted)}")):
                        old = _file_of_first_format(path)
                        found[old.path] = old
        return found

    def replace(
        self, old: Sequence[DataFile], new: Sequence[StagedFile], staging: Path
    ) -> Iterator[str]:
        """Exchanges the folder with a version of it that has the new files and one entry."""
        versions, number = Versions(self.table), self.target.next_number()
        gone = {file.path for file in old} | {f"{FOLDER}/{COMPACTION}"}
        entry = self._entry(gone, new)
        gone |= {f"{FOLDER}/{path.name}" for path in self.target.loads()}
        fresh = versions.build(f"{number:08}.{COMPACTION}", gone)
        yield "version built"
        for file in new:
            link(staging / file.staged, fresh / file.path)
        write_json(fresh / FOLDER / f"{number:08}.json", entry_of(entry))
        yield "version filled"
        try:
            versions.switch(fresh)
        except NoExchange:
            shutil.rmtree(fresh)
            raise

    def _entry(self, gone: set[str], new: Sequence[StagedFile]) -> Epoch:
        """All that the table has, as one load."""
        ranges = joined(wanted for entry in self.target.entries() for wanted in entry.ranges)
        kept = [file for path, file in self._files().items() if path not in gone]
        columns = self.target.columns() or pa.schema([])
        partitioning = self.target.partitioning() or Partitioning()
        return Epoch(tuple(ranges), (*kept, *new), columns, partitioning)

    def remove_old(self, before_ms: int) -> Iterator[str]:
        """Removes older versions of the folder."""
        for path in Versions(self.table).remove(before_ms / 1000):
            yield str(path)


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Ranges without seams, in order."""
    found: list[OffsetRange] = []
    for wanted in sorted(ranges, key=lambda r: (r.topic_partition, r.start)):
        last = found[-1] if found else None
        if last and last.topic_partition == wanted.topic_partition and wanted.start <= last.end:
            found[-1] = replace(last, end=max(last.end, wanted.end))
        else:
            found.append(wanted)
    return found


def _file_of_first_format(path: Path) -> StagedFile:
    """A file of `day=…`, which the first format's entries do not name."""
    rows, size = pq.read_metadata(path).num_rows, path.stat().st_size
    place = f"{path.parent.name}/{path.name}"
    return StagedFile(f"{path.name}.published", place, rows, size, partition_value(place))
