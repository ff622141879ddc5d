"""The port between a load and a table: what a table must tell and do.                     [P]

A load stages data files, which no reader of the table sees, and commits them together with the
offset ranges that they hold. A table that has committed an epoch says so in `offsets`, whatever
happens to the loading process; a repeated commit of the same epoch does nothing.

Owns   nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.warehouse.evolution import Evolution
from kafkalite.warehouse.partitioning import Partitioning

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One Parquet file: `staged` is its name in the staging folder, `path` its later place below
    the table, `partition` the text of its partition's value.
    """

    staged: str
    path: str
    records: int
    size: int
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A data file of a table: its path below the table, and the text of its partition's value."""

    path: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A data file that was written anew, and the file that it replaces."""

    file: StagedFile
    old: Stored


@dataclass(frozen=True, slots=True)
class NewColumns:
    """A change of a table's columns: all that has an old name or type, written anew."""

    evolution: Evolution
    rewritten: tuple[Rewritten, ...]
    partitioning: Partitioning


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one commit adds to a table. A commit of a table that is updated, one that `has_updates`,
    also takes out the files `removed`, whose other rows are in files of the epoch.
    """

    ranges: tuple[OffsetRange, ...]
    files: tuple[StagedFile, ...]
    columns: pa.Schema
    partitioning: Partitioning
    has_updates: bool = False
    removed: tuple[Stored, ...] = ()

    def is_in(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether a table with these offsets has this epoch."""
        return all(offsets.get(r.topic_partition, -1) >= r.end for r in self.ranges)

    def overlaps(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether a table with these offsets has a part of this epoch."""
        starts: dict[TopicPartition, int] = {}
        for r in self.ranges:
            starts[r.topic_partition] = min(r.start, starts.get(r.topic_partition, r.start))
        return any(offsets.get(tp, 0) > start for tp, start in starts.items())


class Target(Protocol):
    """A table. Only the process that holds the table's lock may call `recover`, `evolve` and
    `commit`; they yield the name of each step once it is done, and may be broken off after any of
    them.
    """

    @property
    def table(self) -> Path:
        """The table's folder."""

    @property
    def field_in_files(self) -> bool:
        """Whether files have the field that `--partition-by FIELD` names, besides the folders."""

    def offsets(self) -> dict[TopicPartition, int]:
        """For each partition the first offset that the table does not hold."""

    def columns(self) -> pa.Schema | None:
        """The newest columns of the rows; None while there is no table."""

    def partitioning(self) -> Partitioning | None:
        """The folders of the table; None while there is no table."""

    def files(self) -> list[str] | None:
        """The paths of all data files that make the table; None where the folder tells."""

    def has_updates(self) -> bool | None:
        """Whether rows of the table are updated by their keys; None while there is no table."""

    def stored(self) -> list[Stored]:
        """The data files of the newest version. Only tables that can be updated have a list."""

    def old_files(self, evolution: Evolution) -> list[tuple[Stored, str]]:
        """The data files that must be written anew before the table can have these columns, each
        with the path of the file that replaces it.
        """

    def evolve(self, change: NewColumns, staging: Path) -> Iterator[str]:
        """Gives the table other columns, in one commit."""

    def recover(self) -> Iterator[str]:
        """Finishes or removes what an interrupted load left in the table."""

    def commit(self, epoch: Epoch, staging: Path) -> Iterator[str]:
        """Adds the epoch's files in one commit, unless the table has the epoch already."""
