"""`kafkalite cluster` with three real brokers and a ZooKeeper, and the command that runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from kafkalite import EmbeddedCluster
from kafkalite.clients.admin.client import ConfigResource, ConfigSource, NewTopic, ResourceType
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import TopicPartition

pytestmark = pytest.mark.slow

Run = Callable[..., Any]
COMMAND = [sys.executable, "-m", "kafkalite.cli", "cluster", "start"]
SECONDS_MAX = 60
QUICK = {"zookeeper.session.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(
        tmp_path_factory.mktemp("cluster"), brokers=4, racks=["a", "b", "a", "b"], overrides=QUICK
    ) as running:
        yield running


@pytest.fixture
def run(kafkalite: Run, cluster: EmbeddedCluster) -> Run:
    """`run("status")`: a command of `kafkalite cluster`, with this cluster."""

    def run(*words: str, **more: Any) -> Any:
        servers = cluster.bootstrap_servers
        return kafkalite("cluster", *words, KAFKALITE_BOOTSTRAP_SERVERS=servers, **more)

    return run


@pytest.fixture
def make(cluster: EmbeddedCluster) -> Callable[..., None]:
    """Makes a topic with replicas on these brokers, and a record in each partition."""

    def make(topic: str, *replicas: list[int], min_isr: int = 2) -> None:
        configs = {"min.insync.replicas": str(min_isr)}
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, replica_assignment=replicas, configs=configs)])
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(len(replicas)):
                producer.send(topic, b"x" * 1000, partition=number).result()

    return make


def replicas_of(cluster: EmbeddedCluster, topic: str) -> list[tuple[int, ...]]:
    with Admin(cluster.bootstrap_servers) as admin:
        return [p.replicas for p in admin.describe_topics([topic])[0].partitions]


def leaders_of(cluster: EmbeddedCluster, topic: str) -> list[int]:
    with Admin(cluster.bootstrap_servers) as admin:
        return [p.leader_id for p in admin.describe_topics([topic])[0].partitions]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


def test_a_move_with_a_throttle_leaves_no_setting_behind(
    cluster: EmbeddedCluster, run: Run, make: Callable[..., None]
) -> None:
    make("moved", [1, 2], [2, 1])
    planned = run("move", "moved", "--to", "3,4", "--dry-run", "--json").json
    assert not planned["executed"]
    assert [p["to"] for p in planned["partitions"]] == [[3, 4], [4, 3]]
    assert planned["replicas_to_copy"] == 4
    assert planned["bytes_to_copy"] > 4_000
    assert replicas_of(cluster, "moved") == [(1, 2), (2, 1)]
    ran = run("move", "moved", "--to", "3,4", "--throttle", "50M", "--wait")
    assert ran.err.splitlines()[-1] == "2 of 2 partitions moved"
    assert replicas_of(cluster, "moved") == [(3, 4), (4, 3)]
    with Admin(cluster.bootstrap_servers) as admin:
        broker = ConfigResource(ResourceType.BROKER, "1")
        topic = ConfigResource(ResourceType.TOPIC, "moved")
        described = admin.describe_configs([broker, topic])
    own = {ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER}
    for entries in described.values():
        assert not [e.name for e in entries.values() if "throttled" in e.name and e.source in own]


def test_more_replicas_then_fewer(
    cluster: EmbeddedCluster, run: Run, make: Callable[..., None]
) -> None:
    make("copied", [1])
    run("move", "copied", "--to", "1,2,3", "--replication-factor", "3", "--wait")
    assert replicas_of(cluster, "copied") == [(1, 2, 3)]
    run("move", "copied:0", "--to", "2", "--replication-factor", "1", "--wait")
    assert replicas_of(cluster, "copied") == [(2,)]


def test_a_drained_broker_holds_nothing_and_a_rebalance_uses_it_again(
    cluster: EmbeddedCluster, run: Run, make: Callable[..., None]
) -> None:
    make("spread", [1, 2], [2, 3], [3, 4], [4, 1])
    run("drain", "4", "--wait")
    drained = {b["id"]: b for b in run("status", "--json").json["brokers"]}
    assert (drained[4]["replicas"], drained[4]["leaders"]) == (0, 0)
    assert all(len(replicas) == 2 for replicas in replicas_of(cluster, "spread"))
    run("rebalance", "--wait")
    brokers = run("status", "--json").json["brokers"]
    held = [b["replicas"] for b in brokers]
    assert max(held) - min(held) <= 1, brokers
    assert all(b["leaders"] == b["preferred_leaders"] for b in brokers)
    for replicas in replicas_of(cluster, "spread"):
        assert len({broker % 2 for broker in replicas}) == 2, "one in each rack"


def test_a_broker_that_is_down_is_shown_and_drained(
    cluster: EmbeddedCluster, kafkalite: Run, run: Run, make: Callable[..., None]
) -> None:
    make("damaged", [1, 2, 3], [2, 3, 1])
    make("alone", [2])
    with Admin(cluster.bootstrap_servers) as admin:
        topic = ConfigResource(ResourceType.TOPIC, "damaged")
        admin.alter_configs(topic, {"min.insync.replicas": "3"})
    cluster.kill(2)
    until(lambda: leaders_of(cluster, "alone") == [-1])
    told = run("status", "--json", code=1).json
    troubles = {f"{t['topic']}-{t['partition']}": t for t in told["troubles"]}
    assert troubles["alone-0"]["troubles"] == ["offline"]
    assert troubles["damaged-0"]["troubles"] == ["under-replicated", "below-min-isr"]
    assert (troubles["damaged-0"]["isr"], troubles["damaged-0"]["min_isr"]) == ([1, 3], 3)
    lines = run("status", code=1).lines
    assert ["2", "-", "-"] in [line.split()[:3] for line in lines]
    assert any(line.startswith("damaged-0 ") for line in lines)
    servers = {"KAFKALITE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    shown = kafkalite("topics", "describe", "damaged", **servers).lines
    assert shown[0].endswith(", 2 under-replicated")
    assert [line.split()[-1] for line in shown[-2:]] == ["under-replicated"] * 2
    refusal = run("rebalance", code=1).err
    assert re.search(r"has a replica on broker 2, which is down: start .*, or drain it", refusal)
    run("move", "damaged", "--to", "1,3,4", "--wait")
    assert {*map(frozenset, replicas_of(cluster, "damaged"))} == {frozenset({1, 3, 4})}
    cluster.start(2)
    assert run("status", "--wait", "--json").json["troubles"] == []


def test_a_broker_that_lost_its_disk_copies_everything_again(
    cluster: EmbeddedCluster, run: Run, make: Callable[..., None]
) -> None:
    make("kept", [3, 1], [1, 3], min_isr=1)  # so that one replica alone tells where it ends
    cluster.stop(3)
    rmtree(cluster.data_dir / "broker-3")
    cluster.start(3)
    assert run("status", "--wait", "--json").json["troubles"] == []
    assert any((cluster.data_dir / "broker-3" / "kept-0").glob("*.log"))
    cluster.kill(1)  # what it had is on 3 alone now
    until(lambda: leaders_of(cluster, "kept") == [3, 3])
    with Admin(cluster.bootstrap_servers) as admin:
        partitions = [TopicPartition("kept", 0), TopicPartition("kept", 1)]
        assert set(admin.end_offsets(partitions).values()) == {1}
    cluster.start(1)
    run("status", "--wait")


def test_a_move_that_cannot_end_is_cancelled(
    cluster: EmbeddedCluster, run: Run, make: Callable[..., None]
) -> None:
    make("stuck", [2])
    cluster.kill(2)  # the only one to copy from
    until(lambda: leaders_of(cluster, "stuck") == [-1])
    run("move", "stuck", "--to", "3")
    (move,) = run("status", "--json", code=1).json["moves"]
    assert (move["adding"], move["removing"]) == ([3], [2])
    assert sum(line.startswith("stuck-0 ") for line in run("status", code=1).lines) == 2
    assert "stuck-0 is moving, wait for it or cancel" in run("rebalance", code=1).err
    assert run("move", "stuck", "--cancel", code=0).lines == ["1 move cancelled"]
    assert replicas_of(cluster, "stuck") == [(2,)]
    cluster.start(2)
    until(lambda: leaders_of(cluster, "stuck") == [2])


# ---- start ---------------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`kafkalite cluster start` with two brokers, which is up."""
    log = (tmp_path / "log").open("w")
    quick = [f"--override={name}={value}" for name, value in QUICK.items()]
    arguments = ["--data-dir", str(tmp_path / "data"), "--brokers", "2", "--json", *quick]
    with log, subprocess.Popen(
        [*COMMAND, "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE, stderr=log, text=True,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_dead_brokers_start_again_and_all_end_with_the_command(
    started: subprocess.Popen[str], kafkalite: Run, tmp_path: Path
) -> None:
    told = ready(started)
    first, second = told["brokers"]
    os.kill(second["pid"], signal.SIGKILL)
    log = tmp_path / "log"
    again = "broker 2 was killed by SIGKILL, it starts again in 0.5 s"
    until(lambda: again in log.read_text())
    servers = {"KAFKALITE_BOOTSTRAP_SERVERS": second["address"]}
    until(lambda: len(kafkalite("cluster", "status", "--json", **servers).json["brokers"]) == 2)
    second_start = [*COMMAND, "--data-dir", str(tmp_path / "data")]
    refused = subprocess.run(second_start, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"in use by process {started.pid}" in refused.stderr
    started.send_signal(signal.SIGTERM)
    assert started.wait(SECONDS_MAX) == 0
    assert re.search(r"^SIGTERM, stopped in \d+\.\d\d s$", log.read_text(), re.MULTILINE)
    stops = re.findall(
        r"^broker (\d): .* the end of stdin, stopped in .* clean", log.read_text(), re.M
    )
    assert stops == ["1", "2"], "one after the other"
    assert not is_alive(first["pid"])


def test_a_broker_that_hangs_is_killed_and_starts_again(
    started: subprocess.Popen[str], kafkalite: Run, tmp_path: Path
) -> None:
    first, _second = ready(started)["brokers"]
    os.kill(first["pid"], signal.SIGSTOP)
    log = tmp_path / "log"
    until(lambda: "broker 1 was killed by SIGKILL, it starts again in 0.5 s" in log.read_text())
    assert "broker 1: " in log.read_text()
    assert "killed: its event loop was silent for 2 s (--watchdog)" in log.read_text()
    servers = {"KAFKALITE_BOOTSTRAP_SERVERS": first["address"]}
    until(lambda: len(kafkalite("cluster", "status", "--json", **servers).json["brokers"]) == 2)


SILENT_ZOOKEEPER = """
import sys
from types import SimpleNamespace
from kafkalite.cli import main
from kafkalite.embedded_cluster import EmbeddedCluster
silent = SimpleNamespace(address=sys.argv.pop(1), close=lambda: None)
EmbeddedCluster._new_zookeeper = lambda self: silent
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_start(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, (tmp_path / "log").open("w") as log:
        zookeeper = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", SILENT_ZOOKEEPER, zookeeper, "cluster", "start"]
        command += ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
        patience = "--override=zookeeper.connection.timeout.ms=600000"
        with subprocess.Popen([*command, patience], stderr=log, text=True) as process:
            try:
                brokers = {f"broker {n}: " for n in (1, 2, 3)}
                until(lambda: brokers <= set(re.findall(r"^broker \d: ", _logged(tmp_path), re.M)))
                process.send_signal(number)
                assert process.wait(SECONDS_MAX / 2) == 0
            finally:
                process.kill()
    assert f"{number.name} before the cluster was ready, it stops\n" in _logged(tmp_path)
    stops = re.findall(r": the end of stdin before the broker was ready", _logged(tmp_path))
    assert len(stops) == 3


def _logged(folder: Path) -> str:
    return (folder / "log").read_text()


def test_no_process_outlives_a_killed_command(
    started: subprocess.Popen[str], tmp_path: Path
) -> None:
    told = ready(started)
    started.kill()
    started.wait()
    until(lambda: not any(is_alive(broker["pid"]) for broker in told["brokers"]))
    assert (
        str(tmp_path / "data")
        not in subprocess.run(
            ["ps", "-eo", "args"], capture_output=True, text=True, check=True
        ).stdout
    )
