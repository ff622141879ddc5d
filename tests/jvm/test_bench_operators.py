"""The benchmark's program for Kafka Streams runs, and gives as many results as our topologies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.streams import sides
from bench.streams.inputs import create, fill
from bench.streams.market import INPUTS
from kafkalite import EmbeddedBroker

RECORDS = 2_000


@pytest.mark.slow
@pytest.mark.deep
def test_every_record_of_a_join_is_read_and_has_its_partner(
    kafka_jars: Path, tmp_path: Path
) -> None:
    name, topics = "stream-join", ("orders", "payments")
    jars, classes = f"{kafka_jars}/*", str(tmp_path / "classes")
    source = sides.OPERATORS_JAVA
    subprocess.run(["javac", "-cp", jars, "-d", classes, str(source)], check=True)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        address = broker.bootstrap_servers
        inputs = {topic: INPUTS[topic](RECORDS) for topic in topics}
        for topic, filled in inputs.items():
            fill(address, topic, filled)
        create(address, "out")
        n = sum(filled.records for filled in inputs.values())
        given = {"boot": address, "in": ",".join(topics), "out": "out", "app": name, "topo": name}
        given |= {"n": str(n), "dir": str(tmp_path / "state")}
        command = ["java", "-cp", f"{classes}:{jars}", source.stem]
        command += [f"{key}={value}" for key, value in given.items()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
    figures = sides.parsed(done.stdout)
    assert figures["processed"] == n
    assert figures["out"] == RECORDS
