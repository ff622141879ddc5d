"""Where a record's time goes in one worker: CPU nanoseconds a record, by stage.

    python -m bench.streams.stages [--records 1000000] [--only bytes,avro]

A clock goes around the functions below, once a batch, and counts the CPU of its own thread without
what is nested. So the figures hold on a busy machine. The worker's loop and its task thread each
have a rest that no stage claims: the loop's is sockets, requests and asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import shutil
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial, wraps
from inspect import isclass, isgeneratorfunction
from pathlib import Path
from time import process_time_ns, thread_time_ns
from typing import Any, Final

from kafkalite.streams.collecting import collecting_seldom

from . import throughput
from .sides import our_streams, started
from .worker import run

LOOP: Final = "loop: "
TASK: Final = "task: "
STAGES: Final = {  # "module:name" -> stage
    "kafkalite.core.protocol.records:decode": LOOP + "record batches decoded",
    "kafkalite.clients.producer.routing:Router.columns": LOOP + "split by partition",
    "kafkalite.core.protocol.records:encode": LOOP + "record batches encoded",
    "kafkalite.streams.local.rounds:Rounds.receive": LOOP + "inboxes",
    "kafkalite.streams.local.rounds:Rounds._turns": LOOP + "inboxes",
    "kafkalite.streams.local.failures:attempt": TASK + "functions and expressions",
    "kafkalite.streams.local.arrows:OnArrow.mask": TASK + "functions and expressions",
    "kafkalite.streams.local.arrows:OnArrow.column": TASK + "functions and expressions",
    "kafkalite.streams.local.task:Task.process": TASK + "operators",
    "kafkalite.streams.local.task:Task.enqueue": TASK + "operators",
    "kafkalite.streams.local.task:Task.drain": LOOP + "outputs joined and stamped",
    "kafkalite.streams.local.task:Task.commit": TASK + "commit: results and changelog",
}
CODEC: Final = {  # of every serde
    "deserialize": TASK + "serde, reading",
    "deserialize_arrow": TASK + "serde, reading",
    "serialize": TASK + "serde, writing",
    "serialize_arrow": TASK + "serde, writing",
}
SERDES: Final = ("avro_codec", "json", "primitives", "serde", "windowed")
REST: Final = "sockets, requests, asyncio", "the rest of its thread"


class Clock:
    """CPU of stages, each without those inside it."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = defaultdict(int)
        self._local = threading.local()

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with the clock."""
        if isgeneratorfunction(function):

            @wraps(function)
            def each(*given: Any, **named: Any) -> Iterator[Any]:
                made, end = function(*given, **named), object()
                while (found := self._in(stage, lambda: next(made, end))) is not end:
                    yield found

            return each

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            return self._in(stage, lambda: function(*given, **named))

        return call

    def _in(self, stage: str, act: Callable[[], Any]) -> Any:
        outer, self._local.nested = getattr(self._local, "nested", 0), 0
        began = thread_time_ns()
        try:
            return act()
        finally:
            took = thread_time_ns() - began
            self.spent[stage] += took - self._local.nested
            self._local.nested = outer + took

    def install(self) -> None:
        """Puts itself around every stage, wherever a module has imported it."""
        for place, stage in STAGES.items():
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            self._replace(owner, name, stage)
        for serde in SERDES:
            for found in vars(importlib.import_module(f"kafkalite.serde.{serde}")).values():
                for name in CODEC.keys() & vars(found).keys() if isclass(found) else ():
                    self._replace(found, name, CODEC[name])

    def _replace(self, owner: Any, name: str, stage: str) -> None:
        plain = getattr(owner, name)
        if hasattr(plain, "__wrapped__"):  # it is there already
            return
        timed = self.around(stage, plain)
        setattr(owner, name, timed)
        for module in [m for n, m in sys.modules.items() if n.startswith("kafkalite.")]:
            for known in [n for n, v in vars(module).items() if v is plain]:
                setattr(module, known, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--only", default="bytes,json,json-expressions,avro,avro-expressions")
    options = parser.parse_args()
    clock = Clock()
    scratch = Path(tempfile.mkdtemp(prefix="bench-stages-"))
    table: dict[str, dict[str, float]] = {}
    try:
        side = our_streams(scratch, options.records)
        with started(side), collecting_seldom():
            for name in options.only.split(","):
                source = side.input(throughput.CASES[name].source)
                clock.install()
                with side.target() as target:
                    job = side.job(source, target, name, processing_guarantee="at_least_once")
                    table[name] = measured(clock, partial(asyncio.run, run(job)))
                for stage in table[name]:
                    table[name][stage] /= side.sizes[source]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("\n".join(lines(table)))


def measured(clock: Clock, act: Callable[[], Any]) -> dict[str, float]:
    """CPU nanoseconds by stage, with what no stage claims of either thread."""
    clock.spent.clear()
    whole, loop = process_time_ns(), thread_time_ns()
    act()
    loop = thread_time_ns() - loop
    task = process_time_ns() - whole - loop
    found: dict[str, float] = dict(clock.spent)
    for thread, total, rest in ((LOOP, loop, REST[0]), (TASK, task, REST[1])):
        found[thread + rest] = total - sum(v for s, v in clock.spent.items() if s[:6] == thread)
    return found | {"together": loop + task}


def lines(table: dict[str, dict[str, float]]) -> Iterator[str]:
    """Markdown, stages by thread."""
    stages = {stage: None for found in table.values() for stage in found}
    yield f"| CPU ns a record | {' | '.join(table)} |"
    yield "|---" * (len(table) + 1) + "|"
    for stage in sorted(stages, key=lambda stage: (stage == "together", stage)):
        cells = (f"{found.get(stage, 0):,.0f}" for found in table.values())
        yield f"| {stage} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
