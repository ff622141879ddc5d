"""A load in a process of its own that kills itself between two steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from memory_log import MemoryTopic

from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.target import Target

Make = Callable[[Path], Target]

# Not a fork of the test's process: the threads of native libraries would not be in it.
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["kafkalite.warehouse.delta_table", "kafkalite.warehouse.iceberg_table", "killed"]
)


def _die(make: Make, folder: Path, topic: MemoryTopic, layout: Layout, steps: int) -> None:
    dead = make(folder / "orders_dead_letters")
    load = Load(topic, make(folder / "orders"), dead, LocalEngine(), layout)
    for number, _ in enumerate(load.steps()):
        if number == steps:
            os.kill(os.getpid(), signal.SIGKILL)


def is_killed_after(
    steps: int, make: Make, folder: Path, topic: MemoryTopic, layout: Layout
) -> bool:
    """Whether the load came so far; else it has run to its end."""
    process = PROCESSES.Process(target=_die, args=(make, folder, topic, layout, steps))
    process.start()
    process.join(100)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0
