"""The tasks of a level, as keys of transformWithState: their state is Spark's.             [IO]

Spark gives a key all rows of its micro-batch. The key of a task runs it over its packets, and keeps
the rows of its changelogs as blobs in a ListState, with a head in a ValueState. Other keys pass
their rows through: to a later level, or to the sink.

Owns   the tasks of this process, by the run of the query.
Fails  with ProcessingError as a task does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from kafkalite.spark.topology.buckets import Row, level_rows
from kafkalite.spark.topology.shipping import Shipment, drops, warn_of_drops
from kafkalite.spark.topology.state import Tasks

QUERY_ID: Final = "sql.streaming.queryId"  # among the properties of a job
BATCH_ID: Final = "streaming.sql.batchId"
HEAD: Final = "head"
BLOBS: Final = "blobs"


def _token() -> bytes:
    """Names an attempt of a micro-batch: no other of this run of Spark is called the same."""
    context = _context()
    batch = context.getLocalProperty(BATCH_ID)
    return f"{batch} {context.stageId()} {context.taskAttemptId()}".encode()


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return context


_tasks: Final = Tasks(_token)


class SparkBlobs:
    """The state of one task: Blobs over Spark's handles of the current key."""

    def __init__(self, head: Any, blobs: Any) -> None:
        self._head, self._blobs = head, blobs

    def head(self) -> bytes | None:
        """What was written last."""
        found = self._head.get()
        return None if found is None else bytes(found[0])

    def read(self) -> Iterable[bytes]:
        """All blobs."""
        return (bytes(blob) for (blob,) in self._blobs.get())

    def append(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Adds blobs."""
        if blobs:
            self._blobs.appendList([(blob,) for blob in blobs])
        self._head.update((head,))

    def replace(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Puts blobs in the place of all."""
        self._blobs.clear()
        self.append(blobs, head)


class Level(StatefulProcessor):
    """The tasks of one level."""

    def __init__(self, shipment: Shipment, level: int) -> None:
        self._shipment, self._level = shipment, level

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Names the state. Spark also calls this in its driver."""
        head = handle.getValueState(HEAD, "head binary")
        self._blobs = SparkBlobs(head, handle.getListState(BLOBS, "blob binary"))

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """The rows of one key in a micro-batch."""
        given = [Row(*row) for frame in rows for row in _tuples(frame)]
        if not given:
            return
        run = str(_context().getLocalProperty(QUERY_ID))
        made = list(level_rows(
            self._shipment.maker, _tasks, self._level, run, given, self._blobs, drops
        ))  # fmt: skip
        warn_of_drops(self._shipment)
        if made:
            yield pd.DataFrame(made, columns=list(Row._fields))

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:  # noqa: N802, N803
        """The state of a task that comes from elsewhere: a row a blob, each with the head."""
        blobs = [bytes(blob) for blob in initialState["blob"] if blob is not None]
        self._blobs.append(blobs, bytes(initialState["head"].iloc[0]))

    def close(self) -> None:
        """Nothing: tasks live on for the next micro-batch."""


def _tuples(frame: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """The rows of a frame by the order of `Row`."""
    return zip(*(frame[name].tolist() for name in Row._fields), strict=True)
