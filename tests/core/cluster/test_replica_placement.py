"""Where replicas of new partitions go: round the brokers, and into as many racks as possible."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.cluster.image import PartitionImage, TopicImage
from kafkalite.core.cluster.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, creatable
from kafkalite.core.cluster.placement import Racks, place, place_more
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.primitives import ZERO_UUID
from kafkalite.core.protocol.topics import CreatableTopic
from kafkalite.errors import ApiError, ErrorCode


def placed(
    racks: Racks, partitions: int, replication_factor: int, seed: int = 7
) -> list[tuple[int, ...]]:
    topic = CreatableTopic("t", partitions, replication_factor, (), ())
    return place(topic, racks, {}, Random(seed))


@given(
    st.dictionaries(st.integers(1, 20), st.sampled_from([None, "a", "b", "c"]), min_size=1),
    st.integers(1, 30),
    st.integers(1, 20),
    st.integers(0, 99),
)
def test_replicas_differ_and_lie_in_as_many_racks_as_possible(
    racks: dict[int, str | None], partitions: int, replication_factor: int, seed: int
) -> None:
    replication_factor = min(replication_factor, len(racks))
    spread = placed(racks, partitions, replication_factor, seed)
    for replicas in spread:
        assert len(set(replicas)) == replication_factor
        reached = {racks[node] for node in replicas}
        assert len(reached) == min(replication_factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in spread)
    assert max(leaders.values()) - min(leaders[node] for node in racks) <= 1


def test_racks_of_the_same_size_hold_as_many_replicas_as_each_other() -> None:
    racks = {0: "1", 1: "3", 2: "3", 3: "2", 4: "2", 5: "1"}
    spread = placed(racks, 12, 3)
    assert Counter(node for replicas in spread for node in replicas) == dict.fromkeys(racks, 6)
    assert len(set(spread)) > 6, "the second round has other followers than the first"


def test_without_racks_the_followers_shift_with_each_round() -> None:
    spread = placed(dict.fromkeys((1, 2, 3), None), 9, 2)
    assert len(set(spread)) == 6, "all pairs"


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        placed({1: "a", 2: None}, 1, 3)
    assert caught.value.error_code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert caught.value.words == (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be "
        "reached because only 2 broker(s) are registered."
    )


def test_brokers_that_are_away_hold_replicas_where_others_are_too_few() -> None:
    there = dict.fromkeys((1, 2), None)

    def spread(replication_factor: int, away: tuple[int, ...]) -> list[tuple[int, ...]]:
        topic = CreatableTopic("t", 4, replication_factor, (), ())
        return place(topic, there, {}, Random(7), away)

    assert {node for replicas in spread(2, (3,)) for node in replicas} == {1, 2}
    for replicas in spread(3, (3,)):
        assert replicas[2] == 3, "and leads nothing"
    assert Counter(replicas[2] for replicas in spread(3, (3, 4))) == {3: 2, 4: 2}
    with pytest.raises(ApiError, match=r"only 3 broker\(s\) are registered"):
        spread(4, (3,))


def test_a_topic_whose_first_partition_is_being_moved_grows_by_its_replication_factor() -> None:
    moving = PartitionImage((3, 1, 2), 1, 1, (1, 2), 1, (3,), (2,))
    topic = TopicImage("t", ZERO_UUID, (moving,))
    racks = dict.fromkeys((1, 2, 3), None)
    assert [len(replicas) for replicas in place_more(topic, 3, None, racks, Random(7))] == [2, 2]


@pytest.mark.parametrize(
    ("is_alone", "offsets", "transactions", "min_isr"), [(True, 1, 1, "1"), (False, 3, 3, "2")]
)
def test_internal_topics_of_a_cluster_have_the_replicas_that_the_settings_name(
    is_alone: bool, offsets: int, transactions: int, min_isr: str
) -> None:
    """Also on its first broker, which is the only one so far: no topic stays with one replica."""
    config = BrokerConfig.parse({})
    assert creatable(OFFSETS_TOPIC, config, is_alone=is_alone).replication_factor == offsets
    topic = creatable(TRANSACTIONS_TOPIC, config, is_alone=is_alone)
    configs = {each.name: each.value for each in topic.configs}
    assert topic.replication_factor == transactions
    assert configs["min.insync.replicas"] == min_isr
