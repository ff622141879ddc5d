"""kill -9 of one of two workers: how long until every partition's records come out again.

A client sends 50 records a second to each partition. A partition has come back once as many records
have come out as had gone in a moment after the kill. Sessions are as either side has them by
default: 3 s here, 45 s in Kafka Streams.

| case | |
|---|---|
| failover | no state |
| failover-memory | the last value of a fifth as many keys as records, no standbys; ours alone |
| failover-disk | the same, with a state directory for each worker |
"""

from __future__ import annotations

import shutil
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

NAMES: Final = ("failover", "failover-memory", "failover-disk")
SOURCE: Final = "live-failover"
FILLED: Final = "live-failover-updates"
KEYS_TRIED: Final = [b"k%d" % number for number in range(100)]
PAUSE_SECONDS: Final = 0.02
SETTLE_SECONDS_MAX: Final = 60
FILL_SECONDS_MAX: Final = 600
COMMIT_INTERVAL: Final = "1s"
CALM_SECONDS: Final = 8  # after both are members: tasks move
KEYS: Final = tuple(  # one for each partition, of the input and of the results
    next(key for key in KEYS_TRIED if to_positive(murmur2(key)) % PARTITIONS == partition)
    for partition in range(PARTITIONS)
)
BACK_SECONDS_MAX: Final = 120


class Feed:
    """Records into every partition, and how many came out of each."""

    def __init__(self, producer: Producer, admin: Admin, source: str, target: str) -> None:
        self._producer, self._admin = producer, admin
        self._source, self._target = source, target
        self.sent = 0  # to each partition
        self._before = [0] * PARTITIONS  # what came out of each without our sending

    def wait_for(self, records: int) -> None:
        """Returns once the results of so many records that were there before have come out."""
        until = time.monotonic() + FILL_SECONDS_MAX
        while sum(self._before) < records:
            if time.monotonic() > until:
                raise SystemExit(f"{sum(self._before)} of {records} records have come out")
            time.sleep(PAUSE_SECONDS)
            self._before = self._ends()

    def step(self) -> None:
        """One record into each."""
        for key in KEYS:
            self._producer.send(self._source, value(self.sent), key=key)
        self.sent += 1
        time.sleep(PAUSE_SECONDS)

    def out(self) -> list[int]:
        """How many of our records have come out of each partition."""
        return [end - first for end, first in zip(self._ends(), self._before, strict=True)]

    def _ends(self) -> list[int]:
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
        feed = Feed(producer, admin, SOURCE, target)
        one, two = (side.serving(SOURCE, target, topology, **each) for each in options)
        with serving(one, folder), serving(two, folder) as process:
            wait_for_two(feed, target)
            process.kill()
            return {"all_tasks_run_s": seconds_until_back(feed)}


def measure_with_state(side: Ours, *, on_disk: bool) -> dict[str, float]:
    """The worker that dies had all of the state before the other one came."""
    folder, source = Path(side.broker.directory), side.input(FILLED)
    with side.target() as target, Producer(side.address) as producer, Admin(side.address) as admin:
        feed = Feed(producer, admin, source, target)
        place = folder / f"state-{target}"
        options: dict[str, Any] = {
            "processing_guarantee": "at_least_once",
            "commit_interval": COMMIT_INTERVAL,  # else what was not committed is done again
        }
        one, two = (
            options | ({"state_dir": str(place / name)} if on_disk else {})
            for name in ("one", "two")
        )
        topology = "latest-every-update"
        with serving(side.serving(source, target, topology, **one), folder) as process:
            feed.wait_for(side.sizes[source])
            with serving(side.serving(source, target, topology, **two), folder):
                wait_for_two(feed, target)
                process.kill()
                seconds = seconds_until_back(feed)
        side.sizes[source] += feed.sent * PARTITIONS
        shutil.rmtree(place, ignore_errors=True)
        return {"all_tasks_run_s": seconds}


def run(name: str, ours: Ours, peer: Peer | None, report: Report) -> None:
    """One round; each side begins with a fresh input, but for the records that make the state."""
    if name != "failover":
        report.add(name, OURS, measure_with_state(ours, on_disk=name == "failover-disk"))
        return
    for side in (ours, peer):
        if side is not None:
            create(side.address, SOURCE)
    at_least_once = {"processing_guarantee": "at_least_once"}
    report.add(name, OURS, measure(ours, "bytes", at_least_once, at_least_once))
    if peer is not None:
        with peer.state("one") as first, peer.state("two") as second:
            report.add(name, PEER, measure(peer, "stateless", {"dir": first}, {"dir": second}))
