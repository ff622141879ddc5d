"""A rate that the replication of some partitions may not exceed: moves leave room for clients.  [P]

    record ──> bytes by window ──> the rate over the last windows ──> is_exceeded, until it fell

Windows that are over count in full until they leave; the present one, so far. So a burst may pass,
and is paid for by what comes after it. Bytes of partitions that are not throttled do not count.
Replicas in sync are never held back, though their bytes count.

Owns   the rate and the counted bytes of one direction: what a leader gives, or a follower takes.
Never  reads a clock.
Fails  never: without a rate nothing is counted and nothing exceeded.
Source KIP-73; apache/kafka `ReplicationQuotaManager`, `SimpleRate`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from kafkalite.core.config.rates import FOLLOWER_RATE, LEADER_RATE
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.types import TopicPartition

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
EVERY_REPLICA: Final = "*"
NO_REPLICAS: Final[frozenset[tuple[int, int]]] = frozenset()


@lru_cache(maxsize=4_096)
def _replicas(text: str) -> frozenset[tuple[int, int]] | None:
    """The (partition, broker) pairs of a topic's setting; None: all."""
    if text.strip() == EVERY_REPLICA:
        return None
    pairs = (pair.partition(":") for pair in text.replace(" ", "").split(",") if pair)
    return frozenset((int(partition), int(broker)) for partition, _, broker in pairs)


def is_throttled(configs: Mapping[str, str], name: str, partition: int, node_id: int) -> bool:
    """Whether a topic's setting `name` has the replica of `partition` on the broker `node_id`."""
    text = configs.get(name)
    if not text:
        return False
    named = _replicas(text)
    return named is None or (partition, node_id) in named


class Throttle:
    """The rate of one direction. `rate` is in bytes a second, None for no limit."""

    def __init__(self, windows: int, window_ms: int) -> None:
        self.rate: int | None = None
        self._windows_max = windows
        self._window_ms = window_ms
        self._windows: deque[tuple[int, int]] = deque()  # begin, bytes; the present one last

    def record(self, byte_count: int, now_ms: int) -> None:
        """Bytes of a throttled partition went over the network."""
        if self.rate is None:
            return
        self._forget(now_ms)
        begin = now_ms - now_ms % self._window_ms
        if self._windows and self._windows[-1][0] == begin:
            byte_count += self._windows.pop()[1]
        self._windows.append((begin, byte_count))

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether more went over the network lately than the rate allows."""
        if self.rate is None:
            return False
        self._forget(now_ms)
        if not self._windows:
            return False
        elapsed_ms = max(now_ms - self._windows[0][0], self._window_ms)
        return sum(count for _, count in self._windows) * 1_000 > self.rate * elapsed_ms

    def _forget(self, now_ms: int) -> None:
        oldest = now_ms - self._windows_max * self._window_ms
        while self._windows and self._windows[0][0] <= oldest:
            self._windows.popleft()


class Throttles:
    """Both directions of one broker, by its settings."""

    def __init__(self, node_id: int, windows: int, window_seconds: int) -> None:
        self.node_id = node_id
        self.leader = Throttle(windows, 1_000 * window_seconds)
        self.follower = Throttle(windows, 1_000 * window_seconds)

    def configure(self, config: BrokerConfig) -> None:
        """Takes the rates that were set for this broker, or for all."""
        for name, throttle in ((LEADER_RATE, self.leader), (FOLLOWER_RATE, self.follower)):
            text = config.dynamic.get(name, config.dynamic_default.get(name))
            throttle.rate = None if text is None else int(text)

    def gives(self, configs: Mapping[str, str], where: TopicPartition) -> bool:
        """Whether what this broker gives to followers of the partition counts."""
        if self.leader.rate is None:
            return False
        return is_throttled(configs, LEADER_REPLICAS, where.partition, self.node_id)

    def takes(self, configs: Mapping[str, str], where: TopicPartition) -> bool:
        """Whether what this broker takes as a follower of the partition counts."""
        if self.follower.rate is None:
            return False
        return is_throttled(configs, FOLLOWER_REPLICAS, where.partition, self.node_id)


def throttles_of(node_id: int, config: BrokerConfig) -> Throttles:
    """The throttles of a broker, whose rates follow."""
    windows: int = config["replication.quota.window.num"]
    return Throttles(node_id, windows, config["replication.quota.window.size.seconds"])
