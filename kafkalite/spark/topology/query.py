"""One topology as one query of Structured Streaming: built, run, stopped.                  [IO]

    source ─ level 0 ──► groupBy(to).transformWithState: level 1 ──► … ──► sink: an epoch at a time

The query goes on from its checkpoint: offsets, wall clock and state belong together there, and the
sink leaves an epoch alone that it has committed before.

Owns   the query while it runs. The session is the caller's.
Fails  with what the topology failed with, as its error says it in one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from kafkalite.columnar.lookup import Lookup
from kafkalite.columnar.ranges import OffsetRange, ranges_between
from kafkalite.columnar.reading import read_range
from kafkalite.columnar.settings import ReadSettings
from kafkalite.core.types import TopicPartition
from kafkalite.errors import KafkaliteError
from kafkalite.spark.failures import our_failures
from kafkalite.spark.topology.buckets import LEFT_OUT
from kafkalite.spark.topology.moving import sink_name
from kafkalite.spark.topology.offsets import Progress
from kafkalite.spark.topology.reader import SCHEMA, source_of
from kafkalite.spark.topology.shipping import Shipment
from kafkalite.spark.topology.sink import SINK, STAY, TopologySink, stay_option
from kafkalite.spark.topology.stages import Layout
from kafkalite.spark.topology.stateful import Level
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.holder import Holder
from kafkalite.streams.local.watermarks import MARKER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",  # rows are packets
    "spark.sql.streaming.pollingDelay": "100ms",  # between looks for new offsets
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # the source says when time passes
}
RECORDS_MAX: Final = 1_000_000  # of a micro-batch
LOOK_SECONDS: Final = 0.2
STARTS_MAX: Final = 5
TOO_SLOW: Final = "Python worker failed to connect back"  # 10 s, which no setting changes
RUNS_MAX: Final = 1_000  # until a topology that feeds itself is caught up


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """How a topology runs on Spark. Without a `trigger` micro-batches follow one another at once.

    `initial_state`: rows (to, head, blob) of tasks that come from elsewhere, for a new checkpoint.
    `holder`: the stay on Spark that the query runs for; its sink writes no longer than that.
    """

    checkpoint: str
    trigger: str | None = None
    records_max: int | None = RECORDS_MAX
    initial_state: DataFrame | None = None
    holder: Holder | None = None


@dataclass(slots=True)
class Seen:
    """What a run has done so far."""

    first: Mapping[TopicPartition, int] | None = None
    last: Mapping[TopicPartition, int] = field(default_factory=dict)
    micro_batches: int = 0
    drops: Drops = field(default_factory=Drops)
    _batch_id: int = -1

    def note(self, query: StreamingQuery) -> None:
        """Takes in the micro-batches that Spark has reported since."""
        last = query.lastProgress
        if last is None or last["batchId"] <= self._batch_id:
            return
        is_next = last["batchId"] == self._batch_id + 1
        for progress in [last] if is_next else query.recentProgress:
            if progress["batchId"] > self._batch_id:
                self._note(progress)

    def _note(self, progress: Mapping[str, Any]) -> None:
        if "addBatch" not in progress["durationMs"]:
            return  # nothing new: the number is that of the micro-batch to come
        (source,) = progress["sources"]
        end = Progress.load(_loaded(source["endOffset"]))
        if self.first is None:
            start = _loaded(source["startOffset"])
            begun = end.begin or (Progress.load(start).offsets if start else None)
            self.first = end.offsets if begun is None else begun
        self.last = end.offsets
        self.micro_batches += 1
        self._batch_id = progress["batchId"]
        for document in progress["observedMetrics"][LEFT_OUT][0]:
            self.drops.add_document(json.loads(document))

    @property
    def records(self) -> int:
        """The offsets that were passed: records, and the ends of transactions."""
        first = self.first or {}
        return sum(offset - first.get(tp, 0) for tp, offset in self.last.items())


def _observed(rows: DataFrame) -> DataFrame:
    """The rows for the sink, while the query's progress gets the counts of records left out."""
    from pyspark.sql import functions as f

    is_count = f.col("topic") == LEFT_OUT
    counts = f.collect_list(f.when(is_count, f.col("packet").cast("string")))
    return rows.observe(LEFT_OUT, counts.alias("counts")).where(~is_count)


def _loaded(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


class TopologyQuery:
    """The query of one topology. `is_stopping` is asked now and then."""

    def __init__(
        self,
        session: SparkSession,
        layout: Layout,
        shipment: Shipment,
        settings: QuerySettings,
    ) -> None:
        self._session, self._settings = session, settings
        self._layout, self._shipment = layout, shipment
        self._name = layout.stages.plan.application_id
        self.seen = Seen()

    def run(self, is_stopping: Callable[[], bool], *, until_caught_up: bool = False) -> None:
        """Runs until stopped, or until every input is read to its end. Raises what ended it."""
        with self._failures():
            rounds = 0  # that had nothing but watermarks to read
            for _ in range(RUNS_MAX):
                self._run_once(is_stopping, until_caught_up=until_caught_up)
                if is_stopping() or not until_caught_up:
                    return
                if not (ranges := self._unread()):
                    return
                rounds = 0 if any(map(self._has_records, ranges)) else rounds + 1
                if rounds > len(self._layout.stages.by_log):
                    return  # each part that they lead back to has heard of them

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raises our own errors as they were raised in a worker, those of Spark in one line."""
        try:
            with our_failures(self._settings.checkpoint):
                yield
        except PySparkException as error:
            words = str(error).partition("\n")[0]
            raise KafkaliteError(f"{self._name}: Spark has ended the query: {words}") from error

    def _run_once(self, is_stopping: Callable[[], bool], *, until_caught_up: bool) -> None:
        for left in reversed(range(STARTS_MAX)):
            try:
                self._run_query(is_stopping, until_caught_up=until_caught_up)
                return
            except PySparkException as error:
                if TOO_SLOW not in str(error) or not left or is_stopping():
                    raise

    def _run_query(self, is_stopping: Callable[[], bool], *, until_caught_up: bool) -> None:
        query = self._start(until_caught_up=until_caught_up)
        try:
            while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]
                self.seen.note(query)
                if is_stopping():
                    break
        finally:
            query.stop()
            self.seen.note(query)

    def _start(self, *, until_caught_up: bool) -> StreamingQuery:
        session, settings = self._session, self._settings
        for name, value in SETTINGS.items():
            session.conf.set(name, value)
        name = f"kafkalite-topology-{self._shipment.digest[:16]}"
        session.dataSource.register(source_of(self._shipment, settings.records_max, name))
        session.dataSource.register(TopologySink)
        rows = session.readStream.format(name).load()
        for level in range(1, self._layout.stages.depth + 1):
            rows = self._level(rows, level)
        writer = (
            _observed(rows)
            .writeStream.format(SINK)
            .queryName(self._name)
            .outputMode("append")
            .option("kafka.bootstrap.servers", self._shipment.servers)
            .option("deliveryGuarantee", "exactly-once")
            .option("transactionalId", sink_name(self._name))
            .option("checkpointLocation", settings.checkpoint)
        )
        if settings.holder is not None:
            writer = writer.option(STAY, stay_option(self._name, settings.holder))
        if until_caught_up:
            writer = writer.trigger(availableNow=True)
        elif settings.trigger is not None:
            writer = writer.trigger(processingTime=settings.trigger)
        return writer.start()

    def _level(self, rows: DataFrame, level: int) -> DataFrame:
        initial = self._settings.initial_state
        return rows.groupBy("to").transformWithStateInPandas(
            Level(self._shipment, level),
            SCHEMA,
            "append",
            "None",
            None if initial is None else self._initial(initial, level).groupBy("to"),
        )

    def _initial(self, initial: DataFrame, level: int) -> DataFrame:
        """The rows of the tasks of one level."""
        layout = self._layout
        names = [str(task) for task in layout.tasks if layout.level(task) == level]
        return initial.where(initial["to"].isin(names))

    def _unread(self) -> list[OffsetRange]:
        """What the log has beyond the end of the last run, of the topics that lead back."""
        by_log = self._layout.stages.by_log
        read = {tp: at for tp, at in self.seen.last.items() if tp.topic in by_log}
        if not read:
            return []
        with Lookup(self._reads) as lookup:
            return ranges_between(read, lookup.end(read))

    def _has_records(self, wanted: OffsetRange) -> bool:
        """Whether there is more than watermarks, which tasks may tell again and again."""
        return any(
            key != MARKER_KEY
            for rows in read_range(self._reads, wanted)
            for key in rows.columns.keys
        )

    @property
    def _reads(self) -> ReadSettings:
        return ReadSettings(self._shipment.servers)
