"""Which table a compaction rewrites: the one that a folder holds.                          [IO]

Owns   nothing.
Fails  with ConfigError where there is no table, or the package for its kind is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from kafkalite.errors import ConfigError
from kafkalite.warehouse.compaction import Rewritable
from kafkalite.warehouse.parquet_files import ParquetFiles
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.tables import format_of, table_at

if TYPE_CHECKING:
    from kafkalite.warehouse.delta_table import DeltaTarget
    from kafkalite.warehouse.iceberg_table import IcebergTarget


def rewritable(table: Path, now_ms: int, catalog: str | None = None) -> Rewritable:
    """The files of the table in a folder. Files that leave it do so at `now_ms`."""
    kind = format_of(table)
    if kind is None:
        raise ConfigError(f"{table}: there is no table")
    target = table_at(table, catalog=catalog)
    match kind:
        case "delta":
            from kafkalite.warehouse.delta_files import DeltaFiles

            return DeltaFiles(cast("DeltaTarget", target), now_ms)
        case "iceberg":
            from kafkalite.warehouse.iceberg_files import IcebergFiles

            return IcebergFiles(cast("IcebergTarget", target))
    assert isinstance(target, ParquetTable), "the third kind"
    return ParquetFiles(target)
