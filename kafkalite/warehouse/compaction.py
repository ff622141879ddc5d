"""Small files of a table merged into files of 64 to 128 MB, sorted by time.                [IO]

    locked ─▶ recovered ─▶ (merged … ─▶ replaced)… ─▶ old files removed

Files of one partition with the same columns are merged, so that no row changes. One commit puts the
new files into the place of the old ones: readers see the old ones or the new ones. A compaction may
be broken off after any step, also by kill -9; then the table is as it was, or compacted.

Owns   the folder TABLE/_kafkalite/compaction while it holds the table's lock.
Fails  with TableHeld if another process writes the table; with StorageError if another writer
       committed meanwhile or the file system cannot exchange folders.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.parquet as pq

from kafkalite.warehouse.files import move, sync
from kafkalite.warehouse.partitioning import visible
from kafkalite.warehouse.sorted_runs import SortedFiles, merged, runs_of, times_of
from kafkalite.warehouse.splitting import FILE_BYTES
from kafkalite.warehouse.target import StagedFile
from kafkalite.warehouse.workspace import FOLDER, Workspace

COMPACTION: Final = "compaction"
KEEP_MS: Final = 7 * 24 * 3_600_000
ROW_GROUPS_MAX: Final = 256  # of the files that are merged at once: each may be a run
GROUP_BYTES_MAX: Final = 1 << 30  # of these files


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its path below the table, and the text of its partition's value."""

    path: str
    size: int
    partition: str | None = None

    @property
    def folder(self) -> str:
        """Its folder below the table, with a slash at the end; "" for the table's own."""
        return self.path[: self.path.rfind("/") + 1]


class Rewritable(Protocol):
    """A table whose files can be replaced. Only the process that holds the lock may change it."""

    @property
    def table(self) -> Path:
        """The table's folder."""

    @property
    def topic(self) -> str:
        """The table's topic, which the names of files begin with."""

    def recover(self) -> Iterator[str]:
        """Finishes what an interrupted load left in the table."""

    def data_files(self) -> list[DataFile]:
        """The files of the newest version that may be merged."""

    def replace(
        self, old: Sequence[DataFile], new: Sequence[StagedFile], staging: Path
    ) -> Iterator[str]:
        """Puts staged files into the place of others, in one commit."""

    def remove_old(self, before_ms: int) -> Iterator[str]:
        """Removes files that no reader has needed since then."""


@dataclass(slots=True)
class Compacted:
    """What a compaction has done so far: files merged, files made of them, and old ones removed."""

    merged: int = 0
    made: int = 0
    removed: int = 0
    rows: int = 0
    is_kept: bool = False  # an unfinished load keeps old files


@dataclass(frozen=True, slots=True)
class Group:
    """Files that are merged, and into how many."""

    files: tuple[DataFile, ...]
    rows: int
    count: int


@dataclass(slots=True)
class Compaction:
    """A compaction of one table. `token` is part of the new files' names and never comes again.
    Files older than `keep_ms` at `now_ms` go. If `is_lazy`, files stay that are larger than all
    smaller ones of their folder together: a row is then written a few times, and not by each merge.
    """

    target: Rewritable
    token: str
    now_ms: int
    keep_ms: int = KEEP_MS
    file_bytes: int = FILE_BYTES
    is_lazy: bool = False
    progress: Callable[[int, int], None] = lambda _merged, _planned: None
    done: Compacted = field(default_factory=Compacted)

    def run(self) -> Compacted:
        """All steps."""
        for _ in self.steps():
            pass
        return self.done

    def steps(self) -> Iterator[str]:
        """Merges until no small files are left that could be merged; yields each step's name."""
        workspace = Workspace(self.target.table)
        with workspace.locked(COMPACTION):
            yield "locked"
            yield from self.target.recover()
            shutil.rmtree(self._scratch, ignore_errors=True)  # of a compaction that broke off
            files = self.target.data_files()
            left = len(files) + 1
            # A pass that saves no file is the last one, so there are few passes.
            while len(files) < left and (groups := self._groups(files)):
                left = len(files)
                yield from self._merge(groups, f"{self.token}-{self.done.made}")
                files = self.target.data_files()
            if workspace.plan() is not None:
                self.done.is_kept = True  # its files have no commit yet
                return
            for path in self.target.remove_old(self.now_ms - self.keep_ms):
                self.done.removed += 1
                yield f"removed {path}"

    @property
    def _scratch(self) -> Path:
        return self.target.table / FOLDER / COMPACTION

    def excess(self) -> int:
        """How many files a compaction would save at most, without a look into them."""
        return sum(len(files) - 1 for files in self._small(self.target.data_files()).values())

    def _small(self, files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
        found: dict[str, list[DataFile]] = defaultdict(list)
        for file in files:
            if file.size < self.file_bytes // 2:
                found[file.folder].append(file)
        return {f: _light(own) for f, own in found.items()} if self.is_lazy else found

    def _groups(self, files: Sequence[DataFile]) -> list[Group]:
        found: list[Group] = []
        for own in self._small(files).values():
            if len(own) < 2:
                continue
            alike: dict[Any, list[_Known]] = defaultdict(list)
            for file in own:
                if (known := _known(self.target.table, file)) is not None:
                    alike[known.columns].append(known)
            for each in alike.values():
                each.sort(key=lambda known: known.first)
                found += self._cut(each)
        return found

    def _cut(self, files: Sequence[_Known]) -> Iterator[Group]:
        """Neighbours in time, as many as can be merged at once."""
        start = groups = size = 0
        for end, known in enumerate(files):
            groups, size = groups + known.groups, size + known.file.size
            is_much = groups > ROW_GROUPS_MAX or size > GROUP_BYTES_MAX
            if end - start >= 2 and is_much:
                yield self._group(files[start:end])
                start, groups, size = end, known.groups, known.file.size
        if len(files) - start >= 2:
            yield self._group(files[start:])

    def _group(self, files: Sequence[_Known]) -> Group:
        size = sum(known.file.size for known in files)
        rows = sum(known.rows for known in files)
        return Group(tuple(known.file for known in files), rows, ceil(size / self.file_bytes))

    def _merge(self, groups: Sequence[Group], token: str) -> Iterator[str]:
        scratch = self._scratch
        scratch.mkdir(parents=True)
        new: list[StagedFile] = []
        planned = sum(group.rows for group in groups)
        for number, group in enumerate(groups):
            prefix = f"{visible(self.target.topic)}-{token}-{number}"
            new += merge_files(self.target.table, group, scratch, prefix)
            self.progress(sum(file.records for file in new), planned)
            yield f"merged {prefix}"
        sync(scratch)
        old = [file for group in groups for file in group.files]
        yield from self.target.replace(old, new, scratch)
        yield "replaced"
        shutil.rmtree(scratch, ignore_errors=True)  # a new version of a folder has none
        self.done.merged += len(old)
        self.done.made += len(new)
        self.done.rows += planned
        yield "cleared"


def _light(files: Sequence[DataFile]) -> list[DataFile]:
    """The files without those that are larger than all smaller ones together."""
    kept = sorted(files, key=lambda file: file.size)
    total = sum(file.size for file in kept)
    while len(kept) > 1 and kept[-1].size > total - kept[-1].size:
        total -= kept.pop().size
    return kept


def publish(table: Path, files: Sequence[StagedFile], staging: Path) -> Iterator[str]:
    """Gives staged files their names, before a commit that makes them visible."""
    for file in files:
        move(staging / file.staged, table / file.path)
        yield f"published {file.path}"
    for folder in {table, *((table / file.path).parent for file in files)}:
        sync(folder)


def merge_files(table: Path, group: Group, scratch: Path, prefix: str) -> Iterator[StagedFile]:
    """Merges the files of a group into staged files, which are on the disk."""
    first = group.files[0]
    written = SortedFiles(scratch, prefix, ceil(group.rows / group.count))
    for rows in merged(runs_of([table / file.path for file in group.files], scratch)):
        written.add(rows)
    written.close()
    for path in written.paths:
        rows = pq.read_metadata(path).num_rows
        place = f"{first.folder}{path.name}"
        yield StagedFile(path.name, place, rows, path.stat().st_size, first.partition)


@dataclass(frozen=True, slots=True)
class _Known:
    """A file, and what its footer says."""

    file: DataFile
    columns: frozenset[tuple[str, str]]
    rows: int
    groups: int
    first: int


def _known(table: Path, file: DataFile) -> _Known | None:
    """None for a file without times, as other writers may have made."""
    with pq.ParquetFile(table / file.path) as source:
        metadata = source.metadata
        times = times_of(metadata)
        if times is None:
            return None
        columns = frozenset((each.name, str(each.type)) for each in source.schema_arrow)
        return _Known(file, columns, metadata.num_rows, metadata.num_row_groups, times[0])
