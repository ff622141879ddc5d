"""Our source, sink and loads on Spark beside the official Kafka connector, case by case.

    python -m bench.spark --lab DIR               both, in turn; ratios beside the goals
    python -m bench.spark                         ours alone
    python -m bench.spark --lab DIR --only sink   the cases with this word in their names
    python -m bench.spark --scale 0.1             a tenth of the records

LAB holds the official connector, as `setup.sh spark` of the kit makes it:

    LAB/venv-spark/bin/python    a Python with the pyspark of the connector's version
    LAB/spark-jars/*.jar         spark-sql-kafka-0-10, spark-token-provider-kafka-0-10,
                                 kafka-clients, commons-pool2; and spark-avro for `from_avro`

A broker of ours serves both. Each side is a Spark of its own, `local[2]`; both stay up, and every
case runs on one and then on the other, first unmeasured, then in rounds of which the best counts.
Rates are rows a second, CPU is that of the JVM and its Python processes a million rows. After
`--seconds` no further case begins; those that are left are named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from select import select
from typing import Any, Final

from bench.broker import cpu_s, end_ours, free_port, start_ours
from bench.streams.flights import FLIGHTS, load_flights
from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import BrokerUnavailable
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.registry_log import LogRegistry

OURS: Final = "kafkalite"
PEER: Final = "kafka"
JARS: Final = (
    "spark-sql-kafka-0-10",
    "spark-token-provider-kafka",
    "kafka-clients",
    "commons-pool2",
)
AVRO_JAR: Final = "spark-avro"
PARTITIONS: Final = 4
CHUNK: Final = 50_000
START_S: Final = 0.1
ANSWER_SECONDS_MAX: Final = 180.0  # of one case
RECORDS: Final = {"small": 2_000_000, "large": 400_000, "events": 1_000_000, "few": 240}
SINK_RECORDS: Final = 1_000_000
BYTES: Final = {"small": 100, "large": 1_000, "few": 100}
TIMES_FROM: Final = 1_700_000_000_000
SCHEMA: Final = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "kind", "type": "int"},
            {"name": "amount", "type": "double"},
            {"name": "ok", "type": "boolean"},
            {"name": "user", "type": "string"},
            {"name": "page", "type": "string"},
        ],
    }
)
Request = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """What each side does; `peer` is None where the official connector has no such thing.

    `goal` is the ratio of rates to reach, `cpu` that of CPU seconds to stay below, `most` the
    figures of ours that have a bound.
    """

    name: str
    records: int
    ours: Request
    peer: Request | None = None
    goal: float | None = None
    cpu: float | None = None
    most: dict[str, float] = field(default_factory=dict)
    needs: str = ""  # a jar beside the connector's
    rounds: int | None = None


def cases(counts: dict[str, int], sunk: int) -> Iterator[Case]:
    """All cases, in the order in which they run."""
    for topic, words, batch, stream in (("small", "100 B", 1.5, 1.3), ("large", "1 KB", 1.3, 1.3)):
        cpu, count = 0.7 if topic == "small" else None, counts[topic]
        read: Request = {"action": "batch_noop", "topic": topic}
        yield Case(f"{words} batch -> noop", count, read, read, batch, cpu)
        to_noop: Request = {"action": "stream", "topic": topic, "sink": "noop"}
        yield Case(f"{words} stream -> noop", count, to_noop, to_noop, stream, cpu)
        prepared: Request = {"action": "prepared", "rows": count, "size": BYTES[topic]}
        yield Case(f"{words} prepared batches, a stream -> noop", count, prepared, to_noop)
        to_parquet = to_noop | {"sink": "parquet"}
        yield Case(f"{words} stream -> Parquet", count, to_parquet, to_parquet)
        load: Request = {"action": "load", "topic": topic, "value": "string"}
        yield Case(f"{words} load -> Parquet, its stream", count, load, to_parquet, 2.0)
    columns: Request = {"action": "avro_parquet", "topic": "events", "schema": SCHEMA}
    events = counts["events"]
    yield Case("Avro -> Parquet", events, columns, columns, 3.0, needs=AVRO_JAR)
    load = {"action": "load", "topic": "events", "value": "avro"}
    yield Case("Avro load -> Parquet, its from_avro", events, load, columns, 3.0, needs=AVRO_JAR)
    sink: Request = {"action": "sink", "topic": "sunk", "records": sunk, "exactly_once": False}
    theirs = sink | {"topic": "sunk-peer"}
    yield Case("sink 100 B, at least once", sunk, sink, theirs, 1.0)
    yield Case("sink 100 B, exactly once", sunk, sink | {"exactly_once": True}, theirs, 0.5)
    micro: Request = {"action": "micro", "topic": "few", "to": "sunk-few", "exactly_once": False}
    its = micro | {"to": "sunk-few-peer"}
    few = counts["few"]
    yield Case("micro-batches of 20 rows, at least once", few, micro, its, None, None,
               {"batch_s": 1.0}, rounds=1)  # fmt: skip
    yield Case("micro-batches of 20 rows, exactly once", few, micro | {"exactly_once": True}, None,
               None, None, {"batch_s": 1.0}, rounds=1)  # fmt: skip
    flights: Request = {"action": "load", "topic": FLIGHTS, "value": "avro"}
    most = {"s": 3.0, "again_s": 2.0, "files": 24.0}
    yield Case("flights, load", counts[FLIGHTS], flights, most=most)


# ---- topics ------------------------------------------------------------------------------------


def fill(address: str, scale: float) -> dict[str, int]:
    """Makes and fills the topics; how many records each has."""
    with Admin(address) as admin:
        kept = {"retention.ms": "-1"}
        names = [*RECORDS, "sunk", "sunk-peer", "sunk-few", "sunk-few-peer"]
        admin.create_missing_topics([NewTopic(name, PARTITIONS, configs=kept) for name in names])
    counts = {name: max(1, int(RECORDS[name] * scale)) for name in RECORDS if name != "few"}
    counts["few"] = RECORDS["few"]
    with Producer(address, batch_bytes=131_072, linger_ms=20) as producer:
        for name, count in counts.items():
            pool = events(address, name) if name == "events" else texts(BYTES[name])
            for first in range(0, count, CHUNK):
                numbers = range(first, min(count, first + CHUNK))
                columns = Columns(
                    [None] * len(numbers),
                    [pool[n * 31 % len(pool)] for n in numbers],
                    [TIMES_FROM + n for n in numbers],
                )
                producer.send_columns(name, columns, partitions=[n % PARTITIONS for n in numbers])
    return counts


def texts(size: int) -> list[bytes]:
    """Different values of so many bytes."""
    random = Random(size)
    return [random.randbytes(size // 2).hex().encode() for _ in range(8192)]


def events(address: str, topic: str) -> list[bytes]:
    """Values of Avro with six fields, in Confluent's frame."""
    random = Random(7)
    rows = [
        {
            "id": random.randrange(10**12),
            "kind": random.randrange(40),
            "amount": random.random() * 100,
            "ok": random.random() < 0.9,
            "user": f"user-{random.randrange(10**6):06d}",
            "page": f"/page/{random.randrange(100):02d}",
        }
        for _ in range(8192)
    ]
    with LogRegistry(address) as registry:
        codec = avro(schema=SCHEMA).open(SerdeContext(registry))
        return [bytes(value or b"") for value in codec.serialize(topic, rows)]


def ends(address: str, topic: str) -> int:
    """The records that a topic of ours has had, and the marks of transactions."""
    with Admin(address) as admin:
        found = admin.end_offsets([TopicPartition(topic, n) for n in range(PARTITIONS)])
    return sum(found.values())


# ---- sides -------------------------------------------------------------------------------------


class Side:
    """One Spark, in a process that answers line by line."""

    def __init__(self, name: str, python: str, address: str, folder: Path, jars: Sequence[Path]):
        self.name = name
        folder.mkdir(parents=True)
        self.log = folder / "log"
        command = [python, str(Path(__file__).with_name("spark_driver.py"))]
        command += [name, address, str(folder), ",".join(map(str, jars))]
        environment = dict(os.environ, PYSPARK_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1")
        root = str(Path(__file__).parents[1])
        environment["PYTHONPATH"] = root if name == OURS else ""
        environment.pop("SPARK_HOME", None)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            env=environment,
            start_new_session=True,
        )

    def ready(self) -> str:
        """Waits until its Spark is up; the version."""
        return str(self._answer()["pyspark"])

    def run(self, request: Request) -> dict[str, Any]:
        """The figures of one case."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select([self._process.stdout], [], [], ANSWER_SECONDS_MAX)[0]:
            raise SystemExit(
                f"{self.name}: no answer in {ANSWER_SECONDS_MAX} s; {self.log.read_text()[-800:]}"
            )
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: Spark ended: {self.log.read_text()[-800:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Ends the process, its JVM and its Python workers."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def peer_of(lab: Path | None, address: str, folder: Path) -> tuple[Side | None, str]:
    """The official connector's side, or why there is none."""
    if lab is None:
        return None, "without --lab there is no official connector: ours alone"
    python, jars = lab / "venv-spark" / "bin" / "python", sorted((lab / "spark-jars").glob("*.jar"))
    if not python.exists():
        return None, f"{python} does not exist; `setup.sh spark` of the kit makes it: ours alone"
    missing = [name for name in JARS if not any(jar.name.startswith(name) for jar in jars)]
    if missing:
        words = ", ".join(f"{name}*.jar" for name in missing)
        return None, f"{lab / 'spark-jars'} has no {words}; `setup.sh spark` of the kit: ours alone"
    return Side(PEER, str(python), address, folder, jars), ""


# ---- runs --------------------------------------------------------------------------------------


@dataclass
class Bench:
    """The sides, and the best figures of each case."""

    address: str
    broker: int
    sides: dict[str, Side]
    jars: Sequence[str]
    rounds: int
    ends_at: float
    best: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def run(self, case: Case) -> None:
        """A round to warm up, then rounds of which the best counts, side by side."""
        requests = {OURS: case.ours, PEER: case.peer}
        if case.needs and not any(name.startswith(case.needs) for name in self.jars):
            requests[PEER] = None
            if PEER in self.sides:
                self.left_out.append(f"{case.name}: the lab has no {case.needs}*.jar")
        rounds = self.rounds if case.rounds is None else min(self.rounds, case.rounds)
        warm = 0 if case.rounds else 1  # these count their first batches out
        for number in range(rounds + warm):
            if time.monotonic() > self.ends_at:
                if number <= warm:
                    self.left_out.append(f"{case.name}: the time was over")
                return
            for name in (OURS, PEER) if number % 2 else (PEER, OURS):
                side, request = self.sides.get(name), requests[name]
                if side is not None and request is not None:
                    figures = self._figures(case, side, dict(request))
                    self._keep(case, name, figures, is_warm=number < warm)

    def _figures(self, case: Case, side: Side, request: Request) -> dict[str, Any]:
        sunk = request["topic"] if request["action"] == "sink" else None
        before = ends(self.address, sunk) if sunk else 0
        broker_s = cpu_s(self.broker)
        figures = side.run(dict(request))
        if "error" in figures:
            return figures
        figures["broker_cpu_s"] = cpu_s(self.broker) - broker_s
        if request["action"] == "avro_parquet":
            figures |= {"rows": side.run({"action": "count_parquet", "keep": True}).get("rows")}
        if sunk:
            marks = PARTITIONS if request["exactly_once"] else 0
            figures["rows"] = ends(self.address, sunk) - before - marks
        if request["action"] == "load":
            figures["again_s"] = side.run(request | {"keep": True})["s"]
        if "rows" in figures and figures["rows"] != case.records:
            return {"error": f"{figures['rows']} rows, not {case.records}"}
        if request["action"] != "micro":
            figures["rows_per_second"] = case.records / figures["s"]
            figures["cpu_s_per_million"] = figures["cpu_s"] / case.records * 1e6
        return figures

    def _keep(self, case: Case, name: str, figures: dict[str, Any], *, is_warm: bool) -> None:
        line = {"case": case.name, "side": name, "warm-up": is_warm}
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
        print(json.dumps(line | rounded), flush=True)
        if "error" in figures:
            self.left_out.append(f"{case.name}, {name}: {figures['error']}")
        elif not is_warm:
            best = self.best.setdefault(case.name, {}).setdefault(name, {})
            for figure, value in figures.items():
                choose = max if figure == "rows_per_second" else min
                best[figure] = choose(value, best.get(figure, value))


def table(bench: Bench, done: Sequence[Case]) -> Iterator[str]:
    """The lines of a Markdown table."""
    head = ("rows/s", "official", "ratio", "goal", "CPU-s a million", "official", "ratio", "goal")
    yield f"| case | {' | '.join(head)} |"
    yield "|---" * (1 + len(head)) + "|"
    for case in done:
        ours, peer = (bench.best.get(case.name, {}).get(name, {}) for name in (OURS, PEER))
        rate, its_rate = ours.get("rows_per_second"), peer.get("rows_per_second")
        cpu, its_cpu = ours.get("cpu_s_per_million"), peer.get("cpu_s_per_million")
        cells = [f"{rate:,.0f}" if rate else "–", f"{its_rate:,.0f}" if its_rate else "–"]
        cells += [_ratio(rate, its_rate), f"≥ {case.goal}" if case.goal else ""]
        cells += [f"{cpu:.2f}" if cpu else "–", f"{its_cpu:.2f}" if its_cpu else "–"]
        cells += [_ratio(cpu, its_cpu), f"≤ {case.cpu}" if case.cpu else ""]
        yield f"| {case.name} | {' | '.join(cells)} |"
    for case in done:
        ours, peer = (bench.best.get(case.name, {}).get(name, {}) for name in (OURS, PEER))
        for figure, most in case.most.items():
            if figure in ours:
                its = f"; official {peer[figure]:.2f}" if figure in peer else ""
                yield f"{case.name}: {figure} {ours[figure]:.2f} (goal ≤ {most:g}){its}"


def _ratio(ours: float | None, peer: float | None) -> str:
    return f"{ours / peer:.2f}" if ours and peer else "–"


def wait(address: str) -> None:
    """Returns when the broker answers."""
    until = time.monotonic() + 30
    while True:
        try:
            with Admin(address) as admin:
                admin.list_topics()
            return
        except BrokerUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(START_S)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", type=Path, default=os.environ.get("LAB"))
    parser.add_argument("--only", default="", help="cases with one of these words, by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the records")
    parser.add_argument("--rounds", type=int, default=2, help="that count, of each case")
    parser.add_argument("--seconds", type=float, default=420.0, help="no case begins after these")
    return parser.parse_args()


@contextmanager
def sides_of(lab: Path | None, address: str, folder: Path) -> Iterator[dict[str, Side]]:
    """Our Spark, and the official connector's where there is one."""
    peer, why = peer_of(lab, address, folder / "peer")
    print(why or f"the official connector is in {lab}", flush=True)
    sides = {OURS: Side(OURS, sys.executable, address, folder / "ours", ())}
    if peer is not None:
        sides[PEER] = peer
    try:
        yield sides
    finally:
        for side in sides.values():
            side.close()


def main() -> None:
    """Runs the cases and prints the table."""
    given, began = arguments(), time.monotonic()
    folder, port = Path(tempfile.mkdtemp(prefix="bench-spark-")), free_port()
    address, lab = f"127.0.0.1:{port}", given.lab and given.lab.resolve()
    broker = start_ours(folder / "broker", port)
    try:
        with sides_of(lab, address, folder) as sides:
            wait(address)
            counts = fill(address, given.scale) | {FLIGHTS: load_flights(address)}
            for side in sides.values():
                print(f"{side.name} on pyspark {side.ready()}", flush=True)
            jars = [jar.name for jar in (lab / "spark-jars").glob("*.jar")] if lab else []
            bench = Bench(address, broker, sides, jars, given.rounds, began + given.seconds)
            all_cases = cases(counts, max(1, int(SINK_RECORDS * given.scale)))
            words = given.only.split(",")
            wanted = [case for case in all_cases if any(word in case.name for word in words)]
            for case in wanted:
                bench.run(case)
        print("\n".join(table(bench, wanted)))
        for line in dict.fromkeys(bench.left_out):
            print(f"left out: {line}")
        print(f"{time.monotonic() - began:.0f} s")
    finally:
        end_ours(folder / "broker", signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
