"""State: what backends take to put and get rows, and how fast a changelog is restored.

    python bench/state.py [--keys 1000000] [--updates 5000000] [--only rows,restore]

(a) rows: put in batches of 1,000 as commits do, put at once as a restore does, got in batches of
1,000, read in order; memory beside RocksDB. (b) restore: a changelog of 10 B keys and counts, each
key several times, one partition, on a broker in a process of its own; into memory, into RocksDB,
and again from RocksDB's checkpoint. Prints a JSON line a figure; `cpu` is this process's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.restore import restore_tasks
from kafkalite.streams.local.state.backend import Backend, Place
from kafkalite.streams.local.state.directory import StateDirectory
from kafkalite.streams.local.state.memory import InMemory, MemoryBackend
from kafkalite.streams.local.state.rocks import RocksBackend
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.worker import now_ms

CHUNK = 100_000
BATCH = 1_000
STORE = "n"
CHANGELOG = f"bench-state-{STORE}-changelog"


def key(number: int) -> bytes:
    return b"key-%06d" % number


def say(what: str, rows: int, started: tuple[float, float], **more: Any) -> None:
    seconds, cpu = time.monotonic() - started[0], time.process_time() - started[1]
    figures = {"rows": rows, "seconds": round(seconds, 2), "rows_per_second": round(rows / seconds)}
    print(json.dumps({"what": what, **figures, "cpu": round(cpu, 2), **more}), flush=True)


def now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def batches(keys: list[bytes], size: int) -> Iterator[dict[bytes, bytes | None]]:
    for first in range(0, len(keys), size):
        part = keys[first : first + size]
        yield dict.fromkeys(part, b"\0" * 9 + b"eightbyt")


def rows(name: str, make: Callable[[Path], Backend], count: int, folder: Path) -> None:
    keys = [key(i) for i in range(count)]
    random.Random(7).shuffle(keys)
    for how, size in (("in batches", BATCH), ("at once", count)):
        backend = make(folder / f"{name}-{size}")
        started = now()
        for batch in batches(keys, size):
            backend.put_many(batch, {"offset": b"1"})
        say(f"{name}: put {how}", count, started)
        started = now()
        for first in range(0, count, BATCH):
            backend.get_many(keys[first : first + BATCH])
        say(f"{name}: get, put {how}", count, started)
        started = now()
        say(f"{name}: range, put {how}", sum(1 for _ in backend.range()), started)
        backend.close()


def new_task(place: Place) -> Task:
    app = Streams("bench-state")
    app.stream("in").group_by_key().count(name=STORE)
    return Task(compile_topology(app.plan())[0], 0, MemoryRegistry(), place=place)


async def write(address: str, keys: int, updates: int) -> None:
    async with Admin(address) as admin:
        settings = {"retention.ms": "-1"}  # not compacted, so that every update is read
        await admin.create_topics([NewTopic(CHANGELOG, 1, configs=settings)])
    numbers = random.Random(7)
    names = [key(i) for i in range(keys)]
    async with Producer(address) as producer:
        for first in range(0, updates, CHUNK):
            count = min(CHUNK, updates - first)
            values = [i.to_bytes(8, "big") for i in range(first, first + count)]
            times = list(range(first, first + count))
            columns = Columns(numbers.choices(names, k=count), values, times)
            await producer.send_columns(CHANGELOG, columns, partition=0)
        await producer.flush()


async def restore(address: str, what: str, place: Place) -> None:
    task = new_task(place)
    started = now()
    async with Client(address) as client:
        records = await restore_tasks(client, [task], lambda: False, time.monotonic, now_ms)
        task.store(STORE)
        seconds = time.monotonic() - started[0]
        say(f"restore: {what}", records, started, ready_after=round(seconds, 3))
    task.close()


async def restores(keys: int, updates: int, folder: Path) -> None:
    with EmbeddedBroker(folder / "broker") as broker:
        await write(broker.bootstrap_servers, keys, updates)
        await restore(broker.bootstrap_servers, "memory", InMemory())
        directory = StateDirectory(folder / "state", "bench-state")
        for what in ("RocksDB", "RocksDB from its checkpoint"):
            await restore(broker.bootstrap_servers, what, directory.task("0_0"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=5_000_000)
    parser.add_argument("--only", default="rows,restore")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "rows" in arguments.only:
            rows("memory", lambda _: MemoryBackend(), arguments.keys, folder)
            rows("RocksDB", RocksBackend, arguments.keys, folder)
        if "restore" in arguments.only:
            asyncio.run(restores(arguments.keys, arguments.updates, folder))


if __name__ == "__main__":
    main()
