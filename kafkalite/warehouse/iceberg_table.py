"""An Iceberg table, written by pyiceberg without Spark.                                    [IO]

    WAREHOUSE/iceberg.db                  the catalog, in SQLite, unless another one is configured
    WAREHOUSE/TABLE/metadata/…            Iceberg's metadata; the catalog points to the newest
    WAREHOUSE/TABLE/orders-2-0-84213.parquet

A commit adds the files, evolves the columns and sets the property `kafkalite.offsets`, all in one
transaction of the catalog. The property survives the expiry of snapshots; each snapshot has the
ranges that it added in its summary, too.

Owns   the table.
Fails  with StorageError if another writer committed first, with ConfigError if the table was not
       made by a load or a column cannot change its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.files import move, sync
from kafkalite.warehouse.partitioning import TIMES, TIMESTAMP, Partitioning
from kafkalite.warehouse.target import Epoch

NAMESPACE: Final = "kafkalite"
OFFSETS: Final = "kafkalite.offsets"
PARTITION_BY: Final = "kafkalite.partition-by"
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
        if self.catalog is not None:
            return load_catalog(self.catalog, **self.properties)
        warehouse = self.table.parent
        warehouse.mkdir(parents=True, exist_ok=True)
        uri, location = f"sqlite:///{warehouse / 'iceberg.db'}", f"file://{warehouse}"
        return load_catalog("kafkalite", type="sql", uri=uri, warehouse=location)

    def _open(self) -> Table | None:
        try:
            return self._catalog.load_table((NAMESPACE, self.table.name))
        except NoSuchTableError:
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

    def files(self) -> list[str]:
        """The files of the newest snapshot."""
        found = self._open()
        tasks = () if found is None else found.scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]

    def recover(self) -> Iterator[str]:
        """Nothing: a commit that is in the catalog is complete."""
        yield from ()

    def commit(self, epoch: Epoch, staging: Path) -> Iterator[str]:
        """Gives the files their names, then adds them in one transaction."""
        found = self._open()  # the metadata that the commit builds on
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
                found = self._create(epoch)
                yield "created"
            self._append(found, epoch, held)
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise StorageError(f"table {self.table}: another writer was first: {error}") from error
        except ValidationError as error:
            raise ConfigError(f"table {self.table}: {error}") from error
        yield "committed"

    def _create(self, epoch: Epoch) -> Table:
        by = epoch.partitioning.by
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        # A retry on top of another writer's commit would add the same ranges a second time.
        properties = {OFFSETS: "{}", TableProperties.COMMIT_NUM_RETRIES: "0"} | (
            {} if by is None else {PARTITION_BY: by}
        )
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
            if epoch.files:
                paths = [f"file://{self.table / file.path}" for file in epoch.files]
                transaction.add_files(paths, snapshot_properties={"kafkalite.ranges": ranges})
            transaction.set_properties({OFFSETS: json.dumps(_offsets_after(epoch, held))})


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
