"""A Delta table, written by delta-rs without Spark.                                        [IO]

    TABLE/_delta_log/…                    Delta's log; its commits are atomic
    TABLE/orders-2-0-84213.parquet        a data file, invisible until a commit adds it

A commit carries transaction identifiers: `kafkalite/orders/2` with version 84213 says that the
table holds partition 2 up to that offset, and `kafkalite/orders` how many partitions it knows. Two
loads that commit the same ranges conflict in Delta's log, so only one of them succeeds. A table
whose rows are updated has `kafkalite/orders/updates` besides; its commits also remove files.

Where a column gets another name or a wider type, one commit replaces all files by what they
become. Older versions stay readable until somebody vacuums the table.

Owns   the table; its name in Delta's metadata is the topic's.
Fails  with TableHeld if another writer committed the same ranges, with ConfigError if the table
       was not made by a load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.warehouse.evolution import Evolution, evolved
from kafkalite.warehouse.files import move, sync
from kafkalite.warehouse.partitioning import FOLDER_TYPES, TIMES, Partitioning, partition_value
from kafkalite.warehouse.rewriting import anew
from kafkalite.warehouse.target import Epoch, NewColumns, StagedFile, Stored
from kafkalite.warehouse.workspace import TableHeld

APP: Final = "kafkalite"
UPDATES: Final = "updates"


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """The table in the folder `table`."""

    table: Path

    @property
    def field_in_files(self) -> bool:
        """Whether files have the column of the folders: Delta keeps it in its log alone."""
        return False

    def offsets(self) -> dict[TopicPartition, int]:
        """For each partition the first offset that the table does not hold."""
        found = self._open()
        return {} if found is None else self._offsets(found)

    def _offsets(self, found: DeltaTable) -> dict[TopicPartition, int]:
        topic = found.metadata().name
        count = found.transaction_version(f"{APP}/{topic}")
        if count is None:
            raise ConfigError(f"table {self.table} is a Delta table that no load made")
        versions = {p: found.transaction_version(f"{APP}/{topic}/{p}") for p in range(count)}
        return {TopicPartition(topic, p): v for p, v in versions.items() if v is not None}

    def columns(self) -> pa.Schema | None:
        """The table's columns, without that of folders."""
        found = self._open()
        if found is None:
            return None
        columns = pa.schema(found.schema().to_arrow())
        by = self._partitioning(found).by
        return pa.schema([field for field in columns if not (by in TIMES and field.name == by)])

    def partitioning(self) -> Partitioning | None:
        """The folders of the table; None while there is no table."""
        found = self._open()
        return None if found is None else self._partitioning(found)

    def files(self) -> list[str]:
        """The files of the newest version."""
        found = self._open()
        return [] if found is None else [path.removeprefix("file://") for path in found.file_uris()]

    def has_updates(self) -> bool | None:
        """Whether rows of the table are updated by their keys; None while there is no table."""
        found = self._open()
        return None if found is None else self._has_updates(found)

    def _has_updates(self, found: DeltaTable) -> bool:
        return found.transaction_version(f"{APP}/{found.metadata().name}/{UPDATES}") is not None

    def stored(self) -> list[Stored]:
        """The data files of the newest version."""
        found = self._open()
        return [] if found is None else self._stored(found)

    def _stored(self, found: DeltaTable) -> list[Stored]:
        begin, by = f"{self.table}/", self._partitioning(found).by
        paths = [uri.removeprefix("file://").removeprefix(begin) for uri in found.file_uris()]
        return [Stored(path, None if by is None else partition_value(path)) for path in paths]

    def old_files(self, evolution: Evolution) -> list[tuple[Stored, str]]:
        """All files: Delta's log knows a column by its name."""
        found = self._open() if evolution.changes_files else None
        if found is None:
            return []
        return [(old, anew(old.path, found.version())) for old in self._stored(found)]

    def evolve(self, change: NewColumns, staging: Path) -> Iterator[str]:
        """One commit takes all files away and adds what they became, with the new columns."""
        found = self._open()
        if found is None or set(self._stored(found)) != {made.old for made in change.rewritten}:
            raise TableHeld(f"table {self.table}: another writer was first")
        files, held = tuple(made.file for made in change.rewritten), self._offsets(found)
        yield from self._place(files, staging)
        # The offsets that the table has: the commit of another load is a conflict.
        topic = found.metadata().name
        same = [Transaction(f"{APP}/{topic}/{tp.partition}", end) for tp, end in held.items()]
        epoch = Epoch((), files, change.evolution.columns, change.partitioning)
        try:
            found.create_write_transaction(
                [self._add(file, epoch) for file in files],
                "overwrite",
                Schema.from_arrow(_with_folder(epoch)),
                commit_properties=CommitProperties(app_transactions=same),
            )
        except DeltaError as error:
            raise TableHeld(f"table {self.table}: another writer was first: {error}") from error
        yield "committed"

    def _place(self, files: Sequence[StagedFile], staging: Path) -> Iterator[str]:
        """Gives files their names."""
        for file in files:
            move(staging / file.staged, self.table / file.path)
            yield f"published {file.path}"
        for folder in {self.table, *((self.table / file.path).parent for file in files)}:
            sync(folder)

    def recover(self) -> Iterator[str]:
        """Nothing: a commit that is in Delta's log is complete."""
        yield from ()

    def commit(self, epoch: Epoch, staging: Path) -> Iterator[str]:
        """Gives the files their names, then adds them in one commit of Delta's log."""
        found = self._open()  # the version that the commit builds on: a later one is a conflict
        held = {} if found is None else self._offsets(found)
        if epoch.is_in(held):
            return
        if epoch.overlaps(held) or (found and not set(epoch.removed) <= set(self._stored(found))):
            raise TableHeld(f"table {self.table}: another writer was first")
        yield from self._place(epoch.files, staging)
        try:
            if found is None:
                self._create(epoch, held)
            else:
                columns = _with_folder(epoch)
                if evolved(pa.schema(found.schema().to_arrow()), columns, {}).added:
                    empty = columns.empty_table()
                    write_deltalake(found, empty, mode="append", schema_mode="merge")
                    found.update_incremental()
                    yield "columns added"
                os.utime(self.table)  # its time is now, by the clock of the file system
                now = int(self.table.stat().st_mtime * 1000)
                self._append(found, epoch, held, now)
        except DeltaError as error:
            raise TableHeld(f"table {self.table}: another writer was first: {error}") from error
        yield "committed"

    def _open(self) -> DeltaTable | None:
        path = str(self.table)
        return DeltaTable(path) if DeltaTable.is_deltatable(path) else None

    def _partitioning(self, found: DeltaTable) -> Partitioning:
        return Partitioning(next(iter(found.metadata().partition_columns), None))

    def _create(self, epoch: Epoch, held: dict[TopicPartition, int]) -> None:
        by = epoch.partitioning.by
        create_table_with_add_actions(
            str(self.table),
            Schema.from_arrow(_with_folder(epoch)),
            [self._add(file, epoch) for file in epoch.files],
            partition_by=[] if by is None else [by],
            name=epoch.ranges[0].topic,
            commit_properties=CommitProperties(app_transactions=_transactions(epoch, held)),
        )

    def _append(
        self, found: DeltaTable, epoch: Epoch, held: dict[TopicPartition, int], now: int
    ) -> None:
        if self._offsets(found) != held:
            raise CommitFailedError("it committed while columns were added")
        removed = [self._remove(stored, epoch, now) for stored in epoch.removed]
        found.create_write_transaction(
            [*removed, *(self._add(file, epoch) for file in epoch.files)],
            "append",
            found.schema(),
            commit_properties=CommitProperties(app_transactions=_transactions(epoch, held)),
        )

    def _add(self, file: StagedFile, epoch: Epoch) -> AddAction:
        path = self.table / file.path
        by = epoch.partitioning.by
        values = {} if by is None else {by: file.partition}
        changed = int(path.stat().st_mtime * 1000)
        statistics = json.dumps(statistics_of(pq.read_metadata(path)))
        return AddAction(file.path, file.size, values, changed, True, statistics)

    def _remove(self, stored: Stored, epoch: Epoch, now: int) -> RemoveAction:
        by, size = epoch.partitioning.by, (self.table / stored.path).stat().st_size
        values = {} if by is None else {by: stored.partition}
        return RemoveAction(stored.path, True, now, size, values)


def _transactions(epoch: Epoch, held: dict[TopicPartition, int]) -> list[Transaction]:
    topic = epoch.ranges[0].topic
    ends: dict[int, int] = {}
    for wanted in epoch.ranges:
        ends[wanted.partition] = max(ends.get(wanted.partition, 0), wanted.end)
    count = max([*ends, *(tp.partition for tp in held)]) + 1
    versions = [Transaction(f"{APP}/{topic}/{p}", end) for p, end in sorted(ends.items())]
    kind = [Transaction(f"{APP}/{topic}/{UPDATES}", 1)] if epoch.has_updates else []
    return [Transaction(f"{APP}/{topic}", count), *versions, *kind]


def _with_folder(epoch: Epoch) -> pa.Schema:
    by = epoch.partitioning.by
    if by not in TIMES:
        return epoch.columns
    if by in epoch.columns.names:
        raise ConfigError(f"--partition-by {by}: the value has a field of that name")
    return epoch.columns.append(pa.field(by, FOLDER_TYPES.get(by, pa.string())))


def statistics_of(metadata: Any) -> dict[str, Any]:
    """Delta's statistics of a file: counts, and bounds of whole numbers and times."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(metadata.num_columns):
        columns = [group.column(number) for group in groups]
        name = metadata.schema.column(number).path
        if "." in name or not all(c.is_stats_set for c in columns):
            continue
        found = [column.statistics for column in columns]
        nulls[name] = sum(s.null_count for s in found)
        bounds = [(s.min, s.max) for s in found if s.has_min_max]
        if bounds and len(bounds) == len(found) and _is_plain(bounds):
            low[name] = _text(min(first for first, _ in bounds))
            high[name] = _text(max(last for _, last in bounds))
    return {
        "numRecords": metadata.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    }


def _is_plain(bounds: Sequence[tuple[Any, Any]]) -> bool:
    """Whole numbers and times with a zone."""
    values = [value for pair in bounds for value in pair]
    return all(
        (isinstance(v, int) and not isinstance(v, bool)) or getattr(v, "tzinfo", None) is not None
        for v in values
    )


def _text(value: Any) -> Any:
    return value if isinstance(value, int) else value.isoformat(timespec="microseconds")
