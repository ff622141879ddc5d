"""A cluster in a few lists: the real controller, feed and followers; logs are Python lists.

    tree      what ZooKeeper would hold: the controller's records, and the registrations of live
              broker sessions
    process   a broker: its image, its logs, what its followers have fetched, what it asked for
    wire      AlterPartition requests that were sent; they arrive late, twice, or never

Brokers die with or without the tail of their logs, restart before anybody noticed, are replaced as
controllers in the middle of a step. Each step of the controller is checked (`check_step`): so is,
after each election, that the leader has all records that were acknowledged with acks=all and
min.insync.replicas=2, unless each member of the in-sync set lost its tail or may have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any
from uuid import UUID

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.controller import Controller
from kafkalite.core.cluster.delta import local_delta
from kafkalite.core.cluster.feed import Feed
from kafkalite.core.cluster.following import ImageFollower
from kafkalite.core.cluster.image import (
    NO_LEADER,
    ClusterImage,
    ClusterRecord,
    LeaderRecoveryState,
    PartitionImage,
    TopicImage,
)
from kafkalite.core.cluster.registrations import BrokerGone, BrokerRegistered, TakeOver
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.cluster import AlterPartitionReassignmentsRequest
from kafkalite.core.protocol.peers import (
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
    ControlledShutdownRequest,
)
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext
from kafkalite.errors import ErrorCode

MIN_IN_SYNC = 2

Where = tuple[str, int]  # a topic's id and a partition of it
Log = list[tuple[int, int]]  # leader epoch, record

_topic_id = lru_cache(UUID)  # by its hexadecimal digits


@dataclass
class Process:
    """A broker. Its disk outlives it."""

    node_id: int
    disk: dict[Where, Log] = field(default_factory=dict)
    epoch: int = -1
    is_up: bool = False
    stopped_cleanly: bool = False
    follower: ImageFollower = field(default_factory=ImageFollower)
    fetched: dict[tuple[Where, int], dict[int, tuple[int, int]]] = field(default_factory=dict)
    asked: dict[Where, tuple[int, frozenset[int]]] = field(default_factory=dict)
    led: tuple[ClusterImage | None, list[tuple[Where, PartitionImage]]] = None, []


class World:
    """A cluster and its accidents, all of one seed."""

    def __init__(self, seed: int, brokers: int = 4) -> None:
        self.chance = Random(seed)
        self.processes = {n: Process(n) for n in range(1, brokers + 1)}
        self.tree: dict[str, bytes] = {}
        self.gone: list[BrokerGone] = []  # sessions that ended, of which nobody heard yet
        self.wire: list[tuple[Where, AlterPartitionRequest]] = []
        self.broker_epochs = self.controller_epoch = self.records = 0
        self.acked: dict[Where, Log] = {}
        self.holders: dict[Where, set[int]] = {}  # replicas that surely have all of it
        self.leaders: dict[tuple[Where, int], int] = {}  # of each leader epoch
        self.elect_controller()

    # -- the controller

    def elect_controller(self) -> None:
        """A new controller reads the tree."""
        self.controller_epoch += 1
        config = BrokerConfig.parse({"min.insync.replicas": str(MIN_IN_SYNC)})
        self.machine = Controller(config, Random(self.chance.random()), lambda topic: ())
        self.feed = Feed(1, self.controller_epoch, records_max=30)
        in_order = sorted(self.tree.items(), key=lambda item: item[0].count("/"))
        self.machine.replay([ClusterRecord(*item) for item in in_order])
        self.control(TakeOver(), may_be_cut_off=False)

    def control(self, request: Any, *, may_be_cut_off: bool = True) -> Any:
        """One step, written to the tree; now and then the controller dies in the middle of it."""
        before = self.machine.image
        outcome = self.machine.handle(request, RequestContext(0))
        records = outcome.records
        is_cut_off = may_be_cut_off and self.chance.random() < 0.04
        if is_cut_off:
            whole = isinstance(request, DeleteTopicsRequest)  # of one topic: a transaction
            cut = self.chance.randrange(len(records) + 1)
            records = records[: 0 if whole else cut]
        for path, value in records:
            if images.is_registration(path):
                continue
            if value is None:
                del self.tree[path]
            else:
                self.tree[path] = value
        self.machine.replay(records)
        self.feed.append(records)
        self.check_step(before, request, is_whole=not is_cut_off)
        if is_cut_off:
            self.elect_controller()
            return None
        return outcome.replies[0].response

    # -- brokers

    def start(self, process: Process) -> None:
        """The controller hears of the start, but not always of the death before it."""
        if process.is_up:
            return
        self.broker_epochs += 1
        process.epoch, process.is_up = self.broker_epochs, True
        process.follower, process.fetched, process.asked = ImageFollower(), {}, {}
        record = images.broker_record(
            process.node_id,
            {DEFAULT_LISTENER: ("h", 1)},
            epoch=process.epoch,
            stopped_cleanly=process.stopped_cleanly,
        )
        if not process.stopped_cleanly:
            self.doubt(process)
        process.stopped_cleanly = False
        assert record.value is not None
        self.tree[record.path] = record.value
        self.control(BrokerRegistered(record))

    def kill(self, process: Process, *, loses_tail: bool) -> None:
        """kill -9, or a power cut; its session ends later."""
        process.is_up = False
        self.gone.append(BrokerGone(process.node_id, process.epoch))
        if loses_tail:
            for log in process.disk.values():
                del log[self.chance.randrange(len(log) + 1) :]
            self.doubt(process)

    def doubt(self, process: Process) -> None:
        """A broker may lack what it has acknowledged."""
        for holders in self.holders.values():
            holders.discard(process.node_id)

    def stop(self, process: Process) -> None:
        """A controlled stop, whether the controller answers or not."""
        if self.chance.random() < 0.8:
            self.control(ControlledShutdownRequest(process.node_id, process.epoch))
        process.is_up, process.stopped_cleanly = False, True
        self.gone.append(BrokerGone(process.node_id, process.epoch))

    def runs(self, node_id: int) -> bool:
        """Whether the start of a broker that the controller knows is alive."""
        process, known = self.processes[node_id], self.machine.image.brokers.get(node_id)
        return known is not None and process.is_up and process.epoch == known.epoch

    def forget(self, gone: BrokerGone) -> None:
        """The tree forgets a broker, unless it has started again."""
        if self.processes[gone.node_id].epoch == gone.broker_epoch:
            self.tree.pop(images.broker_path(gone.node_id), None)

    def end_session(self) -> None:
        """The controller hears of a death, perhaps later than of the next start."""
        if self.gone:
            gone = self.gone.pop(0)
            self.forget(gone)
            self.control(gone)

    def cut_power(self) -> None:
        """All brokers die at once; the next controller comes before or after their sessions end."""
        for process in self.processes.values():
            if process.is_up:
                self.kill(process, loses_tail=self.chance.random() < 0.3)
        if self.chance.random() < 0.7:
            for gone in self.gone:
                self.forget(gone)
        self.elect_controller()

    def poll(self, process: Process) -> None:
        """A broker reads the feed, and lets go of logs that it does not hold any more."""
        follower, before = process.follower, process.follower.image
        request = follower.request(process.node_id, process.epoch, 0)
        response = self.feed.answer(request, self.machine.image)
        if response is None:
            return
        assert follower.take(response)
        for each in local_delta(process.node_id, before, follower.image).delete:
            process.disk.pop((each.topic_id.hex, each.topic_partition.partition), None)
        if before == ClusterImage():
            held = {w for w, p in self.partitions(follower.image) if process.node_id in p.replicas}
            process.disk = {where: log for where, log in process.disk.items() if where in held}

    def partitions(self, image: ClusterImage) -> list[tuple[Where, PartitionImage]]:
        return [
            ((topic_id, index), partition)
            for topic in image.topics.values()
            for topic_id in (topic.topic_id.hex,)
            for index, partition in enumerate(topic.partitions)
        ]

    def known(self, process: Process, where: Where) -> PartitionImage | None:
        """The partition as a broker knows it."""
        image = process.follower.image
        topic = image.topic_by_id(_topic_id(where[0]))
        return None if topic is None else image.partition(topic.name, where[1])

    # -- records

    def led(self, process: Process) -> list[tuple[Where, PartitionImage]]:
        """The partitions that a broker believes to lead; it is asked far more often than its image
        changes."""
        if not process.is_up:
            return []
        image, led = process.led
        if image is not process.follower.image:
            image, node_id = process.follower.image, process.node_id
            led = [(where, p) for where, p in self.partitions(image) if p.leader == node_id]
            process.led = image, led
        return led

    def produce(self, process: Process) -> None:
        for where, partition in self.led(process):
            if self.chance.random() < 0.6:
                self.records += 1
                log = process.disk.setdefault(where, [])
                log.append((partition.leader_epoch, self.records))

    def replicate(self, leader: Process) -> None:
        """Followers that believe in this leader fetch, and cut off what it does not have."""
        for where, partition in self.led(leader):
            log = leader.disk.setdefault(where, [])
            for node_id in partition.replicas:
                follower = self.processes[node_id]
                theirs = self.known(follower, where) if follower.is_up else None
                if follower is leader or theirs is None or self.chance.random() < 0.3:
                    continue
                if (theirs.leader, theirs.leader_epoch) != (leader.node_id, partition.leader_epoch):
                    continue
                own = follower.disk.setdefault(where, [])
                same = 0
                if own == log[: len(own)]:  # as nearly always
                    same = len(own)
                while same < min(len(own), len(log)) and own[same] == log[same]:
                    same += 1
                del own[same:]
                own += log[
                    same : self.chance.choice((len(log), self.chance.randint(same, len(log))))
                ]
                fetched = leader.fetched.setdefault((where, partition.leader_epoch), {})
                fetched[node_id] = follower.epoch, len(own)

    def acknowledge(self, leader: Process) -> None:
        """The leader moves its high watermark, over the maximal in-sync set."""
        for where, partition in self.led(leader):
            fetched = leader.fetched.get((where, partition.leader_epoch), {})
            log = leader.disk.setdefault(where, [])
            members = self.maximal(leader, where, partition)
            ends = [len(log) if n == leader.node_id else fetched.get(n, (0, 0))[1] for n in members]
            if len(partition.in_sync_replicas) >= MIN_IN_SYNC:
                committed, acked = log[: min(ends)], self.acked.get(where, [])
                shorter = min(len(committed), len(acked))
                assert committed[:shorter] == acked[:shorter], f"{where}: two histories"
                if len(committed) > len(acked):
                    self.acked[where] = committed
                    self.holders[where] = {n for n in members if self.has(n, where, committed)}

    def has(self, node_id: int, where: Where, records: Log) -> bool:
        """Whether a replica's log begins with these records."""
        return self.processes[node_id].disk.get(where, [])[: len(records)] == records

    def maximal(self, leader: Process, where: Where, partition: PartitionImage) -> frozenset[int]:
        """The in-sync set, and whoever the leader has asked for and may have got."""
        members = frozenset(partition.in_sync_replicas)
        epoch, asked = leader.asked.get(where, (-1, frozenset()))
        return members | asked if epoch == partition.epoch else members

    def ask(self, leader: Process) -> None:
        """The leader asks for another in-sync set: followers that have all of its log join, others
        may leave."""
        for where, partition in self.led(leader):
            epoch, asked = leader.asked.get(where, (-1, frozenset()))
            if epoch == partition.epoch and asked:
                continue  # one at a time
            fetched = leader.fetched.get((where, partition.leader_epoch), {})
            end, brokers = len(leader.disk.setdefault(where, [])), leader.follower.image.brokers
            members = {leader.node_id: leader.epoch}
            for node_id in partition.replicas:
                broker_epoch, offset = fetched.get(node_id, (-1, -1))
                is_current = node_id in brokers and brokers[node_id].epoch == broker_epoch
                stays = node_id in partition.in_sync_replicas and self.chance.random() < 0.8
                if node_id in brokers and stays:
                    members.setdefault(node_id, brokers[node_id].epoch)
                elif is_current and offset == end:
                    members.setdefault(node_id, broker_epoch)
            if set(members) == set(partition.in_sync_replicas):
                continue
            leader.asked[where] = partition.epoch, frozenset(members)
            states = tuple(BrokerState(*member) for member in members.items())
            wanted = AlterPartitionPartition(
                where[1], partition.leader_epoch, (), states, 0, partition.epoch
            )
            topic = AlterPartitionTopic(_topic_id(where[0]), (wanted,))
            self.wire.append((where, AlterPartitionRequest(leader.node_id, leader.epoch, (topic,))))

    def deliver(self) -> None:
        """A request arrives, perhaps not for the last time; its answer may be lost."""
        if not self.wire:
            return
        where, request = self.chance.choice(self.wire)
        response = self.control(request)
        if response is None:
            return  # the controller died: the leader tries again
        if self.chance.random() < 0.6:
            self.wire.remove((where, request))
        leader = self.processes[request.broker_id]
        if leader.epoch != request.broker_epoch or (where, request) in self.wire:
            return  # a refusal does not count while another copy may still be granted
        code = response.error_code or response.topics[0].partitions[0].error_code
        epoch, _ = leader.asked.get(where, (-1, frozenset()))
        is_last = epoch == request.topics[0].partitions[0].partition_epoch
        # Any other refusal may mean that a copy was granted: the leader waits for its image.
        if is_last and code is ErrorCode.INELIGIBLE_REPLICA and self.chance.random() < 0.8:
            del leader.asked[where]

    # -- what must hold

    def check_end(self) -> None:
        """All brokers run, and have heard everything: each partition has a leader."""
        for process in self.processes.values():
            self.start(process)
        while self.gone:
            self.end_session()
        image = self.machine.image
        assert {n: broker.epoch for n, broker in image.brokers.items()} == {
            n: process.epoch for n, process in self.processes.items()
        }
        for _, partition in self.partitions(image):
            assert partition.leader != NO_LEADER, partition
        for process in self.processes.values():
            while self.feed.answer(process.follower.request(1, 1, 0), image) is not None:
                self.poll(process)
            assert process.follower.image == image
        in_order = sorted(self.tree.items(), key=lambda item: item[0].count("/"))
        stored = images.replay(ClusterImage(), [ClusterRecord(*item) for item in in_order])
        assert (stored.topics, stored.settled_epochs) == (image.topics, image.settled_epochs)

    def check_step(self, before: ClusterImage, request: Any, *, is_whole: bool) -> None:
        after = self.machine.image
        for topic in after.topics.values():
            known = before.topics.get(topic.name)
            if known is None or known.topic_id != topic.topic_id:
                known = None
            for index, new in enumerate(topic.partitions):
                old = known.partitions[index] if known and index < len(known.partitions) else None
                self.check_partition(new, after, is_whole=is_whole)
                where = (topic.topic_id.hex, index)
                if new.leader != NO_LEADER:
                    holder = self.leaders.setdefault((where, new.leader_epoch), new.leader)
                    assert holder == new.leader, f"{where}: two leaders in {new}"
                if old is not None and old != new:
                    self.check_change(topic, old, new, request, after)
                    self.check_acknowledged(where, old, new)

    def check_partition(
        self, partition: PartitionImage, image: ClusterImage, *, is_whole: bool
    ) -> None:
        members, replicas = partition.in_sync_replicas, partition.replicas
        moving = (*partition.adding_replicas, *partition.removing_replicas)
        assert members, partition
        for nodes in (members, replicas, moving):
            assert len(set(nodes)) == len(nodes), partition
        assert set(members) <= set(replicas), partition
        assert set(moving) <= set(replicas), partition
        assert partition.leader in (*members, NO_LEADER), partition
        eligible = partition.eligible_leader_replicas
        assert set(eligible) <= set(replicas) - set(members), partition
        assert not eligible or len(members) < MIN_IN_SYNC, partition
        if is_whole:
            assert partition.leader in (*image.brokers, NO_LEADER), partition
            could_lead = {
                node
                for node in set(members) & set(image.brokers)
                if not image.brokers[node].in_controlled_shutdown
            }
            assert partition.leader != NO_LEADER or not could_lead, partition

    def check_change(
        self,
        topic: TopicImage,
        old: PartitionImage,
        new: PartitionImage,
        request: Any,
        image: ClusterImage,
    ) -> None:
        is_reassignment = isinstance(request, AlterPartitionReassignmentsRequest)
        change = f"{type(request).__name__}: {old} -> {new}"
        assert new.epoch == old.epoch + 1, change
        assert new.leader_epoch - old.leader_epoch in (0, 1), change
        must_rise = new.leader != old.leader or not set(old.replicas) <= set(new.replicas)
        assert not must_rise or new.leader_epoch == old.leader_epoch + 1, change
        if old.is_moving and not new.is_moving and not is_reassignment:
            assert set(new.replicas) == set(new.in_sync_replicas), change
        joined = set(new.in_sync_replicas) - set(old.in_sync_replicas)
        left = set(old.in_sync_replicas) - set(new.in_sync_replicas)
        holders = {*old.in_sync_replicas, *old.eligible_leader_replicas}
        is_unclean = new.leader != NO_LEADER and new.leader not in holders
        if is_unclean and not isinstance(request, AlterPartitionRequest):
            assert topic.configs.get("unclean.leader.election.enable") == "true" or (
                getattr(request, "election_type", 0) == 1
            ), change
            assert new.leader_recovery_state is LeaderRecoveryState.RECOVERING, change
            assert new.in_sync_replicas == (new.leader,), change
            return
        if isinstance(request, AlterPartitionRequest):
            for node_id in joined:
                assert node_id in image.brokers, change
                assert not image.brokers[node_id].in_controlled_shutdown, change
            return
        assert joined <= holders, change
        gone = request.node_id if isinstance(request, BrokerGone) else None
        steady = {n for n in left - {gone} if n in image.brokers and n in new.replicas}
        restarted = (BrokerRegistered, TakeOver)
        leaving = {n for n in steady if image.brokers[n].in_controlled_shutdown}
        assert steady == leaving or isinstance(request, restarted), change

    def check_acknowledged(self, where: Where, old: PartitionImage, new: PartitionImage) -> None:
        acked = self.acked.get(where, [])
        for node_id in set(new.in_sync_replicas) - set(old.in_sync_replicas):
            if self.has(node_id, where, acked):
                self.holders.setdefault(where, set()).add(node_id)
            else:
                is_unclean = new.leader_recovery_state is LeaderRecoveryState.RECOVERING
                assert is_unclean or not self.runs(node_id), f"{where}: {node_id} lacks {acked}"
        holders = self.holders.setdefault(where, set())
        holders &= {*new.in_sync_replicas, *new.eligible_leader_replicas}
        if new.leader == NO_LEADER or new.leader_epoch == old.leader_epoch:
            return
        leader = self.processes[new.leader]
        if not self.runs(new.leader):
            return  # it is dead, and nobody has heard: another leader follows
        if self.has(new.leader, where, acked):
            return
        log = leader.disk.get(where, [])
        is_unclean = new.leader_recovery_state is LeaderRecoveryState.RECOVERING
        assert is_unclean or not holders, f"{where}: {acked} is lost: {old} -> {new}"
        same = 0
        while same < min(len(acked), len(log)) and acked[same] == log[same]:
            same += 1
        self.acked[where] = acked[:same]
        self.holders[where] = {new.leader}
