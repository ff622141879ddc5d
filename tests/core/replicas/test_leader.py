"""A leader and its followers: what is committed, who is in sync, what the controller is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.replicas.leader import RETRY_MS, Altered, AlterPartition, FollowerFetch, Leader
from kafkalite.core.types import Outcome, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

ORDERS = TopicPartition("orders", 3)
LAG_MS = 1_000


def leading(
    in_sync: tuple[int, ...] = (1, 2, 3), *, end: int = 10, high_watermark: int = 4
) -> Leader:
    """Broker 1 begins to lead in epoch 5, with the log's end and high watermark as it knew it."""
    leader = Leader(ORDERS, 1, 5, end, high_watermark, end, LAG_MS)
    assert leader.replay(PartitionImage((1, 2, 3), 1, 5, in_sync, 7), 0).effects == ()
    return leader


def fetch(node: int, offset: int, **more: Any) -> FollowerFetch:
    return FollowerFetch(node, offset, **more)


def asked_of(outcome: Outcome[Any]) -> AlterPartition:
    (effect,) = outcome.effects
    assert isinstance(effect, AlterPartition)
    return effect


def members(outcome: Outcome[Any]) -> list[int]:
    return [each.node_id for each in asked_of(outcome).in_sync_replicas]


def test_the_high_watermark_is_what_the_slowest_in_sync_replica_has() -> None:
    leader = leading()
    assert leader.high_watermark == 4
    leader.fetched(fetch(2, 10), 1)
    assert leader.high_watermark == 4, "broker 3 has not fetched yet"
    leader.fetched(fetch(3, 6), 1)
    assert leader.high_watermark == 6
    assert not leader.appended(12)
    leader.fetched(fetch(3, 12), 2)
    assert leader.high_watermark == 10
    leader.fetched(fetch(3, 8), 3)
    assert leader.high_watermark == 10, "it never falls"


def test_a_joining_follower_counts_from_the_question_on() -> None:
    leader = leading((1,), end=10, high_watermark=10)
    assert leader.fetched(fetch(2, 9), 1).effects == (), "it has not reached the high watermark"
    outcome = leader.fetched(fetch(2, 10, broker_epoch=33), 2)
    assert asked_of(outcome).in_sync_replicas == ((1, -1), (2, 33))
    assert (asked_of(outcome).leader_epoch, asked_of(outcome).partition_epoch) == (5, 7)
    assert leader.in_sync_replicas == {1}
    assert leader.maximal_in_sync == {1, 2}
    leader.appended(15)
    assert leader.high_watermark == 10
    leader.fetched(fetch(2, 13), 3)
    assert leader.high_watermark == 13
    leader.altered(asked_of(outcome), Altered(5, 8, (1, 2)), 4)
    assert (leader.in_sync_replicas, leader.partition_epoch) == ({1, 2}, 8)


def test_a_follower_joins_not_before_the_start_of_the_leaders_epoch() -> None:
    leader = leading((1,), end=10, high_watermark=4)
    leader.high_watermark = 4
    assert leader.fetched(fetch(2, 9), 1).effects == ()
    assert members(leader.fetched(fetch(2, 10), 2)) == [1, 2]


def test_a_leaving_follower_counts_until_the_answer() -> None:
    leader = leading()
    leader.fetched(fetch(2, 10), 0)
    leader.fetched(fetch(3, 6), 0)
    leader.appended(20)
    leader.fetched(fetch(2, 20), LAG_MS)
    assert leader.tick(LAG_MS).effects == ()
    outcome = leader.tick(LAG_MS + 1)
    assert members(outcome) == [1, 2]
    assert leader.high_watermark == 6, "broker 3 is in the set until the controller says otherwise"
    leader.altered(asked_of(outcome), Altered(5, 8, (1, 2)), LAG_MS + 2)
    assert leader.high_watermark == 20


def test_who_keeps_up_with_what_the_leader_had_at_its_last_fetch_does_not_lag() -> None:
    leader = leading((1, 2))
    for now_ms in range(0, 10 * LAG_MS, LAG_MS // 2):
        leader.fetched(fetch(2, leader.log_end_offset), now_ms)  # never at the end it finds then
        leader.appended(leader.log_end_offset + 5)
        assert leader.tick(now_ms + 1).effects == ()


def test_an_idle_follower_is_caught_up_until_the_next_append() -> None:
    leader = leading((1, 2, 3))
    for node in (2, 3):
        leader.fetched(fetch(node, 10), 0)
    late_ms = 50 * LAG_MS
    assert leader.tick(late_ms).effects == ()
    leader.appended(11)
    assert leader.tick(late_ms + LAG_MS).effects == ()
    assert members(leader.tick(late_ms + LAG_MS + 1)) == [1]


def test_under_constant_appends_a_follower_that_is_caught_up_holds_the_high_watermark() -> None:
    """Else no follower of a lone leader would ever reach its high watermark."""
    leader = leading((1,), end=10, high_watermark=10)
    leader.fetched(fetch(2, 5), 1)
    leader.appended(12)
    assert leader.high_watermark == 12
    leader.fetched(fetch(2, 10), 2)  # all that there was at its fetch before
    leader.appended(14)
    assert leader.high_watermark == 12
    assert members(leader.fetched(fetch(2, 12), 3)) == [1, 2]


def test_who_left_comes_back_by_a_fetch_and_not_by_what_it_had() -> None:
    leader = leading((1, 2, 3))
    for node in (2, 3):
        leader.fetched(fetch(node, 10), 1)
    without = PartitionImage((1, 2, 3), 1, 5, (1, 2), 8)  # broker 3 is gone, says the controller
    assert leader.replay(without, 2).effects == ()
    assert leader.tick(3).effects == ()
    leader.still_fetches(3, 1)
    assert leader.tick(4).effects == (), "that was before it left"
    leader.still_fetches(3, 5)
    assert members(leader.tick(6)) == [1, 2, 3], "in a session it waits at the log's end"


def test_who_is_not_registered_does_not_join() -> None:
    leader = leading((1,), end=10, high_watermark=10)
    assert leader.fetched(fetch(2, 10, is_eligible=False), 1).effects == ()
    leader.appended(11)
    assert leader.high_watermark == 11, "and holds nothing back"
    leader.fetched(fetch(2, 11), 2)
    leader = leading((1,), end=10, high_watermark=10)
    leader.fetched(fetch(2, 5), 1)
    leader.tick(2, eligible={1: 4, 3: 4})
    assert not leader.followers[2].is_eligible
    leader.fetched(fetch(2, 5, broker_epoch=4), 3)
    leader.tick(4, eligible={1: 4, 2: 5, 3: 4})
    assert not leader.followers[2].is_eligible, "it runs in another life, which has not fetched"
    leader.tick(5, eligible={1: 4, 2: 4, 3: 4})
    assert leader.followers[2].is_eligible


def test_a_follower_whose_log_has_failed_keeps_no_other_out_of_the_in_sync_set() -> None:
    """A full disk refused an append: the follower fetches on, and has what the leader has."""
    leader = leading((1,))
    failed = PartitionImage((1, 2, 3), 1, 5, (1,), 8, failed_replicas=(2,))
    assert leader.replay(failed, 1).effects == ()
    assert leader.fetched(fetch(2, 10), 2).effects == ()
    assert members(leader.fetched(fetch(3, 10), 3)) == [1, 3]
    leader.replay(PartitionImage((1, 2, 3), 1, 5, (1, 3), 9, failed_replicas=(2,)), 4)
    leader.appended(12)
    leader.fetched(fetch(3, 12), 5)
    assert leader.high_watermark == 12, "the failed follower holds nothing back"
    leader.fetched(fetch(2, 12), 6)
    assert members(leader.replay(PartitionImage((1, 2, 3), 1, 5, (1, 3), 10), 7)) == [1, 2, 3]


def test_who_fetched_before_it_was_registered_does_not_join_by_that() -> None:
    """Its broker may have been started again since, without what it had."""
    leader = leading((1,), end=10, high_watermark=10)
    assert leader.fetched(fetch(2, 10, is_eligible=False), 1).effects == ()
    assert leader.tick(2, eligible={1: 4, 2: 5}).effects == ()
    assert members(leader.fetched(fetch(2, 10, broker_epoch=5), 3)) == [1, 2]


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_change_that_is_refused_is_taken_back_and_asked_for_later(code: ErrorCode) -> None:
    leader = leading((1,), end=10, high_watermark=10)
    asked = asked_of(leader.fetched(fetch(2, 10), 1))
    assert leader.altered(asked, code, 2).effects == ()
    assert leader.maximal_in_sync == {1}
    assert leader.fetched(fetch(2, 10), 3).effects == (), "not at once again"
    assert members(leader.tick(2 + RETRY_MS)) == [1, 2]


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.NETWORK_EXCEPTION])
def test_a_question_that_was_perhaps_not_heard_is_repeated(code: ErrorCode) -> None:
    leader = leading((1,), end=10, high_watermark=10)
    asked = asked_of(leader.fetched(fetch(2, 10), 1))
    leader.altered(asked, code, 2)
    assert leader.maximal_in_sync == {1, 2}, "it may be in force"
    assert leader.tick(3).effects == ()
    assert leader.tick(2 + RETRY_MS).effects == (asked,)
    assert leader.tick(3 + RETRY_MS).effects == ()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_leader_that_is_out_of_date_waits_for_the_image(code: ErrorCode) -> None:
    leader = leading((1,), end=10, high_watermark=10)
    asked = asked_of(leader.fetched(fetch(2, 10), 1))
    leader.altered(asked, code, 2)
    assert leader.tick(100 * RETRY_MS).effects == ()
    assert leader.maximal_in_sync == {1, 2}
    leader.replay(PartitionImage((1, 2, 3), 1, 5, (1, 2), 9), 101 * RETRY_MS)
    assert leader.asked is None
    assert leader.in_sync_replicas == {1, 2}
    assert leader.altered(asked, Altered(5, 8, (1,)), 102 * RETRY_MS).effects == ()
    assert leader.in_sync_replicas == {1, 2}, "a late answer changes nothing"


def test_a_fetch_by_no_replica_or_an_earlier_life_is_refused() -> None:
    leader = leading()
    with pytest.raises(ApiError, match="broker 9 has no replica") as refused:
        leader.fetched(fetch(9, 10), 1)
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.fetched(fetch(2, 10, broker_epoch=4), 1)
    with pytest.raises(ApiError, match="fetches under epoch 3, its current one is 4"):
        leader.fetched(fetch(2, 10, broker_epoch=3), 1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("fetch"), st.integers(2, 4), st.integers(0, 6)),
        st.tuples(st.just("pass"), st.integers(1, 2 * LAG_MS), st.just(0)),
        st.tuples(st.just("answer"), st.just(0), st.just(0)),
        st.tuples(st.just("lose"), st.just(0), st.just(0)),
        st.tuples(st.just("remove"), st.integers(2, 4), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=300)
@given(STEPS)
def test_all_that_the_controller_takes_for_in_sync_have_all_that_is_committed(
    steps: list[tuple[str, int, int]],
) -> None:
    """A controller that answers late, or whose answers are lost, or that changes the set itself."""
    leader = Leader(ORDERS, 1, 5, 10, 3, 10, LAG_MS)
    replicas, truth, epoch = (1, 2, 3, 4), (1, 2, 3), 0
    ends = {2: 5, 3: 5, 4: 0}  # what followers have; what they fetched from is never more
    now_ms, high_watermark = 0, 3
    questions = list(leader.replay(PartitionImage(replicas, 1, 5, truth, epoch), 0).effects)
    for what, number, size in steps:
        outcome: Outcome[Any] = Outcome()
        match what:
            case "append":
                leader.appended(leader.log_end_offset + number)
            case "fetch":
                outcome = leader.fetched(fetch(number, ends[number]), now_ms)
                ends[number] = min(leader.log_end_offset, ends[number] + size)
            case "pass":
                now_ms += number
                outcome = leader.tick(now_ms)
            case "remove" if number in truth:
                truth, epoch = tuple(n for n in truth if n != number), epoch + 1
                outcome = leader.replay(PartitionImage(replicas, 1, 5, truth, epoch), now_ms)
            case "answer" | "lose" if questions:
                asked = questions.pop(0)
                answer: Altered | ErrorCode = ErrorCode.INVALID_UPDATE_VERSION
                if asked.partition_epoch == epoch:
                    epoch += 1
                    truth = tuple(each.node_id for each in asked.in_sync_replicas)
                    answer = Altered(5, epoch, truth)
                if what == "lose":
                    answer = ErrorCode.NETWORK_EXCEPTION
                outcome = leader.altered(asked, answer, now_ms)
                if answer is ErrorCode.INVALID_UPDATE_VERSION:
                    outcome = leader.replay(PartitionImage(replicas, 1, 5, truth, epoch), now_ms)
        questions += outcome.effects
        assert len(questions) <= 2
        assert leader.high_watermark >= high_watermark
        high_watermark = leader.high_watermark
        have_it_all = min([leader.log_end_offset, *(ends[n] for n in truth if n != 1)])
        assert high_watermark <= max(have_it_all, 3), (truth, ends)


def test_followers_that_fetch_confirm_who_leads() -> None:
    leader = leading()
    assert not leader.is_confirmed(0, by_all=False)
    leader.fetched(fetch(2, 10), 90)
    assert not leader.is_confirmed(0, by_all=False), "it may have been sent at any time before"
    leader.fetched(fetch(2, 10, confirmed_ms=100), 1_000)
    assert leader.is_confirmed(100, by_all=False)
    assert not leader.is_confirmed(101, by_all=False)
    assert not leader.is_confirmed(100, by_all=True)
    leader.still_confirms(3, 150)
    assert leader.is_confirmed(100, by_all=True)


def test_a_leader_that_is_alone_in_sync_has_no_successor() -> None:
    assert leading((1,)).is_confirmed(1_000, by_all=True)
