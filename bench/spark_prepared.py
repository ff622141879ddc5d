"""A source of Spark that reads nothing: each task sends one prepared Arrow batch again and again.

What a streaming query of it costs is Spark's own part of every Python source: the process of the
query, the socket, and the JVM's way from Arrow to rows. No source is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

NAME: Final = "prepared"
NAMES: Final = ("partition", "offset", "timestamp", "value")
SCHEMA: Final = "partition int, offset long, timestamp timestamp, value binary"
PARTITIONS: Final = 4
BATCH_BYTES: Final = 2 << 20  # as the source of kafkalite has them


class PreparedReader(DataSourceStreamReader):
    """One micro-batch of `rows` values of `size` bytes."""

    def __init__(self, options: dict[str, str]) -> None:
        self._rows, self._size = int(options["rows"]), int(options["size"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Before the micro-batch."""
        return {"batches": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802
        """Behind it."""
        return {"batches": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """A task each."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        left, count = self._rows // PARTITIONS, BATCH_BYTES // self._size
        random = Random(partition.value)
        arrays = [
            pa.array([partition.value] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array(range(count), pa.timestamp("us", "UTC")),
            pa.array([random.randbytes(self._size // 2).hex().encode() for _ in range(count)]),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, list(NAMES))
        while left:
            yield batch.slice(0, min(left, count))
            left -= min(left, count)


class PreparedSource(DataSource):
    """To register with a session."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return NAME

    def schema(self) -> str:
        """The columns that a stream's query takes."""
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """The reader."""
        return PreparedReader(dict(self.options))
