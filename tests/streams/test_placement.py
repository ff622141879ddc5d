"""Placement as a pure function: balanced, sticky, and never away from the only state there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.streams.local.placement import (
    ACCEPTABLE_LAG,
    Candidate,
    Placement,
    Rules,
    TaskId,
    place,
)

FAR = 1_000_000
TURNS_MAX = 200

task_ids = st.builds(TaskId, st.integers(0, 3), st.integers(0, 7))
lags = st.sampled_from([0, 500, ACCEPTABLE_LAG, ACCEPTABLE_LAG + 1, FAR])
rules = st.builds(Rules, standbys=st.integers(0, 2), warmups_max=st.integers(1, 3))


@st.composite
def groups(draw):
    """Tasks, some with state; members that own some of them and have state of others."""
    tasks = draw(st.lists(task_ids, unique=True, max_size=20))
    names = [f"m{i}" for i in range(draw(st.integers(1, 5)))]
    sizes = {task: draw(lags) for task in tasks if task.sub_topology % 2}
    owned: dict[str, set[TaskId]] = {name: set() for name in names}
    for task in tasks:
        owner = draw(st.sampled_from([*names, None]))
        if owner is not None:
            owned[owner].add(task)
    members = {}
    for name in names:
        mine = draw(st.sets(st.sampled_from(sorted(sizes)))) if sizes else set()
        known = {task: draw(lags) for task in sorted(mine - owned[name])}
        members[name] = Candidate(frozenset(owned[name]), known)
    return tasks, members, sizes


def counts(placement: Placement) -> list[int]:
    return sorted(len(mine) for mine in placement.active.values())


def is_even(placement: Placement) -> bool:
    found = counts(placement)
    return found[-1] - found[0] <= 1


def by_task(hands: Mapping[str, list[TaskId]]) -> dict[TaskId, str]:
    return {task: member for member, mine in hands.items() for task in mine}


def after(placement: Placement, members: Mapping[str, Candidate]) -> dict[str, Candidate]:
    """The members once all have done what the placement says."""
    found = {}
    for name, before in members.items():
        known = dict(before.lags or {}) | dict.fromkeys(before.owned, 0)
        known |= dict.fromkeys(placement.standbys[name] + placement.warmups[name], 0)
        owned = frozenset(placement.active[name])
        found[name] = Candidate(owned, {t: lag for t, lag in known.items() if t not in owned})
    return found


@given(groups(), rules)
def test_each_task_runs_once_and_is_followed_elsewhere(group, how) -> None:
    tasks, members, sizes = group
    found = place(tasks, members, sizes, how)
    assert Counter(t for mine in found.active.values() for t in mine) == Counter(tasks)
    assert sum(map(len, found.warmups.values())) <= how.warmups_max
    warm = by_task(found.warmups)
    for name in members:
        active, warming = set(found.active[name]), set(found.warmups[name])
        following = found.standbys[name]
        assert len(set(following)) == len(following)
        assert not active & warming
        assert not set(following) & (active | warming)
        assert set(following) | warming <= sizes.keys()
    copies = Counter(t for mine in found.standbys.values() for t in mine)
    for task in sizes:
        others = len(members) - 1 - (task in warm)
        assert copies[task] == min(how.standbys, max(0, others))


@given(groups(), rules)
def test_a_task_does_not_leave_the_only_worker_that_has_its_state(group, how) -> None:
    tasks, members, sizes = group
    found = by_task(place(tasks, members, sizes, how).active)
    for owner, candidate in members.items():
        for task in candidate.owned:
            now = found[task]
            behind = (members[now].lags or {}).get(task, FAR)
            assert now == owner or min(sizes.get(task, 0), behind) <= ACCEPTABLE_LAG


@given(groups(), rules)
def test_no_more_tasks_move_than_the_balance_needs(group, how) -> None:
    tasks, members, sizes = group
    found = by_task(place(tasks, members, sizes, how).active)
    floor, larger = divmod(len(tasks), len(members))
    most_owned = sorted((len(c.owned) for c in members.values()), reverse=True)
    shares = [floor + (i < larger) for i in range(len(members))]
    needed = sum(max(0, n - share) for n, share in zip(most_owned, shares, strict=True))
    moved = [t for name, c in members.items() for t in c.owned if found[t] != name]
    assert len(moved) <= needed


@given(groups(), rules)
def test_warm_ups_end_in_a_balance_that_stays(group, how) -> None:
    tasks, members, sizes = group
    for _ in range(TURNS_MAX):
        found = place(tasks, members, sizes, how)
        changed = after(found, members)
        if changed == members:
            break
        members = changed
    assert is_even(found)
    assert not any(found.warmups.values())


@given(groups(), rules, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(group, how, random) -> None:
    tasks, members, sizes = group
    names = list(members)
    random.shuffle(names)
    assert place(tasks, {n: members[n] for n in names}, sizes, how) == place(
        tasks[::-1], members, sizes, how
    )


@given(groups())
def test_the_tasks_of_those_who_stay_stay_when_one_goes(group) -> None:
    tasks, members, sizes = group
    even = after(place(tasks, members, {}), members)
    gone = max(even)
    left = {name: candidate for name, candidate in even.items() if name != gone}
    if left:
        found = place(tasks, left, sizes)
        assert all(c.owned <= set(found.active[name]) for name, c in left.items())


def ids(*partitions: int) -> list[TaskId]:
    return [TaskId(1, partition) for partition in partitions]


class TestByHand:
    def test_a_new_worker_warms_up_two_tasks_before_it_gets_them(self) -> None:
        tasks, sizes = ids(*range(8)), dict.fromkeys(ids(*range(8)), FAR)
        members = {"a": Candidate(frozenset(tasks)), "b": Candidate()}
        found = place(tasks, members, sizes)
        assert found.active == {"a": tasks, "b": []}
        assert len(found.warmups["b"]) == 2
        warm = found.warmups["b"]
        behind = Candidate(frozenset(), dict.fromkeys(warm, ACCEPTABLE_LAG + 1))
        assert place(tasks, members | {"b": behind}, sizes).warmups["b"] == warm, "the same two"
        ready = Candidate(frozenset(), dict.fromkeys(warm, ACCEPTABLE_LAG))
        found = place(tasks, members | {"b": ready}, sizes)
        assert found.active["b"] == warm
        assert len(found.warmups["b"]) == 2

    def test_what_a_dead_worker_ran_goes_to_its_standbys(self) -> None:
        tasks = ids(0, 1, 2, 3)
        sizes = dict.fromkeys(tasks, FAR)
        left = {
            "a": Candidate(frozenset(ids(0)), dict.fromkeys(ids(3), 20)),
            "b": Candidate(frozenset(ids(1)), dict.fromkeys(ids(2), 20)),
        }
        found = place(tasks, left, sizes)
        assert found.active == {"a": ids(0, 3), "b": ids(1, 2)}

    def test_the_only_standby_runs_more_than_its_share_until_others_are_warm(self) -> None:
        tasks = ids(0, 1, 2, 3)
        sizes = dict.fromkeys(tasks, FAR)
        left = {"a": Candidate(frozenset(), dict.fromkeys(tasks, 20)), "b": Candidate()}
        found = place(tasks, left, sizes)
        assert found.active["a"] == tasks
        assert len(found.warmups["b"]) == 2

    def test_a_worker_that_comes_back_gets_the_tasks_that_it_had(self) -> None:
        tasks = ids(*range(6))
        sizes = dict.fromkeys(tasks, FAR)
        back = Candidate(frozenset(), dict.fromkeys(ids(1, 3, 5), 200))
        found = place(tasks, {"a": Candidate(frozenset(tasks)), "b": back}, sizes)
        assert found.active == {"a": ids(0, 2, 4), "b": ids(1, 3, 5)}

    def test_a_little_state_moves_at_once(self) -> None:
        tasks = ids(0, 1)
        sizes = dict.fromkeys(tasks, ACCEPTABLE_LAG)
        found = place(tasks, {"a": Candidate(frozenset(tasks)), "b": Candidate()}, sizes)
        assert counts(found) == [1, 1]
        assert not any(found.warmups.values())

    def test_each_sub_topology_is_shared(self) -> None:
        tasks = [TaskId(sub, partition) for sub in (0, 1) for partition in range(4)]
        found = place(tasks, {"a": Candidate(frozenset(tasks)), "b": Candidate()}, {})
        for mine in found.active.values():
            assert Counter(task.sub_topology for task in mine) == {0: 2, 1: 2}

    def test_standbys_are_spread_and_stay(self) -> None:
        tasks = ids(*range(6))
        sizes = dict.fromkeys(tasks, FAR)
        members = {name: Candidate() for name in "abc"}
        how = Rules(standbys=1)
        first = place(tasks, members, sizes, how)
        assert sorted(map(len, first.standbys.values())) == [2, 2, 2]
        members = after(first, members)
        assert place(tasks, members, sizes, how) == first
