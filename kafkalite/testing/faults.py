"""What may happen to a replicated cluster, several things at a time, and never too many.     [IO]

    faults = Faults(cluster, works)
    faults.live(20)        twenty times something begins or ends
    faults.heal()          all ends; every replica is in sync again

Brokers are killed, stopped, paused, cut off from others, from clients or from the coordination, one
way or both, and their clocks are set; sessions expire, answers of the coordination get lost, its
server goes away; disks fill up or refuse what they are asked, syncs among it. Operators move
replicas, let topics grow, delete them, throttle replication (`kafkalite.testing.operators`). Of
these any number may happen at once: they lose nothing, but what `kafkalite.testing.checkers`
forgives.

A broker that loses its disk, or the tail of its logs, is another matter. Replicas do not wait for
their disks, so min.insync.replicas = 2 promises that one may. So it happens where, of each
partition, another member of the in-sync set is sound, and nothing else happens to the others until
the controller has written what follows from it. From then on the broker has to fetch before it
counts again, and the others may suffer. The last member may lose what it has, too, while another
replica is eligible (KIP-966) and its process lives: that has all that is committed. So may an
eligible one, unless the last member's disk has refused to sync.

Owns   what is going on, and what may be lost.
Never  leaves a broker away for good: what ends by itself is started again.
Fails  with Stuck where the cluster does not heal.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.types import TopicPartition
from kafkalite.errors import KafkaliteError
from kafkalite.node import Node
from kafkalite.testing.cluster import ReplicatedCluster
from kafkalite.testing.event_loop import NS
from kafkalite.testing.operators import Operator
from kafkalite.testing.workload import Workload

PAUSES: Final = (0.01, 0.3, 2, 4)  # seconds, at most, between two events
STANDING_MAX: Final = 5
RATES: Final = (500, 3_000, 20_000)  # of replication that is throttled, in bytes a second
CHANGES_MAX: Final = 300  # of a disk until its machine loses power
HEAL_SECONDS: Final = 120
SLOW_BYTES_PER_SECOND: Final = 5_000

CLOCKS_AHEAD: Final = (1, 60, 3_000, 80_000)  # seconds, at most: less than a producer id lives
CLOCKS_BEHIND: Final = (-1, -60, -3_000)
OPERATIONS: Final = ("append", "truncate", "rename", "delete", "create", "replace")
SPARE_PROCESSES: Final = frozenset({"pause", "isolate", "cut", "slow"})

STALE_SECONDS: Final = 5  # until a broker that was cut off has heard what happened meanwhile
MAKE_STALE: Final = frozenset({"pause", "isolate", "cut"})

Way = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Something that goes on until `end` is called. `brokers` are those that suffer."""

    name: str
    end: Callable[[], None]
    began: float  # in the world's seconds
    brokers: frozenset[int] = frozenset()
    ways: frozenset[Way] = frozenset()  # that are cut


class Faults:
    """The troubles of one cluster and its clients."""

    def __init__(
        self,
        cluster: ReplicatedCluster,
        works: Sequence[Workload],
        operator: Operator,
        kinds: Sequence[str] | None = None,
    ) -> None:
        self.cluster, self.works, self.operator = cluster, works, operator
        for work in works:
            work.history.staleness = STALE_SECONDS
        self.random = cluster.random
        self.kinds = FAULTS if kinds is None else kinds
        self.standing: list[Standing] = []
        self.counts: dict[str, int] = {}  # how often each has begun
        self._starting: list[asyncio.Task[Node]] = []
        self._armed: set[int] = set()  # whose machines are about to lose power
        self._losing: int | None = None  # it lacks what it had, and may still count
        self._spoiled: set[int] = set()  # whose logs have failed until they are started again

    # ---- the life of a cluster -----------------------------------------------------------------

    def live(self, events: int) -> None:
        """So often something begins or ends."""
        for _ in range(events):
            self.pass_seconds(self.random.choice(PAUSES) * self.random.random())
            if self.standing and self.random.random() < len(self.standing) / STANDING_MAX:
                self._end(self.random.choice(self.standing))
            else:
                name = self.random.choice(self.kinds)
                act = getattr(self, name, None) or getattr(self.operator, name)
                if act():
                    self.counts[name] = self.counts.get(name, 0) + 1

    def pass_seconds(self, seconds: float) -> None:
        """Lets time pass. Processes that end are started again, machines lose their power."""
        time = self.cluster.world.time
        until_ns = time.now_ns + round(seconds * NS)

        def is_over() -> bool:
            return time.now_ns >= until_ns or (
                bool(self._armed or self._starting) and self._is_due()  # seldom
            )

        while time.now_ns < until_ns:
            self._look()
            self.cluster.run(is_over, seconds + 1)
        self._look()

    def heal(self) -> None:
        """Everything ends; returns once every replica is in sync."""
        until = self.cluster.seconds + HEAL_SECONDS
        while True:
            for node_id in tuple(self._armed):
                self._power_off(node_id)
            for broker in self.cluster.brokers.values():
                broker.storage.spare()
            while self.standing:
                self._end(self.standing[0])
            if self.operator.is_done() and self.operator.is_throttled():
                self.operator.end_throttle()  # the request for it came late
            if self.is_whole():
                return
            if self.cluster.seconds >= until:
                self.cluster.run(self.is_whole, 0)  # which says so
            self.pass_seconds(0.5)

    def is_whole(self) -> bool:
        """Whether all brokers run, nobody changes anything, and all replicas are in sync."""
        if any(broker.node is None for broker in self.cluster.brokers.values()):
            return False
        if self._spoiled or not self.operator.is_done():
            return False
        return all(
            {*each.in_sync_replicas} == {*each.replicas} and not each.is_moving
            for _, each in self._partitions()
        )

    # ---- brokers -------------------------------------------------------------------------------

    def kill(self) -> bool:
        """SIGKILL; the disk is as it was."""
        node_id = self._victim()
        if node_id is None:
            return False
        self.cluster.kill(node_id)
        self._armed.discard(node_id)
        self._away(node_id)
        return True

    def crash(self) -> bool:
        """The machine loses power: now, or in the midst of a change of its disk. Now where a topic
        may commit what one replica alone has: it may be that one's by then."""
        node_id = self._victim()
        if node_id is None:
            return False
        at_once = self.random.random() < 0.5 or bool(self.operator.may_lose)
        if not self._may_lose(node_id, at_once=at_once):
            return False
        self._losing = node_id
        if at_once:
            self._power_off(node_id)
            return True
        changes, share = self.random.randint(1, CHANGES_MAX), self.random.random()
        self.cluster.note(f"broker-{node_id} loses power in {changes} changes")
        self.cluster.brokers[node_id].storage.crash_after(changes, share=share)
        self._armed.add(node_id)
        return True

    def lose_disk(self) -> bool:
        """The process is killed, and its disk is another when it starts again."""
        node_id = self._victim()
        if node_id is None or not self._may_lose(node_id, at_once=True):
            return False
        self._losing = node_id
        self.cluster.kill(node_id)
        self.cluster.lose_disk(node_id)
        self._away(node_id)
        return True

    def stop(self) -> bool:
        """SIGTERM, and SIGKILL if it takes longer than the fault."""
        node_id = self._victim()
        if node_id is None or self.cluster.brokers[node_id].node is None or node_id in self._armed:
            return False
        self.cluster.begin_stop(node_id)

        def end() -> None:
            if self.cluster.brokers[node_id].is_running and not self.cluster.end_stop(node_id):
                self.cluster.kill(node_id)
            self.cluster.start(node_id)

        self._begin("stop", end, {node_id})
        return True

    def pause(self) -> bool:
        """SIGSTOP, and SIGCONT."""
        node_id = self._victim()
        if node_id is None:
            return False
        self.cluster.pause(node_id)
        self._begin("pause", lambda: self.cluster.go_on(node_id), {node_id})
        return True

    def fill_disk(self) -> bool:
        """Some appends find a full disk."""
        node_id = self._spared()
        if node_id is None:
            return False
        self.cluster.note(f"broker-{node_id}'s disk is full")
        self.cluster.brokers[node_id].storage.fail("append", times=self.random.randint(1, 20))
        return True

    def break_disk(self) -> bool:
        """A disk refuses all changes for a while, or one kind of them a few times. What it refused
        to sync the broker takes for lost, until it is started again."""
        node_id = self._spared()
        if node_id is None:
            return False
        storage = self.cluster.brokers[node_id].storage
        what = self.random.choice(("all", "all", "sync", *OPERATIONS))
        self.cluster.note(f"broker-{node_id}'s disk refuses {what}")
        if what == "all":
            storage.break_down()
        else:
            storage.fail(what, errno.EIO, times=self.random.randint(1, 10))

        def end() -> None:
            self.cluster.note(f"broker-{node_id}'s disk is well")
            self.cluster.brokers[node_id].storage.spare()
            self._spoiled.add(node_id)

        self._begin("disk", end, {node_id})
        return True

    def set_clock(self) -> bool:
        """The wall clock of a broker's machine is set, or set right. Not back by an hour: records
        of that time come from the future, and are refused."""
        node_id = self._one()
        most = self.random.choice((0, *CLOCKS_AHEAD, *CLOCKS_BEHIND))
        self.cluster.set_clock(node_id, most * self.random.random())
        return True

    # ---- the network ---------------------------------------------------------------------------

    def isolate(self) -> bool:
        """Cuts a broker off: from all, from brokers alone or from one of them, or one way."""
        node_id = self._spared()
        if node_id is None:
            return False
        name = self.cluster.brokers[node_id].name
        brokers = [broker.name for broker in self.cluster.brokers.values()]
        one = self.random.choice([each for each in brokers if each != name])
        others = self.random.choice((self.cluster.names(), brokers, [one]))
        kind = self.random.choice(("both", "both", "out", "in"))
        out = {(name, other) for other in others if other != name}
        back = {(other, name) for name, other in out}
        ways = frozenset((out if kind != "in" else set()) | (back if kind != "out" else set()))
        loses = self.random.random() < 0.3
        with_coordination = kind == "both" and self.random.random() < 0.5
        self.cluster.note(f"cut {name} {kind} {len(ways)} {loses} {with_coordination}")
        for way in sorted(ways):
            self.cluster.world.network.cut(*way, loses=loses)
        if with_coordination:
            self.cluster.server.cut(name)

        def end() -> None:
            self.cluster.note(f"heal {name}")
            kept = {way for each in self.standing for way in each.ways}
            self.cluster.world.network.heal(ways - kept)
            if with_coordination:
                self.cluster.server.restore(name)

        self._begin("isolate", end, {node_id}, ways)
        return True

    def cut_off_coordination(self) -> bool:
        """Nothing passes between a broker and the coordination."""
        node_id = self._spared()
        if node_id is None:
            return False
        name = self.cluster.brokers[node_id].name
        self.cluster.server.cut(name)
        self._begin("cut", lambda: self.cluster.server.restore(name), {node_id})
        return True

    def reset(self) -> bool:
        """All connections of a broker break once."""
        name = self.cluster.brokers[self._one()].name
        self.cluster.note(f"reset {name}")
        for other in self.cluster.names():
            if other != name:
                self.cluster.world.network.reset(name, other)
        return True

    def slow(self) -> bool:
        """What a broker sends takes its time."""
        node_id = self._spared()
        if node_id is None:
            return False
        name, network = self.cluster.brokers[node_id].name, self.cluster.world.network
        ways = [(name, other) for other in self.cluster.names() if other != name]
        self.cluster.note(f"slow {name}")
        for way in ways:
            network.slow(*way, SLOW_BYTES_PER_SECOND)

        def end() -> None:
            self.cluster.note(f"fast {name}")
            for way in ways:
                network.slow(*way, None)

        self._begin("slow", end, {node_id})
        return True

    def throttle(self) -> bool:
        """Replicas that are not in sync get little."""
        if any(each.name == "throttle" for each in self.standing):
            return False
        self.operator.throttle(self.random.choice(RATES))
        self._begin("throttle", self.operator.end_throttle)
        return True

    # ---- the coordination ----------------------------------------------------------------------

    def expire(self) -> bool:
        """A session ends, though its broker lives."""
        node_id = self._spared()
        if node_id is None:
            return False
        self.cluster.server.expire(self.cluster.brokers[node_id].name)
        return True

    def lose_answers(self) -> bool:
        """Writes to the coordination are done or not, and nobody hears of it."""
        server = self.cluster.server
        if server.lost_answers:
            return False
        server.lost_answers = self.random.choice((0.1, 0.5))

        def end() -> None:
            server.lost_answers = 0.0

        self._begin("lost answers", end)
        return True

    def stop_coordination(self) -> bool:
        """Its server is gone for a while. Sessions outlive it, or none does."""
        if any(each.name == "coordination" for each in self.standing):
            return False
        server, forgets = self.cluster.server, self.random.random() < 0.3

        def end() -> None:
            server.start()
            if forgets and self._losing is None:
                for broker in self.cluster.brokers.values():
                    server.expire(broker.name)

        server.stop()
        self._begin("coordination", end)
        return True

    # ---- clients -------------------------------------------------------------------------------

    def kill_client(self) -> bool:
        """A client is killed, and another takes its place."""
        self.random.choice(self.works).kill_one()
        return True

    def pause_client(self) -> bool:
        """A client does nothing for a while."""
        host = self.random.choice(list(self.works[0].programs))
        self.cluster.note(f"pause {host}")
        host.pause()

        def end() -> None:
            self.cluster.note(f"go on {host}")
            host.go_on()

        self._begin("pause client", end)
        return True

    # ---- what may happen -----------------------------------------------------------------------

    def _one(self) -> int:
        return self.random.choice(list(self.cluster.brokers))

    def _spared(self) -> int | None:
        """A broker that may suffer, if the one that chance finds may."""
        node_id = self._one()
        return node_id if self._losing in (None, node_id) else None

    def _victim(self) -> int | None:
        """One whose process runs, and neither stops nor is paused."""
        node_id = self._spared()
        if node_id is None:
            return None
        broker = self.cluster.brokers[node_id]
        is_there = broker.host is not None and not broker.host.is_paused
        return node_id if is_there and broker.stopping is None else None

    def _may_lose(self, node_id: int, *, at_once: bool) -> bool:
        """Whether of each partition another member of the in-sync set is sound and will stay. Where
        replicas may be moved all other brokers must be sound: any of them may go."""
        if self._losing is not None:
            return False
        suffering = {each for standing in self.standing for each in standing.brokers}
        sound = self.cluster.brokers.keys() - suffering - self._spoiled - {node_id}
        if self.operator.has_moved and len(sound) < len(self.cluster.brokers) - 1:
            return False
        return all(
            self._is_spare(node_id, image)
            or any(
                node in image.in_sync_replicas and self._stays(node, where, image) for node in sound
            )
            or (at_once and self._has_eligible(where, image))
            for where, image in self._partitions()
        )

    def _is_spare(self, node_id: int, image: PartitionImage) -> bool:
        """Whether nobody needs what a replica has: it may not lead, or a member of the in-sync set
        has as much on a sound disk, though its process may be paused, or that disk full."""
        if node_id in image.in_sync_replicas:
            return False
        unsound = {node for each in self.standing if each.name == "disk" for node in each.brokers}
        unsound |= self._spoiled | self._armed
        is_eligible = node_id in image.eligible_leader_replicas
        return not is_eligible or not unsound.issuperset(image.in_sync_replicas)

    def _has_eligible(self, where: TopicPartition, image: PartitionImage) -> bool:
        """Whether the last member of the in-sync set does not ask for others, and the process of an
        eligible replica lives: paused, or cut off, or well."""
        (leader,) = image.in_sync_replicas[:1]
        found = self.cluster.brokers[leader].node
        partition = None if found is None else found.broker.partitions.find(*where)
        led = None if partition is None else partition.replication.leader
        if led is None or led.asked is not None or len(image.in_sync_replicas) > 1:
            return False
        return any(self._lives(node) for node in image.eligible_leader_replicas)

    def _lives(self, node_id: int) -> bool:
        """Whether a broker's process will go on, whatever standing faults end, and its start is
        accounted for."""
        if any(
            node_id in each.brokers and each.name not in SPARE_PROCESSES for each in self.standing
        ):
            return False
        broker = self.cluster.brokers[node_id]
        if broker.node is None or node_id in self._armed or node_id in self._spoiled:
            return False
        started = broker.node.broker.broker_epoch
        return self.cluster.truth().settled_epochs.get(node_id) == started

    def _stays(self, node_id: int, where: TopicPartition, image: PartitionImage) -> bool:
        """Whether a broker's start is accounted for, its disk takes what it is given, and no leader
        asks to be rid of it."""
        truth = self.cluster.truth()
        registered, broker = truth.brokers.get(node_id), self.cluster.brokers[node_id]
        if broker.node is None or registered is None:
            return False
        if node_id in self._armed or broker.storage.will_fail:
            return False
        if not broker.node.broker.has_told_failures:
            return False
        if truth.settled_epochs.get(node_id) != registered.epoch:
            return False
        for other in self.cluster.brokers.values():
            found = None if other.node is None else other.node.broker.partitions.find(*where)
            leader = None if found is None else found.replication.leader
            asked = None if leader is None else leader.asked
            if asked is not None and node_id not in asked.node_ids:
                return False
        return True

    def _partitions(self) -> list[tuple[TopicPartition, PartitionImage]]:
        return [
            (TopicPartition(topic.name, number), image)
            for topic in self.cluster.truth().topics.values()
            for number, image in enumerate(topic.partitions)
        ]

    def _is_settled(self, node_id: int) -> bool:
        """Whether the controller has written what follows from a loss: the broker counts nowhere,
        or as its new start."""
        truth = self.cluster.truth()
        registered = truth.brokers.get(node_id)
        if registered is not None:
            broker = self.cluster.brokers[node_id]
            started = broker.node is not None and broker.node.broker.broker_epoch
            is_settled = truth.settled_epochs.get(node_id) == registered.epoch == started
            if not is_settled:
                return False
        elif any(
            node_id in (*image.in_sync_replicas, *image.eligible_leader_replicas)
            for _, image in self._partitions()
        ):
            return False
        return True

    # ---- parts ---------------------------------------------------------------------------------

    def _begin(
        self,
        name: str,
        end: Callable[[], None],
        brokers: set[int] | None = None,
        ways: frozenset[Way] = frozenset(),
    ) -> None:
        began = self.cluster.seconds
        self.standing.append(Standing(name, end, began, frozenset(brokers or ()), ways))

    def _end(self, standing: Standing) -> None:
        self.standing.remove(standing)
        standing.end()
        if standing.name in MAKE_STALE:
            for work in self.works:
                work.history.stale.append((standing.began, self.cluster.seconds + STALE_SECONDS))

    def _away(self, node_id: int) -> None:
        """A broker is gone until its fault ends."""
        self._begin("away", lambda: self.cluster.start(node_id), {node_id})

    def _power_off(self, node_id: int) -> None:
        self._armed.discard(node_id)
        self.standing = [
            each for each in self.standing if each.name != "pause" or node_id not in each.brokers
        ]
        self.cluster.crash(node_id)
        self._away(node_id)

    def _is_due(self) -> bool:
        """Whether a machine has lost power, or a start has ended."""
        brokers = self.cluster.brokers
        if any(brokers[node_id].storage.is_without_power for node_id in self._armed):
            return True
        return any(starting.done() for starting in self._starting)

    def _look(self) -> None:
        brokers = self.cluster.brokers
        for node_id in sorted(self._armed):
            if brokers[node_id].storage.is_without_power:
                self._power_off(node_id)
        for node_id, broker in brokers.items():
            starting = broker.starting
            if starting is not None and starting.done() and broker.node is None:
                error = starting.exception()
                if not isinstance(error, KafkaliteError):
                    self.cluster.defects.append(f"{broker.name} does not start: {error!r}")
                self._armed.discard(node_id)
                self.cluster.kill(node_id)
                self._away(node_id)
        for node_id in sorted(self._spoiled):
            broker = brokers[node_id]
            if broker.host is None:  # a start follows
                self._spoiled.discard(node_id)
            elif self._losing not in (None, node_id):
                continue
            elif not broker.host.is_paused and broker.stopping is None:
                self._spoiled.discard(node_id)
                self._armed.discard(node_id)
                self.cluster.kill(node_id)
                self.cluster.start(node_id)
        tasks = [each.starting for each in brokers.values() if each.starting is not None]
        self._starting = [task for task in tasks if not task.done()]
        losing = self._losing
        if losing is not None and losing not in self._armed and self._is_settled(losing):
            self._losing = None


FAULTS: Final = (
    "kill", "kill", "crash", "crash", "lose_disk", "stop", "pause", "pause", "fill_disk",
    "isolate", "isolate", "cut_off_coordination", "reset", "slow", "expire", "lose_answers",
    "stop_coordination", "kill_client", "break_disk", "set_clock", "pause_client",
    "move", "move", "move", "cancel", "elect", "grow", "recreate", "recreate",
)  # fmt: skip
