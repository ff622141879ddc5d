"""The writers that Spark runs: one in each task, and the one that commits in the driver.    [IO]

    at least once    each task sends its rows and waits until they are acknowledged
    exactly once     each task stages its rows in a file; the driver sends the files of all tasks in
                     one transaction, with a record of the epoch (epochs.py)

Spark pickles the writers, and makes them several times for one batch: they hold options alone.

Owns   nothing between calls.
Fails  with ConfigError for options and columns, with the error of a task's rows otherwise.
Source Spark's Python data source API (4.1: Arrow writers of streams).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kafkalite.errors import ConfigError
from kafkalite.spark.sink.options import SinkOptions, parse_sink_options
from kafkalite.spark.sink.rows import by_topic, check_columns, records_of
from kafkalite.spark.sink.staging import Staged, Staging

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task did: the rows that it sent or staged, and the query that it belongs to."""

    staged: Staged
    query: str


class Sink:
    """What batch and stream writers share."""

    def __init__(self, options: Mapping[str, str], columns: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.options: SinkOptions = parse_sink_options(options)
        formats = {"key": self.options.key_format, "value": self.options.value_format}
        check_columns(to_arrow_schema(columns, timezone="UTC"), self.options.topic, formats)
        if self.options.exactly_once and self.options.staging is None:
            raise ConfigError("deliveryGuarantee exactly-once needs the option stagingLocation")

    def records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows as records."""
        codecs = self._codecs()
        for batch in batches:
            if batch.num_rows:
                now_ms = time.time_ns() // 1_000_000
                yield records_of(batch, self.options.topic, codecs, now_ms)

    def _codecs(self) -> dict[str, Any]:
        """The codecs of columns that are no bytes yet."""
        from kafkalite.serde import Serde, SerdeContext, avro, json
        from kafkalite.serde.registry_log import registry_at

        codecs: dict[str, Any] = {}
        options = self.options
        for part, form, schema in (
            ("key", options.key_format, options.key_schema),
            ("value", options.value_format, options.value_schema),
        ):
            if form == "binary":
                continue
            serde: Serde[Any] = json() if form == "json" else avro(schema=schema)
            registry = registry_at(options.bootstrap_servers) if form == "avro" else None
            codecs[part] = serde.open(SerdeContext(registry, is_key=part == "key"))
        return codecs

    def send(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Sends rows and waits until all are acknowledged; how many they are."""
        from kafkalite.clients.sync import Producer

        rows = 0
        with Producer(self.options.bootstrap_servers, **self.options.producer) as producer:
            for records in self.records(batches):
                for topic, columns, partitions in by_topic(records):
                    producer.send_columns(topic, columns, partitions=partitions)
                rows += records.num_rows
        return rows

    def staging(self, name: str) -> Staging:
        """The staged rows of a transactional id."""
        assert self.options.staging is not None, "checked when the sink was made"
        return Staging(self.options.staging, name)


class BatchWriter(DataSourceArrowWriter):
    """Writes a table once. Exactly once: all of its rows, or none where the job fails."""

    def __init__(self, options: Mapping[str, str], columns: StructType) -> None:
        self.sink = Sink(options, columns)
        self._name = self.sink.options.transactional_id or f"kafkalite-spark-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends or stages the rows of a task."""
        if not self.sink.options.exactly_once:
            return Written(Staged("", self.sink.send(iterator)), "")
        staging = self.sink.staging(self._name)
        return Written(staging.write(0, uuid.uuid4().hex, self.sink.records(iterator)), "")

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Sends the staged rows of all tasks."""
        if self.sink.options.exactly_once:
            _commit(self.sink, self._name, messages, 0, is_batch=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes what was staged."""
        if self.sink.options.exactly_once:
            self.sink.staging(self._name).remove_up_to(0)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def __init__(self, options: Mapping[str, str], columns: StructType) -> None:
        self.sink = Sink(options, columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends or stages the rows of a task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query = str(context.getLocalProperty(QUERY_ID))
        if not self.sink.options.exactly_once:
            return Written(Staged("", self.sink.send(iterator)), query)
        epoch = int(context.getLocalProperty(BATCH_ID) or 0)
        staging = self.sink.staging(self._name(query))
        return Written(staging.write(epoch, uuid.uuid4().hex, self.sink.records(iterator)), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Sends the staged rows of all tasks, unless they were sent before."""
        written = [each for each in messages if isinstance(each, Written)]
        if self.sink.options.exactly_once and written:
            name = self._name(written[0].query)
            _commit(self.sink, name, messages, batchId, is_batch=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the next commit removes what was staged. Whether this epoch was committed is not
        known here, as Spark also calls this after a commit whose answer was lost."""

    def _name(self, query: str) -> str:
        return self.sink.options.transactional_id or f"kafkalite-spark-{query}"


def _commit(
    sink: Sink,
    name: str,
    messages: Sequence[WriterCommitMessage | None],
    number: int,
    *,
    is_batch: bool,
) -> None:
    """Sends staged rows in one transaction and removes them."""
    from kafkalite.spark.sink.epochs import Epoch, commit

    written = [each for each in messages if isinstance(each, Written)]
    staging = sink.staging(name)
    files = [each.staged for each in written if each.staged.rows]
    batches = chain.from_iterable(map(staging.read, files))
    epoch = None if is_batch else Epoch(written[0].query, number)
    commit(sink.options, name, batches, epoch)
    staging.remove_up_to(number)
