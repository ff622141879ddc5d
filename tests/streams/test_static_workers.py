"""Workers with a state directory are static members: they come back to their own tasks."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.streams.local.state.identity import take_identity

T = TypeVar("T")

PARTITIONS = 4
PATIENCE_SECONDS = 60
APP = """
import asyncio, signal, sys
from functools import partial
from pathlib import Path

from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.local.worker import Worker, WorkerConfig

address, name, state_dir, session_ms = sys.argv[1:]
app = Streams(name, key=string(), value=string())
app.stream(f"{name}-in").group_by_key().count(name="n")
config = WorkerConfig(
    commit_interval_ms=50, state_dir=Path(state_dir), session_timeout_ms=int(session_ms)
)

class Watched(Worker):
    async def _on_assigned(self, partitions):
        await super()._on_assigned(partitions)
        generation_id = self._consumer.group_metadata().generation_id
        print("generation", generation_id, *sorted(map(str, self._manager.owned)), flush=True)

async def main():
    worker = Watched(app.plan(), address, MemoryRegistry(), config)
    for number, comes_back in ((signal.SIGTERM, True), (signal.SIGINT, False)):
        stop = partial(worker.stop, comes_back=comes_back)
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await worker.run()

asyncio.run(main())
"""


class TestIdentity:
    def test_it_is_the_same_in_the_next_life(self, tmp_path: Path) -> None:
        first = take_identity(tmp_path, Random(1))
        assert first is not None
        first.close()
        again = take_identity(tmp_path, Random(2))
        assert again is not None
        assert again.name == first.name
        again.close()

    def test_each_worker_of_a_directory_has_its_own(self, tmp_path: Path) -> None:
        first, second = (take_identity(tmp_path, Random(seed)) for seed in (1, 2))
        assert first is not None
        assert second is not None
        assert first.name != second.name
        first.close()
        third = take_identity(tmp_path, Random(3))
        assert third is not None
        assert third.name == first.name, "the one that nobody has"
        for each in (second, third):
            each.close()

    def test_one_that_cannot_be_read_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "worker-1").write_text("half of an i")
        found = take_identity(tmp_path, Random(1))
        assert found is not None
        assert re.fullmatch("[0-9a-f]{32}", found.name)
        assert (tmp_path / "worker-1").read_text() == f"{found.name}\n"
        found.close()

    def test_a_directory_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TopologyError, match=r"gone/worker-1 cannot be used"):
            take_identity(tmp_path / "gone", Random(1))


class Group:
    """Workers of one application, and what the coordinator says of them."""

    def __init__(self, address: str, name: str, folder: Path, session_ms: int) -> None:
        self.address, self.name = address, name
        self._app, self._state = folder / "app.py", folder / "state"
        self._app.write_text(APP)
        self._session_ms = session_ms
        self.workers: list[subprocess.Popen[str]] = []
        self.ask(lambda admin: admin.create_topics([NewTopic(f"{name}-in", PARTITIONS)]))

        async def send() -> None:
            async with Producer(address) as producer:
                for number in range(100):
                    await producer.send(f"{name}-in", b"v", key=b"%d" % number)

        asyncio.run(send())

    def ask(self, question: Callable[[Admin], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with Admin(self.address) as admin:
                return await question(admin)

        return asyncio.run(ask())

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(self._app), self.address, self.name, str(self._state)]
        worker = subprocess.Popen(
            [*command, str(self._session_ms)], stdout=subprocess.PIPE, text=True
        )
        self.workers.append(worker)
        return worker

    def members(self) -> dict[str, int]:
        """How many partitions each instance has."""
        (group,) = self.ask(lambda admin: admin.describe_groups([self.name]))
        return {m.group_instance_id or "": len(m.partitions) for m in group.members}

    def until(self, counts: list[int]) -> dict[str, int]:
        """Waits until the members have as many partitions."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sorted((found := self.members()).values()) != counts:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found


def assignments(worker: subprocess.Popen[str]) -> list[str]:
    """What a worker that has ended was given, one line a rebalance."""
    assert worker.stdout is not None
    return worker.stdout.read().splitlines()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@contextmanager
def running(address: str, name: str, folder: Path, session_ms: int = 20_000) -> Iterator[Group]:
    """Two workers that have two tasks each."""
    group = Group(address, name, folder, session_ms)
    try:
        for _ in range(2):
            group.start()
        group.until([2, 2])
        yield group
    finally:
        for worker in group.workers:
            worker.kill()
            worker.wait()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_comes_back_has_its_tasks_and_the_others_hear_nothing(
    address: str, tmp_path: Path, how: signal.Signals
) -> None:
    with running(address, f"back-{how}", tmp_path) as group:
        before = group.members()
        goes = group.workers[1]
        os.kill(goes.pid, how)
        goes.wait()
        assert group.members() == before, "the session is long"
        again = group.start()
        assert again.stdout is not None
        assert again.stdout.readline().strip() == assignments(goes)[-1], "the same generation"
        assert group.members() == before


@pytest.mark.slow
def test_one_that_is_stopped_for_good_leaves_its_tasks_at_once(
    address: str, tmp_path: Path
) -> None:
    with running(address, "leaves", tmp_path) as group:
        group.workers[0].send_signal(signal.SIGINT)
        assert group.workers[0].wait(PATIENCE_SECONDS) == 0
        assert len(group.members()) == 1, "no session has to end first"
        group.until([4])


@pytest.mark.slow
def test_one_that_is_killed_and_stays_away_loses_its_tasks(address: str, tmp_path: Path) -> None:
    with running(address, "away", tmp_path, session_ms=1_500) as group:
        group.workers[0].kill()
        group.until([4])
