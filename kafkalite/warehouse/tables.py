"""The tables of a warehouse: a topic's table has a name of its own below one folder.       [IO]

    WAREHOUSE/orders                 the rows of topic `orders`
    WAREHOUSE/orders_dead_letters    its records that could not be decoded, with `--on-error dlq`

Owns   which kind of table a folder holds: Parquet with our manifest, Delta or Iceberg.
Fails  with ConfigError for formats that do not exist or differ from the table's, and where the
       package for a kind of table is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkalite.columnar.format_names import check_key_format, check_value_format
from kafkalite.errors import ConfigError
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.reading import ON_ERROR, Reading, TopicSource
from kafkalite.warehouse.target import Target

FORMATS: Final = ("parquet", "delta", "iceberg")


def format_of(table: Path) -> str | None:
    """The kind of the table in a folder; None while there is none."""
    if (table / "_delta_log").exists():
        return "delta"
    if (table / "metadata").exists():
        return "iceberg"
    return "parquet" if ParquetTable(table).loads() else None


def table_at(table: Path, wanted: str | None = None, catalog: str | None = None) -> Target:
    """The table in a folder. Without `wanted` it is of the kind that it has, or Parquet."""
    there = format_of(table)
    if there is not None and wanted not in (None, there):
        raise ConfigError(f"table {table} is of format {there}, not {wanted}")
    try:
        match wanted or there:
            case "delta":
                from kafkalite.warehouse.delta_table import DeltaTarget

                return DeltaTarget(table)
            case "iceberg":
                from kafkalite.warehouse.iceberg_table import IcebergTarget

                return IcebergTarget(table, catalog)
    except ImportError as error:
        raise ConfigError(
            f"a package is not installed ({error}): pip install 'kafkalite[warehouse]'"
        ) from error
    return ParquetTable(table)


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic, and how its bytes are read: see `kafkalite.columnar.format_names`. ConfigError
    where that is no format.
    """

    topic: str
    key_format: str = "binary"
    value_format: str = "avro"
    on_error: str = "fail"
    table_format: str | None = None
    catalog: str | None = None  # of Iceberg, by its name in pyiceberg's configuration
    upsert: bool = False  # a row for each key; a table keeps its way

    def __post_init__(self) -> None:
        if self.key_format not in ("avro", "json"):
            check_key_format(self.key_format)
        check_value_format(self.value_format)
        if self.on_error not in ON_ERROR:
            raise ConfigError(f"on-error: {self.on_error!r} is not one of {', '.join(ON_ERROR)}")
        if self.table_format not in (None, *FORMATS):
            raise ConfigError(f"format: {self.table_format!r} is not one of {', '.join(FORMATS)}")

    @property
    def table(self) -> str:
        """The table's name, which SQL accepts and which readers of Parquet do not ignore."""
        name = self.topic.replace("-", "_").replace(".", "_")
        return name if name[0].isalpha() else f"topic_{name.lstrip('_')}"

    def into(
        self,
        warehouse: Path,
        bootstrap_servers: str,
        engine: Engine,
        layout: Layout,
        until_ms: int | None = None,
    ) -> Load:
        """The load of this topic into its table."""
        reading = Reading(
            bootstrap_servers,
            self.topic,
            self.key_format,
            self.value_format,
            on_error=self.on_error,
        )
        table = warehouse.resolve() / self.table
        dead = table.with_name(f"{table.name}_dead_letters")
        kind = self.table_format or format_of(table)
        if self.upsert and kind in (None, "parquet"):
            raise ConfigError(
                f"table {table} is of format parquet, which cannot replace rows: --upsert needs "
                "--format delta or iceberg"
            )
        target, letters = (table_at(place, kind, self.catalog) for place in (table, dead))
        source = TopicSource(reading, until_ms)
        return Load(source, target, letters, engine, layout, self.upsert)
