"""A random topology as a process: `topology_app.py ADDRESS SEED [once]`.

Runs until SIGTERM, or with a third argument until the group has caught up.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from random import Random

from chaos_app import SESSION_MS
from reference.calm import draw_calm, plan_of

from kafkalite.serde import MemoryRegistry
from kafkalite.streams.local.worker import Worker, WorkerConfig


async def main() -> None:
    """One worker."""
    address, seed, *once = sys.argv[1:]
    plan = plan_of(draw_calm(Random(int(seed))), is_cached=int(seed) % 3 > 0)
    config = WorkerConfig(
        processing_guarantee="exactly_once",
        commit_interval_ms=30,
        session_timeout_ms=SESSION_MS,
        num_standby_replicas=int(seed) % 2,
        idle_ms=600_000,
    )
    worker = Worker(plan, address, MemoryRegistry(), config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run(until_caught_up=bool(once))


if __name__ == "__main__":
    asyncio.run(main())
