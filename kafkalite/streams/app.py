"""`Streams`: a topology with the means to run it.                                        [IO]

Owns   nothing while it is built; `run` owns a worker until it returns.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.durations import Duration, not_negative
from kafkalite.streams.local.worker import Progress, Worker, WorkerConfig

DATA_DIR = Path("kafkalite-data")  # where an embedded broker keeps its log unless told


class Streams(StreamsBuilder):
    """An application: build a topology with it, then run, describe or test it.

    `Streams("flight-delays", key=string())`: the application id names the consumer group and the
    internal topics; `key=` and `value=` are the default serdes.
    """

    def run(
        self,
        bootstrap_servers: str | None = None,
        *,
        until_caught_up: bool = False,
        commit_interval: Duration = "1s",
        data_dir: str | Path = DATA_DIR,
    ) -> Progress:
        """Runs the topology until SIGINT or SIGTERM; returns what it did.

        Without `bootstrap_servers` a broker of its own runs over `data_dir` for as long as this.
        """
        config = WorkerConfig(commit_interval_ms=not_negative(commit_interval, "commit_interval"))
        with _broker(bootstrap_servers, data_dir) as address:
            registry = LogRegistry(address)
            try:
                worker = Worker(self.plan(), address, registry, config)
                return asyncio.run(_run(worker, until_caught_up))
            finally:
                registry.close()


@contextmanager
def _broker(bootstrap_servers: str | None, data_dir: str | Path) -> Iterator[str]:
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    with EmbeddedBroker(data_dir) as broker:
        yield broker.bootstrap_servers


async def _run(worker: Worker, until_caught_up: bool) -> Progress:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    return await worker.run(until_caught_up=until_caught_up)
