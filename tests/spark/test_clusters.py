"""The source and the sink where Spark is not in the program: a standalone cluster, Spark Connect.

The cluster has a master and two workers, each with an executor of its own; a program comes with
`spark-submit`. A Connect server takes a program that has no JVM.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer

pytestmark = [pytest.mark.slow, pytest.mark.deep, pytest.mark.timeout(600)]

BIN = Path(pyspark.__file__).parent / "bin"
ROOT = Path(__file__).parents[2]
RECORDS = 200
START_SECONDS_MAX = 120
APP = """
import os, sys

import pyarrow as pa

import kafkalite.spark

servers, topic, copies, checkpoint, remote = sys.argv[1:]
spark = kafkalite.spark.session("app", remote=remote or None)


def workers(batches):
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()]})


options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "value.format": "string"}
table = spark.read.format("kafkalite").options(**options).load()
print("sum", table.selectExpr("sum(cast(value as int))").first()[0])
daemons = {row.daemon for row in table.mapInArrow(workers, "daemon long").collect()}
stream = spark.readStream.format("kafkalite").options(**options, startingOffsets="earliest").load()
writer = stream.select("key", "value").writeStream.format("kafkalite")
writer = writer.options(topic=copies, deliveryGuarantee="exactly-once")
writer = writer.options(**{"kafka.bootstrap.servers": servers, "checkpointLocation": checkpoint})
writer.trigger(availableNow=True).start().awaitTermination()
print("executors", len(daemons), "zone", spark.conf.get("spark.sql.session.timeZone"))
spark.stop()
"""


def environment() -> dict[str, str]:
    """Of a machine of the cluster: its Python has kafkalite."""
    found = {n: v for n, v in os.environ.items() if n not in ("PYSPARK_PYTHON", "SPARK_REMOTE")}
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    found |= {"SPARK_DAEMON_MEMORY": "600m", "SPARK_DAEMON_JAVA_OPTS": quick}
    return found | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def running(folder: Path, name: str, *command: str, **variables: str) -> Iterator[None]:
    """A process of Spark; its log is NAME.log."""
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment() | variables, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def until(is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The master of a cluster with two workers of a core each."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    address, there = f"spark://127.0.0.1:{port}", ["--host", "127.0.0.1", "--webui-port", "0"]
    deploy, log = "org.apache.spark.deploy", folder / "master.log"
    spark_class = str(BIN / "spark-class")
    one, two = (
        running(folder, name, spark_class, f"{deploy}.worker.Worker", *there, "--cores", "1",
                "--memory", "600m", "--work-dir", str(folder / name), address)
        for name in ("one", "two")
    )  # fmt: skip
    master = [spark_class, f"{deploy}.master.Master", *there, "--port", str(port)]
    with running(folder, "master", *master), one, two:
        until(lambda: log.read_text().count("Registering worker") == 2, log)
        yield address


@pytest.fixture
def arguments(bootstrap: str, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """What the program is given: a topic with records, one for its copies, a checkpoint."""
    (tmp_path / "app.py").write_text(APP)
    topic = request.node.name.replace("test_", "")
    asyncio.run(send(bootstrap, topic))
    return [bootstrap, topic, f"{topic}-copies", str(tmp_path / "checkpoint")]


async def send(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 2), NewTopic(f"{topic}-copies", 1)])
    async with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            await producer.send(topic, str(number).encode(), partition=number % 2)
        await producer.flush()


def printed(folder: Path, *command: str) -> str:
    ran = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    return ran.stdout


def copied(arguments: list[str]) -> list[int]:
    found = asyncio.run(read_topic(arguments[0], arguments[2], 1))
    return sorted(int(value or b"") for value in found.values)


def test_a_cluster_runs_a_program_of_spark_submit(
    cluster: str, arguments: list[str], tmp_path: Path
) -> None:
    """Both executors read and write, with the Python that `spark.pyspark.python` names."""
    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.executor.memory": "500m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": "2",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = [str(BIN / "spark-submit"), "--master", cluster, *conf]
    shown = printed(tmp_path, *submit, "app.py", *arguments, "")
    assert shown.splitlines() == [f"sum {sum(range(RECORDS))}", "executors 2 zone UTC"]
    assert copied(arguments) == list(range(RECORDS))


def test_a_connect_server_runs_a_program_without_a_jvm(
    arguments: list[str], tmp_path: Path
) -> None:
    port = free_port()
    server = [
        str(BIN / "spark-submit"), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.connect.grpc.binding.port={port}",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    log = tmp_path / "server.log"
    with running(tmp_path, "server", *server, PYSPARK_PYTHON=sys.executable):
        until(lambda: "Spark Connect server started" in log.read_text(), log)
        shown = printed(tmp_path, sys.executable, "app.py", *arguments, f"sc://127.0.0.1:{port}")
    assert shown.splitlines() == [f"sum {sum(range(RECORDS))}", "executors 1 zone UTC"]
    assert copied(arguments) == list(range(RECORDS))
