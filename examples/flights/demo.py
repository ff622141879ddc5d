"""The main job from end to end: log, topology, warehouse, on 336,776 real flights.

    python examples/flights/demo.py [--data-dir DIR] [--warehouse DIR] [--workers 2]

Every step is a command that you can run by yourself; the demo prints each before it runs it. Run
it again and it finds its work done.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kafkalite.embedded import EmbeddedBroker

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
RECORDS = re.compile(r"([\d,]+) records in ([\d.]+) s")
console = Console(highlight=False)

Command = list[str | Path]


@dataclass(frozen=True)
class Step:
    """One line of the closing table; `seconds` is the whole command, starting included."""

    name: str
    records: int
    seconds: float
    where: str


def run(command: Command) -> tuple[int, float]:
    """Runs a command before the user's eyes; returns its records and the seconds it took."""
    line = " ".join(shown(part) for part in command)
    console.print(f"\n[bold]$ {line}", soft_wrap=True)
    started, records = time.monotonic(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if found := RECORDS.search(line):
                records = int(found.group(1).replace(",", ""))
    if process.returncode:
        sys.exit(f"the demo stops: that command ended with {process.returncode}")
    return records, time.monotonic() - started


def shown(part: str | Path) -> str:
    """A command's part as a user would type it."""
    path = Path(part)
    if path == Path(sys.executable):
        return "python"
    if path.parent == BIN:
        return path.name
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(part)


@contextmanager
def server(data_dir: Path) -> Iterator[tuple[str, float]]:
    """The broker of the whole demo, on a free port."""
    command = f"kafkalite server start --data-dir {data_dir} --listen 127.0.0.1:0"
    console.print(f"[bold]$ {command} &", soft_wrap=True)
    started = time.monotonic()
    with EmbeddedBroker(data_dir) as broker:
        seconds = time.monotonic() - started
        console.print(f"kafkalite is ready at {broker.bootstrap_servers} after {seconds:.2f} s")
        yield broker.bootstrap_servers, seconds


def main() -> None:
    """Runs the steps and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=Path("kafkalite-data"))
    parser.add_argument("--warehouse", type=Path, default=Path("warehouse"))
    parser.add_argument("--workers", type=int, default=2, help="processes that share the topology")
    arguments = parser.parse_args()
    started = time.monotonic()
    with server(arguments.data_dir) as (address, seconds):
        steps = [Step("start the broker", 0, seconds, f"{arguments.data_dir}/")]
        at = ["--bootstrap-servers", address]
        steps.append(
            Step("load the flights", *run([sys.executable, HERE / "load.py", *at]), "topic flights")
        )
        app = HERE / "app.py"
        run([BIN / "kafkalite-streams", "describe", app])
        job: Command = [BIN / "kafkalite-streams", "run", app, *at, "--until-caught-up"]
        job += ["--workers", str(arguments.workers)]
        topics = "topics delays-by-origin, flights-by-carrier, flights-cancelled"
        steps.append(Step("run the topology", *run(job), topics))
        load: Command = [BIN / "kafkalite-spark", "load", "flights", "delays-by-origin", *at]
        load += ["--warehouse", arguments.warehouse, "--key", "flights=string"]
        load += ["--key", "delays-by-origin=windowed:1h", "--query", HERE / "worst_hours.sql"]
        steps.append(Step("load the warehouse", *run(load), f"{arguments.warehouse}/"))
    report(steps, time.monotonic() - started)


def report(steps: Sequence[Step], seconds: float) -> None:
    """The closing table."""
    table = Table("step", "records", "seconds", "records/s", "where it lies", title="What was done")
    for step in steps:
        rate = f"{step.records / step.seconds:,.0f}" if step.records else ""
        records = f"{step.records:,}" if step.records else "none new"
        cells = (step.name, records if step is not steps[0] else "", f"{step.seconds:.1f}")
        table.add_row(*cells, rate, step.where)
    console.print()
    console.print(table)
    console.print(f"{seconds:.1f} s in all, starting interpreters and Spark included")


if __name__ == "__main__":
    main()
