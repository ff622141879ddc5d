"""From input record to output record at 1,000 records/s, and what such a record costs.

One worker that filters and maps bytes; commits and lingering as either side has them by default. A
client in this process sends a record every millisecond, and reads results with polls of 5 ms. The
worker's CPU is counted over the same records.

`one-record` is the engine alone, without sockets: a batch of one record, filtered and mapped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bench.broker import cpu_s
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task

from .inputs import PARTITIONS, create
from .report import OURS, PEER, Report
from .serving import serving
from .sides import Ours, Peer, Streams
from .topologies import make

RATE: Final = 1_000
WARM_SECONDS: Final = 10
SECONDS: Final = 10
POLL_MS: Final = 5
SETTLE_SECONDS_MAX: Final = 60
ID_AT: Final = slice(18, 27)
ROUNDS_OF_ONE: Final = 20_000
NAMES: Final = ("latency", "latency-eos", "one-record")


def value(number: int) -> bytes:
    """100 B that the filter keeps."""
    return b'{"amount":50,"id":%d,"pad":"%s"}' % (100_000_000 + number, b"x" * 63)


class Trip:
    """When each record was sent and came back."""

    def __init__(self, address: str, source: str, target: str) -> None:
        self._address, self._source, self._target = address, source, target
        self.sent: list[float] = []
        self.back: dict[int, float] = {}

    async def read(self, isolation_level: Any) -> None:
        """Reads results until it is cancelled."""
        async with Consumer(self._address, isolation_level=isolation_level) as consumer:
            partitions = [TopicPartition(self._target, p) for p in range(PARTITIONS)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(partitions)
            while True:
                polled = await consumer.poll(timeout_ms=POLL_MS)
                now = time.monotonic()
                for columns in polled.values():
                    for came in columns.values:
                        if came is not None:
                            self.back[int(came[ID_AT]) - 100_000_000] = now

    async def send(self, producer: Producer, count: int) -> None:
        """Sends so many, each when it is due."""
        began, first = time.monotonic(), len(self.sent)
        for number in range(first, first + count):
            due = began + (number - first) / RATE
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            self.sent.append(time.monotonic())
            await producer.send(self._source, value(number), key=b"k%07d" % (number % 1_000))

    async def wait(self, number: int) -> None:
        """Returns once this record is back; SystemExit if it is lost."""
        until = time.monotonic() + SETTLE_SECONDS_MAX
        while number not in self.back:
            if time.monotonic() > until:
                raise SystemExit(f"{self._target}: record {number} has not come back")
            await asyncio.sleep(0.05)

    def milliseconds(self, first: int) -> list[float]:
        """How long each took, in order of length."""
        numbers = range(first, len(self.sent))
        return sorted((self.back[n] - self.sent[n]) * 1000 for n in numbers)


async def travel(trip: Trip, address: str, pid: int, isolation_level: str) -> dict[str, float]:
    """Warms the worker, then measures."""
    reading = asyncio.create_task(trip.read(isolation_level))
    try:
        async with Producer(address) as producer:
            await trip.send(producer, 1)
            await trip.wait(0)
            await trip.send(producer, WARM_SECONDS * RATE)
            first, cpu = len(trip.sent), cpu_s(pid)
            await trip.send(producer, SECONDS * RATE)
            spent = cpu_s(pid) - cpu
            for number in range(len(trip.sent) - RATE, len(trip.sent)):
                await trip.wait(number)
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
    times = trip.milliseconds(first)
    return {
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[len(times) * 99 // 100],
        "worker_cpu_ms_per_record": spent * 1000 / len(times),
    }


def measure(side: Streams, topology: str, isolation_level: str, **options: Any) -> dict[str, float]:
    """One side."""
    source = f"live-{isolation_level}"
    create(side.address, source)
    with side.target() as target:
        command = side.serving(source, target, topology, **options)
        with serving(command, Path(side.broker.directory)) as process:
            trip = Trip(side.address, source, target)
            return asyncio.run(travel(trip, side.address, process.pid, isolation_level))


def one_record() -> dict[str, float]:
    """Nanoseconds of a batch of one record, in one task."""
    (sub,) = compile_topology(make("one", "bytes", "in", "out").plan())
    task = Task(sub, 0)
    batches = [Columns([b"k0000001"], [value(n)], [n], [n]) for n in range(ROUNDS_OF_ONE)]

    def one(batch: Columns) -> None:
        task.enqueue("in", batch)
        task.process(100, 0)
        task.drain()

    for batch in batches[: ROUNDS_OF_ONE // 2]:
        one(batch)
    return {"engine_cpu_us_per_batch": _cpu_us(one, batches[ROUNDS_OF_ONE // 2 :])}


def _cpu_us(act: Callable[[Columns], None], batches: list[Columns]) -> float:
    began = time.process_time_ns()
    for batch in batches:
        act(batch)
    return (time.process_time_ns() - began) / len(batches) / 1000


def run(name: str, ours: Ours, peer: Peer | None, report: Report) -> None:
    """One round of a case."""
    if name == "one-record":
        report.add(name, OURS, one_record())
        return
    is_exact = name == "latency-eos"
    guarantee = "exactly_once" if is_exact else "at_least_once"
    level = "read_committed" if is_exact else "read_uncommitted"
    report.add(name, OURS, measure(ours, "bytes", level, processing_guarantee=guarantee))
    if peer is not None:
        report.add(name, PEER, measure(peer, "stateless", level, eos=int(is_exact)))
