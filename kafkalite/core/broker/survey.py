"""How large topics are, how far groups lag, what lacks replicas: one look, in slices.       [D]

    lag   the high watermark less the committed offset, for each group and partition that is held

Owns   the numbers of reported topics and lags. They are taken in the order of names, so that the
       same ones are reported each time; the others are counted.
Never  holds the loop for longer than a slice: PARTITIONS_PER_SLICE logs, and LAGS_PER_SLICE offsets
       or as many again.
Fails  not at all: topics and groups that vanish meanwhile are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.duties import Slices
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.shards import GroupCoordinators
from kafkalite.core.types import TopicPartition

if TYPE_CHECKING:
    from kafkalite.core.replicas.manager import Partitions

TOPICS_MAX: Final = 2_000
LAGS_MAX: Final = 5_000
PARTITIONS_PER_SLICE: Final = 64
LAGS_PER_SLICE: Final = 256


@dataclass(slots=True)
class Lags:
    """How many records groups have still to read: the i-th entries of all columns are one lag.

    Columns, as a page of metrics would else leave thousands of objects to the garbage collector,
    which holds the loop while it looks at them.
    """

    groups: list[str] = field(default_factory=list)
    partitions: list[TopicPartition] = field(default_factory=list)
    records: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[tuple[str, TopicPartition, int]]:
        return zip(self.groups, self.partitions, self.records, strict=True)

    def add(self, group: str, partition: TopicPartition, records: int) -> None:
        """One more lag."""
        self.groups.append(group)
        self.partitions.append(partition)
        self.records.append(records)


class Host(Protocol):
    """The survey's interface to the broker."""

    node_id: int
    partitions: Partitions
    groups: GroupCoordinators

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""


@dataclass(slots=True)
class Survey:
    """The results, complete once the slices of `take` have ended."""

    topic_bytes: dict[str, int] = field(default_factory=dict)  # of all logs held here
    topics_left_out: int = 0
    lags: Lags = field(default_factory=Lags)
    lags_left_out: int = 0
    leader_partitions: int = 0  # led by this broker; those below are among them
    under_replicated_partitions: int = 0  # not all of their replicas are in sync
    below_min_isr_partitions: int = 0  # acks=all is refused

    def take(self, host: Host) -> Slices:
        """Looks at everything."""
        yield from self._measure_topics(host)
        yield from self._count_led(host)
        yield from self._measure_lags(host)

    def _measure_topics(self, host: Host) -> Slices:
        names = sorted(host.image.topics)
        self.topics_left_out = max(0, len(names) - TOPICS_MAX)
        seen = 0
        for name in names[:TOPICS_MAX]:
            total = 0
            for partition in host.partitions.of_topic(name):
                total += partition.log.size_bytes
                seen += 1
                if seen % PARTITIONS_PER_SLICE == 0:
                    yield None
            self.topic_bytes[name] = total

    def _count_led(self, host: Host) -> Slices:
        seen = 0
        for topic in tuple(host.image.topics.values()):
            for index, partition in enumerate(topic.partitions):
                seen += 1
                if seen % PARTITIONS_PER_SLICE == 0:
                    yield None
                if partition.leader != host.node_id:
                    continue
                self.leader_partitions += 1
                in_sync, replicas = len(partition.in_sync_replicas), len(partition.replicas)
                held = host.partitions.find(topic.name, index)
                if in_sync == replicas or held is None:
                    continue
                self.under_replicated_partitions += 1
                least = min(held.log.config.min_insync_replicas, replicas)
                self.below_min_isr_partitions += in_sync < least

    def _measure_lags(self, host: Host) -> Slices:
        looked = 0
        for machine, group in _groups(host):
            partitions, offsets = machine.committed_offsets(group)
            looked += 1
            for first in range(0, len(offsets), LAGS_PER_SLICE):
                some = slice(first, first + LAGS_PER_SLICE)
                self._measure(host, group, partitions[some], offsets[some])
                looked += len(offsets[some])
                if looked >= LAGS_PER_SLICE:
                    yield None
                    looked = 0

    def _measure(
        self, host: Host, group: str, partitions: list[TopicPartition], offsets: list[int]
    ) -> None:
        for partition, offset in zip(partitions, offsets, strict=True):
            held = host.partitions.find(*partition)
            if held is None:
                continue
            if len(self.lags) < LAGS_MAX:
                self.lags.add(group, partition, max(0, held.log.high_watermark - offset))
            else:
                self.lags_left_out += 1


def _groups(host: Host) -> Iterator[tuple[GroupCoordinator, str]]:
    """The groups with offsets whose coordinators are here and loaded, by name."""
    found = [(name, machine) for machine in host.groups.machines() for name in machine.committing()]
    for name, machine in sorted(found, key=lambda pair: pair[0]):
        yield machine, name
