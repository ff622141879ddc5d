"""Which windows of a table a join finds: those that Kafka Streams' store would still have.   [P]

    tumbling, hopping   size + grace behind the start of the newest window
    session             gap + grace behind the end of the newest session
    sliding             twice the difference + grace behind the start of the newest window

So a row is found for a little while after its window has closed. The newest window is that of the
newest record with a key, whatever its key. Where several tasks write the input, stream time stands
for the newest record.

Owns   how far a store shows its rows (`shown_from`), where a join looks into it.
Source Kafka Streams' AbstractRocksDBSegmentedBytesStore, InMemoryWindowStore: the retention that
       TimeWindowedKStreamImpl, SlidingWindowedKStreamImpl and SessionWindowedKStreamImpl ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.core.columns import greatest
from kafkalite.streams import plan as p
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state import StateStore
from kafkalite.streams.stores import rows_read


class Shown:
    """Moves `shown_from` of the store of a windowed table."""

    def __init__(self, node: p.Aggregate, store: StateStore, runtime: Runtime) -> None:
        assert node.window is not None
        children = {each: runtime.children(each) for each in runtime.sub_topology.nodes}
        self.is_needed = rows_read(node, children)
        self._store = store
        self._shown_from = node.window.shown_from
        self._is_timed = runtime.is_timed
        self._newest = -1

    def note(
        self, time: int, timestamps: Sequence[int] = (), newest_start: int | None = None
    ) -> None:
        """Stream time is `time`, and records of `timestamps` have come."""
        if not self.is_needed:
            return
        if len(timestamps) and not self._is_timed:  # inputs of a cogroup have times of their own
            time = max(time, greatest(timestamps))
        self._newest = max(self._newest, time)
        newest = self._newest
        if newest_start is not None:
            newest = min(newest, newest_start)
        self._store.shown_from = max(self._store.shown_from, self._shown_from(newest))
