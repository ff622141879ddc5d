"""Random topologies with map_async, global tables and state directories in simulated histories.

The worlds of test_simulated_workers.py, where the wall clock is set, too. Topologies are such that
neither the order of partitions nor who lags shows in their results; then these must be those of the
plain interpreter, exactly once, whatever happens to workers and broker.

    KAFKALITE_SEEDS=1000:1100 pytest tests/streams/test_simulated_topologies.py      tries others
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from reference.calm import as_objects, by_topic, check, draw_calm, draw_phases, plan_of
from reference.drawing import Topology
from reference.machine import Row
from reference.steps import Write
from test_simulated_workers import PATIENCE_SECONDS, Simulated, simulated
from whole_topics import read_topic

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.serde import MemoryRegistry
from kafkalite.streams.local import call_loop
from kafkalite.streams.local import worker as workers
from kafkalite.streams.local.worker import Worker, WorkerConfig
from kafkalite.streams.plan import Plan
from kafkalite.testing.simulation import Host, World

pytestmark = pytest.mark.slow

FIRST, LAST = map(int, os.environ.get("KAFKALITE_SEEDS", "0:8").split(":"))
FAULTS_A_PHASE = 2
JUMP_SECONDS = 3_600


class InlineCalls(call_loop.CallLoop):
    """Calls of async functions in the loop of their worker's host."""

    def open(self, callee: Any) -> call_loop.RunningCalls:
        self._loop = asyncio.get_running_loop()
        return super().open(callee)

    def _post(self, callback: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_soon(callback)

    async def close(self) -> None:
        """The calls end with their tasks."""


class SimulatedTopology(Simulated):
    """One random topology in one world."""

    def __init__(self, world: World, directory: Path, random: Random, topology: Topology) -> None:
        self.topology = topology
        self.root = directory
        self.partitions = random.choice([1, 2, 3])
        self.places: dict[Host, Path] = {}
        self.has_disks = random.random() < 0.5
        self.is_cached = random.random() < 0.7
        (directory / "broker").mkdir()
        super().__init__(world, directory / "broker", random, "exactly_once")
        self.spare: list[Path] = []

    def make_plan(self) -> Plan:
        return plan_of(self.topology, is_cached=self.is_cached)

    def topics(self) -> list[NewTopic]:
        outputs = {step.topic for step in self.topology.steps if isinstance(step, Write)}
        forever = {"retention.ms": "-1"}
        return [
            NewTopic(name, self.partitions, configs=forever)
            for name in (*self.topology.topics, *outputs)
        ]

    # Workers with disks: a successor may get that of one who was killed, as it was then

    def config(self) -> WorkerConfig:
        state_dir = None
        if self.has_disks:
            state_dir = self.spare.pop() if self.spare else self.root / f"state-{self.number()}"
            state_dir.mkdir(exist_ok=True)
        self.last_dir = state_dir
        return replace(super().config(), state_dir=state_dir, commit_interval_ms=50)

    def number(self) -> int:
        return len(self.world.hosts)

    def start(self) -> Host:
        host = super().start()
        if self.last_dir is not None:
            self.places[host] = self.last_dir
        return host

    def kill(self) -> None:
        """As before; what is on its disk may go to another worker."""
        before = set(self.workers)
        self.random.shuffle(self.spare)
        victim = self.a_worker()
        if (place := self.places.get(victim)) is not None:
            copy = self.root / f"copy-{self.number()}"
            shutil.copytree(place, copy)
            self.spare.append(copy)
        del self.workers[victim], self.runs[victim]
        victim.kill()
        self.start()
        assert len(self.workers) == len(before)

    def set_clock(self) -> None:
        """Somebody sets the wall clock, forth or back."""
        self.world.time.set_wall_clock(self.random.uniform(-JUMP_SECONDS, JUMP_SECONDS))

    FAULTS = (*Simulated.FAULTS, Simulated.pause, set_clock)

    # Records

    def send(self, count: int = 0) -> None:
        """The next records of the phase."""
        rows, self.rows = self.rows[:count], self.rows[count:]
        self.sent_rows += rows

        async def send() -> None:
            async with Producer(self.address) as producer:
                for topic, columns in by_topic(self.topology, rows).items():
                    await producer.send_columns(topic, columns)

        self.world.result(self.client, send(), PATIENCE_SECONDS)

    def run_phase(self, rows: list[tuple[str, Row]]) -> None:
        """A history with all these records; a last worker does what is left."""
        self.rows, self.sent_rows = rows, list[tuple[str, Row]]()
        for _ in range(self.random.randint(1, 3)):
            self.start()
        for _ in range(FAULTS_A_PHASE):
            self.send(self.random.choice([1, 10, 20]))
            self.world.pass_seconds(self.random.choice([0, 0.03, 0.3, 3]) * self.random.random())
            self.random.choice(self.FAULTS)(self)
        self.send(len(self.rows))
        for host in list(self.workers):
            self.let_go(host)
        last = self.world.host("last")
        worker = Worker(self.plan, self.address, MemoryRegistry(), self.config())
        self.world.result(last, worker.run(until_caught_up=True), PATIENCE_SECONDS)

    def read_rows(self, topic: str) -> list[Row]:
        """All that is committed of an output, as objects."""
        columns = self.world.result(
            self.client, read_topic(self.address, topic, self.partitions), PATIENCE_SECONDS
        )
        return as_objects(self.plan, topic, columns)


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_whatever_happens_the_results_are_those_of_plain_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    topology = draw_calm(random)
    phases = draw_phases(random, topology)
    monkeypatch.setattr(workers, "CallLoop", InlineCalls)
    with simulated(monkeypatch, random) as world:
        run = SimulatedTopology(world, tmp_path, random, topology)
        for phase in phases:
            run.run_phase(phase)
        check(topology, phases, run.read_rows)
