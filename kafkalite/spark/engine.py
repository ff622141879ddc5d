"""The Spark engine of warehouse loads: a task of Spark for each offset range.               [IO]

Spark distributes ranges, not rows. The worker that reads a range writes its files; only names and
counts come back through the JVM.

Owns   a session, from the first item on: a load that finds nothing to do starts no JVM.
Fails  with the first error of a worker, as it was raised there.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

RESULT: Final = "result binary"


class SparkEngine:
    """Runs each item in a Spark task of its own. `place` is named where the disk fails."""

    def __init__(self, start: Callable[[], SparkSession], place: str) -> None:
        self._start, self._place = start, place

    @cached_property
    def session(self) -> SparkSession:
        """The session, started when it is first needed."""
        from kafkalite.spark.failures import our_failures  # imports pyspark

        with our_failures(self._place):
            return self._start()

    @property
    def is_started(self) -> bool:
        """Whether there is a session."""
        return "session" in self.__dict__

    def close(self, *, at_once: bool = False) -> None:
        """Ends the session. With `at_once` the JVM ends too, whatever it is doing: the thread that
        was broken off may have an answer of the JVM to read, so no question can be asked.
        """
        if at_once:
            from kafkalite.spark.jvm import end_jvm

            end_jvm()
        elif self.is_started:
            self.session.stop()

    def run(self, task: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """The results, once all tasks are done."""
        if not items:
            return
        from kafkalite.spark.failures import our_failures  # imports pyspark

        with our_failures(self._place):
            rows = (
                self.session.range(0, len(items), 1, len(items))
                .mapInArrow(OneTask(task, items), RESULT)
                .collect()
            )
        yield from (pickle.loads(row.result) for row in rows)


@dataclass(frozen=True, slots=True)
class OneTask:
    """Runs in a Spark task, which has the number of an item."""

    task: Callable[[Any], Any]
    items: Sequence[Any]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The pickled results."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(self.task(self.items[number]))
                yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})
