"""Several brokers, the network between them and clients, from one seed each.

Until brokers replicate, each is a cluster of its own with clients of its own. They share time, the
network and its faults, so a history says of each broker what it says of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from kafkalite.testing.checkers import check_all
from kafkalite.testing.cluster import SimulatedCluster
from kafkalite.testing.simulation import Stuck
from kafkalite.testing.workload import Workload

FIRST, LAST = map(int, os.environ.get("KAFKALITE_SEEDS", "100:104").split(":"))
FAULTS_A_RUN = 6
FAILED_ONCE: list[int] = []


class Faulty:
    """A cluster whose brokers, network and clients suffer."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster, self.random = cluster, cluster.random
        cluster.start_all()
        self.works = [
            Workload(cluster, partial(cluster.client, node_id), name=f"w{node_id}", partitions=2)
            for node_id in cluster.brokers
        ]
        for work in self.works:
            work.begin()

    def one(self) -> int:
        return self.random.choice(list(self.cluster.brokers))

    def wait(self, seconds_max: float) -> None:
        self.cluster.pass_seconds(seconds_max * self.random.random())

    def kill(self) -> None:
        node_id = self.one()
        self.cluster.kill(node_id)
        self.wait(3)
        self.cluster.start(node_id)
        self.cluster.wait_for(node_id)

    def crash(self) -> None:
        node_id = self.one()
        self.cluster.crash(node_id)
        self.wait(10)
        self.cluster.start(node_id)
        self.cluster.wait_for(node_id)

    def crash_within(self) -> None:
        node_id = self.one()
        self.cluster.crash_within(node_id, 300)
        self.wait(1)
        self.cluster.start(node_id)
        self.cluster.wait_for(node_id)

    def stop(self) -> None:
        node_id = self.one()
        self.cluster.stop(node_id)
        self.wait(3)
        self.cluster.start(node_id)
        self.cluster.wait_for(node_id)

    def pause(self) -> None:
        node_id = self.one()
        self.cluster.pause(node_id)
        self.wait(6)
        self.cluster.go_on(node_id)

    def isolate(self) -> None:
        self.cluster.isolate(self.one(), loses=self.random.random() < 0.3)
        self.wait(10)
        self.cluster.heal()

    def cut_one_way(self) -> None:
        names = self.cluster.names()
        sender, receiver = self.random.sample(names, 2)
        self.cluster.note(f"cut {sender} {receiver}")
        self.cluster.world.network.cut(sender, receiver)
        self.wait(10)
        self.cluster.heal()

    def reset(self) -> None:
        name = self.cluster.brokers[self.one()].name
        for other in self.cluster.names():
            if other != name:
                self.cluster.world.network.reset(name, other)

    def slow(self) -> None:
        names = self.cluster.names()
        broker = self.cluster.brokers[self.one()].name
        ways = [(broker, name) for name in names if name != broker]
        for way in ways:
            self.cluster.world.network.slow(*way, 5_000)
        self.wait(5)
        for way in ways:
            self.cluster.world.network.slow(*way, None)

    def fill_disk(self) -> None:
        broker = self.cluster.brokers[self.one()]
        broker.storage.fail("append", times=self.random.randint(1, 20))
        self.wait(2)

    def kill_client(self) -> None:
        self.random.choice(self.works).kill_one()

    def pause_client(self) -> None:
        self.random.choice(self.works).pause_one()

    FAULTS = (
        kill, crash, crash_within, stop, pause, isolate, cut_one_way, reset, slow, fill_disk,
        kill_client, pause_client,
    )  # fmt: skip

    def live(self, faults: int = FAULTS_A_RUN) -> None:
        for _ in range(faults):
            self.cluster.pass_seconds(self.random.choice([0.01, 0.3, 3]) * self.random.random())
            self.random.choice(self.FAULTS)(self)
        self.cluster.pass_seconds(1)
        for work in self.works:
            work.finish()

    def check(self) -> None:
        for work in self.works:
            assert [str(each) for each in check_all(work.history)] == []
        assert self.cluster.defects == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*FAILED_ONCE, *range(FIRST, LAST)])
def test_whatever_happens_no_promise_is_broken(seed: int) -> None:
    with SimulatedCluster(seed, brokers=3) as cluster:
        faulty = Faulty(cluster)
        faulty.live()
        faulty.check()


def test_a_broker_that_acknowledges_before_its_disk_has_it_is_found_out() -> None:
    """A control: with one replica and no sync, a crash loses what was acknowledged."""
    late = {"log.flush.interval.messages": "1000000"}
    with SimulatedCluster(3, brokers=1, settings=late) as cluster:
        cluster.start_all()
        work = Workload(cluster, cluster.client, partitions=1)
        work.begin()
        cluster.pass_seconds(5)
        cluster.crash(1)
        cluster.start_all()
        work.finish()
        assert {each.check for each in check_all(work.history)} >= {"acknowledged"}


def replayed(seed: int, brokers: int = 2, faults: int = 2) -> tuple[str, int]:
    """The digest of a history with some faults, and how many records it acknowledged."""
    with SimulatedCluster(seed, brokers=brokers) as cluster:
        faulty = Faulty(cluster)
        faulty.live(faults)
        faulty.check()
        sends = [send for work in faulty.works for send in work.history.sends]
        return cluster.digest, sum(send.offset is not None for send in sends)


@pytest.mark.parametrize(
    ("seed", "brokers", "faults"),
    [
        (27, 2, 2),
        # Sets decided in which order partitions were fetched, and connections closed.
        pytest.param(204, 3, 6, marks=pytest.mark.slow),
        pytest.param(210, 3, 6, marks=pytest.mark.slow),
    ],
)
def test_a_seed_replays_to_the_byte_in_processes_with_other_hash_seeds(
    seed: int, brokers: int, faults: int
) -> None:
    code = f"import test_simulated_cluster as t; print(*t.replayed({seed}, {brokers}, {faults}))"
    digests = set()
    for hash_seed in ("1", "2"):
        paths = [os.path.dirname(__file__), *sys.path]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)}
        ran = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        digest, acknowledged = ran.stdout.split()
        assert int(acknowledged) > 20
        digests.add(digest)
    assert len(digests) == 1


def test_another_seed_is_another_history() -> None:
    assert replayed(12, 1, 1)[0] != replayed(13, 1, 1)[0]


def test_a_failing_history_prints_the_line_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stuck), SimulatedCluster(7, brokers=1) as cluster:
        cluster.run(lambda: False, 1)
    told = "tests/core/test_simulated_cluster.py::test_a_failing_history"
    assert f"replay: python -m pytest '{told}" in capsys.readouterr().err
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert cluster.replay_line() == "SimulatedCluster(seed=7, brokers=1)"
