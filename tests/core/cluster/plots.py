"""Histories of a whole cluster with a plot: what chance brings about too rarely."""

from __future__ import annotations

from functools import partial

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.testing.checkers import History, at_rest, check_all
from kafkalite.testing.cluster import ReplicatedCluster
from kafkalite.testing.lives import LOOSE, NEVER_MS
from kafkalite.testing.observer import Observer
from kafkalite.testing.operators import Operator
from kafkalite.testing.workload import Workload


def last_member_loses_its_disk(seed: int) -> list[str]:
    """The leader is alone in sync, as the others are paused and their sessions have ended; its disk
    is replaced by an empty one. The others have all that is committed, but come back later."""
    with ReplicatedCluster(seed, session_timeout_ms=2_000) as cluster:
        cluster.start_all()
        work = Workload(
            cluster, partial(cluster.client, unavailable_after_ms=NEVER_MS),
            partitions=3, replication_factor=3, programs=("produce",),
        )  # fmt: skip
        work.begin()
        cluster.pass_seconds(2)
        last, *others = cluster.random.sample(sorted(cluster.brokers), 3)
        for other in others:
            cluster.pause(other)

        def partitions() -> list[PartitionImage]:
            return list(cluster.truth().topics[work.topic].partitions)

        cluster.run(lambda: all(p.in_sync_replicas == (last,) for p in partitions()), 60)
        cluster.kill(last)
        cluster.lose_disk(last)
        cluster.start(last)
        cluster.wait_for(last)
        cluster.pass_seconds(5)
        for other in others:
            cluster.go_on(other)
        cluster.run(lambda: all({*p.in_sync_replicas} == {1, 2, 3} for p in partitions()), 120)
        work.finish()
        assert sum(send.offset is not None for send in work.history.sends) > 20
        return [str(each) for each in check_all(work.history)]


def unclean_election(seed: int) -> History:
    """One of two replicas lacks what the other has, and leads once that is away. The topic allows
    it."""
    with ReplicatedCluster(seed, session_timeout_ms=2_000) as cluster:
        cluster.start_all()
        work = Workload(
            cluster, partial(cluster.client, unavailable_after_ms=NEVER_MS),
            partitions=1, replication_factor=2, programs=("produce_anew", "read"), configs=LOOSE,
        )  # fmt: skip
        work.begin()
        Observer(cluster, {work.topic: work.history})

        def partition() -> PartitionImage:
            return cluster.truth().topics[work.topic].partitions[0]

        cluster.pass_seconds(2)
        first, second = partition().replicas
        cluster.kill(second)
        cluster.run(lambda: partition().in_sync_replicas == (first,), 60)
        cluster.pass_seconds(3)
        cluster.kill(first)
        cluster.start(second)
        cluster.run(lambda: partition().leader == second, 60)
        cluster.pass_seconds(2)
        cluster.start(first)
        cluster.run(lambda: {*partition().in_sync_replicas} == {first, second}, 120)
        work.finish()
        return work.history


def topic_made_again_while_a_machine_is_off(seed: int) -> list[str]:
    """The machine had lost power: what its disk has of the topic may not say any more whose it is.
    The next topic of that name has a replica there."""
    settings = {"auto.create.topics.enable": "false"}
    with ReplicatedCluster(seed, settings=settings, session_timeout_ms=2_000) as cluster:
        cluster.start_all()
        work = Workload(
            cluster, partial(cluster.client, unavailable_after_ms=NEVER_MS),
            partitions=1, replication_factor=3, programs=("produce_anew",),
        )  # fmt: skip
        other = Workload(
            cluster, cluster.client, name="other", replication_factor=3, programs=("consume",)
        )  # so that the cluster counts on the broker while it is away
        for each in (work, other):
            each.begin()
        Observer(cluster, {work.topic: work.history})
        operator = Operator(cluster, cluster.client, grows=(), may_vanish=[work])

        def is_whole() -> bool:
            topic = cluster.truth().topics[work.topic]
            return all({*each.in_sync_replicas} == {1, 2, 3} for each in topic.partitions)

        cluster.pass_seconds(2)
        off = cluster.random.choice(sorted(cluster.brokers))
        cluster.crash(off)
        cluster.pass_seconds(4)
        operator.recreate()
        cluster.run(operator.is_done, 60)
        cluster.pass_seconds(1)
        cluster.start(off)
        cluster.run(is_whole, 60)
        work.finish()
        cluster.pass_seconds(2)
        history = work.history
        history.replicas = cluster.replicas(work.topic)
        assert history.deleted_at, "another topic has the name"
        return [str(each) for each in (*check_all(history), *at_rest(history))]
