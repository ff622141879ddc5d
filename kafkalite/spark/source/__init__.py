"""`format("kafkalite")`: the log as a table and as a stream, through PySpark alone.       [IO]

The sink of this name is made here, too, and has a room of its own.

    planning   where a query begins, the next batch, Spark's partitions         pure
    schemas    the schema of the values, and the columns it makes
    pruning    filters of Spark, as offsets and rows that are left out          pure
    reading    what batch and stream share: columns, and a range as Arrow
    batch      a reader of what lies between two places of the log
    stream     a reader of micro-batches

Owns   nothing between calls: Spark pickles readers and runs them in other processes.
Fails  with ConfigError for wrong options, with StorageError if records were deleted.
Source Spark's Python data source API (4.2), the official Kafka connector's options.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from kafkalite.errors import ConfigError
from kafkalite.spark.processes import errors_in_one_line, freeze_modules
from kafkalite.spark.source.batch import BatchReader, PruningReader
from kafkalite.spark.source.reading import VALUE_SCHEMA, Reading
from kafkalite.spark.source.stream import StreamReader

__all__ = ["BatchReader", "KafkaliteSource", "PruningReader", "StreamReader"]


class KafkaliteSource(DataSource):
    """The data source. Constructed often and in many processes: it does nothing until asked."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "kafkalite"

    @errors_in_one_line()
    def schema(self) -> StructType:
        """The columns, from the options and the registry. The value's bears the schema that
        the readers of this query read as, whichever is the latest when they run.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        reading = Reading.of_either(dict(self.options))
        columns = from_arrow_schema(reading.columns())
        if reading.schema is not None:
            columns["value"].metadata = {VALUE_SCHEMA: reading.schema}
        freeze_modules()
        return columns

    @errors_in_one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Spark refuses one that takes filters, unless its setting allows that."""
        given = {name.lower(): text.lower() for name, text in self.options.items()}
        kind = PruningReader if given.get("pushfilters") == "once" else BatchReader
        return kind(dict(self.options), _value_schema(schema))

    @errors_in_one_line()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader; never the simple kind, which ignores limits."""
        freeze_modules()
        return StreamReader(dict(self.options), _value_schema(schema))

    @errors_in_one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer; a log is only ever added to."""
        from kafkalite.spark.sink.writers import BatchWriter

        if overwrite:
            raise ConfigError("mode overwrite: a log is only added to, use mode append")
        return BatchWriter(dict(self.options), schema)

    @errors_in_one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A stream writer."""
        from kafkalite.spark.sink.writers import StreamWriter

        if overwrite:
            raise ConfigError("output mode complete: a log is only added to, use append or update")
        return StreamWriter(dict(self.options), schema)


def _value_schema(columns: StructType) -> str | None:
    """The schema that `KafkaliteSource.schema` put into the columns."""
    return next((f.metadata.get(VALUE_SCHEMA) for f in columns if f.name == "value"), None)
