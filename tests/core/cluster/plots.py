"""Histories of a whole cluster with a plot: what chance brings about too rarely."""

from __future__ import annotations

from functools import partial

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.types import TopicPartition
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


def commit_that_was_given_up(seed: int) -> list[int | None]:
    """What a group has committed in the end. Its coordinator is cut off; another takes its place,
    takes an offset that the first one did not confirm, and a later one. What was sent to the first
    arrives once that is the coordinator again."""
    settings = {"leader.imbalance.check.interval.seconds": "1"}
    settings["leader.imbalance.per.broker.percentage"] = "0"
    with ReplicatedCluster(seed, settings=settings, session_timeout_ms=2_000) as cluster:
        cluster.start_all()
        network, group, where = cluster.world.network, "group", TopicPartition("log", 0)
        member, operator = cluster.host("member"), cluster.host("operator")
        consumer = Consumer(
            cluster.client(unavailable_after_ms=NEVER_MS), group_id=group, enable_auto_commit=False
        )

        async def make() -> None:
            async with cluster.client() as asking, Admin(asking) as admin:
                await admin.create_missing_topics([NewTopic("log", 1, 3)])

        async def begin() -> None:
            await consumer.start()
            consumer.assign([where])
            await consumer.commit({where: 1})

        async def coordinator() -> int:
            async with cluster.client(unavailable_after_ms=NEVER_MS) as asking:
                return await asking.coordinator(group)

        async def committed() -> int | None:
            async with (
                cluster.client(unavailable_after_ms=NEVER_MS) as asking,
                Consumer(asking, group_id=group) as consumer,
            ):
                found = (await consumer.committed([where])).get(where)
                return None if found is None else found.offset

        cluster.result(operator, make())
        cluster.result(member, begin())
        first = cluster.result(operator, coordinator())
        name = f"broker-{first}"
        cluster.isolate(first)
        cluster.server.cut(name)
        cluster.result(member, consumer.commit({where: 2}))
        cluster.result(member, consumer.commit({where: 3}))
        way, names = ("member", name), cluster.names()
        cut_ways = [(name, other) for other in names] + [(other, name) for other in names]
        network.heal([each for each in cut_ways if each != way])
        cluster.server.restore(name)
        until = cluster.seconds + 60
        while cluster.result(operator, coordinator()) != first and cluster.seconds < until:
            cluster.pass_seconds(1)
        seen = [cluster.result(operator, committed())]
        cluster.heal()
        cluster.pass_seconds(until - cluster.seconds + 60)
        return [*seen, cluster.result(operator, committed())]
