"""Queries over HTTP while a topology runs at full speed: how many a second, and how long they take.

    python -m bench.streams.queries                  both topologies, about two minutes
    python -m bench.streams.queries --only count --records 20000000 --rate 5000

A broker, one worker and one client are three processes of this machine. The worker counts records
by key out of a topic that was filled before, so that it is never without work; `functions` reads
JSON and asks a Python function about every record, `count` looks at keys alone. The client asks for
single rows of that count at a fixed rate, over connections that stay open.

A time is from the moment at which a question was due, not from when it was sent: where answers are
late, those behind them are late, too. The first seconds are not counted: the worker begins.
`alone` is the rate of the topology in the seconds before the first question.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kafkalite.clients.sync import Admin
from kafkalite.streams import Streams, bytes_, string
from kafkalite.streams import json as json_serde
from kafkalite.streams.collecting import collecting_seldom

from .inputs import PARTITIONS, fill
from .market import Input
from .market import values_of_json as json_values
from .serving import serving
from .sides import Ours, our_streams, started

STORE: Final = "counts"
TOPOLOGIES: Final = ("count", "functions")
KEYS: Final = 10_000
CONNECTIONS: Final = 32
WARM_SECONDS: Final = 3.0  # of the worker
ALONE_SECONDS: Final = 3.0
READY_SECONDS_MAX: Final = 60
RECORDS: Final = {"count": 48_000_000, "functions": 10_000_000}
FOUND: Final = b"HTTP/1.1 200"
QUESTION: Final = b"GET /stores/counts/k%07d HTTP/1.1\r\nhost: x\r\n\r\n"
WAIT_SECONDS: Final = 0.1


def make(name: str, application_id: str, source: str) -> Streams:
    """The application."""
    app = Streams(application_id, key=string())
    if name == "functions":
        kept = app.stream(source, value=json_serde()).filter(lambda value: value["amount"] > 0)
        kept.group_by_key().count(name=STORE)
    else:
        app.stream(source, value=bytes_()).group_by_key().count(name=STORE)
    return app


def small(rng: random.Random, rows: range) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Keys at random, and values that nobody looks at."""
    keys = [b"k%07d" % key for key in rng.choices(range(KEYS), k=len(rows))]
    return keys, [b"x"] * len(rows)


def keyed(rng: random.Random, rows: range) -> tuple[Sequence[bytes], Sequence[bytes]]:
    keys, _ = small(rng, rows)
    return keys, list(json_values(rng, rows, keys))


# The client


class Client:
    """Asks over connections that stay open, one question at a time on each; without asyncio, which
    would cost more than the worker does."""

    def __init__(self, port: int) -> None:
        self.done: list[tuple[float, float, bool]] = []  # due, answered, had a row
        self._poll = select.epoll()
        self._due: dict[int, float] = {}  # of those that wait for an answer
        self._connections = [
            socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)
        ]
        self._idle = deque(each.fileno() for each in self._connections)
        for number in self._idle:
            self._poll.register(number, select.EPOLLIN)

    def run(self, rate: int, seconds: float) -> None:
        """Asks at this rate, and waits for the last answers."""
        rng, count = random.Random(3), int(rate * seconds)
        began, sent = time.monotonic(), 0
        until = began + 3 * seconds
        while len(self.done) < count and (now := time.monotonic()) < until:
            while self._idle and sent < count and (due := began + sent / rate) <= now:
                number = self._idle.popleft()
                self._due[number] = due
                os.write(number, QUESTION % rng.randrange(KEYS))
                sent += 1
            wait = began + sent / rate - now if self._idle and sent < count else WAIT_SECONDS
            self._take(max(0.0, wait))

    def _take(self, wait: float) -> None:
        for number, _ in self._poll.poll(wait):
            answer = os.read(number, 65_536)
            assert answer.endswith(b"}"), answer  # these are short: one piece each
            self.done.append((self._due.pop(number), time.monotonic(), answer.startswith(FOUND)))
            self._idle.append(number)


def client(port: int, rate: int, seconds: float) -> dict[str, Any]:
    """The figures of one run, in a process of its own."""
    sys.stdin.readline()  # it is told when to begin
    asking = Client(port)
    before = time.process_time()
    asking.run(rate, seconds)
    done = asking.done
    times = sorted((at - due) * 1000 for due, at, _ in done)
    began, ended = min(due for due, _, _ in done), max(at for _, at, _ in done)
    return {
        "queries_per_second": len(done) / (ended - began),
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[len(times) * 99 // 100],
        "p999_ms": times[len(times) * 999 // 1000],
        "max_ms": times[-1],
        "without_a_row": sum(not found for _, _, found in done),
        "client_cpu_s": time.process_time() - before,
    }


# Both together


def page(port: int, path: str) -> dict[str, Any]:
    """A page as JSON; of a worker that is not ready, nothing."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except OSError:
        return {}


def until_ready(port: int) -> None:
    """Returns once the worker runs all tasks."""
    until = time.monotonic() + READY_SECONDS_MAX
    while page(port, "/health").get("tasks") != PARTITIONS:
        if time.monotonic() > until:
            raise SystemExit("the worker is not ready")
        time.sleep(0.1)


def records(port: int) -> tuple[float, int]:
    """When, and how many the worker has done."""
    found = page(port, "/topology")["worker"]["records"]
    return time.monotonic(), int(found)


def between(before: tuple[float, int], after: tuple[float, int]) -> float:
    """Records a second."""
    return (after[1] - before[1]) / (after[0] - before[0])


def measure(ours: Ours, topology: str, options: argparse.Namespace) -> dict[str, Any]:
    """One topology."""
    source, port = f"{topology}-in", options.port
    count = options.records or RECORDS[topology]
    fill(ours.address, source, Input(count, keyed if topology == "functions" else small))
    name = f"queries-{topology}"
    words = [topology, name, source, ours.address, str(port)]
    command = [sys.executable, "-m", "bench.streams.queries", "--worker", *words]
    with serving(command, Path(ours.broker.directory)):
        asked = [sys.executable, "-m", "bench.streams.queries", "--client", str(port)]
        asked += ["--rate", str(options.rate), "--seconds", str(options.seconds)]
        asking = subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        until_ready(port)
        time.sleep(WARM_SECONDS)
        first = records(port)
        time.sleep(ALONE_SECONDS)
        begin = records(port)
        told, _ = asking.communicate(b"begin\n")
        figures: dict[str, Any] = json.loads(told)
        end = records(port)
    with Admin(ours.address) as admin:
        admin.delete_topics([source])
    return {
        "topology": topology,
        "was_busy_throughout": end[1] < count,
        "alone_records_per_second": between(first, begin),
        "records_per_second": between(begin, end),
    } | figures


def worker(topology: str, application_id: str, source: str, address: str, port: str) -> None:
    """Runs until it is killed."""
    with collecting_seldom():
        make(topology, application_id, source).run(address, http=f"127.0.0.1:{port}")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="bench.streams.queries",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(TOPOLOGIES), help="topologies")
    parser.add_argument("--rate", type=int, default=5_000, help="questions a second")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--records", type=int, help="of the input")
    parser.add_argument("--port", type=int, default=18_573)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.worker:
        worker(*options.worker)
    elif options.client:
        print(json.dumps(client(options.client, options.rate, options.seconds)))
    else:
        scratch = Path(tempfile.mkdtemp(prefix="bench-queries-"))
        try:
            ours = our_streams(scratch, 0)
            with started(ours):
                for topology in options.only.split(","):
                    figures = measure(ours, topology, options)
                    print(json.dumps(rounded(figures)), flush=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def rounded(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures as they are shown."""
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}


if __name__ == "__main__":
    main()
