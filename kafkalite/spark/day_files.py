"""The output of one task of a load: a Parquet file for each day of its range.               [IO]

    TABLE/day=2013-01-01/flights-2-0-84213.parquet     topic-partition-start-end
    TABLE/day=__HIVE_DEFAULT_PARTITION__/…             timestamps outside the range of dates

Owns   the files of the range. The range determines their names; each file is complete or absent.
Fails  with the disk's errors, and with KafkaliteError for rows outside the planned ranges.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.errors import KafkaliteError
from kafkalite.spark.arrow import flattened

HIDDEN: Final = "._"  # readers of Parquet pass by what begins so
DAY: Final = "day"  # the column that the folders make
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
FIRST_DAY, LAST_DAY = (pa.scalar(day, pa.date32()) for day in (date.min, date.max))
WRITE_ROWS_MAX: Final = 500_000  # waiting in one task; beyond, the fullest day's are written


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
        raise KafkaliteError(f"{topic}-{partition} is not part of the planned load")

    def _path(self, day: str, wanted: OffsetRange) -> Path:
        return self.table / f"{DAY}={day}" / file_name(wanted)


def file_name(wanted: OffsetRange) -> str:
    """The name of a range's files, the same in the folder of each day."""
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
