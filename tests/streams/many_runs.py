"""Runs of `many_apps.py`: what it is given, its processes, and what it must have made."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from many_apps import END_MS, FACTS, TOPOLOGIES, Sent, Topology
from whole_topics import read_topic

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns

APPS = Path(__file__).with_name("many_apps.py")
PARTITIONS = 2
KEPT = {"retention.ms": "-1"}  # records have the times of 1970
ROUND = 300  # records of each stream
PATIENCE_SECONDS = 90


def until(is_so: Callable[[], bool], complaint: str) -> None:
    """Waits."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)


class Run:
    """The input, and the processes that work on it, with their state below `folder`."""

    def __init__(
        self, address: str, folder: Path, topologies: Mapping[str, Topology] = TOPOLOGIES
    ) -> None:
        self.address, self.folder, self.topologies = address, folder, topologies
        self.sent = Sent([], [])
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, more: Iterable[str] = ()) -> None:
        """Makes the topics, and the rows that all else finds there."""
        topics = ["left", "right", *self.topologies, *more]
        asyncio.run(
            self._create([NewTopic(t, PARTITIONS, configs=KEPT) for t in [*topics, "facts"]])
        )
        rows = [(key, value, 0) for key, value in FACTS.items()]
        asyncio.run(self._send({"facts": rows}))

    async def _create(self, topics: list[NewTopic]) -> None:
        async with Admin(self.address) as admin:
            await admin.create_topics(topics)

    async def _send(self, rows: dict[str, list[tuple[str, int, int]]]) -> None:
        async with Producer(self.address) as producer:
            for topic, own in rows.items():
                keys = [key.encode() for key, _, _ in own]
                values: list[bytes | None] = [v.to_bytes(8, "big", signed=True) for _, v, _ in own]
                await producer.send_columns(topic, Columns(keys, values, [t for _, _, t in own]))

    def send(self) -> None:
        """More records of both streams, all of different values, in the order of their times."""
        first = len(self.sent.left)
        self.note()
        rows = {"left": self.sent.left[first:], "right": self.sent.right[first:]}
        asyncio.run(self._send(rows))

    def note(self) -> None:
        """The same records, which have been sent already."""
        first = len(self.sent.left)
        numbers = range(first, first + ROUND)
        self.sent.left.extend((f"k{v % 12}", v, v * 10 + 10) for v in numbers)
        self.sent.right.extend((f"k{v * 5 % 12}", v, v * 10 + 13) for v in numbers)

    def _close_windows(self) -> None:
        """Sends records far in the future, into every partition."""

        async def send() -> None:
            async with Producer(self.address) as producer:
                for topic in ("left", "right"):
                    for p in range(PARTITIONS):
                        rows = Columns([b"end"], [(-1).to_bytes(8, "big", signed=True)], [END_MS])
                        await producer.send_columns(topic, rows, partition=p)

        asyncio.run(send())

    def start(self, instance: str) -> None:
        """A process with a worker of each application."""
        self.workers[instance] = subprocess.Popen(self._command(instance, self.topologies))

    def _command(self, instance: str, names: Iterable[str], *more: str) -> list[str]:
        state = str(self.folder)
        return [sys.executable, str(APPS), self.address, state, instance, ",".join(names), *more]

    def went_on(self, before: dict[str, int]) -> bool:
        """Whether every output has grown: a fault is to hit work."""
        return all(
            len(self.read(name)) > before[name]
            for name, each in self.topologies.items()
            if not each.waits
        )

    def kill(self, instance: str) -> None:
        """kill -9, whatever it does."""
        os.kill(self.workers[instance].pid, signal.SIGKILL)
        self.workers.pop(instance).wait()

    def stop(self) -> None:
        """Stops whoever runs."""
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            # SIGTERM ends a process at once that has not begun yet.
            assert worker.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)
        self.workers.clear()

    def catch_up(self, instance: str, names: Iterable[str] | None = None) -> None:
        """A process that does whatever is left to do."""
        command = self._command(instance, names or self.topologies, "once")
        subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)

    def finish(self, instance: str = "last") -> None:
        """All that was sent is done, then all windows are closed."""
        self.stop()
        self.catch_up(instance)
        self._close_windows()
        self.catch_up(instance)

    def check(self, name: str) -> None:
        """Compares an output with plain Python."""
        topology = self.topologies[name]
        # The records that close windows lead to some of their own.
        found = [(key, value) for key, value in self.read(name) if "end" not in str(key)]
        expected = [(key, value) for key, value in topology.rows(self.sent)]
        if topology.is_table:
            latest = {json.dumps(key): value for key, value in found}
            rows = {key: value for key, value in latest.items() if value is not None}
            assert rows == {json.dumps(key): value for key, value in expected}
        else:
            assert Counter(map(json.dumps, found)) == Counter(map(json.dumps, expected))

    def read(self, topic: str) -> list[tuple[Any, Any]]:
        """The committed records of a topic."""
        columns = asyncio.run(read_topic(self.address, topic, PARTITIONS))
        return [
            (json.loads(key or b""), None if value is None else json.loads(value))
            for key, value in zip(columns.keys, columns.values, strict=True)
        ]
