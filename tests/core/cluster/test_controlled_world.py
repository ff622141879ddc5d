"""Brokers come and go, in-sync sets change, partitions move: nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controlled_world import Process, World

from kafkalite.core.cluster.controller import Tick
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

TOPICS = ("a", "b", "unclean")
Deed = Callable[[World, Process], object]


def create(world: World, _: Process) -> None:
    name = world.chance.choice(TOPICS)
    unclean = CreatableTopicConfig("unclean.leader.election.enable", str(name == "unclean").lower())
    topic = CreatableTopic(
        name, world.chance.randint(1, 3), world.chance.randint(1, 3), (), (unclean,)
    )
    world.control(CreateTopicsRequest((topic,)))


def delete(world: World, _: Process) -> None:
    if world.chance.random() < 0.2:
        world.control(DeleteTopicsRequest(topic_names=(world.chance.choice(TOPICS),)))


def grow(world: World, _: Process) -> None:
    wanted = CreatePartitionsTopic(world.chance.choice(TOPICS), world.chance.randint(2, 4), None)
    world.control(CreatePartitionsRequest((wanted,), 0, False))


def move(world: World, _: Process) -> None:
    target = tuple(world.chance.sample(sorted(world.processes), world.chance.randint(1, 3)))
    wanted = ReassignablePartition(0, None if world.chance.random() < 0.3 else target)
    topic = ReassignableTopic(world.chance.choice(TOPICS), (wanted,))
    world.control(AlterPartitionReassignmentsRequest(1, (topic,)))


def elect(world: World, _: Process) -> None:
    world.control(ElectLeadersRequest(int(world.chance.random() < 0.02), None))


def tick(world: World, _: Process) -> None:
    world.control(Tick(world.machine.due_ms + 1))


def kill(world: World, process: Process) -> None:
    if process.is_up:
        world.kill(process, loses_tail=world.chance.random() < 0.5)
        if world.chance.random() < 0.3:
            world.start(process)  # before its session ends


def stop(world: World, process: Process) -> None:
    if process.is_up:
        world.stop(process)


def work(world: World, _: Process) -> None:
    """What brokers do all the time, some of them late or not at all."""
    for process in world.processes.values():
        if process.is_up and world.chance.random() < 0.8:
            world.poll(process)
        for deed in (World.produce, World.replicate, World.acknowledge, World.ask):
            if world.chance.random() < 0.8:
                deed(world, process)
        if world.chance.random() < 0.4:
            world.deliver()


DEEDS: list[tuple[float, Deed]] = [
    (100, work),
    (10, World.start),
    (3, kill),
    (2, stop),
    (8, lambda world, _: world.end_session()),
    (0.5, lambda world, _: world.cut_power()),
    (1, lambda world, _: world.elect_controller()),
    (2, create),
    (0.5, delete),
    (0.5, grow),
    (2, move),
    (1, elect),
    (1, tick),
]


def run(seed: int, steps: int) -> World:
    """One history."""
    world = World(seed)
    for process in world.processes.values():
        world.start(process)
    create(world, world.processes[1])
    weights, deeds = zip(*DEEDS, strict=True)
    for _ in range(steps):
        (deed,) = world.chance.choices(deeds, weights)
        deed(world, world.chance.choice(list(world.processes.values())))
    world.check_end()
    return world


@pytest.mark.parametrize("seed", range(16))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    run(seed, 300)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_nothing_acknowledged_is_lost_in_many_histories(first: int) -> None:
    for seed in range(first, first + 20):
        run(seed, 1_000)


def test_histories_are_not_empty() -> None:
    worlds = [run(seed, 500) for seed in range(4)]
    acked = sum(len(log) for world in worlds for log in world.acked.values())
    epochs = max(p.leader_epoch for w in worlds for _, p in w.partitions(w.machine.image))
    assert acked > 100
    assert epochs > 10
