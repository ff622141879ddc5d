"""Our workers on Apache Kafka: topologies of all kinds, exactly once, whoever is killed.

Three of them share their topics with an application of Kafka Streams.
"""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from many_apps import BESIDE_JAVA, JAVA_TOPICS, TOPOLOGIES
from many_runs import Run, until

APPS = Path(__file__).parents[1] / "streams" / "kafka_apps.py"
PARTITIONS = 2
ROUND = 300  # records of each stream
PATIENCE_SECONDS = 90
ALL = {**TOPOLOGIES, **BESIDE_JAVA}
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.min.session.timeout.ms=1000
group.initial.rebalance.delay.ms=0
"""


@pytest.fixture(scope="module")
def kafka(jvm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka broker of one node."""
    folder = tmp_path_factory.mktemp("kafka")
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=controller, folder=folder))
    cluster = uuid.uuid4().hex[:22]
    jvm.run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings))
    with (folder / "log").open("w") as log:
        command = jvm.command("kafka.Kafka", str(settings))
        broker = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(lambda: answers(port) or broker.poll() is not None, "no broker")
            assert broker.poll() is None, (folder / "log").read_text()[-3000:]
            yield f"127.0.0.1:{port}"
        finally:
            broker.kill()
            broker.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def answers(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def done(kafka: str, jvm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two processes, each killed once while it works, beside Kafka Streams; then all is done."""
    folder = tmp_path_factory.mktemp("state")
    run = Run(kafka, folder / "ours", ALL)
    run.begin(JAVA_TOPICS)
    try:
        with jvm.running("Mixed", kafka, str(folder / "java")):
            run.send()
            run.start("first")
            run.start("second")
            for instance in ("first", "second"):
                before = {name: len(run.read(name)) for name in ALL}
                run.send()
                until(lambda before=before: run.went_on(before), "no output")
                run.send()
                run.kill(instance)
                run.start(instance)
            run.send()
            run.finish()
            until(lambda: java_is_done(run), "Kafka Streams is not done")
        yield run
    finally:
        for worker in run.workers.values():
            worker.kill()
            worker.wait()


def java_is_done(run: Run) -> bool:
    """Whether the last of what Kafka Streams writes has come back."""
    run.catch_up("last", BESIDE_JAVA)
    try:
        for name in BESIDE_JAVA:
            run.check(name)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", ALL)
def test_every_result_is_there_exactly_once(done: Run, name: str) -> None:
    done.check(name)
