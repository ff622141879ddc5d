"""Loads: topics into Parquet tables, each offset range exactly once.                     [IO]

    WAREHOUSE/TABLE/day=2013-01-01/flights-2-0-84213.parquet     topic-partition-start-end
    WAREHOUSE/TABLE/day=__HIVE_DEFAULT_PARTITION__/…             timestamps that have no date
    WAREHOUSE/TABLE/_kafkalite/00000000.json                     the ranges in the table

Spark reads each planned range with our source. The same task writes the rows, by the UTC day of
the record's timestamp, to files whose names the plan determines. A file is complete or absent, and
a second try replaces it.

Owns   the tables below one warehouse folder. Only one load at a time may write a table.
Fails  with the first error of Spark, the log or the disk; the next load finishes the plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.spark.arrow import column_names
from kafkalite.spark.day_files import DAY, RangeWriter, file_name
from kafkalite.spark.failures import our_failures
from kafkalite.spark.json_loads import value_schema
from kafkalite.spark.log import offsets_of, partitions_of
from kafkalite.spark.manifest import Manifest
from kafkalite.spark.options import check_formats, format_offsets

PATTERN = re.compile(r"[\\{}\[\]*?]")  # of a path, what Spark takes for a pattern
ROW_SCHEMA = "file string, records long"


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic, and how its bytes are read: see `kafkalite.spark.options`. ConfigError where that
    is no format.
    """

    topic: str
    key_format: str = "binary"
    value_format: str = "avro"

    def __post_init__(self) -> None:
        check_formats(self.key_format, self.value_format)

    @property
    def table(self) -> str:
        """The table's name, which SQL can say and readers of Parquet do not pass by."""
        name = self.topic.replace("-", "_").replace(".", "_")
        return name if name[0].isalpha() else f"topic_{name.lstrip('_')}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load did. `gaps`: what was deleted from the log before it could be loaded."""

    topic: str
    records: int
    files: int
    ranges: tuple[OffsetRange, ...]
    gaps: tuple[OffsetRange, ...]


def load_topic(
    spark: SparkSession, bootstrap_servers: str, load: TopicLoad, warehouse: Path
) -> Loaded:
    """Brings the table of `load.topic` up to the end of the log as it is now.

    ConfigError where the table is that of another topic: two names may lead to one table.
    StorageError while another load writes it.
    """
    manifest = Manifest(warehouse.resolve() / load.table)
    with manifest.locked():
        return _load(spark, bootstrap_servers, load, manifest)


def _load(
    spark: SparkSession, bootstrap_servers: str, load: TopicLoad, manifest: Manifest
) -> Loaded:
    table = manifest.table
    for held in (*manifest.planned(), *manifest.ranges()):
        if held.topic != load.topic:
            raise ConfigError(f"table {table} holds topic {held.topic}, not {load.topic}")
    partitions = partitions_of(bootstrap_servers, [load.topic])
    first, end = offsets_of(bootstrap_servers, partitions)
    gaps = tuple(manifest.gaps(first))
    ranges = manifest.plan(first, end)
    if not ranges:
        return Loaded(load.topic, 0, 0, (), gaps)
    there = [  # what was planned may have been deleted since
        replace(r, start=min(r.end, max(r.start, first[r.topic_partition]))) for r in ranges
    ]
    options = _source_options(bootstrap_servers, load, there)
    with our_failures(str(table)):
        if load.value_format == "json":
            options["value.schema"] = value_schema(spark, options, _value_columns(manifest, load))
        rows = (
            spark.read.format("kafkalite")
            .options(**options)
            .load()
            .mapInArrow(RangeWriter(table, tuple(ranges)), ROW_SCHEMA)
            .collect()
        )
    manifest.commit()
    records = sum(row.records for row in rows)
    return Loaded(load.topic, records, len(rows), tuple(ranges), gaps)


def _source_options(
    bootstrap_servers: str, load: TopicLoad, ranges: Sequence[OffsetRange]
) -> dict[str, str]:
    assigned: dict[str, list[int]] = {}
    for wanted in ranges:
        assigned.setdefault(wanted.topic, []).append(wanted.partition)
    start: dict[TopicPartition, int] = {r.topic_partition: r.start for r in ranges}
    end: dict[TopicPartition, int] = {r.topic_partition: r.end for r in ranges}
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "assign": json.dumps(assigned),
        "startingOffsets": format_offsets(start),
        "endingOffsets": format_offsets(end),
        "key.format": load.key_format,
        "value.format": load.value_format,
    }


def _newest_file(manifest: Manifest) -> Path | None:
    """A file of the newest load that wrote any; it has the table's latest columns."""
    return next(
        (
            file
            for wanted in manifest.ranges()
            for file in manifest.table.glob(f"*/{file_name(wanted)}")
        ),
        None,
    )


def _value_columns(manifest: Manifest, load: TopicLoad) -> pa.StructType:
    """The table's columns that come from values."""
    newest = _newest_file(manifest)
    if newest is None:
        return pa.struct([])
    ours = column_names(load.key_format)
    return pa.struct([field for field in pq.read_schema(newest) if field.name not in ours])


def read_table(spark: SparkSession, warehouse: Path, load: TopicLoad) -> bool:
    """Makes the table visible to SQL under its name, with the columns of the newest load; False
    while it has no rows.

    Older rows are null in columns that came since. Spark alone would take the columns of any file.
    DAY is that of the folders; a field of the values with that name is in the files alone.
    """
    table = warehouse / load.table
    newest = _newest_file(Manifest(table))
    if newest is None:
        return False
    of_file = [field for field in pq.read_schema(newest) if field.name.lower() != DAY]
    columns = from_arrow_schema(pa.schema([*of_file, (DAY, pa.date32())]))
    path = PATTERN.sub(r"\\\g<0>", str(table))
    spark.read.schema(columns).parquet(path).createOrReplaceTempView(load.table)
    return True
