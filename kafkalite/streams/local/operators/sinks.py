"""Sinks: batches become the bytes of output records.                                       [P]

Fails  through the error policy, with the record on which a serde, a topic function or a partitioner
       failed; the other records of the batch are written.
Source Kafka Streams' SinkNode, RecordCollectorImpl.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafkalite.core.columns import take
from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, SerdeError, TopologyError
from kafkalite.serde.serde import Codec, takes_arrow
from kafkalite.streams import plan as p
from kafkalite.streams.foreign import ToItsTask
from kafkalite.streams.local.batch import Batch, Output, Push
from kafkalite.streams.local.calling import records
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import convert
from kafkalite.streams.local.operators.changed import without_null_keys
from kafkalite.streams.local.operators.partial import Folder, folder_needs, folder_of
from kafkalite.streams.local.partials import is_row, may_hold_rows
from kafkalite.streams.local.runtime import (
    Needs,
    Runtime,
    compile_node,
    is_portable,
    node_needs,
)
from kafkalite.streams.local.sizes import RecordTooLarge, too_large
from kafkalite.streams.naming import check_name


@node_needs.register
def _(node: p.Sink, below: Needs, runtime: Runtime) -> Needs:
    needs = sink_bytes(node, runtime) | folder_needs(node, runtime)
    has_partitioner = node.partitioner is not None and not isinstance(node.partitioner, ToItsTask)
    if has_partitioner or callable(node.topic):
        needs |= Needs(key=True, value=True)
    return needs


def sink_bytes(node: p.Sink, runtime: Runtime) -> Needs:
    """The columns that a sink writes: bytes as they came where the serde is the same."""
    above = runtime.input_schema(node)
    assert node.key is not None
    assert node.value is not None
    raw_key = node.key == above.key and is_portable(node.key)
    raw_value = node.value == above.value and above.has_raw_value and is_portable(node.value)
    codec = runtime.codec(node.value, is_key=False)
    arrow = folder_of(node, runtime) is not None or takes_arrow(codec)
    return Needs(not raw_key, raw_key, not raw_value, raw_value, arrow=arrow)


@compile_node.register
def _(node: p.Sink, runtime: Runtime) -> Push:
    return Sink(node, runtime).run


class Sink:
    """Makes bytes of a batch and leaves them in the task's outputs."""

    def __init__(self, node: p.Sink, runtime: Runtime) -> None:
        assert node.key is not None
        assert node.value is not None
        self.node = node
        self.runtime = runtime
        self.failures = runtime.failures
        self.needs = sink_bytes(node, runtime)
        self.key_codec = runtime.codec(node.key, is_key=True)
        self.value_codec = runtime.codec(node.value, is_key=False)
        alike = (
            sink.name
            for sink in runtime.sub_topology.sinks
            if (sink.topic, sink.key, sink.value) == (node.topic, node.key, node.value)
        )
        self.name = next(alike)  # of the first sink that writes the same bytes to the topic
        self.folder = folder_of(node, runtime)
        # Records without a key have no place in a repartition topic, but for left joins.
        is_internal = node.topic in runtime.sub_topology.repartition_sinks
        self.drops_null_keys = is_internal and not node.keeps_null_keys
        self.drops_null_keys = self.drops_null_keys or self.folder is not None

    def run(self, batch: Batch) -> None:
        """Writes the batch, into the one topic or each record into its own."""
        if isinstance(self.node.topic, str):
            self.write(self.node.topic, batch)
            return
        call = _topic_name(self.node.topic)
        batch, topics = self.failures.apply(self.node, call, batch, (records(batch),))
        indexes: dict[str, list[int]] = {}
        for index, topic in enumerate(topics):
            indexes.setdefault(topic, []).append(index)
        for topic, its in indexes.items():
            self.write(topic, batch if len(indexes) == 1 else batch.take(its))

    def write(self, topic: str, batch: Batch) -> None:
        """Writes the batch into `topic`, without the records that the serdes refuse."""
        if self.drops_null_keys:
            there = len(batch)
            batch = without_null_keys(batch)
            self.runtime.drops.add(Reason.NULL_KEY, self.node.name, there - len(batch))
        failed: set[int] = set()
        keys: Sequence[bytes | None] | None = batch.raw_keys
        if self.needs.key:
            keys = self._serialize(self.key_codec, topic, batch, batch.keys, failed)
        assert keys is not None
        if self.folder is not None and not failed:
            batch, keys = self._fold(self.folder, topic, batch, keys)
            if not len(batch):
                return
        values: Sequence[bytes | None] | None = batch.raw_values
        if self.needs.value:
            values = self._serialize(self.value_codec, topic, batch, batch.values, failed)
        assert values is not None
        columns = Columns(keys, values, batch.timestamps, None, batch.headers)
        self._check_sizes(topic, batch, columns, failed)
        self._check_beginnings(batch, columns, failed)
        if failed:
            keep = [index not in failed for index in range(len(batch))]
            batch, columns = batch.where(keep), columns.where(keep)
        partitions: Sequence[int] | None = None
        if self.node.partitioner is not None:
            found = self._partitions(self.node.partitioner, topic, batch, columns)
            keep = [partition is not None for partition in found]
            batch, columns = batch.where(keep), columns.where(keep)
            partitions = [partition for partition in found if partition is not None]
        if not len(columns):
            return
        if self.folder is not None:
            self.folder.passed(columns.timestamps)
        if self.runtime.ordering.is_shared(topic):
            order = batch.origin.order(range(len(batch)))
            self.runtime.unordered.append(Output(topic, columns, partitions, self.name, order))
        else:
            self.runtime.outputs.append(Output(topic, columns, partitions, self.name))

    def _fold(
        self, folder: Folder, topic: str, batch: Batch, keys: Sequence[bytes | None]
    ) -> tuple[Batch, Sequence[bytes | None]]:
        """Writes the rows that a batch comes to; the records that none holds, with their keys."""
        folded = folder.fold(batch, keys)
        if folded is None:
            return batch, keys
        folder.passed(folded.columns.timestamps)
        self.runtime.outputs.append(Output(topic, folded.columns, None, f"{self.name}.rows"))
        return batch.take(folded.late), take(keys, folded.late)

    def _check_beginnings(self, batch: Batch, columns: Columns, failed: set[int]) -> None:
        """Records that a reader would take for rows of partials fail."""
        if self.folder is None or not may_hold_rows(columns.values):
            return
        for index, value in enumerate(columns.values):
            if is_row(value) and index not in failed:
                error = SerdeError("the value begins like a row of partials")
                self.failures.at(self.node, error, batch, index)
                failed.add(index)

    def _check_sizes(self, topic: str, batch: Batch, columns: Columns, failed: set[int]) -> None:
        """Records that the topic would not take fail here, where their place is known."""
        limit = self.runtime.limits.get(topic)
        if limit is None:
            return
        for index, size in too_large(columns, limit):
            if index not in failed:
                error = RecordTooLarge(topic, size, limit)
                self.failures.at(self.node, error, batch, index)
                failed.add(index)

    def _serialize(
        self,
        codec: Codec,
        topic: str,
        batch: Batch,
        column: Sequence[Any] | None,
        failed: set[int],
    ) -> Sequence[bytes | None]:
        assert column is not None

        def fail(index: int, error: Exception) -> None:
            if index not in failed:
                self.failures.at(self.node, error, batch, index)

        done, bad = convert(codec.serialize, topic, column, fail)
        failed.update(bad)
        return done

    def _partitions(
        self, partitioner: p.Partitioner, topic: str, batch: Batch, columns: Columns
    ) -> Sequence[int | None]:
        """Where the partitioner wants the records; None for those on which it failed."""
        count = self.runtime.partition_counts.get(topic)
        if count is None:
            raise ProcessingError(
                f"{self.node.name!r}: topic {topic!r}: how many partitions it has is not known, "
                "its partitioner cannot be asked"
            )
        if isinstance(partitioner, ToItsTask):
            return partitioner.of_bytes(columns.values, count)
        assert batch.keys is not None
        assert batch.values is not None
        call = _partition_within(partitioner, count)
        return self.failures.call(self.node, call, batch, (batch.keys, batch.values))[0]


def _topic_name(function: Callable[[Any], str]) -> Callable[[Any], str]:
    def call(record: Any) -> str:
        try:
            return check_name(function(record), "topic")
        except TopologyError as error:
            raise ValueError(str(error)) from None

    return call


def _partition_within(partitioner: p.Partitioner, count: int) -> Callable[[Any, Any], int]:
    def call(key: Any, value: Any) -> int:
        partition = partitioner(key, value, count)
        if not isinstance(partition, int) or not 0 <= partition < count:
            raise ValueError(f"partition {partition!r} is not one of {count}")
        return partition

    return call
