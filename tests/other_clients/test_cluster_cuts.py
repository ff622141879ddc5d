"""Real brokers on hosts of their own, whose network is cut while librdkafka produces.

Nothing is refused or reset where packets vanish: whoever asks hears nothing. Random cuts, beside
other faults, are in `test_cluster_chaos.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from namespaces import Host, Network, NoNetwork, SpreadCluster
from test_cluster import Load, Place, until

pytestmark = pytest.mark.slow

TOPIC = "cut"
SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "offsets.topic.num.partitions": "1",
}


class Scene:
    """The client's host, ZooKeeper's, and those of three brokers, with records under way."""

    def __init__(self, network: Network, cluster: SpreadCluster) -> None:
        self.network, self.cluster = network, cluster
        self.client, self.zookeeper, *self.brokers = network.hosts
        self.place = Place(cluster.bootstrap_servers)
        self.place.create(TOPIC)
        self.load = Load(cluster.bootstrap_servers, TOPIC)
        self.load.goes_on()

    def leader(self) -> int:
        """Not the controller, which is to notice the cut."""
        controller = self.place.controller()
        return next(n for n in self.place.leaders(TOPIC).values() if n != controller)

    def but(self, *hosts: Host) -> Sequence[Host]:
        return [host for host in self.network.hosts if host not in hosts]

    def others_lead(self, broker: int) -> None:
        until(lambda: self.place.is_led_without(broker, TOPIC))

    def heals(self) -> None:
        self.network.heal()
        until(lambda: self.place.is_whole(TOPIC))
        self.load.goes_on()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    try:
        network = Network(5)
    except NoNetwork as error:
        pytest.skip(f"no network that can be cut: {error}")
    with (
        network,
        network.hosts[0].inside(),
        SpreadCluster(tmp_path, network.hosts[1:], overrides=SETTINGS) as cluster,
    ):
        yield Scene(network, cluster)


def test_cuts_lose_nothing(scene: Scene) -> None:
    # From everybody: the session ends, and a leader that nobody hears acknowledges nothing.
    victim = scene.leader()
    cut = scene.cluster.hosts[victim]
    scene.network.cut_both_ways([cut], scene.but(cut))
    scene.others_lead(victim)
    scene.heals()
    # From all but the clients, which go on asking it.
    victim = scene.leader()
    cut = scene.cluster.hosts[victim]
    scene.network.cut_both_ways([cut], scene.but(cut, scene.client))
    scene.others_lead(victim)
    scene.heals()
    # One way: a leader hears its followers, and they do not hear it.
    victim = scene.leader()
    cut = scene.cluster.hosts[victim]
    scene.network.cut([cut], [host for host in scene.brokers if host is not cut])
    until(lambda: not scene.place.is_whole(TOPIC))  # its followers lag
    scene.heals()
    # From ZooKeeper alone: the session ends, and the broker goes on fetching and answering.
    victim = scene.leader()
    scene.network.cut_both_ways([scene.cluster.hosts[victim]], [scene.zookeeper])
    scene.others_lead(victim)
    scene.load.goes_on()
    scene.heals()
    scene.load.check()
