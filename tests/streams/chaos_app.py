"""All that a fault could break, as a process: `chaos_app.py ADDRESS NAME GUARANTEE`.

in ──> copy                                    every record once
in ──> by initial, count ──> counts            a repartition and a table
in ──> count in windows, final ──> windows     windows over each partition
in ──> by initial, count in windows ──> sums   windows below a repartition
"""

from __future__ import annotations

import asyncio
import signal
import sys

from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, int64, string, tumbling
from kafkalite.streams.local.worker import Worker, WorkerConfig

WINDOW_MS = 100
SESSION_MS = 1_500


def build(name: str) -> Streams:
    """Reads `NAME-in`."""
    app = Streams(name, key=string(), value=string())
    records = app.stream(f"{name}-in")
    records.map(lambda word: word, name="copy").to(f"{name}-copy")
    initials = records.group_by(lambda word: word[0], name="initials")
    initials.count(name="counts").to_stream().to(f"{name}-counts", value=int64())
    window = tumbling(WINDOW_MS)
    keyed = records.group_by_key().window(window).count(name="windows")
    keyed.final().to(f"{name}-windows", value=int64())
    sums = initials.window(window).count(name="sums")
    sums.to_stream().to(f"{name}-sums", value=int64())
    return app


def build_folding(name: str) -> Streams:
    """The sums and counts alone, each with a repartition before which records are folded."""
    app = Streams(name, key=string(), value=string())
    records = app.stream(f"{name}-in")
    initials = records.group_by(lambda word: word[0], name="initials")
    sums = initials.window(tumbling(WINDOW_MS)).count(name="sums")
    sums.to_stream().to(f"{name}-sums", value=int64())
    counts = records.group_by(lambda word: word[0], name="others").count(name="counts")
    counts.to_stream().to(f"{name}-counts", value=int64())
    return app


async def main() -> None:
    """Runs until SIGTERM, or with a fourth argument until the group has caught up."""
    address, name, guarantee, *once = sys.argv[1:]
    config = WorkerConfig(
        processing_guarantee=guarantee,  # type: ignore[arg-type]
        commit_interval_ms=50,
        session_timeout_ms=SESSION_MS,
        num_standby_replicas=1,
        acceptable_recovery_lag=100,  # so that tasks wait for warm-ups
        idle_ms=600_000,  # a fault makes no input idle: nothing may count as late
    )
    worker = Worker(build(name).plan(), address, MemoryRegistry(), config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run(until_caught_up=bool(once))


if __name__ == "__main__":
    asyncio.run(main())
