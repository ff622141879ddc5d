"""Our workers on Apache Kafka's broker: twelve topologies, exactly once, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_apps import END_MS, FACTS, TOPOLOGIES, Sent

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition, concat

APPS = Path(__file__).parents[1] / "streams" / "kafka_apps.py"
PARTITIONS = 2
ROUND = 300  # records of each stream
PATIENCE_SECONDS = 90
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


def until(is_so: Callable[[], bool], complaint: str) -> None:
    """Waits."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)


class Run:
    """The input, and the processes that work on it."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.sent = Sent([], [])
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        topics = ["left", "right", *TOPOLOGIES]
        asyncio.run(self._create([NewTopic(topic, PARTITIONS) for topic in [*topics, "facts"]]))
        rows = [(key, value, 0) for key, value in FACTS.items()]
        asyncio.run(self._send({"facts": rows}))

    async def _create(self, topics: list[NewTopic]) -> None:
        async with Admin(self.address) as admin:
            await admin.create_topics(topics)

    async def _send(self, rows: dict[str, list[tuple[str, int, int]]]) -> None:
        async with Producer(self.address) as producer:
            for topic, own in rows.items():
                keys = [key.encode() for key, _, _ in own]
                values: list[bytes | None] = [v.to_bytes(8, "big", signed=True) for _, v, _ in own]
                await producer.send_columns(topic, Columns(keys, values, [t for _, _, t in own]))

    def send(self) -> None:
        """More records of both streams, all of different values, in the order of their times."""
        first = len(self.sent.left)
        numbers = range(first, first + ROUND)
        left = [(f"k{v % 12}", v, v * 10) for v in numbers]
        right = [(f"k{v * 5 % 12}", v, v * 10 + 3) for v in numbers]
        self.sent.left.extend(left)
        self.sent.right.extend(right)
        asyncio.run(self._send({"left": left, "right": right}))

    def close_windows(self) -> None:
        """Records far in the future, in every partition."""

        async def send() -> None:
            async with Producer(self.address) as producer:
                for p in range(PARTITIONS):
                    rows = Columns([b"end"], [(-1).to_bytes(8, "big", signed=True)], [END_MS])
                    await producer.send_columns("left", rows, partition=p)

        asyncio.run(send())

    def start(self, instance: str) -> None:
        """A process with a worker of each application."""
        command = [sys.executable, str(APPS), self.address, str(self.folder), instance]
        self.workers[instance] = subprocess.Popen(command)

    def went_on(self, before: dict[str, int]) -> bool:
        """Whether every output has grown: a fault is to hit work."""
        return all(len(self.read(name)) > before[name] for name in TOPOLOGIES)

    def kill(self, instance: str) -> None:
        """kill -9, whatever it does."""
        os.kill(self.workers[instance].pid, signal.SIGKILL)
        self.workers.pop(instance).wait()

    def finish(self) -> None:
        """Stops whoever runs; a last process does the rest."""
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            # SIGTERM ends a process at once that has not begun yet.
            assert worker.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)
        command = [sys.executable, str(APPS), self.address, str(self.folder), "last", "once"]
        subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)

    def read(self, topic: str) -> list[tuple[Any, Any]]:
        """The committed records of a topic."""

        async def read() -> Columns:
            partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
            batches: list[Columns] = []
            async with Consumer(self.address, isolation_level="read_committed") as consumer:
                ends = await consumer.end_offsets(partitions)
                consumer.assign(partitions)
                consumer.seek_to_beginning(partitions)
                while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
                    batches += (await consumer.poll(timeout_ms=500)).values()
            return concat(batches) if batches else Columns([], [], [])

        columns = asyncio.run(read())
        return [
            (json.loads(key or b""), None if value is None else json.loads(value))
            for key, value in zip(columns.keys, columns.values, strict=True)
        ]


def of_records(rows: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Those that do not come of the records that close windows."""
    return [(key, value) for key, value in rows if "end" not in str(key)]


@pytest.fixture(scope="module")
def done(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two processes, each killed once while it works; then all is done."""
    run = Run(kafka, tmp_path_factory.mktemp("state"))
    try:
        run.send()
        run.start("first")
        run.start("second")
        for instance in ("first", "second"):
            before = {name: len(run.read(name)) for name in TOPOLOGIES}
            run.send()
            until(lambda before=before: run.went_on(before), "no output")
            run.send()
            run.kill(instance)
            run.start(instance)
        run.send()
        run.close_windows()
        run.finish()
        yield run
    finally:
        for worker in run.workers.values():
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_result_is_there_exactly_once(done: Run, name: str) -> None:
    topology, found = TOPOLOGIES[name], of_records(done.read(name))
    expected = [(key, value) for key, value in topology.rows(done.sent)]
    if topology.is_table:
        rows = {json.dumps(key): value for key, value in found}
        assert rows == {json.dumps(key): value for key, value in expected}
    else:
        assert Counter(map(json.dumps, found)) == Counter(map(json.dumps, expected))
