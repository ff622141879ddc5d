"""Random topologies in processes that are killed (kill -9) at random moments: exactly once.

KAFKALITE_SEEDS=1000:1020 pytest tests/streams/test_topology_chaos.py      tries others
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from reference.calm import as_objects, by_topic, check, draw_calm, draw_phases, plan_of
from reference.drawing import Topology
from reference.machine import Row
from reference.steps import Write
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow

APP = Path(__file__).with_name("topology_app.py")
FIRST, LAST = map(int, os.environ.get("KAFKALITE_SEEDS", "0:2").split(":"))
PARTITIONS = 3
KILLS = 3
PIECES = 8  # of the log, before each
SCALE = 10  # of the log
PATIENCE_SECONDS = 100


class Run:
    """One topology: its topics and its workers."""

    def __init__(self, address: str, seed: int, topology: Topology) -> None:
        self.address, self.seed, self.topology = address, seed, topology
        self.plan = plan_of(topology, is_cached=True)
        self.workers: list[subprocess.Popen[bytes]] = []
        outputs = {step.topic for step in topology.steps if isinstance(step, Write)}
        forever = {"retention.ms": "-1"}

        async def make() -> None:
            async with Admin(address) as admin:
                await admin.create_topics(
                    [NewTopic(name, PARTITIONS, configs=forever)
                     for name in (*topology.topics, *outputs)]
                )  # fmt: skip

        asyncio.run(make())

    def command(self, *more: str) -> list[str]:
        return [sys.executable, str(APP), self.address, str(self.seed), *more]

    def start(self) -> None:
        self.workers.append(subprocess.Popen(self.command()))

    def kill(self, victim: subprocess.Popen[bytes]) -> None:
        assert victim.poll() is None, "a worker has ended by itself"
        victim.kill()
        victim.wait()
        self.workers.remove(victim)

    def catch_up(self) -> None:
        """A worker does what is left."""
        subprocess.run(self.command("once"), check=True, timeout=PATIENCE_SECONDS)

    def send(self, rows: list[tuple[str, Row]]) -> None:
        async def send() -> None:
            async with Producer(self.address) as producer:
                for topic, columns in by_topic(self.topology, rows).items():
                    await producer.send_columns(topic, columns)

        asyncio.run(send())

    def read(self, topic: str) -> list[Row]:
        """All that is committed of an output."""
        return as_objects(
            self.plan, topic, asyncio.run(read_topic(self.address, topic, PARTITIONS))
        )


@contextmanager
def running(run: Run) -> Iterator[Run]:
    """Whose workers are gone at the end, whatever happens."""
    try:
        yield run
    finally:
        for worker in run.workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_exactly_once_whenever_workers_are_killed(tmp_path: Path, seed: int) -> None:
    topology, random = draw_calm(Random(seed)), Random(seed)
    tables, streams, later = draw_phases(random, topology, SCALE)
    with (
        EmbeddedBroker(tmp_path) as broker,
        running(Run(broker.bootstrap_servers, seed, topology)) as run,
    ):
        run.send(tables)
        run.catch_up()
        run.start()
        run.start()
        size = len(streams) // (KILLS * PIECES) + 1
        pieces = [streams[at : at + size] for at in range(0, len(streams), size)]
        for number, piece in enumerate(pieces, 1):
            run.send(piece)
            time.sleep(0.1 * random.random())
            if number % PIECES == 0:
                run.kill(random.choice(run.workers))
                run.start()
        for worker in list(run.workers):
            run.kill(worker)
        run.catch_up()
        run.send(later)
        run.catch_up()
        check(topology, [tables, streams, later], run.read)
