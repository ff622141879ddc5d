"""Random faults of real brokers and their ZooKeeper while librdkafka produces: nothing is lost.

`KAFKALITE_CLUSTER_RUNS=20` runs as many histories, `KAFKALITE_CLUSTER_SEED` is the first seed.
A seed names the faults; the machine decides how they fall. Where root runs them, disks are filled,
and each broker has a network of its own, which is cut.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import sleep

import pytest
from namespaces import Host, Network, NoNetwork, SpreadCluster
from test_cluster import Load, Place, until

from kafkalite import EmbeddedCluster

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

FIRST = int(os.environ.get("KAFKALITE_CLUSTER_SEED", "1"))
RUNS = int(os.environ.get("KAFKALITE_CLUSTER_RUNS", "2"))
FAULTS_A_RUN = 5
DISK_MB = 64
SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "log.segment.bytes": str(1 << 20),  # a disk of this size has room for several
    "log.index.size.max.bytes": str(1 << 16),
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class Faulty:
    """A cluster that suffers, and the load on it."""

    def __init__(
        self, cluster: EmbeddedCluster, disks: Path | None, network: Network | None, seed: int
    ) -> None:
        self.cluster, self.disks, self.network = cluster, disks, network
        self.random = Random(seed)
        self.place = Place(cluster.bootstrap_servers)
        self.place.create("orders")
        self.load = Load(cluster.bootstrap_servers, "orders")

    def one(self) -> int:
        return self.random.choice(self.cluster.node_ids)

    def rest(self, seconds_max: float) -> None:
        sleep(self.random.random() * seconds_max)

    def kill(self) -> None:
        node_id = self.one()
        self.cluster.kill(node_id)
        self.rest(3)
        self.cluster.start(node_id)

    def kill_two(self) -> None:
        """The partitions stand still meanwhile: one broker is less than min.insync.replicas."""
        nodes = self.random.sample(self.cluster.node_ids, 2)
        for node_id in nodes:
            self.cluster.kill(node_id)
        self.rest(2)
        for node_id in nodes:
            self.cluster.start(node_id)

    def stop(self) -> None:
        self.cluster.restart(self.one())

    def pause(self) -> None:
        """For less than a session, or beyond it."""
        node_id = self.one()
        self.cluster.pause(node_id)
        self.rest(8)
        self.cluster.go_on(node_id)

    def kill_while_another_is_paused(self) -> None:
        paused, killed = self.random.sample(self.cluster.node_ids, 2)
        self.cluster.pause(paused)
        self.rest(2)
        self.cluster.kill(killed)
        self.rest(2)
        self.cluster.go_on(paused)
        self.cluster.start(killed)

    def restart_zookeeper(self) -> None:
        assert self.cluster.zookeeper is not None
        self.cluster.zookeeper.kill()
        self.rest(6)
        self.cluster.start_zookeeper()

    def fill_disk(self) -> None:
        if self.disks is None:
            return
        filler = self.disks / f"broker-{self.one()}" / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        self.rest(3)
        filler.unlink()

    FAULTS = (
        kill, kill, kill_two, stop, pause, kill_while_another_is_paused, restart_zookeeper,
        fill_disk,
    )  # fmt: skip

    # -- cuts of the network, some of them one way

    @contextmanager
    def cut(self, some: Sequence[Host], others: Sequence[Host]) -> Iterator[None]:
        """The others do not hear some of them any more, or nobody does the other, for a while."""
        assert self.network is not None
        ways = self.random.choice(("both", "both", "there", "back"))
        print(f"  {[h.number for h in some]} {ways} {[h.number for h in others]}")
        if ways != "back":
            self.network.cut(some, others)
        if ways != "there":
            self.network.cut(others, some)
        yield
        self.rest(10)
        self.network.heal()

    @property
    def hosts(self) -> dict[int, Host]:
        assert isinstance(self.cluster, SpreadCluster)
        return self.cluster.hosts

    @property
    def all_hosts(self) -> Sequence[Host]:
        assert self.network is not None
        return self.network.hosts

    def cut_off(self) -> None:
        """From everybody, clients too."""
        with self.cut([self.hosts[self.one()]], self.all_hosts):
            pass

    def cut_off_from_brokers(self) -> None:
        """And from ZooKeeper, not from clients."""
        _client, *others = self.all_hosts
        with self.cut([self.hosts[self.one()]], others):
            pass

    def cut_off_from_zookeeper(self) -> None:
        _, zookeeper, *_ = self.all_hosts
        with self.cut([self.hosts[self.one()]], [zookeeper]):
            pass

    def cut_in_between(self) -> None:
        """Two brokers, or two ways of one."""
        one, another = self.random.sample(self.all_hosts, 2)
        with self.cut([one], [another]):
            pass

    def kill_while_another_is_cut_off(self) -> None:
        cut, killed = self.random.sample(self.cluster.node_ids, 2)
        with self.cut([self.hosts[cut]], self.all_hosts):
            self.rest(5)
            self.cluster.kill(killed)
            self.rest(2)
        self.cluster.start(killed)

    CUTS = (
        cut_off, cut_off_from_brokers, cut_off_from_zookeeper, cut_in_between,
        kill_while_another_is_cut_off,
    )  # fmt: skip

    def live(self) -> None:
        for _ in range(FAULTS_A_RUN):
            self.load.goes_on()
            fault = self.random.choice(self.FAULTS + (self.CUTS if self.network else ()))
            print(fault.__name__)
            fault(self)
        until(lambda: self.place.is_whole("orders"))
        self.load.goes_on()
        self.load.check()


@contextmanager
def small_disks(folder: Path) -> Iterator[Path | None]:
    """Each broker's folder is a file system of its own, where root may make one."""
    mounted = [disk for number in (1, 2, 3) if is_mounted(disk := folder / f"broker-{number}")]
    try:
        yield folder if mounted else None
    except BaseException:
        for disk in mounted:  # for whoever looks for the reason
            shutil.copytree(disk, folder / f"{disk.name}-at-the-end")
        raise
    finally:
        for disk in mounted:
            subprocess.run(["umount", str(disk)], check=True)


def is_mounted(disk: Path) -> bool:
    """Whether a small file system could be mounted there."""
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)]
    return os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0


@contextmanager
def network() -> Iterator[Network | None]:
    """The client's host, ZooKeeper's, and those of three brokers, where root may make them."""
    try:
        made = Network(5)
    except NoNetwork:
        yield None
        return
    with made, made.hosts[0].inside():
        yield made


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_whatever_happens_to_brokers_nothing_acknowledged_is_lost(
    seed: int, tmp_path: Path
) -> None:
    with (
        small_disks(tmp_path) as disks, network() as hosts, (tmp_path / "log").open("w") as log
    ):  # fmt: skip

        def note(name: str, line: str) -> None:
            print(name, line, file=log, flush=True)

        if hosts is None:
            cluster = EmbeddedCluster(tmp_path, overrides=SETTINGS, on_log=note)
        else:
            cluster = SpreadCluster(tmp_path, hosts.hosts[1:], overrides=SETTINGS, on_log=note)
        with cluster:
            Faulty(cluster, disks, hosts, seed).live()
