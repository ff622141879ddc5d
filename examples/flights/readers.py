"""A table of a warehouse by everybody who reads it: pyarrow, pandas, DuckDB, polars, Spark.

A function takes the folder of a table and returns an Arrow table, whose columns and rows may be in
any order. `docs/guide/warehouse.md` explains each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyiceberg.catalog import load_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[[Path], Any]


def columns(table: Path) -> Any:
    """The newest columns of a table of Parquet."""
    return pq.read_schema(table / "_common_metadata")


def folder(table: Path) -> Any:
    """A table of Parquet as a dataset of pyarrow."""
    return ds.dataset(table, schema=columns(table), partitioning="hive")


def iceberg(table: Path) -> Any:
    """A table of Iceberg, from the warehouse's own catalog."""
    uri = f"sqlite:///{table.parent / 'iceberg.db'}"
    return load_catalog("kafkalite", type="sql", uri=uri).load_table(f"kafkalite.{table.name}")


def delta(table: Path) -> Any:
    """A Delta table as pyarrow reads it, its files without a detour through deltalake.

    Threads of pyarrow would ask Python for that detour still when the interpreter ends, and abort.
    """
    files = SubTreeFileSystem(str(table), LocalFileSystem())
    return DeltaTable(table).to_pyarrow_dataset(filesystem=files)


def by_duckdb(rows: Any) -> Any:
    """DuckDB finds what Python calls `rows`."""
    found = duckdb.sql("FROM rows")
    assert found is not None, "a query has an answer"
    return found.to_arrow_table()


def from_pandas(frame: pd.DataFrame) -> Any:
    """A frame as an Arrow table."""
    return pa.Table.from_pandas(frame, preserve_index=False)


PARQUET: Mapping[str, Read] = {
    "pyarrow": lambda table: folder(table).to_table(),
    "pandas": lambda table: from_pandas(
        pd.read_parquet(table, schema=columns(table), dtype_backend="pyarrow")
    ),
    "DuckDB": lambda table: by_duckdb(folder(table)),
    "polars": lambda table: pl.scan_pyarrow_dataset(folder(table)).collect().to_arrow(),
}
DELTA: Mapping[str, Read] = {
    "pyarrow": lambda table: delta(table).to_table(),
    "pandas": lambda table: from_pandas(
        delta(table).to_table().to_pandas(types_mapper=pd.ArrowDtype)
    ),
    "DuckDB": lambda table: by_duckdb(delta(table)),
    "polars": lambda table: pl.scan_delta(str(table)).collect().to_arrow(),
}
ICEBERG: Mapping[str, Read] = {
    "pyarrow": lambda table: iceberg(table).scan().to_arrow(),
    "pandas": lambda table: from_pandas(
        iceberg(table).scan().to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
    ),
    "DuckDB": lambda table: by_duckdb(iceberg(table).scan().to_arrow_batch_reader()),
    "polars": lambda table: pl.scan_iceberg(iceberg(table)).collect().to_arrow(),
}
READERS = {"parquet": PARQUET, "delta": DELTA, "iceberg": ICEBERG}


def by_spark(spark: SparkSession, table: Path) -> Any:
    """Any of the three in Spark, without a jar."""
    from kafkalite.spark.views import read_table

    read_table(spark, table)
    return spark.table(table.name).toArrow()
