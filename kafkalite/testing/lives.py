"""One life of a replicated cluster from one seed: begun, disturbed, healed and checked.       [IO]

    life = lived(seed)
    assert life.violations == []

Owns   which clients work, and what is checked in the end.
Fails  with Stuck where the cluster does not heal, or a client does not come to its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kafkalite.core.types import TopicPartition
from kafkalite.testing.checkers import at_rest, check_all
from kafkalite.testing.cluster import ReplicatedCluster
from kafkalite.testing.faults import Faults
from kafkalite.testing.observer import Observer
from kafkalite.testing.workload import Workload

EVENTS: Final = 20
NEVER_MS: Final = 10**7  # a client waits for its brokers, however long they are away
PROGRAMS: Final = ("produce", "produce", "produce_hastily", "transact", "read", "look", "consume")
SESSION_MS: Final = 2_000  # of a broker: much is to happen in a short time
SETTINGS: Final = {
    "leader.imbalance.check.interval.seconds": "4",
    "leader.imbalance.per.broker.percentage": "0",
    "replica.lag.time.max.ms": "3000",
}
REST_SECONDS: Final = 60  # in which every replica hears of the last high watermark


@dataclass(frozen=True, slots=True)
class Life:
    """What became of a cluster."""

    seed: int
    violations: Sequence[str]
    acknowledged: int  # records
    leader_epochs: int  # the sum of the partitions'
    faults: Mapping[str, int]
    digest: str  # equal for equal lives
    seconds: float


def lived(seed: int, events: int = EVENTS, programs: Sequence[str] = PROGRAMS) -> Life:
    """A life in which so many things happen."""
    with ReplicatedCluster(seed, settings=SETTINGS, session_timeout_ms=SESSION_MS) as cluster:
        cluster.start_all()
        clients = partial(cluster.client, unavailable_after_ms=NEVER_MS)
        work = Workload(cluster, clients, partitions=2, replication_factor=3, programs=programs)
        work.begin()
        Observer(cluster, {work.topic: work.history})
        faults = Faults(cluster, [work])
        faults.live(events)
        faults.heal()
        work.finish()
        _rest(cluster, work.topic)
        history = work.history
        history.replicas = cluster.replicas(work.topic)
        broken = [*check_all(history), *at_rest(history)]
        return Life(
            seed,
            [*map(str, broken), *cluster.defects],
            sum(send.offset is not None for send in history.sends),
            sum(each.leader_epoch for each in cluster.truth().topics[work.topic].partitions),
            faults.counts,
            cluster.digest,
            cluster.seconds,
        )


def _rest(cluster: ReplicatedCluster, topic: str) -> None:
    """Nobody writes any more, and all replicas come to the same end; if not, the checks say so."""
    until = cluster.seconds + REST_SECONDS
    while cluster.seconds < until and not _is_at_rest(cluster, topic):
        cluster.pass_seconds(1)


def _is_at_rest(cluster: ReplicatedCluster, topic: str) -> bool:
    ends: dict[TopicPartition, set[tuple[int, int]]] = {}
    for broker in cluster.brokers.values():
        for each in () if broker.node is None else broker.node.broker.partitions.of_topic(topic):
            found = each.log.high_watermark, each.log.log_end_offset
            ends.setdefault(each.topic_partition, set()).add(found)
    return all(len(found) == 1 for found in ends.values())
