"""Operators without state: columns to columns, and the user's function once per record.    [P]

Each takes a batch, and pushes what it makes of it to what is below. Batches that have become
empty are not pushed.

Source Kafka Streams' KStreamFilter, KStreamMap, KStreamBranch, ..., SinkNode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.serde.serde import Codec
from kafkalite.streams import plan as p
from kafkalite.streams.functions import Function
from kafkalite.streams.local.batch import MADE, Batch, Output, Push
from kafkalite.streams.local.calling import caller, check_timestamp, function_needs, records
from kafkalite.streams.local.failures import convert
from kafkalite.streams.local.runtime import (
    Needs,
    Runtime,
    compile_node,
    is_portable,
    node_needs,
)
from kafkalite.streams.naming import check_name

# What each needs of its input


@node_needs.register(p.Filter)
@node_needs.register(p.Peek)
def _(node: p.Filter | p.Peek, below: Needs, runtime: Runtime) -> Needs:
    return below | function_needs(node.function)


@node_needs.register(p.Map)
@node_needs.register(p.FlatMap)
def _(node: p.Map | p.FlatMap, below: Needs, runtime: Runtime) -> Needs:
    return Needs(below.key, below.raw_key) | function_needs(node.function)


@node_needs.register
def _(node: p.SelectKey, below: Needs, runtime: Runtime) -> Needs:
    return Needs(value=below.value, raw_value=below.raw_value) | function_needs(node.function)


@node_needs.register
def _(node: p.MapPairs, below: Needs, runtime: Runtime) -> Needs:
    return function_needs(node.function)


@node_needs.register
def _(node: p.MapBatch, below: Needs, runtime: Runtime) -> Needs:
    return Needs(key=True, value=True)


@node_needs.register
def _(node: p.Branch, below: Needs, runtime: Runtime) -> Needs:
    for predicate in node.predicates:
        below |= function_needs(predicate)
    return below


@node_needs.register
def _(node: p.Sink, below: Needs, runtime: Runtime) -> Needs:
    needs = sink_bytes(node, runtime)
    if node.partitioner is not None or callable(node.topic):
        needs |= Needs(key=True, value=True)
    return needs


def sink_bytes(node: p.Sink, runtime: Runtime) -> Needs:
    """The columns that a sink writes: bytes as they came where the serde is the same."""
    above = runtime.input_schema(node)
    assert node.key is not None
    assert node.value is not None
    raw_key = node.key == above.key and is_portable(node.key)
    raw_value = node.value == above.value and above.has_raw_value and is_portable(node.value)
    return Needs(not raw_key, raw_key, not raw_value, raw_value)


# What each does


@compile_node.register(p.Source)
@compile_node.register(p.BranchArm)
@compile_node.register(p.Merge)
@compile_node.register(p.Late)
@compile_node.register(p.Final)
def _(node: p.Node, runtime: Runtime) -> Push:
    return runtime.forward(node)


def per_record(
    node: p.Node,
    runtime: Runtime,
    function: Function,
    made: Callable[[Batch, list[Any]], Batch],
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    *,
    several: bool = False,
) -> Push:
    """Calls `function` for each record; `made` is the batch that goes on, given the results.

    `several`: a record may become more than one.
    """
    forward = runtime.forward_several(node) if several else runtime.forward(node)
    call = caller(node, function, runtime.failures, wrap)

    def run(batch: Batch) -> None:
        batch = made(*call(batch))
        if len(batch):
            forward(batch)

    return run


@compile_node.register
def _(node: p.Filter, runtime: Runtime) -> Push:
    def kept(batch: Batch, passes: list[Any]) -> Batch:
        return runtime.failures.where(node, batch, passes, negate=node.negate)

    return per_record(node, runtime, node.function, kept)


@compile_node.register
def _(node: p.Map, runtime: Runtime) -> Push:
    return per_record(node, runtime, node.function, with_values)


@compile_node.register
def _(node: p.FlatMap, runtime: Runtime) -> Push:
    def flattened(batch: Batch, lists: list[Any]) -> Batch:
        return with_values(without_values(batch).take(_repeated(lists)), _flat(lists))

    return per_record(node, runtime, node.function, flattened, _listed, several=True)


@compile_node.register
def _(node: p.SelectKey, runtime: Runtime) -> Push:
    return per_record(node, runtime, node.function, with_keys)


@compile_node.register
def _(node: p.MapPairs, runtime: Runtime) -> Push:
    def flattened(batch: Batch, lists: list[Any]) -> Batch:
        return with_pairs(batch.take(_repeated(lists)), _flat(lists))

    made, wrap = (flattened, _pairs) if node.flat else (with_pairs, _pair)
    return per_record(node, runtime, node.function, made, wrap, several=node.flat)


@compile_node.register
def _(node: p.Peek, runtime: Runtime) -> Push:
    return per_record(node, runtime, node.function, lambda batch, _: batch)


@compile_node.register
def _(node: p.MapBatch, runtime: Runtime) -> Push:
    forward = runtime.forward_several(node)

    def run(batch: Batch) -> None:
        assert batch.keys is not None
        assert batch.values is not None
        columns = Columns(batch.keys, batch.values, batch.timestamps, None, batch.headers)
        try:
            made = _checked(node.function(columns))
        except Exception as error:
            for index in range(len(batch)):
                runtime.failures.at(node, error, batch, index)
            return
        origin = batch.origin if len(made) == len(batch) else MADE
        if len(made):
            forward(
                Batch(made.timestamps, origin, made.keys, None, made.values, headers=made.headers)
            )

    return run


@compile_node.register
def _(node: p.Branch, runtime: Runtime) -> Push:
    calls = [caller(node, function, runtime.failures) for function in node.predicates]
    arms: dict[int, Push] = {
        arm.index: runtime.push_of(arm)
        for arm in runtime.children(node)
        if isinstance(arm, p.BranchArm)
    }

    def run(batch: Batch) -> None:
        for index, call in enumerate(calls):
            batch, matches = call(batch)
            matched, batch = runtime.failures.split(node, batch, matches)
            if len(matched):
                arms[index](matched)
            if not len(batch):
                return
        if node.default:
            arms[len(calls)](batch)

    return run


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
        # Records without a key have no place in a repartition topic.
        self.drops_null_keys = node.topic in runtime.sub_topology.repartition_sinks

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
            batch = without_null_keys(batch)
        failed: set[int] = set()
        keys: Sequence[bytes | None] | None = batch.raw_keys
        if self.needs.key:
            keys = self._serialize(self.key_codec, topic, batch, batch.keys, failed)
        values: Sequence[bytes | None] | None = batch.raw_values
        if self.needs.value:
            values = self._serialize(self.value_codec, topic, batch, batch.values, failed)
        assert keys is not None
        assert values is not None
        columns = Columns(keys, values, batch.timestamps, None, batch.headers)
        if failed:
            keep = [index not in failed for index in range(len(batch))]
            batch, columns = batch.where(keep), columns.where(keep)
        partitions: Sequence[int] | None = None
        if self.node.partitioner is not None:
            partitions, columns = self._partitioned(self.node.partitioner, topic, batch, columns)
        if len(columns):
            self.runtime.outputs.append(Output(topic, columns, partitions, self.node.name))

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

    def _partitioned(
        self, partitioner: p.Partitioner, topic: str, batch: Batch, columns: Columns
    ) -> tuple[Sequence[int], Columns]:
        """Where the partitioner wants the records, and those that it has a place for."""
        count = self.runtime.partition_counts.get(topic)
        if count is None:
            raise ProcessingError(
                f"{self.node.name!r}: topic {topic!r}: how many partitions it has is not known, "
                "its partitioner cannot be asked"
            )
        assert batch.keys is not None
        assert batch.values is not None
        call = _partition_within(partitioner, count)
        found, bad = self.failures.call(self.node, call, batch, (batch.keys, batch.values))
        if not bad:
            return found, columns
        keep = [partition is not None for partition in found]
        return list(compress(found, keep)), columns.where(keep)


# Batches with one column changed


def with_values(batch: Batch, values: Sequence[Any]) -> Batch:
    """The batch with other values; their bytes are gone."""
    return Batch(
        batch.timestamps, batch.origin, batch.keys, batch.raw_keys, values, headers=batch.headers
    )


def with_keys(batch: Batch, keys: Sequence[Any]) -> Batch:
    """The batch with other keys; their bytes are gone."""
    return Batch(
        batch.timestamps,
        batch.origin,
        keys,
        None,
        batch.values,
        batch.raw_values,
        headers=batch.headers,
    )


def with_pairs(batch: Batch, pairs: Sequence[tuple[Any, Any]]) -> Batch:
    """The batch with other keys and values."""
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    return with_values(with_keys(batch, keys), values)


def without_values(batch: Batch) -> Batch:
    """The batch for those who put new values in."""
    return Batch(batch.timestamps, batch.origin, batch.keys, batch.raw_keys, headers=batch.headers)


def without_null_keys(batch: Batch) -> Batch:
    """The records that have a key."""
    keys = batch.raw_keys if batch.keys is None else batch.keys
    assert keys is not None
    if all(keys) or None not in keys:
        return batch
    return batch.where([key is not None for key in keys])


def _repeated(lists: Sequence[Sequence[Any]]) -> list[int]:
    """The index of each list, as often as it is long."""
    return [index for index, found in enumerate(lists) for _ in found]


def _flat(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [entry for found in lists for entry in found]


# What goes around a user's function, so that a wrong result counts as its failure


def _listed(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *given: list(function(*given))


def _pair(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    def call(*given: Any) -> tuple[Any, Any]:
        key, value = function(*given)
        return key, value

    return call


def _pairs(function: Callable[..., Any]) -> Callable[..., list[tuple[Any, Any]]]:
    return lambda *given: [(key, value) for key, value in function(*given)]


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


def _checked(made: object) -> Columns:
    """What map_batch returned, if it is columns of one length."""
    if not isinstance(made, Columns):
        raise TypeError(f"expected Columns, got {type(made).__name__}")
    columns = (made.keys, made.values, made.timestamps, made.headers)
    lengths = {len(column) for column in columns if column is not None}
    if len(lengths) != 1:
        raise ValueError(f"columns of different lengths: {sorted(lengths)}")
    for timestamp in (min(made.timestamps, default=0), max(made.timestamps, default=0)):
        check_timestamp(timestamp)
    return made
