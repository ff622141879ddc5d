"""The role of a broker for a partition: who may append, and who is told to ask elsewhere."""

from __future__ import annotations

import pytest

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.replicas.replication import LogEnds, PartitionReplication, Role
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode

ORDERS = TopicPartition("orders", 3)
AFTER_APPEND = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def ends(end: int = 0, high_watermark: int = 0) -> LogEnds:
    return LogEnds(high_watermark, end, end)


def leader(
    leader_epoch: int = 5, replicas: tuple[int, ...] = (1,), in_sync: tuple[int, ...] | None = None
) -> PartitionReplication:
    replication = PartitionReplication(ORDERS, node_id=1)
    image = PartitionImage(replicas, 1, leader_epoch, in_sync or replicas)
    assert replication.replay(image, ends(), 0) is not None
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


def test_what_was_appended_is_not_called_safe_by_too_few() -> None:
    with pytest.raises(ApiError, match="1 in sync, min.insync.replicas is 2") as refused:
        leader(replicas=(1, 2), in_sync=(1,)).check_in_sync(2, AFTER_APPEND)
    assert refused.value.error_code is AFTER_APPEND
    leader(replicas=(1, 2)).check_in_sync(2, AFTER_APPEND)


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


def test_a_leader_vouches_for_its_own_epoch_alone() -> None:
    replication = leader(leader_epoch=5)
    replication.check_led_in(5)
    replication.replay(PartitionImage((1,), 1, 7, (1,)), ends(), 0)
    with pytest.raises(ApiError, match="appended in leader epoch 5, ours is 7") as refused:
        replication.check_led_in(5)
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_refuses_requests_and_an_older_image_changes_nothing() -> None:
    replication = leader(leader_epoch=5)
    assert replication.replay(PartitionImage((1, 2), 2, 6, (1, 2)), ends(), 0) is not None
    with pytest.raises(ApiError) as refused:
        replication.check_leader()
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replication.replay(PartitionImage((1,), 1, 5, (1,)), ends(), 0) is None
    assert replication.role is Role.FOLLOWER


def test_an_image_of_an_earlier_partition_epoch_changes_nothing() -> None:
    replication = PartitionReplication(ORDERS, node_id=1)
    replication.replay(PartitionImage((1, 2), 1, 5, (1,), 8), ends(), 0)
    assert replication.replay(PartitionImage((1, 2), 1, 5, (1, 2), 7), ends(), 0) is None
    assert replication.in_sync_replicas == {1}


def test_alone_the_high_watermark_is_the_end_of_the_log() -> None:
    replication = leader()
    assert replication.is_alone
    assert replication.appended(7)
    assert replication.high_watermark == 7
    assert not replication.appended(7)


def test_a_new_leader_begins_with_the_high_watermark_that_it_knew() -> None:
    replication = PartitionReplication(ORDERS, node_id=1)
    replication.replay(PartitionImage((1, 2), 1, 5, (1, 2)), ends(10, high_watermark=4), 0)
    assert replication.high_watermark == 4
    assert not replication.is_alone
