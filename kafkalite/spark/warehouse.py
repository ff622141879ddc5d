"""Loads: topics into Parquet tables, each offset range exactly once.                     [IO]

    WAREHOUSE/TABLE/day=2013-01-01/flights-2-0-84213.parquet     topic-partition-start-end
    WAREHOUSE/TABLE/day=__HIVE_DEFAULT_PARTITION__/…             of no day that has a date
    WAREHOUSE/TABLE/_kafkalite/00000000.json                     what is in the table

Spark reads each planned range with our source; the task that has read it writes its rows by UTC
day of the record's timestamp, under names that the plan fixes: a file is complete or absent, and
a second try replaces it.

Owns   the tables below one warehouse folder. One load at a time writes a table; another is refused.
Fails  with the first error of Spark, the log or the disk; the next load finishes the plan.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, KafkaliteError
from kafkalite.spark.arrow import flattened
from kafkalite.spark.failures import our_failures
from kafkalite.spark.log import offsets_of, partitions_of
from kafkalite.spark.manifest import Manifest
from kafkalite.spark.options import check_formats, format_offsets
from kafkalite.spark.ranges import OffsetRange

PATTERN = re.compile(r"[\\{}\[\]*?]")  # of a path, what Spark takes for a pattern
HIDDEN = "._"  # readers of Parquet pass by what begins so
DAY = "day"  # the column that the folders make
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
FIRST_DAY, LAST_DAY = (pa.scalar(day, pa.date32()) for day in (date.min, date.max))
ROW_SCHEMA = "file string, records long"
WRITE_ROWS_MAX = 500_000  # held in memory by one task; beyond, the fullest day's are a row group


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
            raise ConfigError(f"table {table} holds topic {held.topic}, and so not {load.topic}")
    partitions = partitions_of(bootstrap_servers, [load.topic])
    first, end = offsets_of(bootstrap_servers, partitions)
    gaps = tuple(manifest.gaps(first))
    ranges = manifest.plan(first, end)
    if not ranges:
        return Loaded(load.topic, 0, 0, (), gaps)
    there = [  # what was planned may have been deleted since
        replace(r, start=min(r.end, max(r.start, first[r.topic_partition]))) for r in ranges
    ]
    with our_failures(str(table)):
        rows = (
            spark.read.format("kafkalite")
            .options(**_source_options(bootstrap_servers, load, there))
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
        "assign": str(assigned).replace("'", '"'),
        "startingOffsets": format_offsets(start),
        "endingOffsets": format_offsets(end),
        "key.format": load.key_format,
        "value.format": load.value_format,
    }


@dataclass(frozen=True, slots=True)
class RangeWriter:
    """Runs in a Spark task over the batches of one range; writes a file for each day in it."""

    table: Path
    ranges: tuple[OffsetRange, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the files it wrote with their counts of records."""
        days: dict[str, DayFile] = {}
        wanted: OffsetRange | None = None
        waiting = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            wanted = wanted or self._range_of(batch)
            for day, rows in by_day(flattened(batch)):
                if day not in days:
                    days[day] = DayFile(self._path(day, wanted), rows.schema)
                days[day].add(rows)
            waiting += batch.num_rows
            while waiting >= WRITE_ROWS_MAX:
                waiting -= max(days.values(), key=attrgetter("rows_waiting")).flush()
        for file in days.values():
            file.close()
        yield pa.RecordBatch.from_pydict(
            {
                "file": pa.array([str(file.path) for file in days.values()], pa.string()),
                "records": pa.array([file.records for file in days.values()], pa.int64()),
            }
        )

    def _range_of(self, batch: pa.RecordBatch) -> OffsetRange:
        topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
        for wanted in self.ranges:
            if (wanted.topic, wanted.partition) == (topic, partition):
                return wanted
        raise KafkaliteError(f"{topic}-{partition} is in no planned range")

    def _path(self, day: str, wanted: OffsetRange) -> Path:
        return self.table / f"{DAY}={day}" / file_name(wanted)


def file_name(wanted: OffsetRange) -> str:
    """What the files of a range are called, one for each day."""
    topic = wanted.topic if wanted.topic[0] not in HIDDEN else f"topic{wanted.topic}"
    return f"{topic}-{wanted.partition}-{wanted.start}-{wanted.end}.parquet"


class DayFile:
    """The rows of one range and one day, a Parquet file that appears when it is complete."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.records = 0
        self._schema = schema
        self.rows_waiting = 0
        self._waiting: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None

    @property
    def _fresh(self) -> Path:
        return self.path.with_name(f"_{self.path.name}.tmp")

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows; many small pieces become one row group."""
        self._waiting.append(rows)
        self.rows_waiting += rows.num_rows
        self.records += rows.num_rows

    def flush(self) -> int:
        """Makes a row group of the rows that wait; how many they were."""
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(Appended(self._fresh), self._schema)
        self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        written, self._waiting, self.rows_waiting = self.rows_waiting, [], 0
        return written

    def close(self) -> None:
        """Writes what waits and gives the file its name."""
        if self._waiting:
            self.flush()
        assert self._writer is not None, "a day has rows"
        self._writer.close()
        self._fresh.replace(self.path)


class Appended(io.RawIOBase):
    """A new file that is open only while it is written to: a range may be of thousands of days."""

    def __init__(self, path: Path) -> None:
        self._path, self._length = path, 0
        path.write_bytes(b"")

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Appends all of the bytes."""
        with self._path.open("ab") as file:
            written = file.write(data)
        self._length += written
        return written

    def tell(self) -> int:
        """How long the file is."""
        return self._length


def by_day(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Splits rows by the UTC day of their timestamp, keeping their order within a day.

    A day that is in none of the years 1 to 9999 (of milliseconds that were microseconds, say) is
    NO_DAY, which is null to those who read folders as columns.
    """
    days = pc.cast(rows.column("_timestamp"), pa.date32(), safe=False)
    sayable = pc.and_(pc.greater_equal(days, FIRST_DAY), pc.less_equal(days, LAST_DAY))
    days = pc.if_else(sayable, days, None)
    for day in pc.unique(days):
        own = pc.equal(days, day) if day.is_valid else pc.is_null(days)
        yield str(day) if day.is_valid else NO_DAY, rows.filter(own)


def read_table(spark: SparkSession, warehouse: Path, load: TopicLoad) -> bool:
    """Makes the table visible to SQL under its name, with the columns of the newest load; False
    while it has no rows.

    Older rows are null in columns that came since. Spark alone would take the columns of any file.
    DAY is that of the folders; a field of the values with that name is in the files alone.
    """
    table = warehouse / load.table
    newest = next(
        (
            file
            for wanted in Manifest(table).ranges()
            for file in table.glob(f"*/{file_name(wanted)}")
        ),
        None,
    )
    if newest is None:
        return False
    of_file = [field for field in pq.read_schema(newest) if field.name.lower() != DAY]
    columns = from_arrow_schema(pa.schema([*of_file, (DAY, pa.date32())]))
    path = PATTERN.sub(r"\\\g<0>", str(table))
    spark.read.schema(columns).parquet(path).createOrReplaceTempView(load.table)
    return True
