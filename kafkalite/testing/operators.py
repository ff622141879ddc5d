"""What operators do to a replicated cluster, while it is in use and in trouble.              [IO]

    operator = Operator(cluster, works, make_client)
    operator.move()        a partition gets other replicas, or the same in another order
    operator.cancel()      moves that are under way are taken back
    operator.elect()       preferred leaders lead again; where records may be lost, anybody
    operator.grow()        a topic gets one more partition
    operator.throttle(500) replication gets a rate, in bytes a second
    operator.recreate()    a topic is deleted and made again

Each is a program of its own, which asks any broker and gives up after a while: whether its request
was carried out, or will be, nobody knows then.

Owns   the programs that are not over yet.
Never  leaves a partition with fewer replicas than min.insync.replicas asks for.
Fails  by giving up; what is deleted is made again, however long that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.admin.cluster import ElectionType
from kafkalite.clients.admin.configs import EVERY_BROKER, ConfigResource, ResourceType
from kafkalite.clients.cluster import Client
from kafkalite.core.config.rates import FOLLOWER_RATE, LEADER_RATE
from kafkalite.core.replicas.throttling import EVERY_REPLICA, FOLLOWER_REPLICAS, LEADER_REPLICAS
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, KafkaliteError
from kafkalite.testing.cluster import ReplicatedCluster
from kafkalite.testing.simulation import Host
from kafkalite.testing.workload import Workload

PATIENCE_MS: Final = 5_000  # of one request
PARTITIONS_MAX: Final = 4  # of a topic that grows
MOVED_MAX: Final = 2  # partitions in one request
RETRY_SECONDS: Final = 0.5
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
REPLICAS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


class Operator:
    """Changes topics and moves replicas. `may_lose` are the works whose topics may have unclean
    elections, `may_vanish` those whose topics are deleted and made again."""

    def __init__(
        self,
        cluster: ReplicatedCluster,
        make_client: Callable[..., Client],
        *,
        grows: Sequence[Workload],
        may_lose: Sequence[Workload] = (),
        may_vanish: Sequence[Workload] = (),
    ) -> None:
        self.cluster = cluster
        self.has_moved = False  # a request to do so may be on its way, too
        self._random = cluster.random
        self._make_client = make_client
        self.may_lose = may_lose
        self._grows, self._may_vanish = grows, may_vanish
        self._numbers = count()
        self._programs: list[tuple[Host, asyncio.Task[Any]]] = []

    # ---- what he does: each says whether it has begun ------------------------------------------

    def move(self) -> bool:
        """Reassigns some partitions, of any topic."""
        wanted = self._new_places()
        self._begin(f"move {wanted}", lambda admin: admin.alter_partition_reassignments(wanted))
        return True

    def cancel(self) -> bool:
        """Takes all moves back that are under way, or one that has just begun."""
        moving = [where for where, is_moving in sorted(self._places().items()) if is_moving]
        wanted = {} if moving else self._new_places()

        async def cancel(admin: Admin) -> None:
            if wanted:
                await admin.alter_partition_reassignments(wanted)
                await asyncio.sleep(self._random.random() * RETRY_SECONDS)
            await admin.alter_partition_reassignments(dict.fromkeys(moving or wanted))

        self._begin(f"cancel {moving or wanted}", cancel)
        return True

    def elect(self) -> bool:
        """Lets preferred leaders lead, or any replica where records may be lost."""
        losing = [where for work in self.may_lose for where in work.partitions]
        if losing and self._random.random() < 0.5:
            self._begin("elect", lambda a: a.elect_leaders(losing, ElectionType.UNCLEAN))
        else:
            self._begin("elect", lambda a: a.elect_leaders(None, ElectionType.PREFERRED))
        return True

    def grow(self) -> bool:
        """A topic gets one more partition."""
        work = self._random.choice(self._grows)
        wanted = len(work.partitions) + 1
        if wanted > PARTITIONS_MAX:
            return False

        async def grow(admin: Admin) -> None:
            await admin.create_partitions({work.topic: wanted})
            work.partitions = [TopicPartition(work.topic, number) for number in range(wanted)]

        self._begin(f"grow {work.topic}", grow)
        return True

    def recreate(self) -> bool:
        """Deletes a topic and makes it again."""
        if not self._may_vanish or self._programs:
            return False
        work = self._random.choice(self._may_vanish)

        async def recreate(admin: Admin) -> None:
            with suppress(KafkaliteError):
                await admin.delete_topics([work.topic])
            await asyncio.sleep(self._random.random())
            while True:
                with suppress(KafkaliteError):  # too few brokers may be there, or none
                    await work.make_topic()
                    return
                await asyncio.sleep(RETRY_SECONDS)

        self._begin(f"recreate {work.topic}", recreate)
        return True

    def throttle(self, rate: int) -> None:
        """No broker gives more than that to followers out of sync, or takes more as one."""
        rates = {name: str(rate) for name in RATES}
        self._begin(f"throttle {rate}", partial(self._throttle, rates, EVERY_REPLICA))

    def end_throttle(self) -> None:
        """Takes the rate off again, however long that takes."""
        no_rates = dict.fromkeys(RATES)

        async def end(admin: Admin) -> None:
            while True:
                with suppress(KafkaliteError):
                    await self._throttle(no_rates, None, admin)
                    return
                await asyncio.sleep(RETRY_SECONDS)

        self._begin("no throttle", end)

    def is_throttled(self) -> bool:
        """Whether the cluster has a rate: a request for one may have come late."""
        return any(RATES[0] in configs for configs in self.cluster.truth().broker_configs.values())

    # ---- the end -------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Whether nobody asks for anything any more."""
        going_on = []
        for host, task in self._programs:
            if task.done():
                task.result()
                host.kill()
            else:
                going_on.append((host, task))
        self._programs = going_on
        return not going_on

    # ---- parts ---------------------------------------------------------------------------------

    async def _throttle(
        self, rates: Mapping[str, str | None], replicas: str | None, admin: Admin
    ) -> None:
        await admin.alter_configs(ConfigResource(ResourceType.BROKER, EVERY_BROKER), rates)
        for topic in self.cluster.truth().topics:
            resource = ConfigResource(ResourceType.TOPIC, topic)
            with suppress(ApiError):  # it may be deleted just now
                await admin.alter_configs(resource, dict.fromkeys(REPLICAS, replicas))

    def _new_places(self) -> dict[TopicPartition, Sequence[int] | None]:
        """Replicas for some partitions, which will be moved there."""
        self.has_moved = True
        places, nodes = sorted(self._places()), list(self.cluster.brokers)
        chosen = self._random.sample(places, min(len(places), self._random.randint(1, MOVED_MAX)))
        return {
            where: self._random.sample(nodes, self._random.choice((2, 3, 3))) for where in chosen
        }

    def _places(self) -> dict[TopicPartition, bool]:
        """All partitions, and whether they are being moved."""
        return {
            TopicPartition(topic.name, number): partition.is_moving
            for topic in self.cluster.truth().topics.values()
            for number, partition in enumerate(topic.partitions)
        }

    def _begin(self, what: str, act: Callable[[Admin], Coroutine[Any, Any, Any]]) -> None:
        self.is_done()
        host = self.cluster.host(f"operator-{next(self._numbers)}")
        self.cluster.note(what)
        self._programs.append((host, host.spawn(self._act(act))))

    async def _act(self, act: Callable[[Admin], Coroutine[Any, Any, Any]]) -> None:
        try:
            async with (
                self._make_client(unavailable_after_ms=PATIENCE_MS) as client,
                Admin(client) as admin,
            ):
                await act(admin)
        except KafkaliteError as error:
            self.cluster.note(f"given up: {error}")
