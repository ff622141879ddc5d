"""What is left of `kafkalite-spark load` when a signal ends it: no JVM, and no row twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.load import Layout
from kafkalite.warehouse.tables import TopicLoad

pytestmark = [pytest.mark.slow, pytest.mark.deep, pytest.mark.timeout(300)]


def start(address: str, warehouse: Path) -> subprocess.Popen[str]:
    """A load with Spark that goes on until a signal."""
    command = [sys.executable, "-m", "kafkalite.cli.spark", "load", "words", "-b", address]
    command += ["--value", "words=string", "--warehouse", str(warehouse), "--continuous", "10s"]
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


def test_the_jvm_ends_with_the_command(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "log") as broker:
        address = broker.bootstrap_servers
        with Admin(address) as admin:
            admin.create_topics([NewTopic("words", 2)])
        with Producer(address) as producer:
            for number in range(1_000):
                producer.send("words", b"%d" % number)
        ends = {signal.SIGKILL: -9, signal.SIGTERM: 0}
        running = {number: start(address, tmp_path / number.name) for number in ends}
        for number, process in running.items():
            assert process.stdout is not None
            assert "is up after" in process.stdout.readline()  # its tasks are to be done now
            below = psutil.Process(process.pid).children(recursive=True)
            assert any("java" in each.name() for each in below)
            process.send_signal(number)
            process.communicate(timeout=60)
            _, alive = psutil.wait_procs(below, 60)
            for each in alive:
                each.kill()
            assert (process.returncode, alive) == (ends[number], [])
        for number in ends:
            again = TopicLoad("words", value_format="string")
            again.into(tmp_path / number.name, address, LocalEngine(), Layout()).run()
            rows = ds.dataset(tmp_path / number.name / "words", format="parquet").to_table()
            assert sorted(map(int, rows["value"].to_pylist())) == list(range(1_000))
