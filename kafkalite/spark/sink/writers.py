"""The writers that Spark runs: one in each task, and the one that commits in the driver.    [IO]

    at least once    each task sends its rows and waits until they are acknowledged
    exactly once     each task stages its rows in a file; the driver sends the files of all tasks in
                     one transaction, with a record of the epoch (epochs.py)

Spark pickles the writers, and makes them several times for one batch, in processes that write
nothing: they hold options alone, and import what writes when rows are there.

Owns   nothing between calls.
Fails  with ConfigError for options and columns, with the error of a task's rows otherwise.
Source Spark's Python data source API (4.1: Arrow writers of streams).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kafkalite.errors import ConfigError
from kafkalite.spark.processes import errors_in_one_line, freeze_modules
from kafkalite.spark.sink.columns import check_columns
from kafkalite.spark.sink.messages import Staged, Written
from kafkalite.spark.sink.options import AVRO, BINARY, SinkOptions, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.spark.sink.staging import Staging

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"


class Sink:
    """What batch and stream writers share."""

    def __init__(self, options: Mapping[str, str], columns: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.options: SinkOptions = parse_sink_options(options)
        formats = {"key": self.options.key_format, "value": self.options.value_format}
        rows = to_arrow_schema(columns, timezone="UTC")
        check_columns(rows, self.options.topic, formats)
        self._schemas = {
            part: given or self._schema_of(rows, part)
            for part, given in (
                ("key", self.options.key_schema),
                ("value", self.options.value_schema),
            )
            if formats[part] == AVRO and part in rows.names
        }
        if self.options.exactly_once and self.options.staging is None:
            raise ConfigError("deliveryGuarantee exactly-once needs the option stagingLocation")
        freeze_modules()

    def records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows as records."""
        from kafkalite.spark.sink.rows import records_of

        codecs = self._codecs()
        freeze_modules()
        for batch in batches:
            if batch.num_rows:
                now_ms = time.time_ns() // 1_000_000
                yield from records_of(batch, self.options.topic, codecs, now_ms)

    def _schema_of(self, rows: pa.Schema, part: str) -> str:
        """The Avro schema of a column, so that it does not depend on the values of a task."""
        from kafkalite.serde.avro_infer import record_name
        from kafkalite.spark.sink.avro_types import avro_schema

        topic = self.options.topic
        name = part.capitalize() if topic is None else record_name(topic)
        return avro_schema(rows.field(part).type, part, name)

    def _codecs(self) -> dict[str, Any]:
        """The codecs of columns that are no bytes yet."""
        codecs: dict[str, Any] = {}
        options = self.options
        if options.key_format == options.value_format == BINARY:
            return codecs
        from kafkalite.serde import Serde, SerdeContext, avro, json
        from kafkalite.serde.registry_log import registry_at

        for part, form in (("key", options.key_format), ("value", options.value_format)):
            if form == BINARY:
                continue
            serde: Serde[Any] = json() if form != AVRO else avro(schema=self._schemas.get(part))
            registry = registry_at(options.bootstrap_servers) if form == AVRO else None
            codecs[part] = serde.open(SerdeContext(registry, is_key=part == "key"))
        return codecs

    def send(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Sends rows and waits until all are acknowledged; how many they are."""
        from kafkalite.clients.sync import Producer
        from kafkalite.spark.sink.rows import by_topic

        rows = 0
        with Producer(self.options.bootstrap_servers, **self.options.producer) as producer:
            for records in self.records(batches):
                for topic, columns, partitions in by_topic(records):
                    producer.send_columns(topic, columns, partitions=partitions)
                rows += records.num_rows
        return rows

    async def check(self) -> None:
        """Raises where these rows must not be written any more; a sink of a topology knows when."""

    def staging(self, name: str) -> Staging:
        """The staged rows of a transactional id."""
        from kafkalite.spark.sink.staging import Staging

        assert self.options.staging is not None, "checked when the sink was made"
        return Staging(self.options.staging, name)


class BatchWriter(DataSourceArrowWriter):
    """Writes a table once. Exactly once: all of its rows, or none where the job fails."""

    def __init__(self, options: Mapping[str, str], columns: StructType) -> None:
        self.sink = Sink(options, columns)
        self._name = self.sink.options.transactional_id or f"kafkalite-spark-{uuid.uuid4()}"

    @errors_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends or stages the rows of a task."""
        if not self.sink.options.exactly_once:
            return Written(Staged("", self.sink.send(iterator)), "")
        staging = self.sink.staging(self._name)
        return Written(staging.write(0, uuid.uuid4().hex, self.sink.records(iterator)), "")

    @errors_in_one_line()
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

    @errors_in_one_line()
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

    @errors_in_one_line()
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

    freeze_modules()
    written = [each for each in messages if isinstance(each, Written)]
    staging = sink.staging(name)
    files = [each.staged for each in written if each.staged.rows]
    batches = chain.from_iterable(map(staging.read, files))
    epoch = None if is_batch else Epoch(written[0].query, number)
    commit(sink.options, name, batches, epoch, sink.check)
    staging.remove_up_to(number)
