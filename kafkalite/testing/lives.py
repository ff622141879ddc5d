"""One life of a replicated cluster from one seed: begun, disturbed, healed and checked.       [IO]

    life = lived(seed)
    assert life.violations == []

Every life has a topic whose acknowledged records must stay. In a third of them there is another one
that allows unclean elections, in a third one that is deleted and made again now and then. In half
of them brokers and consumers are in racks, consumers read followers, and replication is throttled.

Owns   which clients work, and what is checked in the end.
Fails  with Stuck where the cluster does not heal, or a client does not come to its end. Then, and
       after violations, it prints the line that replays the life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.core.replicas.selection import RACK_AWARE
from kafkalite.core.types import TopicPartition
from kafkalite.testing.checkers import at_rest, check_all
from kafkalite.testing.cluster import ReplicatedCluster
from kafkalite.testing.faults import FAULTS, Faults
from kafkalite.testing.observer import Observer
from kafkalite.testing.operators import Operator
from kafkalite.testing.workload import Workload

EVENTS: Final = 20
NEVER_MS: Final = 10**7  # a client waits for its brokers, however long they are away
PROGRAMS: Final = ("produce", "produce", "produce_hastily", "transact", "read", "look", "consume")
SIDE_PROGRAMS: Final = ("produce_anew", "read")
LOOSE: Final = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
SESSION_MS: Final = 2_000  # of a broker: much is to happen in a short time
SETTINGS: Final = {
    "auto.create.topics.enable": "false",  # with another number of replicas
    "leader.imbalance.check.interval.seconds": "4",
    "leader.imbalance.per.broker.percentage": "0",
    "replica.lag.time.max.ms": "3000",
}
RACKS: Final = {1: "rack-1", 2: "rack-2", 3: "rack-3"}
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
    unclean: int  # leader epochs that a replica began which was not in sync
    deleted: int  # partitions that began anew


def lived(
    seed: int,
    events: int = EVENTS,
    programs: Sequence[str] = PROGRAMS,
    faults: Sequence[str] = FAULTS,
    *,
    has_racks: bool | None = None,
) -> Life:
    """A life in which so many things happen. The seed says whether there are racks, if nobody
    else does."""
    if has_racks is None:
        has_racks = Random(f"{seed}/racks").random() < 0.5
    settings = {**SETTINGS, "replica.selector.class": RACK_AWARE} if has_racks else SETTINGS
    racks = RACKS if has_racks else None
    with ReplicatedCluster(
        seed, settings=settings, session_timeout_ms=SESSION_MS, racks=racks
    ) as cluster:
        cluster.start_all()
        clients = partial(cluster.client, unavailable_after_ms=NEVER_MS)
        side = cluster.chance("topics").choice((None, "loose", "brief"))
        works = [Workload(cluster, clients, partitions=2, replication_factor=3, programs=programs)]
        if side is not None:
            works.append(_side_work(cluster, clients, side))
        for work in works:
            work.begin()
        Observer(cluster, {work.topic: work.history for work in works})
        by_side = {work.name: [work] for work in works}
        operator = Operator(
            cluster,
            cluster.client,
            grows=works[:1],
            may_lose=by_side.get("loose", ()),
            may_vanish=by_side.get("brief", ()),
        )
        more = ("recreate",) * 4 if side == "brief" else ()
        rates = ("throttle",) * 2 if has_racks else ()
        troubles = Faults(cluster, works, operator, (*faults, *more, *rates))
        troubles.live(events)
        troubles.heal()
        for work in works:
            work.is_stopping = True
        broken = [each for work in works for each in _ended(cluster, work)] + cluster.defects
        if broken:
            cluster.say_replay_line()
        topics = cluster.truth().topics
        return Life(
            seed,
            broken,
            sum(send.offset is not None for work in works for send in work.history.sends),
            sum(each.leader_epoch for each in topics[works[0].topic].partitions),
            troubles.counts,
            cluster.digest,
            cluster.seconds,
            sum(map(len, (u for w in works for u in w.history.unclean_epochs.values()))),
            sum(len(work.history.deleted_at) for work in works),
        )


def _side_work(cluster: ReplicatedCluster, clients: Callable[..., Client], side: str) -> Workload:
    return Workload(
        cluster,
        clients,
        name=side,
        partitions=1,
        replication_factor=2 if side == "loose" else 3,
        programs=SIDE_PROGRAMS,
        configs=LOOSE if side == "loose" else {},
    )


def _ended(cluster: ReplicatedCluster, work: Workload) -> list[str]:
    """Lets the clients end; what the history has against the cluster."""
    work.once("maker", work.make_topic())
    work.finish()
    _rest(cluster, work.topic)
    history = work.history
    history.replicas = cluster.replicas(work.topic)
    return [str(each) for each in (*check_all(history), *at_rest(history))]


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
