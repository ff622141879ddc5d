"""One worker process of ours: runs a topology to the end of its input and prints its figures.

    python -m bench.streams.worker '{"topology": "bytes", "address": "127.0.0.1:9092", ...}'

Figures are as the program for Kafka Streams has them: the rate counts from the first record that is
seen to be processed to the last, so without the start; `start_to_close_s` counts everything from
the call that starts it to its end, the last commit included. CPU is that of this process, from that
call to the end.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .topologies import make

LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a worker."""

    topology: str
    address: str
    source: str
    target: str
    records: int  # of the input
    application_id: str
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


class Watch:
    """When how many records were done. A topology with two stages counts a record in each."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def look(self, records: int) -> None:
        """Notes the count, if it has changed."""
        if records and (not self.seen or self.seen[-1][1] != records):
            self.seen.append((time.monotonic(), records))

    def rate(self, records: int, share: float = 0.0) -> float | None:
        """Input records a second from the first look after this share of them to the last."""
        total = self.seen[-1][1]
        at, done = next(look for look in self.seen if look[1] >= share * total)
        seconds = self.seen[-1][0] - at
        return (total - done) / total * records / seconds if seconds else None


async def run(job: Job) -> dict[str, Any]:
    """The figures of one run."""
    app = make(job.application_id, job.topology, job.source, job.target)
    watch, began, cpu = Watch(), time.monotonic(), cpu_seconds()
    async with app.running(job.address, until_caught_up=True, **job.settings) as running:
        ending = asyncio.create_task(running.wait())
        while not (await asyncio.wait({ending}, timeout=LOOK_SECONDS))[0]:
            watch.look(running.progress.records)
        progress = ending.result()
    watch.look(progress.records)
    ended = time.monotonic()
    if progress.records < job.records:
        raise SystemExit(f"{job.application_id}: {progress.records} of {job.records} records")
    return {
        "records_per_second": watch.rate(job.records),
        "second_half_records_per_second": watch.rate(job.records, 0.5),
        "start_to_close_s": ended - began,
        "worker_cpu_s": cpu_seconds() - cpu,
        "process_cpu_s": cpu_seconds(),
        "rss_mb": resident_mb(),
        "records_out": progress.records_out,
        "commits": progress.commits,
    }


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    print(json.dumps(asyncio.run(run(job))), flush=True)


if __name__ == "__main__":
    main()
