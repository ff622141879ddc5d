"""`kafkalite server start` with a `server.properties` of Apache Kafka's time with ZooKeeper."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafkalite.clients import NewTopic
from kafkalite.clients.admin.client import ConfigResource, ResourceType
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.cluster.coordination import Create
from kafkalite.core.cluster.zookeeper import ZooKeeperCoordination

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "kafkalite.cli", "server", "start", "--config"]
SECONDS_MAX = 60
# What stands in the file of Apache Kafka 3.9, and what operators of clusters add.
PROPERTIES = """\
broker.id={id}
broker.rack={rack}
listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0
listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT
inter.broker.listener.name=INSIDE
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={log_dirs}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=2
transaction.state.log.replication.factor=2
transaction.state.log.min.isr=1
default.replication.factor=2
min.insync.replicas=2
num.replica.fetchers=4
replica.fetch.max.bytes=1048576
replica.lag.time.max.ms=30000
replica.socket.timeout.ms=30000
replica.socket.receive.buffer.bytes=65536
unclean.leader.election.enable=false
auto.leader.rebalance.enable=true
leader.imbalance.check.interval.seconds=300
controlled.shutdown.enable=true
controlled.shutdown.retry.backoff.ms=100
delete.topic.enable=true
inter.broker.protocol.version=3.9
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect={zookeeper}
zookeeper.connection.timeout.ms=18000
zookeeper.session.timeout.ms=6000
zookeeper.max.in.flight.requests=10
zookeeper.set.acl=false
group.initial.rebalance.delay.ms=0
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, zookeeper_address: str) -> Iterator[Start]:
    """`start(1, "a")`: a broker with the file, its id and rack."""
    with ExitStack() as stack:

        def start(node_id: int, rack: str, *flags: str) -> subprocess.Popen[str]:
            folder = tmp_path / rack
            folder.mkdir(exist_ok=True)
            config = folder / "server.properties"
            log_dirs = folder / "kafka-logs"
            text = PROPERTIES.format(
                id=node_id, rack=rack, log_dirs=log_dirs, zookeeper=zookeeper_address
            )
            config.write_text(text)
            pipe = subprocess.PIPE
            command = [*COMMAND, str(config), *flags]
            process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("kafkalite is ready at "), line or process.communicate()[1]
    return line.split()[4]


def test_the_files_of_a_cluster_are_taken_as_they_are(start: Start) -> None:
    one, two = start(-1, "east"), start(-1, "west")
    servers = address(one)
    address(two)
    with Admin(servers) as admin:
        admin.create_topics([NewTopic("orders", 2)])
        assert sorted(admin.describe_cluster().racks.items()) in (
            [(1001, "east"), (1002, "west")],
            [(1001, "west"), (1002, "east")],
        )
        (topic,) = admin.describe_topics(["orders"])
        assert [sorted(p.replicas) for p in topic.partitions] == [[1001, 1002]] * 2
        resource = ConfigResource(ResourceType.TOPIC, "orders")
        described = admin.describe_configs([resource], ["min.insync.replicas"])
        assert described[resource]["min.insync.replicas"].value == "2"
    with Producer(servers) as producer:
        producer.send("orders", b"1", partition=0).result()
        producer.send("orders", b"2", partition=1).result()
    for process in (two, one):
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0


def test_an_id_once_taken_stays(start: Start, tmp_path: Path) -> None:
    first = start(-1, "east")
    address(first)
    first.send_signal(signal.SIGTERM)
    first.wait(SECONDS_MAX)
    again = start(-1, "east")
    with Admin(address(again)) as admin:
        assert [node.node_id for node in admin.describe_cluster().nodes] == [1001]
    assert "node.id=1001" in (tmp_path / "east" / "kafka-logs" / "meta.properties").read_text()


def test_what_no_broker_of_a_cluster_starts_with(start: Start, zookeeper_address: str) -> None:
    def refused(*flags: str) -> str:
        process = start(-1, "east", *(f"--override={flag}" for flag in flags))
        _, words = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 1
        return words.splitlines()[-1]

    assert "without ACLs" in refused("zookeeper.set.acl=true")
    assert "without TLS" in refused("zookeeper.ssl.client.enable=true")
    assert "broker.id is not set" in refused("broker.id.generation.enable=false")
    make_a_cluster_of_kafka(zookeeper_address)
    assert "has /brokers/ids there, of a cluster of Apache Kafka: give another chroot" in refused()


def make_a_cluster_of_kafka(zookeeper_address: str) -> None:
    async def make() -> None:
        coordination = ZooKeeperCoordination(
            zookeeper_address, in_thread=asyncio.to_thread, session_timeout_ms=6_000
        )
        await coordination.transact((Create("/brokers/ids", b""),))
        await coordination.close()

    asyncio.run(make())
