"""An Iceberg table, written by pyiceberg without Spark.                                    [IO]

    WAREHOUSE/iceberg.db                  the catalog, see `kafkalite.warehouse.iceberg_catalog`
    WAREHOUSE/TABLE/metadata/…            Iceberg's metadata; the catalog points to the newest
    WAREHOUSE/TABLE/orders-2-0-84213.parquet

A commit adds the files, evolves the columns and sets the property `kafkalite.offsets`, all in one
transaction of the catalog. The property survives the expiry of snapshots; each snapshot has the
ranges that it added in its summary, too. A table whose rows are updated has the property
`kafkalite.updates` besides; one snapshot of a commit removes files and adds others.

Where a column gets another name or a wider type, one commit replaces all files by what they
become. A column keeps its number, so older snapshots stay readable. Where Iceberg has no such
change of types (int to double, text to bytes), the column gets a new number, and is null in them.

Owns   the table.
Fails  with TableHeld if another writer committed first, with ConfigError if the table was not
       made by a load or a column cannot change its type, else as `iceberg_catalog` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import (
    Table,
    TableProperties,
    Transaction,
    _parquet_files_to_data_files,
)
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.warehouse.evolution import Evolution
from kafkalite.warehouse.files import move, sync
from kafkalite.warehouse.iceberg_catalog import (
    catalog_answers,
    catalog_of,
    check_catalog,
    note_catalog,
)
from kafkalite.warehouse.partitioning import TIMES, TIMESTAMP, Partitioning
from kafkalite.warehouse.rewriting import anew
from kafkalite.warehouse.target import Epoch, NewColumns, StagedFile, Stored
from kafkalite.warehouse.workspace import TableHeld

NAMESPACE: Final = "kafkalite"
OFFSETS: Final = "kafkalite.offsets"
PARTITION_BY: Final = "kafkalite.partition-by"
UPDATES: Final = "kafkalite.updates"
PROMOTED: Final = frozenset({(pa.int32(), pa.int64()), (pa.float32(), pa.float64())})
STEP: Final = re.compile(r"\.?\w+|\[\]|\{\}")
STEPS: Final = {"[]": ".element", "{}": ".value"}
TRANSFORMS: Final[dict[str, Any]] = {
    "day": DayTransform(),
    "hour": HourTransform(),
    "month": MonthTransform(),
}


@dataclass(frozen=True)
class IcebergTarget:
    """The table in the folder `table`. `catalog` is the name of a catalog in pyiceberg's own
    configuration; without one, the warehouse has a catalog of its own.
    """

    table: Path
    catalog: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def field_in_files(self) -> bool:
        """Whether files have the field of the folders: Iceberg derives partitions from it."""
        return True

    @cached_property
    def _catalog(self) -> Catalog:
        return catalog_of(self.table, self.catalog, self.properties)

    def _open(self) -> Table | None:
        with catalog_answers(self.table):
            try:
                return self._catalog.load_table((NAMESPACE, self.table.name))
            except NoSuchTableError:
                check_catalog(self.table, self.catalog)
                return None

    def offsets(self) -> dict[TopicPartition, int]:
        """For each partition the first offset that the table does not hold."""
        found = self._open()
        return {} if found is None else self._offsets(found)

    def _offsets(self, found: Table) -> dict[TopicPartition, int]:
        if OFFSETS not in found.properties:
            raise ConfigError(f"table {self.table} is an Iceberg table that no load made")
        held = json.loads(found.properties[OFFSETS])
        return {
            TopicPartition(topic, int(partition)): offset
            for topic, offsets in held.items()
            for partition, offset in offsets.items()
        }

    def columns(self) -> pa.Schema | None:
        """The table's columns."""
        found = self._open()
        if found is None:
            return None
        wide = schema_to_pyarrow(found.schema(), include_field_ids=False)
        return pa.schema([_usual_field(field) for field in wide])

    def partitioning(self) -> Partitioning | None:
        """The partitioning of the table; None while there is no table."""
        found = self._open()
        return None if found is None else Partitioning(found.properties.get(PARTITION_BY))

    def has_updates(self) -> bool | None:
        """Whether rows of the table are updated by their keys; None while there is no table."""
        found = self._open()
        return None if found is None else UPDATES in found.properties

    def stored(self) -> list[Stored]:
        """The data files of the newest snapshot."""
        found = self._open()
        return [] if found is None else list(self._stored(found))

    def _stored(self, found: Table) -> dict[Stored, DataFile]:
        begin = f"file://{self.table}/"
        files = [task.file for task in found.scan().plan_files()]
        return {Stored(file.file_path.removeprefix(begin)): file for file in files}

    def files(self) -> list[str]:
        """The files of the newest snapshot."""
        found = self._open()
        tasks = () if found is None else found.scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]

    def old_files(self, evolution: Evolution) -> list[tuple[Stored, str]]:
        """All files. Iceberg itself could read them: it knows a column by a number, which it finds
        by all names that the column had. But what reads files as Parquet could not.
        """
        found = self._open() if evolution.changes_files else None
        if found is None:
            return []
        version = found.metadata.last_updated_ms
        return [(old, anew(old.path, version)) for old in self._stored(found)]

    def evolve(self, change: NewColumns, staging: Path) -> Iterator[str]:
        """One transaction changes the columns and replaces all files by what they became."""
        found = self._open()
        if found is None or set(self._stored(found)) != {made.old for made in change.rewritten}:
            raise TableHeld(f"table {self.table}: another writer was first")
        files = tuple(made.file for made in change.rewritten)
        yield from self._publish(files, staging)
        try:
            with catalog_answers(self.table), found.transaction() as transaction:
                _evolve(transaction, change.evolution)
                if files:
                    paths = [f"file://{self.table / file.path}" for file in files]
                    olds = tuple(self._stored(found))
                    self._replace(found, transaction, olds, paths, {"kafkalite.ranges": ""})
        except CommitFailedException as error:
            raise TableHeld(f"table {self.table}: another writer was first: {error}") from error
        yield "committed"

    def _publish(self, files: Sequence[StagedFile], staging: Path) -> Iterator[str]:
        """Gives files their names."""
        for file in files:
            move(staging / file.staged, self.table / file.path)
            yield f"published {file.path}"
        for folder in {self.table, *((self.table / file.path).parent for file in files)}:
            sync(folder)

    def recover(self) -> Iterator[str]:
        """Nothing: a commit that is in the catalog is complete."""
        yield from ()

    def commit(self, epoch: Epoch, staging: Path) -> Iterator[str]:
        """Gives the files their names, then adds them in one transaction."""
        found = self._open()  # the metadata that the commit builds on
        held = {} if found is None else self._offsets(found)
        if epoch.is_in(held):
            return
        if epoch.overlaps(held) or (found and not set(epoch.removed) <= set(self._stored(found))):
            raise TableHeld(f"table {self.table}: another writer was first")
        yield from self._publish(epoch.files, staging)
        try:
            if found is None:
                with catalog_answers(self.table):
                    found = self._create(epoch)
                yield "created"
            with catalog_answers(self.table):
                self._append(found, epoch, held)
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise TableHeld(f"table {self.table}: another writer was first: {error}") from error
        except ValidationError as error:
            raise ConfigError(f"table {self.table}: {error}") from error
        yield "committed"

    def _create(self, epoch: Epoch) -> Table:
        by = epoch.partitioning.by
        note_catalog(self.table, self.catalog)
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        # A retry on top of another writer's commit would add the same ranges a second time.
        properties = {OFFSETS: "{}", TableProperties.COMMIT_NUM_RETRIES: "0"}
        properties |= {} if by is None else {PARTITION_BY: by}
        properties |= {UPDATES: "true"} if epoch.has_updates else {}
        with self._catalog.create_table_transaction(
            (NAMESPACE, self.table.name),
            epoch.columns,
            location=f"file://{self.table}",
            properties=properties,
        ) as transaction:
            if by is not None:
                source = TIMESTAMP if by in TIMES else by
                with transaction.update_spec() as spec:
                    name = f"{source}_{by}" if by in TIMES else by
                    spec.add_field(source, TRANSFORMS.get(by, IdentityTransform()), name)
        return self._catalog.load_table((NAMESPACE, self.table.name))

    def _append(self, found: Table, epoch: Epoch, held: Mapping[TopicPartition, int]) -> None:
        ranges = ", ".join(map(str, epoch.ranges))
        with found.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(epoch.columns)
            paths = [f"file://{self.table / file.path}" for file in epoch.files]
            summary = {"kafkalite.ranges": ranges}
            if epoch.removed:
                self._replace(found, transaction, epoch.removed, paths, summary)
            elif paths:
                transaction.add_files(paths, snapshot_properties=summary)
            else:  # a snapshot all the same: without one, a later commit of another writer is no
                with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                    pass  # conflict, and this one would take its offsets back
            transaction.set_properties({OFFSETS: json.dumps(_offsets_after(epoch, held))})

    def _replace(
        self,
        found: Table,
        transaction: Transaction,
        removed: Sequence[Stored],
        paths: list[str],
        summary: dict[str, str],
    ) -> None:
        """Takes files out and adds others, in one snapshot."""
        stored = self._stored(found)
        with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
            for old in removed:
                snapshot.delete_data_file(stored[old])
            added = _parquet_files_to_data_files(transaction.table_metadata, paths, found.io)
            for new in added:
                snapshot.append_data_file(new)


def _evolve(transaction: Transaction, evolution: Evolution) -> None:
    if evolution.renamed:
        with transaction.update_schema() as update:
            for place, old in evolution.renamed.items():
                update.rename_column(_old_path(place, old, evolution), place.rpartition(".")[2])
    if beyond := _beyond_iceberg(evolution):
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            for name in sorted(beyond):
                update.delete_column(name)  # it comes back with the new type, and a new number
    with transaction.update_schema() as update:
        update.union_by_name(evolution.columns)


def _old_path(place: str, old: str, evolution: Evolution) -> str:
    """The path of a field before it gets its name, as Iceberg writes it."""
    steps = STEP.findall(place)
    places = ["".join(steps[: number + 1]) for number in range(len(steps))]
    old_of = {**evolution.renamed, place: old}
    names = (
        f".{old_of[at]}" if at in old_of else STEPS.get(step, f".{step.lstrip('.')}")
        for at, step in zip(places, steps, strict=True)
    )
    return "".join(names).lstrip(".")


def _beyond_iceberg(evolution: Evolution) -> frozenset[str]:
    """The columns with a change of types that Iceberg does not know."""
    places = (
        place
        for place, types in evolution.widened.items()
        if (types.old, types.new) not in PROMOTED and not pa.types.is_decimal(types.old)
    )
    return frozenset(STEP.findall(place)[0] for place in places)


def _usual_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _usual(field.type), field.nullable)


def _usual(type_: pa.DataType) -> pa.DataType:
    """The type as rows of loads have it: pyiceberg reads text, bytes and lists as large ones."""
    if pa.types.is_struct(type_):
        return pa.struct([_usual_field(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_usual(type_.key_type), _usual(type_.item_type))
    if pa.types.is_large_list(type_) or pa.types.is_list(type_):
        return pa.list_(_usual(type_.value_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(type_, type_)


def _offsets_after(epoch: Epoch, held: Mapping[TopicPartition, int]) -> dict[str, Any]:
    ends = dict(held)
    for wanted in epoch.ranges:
        tp = wanted.topic_partition
        ends[tp] = max(ends.get(tp, 0), wanted.end)
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(ends.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested
