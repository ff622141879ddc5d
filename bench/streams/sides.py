"""The two sides: our broker and workers, and Apache Kafka with Kafka Streams from the kit.

Either has a broker of its own over a scratch folder, whose CPU is the kernel's figure. A side that
is asked for a topic fills it once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.broker import Side, cpu_s, kafka_side, our_side
from kafkalite.clients.sync import Admin
from kafkalite.serde.registry_log import LogRegistry

from .flights import FLIGHTS, load_flights
from .inputs import create, fill, input_of
from .rates import rate, together
from .worker import TOPOLOGIES, Job

ROOT: Final = Path(__file__).parents[2]
RUN_SECONDS_MAX: Final = 900
SERVE_SECONDS_MAX: Final = 300
TARGET: Final = "target"  # its name begins with this
OPERATORS_JAVA: Final = Path(__file__).with_name("java") / "Operators.java"
OPERATORS: Final = {"stream-join", "table-join", "session-count", "sliding-mean", "foreign-join"}

Figures = dict[str, Any]


@dataclass
class Streams(ABC):
    """One side. `records` is how many an input has that is made here."""

    broker: Side
    records: int
    sizes: dict[str, int] = field(default_factory=dict)  # of the inputs that are filled
    _count: int = 0

    @property
    def address(self) -> str:
        """Where its broker listens."""
        return f"127.0.0.1:{self.broker.port}"

    def input(self, source: str) -> str:
        """The topic, filled, or all of them: `orders,payments`."""
        topics = source.split(",")
        for topic in topics:
            if topic not in self.sizes:
                self.sizes[topic] = self._filled(topic)
        self.sizes[source] = sum(self.sizes[topic] for topic in topics)
        return source

    def _filled(self, topic: str) -> int:
        """How many records it has."""
        if topic == FLIGHTS:
            return load_flights(self.address)
        with self._registry() as registry:
            filled = input_of(topic, self.records, registry)
            fill(self.address, topic, filled)
        return filled.records

    @contextmanager
    def _registry(self) -> Iterator[LogRegistry | None]:
        yield None

    @contextmanager
    def target(self) -> Iterator[str]:
        """A fresh topic for results; its name also serves as an application id. Everything whose
        name begins with it is deleted in the end."""
        self._count += 1
        name = f"{TARGET}-{self._count}"
        create(self.address, name)
        try:
            yield name
        finally:
            with Admin(self.address) as admin:
                made = [t for t in admin.list_topics() if t == name or t.startswith(f"{name}-")]
                admin.delete_topics(made)

    def broker_cpu_s(self) -> float:
        """CPU seconds of the broker so far."""
        return cpu_s(int((self.broker.directory / "pid").read_text()))

    def measure(self, source: str, topology: str, **options: Any) -> Figures:
        """Runs a topology over a whole input: rates, and CPU seconds a million records."""
        source = self.input(source)
        with self.target() as target:
            cpu = self.broker_cpu_s()
            figures = self.run(source, target, topology, **options)
            broker = self.broker_cpu_s() - cpu
        millions = self.sizes[source] / 1e6
        for what in ("worker", "process"):
            figures[f"{what}_cpu_s_per_million"] = figures.pop(f"{what}_cpu_s") / millions
        return figures | {"broker_cpu_s_per_million": broker / millions}

    @abstractmethod
    def serving(self, source: str, target: str, topology: str, **options: Any) -> list[str]:
        """The command of a worker that runs until it is killed."""

    @abstractmethod
    def run(self, source: str, target: str, topology: str, **options: Any) -> Figures:
        """One process that reads the input to its end."""


class Ours(Streams):
    """kafkalite."""

    @contextmanager
    def _registry(self) -> Iterator[LogRegistry | None]:
        registry = LogRegistry(self.address)
        try:
            yield registry
        finally:
            registry.close()

    def run(self, source: str, target: str, topology: str, **options: Any) -> Figures:
        """Our worker; `options` are settings of the application."""
        job = self.job(source, target, topology, **options)
        return figures_of([last_line(job.command())], self.sizes[source])

    def job(
        self,
        source: str,
        target: str,
        topology: str,
        *,
        is_endless: bool = False,
        maker: str = TOPOLOGIES,
        **options: Any,
    ) -> Job:
        """What a worker is to do."""
        return Job(
            topology=topology, address=self.address, source=source, target=target, maker=maker,
            application_id=target, is_endless=is_endless, settings=options,
        )  # fmt: skip

    def serving(self, source: str, target: str, topology: str, **options: Any) -> list[str]:
        """The command of a worker that runs until it is killed."""
        return self.job(source, target, topology, is_endless=True, **options).command()


def figures_of(workers: Sequence[Figures], records: int) -> Figures:
    """The figures of all workers of one application together."""
    if sum(said["records"] for said in workers) < records:
        raise SystemExit(f"not all of {records} records were read: {workers}")
    seen = together([said["seen"] for said in workers])
    added = ("worker_cpu_s", "process_cpu_s", "rss_mb", "records_out", "commits")
    return {
        "records_per_second": rate(seen, records),
        "second_half_records_per_second": rate(seen, records, 0.5),
        "start_to_close_s": max(said["start_to_close_s"] for said in workers),
    } | {name: sum(said[name] for said in workers) for name in added}


@dataclass
class Peer(Streams):
    """Kafka Streams. Its program is the kit's StreamsBench, or our own Operators."""

    lab: Path = Path()
    latest: tuple[Any, Figures] | None = None  # what was measured last, and its figures

    def run(self, source: str, target: str, topology: str, **options: Any) -> Figures:
        """A program over the input to its end; `options` are its arguments."""
        with self.state(target) as state:
            given = {"in": source, "out": target, "app": target, "topo": topology, "dir": state}
            said = self.call(given | {"n": self.sizes[source], "wipe": 1} | options)
        if said["processed"] < self.sizes[source]:
            raise SystemExit(f"Kafka Streams, {topology}: {said}")
        return {
            "records_per_second": said["rec_s"],
            "second_half_records_per_second": said["second_half_rec_s"],
            "start_to_close_s": said["first_record_after_start_s"] + said["s_incl_close"],
            "worker_cpu_s": said["app_cpu_s_run"],
            "process_cpu_s": said["app_cpu_s"],
            "rss_mb": said["rss_mb"],
            "records_out": said["out"],
        }

    @contextmanager
    def state(self, name: str) -> Iterator[Path]:
        """A folder for RocksDB."""
        folder = self.broker.directory / f"state-{name}"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def command(self, arguments: Mapping[str, Any]) -> list[str]:
        """What runs the program, with the heap that the kit gives it."""
        is_ours = arguments["topo"] in OPERATORS
        classes = self._compiled() if is_ours else self.lab / "streams" / "classes"
        places = [f"{self.lab}/k4/*", f"{self.lab}/avro/lib/*", str(classes)]
        java = ["java", "-Xms512M", "-Xmx2G", "-cp", ":".join(places)]
        java.append(OPERATORS_JAVA.stem if is_ours else "StreamsBench")
        return [*java, f"boot={self.address}", *(f"{k}={v}" for k, v in arguments.items())]

    def _compiled(self) -> Path:
        """Where the classes of our own program are, compiled once."""
        classes = self.broker.directory / "classes"
        if not classes.exists():
            jars = f"{self.lab}/k4/*"
            command = ["javac", "-cp", jars, "-d", str(classes), str(OPERATORS_JAVA)]
            subprocess.run(command, check=True)
        return classes

    def serving(self, source: str, target: str, topology: str, **options: Any) -> list[str]:
        """The command of a worker that runs until it is killed."""
        given = {"in": source, "out": target, "app": target, "topo": topology, "mode": "serve"}
        state = {"dir": self.broker.directory / f"state-{target}"}
        return self.command(given | state | {"serve_ms": SERVE_SECONDS_MAX * 1000} | options)

    def call(self, arguments: Mapping[str, Any]) -> Figures:
        """The line that it prints."""
        return last_line(self.command(arguments))


def last_line(command: list[str]) -> Figures:
    """Runs a process; what its last line of JSON says."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]}: {(done.stdout + done.stderr).strip()[-800:]}")
    return parsed(done.stdout)


def parsed(output: str) -> Figures:
    """The last line of JSON that a process has printed."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"a process has printed no figures: {output.strip()[-800:]}")
    found: Figures = json.loads(lines[-1])
    return found


def check_lab(kit: Path, lab: Path) -> None:
    """SystemExit if the kit's setup has not been run."""
    for needed in (kit / "broker.sh", lab / "k4" / "VERSION", lab / "streams" / "classes"):
        if not needed.exists():
            raise SystemExit(f"{needed} is not there: run the kit's setup.sh kafka streams")


@contextmanager
def started(side: Streams) -> Iterator[None]:
    """Its broker runs meanwhile."""
    side.broker.up()
    try:
        wait_for_leader(side.address)
        yield
    finally:
        side.broker.down()


def wait_for_leader(address: str) -> None:
    """Returns once the broker creates topics: Kafka's controller takes its time."""
    until = time.monotonic() + RUN_SECONDS_MAX
    while True:
        try:
            create(address, "first", partitions=1)
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def our_streams(scratch: Path, records: int) -> Ours:
    """Our side, not started."""
    return Ours(our_side(scratch), records)


def peer_streams(kit: Path, lab: Path, scratch: Path, records: int) -> Peer:
    """Kafka's, not started."""
    check_lab(kit, lab)
    return Peer(kafka_side(kit, lab, "4", scratch), records, lab=lab)
