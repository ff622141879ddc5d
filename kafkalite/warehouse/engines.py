"""The local engine: workers of a load are processes of this machine, or this process itself.  [IO]

A worker ends with the process that started it, however that process ends: the system sends SIGIO
when the other end of a pipe between them is closed. Ctrl-C is the business of that process alone.

Owns   the processes, for the duration of a run.
Fails  with the first error of a worker.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
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
        workers, others = min(self.processes, len(items)), set(active_children())
        context = get_context("spawn")
        with ProcessPoolExecutor(workers, context, end_with_parent) as pool:
            running: list[Future[R]] = []
            try:
                running.extend(pool.submit(task, item) for item in items)  # starts the workers
                for done in as_completed(running):
                    yield done.result()
            except BaseException:
                for worker in set(active_children()) - others:
                    worker.terminate()  # a range may take minutes; another load stages it anew
                raise
            finally:
                for future in running:
                    future.cancel()


def end_with_parent() -> None:
    """Called in a worker when it starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None, "a worker has a parent"
    pipe = parent.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it ended before the system was asked
        os._exit(1)
