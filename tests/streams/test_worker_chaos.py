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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from chaos_app import SESSION_MS, WINDOW_MS

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow

APP = Path(__file__).with_name("chaos_app.py")
PARTITIONS = 4
OUTPUTS = ("copy", "counts", "windows", "sums")
PATIENCE_SECONDS = 40
WORKERS_MAX = 3
FAULTS_A_RUN = 3
SEEDS = [("exactly_once", 1), ("at_least_once", 3)]


class Run:
    """One application: its topics, what was sent, and its workers."""

    def __init__(self, address: str, name: str, guarantee: str) -> None:
        self.address, self.name, self.guarantee = address, name, guarantee
        self.sent: list[tuple[int, int, str]] = []  # partition, timestamp, word
        self.workers: list[subprocess.Popen[bytes]] = []  # that are to run
        self.all: list[subprocess.Popen[bytes]] = []
        self.next_ms = 0
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
        times = list(range(self.next_ms, self.next_ms + count))
        self.next_ms += count

        async def send() -> None:
            async with Producer(self.address) as producer:
                for p in range(PARTITIONS):
                    words = [f"{'abcdefg'[(t + p) % 7]}{t}" for t in times]
                    self.sent += [(p, t, word) for t, word in zip(times, words, strict=True)]
                    values: list[bytes | None] = [word.encode() for word in words]
                    columns = Columns([b"k%d" % p] * count, values, times)
                    await producer.send_columns(f"{self.name}-in", columns, partition=p)

        asyncio.run(send())

    def read(self, what: str) -> Columns:
        """All that is committed of an output."""

        async def read() -> Columns:
            partitions = [TopicPartition(f"{self.name}-{what}", p) for p in range(PARTITIONS)]
            batches: list[Columns] = []
            async with Consumer(self.address, isolation_level="read_committed") as consumer:
                ends = await consumer.end_offsets(partitions)
                consumer.assign(partitions)
                consumer.seek_to_beginning(partitions)
                while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
                    batches += (await consumer.poll(timeout_ms=500)).values()
            return concat(batches) if batches else Columns([], [], [])

        return asyncio.run(read())

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

    def check(self) -> None:
        """Compares all outputs with plain Python."""
        exact = self.guarantee == "exactly_once"
        copied = Counter(value.decode() for value in self.read("copy").values if value)
        expected = Counter(word for _, _, word in self.sent)
        assert copied == expected if exact else copied.keys() == expected.keys()
        initials = Counter(word[0] for _, _, word in self.sent)
        counts = self.last("counts")
        assert {key.decode(): n for key, n in counts.items()} == initials or not exact
        assert all(counts[i.encode()] >= n for i, n in initials.items())
        sums = Counter((word[0], t - t % WINDOW_MS) for _, t, word in self.sent)
        found = {(key[:-8].decode(), start_of(key)): n for key, n in self.last("sums").items()}
        assert found == sums or not exact
        assert all(found[window] >= n for window, n in sums.items())
        self.check_windows(exact)

    def check_windows(self, exact: bool) -> None:
        """Each window that is closed, once under exactly once."""
        ended = self.next_ms - 1 - WINDOW_MS  # of the last record that closes one
        windows = Counter(
            (b"k%d" % p, start) for p, t, _ in self.sent if (start := t - t % WINDOW_MS) <= ended
        )
        out = self.read("windows")
        keys = [(key[:-8], start_of(key)) for key in out.keys if key]
        assert set(keys) == set(windows)
        pairs = zip(keys, out.values, strict=True)
        rows = sorted((window, int.from_bytes(n or b"", "big")) for window, n in pairs)
        assert not exact or rows == sorted(windows.items())
        assert all(n >= windows[window] for window, n in rows)

    def last(self, what: str) -> dict[bytes, int]:
        """The last value of each key."""
        out = self.read(what)
        pairs = zip(out.keys, out.values, strict=True)
        return {key or b"": int.from_bytes(value or b"", "big") for key, value in pairs}


def start_of(key: bytes) -> int:
    """Where a window begins."""
    return int.from_bytes(key[-8:], "big")


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
