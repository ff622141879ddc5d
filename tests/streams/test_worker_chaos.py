"""Workers as processes that are killed, paused beyond their session and stopped, and their broker.

Exactly once must equal the reference exactly, at least once must lose nothing. A run that ever
failed stays in `SEEDS`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from chaos_app import SESSION_MS
from chaos_check import OUTPUTS, PARTITIONS, Checked
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.slow

APP = Path(__file__).with_name("chaos_app.py")
PATIENCE_SECONDS = 40
WORKERS_MAX = 3
FAULTS_A_RUN = 3
SEEDS = [("exactly_once", 1), ("at_least_once", 3)]


class Run(Checked):
    """One application: its topics, what was sent, and its workers."""

    def __init__(self, address: str, name: str, guarantee: str) -> None:
        super().__init__(guarantee)
        self.address, self.name = address, name
        self.workers: list[subprocess.Popen[bytes]] = []  # that are to run
        self.all: list[subprocess.Popen[bytes]] = []
        topics = [f"{name}-{what}" for what in ("in", *OUTPUTS)]

        async def make() -> None:
            async with Admin(address) as admin:
                await admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics])

        asyncio.run(make())

    def start(self) -> None:
        self.workers.append(subprocess.Popen(self.command()))
        self.all.append(self.workers[-1])

    def command(self, *more: str) -> list[str]:
        return [sys.executable, str(APP), self.address, self.name, self.guarantee, *more]

    def send(self, count: int = 400) -> None:
        """`count` records of each partition, in the order of their times."""
        made = self.more(count)

        async def send() -> None:
            async with Producer(self.address) as producer:
                for partition, columns in made.items():
                    await producer.send_columns(f"{self.name}-in", columns, partition=partition)

        asyncio.run(send())

    def read(self, what: str) -> Columns:
        """All that is committed of an output."""
        return asyncio.run(read_topic(self.address, f"{self.name}-{what}", PARTITIONS))

    def await_more(self) -> None:
        """Until a worker has copied something new: so that a fault hits work, not an idle group."""
        before = len(self.read("copy"))
        self.send()
        self.until(lambda: len(self.read("copy")) > before, f"{before} records and no more")

    def until(self, is_so: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            for worker in self.workers:
                assert worker.poll() is None, "a worker has ended by itself"
            assert time.monotonic() < deadline, complaint
            time.sleep(0.05)

    def catch_up(self) -> None:
        """Stops whoever runs; a last worker does what is left."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.all:
            # SIGTERM ends a worker at once that has not begun yet.
            assert worker.wait(PATIENCE_SECONDS) in (0, -signal.SIGKILL, -signal.SIGTERM)
        subprocess.run(self.command("once"), check=True, timeout=100)


@contextmanager
def running(address: str, name: str, guarantee: str, workers: int) -> Iterator[Run]:
    """An application whose workers are gone at the end, whatever happens."""
    run = Run(address, name, guarantee)
    try:
        for _ in range(workers):
            run.start()
        run.await_more()
        yield run
    finally:
        for worker in run.all:
            worker.kill()
            worker.wait()


def kill(run: Run, victim: subprocess.Popen[bytes]) -> None:
    victim.kill()
    run.workers.remove(victim)
    run.start()


def stop(run: Run, victim: subprocess.Popen[bytes]) -> None:
    victim.terminate()
    run.workers.remove(victim)
    run.start()


def pause(run: Run, victim: subprocess.Popen[bytes]) -> None:
    """Beyond the session; others go on meanwhile."""
    os.kill(victim.pid, signal.SIGSTOP)
    time.sleep(SESSION_MS / 1000)
    run.await_more()
    os.kill(victim.pid, signal.SIGCONT)


def join(run: Run, victim: subprocess.Popen[bytes]) -> None:
    """Another worker, for a while."""
    if len(run.workers) < WORKERS_MAX:
        run.start()
    else:
        victim.terminate()
        run.workers.remove(victim)


Fault = Callable[[Run, "subprocess.Popen[bytes]"], None]
FAULTS: dict[str, Fault] = {"kill": kill, "stop": stop, "pause": pause, "join": join}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize(("guarantee", "seed"), SEEDS)
def test_whatever_happens_to_workers_the_results_are_right(
    address: str, guarantee: str, seed: int
) -> None:
    random = Random(seed)
    with running(address, f"chaos-{seed}", guarantee, workers=2) as run:
        for _ in range(FAULTS_A_RUN):
            FAULTS[random.choice(sorted(FAULTS))](run, random.choice(run.workers))
            run.await_more()
        run.catch_up()
        run.check()


def test_a_broker_that_is_killed_and_comes_back_costs_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        address = broker.bootstrap_servers
        with running(address, "restarted", "exactly_once", workers=2) as run:
            run.send()
            os.kill(broker.pid, signal.SIGKILL)
            with EmbeddedBroker(tmp_path, listen=address):
                run.await_more()
                run.catch_up()
                run.check()


@pytest.mark.timeout(300)
def test_brokers_of_a_cluster_that_die_one_after_the_other_cost_nothing(tmp_path: Path) -> None:
    """The application goes on while each is away: topics, offsets and transactions have three
    replicas."""
    with (
        EmbeddedCluster(tmp_path) as cluster,
        running(cluster.bootstrap_servers, "replicated", "exactly_once", workers=2) as run,
    ):
        for node_id in cluster.node_ids:
            run.send()
            cluster.kill(node_id)
            run.await_more()
            cluster.start(node_id)
        run.catch_up()
        run.check()
