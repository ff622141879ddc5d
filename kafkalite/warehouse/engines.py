"""The local engine: workers of a load are processes of this machine, or this process itself.  [IO]

Owns   the processes, for the duration of a run.
Fails  with the first error of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs a picklable function for each of some picklable items."""

    def run(self, task: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """The results, in any order."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """At most `processes` at a time; 1 works in this process."""

    processes: int = 1

    def run(self, task: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """The results as they are ready."""
        if self.processes == 1 or len(items) < 2:
            yield from map(task, items)
            return
        workers = min(self.processes, len(items))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            running = [pool.submit(task, item) for item in items]
            try:
                for done in as_completed(running):
                    yield done.result()
            finally:
                for future in running:
                    future.cancel()
