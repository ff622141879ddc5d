"""A cluster of three brokers beside Apache Kafka's: failovers and replicated writes.

    make bench-cluster KIT=DIR LAB=DIR [ARGS='--cases kill9,stop --produce p1k-128k --kafka 4']
    python bench/cluster.py --kit DIR --lab DIR --ours             ours alone
    python bench/cluster.py --kit DIR --lab DIR --one-and-three    one broker, and three

The kit is a folder outside this project: `cluster.sh` starts three brokers of Apache Kafka (4:
KRaft, 39: with ZooKeeper), `bench_cluster.py` measures a failover and looks for lost records,
`rkbench` in LAB/bin is the client on librdkafka. Our cluster has a ZooKeeper of its own. CPU is the
kernel's, of the three brokers together, and memory that of the largest.

Failovers are those of a producer with acks=all at 200 records a second over 12 partitions with
three replicas: the longest time without an acknowledgement, of partitions that the broker led and
of others, as [median, greatest]. Writes go to 6 partitions. Figures of one run compare; others do
not.

`python bench/cluster.py startone DIR PORT I` starts broker I again, as the kit wants it. Ours
have watchdogs, so one that is paused for long is dead by the end of the pause: `kit` runs the kit's
program with a SIGCONT that starts a dead broker again.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.broker import START_SECONDS_MAX, end_ours, free_port, start_ours, wait_for_port
from kafkalite.clients.sync import Admin
from kafkalite.embedded_zookeeper import ZooKeeper

BROKERS: Final = (0, 1, 2)
CASES: Final = ("kill9", "controller", "stop", "pause")
PRODUCE: Final = {  # name -> records, bytes of a record, bytes of a batch
    "p100-128k": (2_000_000, 100, 131_072),
    "p1k-128k": (600_000, 1_024, 131_072),
    "p100-2k": (150_000, 100, 2_048),
    "p1k-2k": (40_000, 1_024, 2_048),
}
UNREPLICATED: Final = ("p100-128k", "p1k-128k", "p100-2k")
LATENCY: Final = (500, 10, "all", 1_024)  # records a second, seconds, acks, bytes
SETTINGS: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}
ZOOKEEPER_AT: Final = 20  # after the first broker's port, as the kit has it
HZ: Final = os.sysconf("SC_CLK_TCK")
SECONDS_MAX: Final = 1_200


@dataclass(frozen=True, slots=True)
class Side:
    """A running cluster: broker I listens at `port` + I, and its process id is in DIR/I/pid."""

    name: str
    directory: Path
    port: int
    start_one: str

    @property
    def bootstrap(self) -> str:
        """For clients."""
        return ",".join(f"127.0.0.1:{self.port + number}" for number in BROKERS)

    def pids(self) -> list[int]:
        """The brokers' processes now."""
        return [int((self.directory / str(n) / "pid").read_text()) for n in BROKERS]

    def cpu_seconds(self) -> float:
        """That the brokers have used."""
        stats = (Path(f"/proc/{pid}/stat").read_text() for pid in self.pids())
        return sum(sum(map(int, stat.rsplit(")", 1)[1].split()[11:13])) for stat in stats) / HZ

    def peak_mb(self) -> float:
        """The most memory that one broker has had."""
        status = (Path(f"/proc/{pid}/status").read_text() for pid in self.pids())
        return max(int(text.split("VmHWM:")[1].split()[0]) for text in status) / 1024


# ---- our cluster -------------------------------------------------------------------------------


def start_one(directory: Path, port: int, number: int) -> int:
    """Starts our broker in the background; its process id, which is also in DIR/I/pid."""
    folder = directory / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "kafkalite.cli", "server", "start"]
    command += ["--data-dir", str(folder / "data"), "--listen", f"127.0.0.1:{port + number}"]
    command += ["--broker-id", str(number), "--zookeeper", f"127.0.0.1:{port + ZOOKEEPER_AT}"]
    command += ["--watchdog"]
    for name, value in SETTINGS.items():
        command += ["--override", f"{name}={value}"]
    with open(folder / "log", "ab") as log:
        broker = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (folder / "pid").write_text(str(broker.pid))
    return broker.pid


@contextmanager
def our_cluster(scratch: Path) -> Iterator[Side]:
    """Our three brokers, and their ZooKeeper."""
    directory, port = scratch / "kafkalite", free_port()
    this = [sys.executable, str(Path(__file__).resolve()), "startone", str(directory), str(port)]
    side = Side("kafkalite", directory, port, f"{shlex.join(this)} {{i}}")
    with ZooKeeper(directory / "zookeeper", port=port + ZOOKEEPER_AT):
        try:
            for number in BROKERS:  # by others, so that none is a child of this process
                subprocess.run([*this, str(number)], check=True)
            for number in BROKERS:
                wait_for_port(port + number)
            _wait_for_all(side)
            yield side
        finally:
            for pid in side.pids():
                _end(pid)


def _wait_for_all(side: Side) -> None:
    """Until the brokers know each other: before, a topic has no room for its replicas."""
    until = time.monotonic() + START_SECONDS_MAX
    with Admin(side.bootstrap) as admin:
        while len(admin.describe_cluster().nodes) < len(BROKERS):
            if time.monotonic() > until:
                raise SystemExit(f"{side.name}: not all brokers have come")
            time.sleep(0.02)


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            os.kill(pid, 0)
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# ---- Kafka's -----------------------------------------------------------------------------------


@contextmanager
def kafka_cluster(kit: Path, lab: Path, version: str, scratch: Path) -> Iterator[Side]:
    """Three brokers of Apache Kafka."""
    name, port = f"kafka-{version}", free_port()
    directory = scratch / name
    script = ["env", f"LAB={lab}", str(kit / "cluster.sh")]
    where = [str(directory), str(port)]
    try:
        subprocess.run([*script, "-v", version, "start", *where], check=True)
        yield Side(name, directory, port, f"{shlex.join([*script, 'startone', *where])} {{i}}")
    finally:
        subprocess.run([*script, "kill9", *where], check=True)


# ---- what is measured --------------------------------------------------------------------------


def failovers(side: Side, kit: Path, cases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What a producer notices of each case."""
    command = [sys.executable, str(Path(__file__).resolve()), "kit", str(kit / "bench_cluster.py")]
    command += ["--name", side.name]
    command += ["--bootstrap", side.bootstrap, "--dir", str(side.directory), "--rate", "200"]
    command += ["--start-one", side.start_one, "--cases", ",".join(cases)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=True
    )
    yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def run_kit(program: str, arguments: Sequence[str]) -> None:
    """Runs the kit's program as it is, but where it continues a broker that its watchdog killed:
    that broker starts again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--start-one")
    known, _ = parser.parse_known_args(arguments)
    send = os.kill

    def kill(pid: int, number: int) -> None:
        try:
            send(pid, number)
        except ProcessLookupError:
            if number != signal.SIGCONT:
                raise
            (dead,) = (n for n in BROKERS if (known.dir / str(n) / "pid").read_text() == str(pid))
            subprocess.run(known.start_one.format(i=dead), shell=True, check=True)

    os.kill = kill
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


def client(lab: Path, *arguments: object, replicas: int = 3) -> dict[str, Any]:
    """What the kit's client measured."""
    command = [str(lab / "bin" / "rkbench"), *map(str, arguments)]
    environment = os.environ | {"RF": str(replicas)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found.get("errors"):
        raise SystemExit(f"{shlex.join(command)}: {found}")
    return found


def writes(side: Side, lab: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Records under acks=all, and what they cost the three brokers together."""
    client(lab, "create", side.bootstrap, "warm", 6, "min.insync.replicas=2")
    client(lab, "produce", side.bootstrap, "warm", 6, 300_000, 1_024, "all", "none", 131_072)
    for name in names:
        count, size, batch = PRODUCE[name]
        client(lab, "create", side.bootstrap, name, 6, "min.insync.replicas=2")
        before = side.cpu_seconds()
        found = client(lab, "produce", side.bootstrap, name, 6, count, size, "all", "none", batch)
        cpu = side.cpu_seconds() - before
        yield {
            "name": side.name, "case": name, "rec_s": found["rec_s"], "mb_s": found["mb_s"],
            "cpu_s_per_GB": round(cpu / (count * size / 1e9), 2),
        }  # fmt: skip
    client(lab, "create", side.bootstrap, "latency", 1, "min.insync.replicas=2")
    before = side.cpu_seconds()
    found = client(lab, "latency", side.bootstrap, "latency", *LATENCY)
    yield {
        "name": side.name, "case": "latency", "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"], "cpu_s": round(side.cpu_seconds() - before, 2),
        "peak_mb_of_a_broker": round(side.peak_mb()),
    }  # fmt: skip


def unreplicated(name: str, bootstrap: str, lab: Path) -> Iterator[dict[str, Any]]:
    """Records of partitions with one replica each, on however many brokers there are."""
    for case in UNREPLICATED:
        count, size, batch = PRODUCE[case]
        topic, all_ = f"one-{case}", (count, size, "all", "none", batch)
        client(lab, "create", bootstrap, topic, 6, replicas=1)
        client(lab, "produce", bootstrap, topic, 6, *all_)
        found = client(lab, "produce", bootstrap, topic, 6, *all_)
        yield {"name": name, "case": topic, "rec_s": found["rec_s"], "mb_s": found["mb_s"]}


def measure_one_and_three(lab: Path, scratch: Path) -> None:
    """One broker of ours, then three: a line of JSON a case."""
    alone, port = scratch / "alone", free_port()
    start_ours(alone, port)
    try:
        wait_for_port(port)
        for each in unreplicated("one broker", f"127.0.0.1:{port}", lab):
            print(json.dumps(each), flush=True)
    finally:
        end_ours(alone, signal.SIGTERM)
    with our_cluster(scratch) as side:
        for each in unreplicated("three brokers", side.bootstrap, lab):
            print(json.dumps(each), flush=True)


def measure(side: Side, args: argparse.Namespace) -> None:
    """Prints one line of JSON a case."""
    if args.produce:
        for each in writes(side, args.lab, args.produce):
            print(json.dumps(each), flush=True)
    if args.cases:
        for each in failovers(side, args.kit, args.cases):
            print(json.dumps(each), flush=True)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    """Both clusters one after the other, on fresh folders."""
    if sys.argv[1:2] == ["startone"]:
        start_one(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        return
    if sys.argv[1:2] == ["kit"]:
        run_kit(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--cases", type=_names, default=list(CASES))
    parser.add_argument("--produce", type=_names, default=list(PRODUCE))
    parser.add_argument("--kafka", default="4", help="versions: 4, 39, or both with a comma")
    parser.add_argument("--ours", action="store_true", help="ours alone")
    parser.add_argument(
        "--one-and-three", action="store_true", help="one broker of ours beside three, no replicas"
    )
    args = parser.parse_args()
    args.kit, args.lab = args.kit.resolve(), args.lab.resolve()
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as scratch:
        if args.one_and_three:
            measure_one_and_three(args.lab, Path(scratch))
            return
        with our_cluster(Path(scratch)) as side:
            measure(side, args)
        for version in [] if args.ours else _names(args.kafka):
            with kafka_cluster(args.kit, args.lab, version, Path(scratch)) as side:
                measure(side, args)


if __name__ == "__main__":
    main()
