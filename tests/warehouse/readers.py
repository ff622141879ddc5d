"""The readers that docs/guide/warehouse.md names, each as it says there.

Spark is left out: it needs a session, and `tests/spark` has one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from kafkalite.warehouse.tables import format_of

os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # else polars asks for a package of its own
Rows = list[dict[str, Any]]


def columns(table: Path) -> pa.Schema:
    return pq.read_schema(table / "_common_metadata")


def dataset(table: Path) -> ds.Dataset:
    return ds.dataset(table, schema=columns(table), partitioning="hive")


def iceberg(table: Path) -> Table:
    uri = f"sqlite:///{table.parent / 'iceberg.db'}"
    return load_catalog("kafkalite", type="sql", uri=uri).load_table(f"kafkalite.{table.name}")


def files_in_duckdb(table: Path) -> pa.Table:
    files = f"{table}/**/[!_]*.parquet"
    return duckdb.sql(f"FROM read_parquet('{files}', union_by_name=true)").to_arrow_table()


def in_duckdb(orders: Any) -> pa.Table:
    return duckdb.sql("FROM orders").to_arrow_table()


def files_in_polars(table: Path) -> pa.Table:
    found = pl.scan_parquet(
        f"{table}/**/[!_]*.parquet",
        schema=pl.Schema(columns(table)),
        hive_partitioning=True,
        missing_columns="insert",
        cast_options=pl.ScanCastOptions(missing_struct_fields="insert"),
    )
    return found.collect().to_arrow()


READERS: dict[str, dict[str, Callable[[Path], Any]]] = {
    "parquet": {
        "pyarrow": lambda table: dataset(table).to_table(),
        "pandas": lambda table: pd.read_parquet(table, schema=columns(table)),
        "DuckDB": lambda table: in_duckdb(dataset(table)),
        "DuckDB, files": files_in_duckdb,
        "polars": lambda table: pl.scan_pyarrow_dataset(dataset(table)).collect().to_arrow(),
        "polars, files": files_in_polars,
    },
    "delta": {
        "pyarrow": lambda table: DeltaTable(table).to_pyarrow_table(),
        "pandas": lambda table: DeltaTable(table).to_pandas(),
        "DuckDB": lambda table: in_duckdb(DeltaTable(table).to_pyarrow_dataset()),
        "polars": lambda table: pl.scan_delta(table).collect().to_arrow(),
    },
    "iceberg": {
        "pyarrow": lambda table: iceberg(table).scan().to_arrow(),
        "pandas": lambda table: iceberg(table).scan().to_pandas(),
        "DuckDB": lambda table: in_duckdb(iceberg(table).scan().to_arrow_batch_reader()),
        "polars": lambda table: pl.scan_iceberg(iceberg(table)).collect().to_arrow(),
    },
}


def rows_by(reader: str, table: Path) -> Rows:
    """The rows without the columns that come from records rather than values."""
    kind = format_of(table)
    assert kind is not None
    found = READERS[kind][reader](table)
    if isinstance(found, pd.DataFrame):
        found = pa.Table.from_pandas(found, preserve_index=False)
    found = found.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    rows: Rows = found.to_pylist(maps_as_pydicts="strict")
    return rows


def by_every_reader(table: Path) -> Rows:
    """The rows, on which all readers agree."""
    kind = format_of(table)
    assert kind is not None
    first, *others = READERS[kind]
    expected = rows_by(first, table)
    for reader in others:
        found = rows_by(reader, table)
        assert found == expected, f"{reader}: {_first_difference(found, expected)}"
    return expected


def _first_difference(found: Rows, expected: Rows) -> str:
    if len(found) != len(expected):
        return f"{len(found)} rows, not {len(expected)}"
    return next(f"{f} is not {e}" for f, e in zip(found, expected, strict=True) if f != e)
