"""`EmbeddedCluster`: three real brokers and a ZooKeeper, which the tests kill and start again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite import EmbeddedCluster
from kafkalite.clients import NewTopic
from kafkalite.clients.metadata import PartitionInfo
from kafkalite.clients.sync import Admin, Consumer, Producer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, DataDirectoryInUse

pytestmark = pytest.mark.slow

SECONDS_MAX = 60
KILLED_PARENT = """
import sys, time
from kafkalite import EmbeddedCluster
cluster = EmbeddedCluster(sys.argv[1], brokers=1)
print(cluster.pid(1), cluster.zookeeper.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    quick = {"zookeeper.session.timeout.ms": "2000"}
    with EmbeddedCluster(folder, racks=["a", "b"], overrides=quick) as running:
        yield running


def partitions(cluster: EmbeddedCluster, topic: str) -> tuple[PartitionInfo, ...]:
    with Admin(cluster.bootstrap_servers) as admin:
        return admin.describe_topics([topic])[0].partitions


def wait_until_all_in_sync(cluster: EmbeddedCluster, topic: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while any(len(p.in_sync_replicas) < len(p.replicas) for p in partitions(cluster, topic)):
        assert time.monotonic() < deadline, partitions(cluster, topic)
        time.sleep(0.1)


def read(cluster: EmbeddedCluster, topic: str, count: int) -> list[bytes | None]:
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, p.partition) for p in partitions(cluster, topic)])
        found: list[bytes | None] = []
        while len(found) < count:
            for columns in consumer.poll(5.0).values():
                found += columns.values
        return found


def test_a_killed_broker_loses_nothing_and_comes_back(cluster: EmbeddedCluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 3)])
        assert admin.describe_cluster().racks == {1: "a", 2: "b"}
    assert {len(p.replicas) for p in partitions(cluster, "orders")} == {3}
    with Producer(cluster.bootstrap_servers) as producer:
        before = [producer.send("orders", b"%d" % n, partition=n % 3) for n in range(30)]
        producer.flush()
        cluster.kill(2)
        assert not cluster.is_running(2)
        after = [producer.send("orders", b"%d" % n, partition=n % 3) for n in range(30, 60)]
        producer.flush()
    assert all(sent.result().offset >= 0 for sent in before + after)
    address = cluster.address(2)
    cluster.start(2)
    assert cluster.address(2) == address
    wait_until_all_in_sync(cluster, "orders")
    assert sorted(read(cluster, "orders", 60)) == sorted(b"%d" % n for n in range(60))


def test_a_stopped_broker_hands_its_partitions_over(cluster: EmbeddedCluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("handed", 3)])
    cluster.stop(3)
    assert {p.leader_id for p in partitions(cluster, "handed")} <= {1, 2}
    cluster.start(3)
    wait_until_all_in_sync(cluster, "handed")


def test_a_paused_broker_goes_on(cluster: EmbeddedCluster) -> None:
    cluster.pause(1)
    assert cluster.is_running(1)
    cluster.go_on(1)
    with Admin(cluster.address(1)) as admin:
        assert len(admin.describe_cluster().nodes) == 3


def test_wrong_calls_are_named(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no broker 4: the cluster has 1, 2, 3"):
        cluster.kill(4)
    with pytest.raises(ConfigError, match="broker 1 of .* runs already"):
        cluster.start(1)
    with pytest.raises(DataDirectoryInUse, match=f"in use by process {os.getpid()}"):
        EmbeddedCluster(cluster.data_dir)
    with pytest.raises(ConfigError, match=r"broker\.id cannot be set here"):
        EmbeddedCluster(tmp_path, overrides={"broker.id": "7"})
    with pytest.raises(ConfigError, match="give 1 or more"):
        EmbeddedCluster(tmp_path, brokers=0)
    with pytest.raises(ConfigError, match="'nowhere' is not HOST:PORT"):
        EmbeddedCluster(tmp_path, listen="nowhere")
    with pytest.raises(ConfigError, match="2 racks for 1 brokers"):
        EmbeddedCluster(tmp_path, brokers=1, racks=["a", "b"])
    with pytest.raises(ConfigError, match="settings of 2 brokers, and there are 1"):
        EmbeddedCluster(tmp_path, brokers=1, each=[{}, {}])
    with pytest.raises(ConfigError, match=r"broker\.rack cannot be set here"):
        EmbeddedCluster(tmp_path, each=[{}, {"broker.rack": "b"}])


def test_records_are_there_again_after_a_stop_of_all(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("kept", 2)])
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("kept", b"1", partition=0).result()
            producer.send("kept", b"2", partition=1).result()
    with EmbeddedCluster(tmp_path, brokers=2) as cluster:
        assert sorted(read(cluster, "kept", 2)) == [b"1", b"2"]


def test_each_broker_has_a_listener_for_clients_and_one_for_brokers(tmp_path: Path) -> None:
    """Clients who come by the former never learn of the latter, also after a restart."""
    client_1, broker_1, client_2, broker_2 = (f"127.0.0.1:{port}" for port in free_ports(4))
    shared = {"listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT"}
    shared |= {"inter.broker.listener.name": "INNER"}
    each = [
        {"listeners": f"OUTER://{client},INNER://{broker}"}
        for client, broker in ((client_1, broker_1), (client_2, broker_2))
    ]
    with EmbeddedCluster(tmp_path, brokers=2, overrides=shared, each=each) as cluster:
        assert cluster.bootstrap_servers == f"{broker_1},{broker_2}"
        cluster.restart(2)
        with Admin(client_1) as admin:
            admin.create_topics([NewTopic("shared", 2)])
            nodes = admin.describe_cluster().nodes
            assert {f"{at.host}:{at.port}" for at in nodes} == {client_1, client_2}
        wait_until_all_in_sync(cluster, "shared")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_no_child_outlives_a_killed_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_PARENT, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + SECONDS_MAX
    while any(map(is_alive, children)):
        assert time.monotonic() < deadline, children
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """A process that ended stays a zombie where nobody is there to reap orphans."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
