"""Our broker beside Apache Kafka's: the same client drives both in turn, and ratios are printed.

    make bench-broker KIT=DIR LAB=DIR [ARGS='--cases produce --scale 0.2']
    python bench/broker.py --kit DIR --lab DIR        both brokers, case by case
    python bench/broker.py --ours                     ours alone, with a client of this file

The kit is a folder outside this project: `broker.sh` (starts Apache Kafka), `bench_broker.py` (runs
one case against one broker and prints JSON) and `rkbench.c` (the client, on librdkafka); `lab` is
where its `setup.sh kafka client` put the jars and the client. CPU and memory are the kernel's, of
the broker's process alone. Our modules are imported where they are needed: what `start` takes is
within the time to the first record.

Ratios are ours ÷ Kafka's, from neighbouring minutes of one machine; nothing else is comparable.
Of several rounds each side's best counts. `python bench/broker.py start|stop|kill DIR PORT` runs
our broker in the background, as the kit wants it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

PRODUCE: Final = (
    "p100-a1-none", "p100-aall-none", "p100-aall-lz4", "p1k-a1-none", "p1k-aall-none",
    "p1k-aall-lz4", "p100-aall-none-16k", "p1k-aall-none-16k", "p100-aall-none-2k",
    "p100-idem-none",
)  # fmt: skip
CONSUME: Final = tuple("c" + name[1:] for name in PRODUCE if "a1" not in name and "ide" not in name)
Goal = tuple[float | None, bool]  # the ratio to reach; True: at least, False: at most
GOALS: Final[dict[str, dict[str, Goal]]] = {  # case -> figure -> goal
    "produce": {"rec_s": (1.2, True), "broker_cpu_s_per_GB": (0.5, False)},
    "consume": {"rec_s": (1.0, True), "broker_cpu_s_per_GB": (1.0, False)},
    "latency": {"p50_ms": (0.7, False), "p99_ms": (0.7, False), "broker_cpu_ms": (0.3, False)},
    "conns": {"rss_growth_mb": (None, False), "open_cpu_s": (1.0, False)},
    "startup": {"first_produce_s": (0.2, False), "rss_mb": (0.2, False)},
    "memory": {"rss_mb": (0.125, False)},
}
CPU_GOALS: Final = {"p100-a": 0.4, "p100-idem": 0.4, "p1k-a": 0.6}  # at 128 KB batches
CASES: Final = ("startup", "produce", "consume", "latency", "conns", "memory")
WARM: Final = "p1k-aall-none-1m"  # not measured: a JVM needs some load to be at its best
HZ: Final = os.sysconf("SC_CLK_TCK")
START_SECONDS_MAX: Final = 60


# ---- brokers -----------------------------------------------------------------------------------


def start_line(directory: Path, port: int) -> str:
    """The shell's command that starts our broker in the background; DIRECTORY/pid is its process.

    Whatever the shell says, it keeps its compiled modules, as an installed package has them:
    compiling them anew costs a start 0.16 s.
    """
    command = [sys.executable, "-m", "kafkalite.cli", "server", "start"]
    command += ["--data-dir", str(directory / "data"), "--listen", f"127.0.0.1:{port}"]
    command += ["--override", "group.initial.rebalance.delay.ms=0"]
    log, pid = shlex.quote(str(directory / "log")), shlex.quote(str(directory / "pid"))
    start = f"env -u PYTHONDONTWRITEBYTECODE setsid {shlex.join(command)}"
    make = f"mkdir -p {shlex.quote(str(directory))}"
    return f"{make} && {{ {start} </dev/null >>{log} 2>&1 & echo $! >{pid}; }}"


def start_ours(directory: Path, port: int) -> int:
    """Starts our broker in the background; its process id."""
    subprocess.run(["sh", "-c", start_line(directory, port)], check=True)
    return int((directory / "pid").read_text())


def end_ours(directory: Path, number: signal.Signals) -> None:
    """Sends the broker of DIRECTORY a signal and waits for its end."""
    pid_file = directory / "pid"
    pid = int(pid_file.read_text())
    os.kill(pid, number)
    while _is_there(pid):
        time.sleep(0.01)
    pid_file.unlink()


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def free_port() -> int:
    """A port that nobody listens on, and neither on the one after it: Kafka takes two."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two brokers, and how the kit is to handle it."""

    name: str
    directory: Path
    port: int
    start: str
    stop: str
    kill: str

    def run(self, kit: Path, lab: Path, *more: str) -> list[dict[str, Any]]:
        """Runs cases of the kit against it; one dict a case."""
        command = [sys.executable, str(kit / "bench_broker.py"), "--name", self.name]
        command += ["--bootstrap", f"127.0.0.1:{self.port}"]
        command += ["--pid-file", str(self.directory / "pid")]
        command += ["--start-cmd", self.start, "--stop-cmd", self.stop, "--kill-cmd", self.kill]
        environment = os.environ | {"LAB": str(lab)}
        done = subprocess.run(
            [*command, *more], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: {done.stderr.strip()[-400:]}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]

    def up(self) -> None:
        """Starts it and waits until it accepts."""
        subprocess.run(shlex.split(self.start), check=True, stdout=subprocess.DEVNULL)
        wait_for_port(self.port)

    def down(self) -> None:
        """Stops it, if it runs."""
        if (self.directory / "pid").exists():
            subprocess.run(shlex.split(self.stop), check=True)


def wait_for_port(port: int) -> None:
    """Waits until somebody listens."""
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise SystemExit(f"nobody listens on port {port} after {START_SECONDS_MAX} s")


def our_side(scratch: Path) -> Side:
    """Our broker, with a fresh folder and port."""
    directory, port = scratch / "kafkalite", free_port()
    this = f"{sys.executable} {Path(__file__).resolve()}"
    start = shlex.join(["sh", "-c", start_line(directory, port)])
    end = (f"{this} {word} {directory} {port}" for word in ("stop", "kill"))
    return Side("kafkalite", directory, port, start, *end)


def kafka_side(kit: Path, lab: Path, version: str, scratch: Path) -> Side:
    """Kafka's, likewise."""
    name, port = f"kafka-{version}", free_port()
    script = f"env LAB={lab} {kit / 'broker.sh'} -v {version}"
    words = (f"{script} {word} {scratch / name} {port}" for word in ("startbg", "stop", "kill9"))
    return Side(name, scratch / name, port, *words)


# ---- both in turn ------------------------------------------------------------------------------


@dataclass(slots=True)
class Figures:
    """The best figures of each case: case -> figure -> (ours, Kafka's)."""

    found: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)

    def add(self, group: str, place: int, result: dict[str, Any]) -> None:
        """Takes in one result of one side."""
        if result.get("failed") or result.get("errors"):
            raise SystemExit(f"{result['broker']}, {result['case']}: {result}")
        if "n" in result and result.get("broker_cpu_s"):  # latency: by record
            result["broker_cpu_ms"] = result["broker_cpu_s"] / result["n"] * 1e3
        case = self.found.setdefault(f"{group}: {result['case']}", {})
        for name, (_, at_least) in GOALS[group].items():
            value = result.get(name)
            if value is None:
                continue
            pair = case.setdefault(name, [None, None])
            best = max if at_least else min
            known = pair[place]
            pair[place] = value if known is None else best(known, value)

    def table(self) -> Iterator[str]:
        """Lines of a Markdown table."""
        yield "| case | figure | kafkalite | Kafka | ratio | goal |"
        yield "|---|---|---|---|---|---|"
        for case, figures in self.found.items():
            group, _, name = case.partition(": ")
            for figure, (ours, theirs) in figures.items():
                goal, at_least = GOALS[group][figure]
                if figure == "broker_cpu_s_per_GB" and group == "produce" and "k" not in name[-3:]:
                    goal = next((g for n, g in CPU_GOALS.items() if name.startswith(n)), goal)
                ratio = ours / theirs if ours is not None and theirs else None
                wanted = "" if goal is None else f"{'≥' if at_least else '≤'} {goal}"
                cells = (_shown(ours), _shown(theirs), _shown(ratio), wanted)
                yield f"| {name} | {figure} | {' | '.join(cells)} |"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def compare(options: argparse.Namespace) -> None:
    """Both brokers, case by case and round by round."""
    kit, lab = Path(options.kit).resolve(), Path(options.lab).resolve()
    for needed in (kit / "broker.sh", kit / "bench_broker.py", lab / "bin" / "rkbench"):
        if not needed.exists():
            raise SystemExit(f"{needed} is not there: run the kit's setup.sh kafka client")
    scratch = Path(tempfile.mkdtemp(prefix="bench-broker-", dir=options.scratch))
    both = (our_side(scratch), kafka_side(kit, lab, options.kafka, scratch))
    figures = Figures()
    try:
        _compare_all(both, kit, lab, options, figures)
    finally:
        for side in both:
            side.down()
        shutil.rmtree(scratch, ignore_errors=True)
    print("\n".join(figures.table()))


def _compare_all(
    both: tuple[Side, Side],
    kit: Path,
    lab: Path,
    options: argparse.Namespace,
    figures: Figures,
) -> None:
    def run(group: str, *more: str) -> None:
        for place, side in enumerate(both):
            for result in side.run(kit, lab, *more, "--scale", str(options.scale)):
                print(json.dumps(result), file=sys.stderr, flush=True)
                figures.add(group, place, result)

    cases = options.cases.split(",")
    if "startup" in cases:
        run("startup", "--cases", "startup", "--fresh")
    for side in both:
        if not (side.directory / "pid").exists():
            side.up()
        if "produce" in cases or "latency" in cases:
            side.run(kit, lab, "--cases", "produce", "--only", WARM, "--scale", "1")
    names = {"produce": PRODUCE, "consume": CONSUME}
    for number in range(options.rounds):
        for group in ("produce", "consume"):
            for name in names[group] if group in cases else ():
                run(group, "--cases", group, "--only", name)
        if "latency" in cases:
            run("latency", "--cases", "latency", "--lat-secs", str(options.latency_seconds))
        if "conns" in cases and not number:
            run("conns", "--cases", "conns")
    if "memory" in cases:  # after the load above
        for place, side in enumerate(both):
            pid = int((side.directory / "pid").read_text())
            measured = {"case": "after the load", "broker": side.name, "rss_mb": rss_mb(pid)}
            figures.add("memory", place, measured)


# ---- ours alone --------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / HZ


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Client:
    """One connection that sends requests made before, several at a time, and drops the answers."""

    IN_FLIGHT: Final = 5

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(1 << 20))

    def frame(self, request: Any, version: int) -> bytes:
        """A request's bytes; all have correlation id 0."""
        from kafkalite.core.protocol.connection import ClientConnection

        parts = ClientConnection("bench").send(request, version)[1]
        return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]

    def drop_answer(self) -> int:
        """Reads one answer; its size."""
        head = self._buffer[:4]
        self._receive(head)
        (size,) = struct.unpack(">i", head)
        left = size
        while left:
            left -= self._receive_some(self._buffer[: min(left, len(self._buffer))])
        return int(size)

    def ask_all(self, frames: Iterator[bytes]) -> None:
        """Sends all, IN_FLIGHT at a time."""
        open_requests = 0
        for frame in frames:
            self._socket.sendall(frame)
            open_requests += 1
            if open_requests == self.IN_FLIGHT:
                self.drop_answer()
                open_requests -= 1
        for _ in range(open_requests):
            self.drop_answer()

    def _receive(self, into: memoryview) -> None:
        while into:
            into = into[self._receive_some(into) :]

    def _receive_some(self, into: memoryview) -> int:
        count = self._socket.recv_into(into)
        if not count:
            raise SystemExit("the broker hung up")
        return count


def alone(options: argparse.Namespace) -> None:
    """Ours alone: CPU seconds per GB, produced in batches of several sizes and fetched again."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-broker-", dir=options.scratch))
    port = free_port()
    began = time.monotonic()
    pid = start_ours(scratch, port)
    try:
        wait_for_port(port)
        print(f"ready after {time.monotonic() - began:.2f} s, {rss_mb(pid):.0f} MB")
        client = Client(port)
        for batch_bytes, record_bytes in (
            (131_072, 1_000), (131_072, 100), (16_384, 1_000), (16_384, 100), (2_048, 100),
        ):  # fmt: skip
            _produce_and_fetch(client, pid, batch_bytes, record_bytes, options.scale)
        print(f"after the load {rss_mb(pid):.0f} MB")
    finally:
        end_ours(scratch, signal.SIGTERM)
        shutil.rmtree(scratch, ignore_errors=True)


def _produce_frame(client: Client, topic: str, partition: int, batch: bytes) -> bytes:
    from kafkalite.core.protocol.produce import (
        PartitionProduceData,
        ProduceRequest,
        TopicProduceData,
    )

    data = (TopicProduceData(topic, (PartitionProduceData(partition, batch),)),)
    return client.frame(ProduceRequest(None, -1, 30_000, data), 9)


def _fetch_frame(client: Client, topic: str, partition: int, offset: int) -> bytes:
    from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic

    wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = (FetchTopic(topic, partitions=(wanted,)),)
    return client.frame(FetchRequest(max_wait_ms=0, topics=topics), 12)


def _produce_and_fetch(
    client: Client, pid: int, batch_bytes: int, record_bytes: int, scale: float
) -> None:
    from kafkalite.core.protocol.records import encode
    from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
    from kafkalite.core.types import Columns

    topic, records = f"t{batch_bytes}-{record_bytes}", batch_bytes // record_bytes
    creation = CreateTopicsRequest((CreatableTopic(topic, 6, 1, (), ()),))
    client.ask_all(iter([client.frame(creation, 5)]))
    batch = encode(Columns([None] * records, [os.urandom(record_bytes)] * records, [1] * records))
    count = int(scale * 2_000_000_000) // len(batch)
    produced = [_produce_frame(client, topic, i, batch) for i in range(6)]
    per_fetch = max(1, (1 << 20) // len(batch))
    fetched = (
        _fetch_frame(client, topic, i, first * records)
        for first in range(0, count // 6, per_fetch)
        for i in range(6)
    )
    for what, frames in (("produce", (produced[i % 6] for i in range(count))), ("fetch", fetched)):
        name = f"{what} {batch_bytes // 1024} KB batches of {record_bytes} B"
        _measured(name, pid, count * len(batch), count * records, partial(client.ask_all, frames))


def _measured(what: str, pid: int, byte_count: int, records: int, act: Callable[[], None]) -> None:
    cpu, began = cpu_s(pid), time.monotonic()
    act()
    cpu, wall = cpu_s(pid) - cpu, time.monotonic() - began
    print(
        f"{what:36} {cpu / byte_count * 1e9:6.2f} CPU-s per GB {records / wall:12,.0f} records/s "
        f"{byte_count / wall / 1e6:7,.0f} MB/s",
        flush=True,
    )


# ---- the command -------------------------------------------------------------------------------


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] in ("start", "stop", "kill"):
        what, directory = sys.argv[1], Path(sys.argv[2])
        if what == "start":
            print(start_ours(directory, int(sys.argv[3])))
        else:
            end_ours(directory, signal.SIGTERM if what == "stop" else signal.SIGKILL)
        return
    parser = argparse.ArgumentParser(description="Our broker beside Apache Kafka's.")
    parser.add_argument("--kit", default=os.environ.get("KAFKALITE_BENCH_KIT"), help="its folder")
    parser.add_argument("--lab", default=os.environ.get("LAB"), help="what its setup.sh made")
    parser.add_argument("--kafka", default="4", choices=["4", "39"], help="which Kafka")
    parser.add_argument("--ours", action="store_true", help="ours alone, without the kit")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=0.5, help="how much of the full load")
    parser.add_argument("--latency-seconds", type=int, default=30)
    parser.add_argument("--scratch", help="where the brokers keep their data meanwhile")
    options = parser.parse_args()
    if options.ours:
        alone(options)
    elif not options.kit or not options.lab:
        raise SystemExit(
            "no kit to start Apache Kafka with: give --kit and --lab (see the top of this file), "
            "or --ours to measure ours alone"
        )
    else:
        compare(options)


if __name__ == "__main__":
    main()
