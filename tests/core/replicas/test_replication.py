"""Who may append, and what is committed."""

from __future__ import annotations

import pytest

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.replicas.replication import PartitionReplication, Role
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode

ORDERS = TopicPartition("orders", 3)


def leader(
    leader_epoch: int = 5, replicas: tuple[int, ...] = (1,), in_sync: tuple[int, ...] | None = None
) -> PartitionReplication:
    replication = PartitionReplication(ORDERS, node_id=1)
    assert replication.replay(PartitionImage(replicas, 1, leader_epoch, in_sync or replicas), 0)
    return replication


@pytest.mark.parametrize(
    ("acks", "min_insync_replicas", "code"),
    [
        (5, 1, ErrorCode.INVALID_REQUIRED_ACKS),
        (-2, 1, ErrorCode.INVALID_REQUIRED_ACKS),
        (-1, 2, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_an_append_that_nobody_could_acknowledge_is_refused(
    acks: int, min_insync_replicas: int, code: ErrorCode
) -> None:
    with pytest.raises(ApiError, match="orders-3") as refused:
        leader(replicas=(1, 2), in_sync=(1,)).check_produce(acks, min_insync_replicas)
    assert refused.value.error_code is code


@pytest.mark.parametrize(("acks", "min_insync_replicas"), [(0, 2), (1, 2), (-1, 1)])
def test_min_insync_replicas_binds_acks_all_only(acks: int, min_insync_replicas: int) -> None:
    leader(replicas=(1, 2), in_sync=(1,)).check_produce(acks, min_insync_replicas)


def test_a_partition_of_fewer_replicas_than_min_insync_replicas_needs_all_of_them() -> None:
    leader(replicas=(1,)).check_produce(-1, 2)
    leader(replicas=(1, 2)).check_produce(-1, 3)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_peer_with_another_leader_epoch_is_told(epoch: int, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        leader().check_leader(epoch)
    assert refused.value.error_code is code
    leader().check_leader(5)
    leader().check_leader(-1)


def test_a_follower_refuses_requests_and_an_older_image_changes_nothing() -> None:
    replication = leader(leader_epoch=5)
    assert replication.replay(PartitionImage((1, 2), 2, 6, (1, 2)), 0)
    with pytest.raises(ApiError) as refused:
        replication.check_leader()
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not replication.replay(PartitionImage((1,), 1, 5, (1,)), 0)
    assert replication.role is Role.FOLLOWER


def test_alone_the_high_watermark_is_the_end_of_the_log() -> None:
    replication = leader()
    assert replication.appended(7)
    assert replication.high_watermark == 7
    assert not replication.appended(7)


def test_with_followers_the_high_watermark_waits_for_the_slowest_in_sync() -> None:
    replication = leader(replicas=(1, 2, 3))
    assert not replication.appended(10)
    assert not replication.replicated(2, 10)
    assert replication.replicated(3, 4)
    assert replication.high_watermark == 4
    assert replication.replay(PartitionImage((1, 2, 3), 1, 5, (1, 2)), 10)
    assert replication.high_watermark == 10


def test_a_new_leader_does_not_trust_offsets_of_an_older_epoch() -> None:
    replication = leader(replicas=(1, 2))
    replication.appended(10)
    replication.replicated(2, 10)
    replication.replay(PartitionImage((1, 2), 2, 6, (1, 2)), 10)
    replication.replay(PartitionImage((1, 2), 1, 7, (1, 2)), 10)
    assert not replication.appended(12)
    assert replication.high_watermark == 10
