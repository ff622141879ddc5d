"""Global tables under construction: a topic of which every worker keeps a whole copy.      [P]

A stream joins one by any key: nothing is repartitioned, and the topic may have any number of
partitions. A global table has no operators of its own.

Source Kafka Streams' GlobalKTable.
"""

from __future__ import annotations

from typing import Generic

from kafkalite.core.generics import K_co, V_co
from kafkalite.streams import hints
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, NotBuilt


class GlobalTable(NotBuilt, Generic[K_co, V_co]):
    """The latest row per key of a whole topic, on every worker."""

    hints = hints.GLOBAL_TABLE

    def __init__(self, draft: Draft, node: p.GlobalSource) -> None:
        self._draft = draft
        self._node = node
