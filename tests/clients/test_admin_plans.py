"""Plans of moves: nothing is lost, racks are respected, loads are even, few replicas are copied."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.clients.admin.plans import (
    Placed,
    PlanError,
    Racks,
    Replicas,
    copies,
    drain,
    loads,
    move,
    rebalance,
)
from kafkalite.core.types import TopicPartition

A = "a"


def topic(name: str, *replicas: Replicas) -> dict[TopicPartition, Replicas]:
    return {TopicPartition(name, n): each for n, each in enumerate(replicas)}


def without_racks(*brokers: int) -> Racks:
    return dict.fromkeys(brokers)


@st.composite
def clusters(draw: st.DrawFn, *, equal_racks: bool = False) -> tuple[Placed, Racks]:
    """Some topics on up to six brokers, placed as chance has it."""
    if equal_racks:
        rack_count, size = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        racks: dict[int, str | None] = {n: f"r{n % rack_count}" for n in range(rack_count * size)}
    else:
        names = st.sampled_from(["x", "y", "z", None])
        racks = dict(enumerate(draw(st.lists(names, min_size=1, max_size=6)), 1))
    brokers = sorted(racks)
    placed: dict[TopicPartition, Replicas] = {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        factor = draw(st.integers(1, min(3, len(brokers))))
        for number in range(draw(st.integers(1, 8))):
            order = draw(st.permutations(brokers))
            placed[TopicPartition(name, number)] = tuple(order[:factor])
    return placed, racks


def after(placed: Placed, plan: Placed) -> Placed:
    return {**placed, **plan}


def rack_count(replicas: Replicas, racks: Racks) -> int:
    return len({racks.get(broker) for broker in replicas})


def spread(counts: Counter[int], racks: Racks) -> int:
    """The greatest load less the least."""
    every = [counts[broker] for broker in racks]
    return max(every) - min(every)


def of_topics(placed: Placed) -> list[dict[TopicPartition, Replicas]]:
    names = dict.fromkeys(tp.topic for tp in placed)
    return [{tp: r for tp, r in placed.items() if tp.topic == name} for name in names]


def squares(counts: Counter[int]) -> int:
    return sum(count * count for count in counts.values())


def check_sound(placed: Placed, plan: Placed, brokers: Racks) -> None:
    """The plan changes something everywhere, keeps the number of replicas, and uses the brokers."""
    for tp, replicas in plan.items():
        assert replicas != placed[tp]
        assert len(replicas) == len(placed[tp]) == len(set(replicas)), (tp, replicas)
        assert set(replicas) <= set(brokers)


@given(clusters())
def test_a_rebalance_keeps_what_must_be_kept(cluster: tuple[Placed, Racks]) -> None:
    placed, racks = cluster
    plan = rebalance(placed, racks)
    check_sound(placed, plan, racks)
    for tp, replicas in after(placed, plan).items():
        assert rack_count(replicas, racks) == min(len(replicas), len(set(racks.values()))), tp
    assert rebalance(after(placed, plan), racks) == {}  # it is done


@given(clusters(equal_racks=True))
def test_a_rebalance_evens_replicas(cluster: tuple[Placed, Racks]) -> None:
    placed, racks = cluster
    found = after(placed, rebalance(placed, racks))
    for part in [found, *of_topics(found)]:
        assert spread(loads(part)[0], racks) <= 1, (part, racks)


@given(clusters())
def test_leaders_are_as_even_as_their_replicas_allow(cluster: tuple[Placed, Racks]) -> None:
    placed, racks = cluster
    found = after(placed, rebalance(placed, racks))
    for part in of_topics(found):
        some = dict(list(part.items())[:5])
        if len(some) == len(part):  # few enough to try every choice
            choices = product(*part.values())
            best = min(squares(Counter(choice)) for choice in choices)
            assert squares(loads(part)[1]) == best


@given(clusters())
def test_a_rebalance_copies_few_replicas(cluster: tuple[Placed, Racks]) -> None:
    placed, racks = cluster
    racks = dict.fromkeys(racks)
    plan = rebalance(placed, racks)
    least = 0  # each topic on its own: what lies above an even load has to move
    for part in of_topics(placed):
        counts = loads(part)[0]
        total = sum(counts.values())
        low, more = divmod(total, len(racks))
        even = [low + 1] * more + [low] * (len(racks) - more)
        have = sorted((counts[broker] for broker in racks), reverse=True)
        least += sum(max(0, h - e) for h, e in zip(have, even, strict=True))
    copied = sum(map(len, copies(placed, plan).values()))
    topic_count = len(of_topics(placed))
    assert least <= copied <= least + topic_count * len(racks) // 2, (least, copied)


@given(clusters(), st.data())
def test_a_drain_moves_the_drained_replicas_alone(
    cluster: tuple[Placed, Racks], data: st.DataObject
) -> None:
    placed, racks = cluster
    leaving = data.draw(st.sampled_from(sorted(racks)))
    staying = {broker: rack for broker, rack in racks.items() if broker != leaving}
    if any(len(replicas) > len(staying) for replicas in placed.values()):
        with pytest.raises(PlanError, match="brokers for them"):
            drain(placed, racks, [leaving])
        return
    plan = drain(placed, racks, [leaving])
    check_sound(placed, plan, staying)
    assert set(plan) == {tp for tp, replicas in placed.items() if leaving in replicas}
    for tp, added in copies(placed, plan).items():
        assert len(added) == 1
        kept = set(placed[tp]) - {leaving}
        assert kept < set(plan[tp])
        fresh = set(staying.values()) - {racks[broker] for broker in kept}
        assert not fresh or staying[added[0]] in fresh, "a new rack was free"


@given(clusters(), st.data())
def test_a_move_uses_the_wanted_brokers(cluster: tuple[Placed, Racks], data: st.DataObject) -> None:
    placed, racks = cluster
    to = data.draw(st.lists(st.sampled_from(sorted(racks)), min_size=1, unique=True))
    wanted = [tp for tp in placed if tp.topic == "a"]
    factor = data.draw(st.none() | st.integers(1, 4))
    if (factor or len(placed[wanted[0]])) > len(to):
        with pytest.raises(PlanError, match="brokers for them"):
            move(placed, wanted, to, racks, factor)
        return
    plan = move(placed, wanted, to, racks, factor)
    assert set(plan) <= set(wanted)
    for tp in wanted:
        replicas = after(placed, plan)[tp]
        assert set(replicas) <= set(to)
        assert len(set(replicas)) == len(replicas) == (factor or len(placed[tp]))
        if len(replicas) < len(to):
            stay = [broker for broker in placed[tp] if broker in to]
            assert set(stay[: len(replicas)]) <= set(replicas)


def test_a_new_broker_gets_its_share() -> None:
    placed = topic(A, (1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2))
    plan = rebalance(placed, without_racks(1, 2, 3, 4))
    assert sum(map(len, copies(placed, plan).values())) == 3
    replicas, leaders = loads(after(placed, plan))
    assert replicas == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sorted(leaders.values()) in ([1, 1, 2, 2], [2, 2, 2])


def test_a_step_over_a_third_broker_evens_racks() -> None:
    """1 and 3 share no partition that could move straight: 4's replica goes to 3 instead."""
    racks = {1: "x", 2: "x", 3: "y", 4: "y"}
    placed = topic(A, (1, 4), (1, 4), (2, 4), (2, 4))
    replicas, _ = loads(after(placed, rebalance(placed, racks)))
    assert replicas == {1: 2, 2: 2, 3: 2, 4: 2}


def test_replicas_leave_a_crowded_rack() -> None:
    racks = {1: "x", 2: "x", 3: "y"}
    assert rebalance(topic(A, (1, 2)), racks) in ({tp(A): (1, 3)}, {tp(A): (3, 2)})


def test_brokers_in_the_order_given() -> None:
    """The first broker leads the first partition, and so on."""
    placed = topic(A, (1, 2, 3), (1, 2, 3), (4, 2, 3))
    racks = without_racks(1, 2, 3, 4)
    plan = move(placed, list(placed), [3, 1, 2], racks)
    assert plan == {tp(A, 0): (3, 1, 2), tp(A, 2): (2, 3, 1)}
    assert placed[tp(A, 1)] == (1, 2, 3)  # is so already


def test_more_replicas_than_before() -> None:
    placed = topic(A, (1,), (2,), (3,))
    plan = move(placed, list(placed), [1, 2, 3], without_racks(1, 2, 3), 2)
    assert {len(replicas) for replicas in plan.values()} == {2}
    assert loads(plan)[0] == {1: 2, 2: 2, 3: 2}
    assert all(replicas[0] == placed[each][0] for each, replicas in plan.items())


def test_a_broker_that_is_down_is_named() -> None:
    placed = topic(A, (1, 2))
    with pytest.raises(PlanError, match="a-0 has a replica on broker 2, which is down"):
        rebalance(placed, without_racks(1, 3))
    with pytest.raises(PlanError, match="there is no broker 9 now"):
        move(placed, list(placed), [1, 9], without_racks(1, 3))
    assert drain(placed, without_racks(1, 3), [2]) == {tp(A): (1, 3)}


def test_half_of_each_topic_goes_to_three_new_brokers() -> None:
    orders = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    placed: dict[TopicPartition, Replicas] = {}
    for number in range(100):
        placed |= topic(f"t{number}", *(orders[n % 3] for n in range(30)))
    racks = without_racks(1, 2, 3, 4, 5, 6)
    plan = rebalance(placed, racks)
    assert sum(map(len, copies(placed, plan).values())) == 4_500
    replicas, leaders = loads(after(placed, plan))
    assert set(replicas.values()) == {1_500}
    assert set(leaders.values()) == {500}


def tp(name: str, number: int = 0) -> TopicPartition:
    return TopicPartition(name, number)
