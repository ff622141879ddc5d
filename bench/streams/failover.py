"""kill -9 of one of two workers: how long until every partition's records come out again.

A client sends 50 records a second to each partition. A partition has come back once as many records
have come out as had gone in a moment after the kill. Sessions are as either side has them by
default: 3 s here, 45 s in Kafka Streams.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.protocol.partitioner import murmur2, to_positive
from kafkalite.core.types import TopicPartition

from .inputs import PARTITIONS, create
from .latency import value
from .report import OURS, PEER, Report
from .serving import serving
from .sides import Ours, Peer, Streams

NAMES: Final = ("failover",)
SOURCE: Final = "live-failover"
KEYS_TRIED: Final = [b"k%d" % number for number in range(100)]
PAUSE_SECONDS: Final = 0.02
SETTLE_SECONDS_MAX: Final = 60
CALM_SECONDS: Final = 8  # after both are members: tasks move
KEYS: Final = tuple(  # one for each partition, of the input and of the results
    next(key for key in KEYS_TRIED if to_positive(murmur2(key)) % PARTITIONS == partition)
    for partition in range(PARTITIONS)
)
BACK_SECONDS_MAX: Final = 120


class Feed:
    """Records into every partition, and how many came out of each."""

    def __init__(self, producer: Producer, admin: Admin, target: str) -> None:
        self._producer, self._admin, self._target = producer, admin, target
        self.sent = 0  # to each partition

    def step(self) -> None:
        """One record into each."""
        for key in KEYS:
            self._producer.send(SOURCE, value(self.sent), key=key)
        self.sent += 1
        time.sleep(PAUSE_SECONDS)

    def out(self) -> list[int]:
        """How many records have come out of each partition."""
        partitions = [TopicPartition(self._target, p) for p in range(PARTITIONS)]
        ends = self._admin.end_offsets(partitions)
        return [ends[tp] for tp in partitions]

    def members(self, group: str) -> int:
        """How many members the group has, once it is at rest."""
        (found,) = self._admin.describe_groups([group])
        return len(found.members) if found.state == "Stable" else 0


def wait_for_two(feed: Feed, group: str) -> None:
    """Returns once two members share the tasks, and records flow."""
    until = time.monotonic() + SETTLE_SECONDS_MAX
    while feed.members(group) < 2 or not all(feed.out()):
        if time.monotonic() > until:
            raise SystemExit(f"{group}: two workers do not run after {SETTLE_SECONDS_MAX} s")
        feed.step()
    calm = time.monotonic() + CALM_SECONDS
    while time.monotonic() < calm:
        feed.step()


def seconds_until_back(feed: Feed) -> float:
    """From now on, until the last partition has come back."""
    killed = time.monotonic()
    wanted = feed.sent + 5
    feed.step()
    while not all(out >= wanted for out in feed.out()):
        if time.monotonic() > killed + BACK_SECONDS_MAX:
            raise SystemExit(f"partitions are not back after {BACK_SECONDS_MAX} s")
        feed.step()
    return time.monotonic() - killed


def measure(side: Streams, topology: str, *options: dict[str, Any]) -> dict[str, float]:
    """One side; `options` are those of each of the two workers."""
    folder = Path(side.broker.directory)
    with side.target() as target, Producer(side.address) as producer, Admin(side.address) as admin:
        feed = Feed(producer, admin, target)
        one, two = (side.serving(SOURCE, target, topology, **each) for each in options)
        with serving(one, folder), serving(two, folder) as process:
            wait_for_two(feed, target)
            process.kill()
            return {"all_tasks_run_s": seconds_until_back(feed)}


def run(name: str, ours: Ours, peer: Peer | None, report: Report) -> None:
    """One round; each side begins with a fresh input."""
    for side in (ours, peer):
        if side is not None:
            create(side.address, SOURCE)
    at_least_once = {"processing_guarantee": "at_least_once"}
    report.add(name, OURS, measure(ours, "bytes", at_least_once, at_least_once))
    if peer is not None:
        with peer.state("one") as first, peer.state("two") as second:
            report.add(name, PEER, measure(peer, "stateless", {"dir": first}, {"dir": second}))
