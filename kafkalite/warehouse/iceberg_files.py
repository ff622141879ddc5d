"""The files of an Iceberg table, and how a compaction replaces them.                       [IO]

pyiceberg has no compaction. One snapshot of the operation `overwrite` adds the new files and takes
the old ones out, in one transaction of the catalog. The property `kafkalite.offsets`, which says
how far the table is, belongs to the table and not to a snapshot: it stays when snapshots expire.

Owns   nothing.
Fails  with StorageError if another writer committed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table, _parquet_files_to_data_files

from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.compaction import DataFile, publish
from kafkalite.warehouse.iceberg_catalog import catalog_answers
from kafkalite.warehouse.iceberg_table import IcebergTarget
from kafkalite.warehouse.target import StagedFile
from kafkalite.warehouse.workspace import FOLDER


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """The files of a table that a load made."""

    target: IcebergTarget

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

    def _open(self) -> Table:
        found = self.target._open()
        if found is None:
            raise ConfigError(f"{self.table}: there is no table that a load made")
        return found

    def recover(self) -> Iterator[str]:
        """Nothing: a commit that is in the catalog is complete."""
        yield from ()

    def data_files(self) -> list[DataFile]:
        """The files of the newest snapshot, but for those with deleted rows."""
        return list(self._files(self._open()))

    def _files(self, found: Table) -> dict[DataFile, IcebergFile]:
        begin = f"file://{self.table}/"
        return {
            DataFile(
                task.file.file_path.removeprefix(begin), task.file.file_size_in_bytes
            ): task.file
            for task in found.scan().plan_files()
            if task.file.file_path.startswith(begin) and not task.delete_files
        }

    def replace(
        self, old: Sequence[DataFile], new: Sequence[StagedFile], staging: Path
    ) -> Iterator[str]:
        """Gives the files their names, then commits."""
        found = self._open()  # the metadata that the commit builds on
        there = self._files(found)
        if not set(old) <= set(there):
            raise StorageError(f"table {self.table}: another writer was first")
        yield from publish(self.table, new, staging)
        paths = [f"file://{self.table / file.path}" for file in new]
        try:
            with (
                catalog_answers(self.table),
                found.transaction() as transaction,
                transaction.update_snapshot().overwrite() as snapshot,
            ):
                for file in old:
                    snapshot.delete_data_file(there[file])
                for made in _parquet_files_to_data_files(
                    transaction.table_metadata, paths, found.io
                ):
                    snapshot.append_data_file(made)
        except (CommitFailedException, ValidationException) as error:
            raise StorageError(f"table {self.table}: another writer was first: {error}") from error

    def remove_old(self, before_ms: int) -> Iterator[str]:
        """Expires the snapshots that were replaced before that time, and removes files that no
        snapshot has, if they are older.
        """
        found = self._open()
        if expired := _replaced_before(found, before_ms):
            with catalog_answers(self.table):
                found.maintenance.expire_snapshots().by_ids(expired).commit()
            found = self._open()
            yield from (f"snapshot {number}" for number in expired)
        kept, hidden = _files_of(found), self.table / FOLDER
        for path in sorted(self.table.rglob("*")):
            is_ours = path.suffix in (".parquet", ".avro") and not path.is_relative_to(hidden)
            if is_ours and path.resolve() not in kept and path.stat().st_mtime * 1000 < before_ms:
                path.unlink()
                yield str(path)


def _replaced_before(found: Table, before_ms: int) -> list[int]:
    """Snapshots whose successor is that old. Heads of branches and tags stay."""
    held = {ref.snapshot_id for ref in found.refs().values()}
    snapshots = sorted(found.snapshots(), key=lambda each: each.sequence_number or 0)
    return [
        each.snapshot_id
        for each, later in pairwise(snapshots)
        if later.timestamp_ms < before_ms and each.snapshot_id not in held
    ]


def _files_of(found: Table) -> set[Path]:
    """All files that a snapshot of the table has: data, manifests and their lists."""
    kept: set[str] = set()
    for snapshot in found.snapshots():
        kept.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(found.io):
            if manifest.manifest_path not in kept:
                kept.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(found.io, discard_deleted=True)
                kept |= {entry.data_file.file_path for entry in entries}
    return {Path(path.removeprefix("file://")).resolve() for path in kept}
