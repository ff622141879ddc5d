"""A load, and a compaction after it, in a process of its own that kills itself or is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from kafkalite.warehouse.compaction import Compaction
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout, Load, Source
from kafkalite.warehouse.rewritable import rewritable
from kafkalite.warehouse.tables import format_of
from kafkalite.warehouse.target import Target

Make = Callable[[Path], Target]

# Not a fork of the test's process: the threads of native libraries would not be in it.
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["kafkalite.warehouse.delta_files", "kafkalite.warehouse.iceberg_files", "killed"]
)


def _die(
    make: Make, folder: Path, topic: Source, layout: Layout, steps: int, updates: bool
) -> None:
    dead = make(folder / "orders_dead_letters")
    load = Load(topic, make(folder / "orders"), dead, LocalEngine(), layout, updates)
    for number, _ in enumerate(load.steps()):
        if number == steps:
            os.kill(os.getpid(), signal.SIGKILL)


def is_killed_after(
    steps: int,
    make: Make,
    folder: Path,
    topic: Source,
    layout: Layout,
    *,
    updates: bool = False,
) -> bool:
    """Whether the load came so far; else it has run to its end."""
    process = PROCESSES.Process(target=_die, args=(make, folder, topic, layout, steps, updates))
    process.start()
    process.join(100)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def _work(make: Make, table: Path, topic: Source, layout: Layout, keep_ms: int) -> Iterator[str]:
    dead = make(table.with_name("orders_dead_letters"))
    yield from Load(topic, make(table), dead, LocalEngine(), layout).steps()
    if format_of(table) is None:
        return
    now_ms = int(time.time() * 1000)
    token = f"{now_ms}-{os.getpid()}"
    yield from Compaction(rewritable(table, now_ms), token, now_ms, keep_ms).steps()


def _load_and_compact(
    make: Make, table: Path, topic: Source, layout: Layout, keep_ms: int, steps: int
) -> None:
    for number, _ in enumerate(_work(make, table, topic, layout, keep_ms)):
        if number == steps:
            os.kill(os.getpid(), signal.SIGKILL)


def loading(
    make: Make, table: Path, topic: Source, layout: Layout, keep_ms: int, steps: int
) -> ForkServerProcess:
    """A process that loads and compacts, and kills itself after so many steps."""
    process = PROCESSES.Process(
        target=_load_and_compact, args=(make, table, topic, layout, keep_ms, steps)
    )
    process.start()
    return process
