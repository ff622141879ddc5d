"""Replication broken on purpose, and the histories that find each break.

Worlds, each of which runs one history a seed:

    cluster      whole brokers, their network, coordination and clients: kafkalite.testing.lives,
                 and histories with a plot: plots
    replicas     three replicas of a partition, real logs under both machines: test_convergence
    controller   the controller, its feed, and brokers as lists: test_controlled_world

A break has to be found within so many seeds of one of them. The search begins with the seed that
finds it today. The same worlds find nothing in the code as it is; their own tests say so.
"""

from __future__ import annotations

from collections.abc import Callable

import breaks
import pytest
import test_controlled_world as controller
import test_convergence as replicas
from breaks import Break
from plots import last_member_loses_its_disk

from kafkalite.testing.lives import lived


def fails_in_a_cluster(seed: int, *, has_racks: bool = False) -> bool:
    try:
        return bool(lived(seed, has_racks=has_racks).violations)
    except AssertionError:  # an invariant, or a cluster that does not heal
        return True


def fails_in_replicas(seed: int) -> bool:
    try:
        world = replicas.history(seed, 400)
        world.converge()
        for replica in world.replicas.values():
            world.check_has_all_committed(replica)
    except AssertionError:
        return True
    return False


def fails_where_the_last_member_loses_its_disk(seed: int) -> bool:
    try:
        return bool(last_member_loses_its_disk(seed))
    except AssertionError:
        return True


def fails_in_the_controller(seed: int) -> bool:
    try:
        controller.run(seed, 300)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    ("found_by", "broken", "seeds", "first"),
    [
        (fails_in_replicas, breaks.truncates_to_the_high_watermark, 10, 0),
        (fails_in_replicas, breaks.counts_a_follower_too_early, 20, 5),
        (fails_in_replicas, breaks.acknowledges_before_the_in_sync_set_has_it, 5, 0),
        (fails_in_replicas, breaks.skips_the_leader_epoch_of_requests, 400, 138),
        (fails_in_replicas, breaks.appends_whatever_its_position, 20, 3),
        (fails_in_replicas, breaks.commits_by_the_set_in_force, 40, 10),
        (fails_in_replicas, breaks.joins_below_the_start_of_the_epoch, 400, 138),
        (fails_in_the_controller, breaks.skips_the_partition_epoch_at_the_controller, 100, 36),
        (fails_in_the_controller, breaks.elects_outside_the_in_sync_set, 5, 1),
        (fails_in_the_controller, breaks.forgets_broker_epochs, 20, 1),
        (fails_in_the_controller, breaks.joins_under_any_broker_epoch, 300, 91),
        (fails_where_the_last_member_loses_its_disk, breaks.counts_every_stop_as_clean, 2, 0),
    ],
)
def test_a_break_is_found(
    monkeypatch: pytest.MonkeyPatch,
    found_by: Callable[[int], bool],
    broken: Break,
    seeds: int,
    first: int,
) -> None:
    """One of so many seeds finds it; `first` does today."""
    broken(monkeypatch)
    assert any(found_by(seed) for seed in (*range(first, seeds), *range(first)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "first"),
    [
        (breaks.truncates_to_the_high_watermark, 26),
        (breaks.counts_a_follower_too_early, 43),
        (breaks.acknowledges_before_the_in_sync_set_has_it, 9),
        (breaks.acknowledges_after_its_deposition, 3),
    ],
)
def test_a_break_is_found_in_a_whole_cluster(
    monkeypatch: pytest.MonkeyPatch, broken: Break, first: int
) -> None:
    """One seed in two to forty finds it, as `first` does today."""
    broken(monkeypatch)
    assert any(fails_in_a_cluster(seed) for seed in range(first, first + 60))


@pytest.mark.slow
def test_a_break_of_what_followers_show_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks.followers_show_what_may_not_be_committed(monkeypatch)
    assert any(fails_in_a_cluster(seed, has_racks=True) for seed in (3, 2, 1, 4))
