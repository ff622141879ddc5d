"""Tables of a warehouse in Spark SQL, with the columns of the newest load.                 [IO]

Tables of Delta and Iceberg are read without jars: their logs name the files, which are Parquet.

Owns   nothing; a view lives as long as its session.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kafkalite.warehouse.partitioning import TIMES
from kafkalite.warehouse.tables import table_at

PATTERN: Final = re.compile(r"[\\{}\[\]*?]")  # characters of a path that Spark takes for a pattern


def read_table(spark: SparkSession, table: Path, catalog: str | None = None) -> bool:
    """Makes a table visible to SQL under its folder's name; False while it has no rows.

    Older rows are null in columns that are newer. Without a schema Spark would take the columns of
    any one file. A field of the values with the name of the folders is in the files alone.
    """
    found = table_at(table, catalog=catalog)
    columns, partitioning = found.columns(), found.partitioning()
    if columns is None or partitioning is None:
        return False
    by = partitioning.by
    if by is not None and not found.field_in_files:
        kind = pa.date32() if by == "day" else pa.string()
        if by not in TIMES:
            kind = columns.field(by).type
        own = [field for field in columns if field.name.lower() != by]
        columns = pa.schema([*own, (by, kind)])
    listed = found.files()
    paths = [PATTERN.sub(r"\\\g<0>", path) for path in ([str(table)] if listed is None else listed)]
    if not paths:
        return False
    reader = spark.read.schema(from_arrow_schema(columns)).option("basePath", str(table))
    reader.parquet(*paths).createOrReplaceTempView(table.name)
    return True
