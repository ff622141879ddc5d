"""The Spark engine of warehouse loads: a task of Spark for each offset range.               [IO]

Spark distributes ranges, not rows. The worker that reads a range writes its files; only names and
counts come back through the JVM.

Owns   a session, from the first item on: a load that finds nothing to do starts no JVM.
Fails  with the first error of a worker, as it was raised there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


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
            # No DataFrame: Spark takes seconds to plan and compile its first query.
            items_of_tasks = self.session.sparkContext.parallelize(items, len(items))
            results = items_of_tasks.map(task).collect()
        yield from results
