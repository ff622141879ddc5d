"""One worker process of ours: runs a topology to the end of its input and prints its figures, or
runs it until it is killed.

    python -m bench.streams.worker '{"topology": "bytes", "address": "127.0.0.1:9092", ...}'

`seen` says when how many records were done, by a clock that all processes of the machine share. CPU
is that of this process, from the call that starts the topology to its end, the last commit too.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from kafkalite.streams.collecting import collecting_seldom

TOPOLOGIES = "bench.streams.topologies"
LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a worker."""

    topology: str
    address: str
    source: str
    target: str
    application_id: str
    is_endless: bool = False
    maker: str = TOPOLOGIES  # the module whose `make` makes the application
    settings: dict[str, Any] = field(default_factory=dict)

    def command(self) -> list[str]:
        """What runs it, in the folder of the project."""
        return [sys.executable, "-m", "bench.streams.worker", json.dumps(asdict(self))]


def cpu_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_mb() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_mb() -> float:
    """The most memory that this process has had; that of `getrusage` may be its parent's."""
    status = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def look(seen: list[tuple[float, int]], records: int) -> None:
    """Notes the count, if it has changed."""
    if records != seen[-1][1]:
        seen.append((time.monotonic(), records))


async def run(job: Job) -> dict[str, Any]:
    """The figures of one run."""
    make = import_module(job.maker).make
    app = make(job.application_id, job.topology, job.source, job.target)
    began, cpu = time.monotonic(), cpu_seconds()
    seen, restored = [(began, 0)], [(began, 0)]
    async with app.running(
        job.address, until_caught_up=not job.is_endless, **job.settings
    ) as running:
        ending = asyncio.create_task(running.wait())
        pause = None if job.is_endless else LOOK_SECONDS  # nobody reads what it has seen
        while not (await asyncio.wait({ending}, timeout=pause))[0]:
            look(seen, running.progress.records)
            look(restored, running.progress.records_restored)
        progress = ending.result()
    look(seen, progress.records)
    return {
        "records": progress.records,
        "seen": seen,
        "start_to_close_s": time.monotonic() - began,
        "worker_cpu_s": cpu_seconds() - cpu,
        "process_cpu_s": cpu_seconds(),
        "rss_mb": resident_mb(),
        "peak_rss_mb": peak_mb(),
        "records_out": progress.records_out,
        "records_restored": progress.records_restored,
        "restore_s": restored[-1][0] - began,
        "commits": progress.commits,
    }


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    with collecting_seldom():  # as `Streams.run` does
        print(json.dumps(asyncio.run(run(job))), flush=True)


if __name__ == "__main__":
    main()
