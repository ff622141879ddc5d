"""A fault of ours, which no design foresees, costs no more than what it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.replicas.partition import Partition


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    with ThreeBrokers() as made:
        made.create(NewTopic("t", replica_assignment=((1, 2, 3), (1, 2, 3))))
        yield made
        assert not made.defects


def test_a_partition_that_cannot_follow_keeps_no_other_from_it(
    place: ThreeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Partition.answered

    def broken(partition: Partition, *args: Any) -> Any:
        is_at_fault = partition.topic_partition.partition == 0
        if is_at_fault and partition.replication.node_id == 2:
            raise RuntimeError("a fault of ours")
        return answered(partition, *args)

    monkeypatch.setattr(Partition, "answered", broken)
    place.produce("t", b"a", partition=0)
    place.produce("t", b"b", partition=1)
    place.until(lambda: place.held(2, "t", 1).log.high_watermark == 1, 5)
    assert place.held(2, "t", 0).log.log_end_offset == 0
    monkeypatch.undo()
    place.until(lambda: place.held(2, "t", 0).log.high_watermark == 1, 5)


def test_an_image_that_could_not_be_put_in_force_is_once_more(
    place: ThreeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = place.broker(2).partitions
    hold = partitions.hold

    async def broken(places: Any) -> None:
        monkeypatch.setattr(partitions, "hold", hold)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(partitions, "hold", broken)
    place.create(NewTopic("u", replica_assignment=((2, 1, 3),)))
    place.until(lambda: partitions.find("u", 0) is not None, 5)
    place.produce("u", b"a")
    assert place.held(2, "u").log.high_watermark == 1


def test_the_controller_notices_deaths_after_a_look_that_failed(
    place: ThreeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination = place.broker(1).steering._coordination
    children_many = coordination.children_many

    async def broken(paths: Any) -> None:
        monkeypatch.setattr(coordination, "children_many", children_many)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(coordination, "children_many", broken)
    place.kill(3)
    place.until(lambda: {*place.image(1).brokers} == {1, 2}, 10)
    assert coordination.children_many == children_many
