"""Global tables in one process of Spark: copies that follow the offsets of micro-batches.    [P]

    offsets of a micro-batch ──> rows of tasks ──> bring_to ──> the rows up to there, no others

Spark writes down how far each table is read, so a repeated micro-batch sees the same rows. A copy
that is ahead of them, as after a checkpoint was put back, is made anew.

Owns   the rows, in memory, and up to which offset each partition is read.
Fails  with ProcessingError for a record that its serdes do not read, or leaves it out as the error
       policy says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.global_store import GlobalStore
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.plan import Plan

Read = Callable[[OffsetRange], Iterable[Columns]]


class TableCopies:
    """The global tables of a plan, perhaps none. `read` gives the records of a range."""

    def __init__(self, plan: Plan, registry: SchemaRegistry, read: Read, drops: Drops) -> None:
        self.stores = {
            node.name: GlobalStore(node, plan, registry, MemoryBackend(), drops)
            for node in plan.global_tables
        }
        self._read = read

    def bring_to(self, ends: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Brings all copies to these offsets."""
        for store in self.stores.values():
            own = {tp: end for tp, end in sorted(ends.items()) if tp.topic == store.topic}
            if any(store.offsets.get(tp.partition, 0) > end for tp, end in own.items()):
                store.forget()
            for tp, end in own.items():
                self._follow(store, tp, end, now_ms)

    def _follow(self, store: GlobalStore, tp: TopicPartition, end: int, now_ms: int) -> None:
        start = store.offsets.get(tp.partition, 0)
        if start >= end:
            return
        for columns in self._read(OffsetRange(tp.topic, tp.partition, start, end)):
            assert columns.offsets is not None, "what is read from a log has offsets"
            store.take(tp.partition, columns, columns.offsets[-1] + 1, now_ms)
        store.offsets[tp.partition] = end  # markers of transactions may be behind the last record

    def forget(self) -> None:
        """Drops all rows: the next micro-batch reads the topics from their beginning."""
        for store in self.stores.values():
            store.forget()
