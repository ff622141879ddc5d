"""A replicated cluster, its network, its coordination and its clients, from one seed each.

Three brokers hold three replicas of everything, two of which must be in sync. Whatever happens to
them that `kafkalite.testing.faults` allows, no promise to clients is broken, and in the end every
replica is the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache, partial

import pytest
from plots import (
    commit_that_was_given_up,
    last_member_loses_its_disk,
    topic_made_again_while_a_machine_is_off,
    unclean_election,
)

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.testing import lives
from kafkalite.testing.checkers import check_all
from kafkalite.testing.cluster import ReplicatedCluster, SimulatedCluster
from kafkalite.testing.faults import FAULTS
from kafkalite.testing.lives import NEVER_MS, Life, lived
from kafkalite.testing.simulation import Stuck
from kafkalite.testing.workload import Workload

SEEDS = os.environ.get("KAFKALITE_SEEDS")
FIRST, LAST = map(int, (SEEDS or "100:400").split(":"))
EVENTS_A_RUN = 20 if SEEDS else 10  # ten take one to three seconds of a core
# Since operators, disks and clocks are in the histories; before racks were.
FAILED_ONCE = [782, 1112, 20602, 20847, 21399, 21699, 21743, 21806]


@cache
def one_of_many(seed: int) -> Life:
    """A history of the many, lived once though two tests look at it."""
    return lived(seed, EVENTS_A_RUN)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_whatever_happens_no_promise_is_broken(seed: int) -> None:
    assert one_of_many(seed).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(seed: int) -> None:
    assert lived(seed, has_racks=False).violations == []


@pytest.mark.slow
def test_a_history_waits_for_leaders_that_wait_for_the_controller() -> None:
    """Its answer went to a connection that was lost without a word. The partition has one replica
    in sync meanwhile, and takes no markers: readers see nothing after them."""
    assert lived(81012, 10, has_racks=True).violations == []


@pytest.mark.slow
def test_a_deleted_topic_is_made_again_though_a_broker_has_not_heard_of_its_end() -> None:
    """That broker has no connection to the controller for four seconds. Asked for the topic, it
    said that nothing was to be made, and a producer waited for the topic without end."""
    assert lived(131394, 10, has_racks=False).violations == []


@pytest.mark.slow
def test_one_whose_disk_was_full_leads_where_the_elected_one_has_lost_its_tail() -> None:
    """The machine of an eligible replica loses power just before the replica is elected."""
    assert lived(156768, 10).violations == []


@pytest.mark.slow
def test_a_topic_that_is_made_again_does_not_have_the_high_watermark_of_the_deleted_one() -> None:
    """The broker was killed before it wrote its high watermarks again."""
    assert lived(162037, 10, has_racks=False).violations == []


@pytest.mark.slow
def test_a_follower_with_a_full_disk_keeps_no_other_out_of_the_in_sync_set() -> None:
    """The leader was alone in sync, so its group coordinator was not loaded for half a minute."""
    assert lived(186685, 10, has_racks=False).violations == []


@pytest.mark.slow
def test_histories_are_not_empty() -> None:
    """In the first 30 of them records are acknowledged, leaders change, topics are deleted, and
    every fault happens."""
    lives = [one_of_many(seed) for seed in range(FIRST, FIRST + 30)]
    assert {fault for life in lives for fault in life.faults} == {*FAULTS, "throttle"}
    assert sum(life.deleted for life in lives) > 1
    assert sum(life.acknowledged for life in lives) > 1_000
    assert sum(life.leader_epochs for life in lives) > 20


def test_a_short_history_breaks_no_promise() -> None:
    life = lived(1, events=6)
    assert life.violations == []
    assert life.acknowledged > 50


def test_a_broker_that_acknowledges_before_its_disk_has_it_is_found_out() -> None:
    """A control: with one replica and no sync, a crash loses what was acknowledged."""
    late = {"log.flush.interval.messages": "1000000"}
    with SimulatedCluster(3, brokers=1, settings=late) as cluster:
        cluster.start_all()
        work = Workload(cluster, cluster.client, partitions=1)
        work.begin()
        cluster.pass_seconds(5)
        cluster.crash(1)
        cluster.start_all()
        work.finish()
        assert {each.check for each in check_all(work.history)} >= {"acknowledged"}


@pytest.mark.parametrize(
    ("seed", "events"),
    [(27, 6), pytest.param(204, 20, marks=pytest.mark.slow)],
)
def test_a_seed_replays_to_the_byte_in_processes_with_other_hash_seeds(
    seed: int, events: int
) -> None:
    lines = (
        "from kafkalite.testing.lives import lived",
        f"life = lived({seed}, {events})",
        "print(life.digest, life.acknowledged)",
    )
    digests = set()
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        digest, acknowledged = ran.stdout.split()
        assert int(acknowledged) > 20
        digests.add(digest)
    assert len(digests) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_is_cut_off_and_loses_its_disk_takes_nothing_with_it(seed: int) -> None:
    """It hears nobody, so it becomes alone in sync. Others have all that it acknowledged."""
    with ReplicatedCluster(seed, settings={"replica.lag.time.max.ms": "2000"}) as cluster:
        cluster.start_all()
        work = Workload(
            cluster, partial(cluster.client, unavailable_after_ms=NEVER_MS),
            partitions=3, replication_factor=3, programs=("produce",),
        )  # fmt: skip
        work.begin()
        cluster.pass_seconds(2)
        leader = cluster.controller()  # which needs nobody's answer to be alone in sync
        led = [p.leader for p in cluster.truth().topics[work.topic].partitions].index(leader)
        for other in cluster.brokers.keys() - {leader}:
            cluster.world.network.cut(f"broker-{other}", f"broker-{leader}")

        def state() -> PartitionImage:
            return cluster.truth().topics[work.topic].partitions[led]

        cluster.run(lambda: len(state().in_sync_replicas) == 1, 60)
        cluster.kill(leader)
        cluster.lose_disk(leader)
        cluster.heal()
        cluster.start(leader)
        cluster.run(lambda: {*state().in_sync_replicas} == {1, 2, 3}, 120)
        work.finish()
        assert [str(each) for each in check_all(work.history)] == []
        assert sum(send.offset is not None for send in work.history.sends) > 20


def test_followers_fetch_soon_after_a_cut_that_lost_their_connections() -> None:
    """Nobody is told that they are lost; no follower leaves the in-sync set in so short a time."""
    settings = {"replica.lag.time.max.ms": "30000"}
    with ReplicatedCluster(5, settings=settings) as cluster:
        cluster.start_all()
        work = Workload(
            cluster, partial(cluster.client, unavailable_after_ms=NEVER_MS),
            partitions=3, replication_factor=3, programs=("produce",),
        )  # fmt: skip
        work.begin()
        cluster.pass_seconds(3)
        cluster.isolate(cluster.controller(), from_clients=False, loses=True)
        cluster.pass_seconds(1)
        cluster.heal()
        cluster.pass_seconds(3)
        sends = work.history.sends
        late = [send for send in sends if send.ended is None and send.began < cluster.seconds - 3]
        assert late == []
        assert sum(send.ended is not None for send in sends) > 50
        image = cluster.truth().topics[work.topic]
        assert all({*p.in_sync_replicas} == {1, 2, 3} for p in image.partitions)


@pytest.mark.parametrize("seed", range(3))
def test_the_last_member_of_an_in_sync_set_loses_its_disk_while_the_others_are_paused(
    seed: int,
) -> None:
    assert last_member_loses_its_disk(seed) == []


@pytest.mark.parametrize("seed", range(8))
def test_a_log_of_a_deleted_topic_is_not_taken_for_one_of_the_next(seed: int) -> None:
    assert topic_made_again_while_a_machine_is_off(seed) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_commit_that_was_given_up_takes_no_later_one_back(seed: int) -> None:
    assert commit_that_was_given_up(seed) == [3, 3]


def test_a_machine_that_is_off_holds_up_no_client() -> None:
    """However long the client waits for its brokers."""
    with ReplicatedCluster(1) as cluster:
        cluster.start_all()
        cluster.crash(1)

        async def ask() -> int:
            async with cluster.client(unavailable_after_ms=NEVER_MS) as client:
                return len((await client.refresh(())).nodes)

        for number in range(6):  # the order of the brokers is another each time
            host = cluster.host(f"client-{number}")
            assert cluster.result(host, ask(), within_seconds=3) >= 2


def test_an_unclean_election_loses_no_more_than_it_may() -> None:
    history = unclean_election(1)
    assert [str(each) for each in check_all(history)] == []
    history.forgiven_until.clear()
    history.unclean_epochs.clear()
    found = {each.check for each in check_all(history)}
    assert found >= {"acknowledged", "held"}, "records were lost"


def test_another_seed_is_another_history() -> None:
    assert lived(12, events=2).digest != lived(13, events=2).digest


def test_a_life_with_violations_prints_it_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "check_all", lambda history: ["something is lost"])
    assert set(lived(7, events=0).violations) == {"something is lost"}
    assert "replay: " in capsys.readouterr().err


def test_a_failing_history_prints_the_line_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKALITE_SEEDS", raising=False)  # as `make simulate` sets it
    with pytest.raises(Stuck), SimulatedCluster(7, brokers=1) as cluster:
        cluster.run(lambda: False, 1)
    told = "tests/core/test_simulated_cluster.py::test_a_failing_history"
    assert f"replay: python -m pytest '{told}" in capsys.readouterr().err
    monkeypatch.setenv("KAFKALITE_SEEDS", "0:10000")
    assert cluster.replay_line().startswith(f"KAFKALITE_SEEDS=7:8 python -m pytest '{told}")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert cluster.replay_line() == "SimulatedCluster(seed=7, brokers=1)"
