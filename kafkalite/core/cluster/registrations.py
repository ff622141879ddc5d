"""Brokers come and go: what becomes of the partitions that they led or were in sync with.   [P]

    registered     a start of a broker, under a new broker epoch
    gone           its session ended: its leaderships move, it leaves the in-sync sets
    saying goodbye (ControlledShutdown) it still answers; its leaderships move first
    taken over     a new controller settles whatever its predecessor left undone

A member of an in-sync set that died or restarted leaves it where another member stayed alive. Where
none did, all acknowledged records are in the logs of the members, and of the eligible replicas that
left the set below min.insync.replicas (KIP-966). So one of these must lead, one that is alive and
whose log is well if there is any; otherwise:

    those that stopped cleanly           have whole logs, and stay; the first to return leads
    one that did not, others still away  may have lost its tail, and leaves: an absent one leads
    one whose log has failed             has lost nothing, and counts as away until it is well
    the last one, however it stopped     nobody else has more: it leads, in a new leader epoch

`settled_epochs` of the image says for which start of each broker this was done. Its record comes
last in a step, so a step that was cut off is done again by the next controller.

Owns   these rules.
Never  writes a registration to the tree: the broker does.
Fails  with STALE_BROKER_EPOCH, BROKER_NOT_AVAILABLE in a response.
Source KIP-380, KIP-841, KIP-903, KIP-966; apache/kafka `ReplicationControlManager`,
       `KafkaController.doControlledShutdown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import (
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    ClusterRecord,
    PartitionImage,
)
from kafkalite.core.cluster.partition_changes import LiveBrokers, PartitionChanges
from kafkalite.core.protocol.peers import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from kafkalite.core.types import NO_EPOCH
from kafkalite.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A broker's registration was read in the tree. The answer: how many partitions changed."""

    record: ClusterRecord


@dataclass(frozen=True, slots=True)
class BrokerGone:
    """The session of a broker's start ended. The answer: how many partitions changed."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The first step of a new controller, whose image was just loaded. The answer: how many
    partitions changed."""


Records = tuple[ClusterRecord, ...]


def check_broker_epoch(image: ClusterImage, node_id: int, broker_epoch: int) -> None:
    """Refuses a request of a broker's earlier start, or of a broker that is not registered."""
    broker = image.brokers.get(node_id)
    if broker is None:
        words = f"broker {node_id} is not registered"
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, words)
    if broker.epoch != broker_epoch:
        words = f"broker {node_id} has broker epoch {broker.epoch}, not {broker_epoch}"
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, words)


def registered(request: BrokerRegistered, changes: PartitionChanges) -> tuple[int, Records]:
    """A broker has started, or its registration was read again."""
    image = changes.image
    node_id, broker = images.registration(request.record)
    known = image.brokers.get(node_id)
    if known is not None and known.epoch > broker.epoch:
        return 0, ()  # read before the registration that is known
    if known is not None and known.epoch == broker.epoch:
        broker = replace(broker, in_controlled_shutdown=known.in_controlled_shutdown)
        if image.settled_epochs.get(node_id) == broker.epoch:
            own = images.registration_record(node_id, broker)
            return 0, () if broker == known else (own,)
    changes.live = changes.live.with_broker(node_id)
    _settle(changes, _restarted(image, {node_id: broker}))
    own = images.registration_record(node_id, broker)
    return len(changes), (own, *changes.records(), *_settled(image, {node_id: broker}))


def gone(request: BrokerGone, changes: PartitionChanges) -> tuple[int, Records]:
    """A broker's session ended. Ignored if the broker has registered again since."""
    known = changes.image.brokers.get(request.node_id)
    if known is None or known.epoch != request.broker_epoch:
        return 0, ()
    changes.live = changes.live.without(request.node_id)
    _settle(changes, {})
    path = images.broker_path(request.node_id)
    return len(changes), (*changes.records(), ClusterRecord(path, None))


def taken_over(changes: PartitionChanges) -> tuple[int, Records]:
    """Settles all partitions with the brokers that are registered now, and goes on with
    reassignments that can be completed."""
    image = changes.image
    _settle(changes, _restarted(image, image.brokers))
    for topic, index, partition in changes.every():
        if partition.is_moving and changes.get(topic.name, index) is partition:
            changes.change(topic.name, index, partition)
    return len(changes), (*changes.records(), *_settled(image, image.brokers))


def controlled_shutdown(
    request: ControlledShutdownRequest, changes: PartitionChanges
) -> tuple[ControlledShutdownResponse, Records]:
    """A broker is about to stop. The answer names the partitions that it still leads because no
    other replica is in sync; those without other replicas do not count."""
    image, node_id = changes.image, request.broker_id
    known = image.brokers.get(node_id)
    if known is None:
        return ControlledShutdownResponse(ErrorCode.BROKER_NOT_AVAILABLE), ()
    if request.broker_epoch not in (NO_EPOCH, known.epoch):
        return ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH), ()
    changes.live = changes.live.saying_goodbye(node_id)
    remaining = []
    for topic, index, partition in changes.every():
        if node_id in partition.in_sync_replicas:
            after = changes.change(topic.name, index, _handed_over(partition, changes.live))
            if after.leader == node_id and len(after.replicas) > 1:
                remaining.append(RemainingPartition(topic.name, index))
    own = images.registration_record(node_id, replace(known, in_controlled_shutdown=True))
    announced = () if known.in_controlled_shutdown else (own,)
    response = ControlledShutdownResponse(remaining_partitions=tuple(remaining))
    return response, (*announced, *changes.records())


def _handed_over(partition: PartitionImage, live: LiveBrokers) -> PartitionImage:
    """The partition with active brokers alone in its in-sync set, if there are any."""
    active = tuple(node for node in partition.in_sync_replicas if node in live.active)
    return replace(partition, in_sync_replicas=active or partition.in_sync_replicas)


# ---- starts that partitions do not account for yet -----------------------------------------------


def _restarted(image: ClusterImage, brokers: Mapping[int, BrokerImage]) -> dict[int, bool]:
    """The brokers whose last start is not settled, and whether they had stopped cleanly."""
    return {
        node_id: broker.stopped_cleanly
        for node_id, broker in brokers.items()
        if image.settled_epochs.get(node_id) != broker.epoch
    }


def _settled(image: ClusterImage, brokers: Mapping[int, BrokerImage]) -> Iterator[ClusterRecord]:
    """The record that these brokers' starts are settled, if they were not."""
    epochs = {node_id: broker.epoch for node_id, broker in brokers.items()}
    settled = {**image.settled_epochs, **epochs}
    if settled != image.settled_epochs:
        yield images.settled_record(settled)


def _settle(changes: PartitionChanges, restarted: Mapping[int, bool]) -> None:
    """Changes the partitions whose leader or in-sync set died or restarted, and those that found no
    leader before."""
    steady = changes.live.registered - restarted.keys()
    lost = frozenset(node for node, is_clean in restarted.items() if not is_clean)
    for topic, index, partition in changes.every():
        if (
            partition.leader not in steady
            or not steady.issuperset(partition.in_sync_replicas)
            or not lost.isdisjoint(partition.eligible_leader_replicas)
        ):
            wanted = replace(
                partition,
                leader=partition.leader if partition.leader in steady else NO_LEADER,
                in_sync_replicas=remaining(partition, steady, changes.live, restarted),
            )
            changes.change(topic.name, index, wanted, lost=lost)


def remaining(
    partition: PartitionImage,
    steady: frozenset[int],
    live: LiveBrokers,
    restarted: Mapping[int, bool],
) -> tuple[int, ...]:
    """The in-sync set without the members that died, restarted, or whose logs have failed: see
    above. `steady` are the brokers that did neither; `restarted` says who had stopped cleanly."""
    members, eligible = partition.in_sync_replicas, partition.eligible_leader_replicas
    well = steady.difference(partition.failed_replicas)
    if alive := tuple(node for node in members if node in well):
        return alive
    holders = (*members, *eligible)
    alive = tuple(node for node in eligible if node in well)
    whole = tuple(node for node in holders if restarted.get(node))
    away = tuple(node for node in holders if node in steady or node not in live.registered)
    if kept := (*alive, *whole) or away:
        return kept
    # All are in doubt: a member had as much as those that had left, and more.
    return next((n,) for n in partition.replicas if n in partition.in_sync_replicas)
