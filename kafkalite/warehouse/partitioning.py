"""The folders of a table: rows by day, hour or month of their timestamp, or by a field.     [P]

    TABLE/orders-2-0-84213.parquet                    no partitioning: topic-partition-start-end
    TABLE/day=2013-01-01/orders-2-0-84213.parquet     day; hour=2013-01-01-05; month=2013-01
    TABLE/origin=JFK/orders-2-0-84213.parquet         a field of the value
    TABLE/day=__HIVE_DEFAULT_PARTITION__/…            null, or a timestamp without a date

Fails  with ConfigError for a field that the rows lack or that has no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.errors import ConfigError

HIDDEN: Final = "._"  # readers of Parquet ignore names that begin with one of these
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
TIMES: Final = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H", "month": "%Y-%m"}
FOLDER_TYPES: Final = {"day": pa.date32()}  # of the folders' column; hour, month: text
KEY: Final = "__partition"
TIMESTAMP: Final = "_timestamp"


def visible(topic: str) -> str:
    """A topic's name as the beginning of a file's."""
    return topic if topic[0] not in HIDDEN else f"topic{topic}"


def file_name(wanted: OffsetRange, part: int = 0) -> str:
    """The name of a range's file, the same in each folder; a second part has a number."""
    number = f".{part}" if part else ""
    return f"{visible(wanted.topic)}-{wanted.partition}-{wanted.start}-{wanted.end}{number}.parquet"


def partition_value(path: str) -> str | None:
    """The text of the value that a file's folder has in its name."""
    text = path.partition("/")[0].partition("=")[2]
    return None if text == NULL else unquote(text)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """`by` is day, hour, month or a field's name; None keeps all files in one folder."""

    by: str | None = None

    def parts(self, rows: pa.Table, *, is_sorted: bool) -> Iterator[tuple[str | None, pa.Table]]:
        """The rows of each partition with its value as text, in order of their timestamps if
        `is_sorted`, else in order of their offsets.
        """
        order = [(TIMESTAMP, "ascending")] if is_sorted else []
        if self.by is None:
            yield None, rows.sort_by(order) if order and not _rises(rows[TIMESTAMP]) else rows
            return
        keyed = rows.append_column(KEY, self._keys(rows))
        keyed = keyed.sort_by([(KEY, "ascending"), *order])
        runs = pc.run_end_encode(keyed[KEY].combine_chunks())
        start = 0
        own = keyed.drop_columns([KEY])
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield value, own.slice(start, end - start)
            start = end

    def folder(self, value: str | None) -> str:
        """The folder of a partition below the table, with a slash at its end; "" for none."""
        if self.by is None:
            return ""
        return f"{self.by}={NULL if value is None else quote(value, safe=' ')}/"

    def _keys(self, rows: pa.Table) -> pa.ChunkedArray:
        if self.by in TIMES:
            times = rows[TIMESTAMP]
            days = pc.cast(times, pa.date32(), safe=False)
            first, last = (pa.scalar(day, pa.date32()) for day in (date.min, date.max))
            is_date = pc.and_(pc.greater_equal(days, first), pc.less_equal(days, last))
            times = pc.if_else(is_date, times, None)
            return pc.strftime(times, TIMES[self.by])
        if self.by not in rows.column_names:
            raise ConfigError(f"--partition-by {self.by}: the rows have no such field")
        column = rows[self.by]
        try:
            return column.cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ConfigError(
                f"--partition-by {self.by}: a field of type {column.type} makes no folders"
            ) from error


def _rises(times: pa.ChunkedArray) -> bool:
    """Whether each time is the previous one or later, so that there is nothing to sort."""
    flat = times.combine_chunks() if times.num_chunks != 1 else times.chunk(0)
    if len(flat) < 2:
        return True
    return bool(pc.all(pc.less_equal(flat[:-1], flat[1:])).as_py())
