"""A Delta table, written by delta-rs without Spark.                                        [IO]

    TABLE/_delta_log/…                    Delta's log; its commits are atomic
    TABLE/orders-2-0-84213.parquet        a data file, invisible until a commit adds it

A commit carries transaction identifiers: `kafkalite/orders/2` with version 84213 says that the
table holds partition 2 up to that offset, and `kafkalite/orders` how many partitions it knows. Two
loads that commit the same ranges conflict in Delta's log, so only one of them succeeds.

Owns   the table; its name in Delta's metadata is the topic's.
Fails  with StorageError if another writer committed the same ranges, with ConfigError if the table
       was not made by a load, or has a column of another type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.files import move, sync
from kafkalite.warehouse.partitioning import TIMES, Partitioning
from kafkalite.warehouse.target import Epoch, StagedFile

APP: Final = "kafkalite"
FOLDER_TYPES: Final = {"day": pa.date32()}  # hour, month: text


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

    def recover(self) -> Iterator[str]:
        """Nothing: a commit that is in Delta's log is complete."""
        yield from ()

    def commit(self, epoch: Epoch, staging: Path) -> Iterator[str]:
        """Gives the files their names, then adds them in one commit of Delta's log."""
        found = self._open()  # the version that the commit builds on: a later one is a conflict
        held = {} if found is None else self._offsets(found)
        if epoch.is_in(held):
            return
        for file in epoch.files:
            move(staging / file.staged, self.table / file.path)
            yield f"published {file.path}"
        for folder in {self.table, *((self.table / file.path).parent for file in epoch.files)}:
            sync(folder)
        try:
            if found is None:
                self._create(epoch, held)
            else:
                columns = _with_folder(epoch)
                if self._lacks(found, columns):
                    empty = columns.empty_table()
                    write_deltalake(found, empty, mode="append", schema_mode="merge")
                    found.update_incremental()
                    yield "columns added"
                self._append(found, epoch, held)
        except DeltaError as error:
            raise StorageError(f"table {self.table}: another writer was first: {error}") from error
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

    def _append(self, found: DeltaTable, epoch: Epoch, held: dict[TopicPartition, int]) -> None:
        if self._offsets(found) != held:
            raise CommitFailedError("it committed while columns were added")
        found.create_write_transaction(
            [self._add(file, epoch) for file in epoch.files],
            "append",
            found.schema(),
            commit_properties=CommitProperties(app_transactions=_transactions(epoch, held)),
        )

    def _lacks(self, found: DeltaTable, columns: pa.Schema) -> bool:
        """Whether rows have fields that the table lacks. ConfigError for fields of other types."""
        there = pa.struct(list(pa.schema(found.schema().to_arrow())))
        wanted = pa.struct(list(columns))
        if other := _other_type(there, wanted, ""):
            name, old, new = other
            raise ConfigError(
                f"table {self.table}: column {name} is {old} and cannot become {new}: Delta's log "
                "has no change of types; load into a new warehouse"
            )
        return not _covers(there, wanted)

    def _add(self, file: StagedFile, epoch: Epoch) -> AddAction:
        path = self.table / file.path
        by = epoch.partitioning.by
        values = {} if by is None else {by: file.partition}
        changed = int(path.stat().st_mtime * 1000)
        statistics = json.dumps(statistics_of(pq.read_metadata(path)))
        return AddAction(file.path, file.size, values, changed, True, statistics)


def _below(there: pa.DataType, wanted: pa.DataType) -> list[tuple[str, pa.DataType, pa.DataType]]:
    """The types within two types of one kind, by the names that both have."""
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        both = {field.name for field in there} & {field.name for field in wanted}
        return [(f".{name}", there.field(name).type, wanted.field(name).type) for name in both]
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        return [("{}", there.item_type, wanted.item_type)]
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        return [("[]", there.value_type, wanted.value_type)]
    return []


def _other_type(
    there: pa.DataType, wanted: pa.DataType, path: str
) -> tuple[str, pa.DataType, pa.DataType] | None:
    """The first place where two types differ in more than the fields of a struct."""
    if not pa.types.is_nested(there) or there.id != wanted.id:
        return None if there == wanted else (path.lstrip("."), there, wanted)
    found = (_other_type(old, new, path + step) for step, old, new in _below(there, wanted))
    return next(filter(None, found), None)


def _covers(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type has all fields of another."""
    if pa.types.is_struct(wanted):
        there_names = {field.name for field in there}
        if any(field.name not in there_names for field in wanted):
            return False
    return all(_covers(old, new) for _, old, new in _below(there, wanted))


def _transactions(epoch: Epoch, held: dict[TopicPartition, int]) -> list[Transaction]:
    topic = epoch.ranges[0].topic
    ends: dict[int, int] = {}
    for wanted in epoch.ranges:
        ends[wanted.partition] = max(ends.get(wanted.partition, 0), wanted.end)
    count = max([*ends, *(tp.partition for tp in held)]) + 1
    versions = [Transaction(f"{APP}/{topic}/{p}", end) for p, end in sorted(ends.items())]
    return [Transaction(f"{APP}/{topic}", count), *versions]


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
